"""Processes of a launcher: what each of them says."""

from __future__ import annotations

import pytest

from hf_meanmax.commands.encode import main
from hf_meanmax.commands.options import one_line_errors
from hf_meanmax.processes import PeerEndedError, check_agreement, main_process_first, told_once, wait_for_everyone


@pytest.mark.parametrize(("rank", "said"), [("0", "unknown option --bach-size"), ("1", "")])
def test_one_process_a_machine_tells_of_a_misspelt_option(monkeypatch, capsys, rank, said):
    monkeypatch.setenv("LOCAL_RANK", rank)
    with pytest.raises(SystemExit) as ended:
        main(["model", "text", "--output", "out", "--bach-size", "3"])
    assert ended.value.code == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert bool(said) == bool(errors)


def test_one_process_a_machine_tells_of_a_wrong_value(monkeypatch):
    def read() -> None:
        with told_once():
            raise ValueError("a wrong value")

    with pytest.raises(ValueError, match="a wrong value"):
        read()
    monkeypatch.setenv("LOCAL_RANK", "3")
    with pytest.raises(SystemExit) as ended:
        read()
    assert ended.value.code == 1


def test_a_process_whose_peer_has_ended_says_nothing():
    with pytest.raises(SystemExit) as ended, one_line_errors("encode"):
        raise PeerEndedError("Another process has ended.")
    assert ended.value.code == 1


class OfTwo:
    """The state of one of two processes, the other of which has ended."""

    num_processes = 2

    def __init__(self, is_main_process: bool):
        self.is_main_process = is_main_process

    def wait_for_everyone(self) -> None:
        raise RuntimeError("Connection closed by peer")


def test_one_process_waits_for_nobody():
    wait_for_everyone(None)
    check_agreement(None, {"version": 1})
    with main_process_first(None):
        pass


def test_an_error_of_the_first_process_is_not_taken_for_that_of_another():
    with pytest.raises(RuntimeError, match="its own") as raised, main_process_first(OfTwo(True)):
        raise RuntimeError("its own")
    assert type(raised.value) is RuntimeError
    with pytest.raises(PeerEndedError), main_process_first(OfTwo(False)):
        pytest.fail("the block ran")
