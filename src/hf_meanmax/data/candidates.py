"""Candidate words for sampled softmax: the targets of a micro batch and shared negatives."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .random_streams import CANDIDATES, stream

ROUND_TO = 256


class Candidates(NamedTuple):
    """Candidate ids in ascending order (C,), float32 log inclusion probabilities (C,), and the place of each id among
    them.

    `places` has the length of the vocabulary; it is -1 for ids that are no candidates.
    """

    ids: np.ndarray
    log_prob: np.ndarray
    places: np.ndarray


class CandidateSampler:
    """Draws the candidates of each micro batch as a function of (seed, epoch, step, micro) and its targets.

    The candidates are the distinct targets and `num_negatives` draws with replacement from q ~ counts^0.75, filled up
    by further distinct draws to a multiple of 256 (or to the whole vocabulary), so that few different sizes occur. A
    word never seen counts as seen once: it must be pushed down like every other.

    The log inclusion probability of word j is log(1 - (1 - q_j)^K (1 - p_j)^T) with p the word frequencies, T the
    number of targets and K the number of negatives; the fill-up is left out.

    Args:
        token_counts: int (V,), frequencies of the ids, as `TokenStore.token_counts`.
        num_negatives: K, draws for each micro batch.
        seed: seed of the run.

    Raises:
        ValueError: `num_negatives` below 1, or counts that are empty or negative.
    """

    def __init__(self, token_counts: np.ndarray, num_negatives: int, seed: int = 0):
        if num_negatives < 1:
            raise ValueError(f"num_negatives is {num_negatives}; it must be at least 1.")
        counts = np.maximum(np.asarray(token_counts, dtype=np.float64), 1.0)
        if counts.ndim != 1 or not len(counts) or np.min(token_counts) < 0:
            raise ValueError(
                "token_counts must be one row of counts of at least 0, one for each word of the vocabulary."
            )
        self.num_negatives = num_negatives
        self.seed = seed
        self.negative_probs = counts**0.75 / (counts**0.75).sum()
        self._cumulative = np.cumsum(self.negative_probs)
        self._log_not_target = np.log1p(-np.minimum(counts / counts.sum(), 1 - 1e-12))
        self._log_not_negative = np.log1p(-np.minimum(self.negative_probs, 1 - 1e-12))

    @property
    def vocab_size(self) -> int:
        return len(self.negative_probs)

    def sample(self, targets: np.ndarray, epoch: int, step: int, micro: int) -> Candidates:
        """The candidates of one micro batch; `targets` are the ids of all its target tokens, over all processes."""
        rng = stream(self.seed, CANDIDATES, epoch, step, micro)
        chosen = np.zeros(self.vocab_size, dtype=bool)
        chosen[targets] = True
        chosen[self._draw(rng, self.num_negatives)] = True
        self._fill(chosen, rng)
        ids = np.flatnonzero(chosen)
        places = np.full(self.vocab_size, -1, dtype=np.int64)
        places[ids] = np.arange(len(ids))
        return Candidates(ids, self.log_inclusion_prob(ids, len(targets)), places)

    def log_inclusion_prob(self, ids: np.ndarray, num_targets: int) -> np.ndarray:
        """float32 log probability that each id is a candidate of a micro batch of `num_targets` targets."""
        log_absent = self.num_negatives * self._log_not_negative[ids] + num_targets * self._log_not_target[ids]
        return np.log(-np.expm1(log_absent)).astype(np.float32)

    def _draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        drawn = np.searchsorted(self._cumulative, rng.random(size) * self._cumulative[-1], side="right")
        return np.minimum(drawn, self.vocab_size - 1)

    def _fill(self, chosen: np.ndarray, rng: np.random.Generator) -> None:
        """Add distinct draws until the number chosen is a multiple of 256, or all of the vocabulary."""
        count = int(np.count_nonzero(chosen))
        missing = min(math.ceil(count / ROUND_TO) * ROUND_TO, self.vocab_size) - count
        # Draws with replacement are fast while most of them are new; exponential keys give the rest in one go.
        for _ in range(4):
            if not missing:
                return
            drawn = self._draw(rng, 2 * missing)
            drawn = drawn[~chosen[drawn]]
            _, first = np.unique(drawn, return_index=True)
            drawn = drawn[np.sort(first)][:missing]
            chosen[drawn] = True
            missing -= len(drawn)
        if missing:
            others = np.flatnonzero(~chosen)
            keys = rng.exponential(size=len(others)) / self.negative_probs[others]
            chosen[others[np.argpartition(keys, missing - 1)[:missing]]] = True
