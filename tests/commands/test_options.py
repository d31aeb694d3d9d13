"""What the command lines share."""

from __future__ import annotations

import os

import pytest
import torch

from hf_meanmax.commands.old_options import make_parser, one_line_errors, parse_arguments, positive_int, use_all_cores


@pytest.fixture
def threads(monkeypatch):
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    return asked


@pytest.mark.parametrize(
    ("launched", "setting", "processes", "expected"),
    [(True, "1", 1, [8]), (True, "1", 3, [2]), (True, "4", 1, []), (True, None, 1, []), (False, "1", 1, [])],
)
def test_the_launchers_one_thread_becomes_a_share_of_the_cores(
    monkeypatch, threads, launched, setting, processes, expected
):
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if launched:
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    if setting is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", setting)
    use_all_cores(processes)
    assert threads == expected


def test_misspelt_options_name_the_nearest(capsys):
    parser = make_parser("program", "does things")
    parser.add_argument("--batch-size", type=positive_int, default=1)
    assert parse_arguments(parser, ["--batch-size", "3"]).batch_size == 3
    with pytest.raises(SystemExit):
        parse_arguments(parser, ["--bach-size", "3"])
    assert "did you mean --batch-size" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse_arguments(parser, ["--batch-size", "0"])
    assert "not 1 or more" in capsys.readouterr().err


def test_errors_of_a_user_are_one_line():
    with pytest.raises(SystemExit, match=r"^program: first second$"), one_line_errors("program"):
        raise ValueError("first\n  second")


def test_texts_may_begin_with_dashes():
    parser = make_parser("program", "does things")
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--number", type=positive_int)
    spoken = "-- said he, and went"
    assert parse_arguments(parser, [spoken, "--number", "2"]).texts == [spoken]
    assert parse_arguments(parser, ["--number", "2", "--", "--said", "-"]).texts == ["--said", "-"]
