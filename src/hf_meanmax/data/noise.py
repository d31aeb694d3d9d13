"""Noise on the words of a text: drops words, drops a span of words, swaps neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .token_store import Ragged


@dataclass(frozen=True)
class Noise:
    """Drops a random span of words, the share `span_drop` of a text; then drops each word with probability `word_drop`
    and swaps each non-overlapping bigram with probability `word_swap` (SDAE; Hill, Cho and Korhonen, 2016).

    The bigrams are the words 0 and 1, 2 and 3, ... of the remaining text. The final `</s>` of a row is never touched,
    and a row that had a word keeps at least one.

    Raises:
        ValueError: a value outside [0, 1] (`word_drop` and `span_drop` must be below 1).
    """

    word_drop: float = 0.0
    word_swap: float = 0.0
    span_drop: float = 0.0

    def __post_init__(self) -> None:
        for name in ("word_drop", "span_drop"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 0 and below 1.")
        if not 0.0 <= self.word_swap <= 1.0:
            raise ValueError(f"word_swap is {self.word_swap}; it must lie between 0 and 1.")

    def __call__(self, rows: Ragged, rng: np.random.Generator) -> Ragged:
        """Returns noisy copies of `rows`; each row ends in `</s>`."""
        if self.span_drop:
            rows = _drop_span(rows, self.span_drop, rng)
        if self.word_drop:
            rows = _drop(rows, self.word_drop, rng)
        if self.word_swap:
            rows = _swap(rows, self.word_swap, rng)
        return rows


def _drop_span(rows: Ragged, share: float, rng: np.random.Generator) -> Ragged:
    ids, lengths = rows
    words = lengths - 1
    # Rounded down, so at least one word is left.
    dropped = (share * words).astype(np.int64)
    begins = (rng.random(len(lengths)) * (words - dropped + 1)).astype(np.int64)
    begins_of, dropped_of = np.repeat(begins, lengths), np.repeat(dropped, lengths)
    places = rows.places
    keep = (places < begins_of) | (places >= begins_of + dropped_of)
    return Ragged(ids[keep], lengths - dropped)


def _drop(rows: Ragged, probability: float, rng: np.random.Generator) -> Ragged:
    (ids, lengths), starts = rows, rows.starts
    keep = rng.random(len(ids)) >= probability
    keep[starts + lengths - 1] = True
    # One random word of each row survives if the draws would empty the row.
    spared = starts + (rng.random(len(lengths)) * (lengths - 1)).astype(np.int64)
    emptied = np.add.reduceat(keep, starts, dtype=np.int64) == 1
    keep[spared[emptied]] = True
    return Ragged(ids[keep], np.add.reduceat(keep, starts, dtype=np.int64))


def _swap(rows: Ragged, probability: float, rng: np.random.Generator) -> Ragged:
    ids, lengths = rows
    pairs = (lengths - 1) // 2
    pair_starts = np.cumsum(pairs) - pairs
    first = 2 * (np.arange(pairs.sum()) - np.repeat(pair_starts, pairs)) + np.repeat(rows.starts, pairs)
    first = first[rng.random(len(first)) < probability]
    ids = ids.copy()
    ids[first], ids[first + 1] = ids[first + 1], ids[first]
    return Ragged(ids, lengths)
