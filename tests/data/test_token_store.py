"""The token store against a plain reference; filters and their counts; reuse, damage and interruption."""

from __future__ import annotations

import json
import random
import re
import warnings

import numpy as np
import pytest

from hf_meanmax.data import Corpus, Documents, SentenceFilter, TokenStore, build_token_store, open_corpus
from hf_meanmax.data import token_store as module
from tiny_words import WORDS, make_tokenizer


def reference(documents, tokenizer, rule: SentenceFilter):
    """Sentence by sentence, as the filter's documentation says."""
    sentences, starts, positions = [], [], []
    dropped = {"empty": 0, "unknown": 0, "too_short": 0, "too_long": 0, "truncated": 0}
    for document in documents:
        started = False
        for position, text in enumerate(document):
            ids = tokenizer(text).input_ids[:-1]
            if not ids:
                dropped["empty"] += 1
                continue
            if ids.count(1) / len(ids) > rule.max_unknown_rate:
                dropped["unknown"] += 1
                continue
            if rule.drop_unknown_words:
                ids = [i for i in ids if i != 1]
            if len(ids) < rule.min_tokens:
                dropped["too_short"] += 1
                continue
            if rule.max_tokens is not None and len(ids) > rule.max_tokens:
                if rule.beyond_max == "drop":
                    dropped["too_long"] += 1
                    continue
                dropped["truncated"] += 1
                ids = ids[: rule.max_tokens]
            if not started:
                starts.append(len(sentences))
                started = True
            sentences.append([*ids, 3])
            positions.append(position)
    return sentences, starts, positions, dropped


