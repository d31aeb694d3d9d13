"""Greedy reconstructions of a list of texts, in batches of similar length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hf_meanmax.data import BatchPlan
from hf_meanmax.data.corpus import readable
from hf_meanmax.progress import progress_bar

from .long_texts import MOST_TOKENS, too_long

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Batches of texts with more tokens are smaller.
_LONG_TEXT = 64


def reconstruct(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    batch_size: int = 256,
    show_progress: bool = False,
    target_tokenizer: PreTrainedTokenizerBase | None = None,
    **generation: object,
) -> list[list[int]]:
    """The generated token ids of each text, without special tokens, in the order of the texts.

    Args:
        model: a model with `generate`.
        tokenizer: its tokenizer.
        texts: sentences or paragraphs.
        batch_size: texts decoded together, sorted by length first; fewer if they have more than 64 tokens.
        show_progress: show a progress bar.
        target_tokenizer: tokenizer of the generated text, if it has a vocabulary of its own.
        generation: further arguments of `generate`, which by default is greedy and bounds each text by its own length.
    """
    encoded = tokenizer(list(map(readable, texts)))["input_ids"] if texts else []
    for text, ids in zip(texts, encoded, strict=True):
        if len(ids) > MOST_TOKENS:
            raise ValueError(too_long(text, "what is generated of it is as long"))
    generated: list[list[int]] = [[] for _ in texts]
    device = next(model.parameters()).device
    batches = rows_by_length(encoded, batch_size * _LONG_TEXT, least=_LONG_TEXT)
    for rows in progress_bar(batches, desc="reconstruct", disable=not show_progress, leave=False):
        batch = tokenizer.pad({"input_ids": [encoded[row] for row in rows]}, return_tensors="pt").to(device)
        output = model.generate(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], **generation)
        for row, ids in zip(rows, output.tolist(), strict=True):
            generated[row] = ids
    return without_special(target_tokenizer or tokenizer, generated)


def without_special(tokenizer: PreTrainedTokenizerBase, generated: Sequence[Sequence[int]]) -> list[list[int]]:
    """Drops special tokens from generated token ids; the token of unknown words stays."""
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    return [[token for token in ids if token not in special] for ids in generated]


def rows_by_length(encoded: Sequence[Sequence[int]], batch_tokens: int, least: int = 1) -> list[np.ndarray]:
    """Indices of texts in batches of `batch_tokens`, including padding; a text counts as at least `least` tokens."""
    if not encoded:
        return []
    lengths = np.array([len(ids) for ids in encoded])
    order = np.argsort(lengths, kind="stable")
    plan = BatchPlan(np.clip(lengths[order], least, batch_tokens), batch_tokens)
    return [order[rows] for rows in plan.sequential()]
