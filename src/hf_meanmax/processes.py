"""The processes of `accelerate launch`: how they wait for each other, and how they end together when one fails.

The process that fails says why, and ends. Those of its machine are ended by the launcher; those that wait for it
elsewhere, or find out first, end without a word of their own.
"""

from __future__ import annotations

import io
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from typing import TYPE_CHECKING

import torch

from hf_meanmax.hardware import PATIENCE

if TYPE_CHECKING:
    from accelerate import PartialState


class PeerEndedError(RuntimeError):
    """Another process has ended before its time; it has said why, or was killed."""


def process_state() -> PartialState:
    """Accelerate's `PartialState` for the processes of a launcher, or for this one alone.

    Raises:
        ValueError: several processes were launched that do not know of one another.
    """
    from accelerate import PartialState
    from accelerate.utils import parse_flag_from_env

    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched == 1:
        return PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"))
    cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
    # A process may wait long for the others' last shards.
    state = PartialState(cpu=cpu, timeout=PATIENCE)
    if state.num_processes != launched:
        raise ValueError(f"{launched} processes were launched, but accelerate sees {state.num_processes}.")
    return state


def wait_for_everyone(state: PartialState | None) -> None:
    """Waits until all processes are here.

    Raises:
        PeerEndedError: one has ended.
    """
    if state is not None:
        with _peers():
            state.wait_for_everyone()


@contextmanager
def main_process_first(state: PartialState | None) -> Iterator[None]:
    """Has the other processes run the block after the first one: what is wrong for all of them is said once.

    Raises:
        PeerEndedError: the first process has ended.
    """
    is_main = state is None or state.is_main_process
    if not is_main:
        wait_for_everyone(state)
    yield
    if is_main:
        wait_for_everyone(state)


def check_agreement(state: PartialState | None, facts: Mapping[str, object]) -> None:
    """Checks that all processes, perhaps on several machines, have the same versions, data or settings.

    Raises:
        ValueError: a process has other facts; raised on the first process, and names both machines and the fact.
        PeerEndedError: on the others, in that case.
    """
    if state is None or state.num_processes == 1:
        return
    from accelerate.utils import gather_object

    with _peers():
        gathered: list[tuple[str, dict[str, object]]] = gather_object([(socket.gethostname(), dict(facts))])
    if state.is_main_process:
        host, ours = gathered[0]
        for rank, (other_host, theirs) in enumerate(gathered):
            for name in (name for name in ours if theirs.get(name) != ours[name]):
                raise ValueError(
                    f"Process {rank} on {other_host} has another {name} than process 0 on {host} "
                    f"({theirs.get(name)} there, {ours[name]} here); it must be the same for all."
                )
    wait_for_everyone(state)


@contextmanager
def told_once() -> Iterator[None]:
    """Has one process a machine say what is wrong with something that they all read, as the command line is."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        yield
        return
    try:
        with redirect_stderr(io.StringIO()):
            yield
    except (OSError, ValueError):
        raise SystemExit(1) from None


@contextmanager
def _peers() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # The connection is closed.
        raise PeerEndedError("Another process has ended.") from error
