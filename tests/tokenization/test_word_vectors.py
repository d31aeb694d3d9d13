"""Word vectors: every file format reads alike, bad files are explained, training is cached and repeatable."""

import gzip
import importlib.util
import struct
from dataclasses import replace

import numpy as np
import pytest

from hf_meanmax.tokenization import (
    SkipGramSettings,
    WordVectors,
    embedding_matrix,
    load_word_vectors,
    train_tokenizer,
    train_word_vectors,
    word_vectors,
)

WORDS = ["the", "of", "caf\u00e9", "fox"]
VECTORS = np.array([[1, 2, 3], [0.5, -1, 1e-3], [-4, 0, 7], [0.25, 8, -1]], dtype=np.float32)
needs_gensim = pytest.mark.skipif(importlib.util.find_spec("gensim") is None, reason="gensim is not installed")


def _text(header: bool, trailing: str = "") -> bytes:
    lines = [f"{len(WORDS)} 3"] if header else []
    lines += [f"{word} {' '.join(map(str, row))}{trailing}" for word, row in zip(WORDS, VECTORS.tolist(), strict=True)]
    return "\n".join([*lines, ""]).encode()


def _binary(line_break: bytes = b"\n") -> bytes:
    rows = (word.encode() + b" " + row.tobytes() + line_break for word, row in zip(WORDS, VECTORS, strict=True))
    return b"4 3\n" + b"".join(rows)


FILES = {
    "word2vec.txt": _text(True),
    "word2vec-trailing.txt": _text(True, " "),
    "glove.txt": _text(False),
    "glove-windows.txt": _text(False).replace(b"\n", b"\r\n"),
    "word2vec.bin": _binary(),
    "word2vec-dense.bin": _binary(b""),
}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_every_format_reads_alike(tmp_path, name, zipped):
    path = tmp_path / (name + ".gz" * zipped)
    path.write_bytes(gzip.compress(FILES[name]) if zipped else FILES[name])
    read = load_word_vectors(path, show_progress=False)
    assert read.words == WORDS
    np.testing.assert_array_equal(read.vectors, VECTORS)
    part = load_word_vectors(path, vocabulary=["fox", "the", "gnu"], show_progress=False)
    assert part.words == ["the", "fox"]
    np.testing.assert_array_equal(part.vectors, VECTORS[[0, 3]])
    assert load_word_vectors(path, limit=2, show_progress=False).words == WORDS[:2]
    with pytest.raises(ValueError, match="none of the 4 words"):
        load_word_vectors(path, vocabulary={"gnu"}, show_progress=False)


@needs_gensim
@pytest.mark.parametrize("binary", [False, True])
def test_files_that_gensim_writes(tmp_path, binary):
    from gensim.models import KeyedVectors

    keyed = KeyedVectors(3)
    keyed.add_vectors(WORDS, VECTORS)
    path = tmp_path / ("v.bin" if binary else "v.txt")
    keyed.save_word2vec_format(path, binary=binary)
    read = load_word_vectors(path, show_progress=False)
    assert read.words == WORDS
    np.testing.assert_array_equal(read.vectors, VECTORS)


def test_a_file_longer_than_the_reader_s_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("hf_meanmax.tokenization.word_vectors._BLOCK", 7)
    rng = np.random.default_rng(0)
    values = rng.standard_normal((3000, 5)).astype(np.float32)
    words = [f"w{row}" for row in range(3000)]
    (tmp_path / "v.bin").write_bytes(
        b"3000 5\n" + b"".join(w.encode() + b" " + v.tobytes() for w, v in zip(words, values, strict=True))
    )
    read = load_word_vectors(tmp_path / "v.bin", show_progress=False)
    assert read.words == words
    np.testing.assert_array_equal(read.vectors, values)


def test_words_with_spaces_and_repeated_words(tmp_path):
    (tmp_path / "v.txt").write_text("a 1 2\n. . 3 4\na 5 6\nb 7 8\n")
    read = load_word_vectors(tmp_path / "v.txt", show_progress=False)
    assert read.words == ["a", ". .", "b"]
    np.testing.assert_array_equal(read.vectors, [[1, 2], [3, 4], [7, 8]])
    assert load_word_vectors(tmp_path / "v.txt", vocabulary={".", "b"}, show_progress=False).words == ["b"]


