"""Objects in processes of their own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from rounds import peak_memory


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
    def answer(function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            result, error = function(*arguments), None
        except Exception as problem:
            result, error = None, f"{type(problem).__name__}: {problem}"
        # What was made stays here.
        connection.send((None if function is make else result, error))
        return result

    served = answer(make, *arguments)
    while True:
        try:
            method, arguments = connection.recv()
        except EOFError:
            return
        answer(peak_memory if method is None else getattr(served, method), *arguments)
