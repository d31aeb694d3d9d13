"""Cross entropy over a large vocabulary: full, chunked and sampled. All sum over the targets, then divide."""

import torch
from torch import nn

IGNORE_INDEX = -100
_CHUNK_TOKENS = 4096


def _normalise(loss_sum: torch.Tensor, labels: torch.Tensor, num_items: torch.Tensor | int | None) -> torch.Tensor:
    if num_items is None:
        return loss_sum / (labels != IGNORE_INDEX).sum().clamp(min=1)
    return loss_sum / num_items


def full_cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    label_smoothing: float = 0.0,
    num_items: torch.Tensor | int | None = None,
) -> torch.Tensor:
    """Token cross entropy (mean-max autoencoder, eq. 22) of logits `(..., V)` and labels `(...)`, nats per target.

    `num_items` is what the sum is divided by (default: the number of targets, labels of -100 left out).
    """
    loss_sum = nn.functional.cross_entropy(
        logits.flatten(0, -2).float(),
        labels.flatten(),
        ignore_index=IGNORE_INDEX,
        label_smoothing=label_smoothing,
        reduction="sum",
    )
    return _normalise(loss_sum, labels, num_items)


def chunked_cross_entropy(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    label_smoothing: float = 0.0,
    num_items: torch.Tensor | int | None = None,
) -> torch.Tensor:
    """The value of [`full_cross_entropy`] without ever holding the logits of all targets.

    `hidden_states` `(..., d)`, `weight` `(V, d)`, `bias` `(V,)`, `labels` `(...)`.
    """
    states, targets = hidden_states.flatten(0, -2), labels.flatten()
    # torch 2.13 has a fused form; older versions recompute the logits of a chunk in the backward pass.
    if hasattr(nn.functional, "linear_cross_entropy"):
        loss_sum = nn.functional.linear_cross_entropy(
            states,
            weight.to(states.dtype),
            targets,
            linear_bias=None if bias is None else bias.to(states.dtype),
            ignore_index=IGNORE_INDEX,
            label_smoothing=label_smoothing,
            reduction="sum",
        )
        return _normalise(loss_sum, labels, num_items)

    def chunk_loss(chunk_states, chunk_targets):
        logits = nn.functional.linear(chunk_states, weight.to(chunk_states.dtype), bias)
        return full_cross_entropy(logits, chunk_targets, label_smoothing, num_items=1)

    loss_sum = states.new_zeros((), dtype=torch.float32)
    for start in range(0, targets.numel(), _CHUNK_TOKENS):
        part = slice(start, start + _CHUNK_TOKENS)
        loss_sum = loss_sum + torch.utils.checkpoint.checkpoint(
            chunk_loss, states[part], targets[part], use_reentrant=False
        )
    return _normalise(loss_sum, labels, num_items)


def sampled_cross_entropy(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    candidate_ids: torch.Tensor,
    candidate_log_prob: torch.Tensor,
    label_smoothing: float = 0.0,
    num_items: torch.Tensor | int | None = None,
) -> torch.Tensor:
    """Cross entropy over candidates that all targets of the batch share.

    Each candidate's score is lowered by the log probability with which it became a candidate, so that the sum over
    candidates estimates the sum over the vocabulary (sampled softmax; Jean et al. 2015).

    Args:
        hidden_states: `(..., d)`.
        weight, bias: the output layer's `(V, d)` and `(V,)`.
        labels: `(...)` token ids, -100 where there is no target.
        candidate_ids: `(C,)` distinct token ids, ascending; contains every target.
        candidate_log_prob: `(C,)` log probability that each is among the candidates.
        label_smoothing: probability spread over the candidates.
        num_items: what the sum is divided by (default: the number of targets).
    """
    states, targets = hidden_states.flatten(0, -2), labels.flatten()
    chosen = weight.index_select(0, candidate_ids)
    offset = -candidate_log_prob
    if bias is not None:
        offset = offset + bias.index_select(0, candidate_ids)
    logits = nn.functional.linear(states, chosen.to(states.dtype), offset.to(states.dtype))
    positions = torch.searchsorted(candidate_ids, targets.clamp(min=0))
    positions = torch.where(targets == IGNORE_INDEX, targets, positions)
    loss = full_cross_entropy(logits, positions, label_smoothing, num_items=1)
    return _normalise(loss, labels, num_items)
