"""Applies a function to many items in worker processes."""

from __future__ import annotations

import multiprocessing
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

Result = TypeVar("Result")


def map_in_processes(
    function: Callable[..., Result], items: Iterable[tuple[object, ...]], num_proc: int
) -> Iterator[Result]:
    """Yields the results of `function` for each item, in order; items are consumed as results are taken.

    Args:
        function: a function at module level, since worker processes import it.
        items: the arguments of each call.
        num_proc: number of worker processes.

    Raises:
        ChildProcessError: a worker process was killed.
    """
    # Forked workers need no imports, and forking is safe since they run only Python code and tokenizers.
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else None
    context = multiprocessing.get_context(method)
    pool = ProcessPoolExecutor(num_proc, context)
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            with warnings.catch_warnings():
                # It warns about forking a process with threads.
                warnings.simplefilter("ignore", DeprecationWarning)
                waiting.append(pool.submit(function, *item))
            if len(waiting) > 2 * num_proc:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise ChildProcessError(
            f"One of {num_proc} processes was killed, perhaps for want of memory; give fewer."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
