"""Objects in processes of their own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


class Worker:
    """An object in a process of its own, with its own memory and the allocator that its users have.

    Only one of several works at a time: a call waits for its answer, and so does making one.

    Args:
        make: what makes the object; a function or class of a module.
        arguments: of it.

    Raises:
        RuntimeError: it failed there, or its process died.
    """

    def __init__(self, make: Callable[..., Any], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(make, arguments, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self._receive()

    def call(self, method: str, *arguments: Any) -> Any:
        """What a method of the object returns."""
        self.connection.send((method, arguments))
        return self._receive()

    def peak_memory(self) -> float:
        """GiB that its process has taken at most."""
        self.connection.send((None, ()))
        return float(self._receive())

    def close(self) -> None:
        """Ends the process."""
        self.connection.close()
        self.process.join()

    def _receive(self) -> Any:
        try:
            result, error = self.connection.recv()
        except EOFError:
            self.process.join()
            raise RuntimeError(f"A process of a benchmark died (exit code {self.process.exitcode}).") from None
        if error is not None:
            raise RuntimeError(error)
        return result


def _serve(make: Callable[..., Any], arguments: tuple[Any, ...], connection: Connection) -> None:
    served = None
    try:
        served = make(*arguments)
        connection.send((None, None))
    except Exception as error:
        connection.send((None, _told(error)))
    while True:
        try:
            method, arguments = connection.recv()
        except EOFError:
            return
        try:
            connection.send(((getattr(served, method)(*arguments) if method else _peak_memory()), None))
        except Exception as error:
            connection.send((None, _told(error)))


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _peak_memory() -> float:
    # Here, so that a process imports no more than its object needs.
    from rounds import peak_memory

    return peak_memory()
