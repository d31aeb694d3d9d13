"""Files that are elsewhere are read as files here: fsspec's file system in memory stands for the others."""

from __future__ import annotations

import gzip
import io
import json

import fsspec
import pyarrow
import pyarrow.parquet
import pytest

from hf_meanmax.data import SentenceFilter, build_token_store, open_corpus
from hf_meanmax.data.corpus import decompressed

LINES = ["One sentence.", "Another one.", "", "Next document."]
TEXT = "\n".join(LINES).encode()


@pytest.fixture
def memory():
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]
    yield filesystem
    filesystem.store.clear()


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_text_is_read_as_one_here(memory, name):
    memory.pipe(f"/corpus/{name}", gzip.compress(TEXT) if name.endswith(".gz") else TEXT)
    corpus = open_corpus(f"memory://corpus/{name}")
    assert list(corpus) == [*LINES, ""]
    assert list(corpus) == [*LINES, ""], "a second pass gives the same"
    assert corpus.position == corpus.size == memory.size(f"/corpus/{name}")


def test_a_glob_reads_its_files_in_order(memory):
    for name in ("b", "a"):
        memory.pipe(f"/corpus/{name}.txt", name.encode())
    memory.pipe("/corpus/c.csv", b"no")
    memory.pipe("/corpus/folder.txt/d.txt", b"deeper")
    for pattern in ("*", "?", "[ab]"):
        assert list(open_corpus(f"memory://corpus/{pattern}.txt")) == ["a", "", "b", ""]


def test_a_name_with_brackets_is_no_pattern(memory):
    memory.pipe("/corpus/a[1].txt", b"bracketed")
    memory.pipe("/corpus/a1.txt", b"plain")
    assert list(open_corpus("memory://corpus/a[1].txt")) == ["bracketed", ""]
    assert list(open_corpus("memory://corpus/a[12].txt")) == ["plain", ""]


def table(kind: str) -> bytes:
    rows = [{"id": number, "text": line} for number, line in enumerate(LINES)]
    if kind == "jsonl":
        return "\n".join(map(json.dumps, rows)).encode()
    if kind == "csv":
        return "\n".join(["id,text", *(f'{row["id"]},"{row["text"]}"' for row in rows)]).encode()
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file.getvalue()


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_blank_lines_of_one_column_are_rows(memory, tmp_path, name):
    content = b"text\na\n\n007\n\n\nc\n"
    content = gzip.compress(content) if name.endswith(".gz") else content
    memory.pipe(f"/t/{name}", content)
    (tmp_path / name).write_bytes(content)
    rows = ["a", "", "007", "", "", "c"]
    assert list(open_corpus(tmp_path / name)) == rows
    # A file that an address names ends a document.
    assert list(open_corpus(f"memory://t/{name}")) == [*rows, ""]


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.csv", b""), ("a.csv", b"text,id\n"), ("a.jsonl", b"\n"), ("a.json", b"[]"), ("a.json", b"[\n]")],
)
def test_an_empty_table_has_no_lines(memory, tmp_path, name, content):
    memory.pipe(f"/t/{name}", content)
    (tmp_path / name).write_bytes(content)
    assert list(open_corpus(tmp_path / name)) == []
    assert list(open_corpus(f"memory://t/{name}")) == [""]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_table_is_read_as_it_comes(memory, kind):
    memory.pipe(f"/t/rows.{kind}", table(kind))
    corpus = open_corpus(f"memory://t/rows.{kind}")
    assert list(corpus) == [*LINES, ""]
    assert corpus.size is None, "it is streamed"
    with pytest.raises(ValueError, match=r"no column 'missing'; choose one of id, text"):
        list(open_corpus(f"memory://t/rows.{kind}", text_column="missing"))


