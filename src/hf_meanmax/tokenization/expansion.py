"""Vocabulary expansion: lets a trained model encode any further word that has a word vector."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import models
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from hf_meanmax.cosines import paired_cosines, unit_rows
from hf_meanmax.modeling.pooling import WeightedMeanPooling

from .tokenizers import bare_backend, is_word_level
from .word_vectors import WordVectors

logger = logging.getLogger(__name__)

_ROWS = 1 << 16
_HELD_OUT = 10  # one in ten of the shared words
_BLOCK = 512  # words whose neighbours are searched together
_LEAST_EXPLAINED = 0.2


@dataclass(frozen=True)
class MapQuality:
    """Quality of the linear map on held-out words.

    It is measured with a map fitted to nine tenths of the shared words; the map for the new words is then fitted to all
    shared words.

    Attributes:
        words: number of words that both the model and the vectors have.
        held_out: number of these words that the measured map was not fitted to.
        explained_variance: share of the held-out rows' variance that the map explains (R^2); 1 is perfect, 0 no better
            than the mean row.
        cosine: median cosine between the mapped vector and the learnt row of a word.
        nearest: share of the held-out words whose own row is the nearest to the mapped vector by cosine, among the rows
            of all shared words.
        nearest_10: share of the held-out words whose own row is among the ten nearest.
    """

    words: int
    held_out: int
    explained_variance: float
    cosine: float
    nearest: float
    nearest_10: float

    def __str__(self) -> str:
        return (
            f"{self.words:,} words in both; on {self.held_out:,} held-out ones R^2 {self.explained_variance:.3f}, "
            f"median cosine {self.cosine:.3f}, nearest row its own {self.nearest:.1%} (among ten {self.nearest_10:.1%})"
        )


@dataclass(frozen=True)
class Expansion:
    """Result of an expansion.

    Attributes:
        tokenizer: the new tokenizer; new words have the ids after the old ones, in the order of the vectors.
        added: number of new words.
        left_out: number of words that were known, or that the tokenizer never produces.
        quality: quality of the map into a trained word table; None for a frozen table, which needs no map.
    """

    tokenizer: PreTrainedTokenizerFast
    added: int
    left_out: int
    quality: MapQuality | None


def _replace_table(model: PreTrainedModel, table: nn.Embedding, weight: torch.Tensor) -> None:
    table.weight = nn.Parameter(weight, requires_grad=table.weight.requires_grad)
    table.num_embeddings = len(weight)
    # The encoder inside a model with a decoder may have its own config.
    for module in model.modules():
        if hasattr(getattr(module, "config", None), "input_vocab_size"):
            module.config.input_vocab_size = len(weight)
        if isinstance(module, WeightedMeanPooling):
            module.resize(len(weight))


@torch.no_grad()
def expand_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, vectors: WordVectors) -> Expansion:
    """Expands a model's input vocabulary by the words of `vectors`.

    The input word table and `config.input_vocab_size` grow in place; the decoder's vocabulary (`config.vocab_size`, the
    output layer) stays. A tied output layer is untied first. Words that the tokenizer would never produce, such as
    capitalised words if it lower-cases, are left out.

    A trained word table no longer shares the space of the vectors. A linear map from the vectors to the table is
    therefore fitted by least squares to the shared words (Kiros et al. 2015, section 2.2; RNN-CNN, section 4). A frozen
    table (mean-max autoencoder, section 4) holds the vectors themselves, up to one factor.

    Args:
        model: An encoder, or a model with its decoder.
        tokenizer: Its word-level tokenizer; it is not changed.
        vectors: Vectors of many more words than the model has. For a frozen table they must be the vectors it was made
            from; for a trained table they may be any vectors of any dimension.

    Raises:
        ValueError: A tokenizer that is not word level or not this model's; no more shared words than dimensions; for a
            frozen table, vectors of another dimension or space. The model is then unchanged.

    Warns:
        UserWarning: the map explains less than a fifth of the variance of held-out rows.
    """
    table = model.get_input_embeddings()
    old_size, width = table.weight.shape
    _check(model, tokenizer, vectors, table)
    known, given = _shared_rows(model, tokenizer, vectors, table)
    quality = None
    if model.config.freeze_word_embeddings:
        matrix = _factor(known, given) * np.eye(width)
    else:
        quality = _measure(known, given)
        if quality.explained_variance < _LEAST_EXPLAINED:
            warnings.warn(
                f"The map says little of where a word belongs in this model's word table ({quality}): the new words "
                "will be close to noise. Start the training from these vectors, or train longer.",
                stacklevel=2,
            )
        matrix = _least_squares(given, known)
    expanded, rows = _expanded_tokenizer(tokenizer, vectors)
    left_out = len(vectors) - len(rows)
    if len(rows) == 0:
        logger.warning("no word of the %d with vectors is new: the vocabulary stays at %d", len(vectors), old_size)
        return Expansion(expanded, 0, left_out, quality)

    weight = torch.empty(old_size + len(rows), width, dtype=table.weight.dtype, device=table.weight.device)
    weight[:old_size] = table.weight
    for start in range(0, len(rows), _ROWS):
        part = torch.from_numpy((vectors.vectors[rows[start : start + _ROWS]] @ matrix).astype(np.float32))
        weight[old_size + start : old_size + start + len(part)] = part
    # With separate vocabularies the output is tied to the decoder's word table, which does not change.
    if model.config.tie_word_embeddings and not model.config.separate_vocabularies:
        _untie(model, table)
    _replace_table(model, table, weight)
    logger.info("%d words added, %d now; %d were known or are never produced", len(rows), len(weight), left_out)
    return Expansion(expanded, len(rows), left_out, quality)


def _check(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, vectors: WordVectors, table: nn.Embedding
) -> None:
    old_size, width = table.weight.shape
    if not is_word_level(tokenizer):
        raise ValueError(
            f"the tokenizer's model is {type(tokenizer.backend_tokenizer.model).__name__}, expected WordLevel: "
            "pieces of words have no word vectors. Give a checkpoint that was trained with `--tokenizer word`."
        )
    if len(tokenizer) != old_size:
        raise ValueError(f"the tokenizer has {len(tokenizer)} ids, the word table {old_size} rows: not this model's")
    if model.config.tie_word_embeddings and model.config.context_channels is not None:
        raise ValueError(
            "a model with two decoders (`context_channels`) and a tied output layer cannot be expanded; train it with "
            "`--tie_word_embeddings false`"
        )
    if model.config.freeze_word_embeddings and vectors.size != width:
        raise ValueError(f"vectors of {vectors.size} dimensions, the frozen word table has {width}")


def _shared_rows(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, vectors: WordVectors, table: nn.Embedding
) -> tuple[np.ndarray, np.ndarray]:
    """Table rows and vectors of the words that both have, without words added by an earlier expansion."""
    special = set(tokenizer.all_special_ids)
    # With separate vocabularies `vocab_size` is the decoder's, so all rows of the encoder count as learnt.
    learnt = len(table.weight) if model.config.separate_vocabularies else model.config.vocab_size
    shared = [
        (token_id, vectors.index[word])
        for word, token_id in tokenizer.get_vocab().items()
        if word in vectors.index and token_id not in special and token_id < learnt
    ]
    if not shared:
        raise ValueError(
            f"none of the {len(vectors)} words is in the tokenizer's vocabulary, so nothing shows how these vectors "
            "lie to the word table; pass the whole file's vectors, not only the new words"
        )
    ids, rows = (np.array(column) for column in zip(*sorted(shared), strict=True))
    known = table.weight[torch.from_numpy(ids).to(table.weight.device)].double().cpu().numpy()
    return known, vectors.vectors[rows].astype(np.float64)


def _factor(known: np.ndarray, given: np.ndarray) -> float:
    """The factor between the vectors and the frozen rows."""
    cosines = paired_cosines(known, given)
    cosine = float(np.median(cosines))
    if cosine < 0.99:
        raise ValueError(
            f"the {len(known)} words that both know have a median cosine of {cosine:.2f} between the frozen word table "
            "and these vectors, expected 1: these are not the vectors that the model was trained with"
        )
    # A word without a vector when the model was trained has a random row.
    known, given = (vectors[cosines >= 0.99] for vectors in (known, given))
    return float((known * given).sum() / (given * given).sum())


def _least_squares(given: np.ndarray, known: np.ndarray) -> np.ndarray:
    """The matrix `(e, width)` that maps the given vectors to the known rows with the least squared error."""
    return np.linalg.lstsq(given, known, rcond=None)[0]


def _measure(known: np.ndarray, given: np.ndarray) -> MapQuality:
    """Measures a map that is fitted to nine tenths of the words on the remaining tenth."""
    number = max(1, len(known) // _HELD_OUT)
    if len(known) - number <= given.shape[1]:
        raise ValueError(
            f"{len(known)} words are in both the vocabulary and the vectors; a map from {given.shape[1]} dimensions "
            f"needs more words than dimensions beside the {number} that measure it"
        )
    is_held_out = np.zeros(len(known), dtype=bool)
    is_held_out[np.random.default_rng(0).permutation(len(known))[:number]] = True
    mapped = given[is_held_out] @ _least_squares(given[~is_held_out], known[~is_held_out])
    learnt = known[is_held_out]
    error = np.square(mapped - learnt).sum()
    unit, candidates, places = unit_rows(mapped), unit_rows(known), np.flatnonzero(is_held_out)
    ranks = []
    for start in range(0, len(unit), _BLOCK):
        similarity = unit[start : start + _BLOCK] @ candidates.T
        own = similarity[np.arange(len(similarity)), places[start : start + _BLOCK]]
        ranks.append((similarity > own[:, None]).sum(axis=1))
    rank = np.concatenate(ranks)
    return MapQuality(
        words=len(known),
        held_out=len(mapped),
        explained_variance=float(1 - error / np.square(learnt - known[~is_held_out].mean(axis=0)).sum()),
        cosine=float(np.median(paired_cosines(mapped, learnt))),
        nearest=float((rank == 0).mean()),
        nearest_10=float((rank < 10).mean()),
    )


def _expanded_tokenizer(
    tokenizer: PreTrainedTokenizerFast, vectors: WordVectors
) -> tuple[PreTrainedTokenizerFast, np.ndarray]:
    """The tokenizer with new words, and the rows of `vectors` of these words in the order of their ids."""
    vocabulary = tokenizer.get_vocab()
    candidates = np.array([row for row, word in enumerate(vectors.words) if word not in vocabulary], dtype=np.int64)
    expanded = copy.deepcopy(tokenizer)
    _set_words(expanded, vocabulary, (vectors.words[row] for row in candidates))
    # A word can be produced only if its own text is normalised and split to just itself.
    reachable = np.zeros(len(candidates), dtype=bool)
    backend = bare_backend(expanded)
    for start in range(0, len(candidates), _ROWS):
        rows = candidates[start : start + _ROWS]
        encodings = backend.encode_batch_fast([vectors.words[row] for row in rows], add_special_tokens=False)
        for place, encoding in enumerate(encodings, start=start):
            reachable[place] = encoding.ids == [len(vocabulary) + place]
    if not reachable.all():
        candidates = candidates[reachable]
        _set_words(expanded, vocabulary, (vectors.words[row] for row in candidates))
    return expanded, candidates


def _set_words(tokenizer: PreTrainedTokenizerFast, vocabulary: dict[str, int], words: Iterable[str]) -> None:
    larger = dict(vocabulary)
    for word in words:
        larger[word] = len(larger)
    tokenizer.backend_tokenizer.model = models.WordLevel(larger, unk_token=tokenizer.unk_token)


def _untie(model: PreTrainedModel, table: nn.Embedding) -> None:
    """Gives a tied output layer its own weights with the same function."""
    output = model.get_output_embeddings()
    if output is not None and output.weight is table.weight:
        projection = getattr(model, "output_projection", None)
        weight = table.weight.detach().clone()
        if projection is not None:
            # Only a tied output has a projection to the width of the word table: W (P h + b) = (W P) h + W b.
            if projection.bias is not None:
                if output.bias is None:
                    output.bias = nn.Parameter(weight.new_zeros(len(weight)))
                    model.config.output_bias = True
                output.bias += weight @ projection.bias
            weight = weight @ projection.weight
            model.output_projection = None
            output.in_features = weight.shape[1]
        output.weight = nn.Parameter(weight)
    # Otherwise saving would leave one of them out, and loading would tie them again.
    model.all_tied_weights_keys = {}
    model.config.tie_word_embeddings = False
