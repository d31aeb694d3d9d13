"""Reasons to end a run before its last step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch
from accelerate import Accelerator

from hf_meanmax.files import Json

from .settings import PretrainArguments

TERMINATED, NO_BETTER = "terminated", "no better accuracy"
# The options that set the limits behind the other reasons.
LIMITS = {"time": "max_minutes", NO_BETTER: "early_stopping_patience", "tokens": "max_training_tokens"}


def agree_to_stop(
    args: PretrainArguments, accelerator: Accelerator, state: Json, is_terminated: bool
) -> tuple[str, float]:
    """Why the run should stop after this step ("" for no reason), and its seconds; all processes get the same answer.

    Args:
        args: settings with the limits.
        accelerator: of the run; every process must call this.
        state: `seconds`, `tokens` and `bad_evaluations` so far.
        is_terminated: whether this process was asked to end.
    """
    reasons = {
        TERMINATED: is_terminated,
        "time": 0 < 60 * args.max_minutes <= state["seconds"],
        NO_BETTER: 0 < args.early_stopping_patience <= state["bad_evaluations"],
        "tokens": 0 < args.max_training_tokens <= state["tokens"],
        "": True,
    }
    # The first reason that holds, as a number that processes can compare.
    reason, seconds = [*reasons.values()].index(True), float(state["seconds"])
    if accelerator.num_processes > 1:
        own = torch.tensor([[reason, seconds]], dtype=torch.float32, device=accelerator.device)
        of_all, all_seconds = accelerator.gather(own).T.tolist()
        # The schedule reads the time, and all processes must take the same learning rate.
        reason, seconds = int(min(of_all)), max(all_seconds)
    return [*reasons][reason], seconds


class Termination(threading.Event):
    """An event that a signal sets, with the `number` of that signal."""

    number = 0


@contextmanager
def termination_flag() -> Iterator[Termination]:
    """An event that SIGTERM and the first Ctrl-C set instead of ending the process."""
    event = Termination()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    previous: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def on_signal(number: int, frame: FrameType | None) -> None:
        event.number = number
        event.set()
        # A second signal ends the process as usual.
        signal.signal(number, previous[number])

    for caught in (signal.SIGTERM, signal.SIGINT):
        previous[caught] = signal.signal(caught, on_signal)
    try:
        yield event
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
