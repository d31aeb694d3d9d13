"""Labelled texts: files, tables and data sets, and what is wrong with them."""

from __future__ import annotations

import gzip
import json
import lzma
import re
import warnings
from concurrent.futures import ThreadPoolExecutor

import datasets
import pandas as pd
import pytest
from datasets import ClassLabel, Dataset, Features, Value
from datasets.utils.logging import get_verbosity

from hf_meanmax.data import open_corpus, read_labelled

ROWS = [('it was "good", really', "5"), ("bad", "1"), ("so, so", "3")]
PAIRS = [("a man sleeps", "he is awake", "contradiction"), ("a dog ran", "an animal ran", "entailment")]


def lines(rows) -> str:
    return "".join("\t".join(row) + "\n" for row in rows)


def test_lines_of_two_and_of_three(tmp_path):
    single, pair = tmp_path / "single.tsv", tmp_path / "pair.tsv.xz"
    single.write_text(lines(ROWS))
    with lzma.open(pair, "wt") as file:
        file.write(lines(PAIRS))
    texts = read_labelled(single)
    assert (texts.texts, texts.pairs, texts.labels) == ([t for t, _ in ROWS], None, ["5", "1", "3"])
    pairs = read_labelled(pair)
    assert list(zip(pairs.texts, pairs.pairs, pairs.labels, strict=True)) == PAIRS
    chosen = pairs.select([1])
    assert (chosen.texts, chosen.pairs, chosen.labels) == (["a dog ran"], ["an animal ran"], ["entailment"])
    assert len(texts.select([2, 0])) == 2


def test_tables_and_data_sets(tmp_path):
    (tmp_path / "a.csv").write_text('review,stars\n"it was ""good"", really",5\nbad,1\n"so, so",3\n')
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"review": t, "stars": int(s)}) + "\n" for t, s in ROWS))
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write((tmp_path / "a.jsonl").read_text())
    Dataset.from_list([{"review": t, "stars": s} for t, s in ROWS]).save_to_disk(str(tmp_path / "a"))
    for name in ("a.csv", "a.jsonl", "a.jsonl.gz", "a"):
        texts = read_labelled(tmp_path / name, text_column="review", label_column="stars")
        assert (texts.texts, texts.labels) == ([t for t, _ in ROWS], ["5", "1", "3"]), name
    with pytest.raises(
        ValueError, match=r"'text'; choose one of review, stars with `--text_column`\. Its first line is read"
    ):
        read_labelled(tmp_path / "a.csv")
    with pytest.raises(ValueError, match=r"no column 'words'; choose one of review, stars\. Its first line is read as"):
        read_labelled(tmp_path / "a.csv", text_column="words")
    (tmp_path / "b.csv").write_text("Id,Body Text,label\n1,good,1\n")
    wanted = "b.csv has no column 'body text'; choose one of Id, \"Body Text\", label. Did you mean 'Body Text'?"
    with pytest.raises(ValueError, match=re.escape(wanted)):
        read_labelled(tmp_path / "b.csv", text_column="body text")
    wanted = "b.csv has no column 'text'; choose one of Id, \"Body Text\", label with `--text_column`. Did you mean"
    with pytest.raises(ValueError, match=re.escape(wanted)):
        open_corpus(tmp_path / "b.csv")


def test_a_word_that_no_tokenizer_can_read_is_torn(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "x" * 250_000, "label": "a"}) + "\n")
    (text,) = read_labelled(tmp_path / "a.jsonl").texts
    assert list(map(len, text.split())) == [100_000, 100_000, 50_000]


def test_names_of_classes_and_rows_without_one(tmp_path):
    features = Features({"a": Value("string"), "b": Value("string"), "label": ClassLabel(names=["no", "yes"])})
    rows = [{"a": "x", "b": "y", "label": 1}, {"a": "z", "b": "w", "label": -1}, {"a": "u", "b": "v", "label": 0}]
    Dataset.from_list(rows, features=features).save_to_disk(str(tmp_path / "set"))
    pairs = read_labelled(tmp_path / "set", text_column="a", pair_column="b")
    assert (pairs.texts, pairs.pairs, pairs.labels, pairs.unlabelled) == (["x", "u"], ["y", "v"], ["yes", "no"], 1)
    # A stored data set is not checked against its names.
    others = Features({**features, "label": Value("int64")})
    Dataset.from_list([*rows, {"a": "x", "b": "y", "label": 2}], features=others).save_to_disk(str(tmp_path / "other"))
    info = tmp_path / "other/dataset_info.json"
    info.write_text((tmp_path / "set/dataset_info.json").read_text())
    with pytest.raises(ValueError, match=r"row 3 \(the first is 0\): label 2, expected 0 to 1"):
        read_labelled(tmp_path / "other", text_column="a")


