"""Corpora: every format reads alike, documents are kept apart, bad input is named."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
import os
import sys
import zipfile
from contextlib import nullcontext

import datasets
import pytest

from hf_meanmax.data import Documents, open_corpus
from hf_meanmax.data import corpus as corpus_module
from hf_meanmax.data.corpus import by_size

TEXT = "One sentence.\r\n  Another one.  \n\nNext document \u4e2d\u6587.\u2028Same line.\n"
LINES = ["One sentence.", "Another one.", "", "Next document \u4e2d\u6587.\u2028Same line."]


def write(path, data: bytes):
    if path.suffix.lower() == ".gz":
        data = gzip.compress(data)
    elif path.suffix == ".bz2":
        data = bz2.compress(data)
    elif path.suffix == ".xz":
        data = lzma.compress(data)
    elif path.suffix == ".zst":
        data = pytest.importorskip("zstandard").compress(data)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"], ids=["plain", "bom"])
@pytest.mark.parametrize("suffix", [".txt", ".gz", ".xz", ".zst", ".bz2", ".GZ", ""])
def test_every_format_gives_the_same_lines(tmp_path, suffix, bom):
    path = write(tmp_path / f"corpus{suffix}", bom + TEXT.encode())
    corpus = open_corpus(str(path))
    assert list(corpus) == LINES
    assert list(corpus) == LINES, "a second pass gives the same"
    assert corpus.position == corpus.size == path.stat().st_size


def test_zst_of_several_frames(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    path = tmp_path / "two.zst"
    path.write_bytes(zstandard.compress(b"one\n") + zstandard.compress(b"two\n"))
    assert list(open_corpus(path)) == ["one", "two"]


def test_zst_without_zstandard_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "a.zst").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ImportError, match=r"pip install"):
        list(open_corpus(tmp_path / "a.zst"))


def test_files_are_documents_and_globs_are_sorted(tmp_path):
    for name in ("b", "a", "c"):
        (tmp_path / f"{name}.txt").write_text(f"{name}1\n{name}2\n")
    assert list(open_corpus(f"{tmp_path}/[ab].txt")) == ["a1", "a2", "", "b1", "b2", ""]
    corpus = open_corpus([tmp_path / "c.txt", f"{tmp_path}/a*"])
    assert [line for line in corpus if line] == ["c1", "c2", "a1", "a2"]
    assert list(corpus)[2] == ""
    assert corpus.position == corpus.size
    # A shell that expands the glob names the same corpus, so what was made from it is found again.
    expanded = open_corpus([tmp_path / "a.txt", tmp_path / "b.txt"])
    assert expanded.fingerprint() == open_corpus([f"{tmp_path}/[ab].txt"]).fingerprint()
    assert open_corpus([tmp_path / "a.txt"]).fingerprint() == open_corpus(tmp_path / "a.txt").fingerprint()
    assert expanded.fingerprint() != corpus.fingerprint()


@pytest.mark.parametrize("source", ["missing.txt", "sub/*.txt", "./missing", "no such name", "missing.xz"])
def test_missing_source_is_named(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError) as error:
        open_corpus(source)
    assert source in str(error.value)


@pytest.mark.parametrize("suffix", [".txt", ".gz"])
def test_bytes_that_are_not_utf8(tmp_path, suffix):
    lines = [b"fine"] * 5000 + [b"caf\xe9 au lait"] + [b"fine"]
    path = write(tmp_path / f"latin{suffix}", b"\n".join(lines))
    with pytest.raises(UnicodeDecodeError) as error:
        list(open_corpus(path))
    assert f"{path}, line 5001" in str(error.value)
    assert "--encoding_errors replace" in str(error.value)
    assert list(open_corpus(path, encoding_errors="replace"))[5000] == "caf\ufffd au lait"
    assert list(open_corpus(path, encoding_errors="ignore"))[5000] == "caf au lait"


def test_text_of_another_encoding_is_not_to_be_replaced(tmp_path):
    (tmp_path / "gbk.txt").write_bytes("one\n我们昨天在北京大学看书。\n".encode("gbk"))
    with pytest.raises(UnicodeDecodeError, match=r"line 2: .*iconv -f GB18030 -t UTF-8 .Chinese"):
        list(open_corpus(tmp_path / "gbk.txt"))


def test_unknown_encoding_errors(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ValueError, match="'skip'; allowed: 'strict', 'replace', 'ignore'"):
        open_corpus(tmp_path / "a.txt", encoding_errors="skip")


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst", ".bz2"])
@pytest.mark.parametrize("damage", ["cut", "garbage"])
def test_damaged_compressed_file_is_named(tmp_path, suffix, damage):
    text = "".join(f"line {i * 7919 % 10007}\n" for i in range(5000)).encode()
    path = write(tmp_path / f"damaged{suffix}", text)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] if damage == "cut" else b"this is plain text")
    with pytest.raises(ValueError, match=f"damaged{suffix}.*damaged or cut short"):
        list(open_corpus(path))


@pytest.mark.parametrize("errors", ["strict", "replace"])
@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2", ".zip"])
def test_compressed_bytes_under_another_name_are_no_text(tmp_path, suffix, errors):
    """Nor by --encoding-errors, which would make a corpus of garbage."""
    packed = tmp_path / f"corpus{suffix}"
    if suffix == ".zip":
        with zipfile.ZipFile(packed, "w") as file:
            file.writestr("corpus.txt", TEXT)
    else:
        write(packed, TEXT.encode())
    path = packed.rename(tmp_path / "corpus.txt")
    remedy = "Unpack it" if suffix == ".zip" else f"ends in {suffix}"
    with pytest.raises(ValueError, match=f"corpus.txt is no text: its first bytes are those of a .* file.*{remedy}"):
        list(open_corpus(path, errors))


@pytest.mark.parametrize(
    ("name", "start", "kind"),
    [("a.pdf", b"%PDF-1.7\n\xe2", "PDF"), ("a.docx", b"PK\x03\x04\x14", "Word"), ("a.xlsx", b"PK\x03\x04", "Excel")],
)
def test_documents_are_no_text(tmp_path, name, start, kind):
    (tmp_path / name).write_bytes(start)
    with pytest.raises(ValueError, match=f"{name} is no text: .* a {kind} file. Save its text as .txt"):
        list(open_corpus(tmp_path / name))


def test_a_text_that_begins_like_a_compressed_file(tmp_path):
    (tmp_path / "a.txt").write_text("BZh is no word.\nPK neither.\n")
    assert list(open_corpus(tmp_path / "a.txt")) == ["BZh is no word.", "PK neither."]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16"])
@pytest.mark.parametrize("errors", ["strict", "replace", "ignore"])
def test_utf_16_is_refused(encoding, errors, tmp_path):
    for text in ("one\ntwo\n", "\n\r\none\ntwo\n"):
        (tmp_path / "a.txt").write_bytes(text.encode(encoding))
        with pytest.raises(ValueError, match=r"a\.txt.*UTF-16.*Convert it: iconv -f UTF-16 -t UTF-8"):
            list(open_corpus(tmp_path / "a.txt", errors))


def test_a_lone_carriage_return_ends_no_line(tmp_path):
    """The lines of a file are those that others count, and that its translation has."""
    (tmp_path / "a.txt").write_bytes(b"one two\rthree four\nfive six\r\nseven\n")
    assert list(open_corpus(tmp_path / "a.txt")) == ["one two\rthree four", "five six", "seven"]


def test_a_file_of_carriage_returns_alone_is_warned_of(tmp_path):
    """As old Macs wrote them."""
    (tmp_path / "a.txt").write_bytes(b"one\rtwo\rthree\r")
    with pytest.warns(UserWarning, match=r"a.txt has no line feed, but carriage returns .2.*tr '\\r' '\\n'"):
        assert list(open_corpus(tmp_path / "a.txt")) == ["one\rtwo\rthree"]


@pytest.mark.parametrize("name", ["a.txt", "a.tsv", "a.txt.gz", "*.txt"])
def test_lines_of_text_have_no_columns(tmp_path, name):
    write(tmp_path / name.replace("*", "b"), b"en\tde\na dog\tein Hund\n")
    with pytest.raises(
        ValueError, match=r"read as lines of text, which have no column 'en'\. Columns are those of .csv"
    ):
        open_corpus(str(tmp_path / name), text_column="en")
    with pytest.warns(UserWarning, match="with the tabs in them") if ".tsv" in name else nullcontext():
        assert list(open_corpus(str(tmp_path / name)))[1] == "a dog\tein Hund"


def test_lists_of_long_lines_are_short(monkeypatch):
    monkeypatch.setattr(corpus_module, "CHARACTERS_AT_ONCE", 10)
    lines = ["abc", "", "abcdefg", "abcdefghijklmnop", "a", "b", "c", "d"]
    assert list(by_size(lines, 3)) == [["abc", "", "abcdefg"], ["abcdefghijklmnop"], ["a", "b", "c"], ["d"]]


def test_folder_that_is_no_data_set(tmp_path):
    with pytest.raises(ValueError, match="no data set"):
        open_corpus(tmp_path)


def test_empty_list_and_wrong_types():
    with pytest.raises(ValueError, match="empty list"):
        open_corpus([])
    with pytest.raises(TypeError, match="got int"):
        open_corpus(3)
    with pytest.raises(TypeError, match="bare string"):
        Documents(["not a document"])


@pytest.mark.parametrize("form", ["disk", "disk of splits", "loaded", "loaded splits", "streaming"])
def test_data_sets(tmp_path, form):
    rows = ["one", " two ", "", "three", None, "four"]
    source = datasets.Dataset.from_dict({"text": rows, "label": list(range(6))})
    if "splits" in form:
        source = datasets.DatasetDict({"train": source, "test": source.select([0])})
    if form.startswith("disk"):
        source.save_to_disk(str(tmp_path / "saved"))
        source = str(tmp_path / "saved")
    elif form == "streaming":
        source = source.to_iterable_dataset()
    corpus = open_corpus(source)
    assert list(corpus) == ["one", "two", "", "three", "", "four"]
    assert corpus.position == 6
    assert corpus.size == (None if form == "streaming" else 6)
    if "splits" in form:
        assert list(open_corpus(source, split="test")) == ["one"]
        with pytest.raises(ValueError, match="no split 'dev'; choose one of train, test"):
            open_corpus(source, split="dev")
    if form.startswith("disk"):
        asked = {"config_name": "en"} if "splits" in form else {"split": "dev"}
        with pytest.raises(ValueError, match=r"is a saved data set, which has no (config_name 'en'|split 'dev')"):
            open_corpus(source, **asked)


@pytest.mark.parametrize("errors", ["strict", "replace"])
def test_a_table_that_is_not_utf8_is_refused(errors, tmp_path):
    (tmp_path / "gbk.jsonl").write_bytes('{"text": "我们"}\n'.encode("gbk"))
    with pytest.raises(ValueError, match=r"not UTF-8|cannot be read as a table"):
        list(open_corpus(tmp_path / "gbk.jsonl", encoding_errors=errors))


def test_wrong_columns():
    source = datasets.Dataset.from_dict({"words": ["a"], "label": [1]})
    with pytest.raises(ValueError, match="no column 'text'; choose one of words, label"):
        open_corpus(source)
    with pytest.raises(ValueError, match="Row 0 of column 'label' is int"):
        list(open_corpus(source, text_column="label"))


def test_streams_of_other_rows_are_other_corpora():
    stream = datasets.Dataset.from_dict({"text": ["a", "b", "c", "d"]}).to_iterable_dataset()
    first, again, rest = (open_corpus(part) for part in (stream.take(2), stream.take(2), stream.skip(2)))
    assert first.fingerprint() == again.fingerprint() != rest.fingerprint()


def test_hub_data_set_is_streamed(monkeypatch):
    """A later commit of it is another corpus, though its card says the same."""
    asked = {}

    class Builder:
        hash = "first"

        def as_streaming_dataset(self, split):
            asked.update(split=split)
            return datasets.Dataset.from_dict({"text": ["a"]}).to_iterable_dataset()

    def load_dataset_builder(name, config):
        asked.update(name=name, config=config)
        return Builder()

    monkeypatch.setattr(datasets, "load_dataset_builder", load_dataset_builder)
    corpora = [open_corpus("owner/corpus", split="test", config_name="en") for _ in range(2)]
    assert list(corpora[0]) == ["a"]
    assert asked == {"name": "owner/corpus", "config": "en", "split": "test"}
    Builder.hash = "second"
    later = open_corpus("owner/corpus", split="test", config_name="en")
    assert corpora[0].fingerprint() == corpora[1].fingerprint() != later.fingerprint()


def test_hub_out_of_reach(monkeypatch):
    def load_dataset_builder(*args):
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset_builder", load_dataset_builder)
    with pytest.raises(FileNotFoundError, match=r"'owner/corpus'.*no route"):
        open_corpus("owner/corpus")


def test_fingerprint_follows_the_input(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\n")
    before = open_corpus(path).fingerprint()
    assert open_corpus(str(path)).fingerprint() == before
    assert open_corpus(path, encoding_errors="replace").fingerprint() != before
    path.write_text("one\ntwo\n")
    assert open_corpus(path).fingerprint() != before
    assert Documents([["a", "b"]]).fingerprint() == Documents([("a", "b")]).fingerprint()
    assert Documents([["a", "b"]]).fingerprint() != Documents([["a"], ["b"]]).fingerprint()
    rows = datasets.Dataset.from_dict({"text": ["a"]})
    other = datasets.Dataset.from_dict({"text": ["b"]})
    assert open_corpus(rows).fingerprint() == open_corpus(rows).fingerprint() != open_corpus(other).fingerprint()


def test_a_pipe_is_no_corpus(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in (tmp_path / "pipe", "/dev/null"):
        with pytest.raises(ValueError, match="is a pipe or a device, and a corpus is read more than once"):
            open_corpus(name)


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_tables_are_read_by_their_column(tmp_path, suffix):
    rows = ["the cat sat", "", 'a "dog", they say', "None"]
    path = tmp_path / f"table{suffix}"
    if suffix == ".csv":
        with open(path, "w", newline="") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL)
            writer.writerows([["number", "said"], *enumerate(rows)])
    else:
        path.write_text("".join(json.dumps({"number": n, "said": text}) + "\n" for n, text in enumerate(rows)))
    assert list(open_corpus(path, text_column="said")) == rows
    assert list(open_corpus(str(tmp_path / "*"), text_column="said")) == [*rows, ""]
    with pytest.raises(ValueError, match="no column 'text'; choose one of number, said"):
        open_corpus(path)
    if suffix == ".csv":  # whose values have no type
        for source in (path, path.as_uri()):
            assert [text for text in open_corpus(source, text_column="number") if text] == ["0", "1", "2", "3"]
    else:
        with pytest.raises(ValueError, match=r"Row 0 of column 'number' is int, not text"):
            list(open_corpus(path, text_column="number"))
    assert open_corpus(path, text_column="said").fingerprint() == open_corpus(path, text_column="said").fingerprint()
    with pytest.raises(FileNotFoundError, match="No such file"):
        open_corpus("missing.jsonl")


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("text\rhello\rworld; and\r", ["hello", "world; and"]),
        ("text\na\n\nb\n", ["a", "", "b"]),
        ("id,text\n1,a\n\n2,b\n", ["a", "b"]),
    ],
    ids=["carriage returns alone", "a blank row", "a blank line between rows"],
)
def test_rows_of_a_csv(content, lines, tmp_path):
    (tmp_path / "a.csv").write_bytes(content.encode())
    assert list(open_corpus(tmp_path / "a.csv")) == lines


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_the_name_of_a_table_is_no_pattern(suffix, tmp_path):
    for name, text in (("a1", "wrong"), ("a[1]", "right")):
        content = f"text\n{text}\n" if suffix == ".csv" else json.dumps({"text": text})
        (tmp_path / f"{name}{suffix}").write_text(content)
    assert list(open_corpus(tmp_path / f"a[1]{suffix}")) == ["right"]
    (tmp_path / f"a[1]{suffix}").write_bytes(b'text\n"\xe9' if suffix == ".csv" else b'{"text"')
    with pytest.raises(ValueError, match=rf"a\[1\]{suffix} cannot be read as a table"):
        open_corpus(tmp_path / f"a[1]{suffix}")


def test_a_table_that_was_replaced_is_read_anew(tmp_path):
    """Also where its time is that of the old one, as tar and cp -p leave it."""
    path = tmp_path / "a.jsonl"
    for text in ("old", "the new one"):
        path.write_text(json.dumps({"text": text}))
        os.utime(path, (1, 1))
        assert list(open_corpus(path)) == [text]


def test_a_part_that_a_column_does_not_have(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"pair": {"en": "a", "de": "b"}, "text": "c"}\n')
    assert list(open_corpus(tmp_path / "a.jsonl", text_column="pair.de")) == ["b"]
    for column, parts in (("pair.fr", "en, de"), ("text.fr", "none")):
        with pytest.raises(ValueError, match=f"has no part 'fr'; choose one of {parts}"):
            list(open_corpus(tmp_path / "a.jsonl", text_column=column))
