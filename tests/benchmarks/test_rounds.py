"""Measurements that take turns."""

from __future__ import annotations

import argparse
import collections
import json
import os

import pytest


@pytest.fixture
def rounds(script, monkeypatch):
    module = script("rounds")
    rates = iter([100.0, 200.0, 400.0])
    monkeypatch.setattr(module, "measure_matrix_rate", lambda device, dtype: next(rates))
    return module


def measured(rounds, **kwargs):
    """Two speeds of a machine that slows down, and FLOP/s."""
    turns = []
    speeds = {"ours": iter([60.0, 40.0, 6.0]), "theirs": iter([20.0, 10.0, 3.0])}

    def run(name):
        turns.append(name)
        found = {"tokens/s": next(speeds[name])}
        return found | ({"FLOP/s": 50.0} if name == "ours" else {})

    found = rounds.measure_in_turn({name: lambda name=name: run(name) for name in speeds}, 3, **kwargs)
    return found, turns


def test_measurements_take_turns(rounds):
    _, turns = measured(rounds)
    assert turns == ["ours", "theirs"] * 3


def test_ratios_and_shares_are_of_one_round(rounds):
    found, _ = measured(rounds, references={"ours": "theirs"})
    row = found.to_json()["rows"]["ours"]["figures"]
    assert row["tokens/s"]["median"] == 40.0
    # The ratio of the medians would be 4, and of the least 2.
    assert row["tokens/s"]["ratio"] == {
        "to": "theirs", "median": 3.0, "least": 2.0, "most": 4.0, "rounds": [3.0, 4.0, 2.0],
    }  # fmt: skip
    assert row["share of the matrix rate"]["rounds"] == [0.5, 0.25, 0.125]
    assert "ratio" not in row["share of the matrix rate"]
    assert "ratio" not in found.to_json()["rows"]["theirs"]["figures"]["tokens/s"]


def test_without_references_the_first_is_the_measure(rounds):
    found, _ = measured(rounds)
    assert found.to_json()["rows"]["theirs"]["figures"]["tokens/s"]["ratio"]["to"] == "ours"


def test_a_result_is_printed_as_a_table_and_written(rounds, tmp_path, capsys):
    found, _ = measured(rounds, references={"ours": "theirs"})
    found.facts = {"ours": {"peak memory, GiB": 1.25}, "theirs": {"peak memory, GiB": 0.5}}
    rounds.report(found, argparse.Namespace(json=str(tmp_path / "x.json"), steps=3), "loop")
    header, marks, ours, theirs, _, conditions = capsys.readouterr().out.splitlines()
    assert header == "| loop | tokens/s | ratio to theirs | share of the matrix rate | peak memory, GiB |"
    assert marks == "|---|---:|---:|---:|---:|"
    assert ours == "| ours | 40 (6-60) | 3 (2-4) | 0.25 (0.125-0.5) | 1.25 |"
    assert theirs == "| theirs | 10 (3-20) |  |  | 0.5 |"
    assert conditions.startswith("3 rounds, medians (least-most); ")
    assert "2e-10 (1e-10-4e-10) TFLOP/s" in conditions
    result = json.loads((tmp_path / "x.json").read_text())
    assert result["settings"]["steps"] == 3
    assert result["matrix_rate"]["rounds"] == [100.0, 200.0, 400.0]
    assert {"cores", "threads", "precision", "instruction_sets", "commit", "versions"} <= set(result["machine"])
    assert {"torch", "transformers", "sentence-transformers"} <= set(result["machine"]["versions"])


def test_several_references_are_named_in_the_cells(rounds):
    found, _ = measured(rounds, references={"ours": "theirs", "theirs": "ours"})
    table = rounds.markdown({"title": "loop", **found.to_json()})
    assert "| loop | tokens/s | ratio |" in table
    assert "| 3 (2-4) of theirs |" in table


def test_an_object_works_in_a_process_of_its_own(script):
    worker = script("worker").Worker(collections.Counter, "aab")
    assert worker.call("most_common", 1) == [("a", 2)]
    with pytest.raises(RuntimeError, match=r"AttributeError: .Counter. object has no"):
        worker.call("least_common")
    assert worker.call("total") == 3
    worker.close()
    assert worker.process.exitcode == 0


def test_a_process_that_dies_is_told(script):
    with pytest.raises(RuntimeError, match=r"died \(exit code 3\)"):
        script("worker").Worker(os._exit, 3)
