"""The original texts and the words of a token store, for consumers that need text instead of ids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from .corpus import Corpus
from .token_store import SentenceFilter, TokenEncoder, TokenStore, apply_filter, encoded_chunks

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TOKENS_AT_ONCE = 2**20


class StoredTexts(Corpus):
    """The lines of a corpus that its token store keeps, in the store's order and as they were written.

    A line that the store truncates is whole here.

    Args:
        corpus, tokenizer, rule: the store's corpus, tokenizer and filter ([`~hf_meanmax.data.build_token_store`]).
        size: number of sentences in the store.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: PreTrainedTokenizerBase,
        rule: SentenceFilter,
        size: int | None = None,
    ) -> None:
        self.corpus = corpus
        self.encoder = TokenEncoder(tokenizer)
        self.rule = rule
        self.size = size

    def __iter__(self) -> Iterator[str]:
        self.position = 0
        for chunk, rows in encoded_chunks(self.corpus, self.encoder):
            _, kept, _ = apply_filter(rows, self.encoder.unk_token_id, self.rule)
            for line in kept.tolist():
                self.position += 1
                yield chunk.lines[line]

    def identity(self) -> object:
        return ["stored", self.corpus.identity(), self.encoder.fingerprint(), str(self.rule)]


class StoredWords:
    """The words of every stored sentence, without `</s>`; can be iterated repeatedly, for the epochs of word vectors.

    An unknown word becomes `<unk>`, so that the distances between the other words stay the same.
    """

    def __init__(self, store: TokenStore, tokenizer: PreTrainedTokenizerBase):
        self.store = store
        self.words = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))

    def __iter__(self) -> Iterator[list[str]]:
        start = 0
        while start < len(self.store):
            # A single sentence may be as long as a book.
            lengths = self.store.lengths[start : start + 4096]
            count = max(1, int(np.searchsorted(lengths.cumsum(), _TOKENS_AT_ONCE, side="right")))
            rows = self.store.rows(np.arange(start, start + min(count, len(lengths))))
            start += len(rows.lengths)
            ids = rows.ids.tolist()
            end = 0
            for length in rows.lengths.tolist():
                begin, end = end, end + length
                yield [self.words[token] for token in ids[begin : end - 1]]
