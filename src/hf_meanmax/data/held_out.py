"""Splits a corpus into a training part and a held-out part."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from .corpus import Corpus

BLOCK_LINES = 20


class HeldOut(Corpus):
    """One side of a corpus that is split into blocks of neighbouring lines: every `every`-th block is held out.

    A block is a document, or 20 lines of a longer document.
    """

    def __init__(self, corpus: Corpus, every: int, held_out: bool):
        self.corpus = corpus
        self.every = every
        self.held_out = held_out
        self.unit = corpus.unit
        self.size = corpus.size

    def __iter__(self) -> Iterator[str]:
        block, lines, is_after_gap = 0, 0, False
        for line in self.corpus:
            self.position = self.corpus.position
            # Several blank lines in a row end only one block.
            if lines and (not line or lines == BLOCK_LINES):
                block, lines = block + 1, 0
            if not line:
                yield line
                is_after_gap = False
                continue
            lines += 1
            if (block % self.every == self.every // 2) != self.held_out:
                is_after_gap = True
                continue
            if is_after_gap:
                # Lines before and after a skipped block are not consecutive text.
                yield ""
                is_after_gap = False
            yield line

    def identity(self) -> object:
        return ["held out, apart", self.every, self.held_out, self.corpus.identity()]


def share_to_hold_out(corpus: Corpus) -> int:
    """Chooses n for "every n-th block is held out": smaller for a small corpus, so that enough is held out."""
    for every, least in ((100, 100), (10, 20)):
        if sum(1 for _ in islice(filter(None, HeldOut(corpus, every, held_out=True)), least)) == least:
            return every
    return 2


def first_documents(corpus: Corpus, number: int) -> list[list[str]]:
    """The first `number` lines of a corpus, document by document."""
    documents: list[list[str]] = [[]]
    for line in corpus:
        if line:
            documents[-1].append(line)
            number -= 1
        elif documents[-1]:
            documents.append([])
        if not number:
            break
    return [document for document in documents if document]
