"""The words and word vectors of a trained model, for its controls."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import nn

from hf_meanmax.evaluation.embedding import is_sentence_transformer
from hf_meanmax.files import json_digest
from hf_meanmax.inference.encoder import embedding_dimension
from hf_meanmax.inference.fingerprints import pipeline_fingerprint, tokenizer_text, weights_fingerprint
from hf_meanmax.tokenization import unknown_word_rate

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedModel

VERSION = 1  # version of the controls, part of their keys
_CHUNK = 4096  # texts that are tokenised and sorted by length together
_BATCH_NUMBERS = 2**22  # numbers of the largest array of a batch
_ROWS = 2**16  # rows of the table converted at a time


def explain_no_controls(model: object) -> str | None:
    """The reason why an encoder only has the majority class as a control, or None if it has others."""
    if not is_sentence_transformer(model):
        return f"the word vectors of a {type(model).__name__} are not known, only those of a SentenceTransformer are"
    inner = transformers_model(model)
    if inner is None:
        return f"the SentenceTransformer begins with a {type(model[0]).__name__}, which wraps no transformers model"
    if model.tokenizer is None or not callable(model.tokenizer):
        return "the SentenceTransformer has no tokenizer"
    weight = getattr(inner.get_input_embeddings(), "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.dim() != 2:
        return f"{type(inner).__name__} has no table of word vectors"
    return None


def transformers_model(model: SentenceTransformer) -> PreTrainedModel | None:
    """The transformers model in the first module of a SentenceTransformer, or None."""
    from transformers import PreTrainedModel

    inner = getattr(model[0], "auto_model", None)
    return inner if isinstance(inner, PreTrainedModel) else None


def unknown_word_rate_of(model: object, texts: Iterable[str]) -> float | None:
    """Share, between 0 and 1, of the tokens that are unknown; special tokens do not count.

    Args:
        model: an encoder, such as a SentenceTransformer, or a tokenizer.
        texts: any texts.

    Returns:
        The share; None without a tokenizer, or if it has no unknown words, for instance because it is byte-level.
    """
    tokenizer = getattr(model, "tokenizer", model)
    if getattr(tokenizer, "unk_token_id", None) is None or getattr(tokenizer, "backend_tokenizer", None) is None:
        return None
    return unknown_word_rate(tokenizer, texts).rate


class WordSource:
    """The word table and the tokenizer of a SentenceTransformer.

    The tokenizer's special tokens, including `<unk>`, do not count as words.
    """

    def __init__(self, model: object):
        reason = explain_no_controls(model)
        if reason is not None or not is_sentence_transformer(model):
            raise ValueError(f"This encoder has no such control: {reason}.")
        self.model = model
        self.inner = cast("PreTrainedModel", transformers_model(model))
        self.device = self.inner.device
        self.tokenizer = model.tokenizer
        self.dimension = embedding_dimension(model)
        self.embedding_size = self.table.shape[1]
        self.special_ids = np.array(sorted(set(self.tokenizer.all_special_ids)), dtype=np.int64)

    @classmethod
    def of(cls, model: object) -> WordSource:
        """The word source of a model; [`make_controls`] shares one among all controls, to hash its table once."""
        return model if isinstance(model, WordSource) else cls(model)

    @property
    def table(self) -> torch.Tensor:
        """The word vectors `(V, e)`, in the model's dtype and on its device."""
        return self.inner.get_input_embeddings().weight.detach()

    @cached_property
    def fingerprint(self) -> list[str]:
        """Hashes of the tables, and of the tokenizer, length limit and modules."""
        return [*map(weights_fingerprint, input_tables(self.inner)), pipeline_fingerprint(self.model)]

    @cached_property
    def word_fingerprint(self) -> str:
        """Hash of all that the vectors of [`words`] depend on; equal for models with the same frozen words."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(json.dumps([self.model.max_seq_length, tokenizer_text(self.tokenizer)]).encode())
        digest.update(f"{self.table.dtype} {tuple(self.table.shape)}".encode())
        for part, is_word in zip(self.table.split(_ROWS), self._is_word.split(_ROWS), strict=True):
            digest.update(part.cpu().float()[is_word].numpy())
        return digest.hexdigest()

    @cached_property
    def word_length(self) -> float:
        """Root mean square of the lengths of the word vectors; 1 if all are zero."""
        squares = torch.cat([part.float().square().sum(dim=1).cpu() for part in self.table.split(_ROWS)])
        total = float(squares.masked_fill(~self._is_word, 0).double().sum())
        return math.sqrt(total / max(1, int(self._is_word.sum()))) or 1.0

    @cached_property
    def _is_word(self) -> torch.Tensor:
        """Which rows `(V,)` of the table are not special tokens."""
        return torch.from_numpy(~np.isin(np.arange(len(self.table)), self.special_ids))

    def key(self, kind: str, seed: int | None, *settings: object, words_alone: bool = True) -> str:
        """Fingerprint of a control; without `words_alone`, it covers the model's special tokens and modules as well."""
        fingerprint = self.word_fingerprint if words_alone else self.fingerprint
        parts = [VERSION, kind, seed, self.dimension, fingerprint, list(settings)]
        return f"{kind}-{json_digest(parts)}"

    def words(self, texts: Sequence[str]) -> Words:
        """The known words of texts, truncated as by the model."""
        encoded = self.tokenizer(
            list(texts),
            padding=False,
            truncation=True,
            return_attention_mask=False,
            return_token_type_ids=False,
        )["input_ids"]
        lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
        ids = np.fromiter(chain.from_iterable(encoded), dtype=np.int64, count=int(lengths.sum()))
        is_word = ~np.isin(ids, self.special_ids)
        rows = np.repeat(np.arange(len(texts)), lengths)[is_word]
        distinct, places = np.unique(ids[is_word], return_inverse=True)
        vectors = self.table[torch.from_numpy(distinct).to(self.table.device)].to(self.device, torch.float32)
        return Words(vectors, places, np.bincount(rows, minlength=len(texts)))


