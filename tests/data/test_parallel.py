"""Parallel corpora: lines stay together with their translations through files, filters and batches."""

from __future__ import annotations

import datasets
import numpy as np
import pytest
import torch

from hf_meanmax.data import (
    BatchPlan,
    Documents,
    MicroBatches,
    PairedSentences,
    ParallelCorpus,
    SentenceFilter,
    build_token_store,
    open_corpus,
)
from tiny_model import WORDS, make_tokenizer

IGNORE = -100


def pairs_of(number: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Sources of words, and targets that are the same words backwards, so that a pair is known when it is seen."""
    rng = np.random.default_rng(seed)
    sources = [list(rng.choice(WORDS, size=rng.integers(1, 9))) for _ in range(number)]
    return [" ".join(words) for words in sources], [" ".join(words[::-1]) for words in sources]


def store_of(corpus, folder, **rule):
    return build_token_store(corpus, make_tokenizer(), folder, SentenceFilter(**rule), show_progress=False)


def write_sides(folder, **lines: list[str]) -> ParallelCorpus:
    """A parallel corpus of the files a and b of two languages; the keys are `a_en` and so on."""
    for name, content in lines.items():
        (folder / name).write_text("".join(f"{line}\n" for line in content), encoding="utf-8")
    return ParallelCorpus(
        *(open_corpus([folder / name for name in lines if name.endswith(language)]) for language in ("en", "de"))
    )


def test_pairs_of_files(tmp_path):
    """A line whose translation is blank is left out, and blank lines at the end of a file lack none."""
    corpus = write_sides(
        tmp_path,
        a_en=["one", "", "two", "three", "  ", "four", ""],
        a_de=["eins", "", "zwei", " ", "null", "vier"],
        b_en=["five"],
        b_de=["funf"],
    )
    expected = [("one", "eins"), ("two", "zwei"), ("four", "vier"), ("five", "funf")]
    assert list(corpus) == expected
    assert list(corpus.source_side) == [source for source, _ in expected]
    assert list(corpus.target_side) == [target for _, target in expected]
    assert corpus.source_side.fingerprint() != corpus.target_side.fingerprint()


def test_progress_goes_on_from_file_to_file(tmp_path):
    names = [f"{name}_{language}" for name in "abc" for language in ("en", "de")]
    corpus = write_sides(tmp_path, **{name: ["a word"] * 3000 for name in names})
    positions = [corpus.source.position for _ in corpus]
    assert positions == sorted(positions)
    assert 0.9 * corpus.source.size < positions[-1] <= corpus.source.size


def test_sides_that_do_not_fit(tmp_path):
    """A file that is cut short is found there, and does not shift the files after it."""
    good, short = ["x", "y", "z"], ["x", "y"]
    with pytest.raises(ValueError, match=r"The target \(.*a_de\) ends after 2 lines, the source \(.*a_en\) goes"):
        list(write_sides(tmp_path, a_en=good, a_de=short, b_en=good, b_de=good))
    with pytest.raises(ValueError, match=r"The source \(.*b_en\) ends after 2 lines, the target \(.*b_de\) goes"):
        list(write_sides(tmp_path, a_en=good, a_de=good, b_en=short, b_de=good))
    with pytest.raises(ValueError, match="The source has 2 files, the target 1"):
        list(write_sides(tmp_path, a_en=good, b_en=good, a_de=[*good, *good]))
    with pytest.raises(ValueError, match="empty: there is no line with its translation"):
        list(write_sides(tmp_path, a_en=["x", ""], a_de=["", "y"]))


def test_columns_of_a_data_set():
    rows = [{"en": f"word {i}", "de": f"Wort {i}"} for i in range(3)]
    dataset = datasets.Dataset.from_dict({"translation": rows, "other": ["a", "b", "c"]})
    corpus = ParallelCorpus(
        open_corpus(dataset, text_column="translation.en"), open_corpus(dataset, text_column="translation.de")
    )
    assert list(corpus) == [(row["en"], row["de"]) for row in rows]
    assert corpus.source_side.fingerprint() != corpus.target_side.fingerprint()
    with pytest.raises(ValueError, match=r"no column 'translations\.en'; choose one of translation, other"):
        open_corpus(dataset, text_column="translations.en")
    with pytest.raises(ValueError, match="is dict, not text"):
        list(open_corpus(dataset, text_column="translation"))


@pytest.mark.parametrize("rules", [({}, {}), ({"min_tokens": 3}, {"max_tokens": 6, "beyond_max": "drop"})])
def test_pairs_survive_filters_and_batches(tmp_path, rules):
    sources, targets = pairs_of(200)
    corpus = ParallelCorpus(Documents([sources]), Documents([targets]))
    stores = [
        store_of(side, tmp_path / name, **rule)
        for side, name, rule in zip((corpus.source_side, corpus.target_side), "st", rules, strict=True)
    ]
    pairs = PairedSentences(*stores)
    kept = [
        text for text in sources if rules[0].get("min_tokens", 1) <= len(text.split()) <= rules[1].get("max_tokens", 9)
    ]
    assert len(pairs) == len(kept)
    assert (pairs.costs() == [2 * len(text.split()) + 2 for text in kept]).all()
    plan = BatchPlan(pairs.costs(), 120)
    seen = 0
    for rank in range(2):
        batches = MicroBatches(pairs, plan, rank, 2)
        for _, batch in batches.sequential():
            for ids, labels in zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True):
                if set(labels) == {IGNORE}:
                    continue
                source, target = [i for i in ids if i], [i for i in labels if i != IGNORE]
                assert target[-1] == source[-1] == 3
                assert target[:-1] == source[-2::-1]
                seen += 1
    assert seen == len(kept)


def test_teacher_vectors_go_with_their_sentences(tmp_path):
    """Whatever the order, the filter and the process; a process without a row is told so by NaN."""
    sources, targets = pairs_of(40)
    corpus = ParallelCorpus(Documents([sources]), Documents([targets]))
    source = store_of(corpus.source_side, tmp_path / "s", min_tokens=2)
    pairs = PairedSentences(source, store_of(corpus.target_side, tmp_path / "t"))
    # The first id and the length of each stored sentence stand for its vector.
    vectors = np.array([[source[i][0], len(source[i])] for i in range(len(source))], dtype=np.float32)
    plan = BatchPlan(pairs.costs(), 60, gradient_accumulation_steps=2)
    sentences = {0: [], 1: []}
    for rank in sentences:
        batches = MicroBatches(pairs, plan, rank, 2, teacher_vectors=vectors)
        for step, micro_batches, _ in batches.iterate(0):
            total = sum(len(rows) for rows in plan.epoch(0).rows(step))
            for batch in micro_batches:
                wanted = batch["teacher_embeddings"]
                assert batch["num_sentences_in_batch"].item() == total
                real = ~wanted.isnan().any(dim=1)
                assert torch.equal(wanted[real, 0], batch["input_ids"][real, 0].float())
                assert torch.equal(wanted[real, 1], (batch["input_ids"][real] != 0).sum(dim=1).float())
                assert ((batch["labels"] != IGNORE).any(dim=1) == real).all()
                sentences[rank] += wanted[real].tolist()
    assert len(sentences[0]) + len(sentences[1]) == len(pairs)
    with pytest.raises(ValueError, match="39 teacher vectors"):
        MicroBatches(pairs, plan, teacher_vectors=np.zeros((39, 2)))


def test_what_cannot_be_paired(tmp_path):
    sources, targets = pairs_of(10)
    corpus = ParallelCorpus(Documents([sources]), Documents([targets]))
    source = store_of(corpus.source_side, tmp_path / "s", max_tokens=1, beyond_max="drop")
    target = store_of(corpus.target_side, tmp_path / "t", min_tokens=2)
    with pytest.raises(ValueError, match="No pair of sentences is left"):
        PairedSentences(source, target)
    documents = store_of(Documents([sources, sources]), tmp_path / "d")
    with pytest.raises(ValueError, match="parallel corpus"):
        PairedSentences(documents, target)
