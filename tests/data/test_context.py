"""Contexts of sentences against a plain loop over documents."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch

from hf_meanmax.data import (
    BatchPlan,
    CandidateSampler,
    ContextSentences,
    MicroBatches,
    NeighbouringSentences,
    Noise,
    SentenceFilter,
    SentencesAndContext,
)

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]
LONGEST = 7
OBJECTIVES = ("next_words", "next_sentence", "neighbours")


def make_documents(count: int = 60, seed: int = 0) -> list[list[str]]:
    """Documents of 1 to 7 sentences of 1 to 9 words; those of more than 7 are filtered out."""
    draw = random.Random(seed)
    return [
        [" ".join(draw.choices(WORDS, k=draw.randint(1, 9))) for _ in range(draw.randint(1, 7))] for _ in range(count)
    ]


@pytest.fixture
def documents() -> list[list[str]]:
    return make_documents()


@pytest.fixture
def store(make_store, documents):
    return make_store(documents, SentenceFilter(max_tokens=LONGEST, beyond_max="drop"))


def naive(documents, objective, min_tokens=1, max_tokens=None, num_words=30):
    """(the sentence, the one before, what comes) as words, `</s>` among them, in order. A neighbour that is longer than
    the sentences that are encoded is cut, and then does not end."""

    def whole_or_cut(words):
        return [*words, "</s>"] if len(words) <= (max_tokens or LONGEST) else words[:max_tokens]

    found = []
    for document in documents:
        for i, line in enumerate(document):
            words = line.split()
            if len(words) > LONGEST or not min_tokens <= len(words) <= (max_tokens or LONGEST):
                continue
            following = []
            for other in document[i + 1 :]:
                if len(other.split()) > LONGEST:
                    break
                following.append(other.split())
            if not following:
                continue
            before = None
            if objective == "neighbours":
                if i == 0 or len(document[i - 1].split()) > LONGEST:
                    continue
                before = whole_or_cut(document[i - 1].split())
            if objective == "next_words":
                comes = [word for other in following for word in other][:num_words]
            else:
                comes = whole_or_cut(following[0])
            found.append(([*words, "</s>"], before, comes))
    return found


def split(ragged) -> list[list[int]]:
    return [part.tolist() for part in np.split(ragged.ids, np.cumsum(ragged.lengths)[:-1])]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(("least", "most"), [(1, None), (3, 5), (7, 7)], ids=["all", "3-5", "7"])
@pytest.mark.parametrize("num_words", [1, 4, 30])
def test_contexts_equal_a_plain_loop(store, documents, tokenizer, objective, least, most, num_words):
    """Next words cross sentences, and nothing crosses a document's end or a sentence that was filtered out."""
    sentences = ContextSentences(store, objective, least, most, num_words)
    expected = naive(documents, objective, least, most, num_words)
    vocabulary = tokenizer.get_vocab()

    def ids(column):
        return [[vocabulary[word] for word in row[column]] for row in expected]

    assert len(sentences) == len(expected) > 2
    rows = np.arange(len(sentences))
    assert split(sentences.inputs(rows)) == ids(0)
    assert sentences.lengths.tolist() == [len(row) for row in ids(0)]
    assert split(sentences.targets(rows)) == ids(2)
    if objective == "neighbours":
        assert split(sentences.further_targets(rows)["previous_targets"]) == ids(1)
    shuffled = np.random.default_rng(0).permutation(rows)
    assert split(sentences.targets(shuffled)) == [ids(2)[row] for row in shuffled]
    assert sentences.costs().shape == (len(sentences),)
    assert np.array_equal(np.argsort(sentences.costs(), kind="stable"), np.argsort(sentences.lengths, kind="stable"))


