"""The processes of a launcher: how they wait for each other, agree, and end together when one fails.

An error of one process is raised in all of them, and the main one tells of it. The launcher ends those of its machine
when one ends; on other machines a closed connection does.
"""

from __future__ import annotations

import functools
import importlib.metadata
import io
import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.distributed

from hf_meanmax._version import __version__
from hf_meanmax.hardware import PATIENCE

if TYPE_CHECKING:
    from accelerate import PartialState

Fact = TypeVar("Fact")

# What weights, numbers and tokens depend on.
_PACKAGES = ("accelerate", "numpy", "safetensors", "sentence-transformers", "tokenizers", "torch", "transformers")
# Errors that commands report in one line.
_TOLD = (ValueError, TypeError, OSError, FloatingPointError, ImportError)
# What the backends say where a process ended or does not answer; gloo raises plain RuntimeErrors.
_LOST = re.compile(r"gloo|NCCL|Connection (closed|reset|refused)|Broken pipe|[Tt]imed ?out|timeout")
_MOST_SHOWN = 200


class PeerEndedError(RuntimeError):
    """Another process has ended before its time, as one that was killed."""


def process_state(timeout: timedelta | None = None) -> PartialState:
    """Accelerate's `PartialState` for the processes of a launcher, or for this one alone.

    Args:
        timeout: how long a process waits for the others in what it computes with them; by default the backend's limit.

    Raises:
        ValueError: several processes were launched that do not know of one another.
    """
    from accelerate import PartialState
    from accelerate.utils import parse_flag_from_env

    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched == 1:
        return PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"))
    cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
    state = PartialState(cpu=cpu, **({} if timeout is None else {"timeout": timeout}))
    if state.num_processes != launched:
        raise ValueError(f"{launched} processes were launched, but accelerate sees {state.num_processes}.")
    return state


@contextmanager
def errors_shared(state: PartialState | None) -> Iterator[None]:
    """Waits for all processes at the end of the block, for hours if need be. An error of one of them is then raised in
    each, so that none waits for one that has failed.

    Blocks can be nested: a process at the end of an outer one meets others at the end of an inner one.

    Args:
        state: accelerate's, of the processes, each of which must come here; None for this one alone.

    Raises:
        PeerEndedError: another process has ended.
    """
    if state is None or state.num_processes == 1:
        yield
        return
    try:
        yield
    except Exception as error:
        if not is_shared(error):
            with suppress(PeerEndedError):
                _exchange(error)
        raise
    _exchange()


@contextmanager
def main_process_first(state: PartialState | None) -> Iterator[None]:
    """Has the other processes run the block after the main one: they find what it leaves in a cache, and what is wrong
    for all of them is found once. Errors are shared."""
    is_main = state is None or state.is_main_process
    if not is_main:
        wait_for_everyone(state)
    with errors_shared(state):
        yield
    if is_main:
        wait_for_everyone(state)


def wait_for_everyone(state: PartialState | None) -> None:
    """Waits until all processes are here.

    Raises:
        PeerEndedError: one has ended. An error of another process is raised here too.
    """
    with errors_shared(state):
        pass


def end_processes() -> None:
    """Ends what the processes of a launcher have in common, where a run has ended well.

    A group that outlived this would be ended with the interpreter, whose lock its threads may be waiting for: now and
    then the process would abort.
    """
    _patient_group.cache_clear()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def check_agreement(
    state: PartialState | None, facts: Mapping[str, object], remedy: str = "It must be the same for all."
) -> None:
    """Checks that all processes, perhaps on several machines, have the same versions, data or settings.

    Args:
        state: accelerate's, of the processes, each of which must come here; None for this one alone.
        facts: plain values by name; of long ones a hash.
        remedy: what to do where they differ.

    Raises:
        ValueError: a process has other facts; it names both machines, the first such fact and both values.
    """
    if state is None or state.num_processes == 1:
        return
    everyones = _exchange(fact=(socket.gethostname(), dict(facts)))
    host, ours = everyones[0]
    for rank, (other_host, theirs) in enumerate(everyones):
        for name in (name for name in ours | theirs if theirs.get(name) != ours.get(name)):
            there, here = (str(values.get(name))[:_MOST_SHOWN] for values in (theirs, ours))
            error = ValueError(
                f"Process {rank} on {other_host} has another {name} than process 0 on {host} ({there} there, {here} "
                f"here). {remedy}"
            )
            raise _marked(error)


def of_main_process(state: PartialState | None, fact: Fact) -> Fact:
    """What the main process has found, in all processes, each of which must come here."""
    return fact if state is None or state.num_processes == 1 else cast("Fact", _exchange(fact=fact)[0])


def shared_versions() -> dict[str, str]:
    """The versions of the packages that must be the same for all processes, for [`check_agreement`]."""
    return {
        "version of hf_meanmax": __version__,
        **{f"version of {name}": importlib.metadata.version(name) for name in _PACKAGES},
    }


def is_shared(error: BaseException) -> bool:
    """Whether every process has this error."""
    return getattr(error, "is_shared", False)


def is_launched_first() -> bool:
    """Whether this is the main process of a launcher, or of none; known before the processes meet."""
    return os.environ.get("RANK", "0") == "0"


def tells(error: BaseException) -> bool:
    """Whether this process is to tell of an error: of one that all have, the main process alone."""
    return not is_shared(error) or is_launched_first()


@contextmanager
def errors_once() -> Iterator[None]:
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
def naming_lost_processes(timeout: timedelta) -> Iterator[None]:
    """Turns what a backend says of a process that ended, or did not answer within `timeout`, into one line.

    Raises:
        ConnectionError: it did. Other errors pass.
    """
    try:
        yield
    except RuntimeError as error:
        is_lost = isinstance(error, PeerEndedError | torch.distributed.DistError) or _LOST.search(str(error))
        if int(os.environ.get("WORLD_SIZE", "1")) == 1 or not is_lost:
            raise
        cause = " ".join(str(error).split())[:_MOST_SHOWN]
        lost = ConnectionError(
            f"Another process of this run ended, or did not answer within {timeout.total_seconds():g} s ({cause}). The "
            "same command resumes from the last checkpoint."
        )
        raise (_marked(lost) if is_shared(error) else lost) from error


def _exchange(error: Exception | None = None, fact: Any = None) -> list[Any]:
    """The facts of all processes; if one of them has an error, it is raised in those that have none."""
    gathered: list[Any] = [None] * torch.distributed.get_world_size()
    own = None
    if error is not None:
        place = f"process {torch.distributed.get_rank()} on {socket.gethostname()}"
        own = next((kind for kind in _TOLD if isinstance(error, kind)), RuntimeError), f"{place}: {error}"
    try:
        torch.distributed.all_gather_object(gathered, (own, fact), group=_patient_group(torch.distributed.group.WORLD))
    except RuntimeError as closed:
        raise PeerEndedError(f"Another process has ended ({' '.join(str(closed).split())[:_MOST_SHOWN]}).") from closed
    if error is not None:
        _marked(error)
        return []
    for failure, _ in gathered:
        if failure is not None:
            kind, text = failure
            raise _marked(kind(text))
    return [found for _, found in gathered]


def _marked(error: Exception) -> Exception:
    error.is_shared = True  # type: ignore[attr-defined]
    return error


@functools.lru_cache(maxsize=1)
def _patient_group(world: object) -> Any:
    """A second group of all processes, whose waits are not those of a training step; gloo needs no device."""
    return torch.distributed.new_group(backend="gloo", timeout=PATIENCE)
