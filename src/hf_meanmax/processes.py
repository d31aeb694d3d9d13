"""Coordinates the processes of a launcher: they wait for each other, agree, and end together if one fails.

An error of one process is raised in all of them and reported by the main one. If a process ends, the launcher ends the
others on its machine; on other machines they end because the connection is closed.
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

# Packages whose versions affect weights, numbers or tokens.
_PACKAGES = ("accelerate", "numpy", "safetensors", "sentence-transformers", "tokenizers", "torch", "transformers")
# Errors that commands report in one line.
_TOLD = (ValueError, TypeError, OSError, FloatingPointError, ImportError)
# Messages of the backends if a process ended or does not answer; gloo raises plain RuntimeErrors.
_LOST = re.compile(r"gloo|NCCL|Connection (closed|reset|refused)|Broken pipe|[Tt]imed ?out|timeout")
_MOST_SHOWN = 200


class PeerEndedError(RuntimeError):
    """Another process ended early, for instance because it was killed."""


def process_state(timeout: timedelta | None = None) -> PartialState:
    """Accelerate's `PartialState` for the processes of a launcher, or for a single process.

    Args:
        timeout: how long collective operations wait for other processes (default: the backend's limit).

    Raises:
        ValueError: several processes were launched, but accelerate does not see all of them.
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
    """Waits for all processes at the end of the block, for hours if need be. An error of one process is then raised in
    all of them, so that none waits for a failed process.

    Blocks can be nested: the end of an outer block in one process can match the end of an inner block in another.

    Args:
        state: accelerate's state; every process must run the block. None for a single process.

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
    """Runs the block in the main process first, then in the others, which find its results in a cache. Errors are
    shared, so a problem common to all is met once."""
    is_main = state is None or state.is_main_process
    if not is_main:
        wait_for_everyone(state)
    with errors_shared(state):
        yield
    if is_main:
        wait_for_everyone(state)


def wait_for_everyone(state: PartialState | None) -> None:
    """Waits until all processes have reached this call.

    Raises:
        PeerEndedError: another process has ended. An error of another process is raised here too.
    """
    with errors_shared(state):
        pass


def end_processes() -> None:
    """Destroys the process groups of a launcher after a successful run.

    Otherwise they would be destroyed at interpreter exit, where their threads may wait for the interpreter's lock, and
    the process would sometimes abort.
    """
    _patient_group.cache_clear()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def check_agreement(
    state: PartialState | None, facts: Mapping[str, object], remedy: str = "It must be the same for all."
) -> None:
    """Checks that all processes, also on several machines, have the same versions, data or settings.

    Args:
        state: accelerate's state; every process must make this call. None for a single process.
        facts: plain values by name, or hashes of long values.
        remedy: advice for the error message.

    Raises:
        ValueError: a process has another value; the message names both machines, the first such fact and both values.
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
    """Returns the main process's `fact` in all processes; every process must make this call."""
    return fact if state is None or state.num_processes == 1 else cast("Fact", _exchange(fact=fact)[0])


def shared_versions() -> dict[str, str]:
    """Versions of the packages that must be the same in all processes, for [`check_agreement`]."""
    return {
        "version of hf_meanmax": __version__,
        **{f"version of {name}": importlib.metadata.version(name) for name in _PACKAGES},
    }


def is_shared(error: BaseException) -> bool:
    """Whether this error was raised in every process."""
    return getattr(error, "is_shared", False)


def is_launched_first() -> bool:
    """Whether this is the main process of a launcher, or the only one; works before the processes are connected."""
    return os.environ.get("RANK", "0") == "0"


def tells(error: BaseException) -> bool:
    """Whether this process should report an error: a shared one is reported by the main process alone."""
    return not is_shared(error) or is_launched_first()


@contextmanager
def errors_once() -> Iterator[None]:
    """Lets one process per machine report an error in input that all read, such as the command line."""
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
    """Turns a backend's error about a process that ended, or did not answer within `timeout`, into one line.

    Raises:
        ConnectionError: another process ended or did not answer. Other errors pass unchanged.
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
    """Gathers the facts of all processes; an error of one is raised in the processes that have none."""
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
    """A second group of all processes, with a longer timeout than training steps; gloo needs no device."""
    return torch.distributed.new_group(backend="gloo", timeout=PATIENCE)