@dataclass
class Words:
    """The words of some texts.

    Attributes:
        vectors: `(u, e)` float32, of the distinct words.
        places: row of each word in `vectors`, text after text.
        lengths: number of words of each text.
    """

    vectors: torch.Tensor
    places: np.ndarray
    lengths: np.ndarray

    def mean(self) -> torch.Tensor:
        """The mean `(n, e)` of each text's word vectors."""
        if len(self.vectors) == 0:
            return self.vectors.new_zeros(len(self.lengths), self.vectors.shape[1])
        starts = np.cumsum(self.lengths) - self.lengths
        places, offsets = (torch.from_numpy(array).to(self.vectors.device) for array in (self.places, starts))
        return nn.functional.embedding_bag(places, self.vectors, offsets, mode="mean")

    def batches(self, width: int, backward: bool) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Batches of texts of similar length with words: their rows `(B,)`, words `(T, B)` and mask of words `(T, B)`.

        Args:
            width: size of a state.
            backward: whether the words come in reversed order.
        """
        order = np.argsort(-self.lengths, kind="stable")[: int((self.lengths > 0).sum())]
        starts = np.cumsum(self.lengths) - self.lengths
        size = max(1, _BATCH_NUMBERS // width)
        if self.vectors.device.type == "cpu":
            size = min(size, 128)  # the states stay in the processor's cache
        for first in range(0, len(order), size):
            rows = order[first : first + size]
            lengths = self.lengths[rows]
            steps = np.arange(lengths[0])[:, None]
            is_word = steps < lengths
            offsets = lengths - 1 - steps if backward else steps
            ids = self.places[np.where(is_word, starts[rows] + offsets, 0)]
            device = self.vectors.device
            yield tuple(torch.from_numpy(array).to(device) for array in (rows, ids, is_word))  # type: ignore[misc]


def by_chunks(
    source: WordSource, texts: Sequence[str], dimension: int, compute: Callable[[Words], torch.Tensor]
) -> np.ndarray:
    result = np.empty((len(texts), dimension), dtype=np.float32)
    with torch.inference_mode():
        for start in range(0, len(texts), _CHUNK):
            part = texts[start : start + _CHUNK]
            result[start : start + len(part)] = compute(source.words(part)).cpu().numpy()
    return result


def input_tables(inner: PreTrainedModel) -> list[nn.Embedding]:
    """The word table of a transformers model, and the table of special tokens that a model of this package may have."""
    special = getattr(getattr(inner, "embeddings", None), "special_embeddings", None)
    return [inner.get_input_embeddings(), *([] if special is None else [special])]