def test_a_context_by_hand(make_store, tokenizer):
    gap = " ".join(WORDS)
    store = make_store(
        [["alpha", "beta gamma", "delta"], ["zeta"], ["eta", "theta", gap, "iota", "kappa"]],
        SentenceFilter(max_tokens=LONGEST, beyond_max="drop"),
    )

    def said(objective, **options):
        sentences = ContextSentences(store, objective, **options)
        rows = np.arange(len(sentences))
        return [
            (tokenizer.decode(a, skip_special_tokens=True), tokenizer.decode(b))
            for a, b in zip(split(sentences.inputs(rows)), split(sentences.targets(rows)), strict=True)
        ]

    assert said("next_words") == [
        ("alpha", "beta gamma delta"),
        ("beta gamma", "delta"),
        ("eta", "theta"),
        ("iota", "kappa"),
    ]
    assert said("next_words", num_words=2)[0] == ("alpha", "beta gamma")
    assert said("next_sentence", max_tokens=1)[0] == ("alpha", "beta")
    assert said("neighbours") == [("beta gamma", "delta </s>")]


def test_sentences_and_their_context(store):
    """The sentence is to be said, and the words after it are a second target that counts for nothing else."""
    both, context = SentencesAndContext(store, 2, 6, 4), ContextSentences(store, "next_words", 2, 6, 4)
    rows = np.arange(len(both))
    assert np.array_equal(both.indices, context.indices)
    assert split(both.targets(rows)) == split(both.inputs(rows)) == split(context.inputs(rows))
    assert split(both.further_targets(rows)["context_targets"]) == split(context.targets(rows))
    assert np.array_equal(both.costs(), both.lengths)
    batches = MicroBatches(both, BatchPlan(both.costs(), 60))
    for _, micro_batches, num_targets in batches.iterate(0):
        assert num_targets == sum((batch["labels"] != -100).sum() for batch in micro_batches)
        assert all((batch["context_targets"] != -100).any(dim=1).all() for batch in micro_batches)


def test_what_is_refused(make_store, store):
    with pytest.raises(ValueError, match="`objective` is 'next'; allowed: 'next_words', 'next_sentence', 'neighbours'"):
        ContextSentences(store, "next")
    with pytest.raises(ValueError, match="num_words is 0; it must be at least 1"):
        ContextSentences(store, num_words=0)
    with pytest.raises(
        ValueError, match=r"No sentence of 40 to any number of tokens has a neighbour \(of [0-9]+ sentences"
    ):
        ContextSentences(store, "next_sentence", min_tokens=40)
    single = make_store([["alpha beta"], ["gamma"]], name="single")
    with pytest.raises(ValueError, match=r"2 sentences in 2 documents\)\. A blank line ends a document"):
        ContextSentences(single)
    with pytest.raises(ValueError, match=r"No sentence .* has a neighbour"):
        ContextSentences(make_store([["alpha beta", "gamma"]], name="pair"), "neighbours")
    sentences = ContextSentences(store)
    with pytest.raises(ValueError, match=rf"plan covers {len(store)} sentences, there are {len(sentences)}"):
        MicroBatches(sentences, BatchPlan(store.lengths, 64))