def test_a_store_is_found_again_until_the_file_changes(memory, tokenizer, tmp_path):
    memory.pipe("/corpus/a.txt", TEXT)
    first = build_token_store(open_corpus("memory://corpus/a.txt"), tokenizer, tmp_path / "store", show_progress=False)
    fingerprint = first.fingerprint
    again = open_corpus("memory://corpus/a.txt")
    assert build_token_store(again, tokenizer, tmp_path / "store", SentenceFilter()).fingerprint == fingerprint
    memory.pipe("/corpus/a.txt", TEXT + b" More.")
    changed = open_corpus("memory://corpus/a.txt")
    assert build_token_store(changed, tokenizer, tmp_path / "store", show_progress=False).fingerprint != fingerprint


def test_a_file_that_its_key_does_not_tell_from_a_later_one(memory, monkeypatch):
    """As of HTTP, whose key is the address alone."""
    monkeypatch.setattr(type(memory), "ukey", lambda self, path: path)
    memory.pipe("/corpus/a.txt", TEXT)
    first = open_corpus("memory://corpus/a.txt").identity()
    assert open_corpus("memory://corpus/a.txt").identity() == first
    info = type(memory).info
    monkeypatch.setattr(type(memory), "info", lambda *arguments, **options: {**info(*arguments), "ETag": "later"})
    assert open_corpus("memory://corpus/a.txt").identity() != first


@pytest.mark.parametrize(
    ("address", "kind", "message"),
    [
        ("memory://corpus/none.txt", FileNotFoundError, r"There is no file at 'memory://corpus/none\.txt'"),
        ("memory://corpus/*.xz", FileNotFoundError, r"There is no file at 'memory://corpus/\*\.xz'"),
        ("memory://corpus", ValueError, r"is a folder; give a glob such as memory://corpus/\*\.txt"),
        ("nowhere://corpus/a.txt", ValueError, r"begins with 'nowhere'; choose one of .*memory"),
        ("memory://corpus/damaged.gz", ValueError, r"memory://.*damaged\.gz: the compressed file is damaged"),
        ("memory://corpus/damaged.parquet", ValueError, r"damaged\.parquet.* cannot be read as a table"),
        ("memory://corpus/latin.txt", UnicodeDecodeError, r"latin\.txt, line 2: the file is not UTF-8"),
    ],
)
def test_what_cannot_be_read_is_named(memory, address, kind, message):
    memory.pipe("/corpus/a.txt", TEXT)
    memory.pipe("/corpus/damaged.gz", gzip.compress(TEXT * 100)[:60])
    memory.pipe("/corpus/damaged.parquet", b"PAR1 no table")
    memory.pipe("/corpus/latin.txt", b"fine\n\xe9t\xe9\n")
    with pytest.raises(kind, match=message):
        list(open_corpus(address))


def test_the_package_of_an_address_is_named(monkeypatch):
    def without(*_):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("fsspec.core.url_to_fs", without)
    with pytest.raises(ImportError, match=r"'s3://bucket/a\.txt' cannot be read: Install s3fs to access S3\."):
        open_corpus("s3://bucket/a.txt")


def test_a_connection_that_breaks_is_one_line(memory, monkeypatch):
    class BrokenConnection(Exception):
        pass

    class Broken(io.BytesIO):
        def read(self, *_):
            raise BrokenConnection("reset by peer")

        readinto = read1 = read

    memory.pipe("/corpus/a.txt", TEXT)
    corpus = open_corpus("memory://corpus/a.txt")
    monkeypatch.setattr(memory, "open", lambda *_: Broken(TEXT))
    with pytest.raises(OSError, match=r"a\.txt could not be read \(BrokenConnection: reset by peer\)"):
        list(corpus)


def test_a_stream_that_cannot_be_rewound_is_read_from_its_beginning():
    class Stream(io.BytesIO):
        def seek(self, *_):
            raise ValueError("Cannot seek streaming HTTP file")

    assert decompressed(Stream(TEXT), "a.txt").read() == TEXT
    with pytest.raises(ValueError, match=r"its first bytes are those of a gz file"):
        decompressed(Stream(gzip.compress(TEXT)), "a.txt")
