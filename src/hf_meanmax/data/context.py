"""Sentences with their context as target, looked up in the token store when needed."""

from __future__ import annotations

import numpy as np

from hf_meanmax.fields import check_choice

from .batches import Sentences
from .token_store import Ragged, TokenStore

CONTEXTS = ("next_words", "next_sentence", "neighbours")


class ContextSentences(Sentences):
    """The sentences of a store that have a context, with this context as their target.

    A context ends with its document, and where the store's filter dropped a sentence. A neighbouring sentence is cut to
    its first `max_tokens` tokens as a target.

    Args:
        store: the token store, best built without limits of length, since a dropped sentence interrupts contexts.
        objective: `"next_words"`, `"next_sentence"`, or `"neighbours"` (the previous and the next sentence).
        min_tokens, max_tokens: limits of length of the encoded sentences, without `</s>`; others are only context.
        num_words: number of words of `"next_words"`.

    Attributes:
        indices: int64, indices of the encoded sentences in the store, ascending.
        lengths: tokens of each encoded sentence, `</s>` included.
        other_lengths: number of sentences of the store outside the limits of length.

    Raises:
        ValueError: an unknown objective, `num_words` below 1, or no sentence with a context.
    """

    def __init__(
        self,
        store: TokenStore,
        objective: str = "next_words",
        min_tokens: int = 1,
        max_tokens: int | None = None,
        num_words: int = 30,
    ):
        check_choice("objective", objective, CONTEXTS)
        if num_words < 1:
            raise ValueError(f"num_words is {num_words}; it must be at least 1.")
        self.objective = objective
        self.num_words = num_words
        self.max_tokens = max_tokens
        positions = np.asarray(store.positions)
        starts = np.ones(len(store) + 1, dtype=bool)
        starts[1:-1] = np.diff(positions) != 1
        starts[store.document_starts] = True
        # The end of each run of consecutive sentences; the last run ends with the store.
        self._ends = np.flatnonzero(starts)[1:]
        has_context = ~starts[1:]
        if objective == "neighbours":
            has_context &= ~starts[:-1]
        words = store.lengths - 1
        fits = (words >= min_tokens) & (words <= (np.inf if max_tokens is None else max_tokens))
        super().__init__(store, np.flatnonzero(has_context & fits))
        self.other_lengths = int((~fits).sum())
        if not len(self):
            raise ValueError(
                f"No sentence of {min_tokens} to {max_tokens or 'any number of'} tokens has a neighbour (of "
                f"{len(store):,} sentences in {len(store.document_starts):,} documents). A blank line ends a document: "
                "give texts of several lines."
            )
        self.lengths = super().costs()

    def targets(self, rows: np.ndarray) -> Ragged:
        """The text after each sentence: the next sentence, or the next `num_words` words without `</s>`."""
        after = self.in_store(rows) + 1
        if self.objective != "next_words":
            return self._neighbours(after)
        begins = self.store.offsets[after]
        ends = self.store.offsets[self._ends[np.searchsorted(self._ends, after, side="right")]]
        # Every sentence has a word before its end token, so twice as many tokens hold all the words.
        places = begins[:, None] + np.arange(2 * self.num_words)
        is_inside = places < ends[:, None]
        tokens = np.asarray(self.store.tokens[np.where(is_inside, places, begins[:, None])], dtype=np.int64)
        is_word = is_inside & (tokens != self.store.eos_token_id)
        is_word &= np.cumsum(is_word, axis=1) <= self.num_words
        return Ragged(tokens[is_word], is_word.sum(axis=1))

    def further_targets(self, rows: np.ndarray) -> dict[str, Ragged]:
        """With `"neighbours"` the sentence before each, as `previous_targets`."""
        return {"previous_targets": self._neighbours(self.in_store(rows) - 1)} if self.objective == "neighbours" else {}

    def _neighbours(self, indices: np.ndarray) -> Ragged:
        rows = self.store.rows(indices)
        if self.max_tokens is None or rows.lengths.max(initial=0) <= self.max_tokens + 1:
            return rows
        # A sentence that is cut has no `</s>`.
        kept = np.where(rows.lengths <= self.max_tokens + 1, rows.lengths, self.max_tokens)
        return Ragged(rows.ids[rows.places < np.repeat(kept, rows.lengths)], kept)

    def costs(self) -> np.ndarray:
        """Lengths for a batch plan: those of the sentences plus a constant for the target, its maximum or mean length,
        so that sentences of the same length stay together."""
        target = self.num_words
        if self.objective != "next_words":
            target = round(float(self.store.lengths.mean())) * (2 if self.objective == "neighbours" else 1)
        return self.lengths + target


class NeighbouringSentences(ContextSentences):
    """The sentences with a next sentence, which is the positive of their embedding (quick-thoughts, Logeswaran and Lee,
    ICLR 2018). Their target is the sentence itself.

    Args:
        store, min_tokens, max_tokens: see [`ContextSentences`]. A next sentence of less than `min_tokens` tokens does
            not count; one of more than `max_tokens` is cut.
    """

    def __init__(self, store: TokenStore, min_tokens: int = 1, max_tokens: int | None = None):
        super().__init__(store, "next_sentence", min_tokens, max_tokens)
        followed = self.in_store(np.arange(len(self)))
        is_long = store.lengths[followed + 1] > min_tokens
        if not is_long.any():
            raise ValueError(
                f"No two neighbouring sentences have {min_tokens} tokens or more each (`min_tokens`), so there are no "
                "positives. Lower it, or give documents of several sentences."
            )
        self.indices, self.lengths = followed[is_long], self.lengths[is_long]

    def targets(self, rows: np.ndarray) -> Ragged:
        """The sentences."""
        return self.inputs(rows)

    def neighbours(self, rows: np.ndarray) -> Ragged:
        """The next sentence of each, cut to `max_tokens` tokens."""
        return self._neighbours(self.in_store(rows) + 1)

    def costs(self) -> np.ndarray:
        """Lengths for a batch plan: those of the sentences."""
        return self.lengths


class SentencesAndContext(ContextSentences):
    """Sentences with themselves as targets; the words after them are a second target, `context_targets`.

    Args:
        store, min_tokens, max_tokens, num_words: see [`ContextSentences`].
    """

    def __init__(self, store: TokenStore, min_tokens: int = 1, max_tokens: int | None = None, num_words: int = 30):
        super().__init__(store, "next_words", min_tokens, max_tokens, num_words)

    def targets(self, rows: np.ndarray) -> Ragged:
        """The sentences."""
        return self.inputs(rows)

    def further_targets(self, rows: np.ndarray) -> dict[str, Ragged]:
        """The next `num_words` words, as `context_targets`."""
        return {"context_targets": super().targets(rows)}

    def costs(self) -> np.ndarray:
        """Lengths for a batch plan: those of the sentences, without the context."""
        return self.lengths
