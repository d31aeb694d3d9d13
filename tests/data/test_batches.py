"""Batch plans against a plain reference, and micro batches against the sentences that they hold."""

from __future__ import annotations

import random
import threading
from itertools import islice

import numpy as np
import pytest
import torch

from hf_meanmax.data import BatchPlan, CandidateSampler, MicroBatches, Noise, build_token_store, open_corpus
from hf_meanmax.data.batches import prefetch


def naive_groups(lengths, budget):
    """Sorted sentences into groups, one sentence at a time."""
    groups, group = [], []
    for length in sorted(lengths):
        if group and (len(group) + 1) * length > budget:
            groups.append(group)
            group = []
        group.append(length)
    return [*groups, group]


@pytest.mark.parametrize("budget", [1, 7, 10, 64, 333, 100_000])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.filterwarnings("ignore:.*longer than the budget")
def test_plan_equals_naive_grouping(budget, steps):
    rng = random.Random(budget)
    lengths = [rng.choice([1, 2, 3, 5, 8, 13, 40]) for _ in range(500)]
    plan = BatchPlan(np.array(lengths), budget, steps, seed=3)
    epoch = plan.epoch(2)
    micro = [rows for step in range(len(epoch)) for rows in epoch.rows(step)]
    assert sorted(np.concatenate(micro).tolist()) == list(range(500)), "every sentence once"
    found = sorted([lengths[i] for i in rows] for rows in micro)
    assert found == sorted(naive_groups(lengths, budget))
    assert plan.num_micro_batches == len(micro)
    assert plan.num_steps == len(epoch) == -(-len(micro) // steps)
    assert all(len(epoch.rows(step)) == steps for step in range(len(epoch) - 1))
    assert 1 <= len(epoch.rows(len(epoch) - 1)) <= steps
    places = sum(len(group) * max(group) for group in found)
    assert plan.padding_rate == pytest.approx(1 - sum(lengths) / places)


def test_plan_is_a_function_of_seed_and_epoch():
    lengths = np.arange(1000) % 30 + 1

    def order(seed, epoch):
        return BatchPlan(lengths, 200, 2, seed).epoch(epoch).order.tolist()

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)


def test_sentence_beyond_the_budget_is_a_micro_batch_of_its_own():
    with pytest.warns(UserWarning, match=r"2 sentences are longer than the budget of 10 tokens \(the longest: 70000\)"):
        plan = BatchPlan(np.array([3, 70_000, 4, 11]), 10)
    assert sorted(rows.tolist() for rows in plan.sequential()) == [[0, 2], [1], [3]]


@pytest.mark.parametrize(
    ("lengths", "budget", "steps", "message"),
    [
        ([], 8, 1, "at least one sentence"),
        ([0], 8, 1, "one token"),
        ([1], 0, 1, "batch_tokens is 0"),
        ([1], 8, 0, "steps 0"),
    ],
)
def test_bad_plans(lengths, budget, steps, message):
    with pytest.raises(ValueError, match=message):
        BatchPlan(np.array(lengths), budget, steps)


def test_step_outside_the_epoch():
    with pytest.raises(IndexError, match="step is 4"):
        BatchPlan(np.ones(4), 1).epoch(0).rows(4)


@pytest.mark.parametrize("budget", [20, 64, 2000])
def test_micro_batches_hold_their_sentences(store, budget):
    plan = BatchPlan(store.lengths, budget, 2)
    epoch = plan.epoch(1)
    total = 0
    for step, batches, num_targets in MicroBatches(store, plan).iterate(1):
        assert sum(int((batch["labels"] != -100).sum()) for batch in batches) == num_targets
        total += num_targets
        for rows, batch in zip(epoch.rows(step), batches, strict=True):
            sentences = [store[i].tolist() for i in rows]
            width = max(map(len, sentences))
            assert batch["input_ids"].tolist() == [s + [0] * (width - len(s)) for s in sentences]
            assert batch["labels"].tolist() == [s + [-100] * (width - len(s)) for s in sentences]
            assert {tensor.dtype for tensor in batch.values()} == {torch.int64}
            if len(set(map(len, sentences))) == 1:
                assert "attention_mask" not in batch
            else:
                assert batch["attention_mask"].tolist() == [[1] * len(s) + [0] * (width - len(s)) for s in sentences]
    assert total == store.report.tokens