def test_a_stream_of_unknown_columns_lacks_one(monkeypatch):
    stream = datasets.IterableDataset.from_generator(lambda: iter([{"words": "a", "label": "x"}]))
    assert stream.column_names is None
    monkeypatch.setattr("hf_meanmax.data.labelled.load_from_hub", lambda *_: (stream, None))
    with pytest.raises(ValueError, match="has no column 'text'; choose one of words, label"):
        read_labelled("user/name")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "empty, expected texts with labels"),
        ("good\t5\nbad\n", "line 2: expected 'text TAB label', found 'bad'"),
        ("good\t5\n\t1\n", "line 2: expected 'text TAB label'"),
        ("a\tb\t1\na\tb\n", "line 2: expected 'text TAB second text TAB label', found"),
        ("a\tb\tc\td\n", "line 1: expected 'text TAB label'"),
        ("a\tb\t\nc\td\t\n", "line 1: expected 'text TAB second text TAB label'"),
        ("review\tstars\ngood\t5\n", "line 1: 'review.tstars' looks like a header.*Remove the line"),
        ("Text\tLabel\ngood\t5\n", "line 1: 'Text.tLabel' looks like a header.*Remove the line"),
    ],
)
def test_damaged_lines_are_located(tmp_path, content, reason):
    (tmp_path / "x.tsv").write_text(content)
    with pytest.raises(ValueError, match=reason):
        read_labelled(tmp_path / "x.tsv")


def test_damaged_tables_are_named(tmp_path):
    for name, content in (
        ("a.csv", b'text,label\n"caf\xe9",1\n'),
        ("b.jsonl", b'{"text": "a", "label"\n'),
        ("c.parquet", b"no parquet"),
    ):
        (tmp_path / name).write_bytes(content)
        remedy = r"it is not UTF-8.*iconv -f WINDOWS-1252.*--encoding_errors replace" if name == "a.csv" else ""
        with pytest.raises(ValueError, match=f"{name} cannot be read as a table: {remedy}"):
            read_labelled(tmp_path / name)
    assert read_labelled(tmp_path / "a.csv", encoding_errors="ignore").texts == ["caf"]
    (tmp_path / "e.csv").write_text("text,label\ngood,01\nbad,1\n")
    found = read_labelled(tmp_path / "e.csv")
    assert (found.texts, found.labels) == (["good", "bad"], ["01", "1"])
    (tmp_path / "e.csv").write_text("text,label\n007,01\n1e5,1\n1984,2\n")
    for errors in ("strict", "replace"):
        found = read_labelled(tmp_path / "e.csv", encoding_errors=errors)
        assert (found.texts, found.labels) == (["007", "1e5", "1984"], ["01", "1", "2"])
        assert list(open_corpus(tmp_path / "e.csv", errors)) == found.texts
    (tmp_path / "d.csv").write_text("text,label\nnull,None\n")
    found = read_labelled(tmp_path / "d.csv")
    assert (found.texts, found.labels) == (["null"], ["None"])


def test_commas_at_the_ends_of_lines(tmp_path):
    """Refused, or read as they are meant: older versions of pandas leave out values that are empty in all rows."""
    (tmp_path / "x.csv").write_text("text,label\ngood,1,\nbad,0,\n")
    try:
        found = read_labelled(tmp_path / "x.csv")
    except ValueError as error:
        assert "its first row has more values than its header has names" in str(error)  # noqa: PT017
    else:
        assert (found.texts, found.labels) == (["good", "bad"], ["1", "0"])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        # pandas would take the first value of each row for its number, and each text for the label before it.
        ("text,label\nso, so,1\nbad,0\n", "its first row has more values than its header has names"),
        (
            "text,label\nbad,0\nso, so,1\n",
            r"Expected 2 fields in line 3, saw 3\. Commas separate columns, or semicolons or tabs if the first line",
        ),
    ],
)
def test_commas_that_are_not_between_columns(tmp_path, content, reason, caplog):
    (tmp_path / "x.csv").write_text(content)
    with pytest.raises(ValueError, match=reason):
        read_labelled(tmp_path / "x.csv")
    with pytest.raises(ValueError, match=reason):
        list(open_corpus((tmp_path / "x.csv").as_uri()))
    assert not caplog.records
    for header in ("text,label,", "text,label,__index_level_0__"):
        (tmp_path / "x.csv").write_text(f"{header}\ngood,1,\nbad,0,\n")
        assert read_labelled(tmp_path / "x.csv").texts == ["good", "bad"]


