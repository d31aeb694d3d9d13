"""Candidates of sampled softmax: definitions, and inclusion probabilities by simulation."""

from __future__ import annotations

import numpy as np
import pytest

from hf_meanmax.data import CandidateSampler

COUNTS = np.round(1e5 / np.arange(1, 2001)).astype(np.int64)


def targets(number, seed=0):
    return np.random.default_rng(seed).choice(len(COUNTS), size=number, p=COUNTS / COUNTS.sum())


@pytest.mark.parametrize("num_negatives", [1, 200, 1000])
def test_candidates_are_targets_and_distinct_negatives(num_negatives):
    sampler = CandidateSampler(COUNTS, num_negatives)
    chosen = targets(500)
    ids, log_prob = sampler.sample(chosen, 0, 0, 0)
    assert (np.diff(ids) > 0).all()
    assert np.isin(chosen, ids).all()
    assert len(ids) % 256 == 0
    assert len(ids) < len(np.unique(chosen)) + num_negatives + 256
    q = COUNTS**0.75 / (COUNTS**0.75).sum()
    assert log_prob.dtype == np.float32
    is_target = np.isin(ids, chosen)
    assert (log_prob[is_target] == 0).all()
    # The draws of the fill-up come on top, so the formula at `num_negatives` is a lower bound.
    assert (log_prob >= np.log(1 - (1 - q[ids]) ** num_negatives) - 1e-5).all()
    assert is_target.all() or (log_prob[~is_target] < 0).all()
    np.testing.assert_allclose(sampler.log_prob(ids, 1234.5), np.log(1 - (1 - q[ids]) ** 1234.5), rtol=1e-5, atol=1e-6)


def test_samples_are_a_function_of_their_place():
    sampler, chosen = CandidateSampler(COUNTS, 300, seed=1), targets(100)
    ids = sampler.sample(chosen, 1, 2, 3).ids
    assert np.array_equal(ids, CandidateSampler(COUNTS, 300, seed=1).sample(chosen, 1, 2, 3).ids)
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4)):
        assert not np.array_equal(ids, sampler.sample(chosen, *other).ids)
    assert not np.array_equal(ids, CandidateSampler(COUNTS, 300, seed=2).sample(chosen, 1, 2, 3).ids)


def test_probability_of_a_draw_by_simulation(monkeypatch):
    monkeypatch.setattr("hf_meanmax.data.candidates.ROUND_TO", 1)  # the number of draws is then fixed
    sampler, repeats = CandidateSampler(COUNTS, 400), 2000
    included = np.zeros(len(COUNTS))
    for step in range(repeats):
        included[sampler.sample(np.array([0]), 0, step, 0).ids] += 1
    expected = np.exp(sampler.log_prob(np.arange(len(COUNTS)), 400).astype(np.float64))
    deviation = np.sqrt(expected * (1 - expected) / repeats) + 1e-9
    scores = ((included / repeats - expected) / deviation)[1:]
    assert np.abs(scores).max() < 5
    assert abs(scores.mean()) < 0.15


@pytest.mark.parametrize("is_large", [False, True])
def test_filling_up_takes_as_many_draws_as_it_would(monkeypatch, is_large):
    """The race and the draws themselves have one distribution: of the number of draws, and of who is added."""
    monkeypatch.setattr("hf_meanmax.data.candidates._LARGE", 0 if is_large else 10**9)
    sampler, numbers, added = CandidateSampler(COUNTS, 400), [], np.zeros(len(COUNTS))
    before = np.zeros(len(COUNTS), dtype=bool)
    before[:100] = True
    for seed in range(2000):
        chosen = before.copy()
        numbers.append(sampler._fill(chosen, np.random.default_rng(seed)))
        assert chosen.sum() == 256
        added += chosen
    draws, expected, q = [], np.zeros(len(COUNTS)), sampler.negative_probs
    for seed in range(2000):
        order = np.random.default_rng(10**6 + seed).choice(len(q), 3000, p=q)
        _, firsts = np.unique(order, return_index=True)
        new = np.sort(firsts[order[firsts] >= 100])[:156]
        draws.append(new[-1] + 1)
        expected[order[new]] += 1
    error = (np.var(draws) / 2000 + np.var(numbers) / 2000) ** 0.5
    assert abs(np.mean(draws) - np.mean(numbers)) < 4 * error
    assert np.abs(added[100:] - expected[100:]).max() < 6 * np.sqrt(expected[100:].max())


@pytest.mark.parametrize("num_negatives", [100, 800])
@pytest.mark.parametrize("is_large", [False, True])
def test_corrected_partition_function_is_unbiased(monkeypatch, num_negatives, is_large):
    """Whatever the targets are: rare ones count no more than others."""
    monkeypatch.setattr("hf_meanmax.data.candidates._LARGE", 0 if is_large else 10**9)
    logits = np.random.default_rng(0).normal(size=len(COUNTS))
    sampler = CandidateSampler(COUNTS, num_negatives)
    estimates, rare = [], np.arange(1900, 2000)
    for step in range(600):
        ids, log_prob = sampler.sample(rare, 0, step, 0)
        estimates.append(np.exp(logits[ids] - log_prob).sum())
    assert np.mean(estimates) == pytest.approx(np.exp(logits).sum(), rel=0.03)


@pytest.mark.parametrize(
    "counts",
    [np.ones(50), np.array([10**12] + [0] * 999), np.zeros(300), np.array([10**12] + [0] * 99_999)],
    ids=["tiny", "skew", "zero", "large"],
)
def test_small_and_skewed_vocabularies(counts):
    ids, log_prob = CandidateSampler(counts, 10_000).sample(np.array([0, 0, 3]), 0, 0, 0)
    assert len(ids) == min(len(counts), -(-len(ids) // 256) * 256)
    assert np.isfinite(log_prob).all()
    assert (log_prob <= 0).all()


def test_words_never_seen_are_drawn_too():
    sampler = CandidateSampler(np.array([100] * 300 + [0] * 300), 300)
    drawn = np.zeros(600)
    for step in range(50):
        drawn[sampler.sample(np.array([0]), 0, step, 0).ids] += 1
    assert (drawn[300:] > 0).mean() > 0.5


def test_bad_arguments():
    with pytest.raises(ValueError, match="num_negatives is 0"):
        CandidateSampler(COUNTS, 0)
    with pytest.raises(ValueError, match="token_counts"):
        CandidateSampler(np.array([1, -1]), 10)
    with pytest.raises(ValueError, match="token_counts"):
        CandidateSampler(np.array([]), 10)