def make(store, objective, rank=0, world_size=1, noisy=True):
    sentences = ContextSentences(store, objective, 2, 6, num_words=8)
    plan = BatchPlan(sentences.costs(), 60, 2, seed=5)
    options = {}
    if noisy:
        options = {"noise": Noise(0.3, 0.3), "candidates": CandidateSampler(store.token_counts, 2, seed=5)}
    return MicroBatches(sentences, plan, rank, world_size, **options)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_batches_hold_their_contexts(store, objective):
    batches = make(store, objective, noisy=False)
    sentences, plan = batches.sentences, batches.plan.epoch(1)
    seen = []
    for step, micro_batches, num_targets in batches.iterate(1):
        counted = 0
        for rows, batch in zip(plan.rows(step), micro_batches, strict=True):
            wanted = {"input_ids": sentences.inputs(rows), "labels": sentences.targets(rows)}
            if objective == "neighbours":
                wanted["previous_targets"] = sentences.further_targets(rows)["previous_targets"]
            assert batch.keys() - {"attention_mask"} == wanted.keys()
            for name, ragged in wanted.items():
                fill = 0 if name == "input_ids" else -100
                width = int(ragged.lengths.max())
                assert batch[name].tolist() == [ids + [fill] * (width - len(ids)) for ids in split(ragged)]
                counted += len(ragged.ids) if name != "input_ids" else 0
            assert ("attention_mask" in batch) == bool((batch["input_ids"] == 0).any())
            seen.extend(rows.tolist())
        assert counted == num_targets
    assert sorted(seen) == list(range(len(sentences)))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_ranks_together_see_the_global_batches(store, objective):
    whole = list(make(store, objective).iterate(0))
    parts = [list(make(store, objective, rank, 2).iterate(0)) for rank in range(2)]
    assert len(whole) > 2
    for index, (step, batches, num_targets) in enumerate(whole):
        for rank, part in enumerate(parts):
            assert (part[index][0], part[index][2], len(part[index][1])) == (step, num_targets, len(batches))
            for batch, own in zip(batches, part[index][1], strict=True):
                assert own.keys() == batch.keys()
                for name, values in batch.items():
                    if name.startswith("candidate"):
                        assert torch.equal(own[name], values)
                    elif rank < len(values):
                        assert torch.equal(own[name], values[rank::2])
                    else:
                        assert name in ("input_ids", "attention_mask") or (own[name] == -100).all()
                for name in ("labels", "previous_targets"):
                    if name in batch:
                        targets = batch[name][batch[name] != -100]
                        assert torch.isin(targets, batch["candidate_ids"]).all()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_resumed_iteration_is_identical(store, objective):
    whole = list(make(store, objective).iterate(4))
    for start in range(len(whole) + 1):
        resumed = list(make(store, objective).iterate(4, start))
        assert [item[0] for item in resumed] == [item[0] for item in whole[start:]]
        for (_, first, n), (_, second, m) in zip(whole[start:], resumed, strict=True):
            assert n == m
            for a, b in zip(first, second, strict=True):
                assert a.keys() == b.keys()
                assert all(torch.equal(a[name], b[name]) for name in a)


def test_sequential_has_every_context_once(store):
    batches = make(store, "neighbours", noisy=False)
    total, seen = 0, []
    for rows, batch in batches.sequential():
        seen.extend(rows.tolist())
        total += sum(int((batch[name] != -100).sum()) for name in ("labels", "previous_targets"))
    assert sorted(seen) == list(range(len(batches.sentences)))
    rows = np.arange(len(batches.sentences))
    sentences = batches.sentences
    assert total == sum(
        int(part.lengths.sum())
        for part in (sentences.targets(rows), sentences.further_targets(rows)["previous_targets"])
    )


def test_neighbours_to_compare_with(store, documents, tokenizer):
    """Each sentence that another one follows, both of two words or more, and that one."""
    sentences = NeighbouringSentences(store, min_tokens=2, max_tokens=LONGEST)
    expected = []
    for document in documents:
        lines = [line.split() for line in document]
        for line, following in itertools.pairwise(lines):
            if all(2 <= len(words) <= LONGEST for words in (line, following)):
                expected.append((line, following))
    rows = np.arange(len(sentences))
    for ragged, side in ((sentences.inputs(rows), 0), (sentences.neighbours(rows), 1)):
        ends = np.cumsum(ragged.lengths)
        found = [tokenizer.convert_ids_to_tokens(ids[:-1].tolist()) for ids in np.split(ragged.ids, ends[:-1])]
        assert found == [pair[side] for pair in expected]
    assert sentences.targets(rows).ids.tolist() == sentences.inputs(rows).ids.tolist()
    plan = BatchPlan(sentences.costs(), 60)
    whole = next(iter(MicroBatches(sentences, plan).iterate(0)))[1][0]
    halves = [next(iter(MicroBatches(sentences, plan, rank, 2).iterate(0)))[1][0] for rank in range(2)]
    for rank, half in enumerate(halves):
        assert torch.equal(half["neighbour_ids"], whole["neighbour_ids"][rank::2])
