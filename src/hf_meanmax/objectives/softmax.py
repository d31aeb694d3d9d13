"""The loss of target tokens: over the whole vocabulary, or over a sample of it."""

from __future__ import annotations

from typing import Literal

import torch

from hf_meanmax.modeling.conditional_decoding import LatentForConditionalDecoding
from hf_meanmax.modeling.losses import full_cross_entropy

from .base import Batch
from .cross_entropy import chunked_cross_entropy, sampled_cross_entropy

Softmax = Literal["full", "chunked", "sampled"]
CANDIDATES = ("candidate_ids", "candidate_log_prob")


def token_loss(
    model: LatentForConditionalDecoding,
    states: torch.Tensor,
    labels: torch.Tensor,
    batch: Batch,
    num_items: torch.Tensor | int | None,
    softmax: Softmax,
) -> torch.Tensor:
    """Cross entropy of the output layer on states `(B, T, d)` against labels `(B, T)`, -100 where there is none.

    Args:
        states: inputs of the output layer (`model.output_states`).
        batch: for `"sampled"` it holds `candidate_ids` and `candidate_log_prob` `(C,)`
            ([`~hf_meanmax.objectives.cross_entropy.sampled_cross_entropy`]).
        num_items: the divisor of the sum; None counts the targets of the batch.
        softmax: `"full"` holds all logits at once, `"chunked"` gives the same value in less memory, `"sampled"` scores
            the candidates alone.

    Raises:
        ValueError: if a sampled softmax has no candidates.
    """
    smoothing = model.config.label_smoothing if model.training else 0.0
    weight, bias = model.lm_head.weight, model.lm_head.bias
    if softmax == "sampled":
        if not all(name in batch for name in CANDIDATES):
            raise ValueError("A sampled softmax needs `candidate_ids` and `candidate_log_prob` in the batch.")
        return sampled_cross_entropy(
            states, weight, bias, labels, batch["candidate_ids"], batch["candidate_log_prob"], smoothing, num_items,
            sparse=model.has_sparse_gradients,
        )  # fmt: skip
    if softmax == "chunked":
        return chunked_cross_entropy(states, weight, bias, labels, smoothing, num_items)
    return full_cross_entropy(model.lm_head(states), labels, smoothing, num_items)