@pytest.mark.parametrize("mark", [";", "\t"])
def test_columns_between_semicolons_or_tabs(tmp_path, mark):
    (tmp_path / "x.csv").write_text(f'text{mark}label\nso, so{mark}1\n"a{mark}b"{mark}0\n')
    found = read_labelled(tmp_path / "x.csv")
    assert (found.texts, found.labels) == (["so, so", f"a{mark}b"], ["1", "0"])
    assert list(filter(None, open_corpus((tmp_path / "x.csv").as_uri()))) == found.texts
    # Marks in quotes are none, and a blank line is no header.
    (tmp_path / "x.csv").write_text(f'\ntext{mark}"label, or two; or three"\nso, so{mark}1\n')
    assert read_labelled(tmp_path / "x.csv", label_column="label, or two; or three").labels == ["1"]


def test_a_header_that_is_none_or_is_cut_elsewhere_is_told(tmp_path):
    for content, reason in (
        ('1,"hello world"\n2,bye\n', "a file without them needs such a line first."),
        ("id|text\n1|so\n", "The separator may be '|'. Commas separate columns"),
        ("id;text, raw;label\n1;so;2\n", "The separator may be ';'. Commas separate columns"),
        ('"id;text"\n"1;so"\n', "The separator may be ';'. Commas separate columns"),
    ):
        (tmp_path / "x.csv").write_text(content)
        with pytest.raises(ValueError, match=re.escape(reason)) as error:
            read_labelled(tmp_path / "x.csv")
        assert "Did you mean" not in str(error.value)
    (tmp_path / "x.csv").write_text("\ufefftext,label,text\nso,1,la\n", encoding="utf-8")
    with pytest.raises(ValueError, match="cannot be read as a table: two columns have the name 'text'"):
        read_labelled(tmp_path / "x.csv")


def test_tables_may_be_opened_at_once(tmp_path):
    """What `datasets` logs, and which warnings are errors, is as before."""
    (tmp_path / "x.csv").write_text("text,label\ngood,1\n")
    before = get_verbosity(), list(warnings.filters)
    with ThreadPoolExecutor(6) as pool:
        assert [*pool.map(lambda _: read_labelled(tmp_path / "x.csv").texts, range(12))] == [["good"]] * 12
    assert (get_verbosity(), list(warnings.filters)) == before


def test_damaged_rows_are_located(tmp_path):
    for row in ('{"text": 3, "label": 2}', '{"text": "b", "label": [2]}'):
        (tmp_path / "x.jsonl").write_text(row + "\n")
        with pytest.raises(ValueError, match=r"x.jsonl, row 0 \(.*\): expected text and one label, found {'text': "):
            read_labelled(tmp_path / "x.jsonl")


def test_rows_without_a_text_or_a_label_are_left_out_and_counted(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"text": "a", "label": 1}\n{"text": null, "label": 2}\n')
    found = read_labelled(tmp_path / "x.jsonl")
    assert (found.texts, found.unlabelled, found.textless) == (["a"], 0, 1)
    (tmp_path / "x.csv").write_text("text,label\ngood,1\nno label,\nblank,  \n,1\n  ,1\n,\n")
    found = read_labelled(tmp_path / "x.csv")
    assert (found.texts, found.unlabelled, found.textless) == (["good"], 2, 3)
    (tmp_path / "x.csv").write_text("a,b,label\ngood,fine,1\ngood,,1\n,fine,1\n")
    found = read_labelled(tmp_path / "x.csv", text_column="a", pair_column="b")
    assert (found.texts, found.pairs, found.textless) == (["good"], ["fine"], 2)
    (tmp_path / "x.csv").write_text("text,label\nno label,\n,1\n")
    with pytest.raises(ValueError, match="none of its 2 rows has both a text and a label in the column 'label'"):
        read_labelled(tmp_path / "x.csv")
    pd.DataFrame({"text": ["one", "none", "two"], "label": [1, None, 2.5]}).to_parquet(tmp_path / "x.parquet")
    found = read_labelled(tmp_path / "x.parquet")
    assert (found.labels, found.unlabelled) == (["1", "2.5"], 1)


def test_a_file_that_is_missing_is_no_data_set(tmp_path):
    for name in ("missing.tsv", "./missing", "missing.csv", "MISSING.TSV", str(tmp_path / "missing")):
        with pytest.raises(FileNotFoundError, match="No such file or data set"):
            read_labelled(name)