def test_empty_lines_are_no_words(tmp_path):
    for content in ("2 2\na 1 2\nb 3 4\n\n", "\n2 2\na 1 2\nb 3 4\n", "\n\na 1 2\nb 3 4\n", "\ufeffa 1 2\nb 3 4\n"):
        (tmp_path / "v.txt").write_text(content, encoding="utf-8")
        assert load_word_vectors(tmp_path / "v.txt", show_progress=False).words == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("v.txt", b"a 1 2\nb 1\n", "line 2: expected a word and 2 numbers, found 2 fields"),
        ("v.txt", b"a 1 2\nb 1 x\n", "line 2: expected a word and 2 numbers"),
        ("v.txt", b"a 1 2\nb 1 nan\n", "line 2: 'b' has a NaN"),
        ("v.txt", b"a 1 2\n\xff 1 2\n", "line 2: a word that is not UTF-8"),
        ("v.txt", b"3 2\na 1 2\nb 1 2\n", "2 rows, its first line promises 3"),
        ("v.txt", b"lonely\n", "line 1: expected a word and its numbers with blanks between them"),
        ("v.txt", b"", "no word vector"),
        ("v.bin", b"a 1 2\nb 1 2\n", "must not be named .bin"),
        ("v.bin", b"2 2\na " + struct.pack("2f", 1, 2) + b"b 123", "ends after 1 of 2 rows"),
        ("v.txt.gz", gzip.compress(b"a 1 2\n" * 100, mtime=0)[:-12], "truncated gzip"),
        ("v.txt.gz", b"plain text", "gzip"),
        ("v.safetensors", b"junk", "not a file of word vectors"),
    ],
)
def test_bad_files_are_explained(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_word_vectors(tmp_path / name, show_progress=False)


def test_words_that_are_not_utf8_can_be_read_on_request(tmp_path):
    (tmp_path / "v.txt").write_bytes(b"a 1 2\n\xff 1 2\n")
    read = load_word_vectors(tmp_path / "v.txt", encoding_errors="replace", show_progress=False)
    assert read.words == ["a", "\ufffd"]


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_word_vectors(tmp_path / "none.txt")


def test_saved_and_loaded(tmp_path):
    path = tmp_path / "folder" / "v.safetensors"
    WordVectors(WORDS, VECTORS).save(path)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    for read in (WordVectors.load(path), load_word_vectors(path)):
        assert read.words == WORDS
        np.testing.assert_array_equal(read.vectors, VECTORS)
    assert load_word_vectors(path, vocabulary={"fox"}).words == ["fox"]
    with pytest.raises(ValueError, match="3 words need a matrix"):
        WordVectors(WORDS[:3], VECTORS)


def _sentences(number: int = 300) -> list[list[str]]:
    rng = np.random.default_rng(0)
    groups = [["cat", "dog", "pet"], ["sun", "sky", "star"]]
    return [list(rng.permutation(groups[row % 2])) for row in range(number)]


def trained(**settings) -> WordVectors:
    return train_word_vectors(_sentences(), SkipGramSettings(**settings), show_progress=False)


@needs_gensim
def test_training_is_repeatable_and_puts_neighbours_together():
    settings = {"size": 16, "epochs": 20, "min_count": 1, "sample": 0.1, "deterministic": True}
    first, second = (trained(**settings) for _ in range(2))
    assert first.words == second.words
    np.testing.assert_array_equal(first.vectors, second.vectors)
    unit = first.vectors / np.linalg.norm(first.vectors, axis=1, keepdims=True)
    index = first.index
    assert unit[index["cat"]] @ unit[index["dog"]] > unit[index["cat"]] @ unit[index["sun"]]
    other = trained(**settings, seed=2)
    assert not np.array_equal(first.vectors, other.vectors)


@needs_gensim
def test_sentences_longer_than_gensim_reads_are_read_in_parts():
    from gensim.models.word2vec import MAX_WORDS_IN_BATCH

    passes = word_vectors._CountedPasses([["a"] * 25_000, ["b"], []], 1, show_progress=False)
    assert list(map(len, passes)) == [MAX_WORDS_IN_BATCH, MAX_WORDS_IN_BATCH, 5_000, 1]
    assert passes.total == 3


@needs_gensim
def test_training_is_cached_by_its_settings(tmp_path):
    settings = SkipGramSettings(size=8, epochs=1, min_count=1)
    options = {"cache_path": tmp_path / "v.safetensors", "show_progress": False}
    first = train_word_vectors(_sentences(), settings, **options)

    class Unread:
        def __iter__(self):
            raise RuntimeError("the corpus was read")

    again = train_word_vectors(Unread(), settings, **options)
    np.testing.assert_array_equal(again.vectors, first.vectors)
    assert again.words == first.words
    with pytest.raises(RuntimeError, match="was read"):
        train_word_vectors(Unread(), settings, **options, corpus_key="another")
    assert train_word_vectors(_sentences(), replace(settings, size=4), **options).size == 4
    assert WordVectors.load(tmp_path / "v.safetensors").size == 4


@needs_gensim
def test_training_refuses_what_it_cannot_use():
    with pytest.raises(ValueError, match="corpus is empty"):
        train_word_vectors([], show_progress=False)
    with pytest.raises(ValueError, match="occurs 1000 times"):
        trained(min_count=1000)
    with pytest.raises(TypeError, match="read once"):
        train_word_vectors(iter(_sentences()), show_progress=False)
    with pytest.raises(ValueError, match="`size` is 0"):
        trained(size=0)


def test_embedding_matrix():
    tokenizer = train_tokenizer(["the fox of the north <s>"], show_progress=False)
    matrix, found = embedding_matrix(tokenizer, WordVectors([*WORDS, "<s>"], np.vstack([VECTORS, VECTORS[:1]])), seed=3)
    vocabulary = tokenizer.get_vocab()
    assert matrix.shape == (len(tokenizer), 3)
    assert matrix.dtype == np.float32
    for word in ("the", "of", "fox"):
        assert found[vocabulary[word]]
        np.testing.assert_array_equal(matrix[vocabulary[word]], VECTORS[WORDS.index(word)])
    assert not found[:4].any()
    assert not found[vocabulary["north"]]
    assert not matrix[0].any()
    assert matrix[vocabulary["north"]].any()
    np.testing.assert_array_equal(matrix, embedding_matrix(tokenizer, WordVectors(WORDS, VECTORS), seed=3)[0])
    with pytest.raises(ValueError, match="none of the tokenizer's"):
        embedding_matrix(tokenizer, WordVectors(["xyz"], VECTORS[:1]))


@pytest.mark.parametrize(("name", "value"), [("learning_rate", 0), ("learning_rate", float("nan")), ("sample", -1)])
def test_bad_settings_of_skip_gram(name, value):
    with pytest.raises(ValueError, match=f"`{name}` is {value}"):
        SkipGramSettings(**{name: value})
