"""Cross entropy of tokens, the penalty of inner attention, and the means of both over targets or sentences."""

import torch
from torch import nn

from .layers import full_precision

IGNORE_INDEX = -100


def mean_over_targets(
    loss_sum: torch.Tensor, labels: torch.Tensor, num_items: torch.Tensor | int | None
) -> torch.Tensor:
    """A sum over targets divided by `num_items` (default: the number of targets, without labels of -100)."""
    if num_items is None:
        return loss_sum / (labels != IGNORE_INDEX).sum().clamp(min=1)
    return loss_sum / num_items


def mean_over_sentences(
    total: torch.Tensor,
    count: torch.Tensor,
    num_sentences: torch.Tensor | int | None,
    labels: torch.Tensor | None,
    num_items: torch.Tensor | int | None,
) -> torch.Tensor:
    """A sum over `count` sentences divided by `num_sentences`, the number in the whole step.

    If only `num_items`, the number of target tokens in the step, is given, the mean over the batch is weighted by the
    batch's share of them, so that the losses of micro batches can be summed.
    """
    if num_sentences is not None:
        return total / num_sentences
    mean = total / count.clamp(min=1)
    if labels is None or num_items is None:
        return mean
    return mean * (labels != IGNORE_INDEX).sum() / num_items


def attention_penalty(weights: torch.Tensor) -> torch.Tensor:
    """||A A' - I||_F^2 of each text `(B,)`, float32 or wider, from the weights A `(B, r, N)` (structured self-attentive
    embedding, eq. 8): 0 if each head reads one word of its own."""
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    with full_precision(weights.device):
        overlap = weights @ weights.transpose(1, 2)
    return (overlap - torch.eye(weights.shape[1], dtype=overlap.dtype, device=overlap.device)).square().sum(dim=(1, 2))


def penalty_of_sentences(
    weights: torch.Tensor,
    labels: torch.Tensor,
    num_sentences: torch.Tensor | int | None = None,
    num_items: torch.Tensor | int | None = None,
) -> torch.Tensor:
    """The mean of [`attention_penalty`] over the sentences, from the weights `(B, r, N)`; for its divisor see
    [`mean_over_sentences`]."""
    # A process without a sentence of its own gets a placeholder row without targets.
    is_sentence = (labels != IGNORE_INDEX).any(dim=1)
    total = (attention_penalty(weights) * is_sentence).sum()
    return mean_over_sentences(total, is_sentence.sum(), num_sentences, labels, num_items)


def full_cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    label_smoothing: float = 0.0,
    num_items: torch.Tensor | int | None = None,
) -> torch.Tensor:
    """Token cross entropy (mean-max autoencoder, eq. 22) of logits `(..., V)` and labels `(...)`, nats per target.

    `num_items` is the divisor of the sum (default: the number of targets, without labels of -100).
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    loss_sum = nn.functional.cross_entropy(
        logits.flatten(0, -2),
        labels.flatten(),
        ignore_index=IGNORE_INDEX,
        label_smoothing=label_smoothing,
        reduction="sum",
    )
    return mean_over_targets(loss_sum, labels, num_items)
