"""Parallel corpora: lines of two corpora that translate each other, and the pairs of their token stores."""

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
        source, target: two corpora of as many files, each of as many lines, blank ones included.

    Attributes:
        source_side, target_side: the lines of the pairs, one corpus each, without any boundaries of documents; a line
            has the same place in both.
    """

    def __init__(self, source: Corpus, target: Corpus):
        self.source, self.target = source, target
        self.source_side, self.target_side = _Side(self, 0), _Side(self, 1)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """The pairs.

        Raises:
            ValueError: the corpora, or two of their files, are not of one length, or there is no pair.
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
                # Blank lines at the end are no sentences that lack a translation.
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
    """The sentences of two stores that translate each other: inputs are of the source, targets of the target.

    Args:
        source, target: stores of the two sides of a [`ParallelCorpus`]. A sentence that a filter took out of one is
            left out here.

    Attributes:
        indices, target_indices: int64, where the sentences of each pair are in their stores.

    Raises:
        ValueError: no pair is left, or the stores are not of such sides.
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
        """Lengths for a batch plan: both sides together, so that pairs of like length share a batch."""
        return super().costs() + self.target.lengths[self.target_indices]
