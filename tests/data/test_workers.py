"""A function over many items in other processes."""

import os
import signal

import pytest

from hf_meanmax.data.workers import map_in_processes


def double(number: int) -> int:
    if number < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * number


def test_results_come_in_order():
    assert list(map_in_processes(double, [(number,) for number in range(20)], 2)) == list(range(0, 40, 2))


def test_a_process_that_was_killed_is_an_error_of_the_system():
    with pytest.raises(ChildProcessError, match="One of 2 processes was killed, perhaps for want of memory"):
        list(map_in_processes(double, [(1,), (-1,), (2,)], 2))