def make(store, rank=0, world_size=1, budget=48):
    sampler = CandidateSampler(store.token_counts, num_negatives=2, seed=5)
    plan = BatchPlan(store.lengths, budget, 3, seed=5)
    return MicroBatches(store, plan, rank, world_size, Noise(0.3, 0.3), sampler)


def assert_same(first, second):
    assert first[0] == second[0]
    assert first[2] == second[2]
    assert len(first[1]) == len(second[1])
    for a, b in zip(first[1], second[1], strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)


def test_resumed_iteration_is_identical(store):
    whole = list(make(store).iterate(4))
    assert len(whole) == 3
    for start in range(len(whole) + 1):
        resumed = list(make(store).iterate(4, start))
        assert len(resumed) == len(whole) - start
        for first, second in zip(whole[start:], resumed, strict=True):
            assert_same(first, second)
    with pytest.raises(ValueError, match="start_step"):
        make(store).iterate(4, len(whole) + 1)


def test_noise_changes_inputs_only(store):
    plan = BatchPlan(store.lengths, 48, 3, seed=5)
    clean = list(MicroBatches(store, plan).iterate(0))
    noisy = list(MicroBatches(store, plan, noise=Noise(0.3, 0.3)).iterate(0))
    changed = 0
    for (_, first, n), (_, second, m) in zip(clean, noisy, strict=True):
        assert n == m
        for a, b in zip(first, second, strict=True):
            assert torch.equal(a["labels"], b["labels"])
            changed += a["input_ids"].shape != b["input_ids"].shape or not torch.equal(a["input_ids"], b["input_ids"])
            assert ("attention_mask" in b) == bool((b["input_ids"] == 0).any())
    assert changed > 5
    again = list(MicroBatches(store, plan, noise=Noise(0.3, 0.3)).iterate(1))
    assert not torch.equal(again[0][1][0]["input_ids"], noisy[0][1][0]["input_ids"])


def test_noise_is_of_the_view_where_there_is_one(store):
    plan = BatchPlan(store.lengths, 48, 3, seed=5)
    clean = MicroBatches(store, plan).iterate(0)
    changed = 0
    for (_, first, _), (_, second, _) in zip(
        clean, MicroBatches(store, plan, noise=Noise(0.5), makes_views=True).iterate(0), strict=True
    ):
        for a, b in zip(first, second, strict=True):
            assert torch.equal(a["input_ids"], b["input_ids"])
            assert torch.equal(a["labels"], b["labels"])
            changed += b["view_ids"].shape != b["input_ids"].shape
    assert changed > 5


@pytest.mark.parametrize("world_size", [2, 3, 7])
@pytest.mark.parametrize("budget", [12, 48])
def test_ranks_together_see_the_global_batches(store, world_size, budget):
    whole = list(make(store, budget=budget).iterate(0))
    parts = [list(make(store, rank, world_size, budget).iterate(0)) for rank in range(world_size)]
    idle = 0
    for index, (step, batches, num_targets) in enumerate(whole):
        ranks = [part[index] for part in parts]
        assert all((rank[0], rank[2], len(rank[1])) == (step, num_targets, len(batches)) for rank in ranks)
        for micro, batch in enumerate(batches):
            own = [rank[1][micro] for rank in ranks]
            rows = len(batch["input_ids"])
            for rank, part in enumerate(own):
                assert part.keys() == batch.keys()
                for name in ("candidate_ids", "candidate_log_prob"):
                    assert torch.equal(part[name], batch[name])
                if rank >= rows:
                    idle += 1
                    assert len(part["labels"]) == 1
                    assert (part["labels"] == -100).all()
                    continue
                for name in part.keys() - {"candidate_ids", "candidate_log_prob"}:
                    assert torch.equal(part[name], batch[name][rank::world_size])
            assert sum(int((part["labels"] != -100).sum()) for part in own) == int((batch["labels"] != -100).sum())
    assert idle > 0 or budget > 12


