"""Tokenizer, stores and held-out sentences of a run: nothing in two parts, everything reused."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset, DatasetDict

from hf_meanmax.data import Documents, stored_texts
from hf_meanmax.data.held_out import HeldOut
from hf_meanmax.data.stored_texts import StoredWords
from hf_meanmax.training import preparation, vocabulary
from hf_meanmax.training.cache import cache_folder
from hf_meanmax.training.preparation import open_sides, prepare
from hf_meanmax.training.vocabulary import prepare_word_vectors
from tiny_model import make_tokenizer
from tiny_words import WORDS


def sides(documents: list[list[str]], every: int) -> tuple[list[str], list[str]]:
    corpus = Documents(documents)
    return list(HeldOut(corpus, every, held_out=False)), list(HeldOut(corpus, every, held_out=True))


def numbered(*lengths: int) -> list[list[str]]:
    return [[f"{document} {line}" for line in range(length)] for document, length in enumerate(lengths)]


@pytest.mark.parametrize("every", [2, 3, 10])
@pytest.mark.parametrize("lengths", [[1] * 40, [7, 20, 21, 60, 3, 100], [500], [20] * 12], ids=str)
def test_the_sides_partition_the_corpus(every, lengths):
    documents = numbered(*lengths)
    train, held_out = (list(filter(None, side)) for side in sides(documents, every))
    lines = [line for document in documents for line in document]
    assert sorted(train + held_out) == sorted(lines)
    assert not set(train) & set(held_out)
    # Both sides keep the order, and blocks are of 20 lines at most and of one document.
    assert train == [line for line in lines if line in set(train)]
    blocks = [document[start : start + 20] for document in documents for start in range(0, len(document), 20)]
    expected = [line for number, block in enumerate(blocks) if number % every == every // 2 for line in block]
    assert held_out == expected


def test_both_sides_keep_document_boundaries():
    train, held_out = sides(numbered(2, 2, 2), every=2)
    assert train == ["0 0", "0 1", "", "", "2 0", "2 1", ""]
    assert held_out == ["", "1 0", "1 1", "", ""]


def test_lines_on_the_two_sides_of_a_gap_are_no_neighbours():
    """What is held out of a long document cuts it there, on both sides."""
    lines = [str(number) for number in range(100)]
    for side in sides([lines], every=2):
        runs = [run.split() for run in " ".join(line or "\n" for line in side).split("\n")]
        for run in filter(None, runs):
            assert [int(line) for line in run] == list(range(int(run[0]), int(run[-1]) + 1))
        assert sum(map(len, runs)) in (40, 60)


def test_blank_lines_in_a_row_are_one_boundary():
    documents = numbered(*[1] * 60)
    spaced = [part for document in documents for part in (document, [])]
    for side, other in zip(sides(documents, 2), sides(spaced, 2), strict=True):
        assert list(filter(None, side)) == list(filter(None, other))


def test_sides_have_identities_of_their_own():
    corpus = Documents(numbered(3))
    keys = [json.dumps(HeldOut(corpus, every, held).identity()) for every in (2, 3) for held in (True, False)]
    assert len(set(keys)) == 4


def test_prepared_run(make_arguments, texts):
    prepared = prepare(make_arguments(), show_progress=False)
    held_out = (texts / "held-out.txt").read_text().splitlines()
    assert prepared.validation_texts == held_out
    assert len(prepared.train) == 300
    assert len(prepared.train.document_starts) == 30
    assert prepared.tokenizer.convert_ids_to_tokens(range(4)) == ["<pad>", "<unk>", "<s>", "</s>"]
    for text, ids in zip(held_out, prepared.validation, strict=True):
        assert prepared.tokenizer(text)["input_ids"] == ids.tolist()


def test_a_part_of_the_corpus_is_held_out(make_arguments, texts):
    prepared = prepare(make_arguments(validation=None, validation_sentences=50), show_progress=False)
    lines = [line for line in (texts / "train.txt").read_text().splitlines() if line]
    # Of 300 lines every tenth document of ten.
    expected = [line for start in range(50, 300, 100) for line in lines[start : start + 10]]
    assert prepared.validation_texts == expected
    assert len(prepared.train) == 270
    (texts / "few.txt").write_text("\n".join(lines[:100]))
    few = prepare(make_arguments(validation=None, corpus=[str(texts / "few.txt")]), show_progress=False)
    # Of a hundred half of the blocks of twenty, or next to nothing would be measured.
    assert few.validation_texts == [*lines[20:40], *lines[60:80]]
    assert prepared.tokenizer(prepared.validation_texts[0])["input_ids"] == prepared.validation[0].tolist()


def test_everything_is_made_once(make_arguments, tmp_path, monkeypatch):
    args = make_arguments(cache_dir=str(tmp_path / "cache"))
    first = prepare(args, show_progress=False)

    def written():
        # Not the locks, which some versions of filelock touch whenever they take them.
        paths = (path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock")
        return {path: path.stat().st_mtime_ns for path in paths}

    files = written()
    assert {path.parts[len(tmp_path.parts) + 1] for path in files} == {"tokenizers", "stores"}
    monkeypatch.setattr(vocabulary, "train_tokenizer", None)
    second = prepare(args, show_progress=False)
    assert written() == files
    assert second.train.folder == first.train.folder
    assert second.tokenizer.get_vocab() == first.tokenizer.get_vocab()
    monkeypatch.undo()

    shorter = prepare(make_arguments(cache_dir=args.cache_dir, max_tokens=8), show_progress=False)
    assert shorter.train.folder != first.train.folder
    assert 0 < len(shorter.train) < len(first.train)
    smaller = prepare(make_arguments(cache_dir=args.cache_dir, vocab_size=10), show_progress=False)
    assert len(smaller.tokenizer) == 10


def test_runs_that_start_together_make_everything_once(make_arguments, tmp_path, monkeypatch):
    args = make_arguments(cache_dir=str(tmp_path / "cache"))
    made: list[Path] = []
    build, start = preparation.build_token_store, threading.Barrier(3)

    def counted(corpus, tokenizer, folder, *others):
        if not folder.exists():
            made.append(folder)
            time.sleep(0.2)  # without the lock the others would begin meanwhile
        return build(corpus, tokenizer, folder, *others)

    def run() -> str:
        start.wait()
        return prepare(args, show_progress=False).train.fingerprint

    monkeypatch.setattr(preparation, "build_token_store", counted)
    with ThreadPoolExecutor(3) as threads:
        prints = {future.result() for future in [threads.submit(run) for _ in range(3)]}
    assert len(prints) == 1
    assert len(made) == len(set(made)) == 2


def test_a_changed_corpus_is_read_anew(make_arguments, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the cat saw a dog\n" * 5)
    args = make_arguments(corpus=[str(corpus)])
    assert len(prepare(args, show_progress=False).train) == 5
    corpus.write_text("the cat saw another dog\n" * 7)
    os.utime(corpus, (1, 1))
    prepared = prepare(args, show_progress=False)
    assert len(prepared.train) == 7
    assert "another" in prepared.tokenizer.get_vocab()


def test_tokenizer_of_a_folder(make_arguments, tmp_path):
    make_tokenizer().save_pretrained(tmp_path / "tokenizer")
    prepared = prepare(make_arguments(tokenizer=str(tmp_path / "tokenizer")), show_progress=False)
    assert prepared.tokenizer.get_vocab() == make_tokenizer().get_vocab()
    assert prepared.train.token_counts.shape == (14,)
    (tmp_path / "empty").mkdir()
    for name in (str(tmp_path / "empty"), "words"):
        with pytest.raises(
            FileNotFoundError, match=f"`tokenizer` is '{name}': neither one of word, bpe, unigram, char"
        ):
            prepare(make_arguments(tokenizer=name), show_progress=False)


@pytest.mark.parametrize("kind", ["bpe", "char"])
def test_other_kinds_of_tokenizer(make_arguments, kind):
    prepared = prepare(make_arguments(tokenizer=kind, vocab_size=300, max_tokens=64), show_progress=False)
    text = prepared.validation_texts[0]
    assert prepared.tokenizer.decode(prepared.validation[0], skip_special_tokens=True) == text


def test_sentences_are_filtered(make_arguments, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("a b\na b c d\na b c d e f\n" * 30)
    held_out = Path(shutil.copy(corpus, tmp_path / "held-out.txt"))
    options = {"corpus": [str(corpus)], "min_tokens": 3, "max_tokens": 5, "validation": [str(held_out)]}
    dropped = prepare(make_arguments(**options), show_progress=False)
    assert set(dropped.train.lengths.tolist()) == {5}
    assert dropped.train.report.too_long == dropped.train.report.too_short == 30
    with pytest.warns(UserWarning, match="30 of 60 sentences were longer than 5 tokens"):
        cut = prepare(make_arguments(**options, long_lines="truncate"), show_progress=False)
    assert sorted(set(cut.train.lengths.tolist())) == [5, 6]
    assert set(cut.validation_texts) == {"a b c d"}


def test_many_sentences_left_out_by_their_length_are_told(make_arguments, tmp_path, capsys):
    """With the setting that leaves them out; a fifth of the texts is no cause for a word."""
    text = tmp_path / "text.txt"
    cut = ", or cut long ones with `--long_lines truncate`"
    for short, long, counts, said in (
        (1, 19, None, None),
        (
            3,
            19,
            "22 of 100 sentences (22.0%)",
            f"3 by `min_tokens` 4 and 19 by `max_tokens` 8. Change these settings{cut}.",
        ),
        (30, 0, "30 of 100 sentences (30.0%)", "30 by `min_tokens` 4. Change these settings."),
    ):
        lines = ["the cat"] * short + ["the cat saw the red house in town today"] * long
        text.write_text("\n".join([*lines, *["the cat saw a dog"] * (100 - short - long)]) + "\n")
        args = make_arguments(corpus=[str(text)], max_tokens=8)
        # Of a store that is found again, too.
        for _ in range(2):
            prepare(args)
            errors = capsys.readouterr().err
            told = f"warning: {counts} of the training texts are left out by their length: {said}\n"
            assert told in errors if counts else "left out" not in errors
    prepare(make_arguments(corpus=[str(text)], min_tokens=2))
    assert "left out" not in capsys.readouterr().err


def test_nothing_to_hold_out(make_arguments, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("one two three four\n" * 3)
    with pytest.raises(ValueError, match=r"No text is held out.*too short \(21 lines suffice, or two .*`--validation`"):
        prepare(make_arguments(corpus=[str(corpus)], validation=None), show_progress=False)
    (tmp_path / "short.txt").write_text("one two\n")
    with pytest.raises(ValueError, match=r"No sentence of 4-32 tokens could be held out.*`--validation`"):
        prepare(make_arguments(corpus=[str(corpus)], validation=[str(tmp_path / "short.txt")]), show_progress=False)


def test_held_out_sentences_that_are_trained_on_are_told(make_arguments, tmp_path, capsys):
    lines = [f"{a} {b} {c} {d}" for a in WORDS[:4] for b in WORDS[:4] for c in WORDS[:3] for d in WORDS[:3]]
    for name, own in (("corpus", lines[:100]), ("apart", lines[100:]), ("mixed", [*lines[100:120], *lines[:20]])):
        (tmp_path / f"{name}.txt").write_text("\n".join(own) + "\n")
    for name, told in (("apart", False), ("mixed", True)):
        prepare(make_arguments(corpus=[str(tmp_path / "corpus.txt")], validation=[str(tmp_path / f"{name}.txt")]))
        said = capsys.readouterr().err
        assert ("warning: 20 of 40 held-out sentences (50.0%) are among the training texts too" in said) == told


def test_where_the_cache_is(make_arguments, monkeypatch):
    args = make_arguments(cache_dir="")
    monkeypatch.setenv("HF_MEANMAX_CACHE", "/somewhere")
    assert cache_folder(args) == Path("/somewhere")
    monkeypatch.delenv("HF_MEANMAX_CACHE")
    assert cache_folder(args) == Path.home() / ".cache" / "hf_meanmax"
    assert cache_folder(make_arguments(cache_dir="~/mine")) == Path.home() / "mine"


def test_docstrings_are_the_built_in_corpus(make_arguments, tmp_path, monkeypatch):
    from hf_meanmax.data import docstrings

    class Harvest:
        def split(self):
            return [["a b c d"]], [["e f g h"]]

    monkeypatch.setattr(docstrings, "harvest_docstrings", lambda show_progress: Harvest())
    train, held_out = open_sides(make_arguments(corpus=["docstrings"], validation=[]), show_progress=False)
    assert (list(train), list(held_out)) == (["a b c d", ""], ["e f g h", ""])
    (tmp_path / "mine.txt").write_text("my own text\n")
    with pytest.raises(ValueError, match="'docstrings', the built-in corpus, stands alone in `corpus`"):
        make_arguments(corpus=["docstrings", str(tmp_path / "mine.txt")])
    mine = make_arguments(corpus=["docstrings"], validation=[str(tmp_path / "mine.txt")])
    train, held_out = open_sides(mine, show_progress=False)
    assert (list(train), list(held_out)) == (["a b c d", ""], ["my own text", ""])


def test_what_suffices_to_hold_out(make_arguments, tmp_path):
    for content in ("one two three four\n" * 21, "one two three four\n\none two three four\n"):
        (tmp_path / "corpus.txt").write_text(content)
        prepared = prepare(make_arguments(corpus=[str(tmp_path / "corpus.txt")], validation=None), show_progress=False)
        assert prepared.validation_texts == ["one two three four"]


def test_a_folder_without_a_model_has_no_word_vectors(make_arguments, tmp_path):
    with pytest.raises(ValueError, match=r"`word_vectors` is .* a folder without a model.*Give a file of word vectors"):
        prepare(make_arguments(word_vectors=str(tmp_path)), show_progress=False)


def test_word_vectors_from_a_file(make_arguments, tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text("cat 1 2 3 4\nunheard 5 6 7 8\nhouse -1 0 0.5 2\n")
    args = make_arguments(word_vectors=str(path), word_vector_scale=0.0, embedding_size=4)
    prepared = prepare(args, show_progress=False)
    matrix = prepare_word_vectors(args, prepared.tokenizer, prepared.train)
    vocabulary = prepared.tokenizer.get_vocab()
    assert matrix.shape == (len(vocabulary), 4)
    assert matrix[vocabulary["cat"]].tolist() == [1, 2, 3, 4]
    assert matrix[vocabulary["house"]].tolist() == [-1, 0, 0.5, 2]
    del args.model["embedding_size"]
    assert np.array_equal(prepare_word_vectors(args, prepared.tokenizer, prepared.train), matrix)
    args.model["embedding_size"] = 8
    with pytest.raises(ValueError, match="have 4 dimensions, `embedding_size` is 8; leave it out"):
        prepare_word_vectors(args, prepared.tokenizer, prepared.train)
    args.word_vectors = "teacher"
    with pytest.raises(ValueError, match="`word_vectors` is 'teacher': these vectors have 4 dimensions"):
        prepare_word_vectors(args, prepared.tokenizer, prepared.train, source=str(path))
    assert prepare_word_vectors(make_arguments(), prepared.tokenizer, prepared.train) is None


def test_words_of_a_file_that_are_not_utf8_are_read_on_request(make_arguments, tmp_path):
    path = tmp_path / "vectors.bin"
    rows = np.arange(1, 9, dtype="<f4").reshape(2, 4)
    path.write_bytes(b"2 4\n" + b"cat " + rows[0].tobytes() + b"caf\xe9 " + rows[1].tobytes())

    def matrix(**settings):
        args = make_arguments(word_vectors=str(path), word_vector_scale=0.0, embedding_size=4, **settings)
        prepared = prepare(args, show_progress=False)
        return prepare_word_vectors(args, prepared.tokenizer, prepared.train), prepared.tokenizer.get_vocab()

    for settings in ({}, {"tokenizer": "wordpiece"}):
        with pytest.raises(ValueError, match='encoding_errors="replace" reads on'):
            matrix(**settings)
        table, vocabulary = matrix(**settings, encoding_errors="replace")
        assert table[vocabulary["cat"]].tolist() == [1, 2, 3, 4]


def test_word_vectors_are_scaled_by_one_factor(make_arguments, tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text("cat 1 2 3 4\nhouse -1 0 0.5 2\n")
    prepared = prepare(make_arguments(word_vectors=str(path)), show_progress=False)
    as_they_are = prepare_word_vectors(
        make_arguments(word_vectors=str(path), word_vector_scale=0.0, embedding_size=4),
        prepared.tokenizer,
        prepared.train,
    )
    scaled = prepare_word_vectors(
        make_arguments(word_vectors=str(path), word_vector_scale=0.5, embedding_size=4),
        prepared.tokenizer,
        prepared.train,
    )
    vocabulary = prepared.tokenizer.get_vocab()
    found = scaled[[vocabulary["cat"], vocabulary["house"]]]
    assert np.sqrt(np.mean(found**2)) == pytest.approx(0.5)
    nonzero = as_they_are != 0
    ratios = scaled[nonzero] / as_they_are[nonzero]
    np.testing.assert_allclose(ratios, ratios[0], rtol=1e-5)
    path.write_text("cat 0 0 0 0\nhouse 0 0 0 0\n")
    with pytest.raises(ValueError, match=r"`word_vectors` is .*: the mean square of the 2 vectors .* is 0\.0"):
        prepare_word_vectors(
            make_arguments(word_vectors=str(path), embedding_size=4), prepared.tokenizer, prepared.train
        )


def test_word_vectors_trained_on_the_corpus(make_arguments, tmp_path, monkeypatch):
    pytest.importorskip("gensim")
    args = make_arguments(word_vectors="train", cache_dir=str(tmp_path / "cache"))
    prepared = prepare(args, show_progress=False)
    matrix = prepare_word_vectors(args, prepared.tokenizer, prepared.train, show_progress=False)
    assert matrix.shape == (len(prepared.tokenizer), 8)
    assert len(list((tmp_path / "cache" / "vectors").iterdir())) >= 1
    monkeypatch.setattr("gensim.models.Word2Vec", None)
    assert np.array_equal(prepare_word_vectors(args, prepared.tokenizer, prepared.train, show_progress=False), matrix)


def test_held_out_texts_are_those_of_their_store(make_arguments, tmp_path):
    """One of unknown words alone is in neither, so that vectors stay beside their texts."""
    (tmp_path / "held-out.txt").write_text("the cat saw a book\nzzz qqq\na dog found the red house\n")
    args = make_arguments(validation=[str(tmp_path / "held-out.txt")], drop_unknown_words=True)
    prepared = prepare(args, show_progress=False)
    assert prepared.validation_texts == ["the cat saw a book", "a dog found the red house"]
    assert len(prepared.validation) == 2


@pytest.mark.parametrize("name", ["held.txt", "he*.txt", "~/held.txt"])
def test_files_beside_a_data_set_have_no_split(make_arguments, tmp_path, monkeypatch, name):
    (tmp_path / "held.txt").write_text("a dog found the red house\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    data = Dataset.from_dict({"review": ["the cat saw a book", "a dog found a book"]})
    DatasetDict({"other": data}).save_to_disk(tmp_path / "data")
    args = make_arguments(corpus=["data"], validation=[name], split="other", text_column="review")
    assert [list(filter(None, side)) for side in open_sides(args, False)] == [
        data["review"][:],
        ["a dog found the red house"],
    ]


@pytest.mark.parametrize("corpus", [["train.txt"], ["held-out.txt", "train.txt"], ["*.txt"]])
def test_texts_that_are_trained_on_are_not_held_out(make_arguments, texts, corpus):
    args = make_arguments(corpus=[str(texts / name) for name in corpus], validation=[str(texts / "train.txt")])
    with pytest.raises(ValueError, match=r"`validation` \(.*train\.txt\) is among the texts of `corpus`"):
        open_sides(args, False)


def test_words_of_a_store_are_read_in_blocks_of_its_tokens(make_arguments, monkeypatch):
    prepared = prepare(make_arguments(), show_progress=False)
    whole = list(StoredWords(prepared.train, prepared.tokenizer))
    for tokens in (1, 17):
        monkeypatch.setattr(stored_texts, "_TOKENS_AT_ONCE", tokens)
        assert list(StoredWords(prepared.train, prepared.tokenizer)) == whole
    assert len(whole) == 300


def test_texts_that_are_too_long_to_be_generated_are_not_held_out(make_arguments, texts, monkeypatch):
    held_out = (texts / "held-out.txt").read_text().splitlines()
    longest = max(len(text.split()) for text in held_out)  # The end token counts, too.
    monkeypatch.setattr(preparation, "MOST_TOKENS", longest)
    prepared = prepare(make_arguments(), show_progress=False)
    wanted = [text for text in held_out if len(prepared.tokenizer(text)["input_ids"]) <= longest]
    assert prepared.validation_texts == wanted != held_out


def test_that_gensim_lacks_shows_before_the_texts_are_read(make_arguments, tmp_path, monkeypatch):
    for name in ("gensim", "gensim.models"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr("hf_meanmax.training.preparation.open_sides", None)
    args = make_arguments(word_vectors="train", cache_dir=str(tmp_path))
    # A teacher's vectors, and locks, have a suffix.
    (Path(args.cache_dir) / "vectors").mkdir(parents=True)
    (Path(args.cache_dir) / "vectors" / "other.safetensors").touch()
    with pytest.raises(ImportError, match="Training word vectors needs gensim"):
        prepare(args)
    # Vectors of another run may be those of this one, which is known when the texts have been read.
    (Path(args.cache_dir) / "vectors" / "other").touch()
    with pytest.raises(TypeError, match="not callable"):
        prepare(args)
