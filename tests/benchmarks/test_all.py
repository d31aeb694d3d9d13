"""All speed benchmarks in one run."""

from __future__ import annotations

import json
import sys

import pytest

# Counts its runs, and fails as long as there is a file that says so.
SCRIPT = """
import json, pathlib, sys
here = pathlib.Path(__file__)
with open(here.with_suffix(".runs"), "a") as file:
    file.write("x")
if here.with_suffix(".fails").exists():
    sys.exit("no memory left")
result = here.with_suffix(".result").read_text()
pathlib.Path(sys.argv[sys.argv.index("--json") + 1]).write_text(result)
"""


@pytest.fixture
def benchmarks(script, monkeypatch, tmp_path):
    """all.py over two scripts `one.py` and `two.py` in `tmp_path`, and one that is long."""
    module, rounds = script("all"), script("rounds")
    found = rounds.Rounds({"ours": {"tokens/s": [6.0, 8.0]}, "theirs": {"tokens/s": [2.0, 4.0]}}, {"ours": "theirs"})
    for name in ("one", "two", "three"):
        (tmp_path / f"{name}.py").write_text(SCRIPT)
        (tmp_path / f"{name}.result").write_text(json.dumps({"title": f"loop {name}", **found.to_json()}))
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    parts = {name: module.Part(f"{name}.py {{corpus}} --rounds {{rounds}}", 3, "") for name in ("one", "two")}
    monkeypatch.setattr(module, "PARTS", parts | {"three": module.Part("three.py", 30, "", is_long=True)})
    (tmp_path / "corpus.txt").write_text("a line\n")
    return module


def run(module, monkeypatch, folder, *words):
    corpus, output = str(folder / "corpus.txt"), str(folder / "speed.json")
    monkeypatch.setattr(sys, "argv", ["all.py", corpus, "--output", output, *words])
    module.main()


def runs(folder, name):
    path = folder / f"{name}.runs"
    return len(path.read_text()) if path.exists() else 0


def test_parts_are_measured_once_for_the_same_settings(benchmarks, monkeypatch, tmp_path, capsys):
    run(benchmarks, monkeypatch, tmp_path)
    run(benchmarks, monkeypatch, tmp_path)
    assert (runs(tmp_path, "one"), runs(tmp_path, "two"), runs(tmp_path, "three")) == (1, 1, 0)
    out = capsys.readouterr().out
    assert "[2/2] two: measured before" in out
    # The table of each part, in both runs.
    assert out.count("| ours | 7 (6-8) | 2.5 (2-3) |") == 4
    run(benchmarks, monkeypatch, tmp_path, "--only", "one", "--overwrite")
    run(benchmarks, monkeypatch, tmp_path, "--only", "two", "--rounds", "5")
    run(benchmarks, monkeypatch, tmp_path, "--only", "three")
    assert (runs(tmp_path, "one"), runs(tmp_path, "two"), runs(tmp_path, "three")) == (2, 2, 1)
    parts = json.loads((tmp_path / "speed.json").read_text())["parts"]
    assert list(parts) == ["one", "two", "three"]
    assert parts["two"]["run"]["command"] == ["two.py", str(tmp_path / "corpus.txt"), "--rounds", "5"]


def test_a_part_that_fails_is_named_and_the_others_are_kept(benchmarks, monkeypatch, tmp_path, capsys):
    (tmp_path / "one.fails").touch()
    with pytest.raises(SystemExit, match=r"Failed: one\."):
        run(benchmarks, monkeypatch, tmp_path)
    assert "[1/2] one: failed: no memory left" in capsys.readouterr().out
    assert "no memory left" in (tmp_path / "speed-one.log").read_text()
    assert list(json.loads((tmp_path / "speed.json").read_text())["parts"]) == ["two"]
    (tmp_path / "one.fails").unlink()
    run(benchmarks, monkeypatch, tmp_path)
    assert (runs(tmp_path, "one"), runs(tmp_path, "two")) == (2, 1)
    assert not (tmp_path / "speed-one.log").exists()


def test_mistakes_are_told_before_anything_is_measured(benchmarks, monkeypatch, tmp_path):
    with pytest.raises(SystemExit, match="different names"):
        run(benchmarks, monkeypatch, tmp_path, "--peer", "a/x", "b/x")
    (tmp_path / "speed.json").write_text("{")
    with pytest.raises(SystemExit, match="is damaged"):
        run(benchmarks, monkeypatch, tmp_path)
    (tmp_path / "corpus.txt").unlink()
    with pytest.raises(SystemExit, match=r"corpus\.txt"):
        run(benchmarks, monkeypatch, tmp_path)
    assert runs(tmp_path, "one") == 0