def test_sentences_of_two_stores(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_HASHED", 9)
    rng = random.Random(0)
    sides = [[" ".join(rng.choices(WORDS[:3], k=rng.randint(1, 4))) for _ in range(60)] for _ in range(2)]
    one, other = (
        build_token_store(Documents([lines]), make_tokenizer(WORDS), tmp_path / str(number), SentenceFilter(), False)
        for number, lines in enumerate(sides)
    )
    shared = sum(line in sides[0] for line in sides[1])
    assert 0 < shared < 60
    assert module.count_shared(one, other) == shared


RULES = [
    SentenceFilter(),
    SentenceFilter(4, 8, "drop"),
    SentenceFilter(2, 6, "truncate"),
    SentenceFilter(max_unknown_rate=0.25),
    SentenceFilter(4, 8, "drop", drop_unknown_words=True),
    SentenceFilter(3, 5, "truncate", max_unknown_rate=0.5, drop_unknown_words=True),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: "-".join(map(str, vars(rule).values())))
def test_store_equals_plain_reference(tmp_path, tokenizer, monkeypatch, rule):
    monkeypatch.setattr(module, "_LINES_PER_CHUNK", 7)  # documents cross the borders of chunks
    monkeypatch.setattr(module, "CHARACTERS_AT_ONCE", 200)
    rng = random.Random(1)
    words = [*WORDS, "unknown", "stranger"]
    documents = [
        [" ".join(rng.choices(words, k=rng.randint(1, 12))) for _ in range(rng.randint(0, 20))] for _ in range(30)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store = build_token_store(Documents(documents), tokenizer, tmp_path / "s", rule, show_progress=False)
    sentences, starts, positions, dropped = reference(documents, tokenizer, rule)
    assert [list(store[i]) for i in range(len(store))] == sentences
    assert store.document_starts.tolist() == starts
    assert store.positions.tolist() == positions
    assert store.lengths.tolist() == list(map(len, sentences))
    assert store.report.tokens == sum(map(len, sentences))
    assert (
        store.token_counts.tolist()
        == np.bincount([i for row in sentences for i in row], minlength=len(tokenizer)).tolist()
    )
    assert {name: getattr(store.report, name) for name in dropped} == dropped
    assert store.report.lines == sum(map(len, documents))
    assert store.report.kept == len(sentences)
    assert store.report.documents == len(starts)
    assert store.document_starts.tolist() == starts


def test_rows_equal_single_sentences(store):
    for indices in (np.array([5, 0, 59, 5]), np.flatnonzero(store.lengths == 4), np.array([], dtype=np.int64)):
        rows = store.rows(indices)
        assert rows.lengths.tolist() == store.lengths[indices].tolist()
        assert rows.ids.tolist() == [t for i in indices for t in store[i].tolist()]


def test_indexing(store):
    assert store[-1].tolist() == store[59].tolist()
    with pytest.raises(IndexError):
        store[60]


@pytest.mark.parametrize(("size", "dtype"), [(65_536, np.uint16), (65_537, np.int32)])
def test_dtype_follows_the_vocabulary(tmp_path, size, dtype):
    tokenizer = make_tokenizer([f"w{i}" for i in range(4, size)])
    store = build_token_store(Documents([[f"w{size - 1}"]]), tokenizer, tmp_path / "s", show_progress=False)
    assert store.tokens.dtype == dtype
    assert store[0].tolist() == [size - 1, 3]


def test_store_is_reused_until_an_input_changes(tmp_path, tokenizer, monkeypatch):
    folder = tmp_path / "s"
    documents = Documents([["alpha beta", "gamma"]])
    first = build_token_store(documents, tokenizer, folder, show_progress=False)
    written = (folder / "store.json").stat().st_mtime_ns
    with monkeypatch.context() as patch:
        patch.setattr(module, "_write_arrays", lambda *args: pytest.fail("built again"))
        again = build_token_store(documents, tokenizer, folder, show_progress=False)
    assert (folder / "store.json").stat().st_mtime_ns == written
    assert again.fingerprint == first.fingerprint
    changed = [
        (Documents([["alpha beta", "delta"]]), tokenizer, None),
        (Documents([["alpha beta", "delta"]]), make_tokenizer(WORDS[::-1]), None),
        (Documents([["alpha beta", "delta"]]), make_tokenizer(WORDS[::-1]), SentenceFilter(2)),
    ]
    for corpus, other, rule in changed:
        store = build_token_store(corpus, other, folder, rule, show_progress=False)
        assert store.fingerprint != again.fingerprint
        again = store
    assert len(again) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_padding_and_truncation_settings_of_the_tokenizer_do_not_matter(tmp_path):
    tokenizer = make_tokenizer(WORDS)
    corpus = Documents([["alpha beta gamma"]])
    first = build_token_store(corpus, tokenizer, tmp_path / "s", show_progress=False)
    tokenizer(["alpha", "alpha beta"], padding=True, truncation=True, max_length=2)
    second = build_token_store(corpus, tokenizer, tmp_path / "s", show_progress=False)
    assert second.fingerprint == first.fingerprint
    assert second[0].tolist() == [4, 5, 6, 3]


class Broken(Corpus):
    def __iter__(self):
        yield from ["alpha beta"] * 100
        raise RuntimeError("the disk is gone")

    def identity(self):
        return "broken"


def test_interrupted_build_leaves_the_old_store(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(module, "_LINES_PER_CHUNK", 10)
    build_token_store(Documents([["alpha"]]), tokenizer, tmp_path / "s", show_progress=False)
    with pytest.raises(RuntimeError, match="disk is gone"):
        build_token_store(Broken(), tokenizer, tmp_path / "s", show_progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    assert TokenStore.open(tmp_path / "s")[0].tolist() == [4, 3]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("killed_at", [3, 5, 8])
@pytest.mark.parametrize("damaged", [False, True], ids=["whole", "cut short"])
def test_killed_build_goes_on_where_it_was(tmp_path, monkeypatch, killed_at, damaged):
    monkeypatch.setattr(module, "_LINES_PER_CHUNK", 10)
    monkeypatch.setattr(module, "_CHUNKS_PER_RECORD", 2)
    rng = np.random.default_rng(0)
    documents = [
        [" ".join(rng.choice([*WORDS, "other"], size=rng.integers(1, 6))) for _ in range(7)] for _ in range(12)
    ]
    corpus, tokenizer, rule = Documents(documents), make_tokenizer(WORDS), SentenceFilter(2, max_unknown_rate=0.6)
    expected = build_token_store(corpus, tokenizer, tmp_path / "whole", rule, show_progress=False)

    true, read = module.apply_filter, []

    def dying(*arguments):
        if len(read) == killed_at:
            raise Killed
        read.append(1)
        return true(*arguments)

    monkeypatch.setattr(module, "apply_filter", dying)
    with pytest.raises(Killed):
        build_token_store(corpus, tokenizer, tmp_path / "s", rule, show_progress=False)
    assert not (tmp_path / "s").exists()
    growing = tmp_path / ".s.growing"
    if damaged:
        (growing / "tokens.bin").write_bytes((growing / "tokens.bin").read_bytes()[:3])
    read.clear()
    killed_at, before = 100, killed_at
    store = build_token_store(corpus, tokenizer, tmp_path / "s", rule, show_progress=False)
    assert len(read) == (9 if damaged else 9 - before // 2 * 2)
    assert not growing.exists()
    for path in sorted(expected.folder.iterdir()):
        assert (store.folder / path.name).read_bytes() == path.read_bytes(), path.name


def test_unfinished_build_of_another_text_is_no_beginning(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(module, "_LINES_PER_CHUNK", 10)
    monkeypatch.setattr(module, "_CHUNKS_PER_RECORD", 2)
    with pytest.raises(RuntimeError, match="disk is gone"):
        build_token_store(Broken(), tokenizer, tmp_path / "s", show_progress=False)
    assert [path.name for path in tmp_path.iterdir()] == [".s.growing"]
    store = build_token_store(Documents([["alpha"]]), tokenizer, tmp_path / "s", show_progress=False)
    assert store.tokens.tolist() == [4, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_half_written_store_does_not_open(store, tmp_path):
    (store.folder / "store.json").unlink()
    with pytest.raises(FileNotFoundError, match="no token store"):
        TokenStore.open(store.folder)


def damage(folder, kind):
    if kind == "cut":
        (folder / "tokens.bin").write_bytes((folder / "tokens.bin").read_bytes()[:-2])
    elif kind == "missing":
        (folder / "offsets.bin").unlink()
    elif kind == "flipped":
        data = bytearray((folder / "positions.bin").read_bytes())
        data[4] ^= 1
        (folder / "positions.bin").write_bytes(data)
    elif kind == "json":
        (folder / "store.json").write_text('{"format_version": 1, ')
    elif kind == "keys":
        (folder / "store.json").write_text('{"format_version": 1, "arrays": {}}')
    elif kind == "version":
        meta = json.loads((folder / "store.json").read_text())
        (folder / "store.json").write_text(json.dumps(meta | {"format_version": 99}))


@pytest.mark.parametrize("kind", ["cut", "missing", "flipped", "json", "keys", "version"])
def test_damaged_store_is_refused_and_built_anew(tmp_path, tokenizer, kind):
    corpus = Documents([["alpha beta", "gamma"]])
    build_token_store(corpus, tokenizer, tmp_path / "s", show_progress=False)
    damage(tmp_path / "s", kind)
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "s")) + r".*Delete the folder"):
        TokenStore.open(tmp_path / "s")
    with pytest.warns(UserWarning, match="built anew"):
        store = build_token_store(corpus, tokenizer, tmp_path / "s", show_progress=False)
    assert store[0].tolist() == [4, 5, 3]


def test_foreign_folder_is_refused(tmp_path, tokenizer):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(FileExistsError, match="no token store"):
        build_token_store(Documents([["alpha"]]), tokenizer, tmp_path, show_progress=False)
    with pytest.raises(FileExistsError, match="is a file"):
        build_token_store(Documents([["alpha"]]), tokenizer, tmp_path / "thesis.txt", show_progress=False)
    assert (tmp_path / "thesis.txt").read_text() == "precious"


@pytest.mark.parametrize("documents", [[], [[]], [["", "  "]]], ids=["nothing", "no line", "blank lines"])
def test_empty_corpus(tmp_path, tokenizer, documents):
    with pytest.raises(ValueError, match=r"corpus is empty \(0 lines read"):
        build_token_store(Documents(documents), tokenizer, tmp_path / "s", show_progress=False)
    assert not list(tmp_path.iterdir())


def test_nothing_left_counts_what_each_filter_dropped(tmp_path, tokenizer):
    lines = ["alpha", "alpha beta gamma delta", "who knows"]
    rule = SentenceFilter(2, 3, "drop", max_unknown_rate=0.5)
    counts = "3 lines read; dropped: 0 without a token, 1 by max_unknown_rate, 1 by min_tokens, 1 by max_tokens"
    with pytest.raises(ValueError, match=counts):
        build_token_store(Documents([lines]), tokenizer, tmp_path / "s", rule, show_progress=False)


@pytest.mark.parametrize("drops", [False, True])
def test_a_report_tells_how_many_words_are_unknown(tmp_path, drops):
    rule = SentenceFilter(drop_unknown_words=drops)
    corpus = Documents([["the cat blorps", "the dog", "blorps blorps"]])
    store = build_token_store(corpus, make_tokenizer(["the", "cat", "dog"]), tmp_path / "store", rule, False)
    # Of a sentence that is left out nothing counts.
    found = "1, 20.0%" if drops else "3, 42.9%"
    assert str(store.report).endswith(f"truncated: 0; unknown words: {found})")


def test_truncated_lines_are_reported_once(make_store):
    with pytest.warns(UserWarning, match="2 of 3 sentences were longer than 2 tokens") as caught:
        store = make_store([["alpha beta gamma", "alpha beta gamma delta", "alpha"]], SentenceFilter(max_tokens=2))
    assert len(caught) == 1
    assert store.lengths.tolist() == [3, 3, 2]
    assert store.report.truncated == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_tokens": 0}, "min_tokens is 0"),
        ({"min_tokens": 5, "max_tokens": 4}, "max_tokens is 4"),
        ({"beyond_max": "wrap"}, "'wrap'; allowed: 'drop', 'truncate'"),
        ({"max_unknown_rate": 1.5}, r"max_unknown_rate is 1\.5"),
    ],
)
def test_bad_filters(options, message):
    with pytest.raises(ValueError, match=message):
        SentenceFilter(**options)


def test_tokenizers_that_do_not_fit(tmp_path):
    corpus = Documents([["alpha"]])
    with pytest.raises(ValueError, match="expected the end token alone"):
        build_token_store(corpus, make_tokenizer(WORDS, "<s> $A </s>"), tmp_path / "s", show_progress=False)
    without = make_tokenizer(WORDS)
    without.pad_token = None
    with pytest.raises(ValueError, match="no pad_token_id"):
        build_token_store(corpus, without, tmp_path / "s", show_progress=False)
    with pytest.raises(TypeError, match="fast tokenizer"):
        build_token_store(corpus, str.split, tmp_path / "s", show_progress=False)


def test_the_bar_ends_where_the_held_out_texts_do(capsys, tmp_path):
    """A part that another reads is at the end, where no line comes any more."""
    from hf_meanmax.data.held_out import HeldOut

    path = tmp_path / "x.txt"
    path.write_text("".join(f"a cat {i}\n\n" for i in range(3000)))
    corpus = HeldOut(open_corpus([str(path)]), 10, held_out=False)
    build_token_store(corpus, make_tokenizer(["cat"]), tmp_path / "held", show_progress=True)
    assert capsys.readouterr().err.splitlines()[-1].startswith("tokenise: 100%")


def test_progress_is_silent_on_request(make_store, capsys):
    make_store([["alpha"]])
    assert capsys.readouterr().err == ""
