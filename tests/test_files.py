"""Files are replaced whole, and what is no plain file is left what it is."""

from __future__ import annotations

import os
import re
import threading

import pytest

from hf_meanmax.files import differences, naming_failed_writes, replacing_file, replacing_folder, shared_name


def test_the_target_of_a_link_is_replaced_and_not_the_link(tmp_path):
    target, link = tmp_path / "target.txt", tmp_path / "link.txt"
    target.write_text("old")
    link.symlink_to(target)
    with replacing_file(link) as file:
        file.write("new")
        assert target.read_text() == "old"
    assert link.is_symlink()
    assert target.read_text() == "new"


@pytest.mark.parametrize(
    ("value", "shared"),
    [
        ("/home/me/corpus.txt", "corpus.txt"),
        ("my/*.txt", "*.txt"),
        ("runs/mine/model", "mine"),
        ("/model", "model"),
        ("sentence-transformers/all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"),
        ("", ""),
        (None, None),
    ],
)
def test_what_leaves_the_machine_names_no_folder_of_it(value, shared):
    assert shared_name(value) == shared


def test_a_folder_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder; name a file"), replacing_file(tmp_path):
        pytest.fail("the work began")


def test_a_working_folder_is_not_replaced(tmp_path, monkeypatch):
    """The shell would stand in a folder that is gone."""
    (tmp_path / "around" / "here").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "around" / "here")
    for folder in (".", "..", tmp_path / "around", "/proc"):
        with pytest.raises(ValueError, match="would be replaced as a whole"), replacing_folder(folder, ["*"]):
            pass
    with replacing_folder("new", ["*"]) as partial:
        (partial / "file").write_text("new")
    assert os.listdir() == ["new"]


def test_one_process_at_a_time_replaces_a_folder(tmp_path):
    with replacing_folder(tmp_path / "a", ["*"]) as partial:
        (partial / "file").write_text("first")
        with pytest.raises(BlockingIOError, match="is being written by process"):
            with replacing_folder(tmp_path / "a", ["*"]):
                pass
    assert (tmp_path / "a" / "file").read_text() == "first"
    assert os.listdir(tmp_path) == ["a"]


def test_a_pipe_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    with replacing_file(pipe) as file:
        file.write("through the pipe")
    reader.join(timeout=10)
    assert read == ["through the pipe"]
    assert pipe.is_fifo()


def test_a_table_that_a_full_disk_elsewhere_cuts_short_is_not_what_is_written(tmp_path):
    reason = "data.csv cannot be read as a table: [Errno 28] No space left on device"
    with pytest.raises(ValueError, match=re.escape(reason)), naming_failed_writes(tmp_path / "run"):
        raise ValueError(reason)
    with pytest.raises(OSError, match="run could not be written"), naming_failed_writes(tmp_path / "run"):
        raise RuntimeError("I/O error: No space left on device (os error 28)")


def test_differences_are_told_by_the_names_that_differ():
    there = {"seed": 1, "gone": 2, "model": {"size": 3, "layers": 1, "dropped": 4}, "kind": {"a": 1}}
    now = {"seed": 1, "model": {"size": 5, "layers": 1, "added": None}, "kind": None, "new": "x"}
    assert differences(there, now) == (
        "gone: 2 there, None now; kind: {'a': 1} there, None now; model.dropped: 4 there, None now; "
        "model.size: 3 there, 5 now; new: None there, 'x' now"
    )
    assert differences(there, there) == ""
