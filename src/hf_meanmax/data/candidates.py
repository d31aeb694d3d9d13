"""Candidate words for sampled softmax: the targets of a micro batch and shared negatives."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .random_streams import CANDIDATES, stream

ROUND_TO = 256
_LARGE, _ROUNDS = 2**16, 20


class Candidates(NamedTuple):
    """Candidate ids in ascending order, int64 (C,), and the float32 log probabilities (C,) that they were drawn; 0 for
    targets, which are always candidates."""

    ids: np.ndarray
    log_prob: np.ndarray


class CandidateSampler:
    """Draws the candidates of each micro batch as a function of (seed, epoch, step, micro) and its targets.

    The candidates are the distinct targets and the distinct words of K draws with replacement from q ~ counts^0.75. K
    is `num_negatives` plus the draws needed to bring the number of candidates to a multiple of 256 (or to the whole
    vocabulary), so that few different sizes occur. A word that was never seen counts as seen once, so that it serves as
    a negative, too.

    Word j is drawn with probability 1 - (1 - q_j)^K and is weighted by its inverse; targets have weight 1. So, for any
    targets, the sum over the candidates is an unbiased estimate of the sum over the vocabulary. (If the weight were the
    inverse probability that a word is drawn *or is some target*, a rare target would outweigh all other words at its
    own position, and hardly be learnt.)

    Args:
        token_counts: int (V,), frequencies of the ids (`TokenStore.token_counts`).
        num_negatives: minimum number of draws for each micro batch.
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
        num_draws = self.num_negatives + self._fill(chosen, rng)
        ids = np.flatnonzero(chosen)
        if len(ids) == self.vocab_size:
            num_draws = np.inf
        log_prob = self.log_prob(ids, num_draws)
        log_prob[np.searchsorted(ids, targets)] = 0.0
        return Candidates(ids, log_prob)

    def log_prob(self, ids: np.ndarray, num_draws: float) -> np.ndarray:
        """float32 log probability of each id to be among `num_draws` draws."""
        return np.log(-np.expm1(num_draws * self._log_not_negative[ids])).astype(np.float32)

    def _draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        drawn = np.searchsorted(self._cumulative, rng.random(size) * self._cumulative[-1], side="right")
        return np.minimum(drawn, self.vocab_size - 1)

    def _fill(self, chosen: np.ndarray, rng: np.random.Generator) -> float:
        """Chooses more words up to a multiple of 256 or to all of them; returns how many draws that took.

        Sequential draws are a race: word j is first drawn after about Exponential / q_j draws. So the words with the
        smallest times are those that further draws would add.
        """
        count = int(np.count_nonzero(chosen))
        missing = min(math.ceil(count / ROUND_TO) * ROUND_TO, self.vocab_size) - count
        num_draws = 0
        # In a large vocabulary most draws are new words, so drawing is faster than a race among millions.
        rounds = _ROUNDS if self.vocab_size > _LARGE else 0
        while missing and rounds:
            rounds -= 1
            drawn = self._draw(rng, 2 * missing)
            is_first = np.zeros(len(drawn), dtype=bool)
            is_first[np.unique(drawn, return_index=True)[1]] = True
            new = np.flatnonzero(is_first & ~chosen[drawn])[:missing]
            chosen[drawn[new]] = True
            missing -= len(new)
            num_draws += len(drawn) if missing else int(new[-1]) + 1
        if not missing:
            return float(num_draws)
        others = np.flatnonzero(~chosen)
        times = rng.standard_exponential(len(others)) / self.negative_probs[others]
        first = np.argpartition(times, missing - 1)[:missing]
        chosen[others[first]] = True
        return num_draws + float(times[first[-1]])
