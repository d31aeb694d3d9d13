"""Parallel corpora: aligned lines of two corpora, and the pairs of sentences of their token stores."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

import numpy as np

from .batches import Sentences
from .corpus import Corpus
from .token_store import Ragged, TokenStore


class ParallelCorpus:
    """Pairs of lines: line i of the source and line i of the target. A pair with a blank side is left out.

    Args:
        source, target: two corpora with the same number of files and, in each, of lines, blank lines included.

    Attributes:
        source_side, target_side: corpora of the two sides of the pairs, without document boundaries; line i of one
            is the translation of line i of the other.
    """

    def __init__(self, source: Corpus, target: Corpus):
        self.source, self.target = source, target
        self.source_side, self.target_side = _Side(self, 0), _Side(self, 1)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yields the pairs.

        Raises:
            ValueError: the corpora, or two of their files, have different lengths, or there is no pair.
        """
        sides = [self.source.parts, self.target.parts]
        if len(sides[0]) != len(sides[1]):
            raise ValueError(
                f"The source has {len(sides[0])} files, the target {len(sides[1])}: file by file each must be the "
                "translation of the other."
            )
        found, done = False, 0
        for number, parts in enumerate(zip(*sides, strict=True), start=1):
            for lines, (source, target) in enumerate(zip_longest(*parts)):
                # One side may have more blank lines at the end.
                if (source is None and target) or (target is None and source):
                    names = [
                        f"{side} ({part.source or f'file {number}'})"
                        for side, part in zip(("source", "target"), parts, strict=True)
                    ]
                    shorter, longer = names if source is None else names[::-1]
                    raise ValueError(
                        f"The {shorter} ends after {lines:,} lines, the {longer} goes on: line by line each must "
                        "be the translation of the other."
                    )
                if source and target:
                    found = True
                    self.source.position = done + parts[0].position
                    yield source, target
            done += parts[0].position
        if not found:
            raise ValueError("The parallel corpus is empty: there is no line with its translation.")


class _Side(Corpus):
    """One side of a parallel corpus."""

    def __init__(self, pairs: ParallelCorpus, side: int):
        self.pairs, self.side = pairs, side
        self.unit, self.size = pairs.source.unit, pairs.source.size

    def __iter__(self) -> Iterator[str]:
        for pair in self.pairs:
            self.position = self.pairs.source.position
            yield pair[self.side]

    def identity(self) -> object:
        return ["side", self.side, self.pairs.source.identity(), self.pairs.target.identity()]


class PairedSentences(Sentences):
    """Translation pairs of two token stores: inputs from the source, targets from the target.

    Args:
        source, target: stores of the two sides of a [`ParallelCorpus`]. A pair is left out if a filter dropped either
            sentence.

    Attributes:
        indices, target_indices: int64, indices of each pair's sentences in their stores.

    Raises:
        ValueError: no pair is left, or a store has several documents.
    """

    def __init__(self, source: TokenStore, target: TokenStore):
        if len(source.document_starts) > 1 or len(target.document_starts) > 1:
            raise ValueError("Pairs are made from the stores of a parallel corpus' sides, which have no documents.")
        _, indices, self.target_indices = np.intersect1d(
            source.positions, target.positions, assume_unique=True, return_indices=True
        )
        super().__init__(source, indices)
        self.target = target
        if not len(indices):
            raise ValueError(
                f"No pair of sentences is left (source: {source.report}; target: {target.report}): widen the limits."
            )

    def targets(self, rows: np.ndarray) -> Ragged:
        """The translations."""
        return self.target.rows(self.target_indices[rows])

    def costs(self) -> np.ndarray:
        """Lengths for a batch plan: the sum of both sides, so that pairs of similar length share a batch."""
        return super().costs() + self.target.lengths[self.target_indices]
