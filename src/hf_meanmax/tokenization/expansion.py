"""Vocabulary expansion: after training, encode any word that has a vector beside those of the frozen word table."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable

import numpy as np
import torch
from tokenizers import models
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from .tokenizers import whole_and_unpadded
from .word_vectors import WordVectors

logger = logging.getLogger(__name__)

_ROWS = 1 << 16


@torch.no_grad()
def expand_vocabulary(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, vectors: WordVectors
) -> PreTrainedTokenizerFast:
    """Lets a model with a frozen word table encode every word of `vectors` (mean-max autoencoder, section 4).

    The input word table grows in place and `config.input_vocab_size` with it; what the decoder can say
    (`config.vocab_size`, the output layer) stays. A tied output layer is untied first. Words that the tokenizer would
    never produce, such as capitalised ones where it lower-cases, are left out.

    Args:
        model: An encoder, or a model with its decoder, whose word table was frozen.
        tokenizer: Its word-level tokenizer; it is not changed.
        vectors: The vectors that the word table came from, with further words.

    Returns:
        A tokenizer in which the new words have the ids after those of `tokenizer`, in the order of `vectors`.

    Raises:
        ValueError: The word table was trained, so that its space is no longer that of the vectors; vectors of
            another dimension or another space; a tokenizer that is not word level or not this model's. The model
            is then as it was.
    """
    table = model.get_input_embeddings()
    old_size, width = table.weight.shape
    _check(model, tokenizer, vectors, table)
    expanded, rows = _expanded_tokenizer(tokenizer, vectors)
    if len(rows) == 0:
        logger.warning("no word of the %d with vectors is new: the vocabulary stays at %d", len(vectors), old_size)
        return expanded

    weight = torch.empty(old_size + len(rows), width, dtype=table.weight.dtype, device=table.weight.device)
    weight[:old_size] = table.weight
    for start in range(0, len(rows), _ROWS):
        part = torch.from_numpy(vectors.vectors[rows[start : start + _ROWS]])
        weight[old_size + start : old_size + start + len(part)] = part
    if model.config.tie_word_embeddings:
        _untie(model, table)
    requires_grad = table.weight.requires_grad
    table.weight = nn.Parameter(weight, requires_grad=requires_grad)
    table.num_embeddings = len(weight)
    # The encoder inside a model with a decoder may have a config of its own.
    for module in model.modules():
        if hasattr(getattr(module, "config", None), "input_vocab_size"):
            module.config.input_vocab_size = len(weight)
    logger.info(
        "%d words added, %d now; %d were known or are never produced by the tokenizer",
        len(rows), len(weight), len(vectors) - len(rows),
    )  # fmt: skip
    return expanded


def _check(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, vectors: WordVectors, table: nn.Embedding
) -> None:
    config, (old_size, width) = model.config, table.weight.shape
    if not config.freeze_word_embeddings:
        raise ValueError(
            "the word table was trained (config.freeze_word_embeddings is False), so other words' vectors do not fit "
            "into its space; only a model trained with frozen word vectors can be expanded"
        )
    if not isinstance(tokenizer.backend_tokenizer.model, models.WordLevel):
        raise ValueError(
            f"the tokenizer's model is {type(tokenizer.backend_tokenizer.model).__name__}, expected WordLevel: "
            "pieces of words have no word vectors"
        )
    if len(tokenizer) != old_size:
        raise ValueError(f"the tokenizer has {len(tokenizer)} ids, the word table {old_size} rows: not this model's")
    if vectors.size != width:
        raise ValueError(f"vectors of {vectors.size} dimensions, the word table has {width}")

    special = set(tokenizer.all_special_ids)
    shared = [
        (token_id, vectors.index[word])
        for word, token_id in tokenizer.get_vocab().items()
        if word in vectors.index and token_id not in special
    ]
    if not shared:
        raise ValueError(
            f"none of the {len(vectors)} words is in the tokenizer's vocabulary, so nothing shows that these are the "
            "vectors that the word table came from; pass the whole file's vectors, not only the new words"
        )
    ids, rows = (np.array(column) for column in zip(*sorted(shared), strict=True))
    known = table.weight[torch.from_numpy(ids).to(table.weight.device)].float().cpu()
    given = torch.from_numpy(vectors.vectors[rows]).float()
    cosine = float(torch.nn.functional.cosine_similarity(known, given, dim=1).median())
    if cosine < 0.99:
        raise ValueError(
            f"the {len(ids)} words that both know have a median cosine of {cosine:.2f} between the word table and "
            "these vectors, expected 1: these are not the vectors that the model was trained with"
        )


def _expanded_tokenizer(
    tokenizer: PreTrainedTokenizerFast, vectors: WordVectors
) -> tuple[PreTrainedTokenizerFast, np.ndarray]:
    """The tokenizer with its new words, and the rows of `vectors` that these are, in the order of their ids."""
    vocabulary = tokenizer.get_vocab()
    candidates = np.array([row for row, word in enumerate(vectors.words) if word not in vocabulary], dtype=np.int64)
    expanded = copy.deepcopy(tokenizer)
    _set_words(expanded, vocabulary, (vectors.words[row] for row in candidates))
    # A word is of use only if its own text is cut and normalised to just itself.
    reachable = np.zeros(len(candidates), dtype=bool)
    with whole_and_unpadded(expanded) as backend:
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
    """Gives the output layer weights of its own that compute the same."""
    output = model.get_output_embeddings()
    if output is not None and output.weight is table.weight:
        projection = getattr(model, "output_projection", None)
        weight = table.weight.detach().clone()
        if projection is not None:
            # Only a tied output has a projection to the width of the word table: W (P h + b) = (W P) h + W b.
            if output.bias is not None and projection.bias is not None:
                output.bias += weight @ projection.bias
            weight = weight @ projection.weight
            model.output_projection = None
            output.in_features = weight.shape[1]
        output.weight = nn.Parameter(weight)
    # Otherwise saving would leave out the one, and loading tie them again.
    model.all_tied_weights_keys = {}
    model.config.tie_word_embeddings = False