def test_candidates_hold_the_targets_of_all_ranks(store):
    plan = BatchPlan(store.lengths, 48, 3, seed=5)
    plain = MicroBatches(store, plan).iterate(0)
    sampler = CandidateSampler(store.token_counts, 2, seed=5)
    sampled = MicroBatches(store, plan, rank=1, world_size=2, candidates=sampler).iterate(0)
    for (_, first, _), (_, second, _) in zip(plain, sampled, strict=True):
        for whole, part in zip(first, second, strict=True):
            assert torch.isin(whole["labels"][whole["labels"] != -100], part["candidate_ids"]).all()
            assert part["candidate_ids"].dtype == torch.int64
            assert part["candidate_log_prob"].dtype == torch.float32
            assert part["candidate_log_prob"].shape == part["candidate_ids"].shape == (256,)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_sequential_restores_the_order(store, world_size):
    plan = BatchPlan(store.lengths, 30)
    parts = [MicroBatches(store, plan, rank, world_size, noise=Noise(0.5)).sequential() for rank in range(world_size)]
    found = {}
    longest = 0
    for batches in zip(*parts, strict=True):
        for rows, batch in batches:
            assert batch["input_ids"].shape[1] >= longest
            if not len(rows):
                assert (batch["labels"] == -100).all()
            for row, ids, labels in zip(rows.tolist(), batch["input_ids"], batch["labels"], strict=False):
                found[row] = ids[: store.lengths[row]].tolist()
                assert labels[labels != -100].tolist() == found[row]
        longest = batches[0][1]["input_ids"].shape[1]
    assert [found[row] for row in range(len(store))] == [store[i].tolist() for i in range(len(store))]


def test_wrong_plan_or_rank(store):
    with pytest.raises(ValueError, match="plan covers 3 sentences, there are 60"):
        MicroBatches(store, BatchPlan(np.ones(3), 8))
    with pytest.raises(ValueError, match="rank is 2"):
        MicroBatches(store, BatchPlan(store.lengths, 64), rank=2, world_size=2)


def batch_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("batch maker")]


def test_closing_the_iterator_ends_the_thread():
    items = prefetch(lambda: iter(range(1000)), depth=2)
    assert not batch_threads(), "nothing runs before the first item is asked for"
    assert next(items) == 0
    assert len(batch_threads()) == 1
    items.close()
    assert not batch_threads()


def test_exceptions_of_the_thread_are_raised_here():
    def broken():
        yield 1
        raise OSError("disk gone")

    items = prefetch(broken, depth=2)
    assert next(items) == 1
    with pytest.raises(OSError, match="disk gone"):
        next(items)
    assert not batch_threads()


def test_prefetch_keeps_order_and_depth():
    made = []

    def numbers():
        for number in range(50):
            made.append(number)
            yield number

    items = prefetch(numbers, depth=3)
    for expected in range(50):
        assert next(items) == expected
        assert len(made) <= expected + 1 + 3 + 1, "at most the queue and the item in hand ahead"
    assert list(items) == []


def test_books_have_hardly_any_padding(data_root, tmp_path, tokenizer):
    corpus = open_corpus(data_root / "corpora" / "books-en" / "train-00001-of-00009.txt.xz")
    # Lengths in blank-separated words are enough here; the whole corpus is measured by benchmarks/batch_maker.py.
    lengths = np.array([len(line.split()) + 1 for line in islice(filter(None, corpus), 100_000)])
    assert BatchPlan(lengths, 16_384).padding_rate < 0.05
    paper = lengths[(lengths >= 5) & (lengths <= 33)]
    assert BatchPlan(paper, 16_384).padding_rate < 0.02


def test_books_validation_file_is_stored_whole(data_root, tmp_path, tokenizer):
    corpus = open_corpus(data_root / "corpora" / "books-en" / "validation.txt.xz")
    store = build_token_store(corpus, tokenizer, tmp_path / "s", show_progress=False)
    assert (store.report.documents, store.report.lines, len(store)) == (7, 21_458, 21_458)
    rows = sorted(np.concatenate(list(BatchPlan(store.lengths, 16_384).sequential())).tolist())
    assert rows == list(range(21_458))
