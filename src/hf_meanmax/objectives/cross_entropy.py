"""Cross entropy over a large vocabulary without the logits of all targets: chunked and sampled."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hf_meanmax.modeling.layers import autocast_dtype, full_precision
from hf_meanmax.modeling.losses import IGNORE_INDEX, mean_over_targets

_CHUNK_TOKENS = 4096
# Logits held at once: half a gigabyte in fp32.
_CHUNK_LOGITS = 2**27
# Rows of probabilities that fit a core's cache.
_SUMMED_ROWS = 64


def _row_sums(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Row sums `(n,)` of values `(n, V)`, computed in `dtype`, which may be wider."""
    if values.dtype == dtype or values.device.type != "cpu" or torch.compiler.is_compiling():
        return values.sum(dim=-1, dtype=dtype)
    # torch would copy all of them to the wider type first.
    return torch.cat([rows.sum(dim=-1, dtype=dtype) for rows in torch.split(values, _SUMMED_ROWS)])


class _LinearCrossEntropy(torch.autograd.Function):
    """Summed cross entropy of `states @ weight.T + bias`, a chunk of targets at a time.

    The gradient of the logits is known as soon as the logits are, so the forward pass computes the gradients of all
    inputs and the backward pass only scales them: logits live for one chunk and are computed once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        targets: torch.Tensor,
        label_smoothing: float,
        has_padding: bool,
    ) -> torch.Tensor:
        valid = targets != IGNORE_INDEX
        positions = targets.clamp(min=0)
        needs_gradients = any(ctx.needs_input_grad[:3])
        sum_dtype = torch.promote_types(states.dtype, torch.float32)
        loss = torch.zeros((), dtype=sum_dtype, device=states.device)
        grad_states = torch.empty_like(states if needs_gradients else states[:0])
        grad_bias = torch.zeros_like(bias if needs_gradients else bias[:0], dtype=sum_dtype)
        chunk = max(1, min(_CHUNK_TOKENS, _CHUNK_LOGITS // weight.shape[0]))
        is_one_chunk = 0 < targets.numel() <= chunk
        grad_weight = torch.zeros_like(weight if needs_gradients and not is_one_chunk else weight[:0], dtype=sum_dtype)
        for start in range(0, targets.numel(), chunk):
            part = slice(start, start + chunk)
            mask = valid[part]
            logits = nn.functional.linear(states[part], weight, bias)
            probabilities = torch.softmax(logits, dim=-1)
            columns = positions[part]
            target_logits = logits.gather(1, columns.unsqueeze(1)).squeeze(1).to(sum_dtype)
            # Flat indices of the targets: `scatter_` would copy the probabilities twice.
            places = columns + logits.shape[1] * torch.arange(len(columns), device=columns.device)
            # The target's -log p by way of the likeliest word, since its own probability may underflow ...
            likeliest = logits.amax(dim=-1).to(sum_dtype), probabilities.amax(dim=-1).to(sum_dtype)
            far = likeliest[0] - target_logits - likeliest[1].log()
            # ... or by way of all other words, since in bf16 the probability of a likely target may round to 1.
            probabilities.view(-1).index_fill_(0, places, 0.0)
            rest = _row_sums(probabilities, sum_dtype).clamp(max=1)
            token_loss = torch.where(rest < 0.5, -torch.log1p(-rest), far)
            if label_smoothing:
                # The smoothing adds epsilon times (mean log-odds of the target against the vocabulary).
                token_loss = token_loss + label_smoothing * (
                    target_logits - _row_sums(logits, sum_dtype) / logits.shape[1]
                )
            loss = loss + torch.where(mask, token_loss, torch.zeros_like(token_loss)).sum()
            if not needs_gradients:
                continue
            grad_logits = probabilities
            if label_smoothing:
                grad_logits.sub_(label_smoothing / weight.shape[0])
            others = label_smoothing - label_smoothing / weight.shape[0]
            grad_logits.view(-1).index_copy_(0, places, (others - rest).to(grad_logits.dtype))
            row_mask = mask[:, None].to(states.dtype)
            if has_padding:
                grad_logits.mul_(row_mask)
            torch.mm(grad_logits, weight, out=grad_states[part])
            product = grad_logits.t() @ states[part]
            grad_weight = product if is_one_chunk else grad_weight.add_(product)
            grad_bias += (row_mask.t() @ grad_logits)[0]
        ctx.save_for_backward(grad_states, grad_weight, grad_bias)
        ctx.dtypes = weight.dtype, bias.dtype
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_loss: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad_states, grad_weight, grad_bias = ctx.saved_tensors
        weight_dtype, bias_dtype = ctx.dtypes
        return (
            grad_states * grad_loss.to(grad_states.dtype),
            (grad_weight * grad_loss).to(weight_dtype),
            (grad_bias * grad_loss).to(bias_dtype),
            None,
            None,
            None,
        )


def _linear_cross_entropy(
    states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    label_smoothing: float,
) -> torch.Tensor:
    """[`_LinearCrossEntropy`] in the precision of autocast, where it is on."""
    device = states.device.type
    # On a CPU the padding of shorter targets is dropped; elsewhere looking for it would make the host wait.
    has_padding = device != "cpu" or torch.compiler.is_compiling()
    if not has_padding:
        is_target = targets != IGNORE_INDEX
        if not is_target.all():
            states, targets = states[is_target], targets[is_target]
    dtype = autocast_dtype(states)
    if bias is None:
        bias = weight.new_zeros(weight.shape[0])
    with full_precision(states.device):
        total: torch.Tensor = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
            states.to(dtype), weight.to(dtype), bias.to(dtype), targets, label_smoothing, has_padding
        )
    return total


def chunked_cross_entropy(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    label_smoothing: float = 0.0,
    num_items: torch.Tensor | int | None = None,
) -> torch.Tensor:
    """The value of [`~hf_meanmax.modeling.losses.full_cross_entropy`] without ever holding the logits of all targets.

    `hidden_states` `(..., d)`, `weight` `(V, d)`, `bias` `(V,)`, `labels` `(...)`.
    """
    states, targets = hidden_states.flatten(0, -2), labels.flatten()
    return mean_over_targets(_linear_cross_entropy(states, weight, bias, targets, label_smoothing), labels, num_items)


def sampled_cross_entropy(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    candidate_ids: torch.Tensor,
    candidate_log_prob: torch.Tensor,
    label_smoothing: float = 0.0,
    num_items: torch.Tensor | int | None = None,
    sparse: bool = False,
) -> torch.Tensor:
    """Cross entropy over candidates that all targets of the batch share.

    Each candidate's score is lowered by the log probability with which it was drawn, 0 for a target, so that the sum
    over candidates estimates the sum over the vocabulary (sampled softmax; Jean et al. 2015).

    Args:
        hidden_states: `(..., d)`.
        weight, bias: the output layer's `(V, d)` and `(V,)`.
        labels: `(...)` token ids, -100 where there is no target.
        candidate_ids: `(C,)` distinct token ids, ascending; contains every target.
        candidate_log_prob: `(C,)` log probability that each was drawn, 0 for the targets.
        label_smoothing: probability spread over the candidates.
        num_items: the divisor of the sum (default: the number of targets).
        sparse: whether the gradient of `weight` is sparse, with the candidates' rows alone.
    """
    states, targets = hidden_states.flatten(0, -2), labels.flatten()
    if sparse:
        chosen = nn.functional.embedding(candidate_ids, weight, sparse=True)
    else:
        chosen = weight.index_select(0, candidate_ids)
    offset = -candidate_log_prob
    if bias is not None:
        offset = offset + bias.index_select(0, candidate_ids)
    positions = torch.searchsorted(candidate_ids, targets.clamp(min=0))
    positions = torch.where(targets == IGNORE_INDEX, targets, positions)
    total = _linear_cross_entropy(states, chosen, offset, positions, label_smoothing)
    return mean_over_targets(total, labels, num_items)
