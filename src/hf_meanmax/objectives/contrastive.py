"""Contrastive learning: identifying a text's partner (its neighbour, or another view of it) in the batch."""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.distributed
from torch import nn
from torch.autograd.function import FunctionCtx

from hf_meanmax.fields import check_choice
from hf_meanmax.modeling.by_length import encode_by_length
from hf_meanmax.modeling.conditional_decoding import LatentForConditionalDecoding
from hf_meanmax.modeling.layers import full_precision
from hf_meanmax.modeling.losses import IGNORE_INDEX, mean_over_sentences

from .base import Batch, Divisors, Encoded, Objective

Partner = Literal["neighbour", "view"]
_GROUPS = 4


class Contrastive(Objective):
    """Cross entropy of each text's partner among all partners of the batch, and of the text among all texts (InfoNCE).

    Scores are cosines of the embeddings over a temperature; the loss is the mean of both directions and over sentences.
    The partner is the next sentence (`neighbour_ids`; quick-thoughts, Logeswaran and Lee, ICLR 2018, with one encoder
    for both) or the same text under other noise (`view_ids`; SimCSE, Gao, Yao and Chen, EMNLP 2021): `(B, M)`, with
    `neighbour_mask` or `view_mask` if there is padding. The batch spans all processes. With `config.contrastive_size`
    the embeddings first pass through the model's `contrastive_head`, which nothing else uses.

    Rows of Z may specialise and give poor cosines by themselves; `row_weight` adds the same loss for each row alone.

    Args:
        partner: `"neighbour"` or `"view"`.
        weight: the factor of the loss.
        temperature: the divisor of the cosines.
        row_weight: the factor of the mean loss over single rows, which is added to the loss of the embedding.

    Raises:
        ValueError: a temperature that is not positive, or an unknown partner.
    """

    def __init__(
        self, partner: Partner, weight: float = 1.0, temperature: float = 0.05, row_weight: float = 0.0
    ) -> None:
        super().__init__(weight)
        check_temperature(temperature)
        check_choice("partner", partner, get_args(Partner))
        self.partner = partner
        self.temperature = temperature
        self.row_weight = row_weight
        # Set per instance: a run may have an objective for each partner.
        self.name = f"{partner}_loss"
        self.fields = (f"{partner}_ids",)
        self.optional_fields = (f"{partner}_mask", "labels")

    def check(self, model: LatentForConditionalDecoding) -> None:
        if not model.config.has_latents:
            raise ValueError("`pooling` is 'none': there are no embeddings to compare. Use another pooling.")
        if not model.config.reads_text:
            raise ValueError("This model reads no text: its embeddings are given, and none is learnt.")

    def loss(
        self, model: LatentForConditionalDecoding, encoded: Encoded, batch: Batch, divisors: Divisors
    ) -> torch.Tensor:
        partners = encode_partners(model, batch[f"{self.partner}_ids"], batch.get(f"{self.partner}_mask"))
        sides = (encoded.latents, partners)
        texts, others = (self._project(model, latents) for latents in sides)
        labels = batch.get("labels")
        is_text = torch.ones(len(texts), dtype=torch.bool, device=texts.device)
        if labels is not None:
            # A process without a sentence of its own gets a placeholder row without targets.
            is_text = (labels != IGNORE_INDEX).any(dim=1)
        total = matching_loss(texts, others, is_text, self.temperature)
        if self.row_weight:
            rows = zip(*(latents.unbind(dim=1) for latents in sides), strict=True)
            losses = [matching_loss(left, right, is_text, self.temperature) for left, right in rows]
            total = total + self.row_weight * torch.stack(losses).mean()
        return mean_over_sentences(total, is_text.sum(), divisors.sentences, labels, divisors.targets)

    @staticmethod
    def _project(model: LatentForConditionalDecoding, latents: torch.Tensor) -> torch.Tensor:
        embeddings = latents.flatten(1)
        return embeddings if model.contrastive_head is None else model.contrastive_head(embeddings)


def check_temperature(temperature: float) -> None:
    """Raises ValueError unless a temperature is positive."""
    if not temperature > 0:
        raise ValueError(f"`temperature` is {temperature}; it must be a positive number.")


def encode_partners(
    model: LatentForConditionalDecoding, input_ids: torch.Tensor, attention_mask: torch.Tensor | None
) -> torch.Tensor:
    """Z `(B, L, latent_width)` of texts of any lengths, encoded in four groups of like length.

    The texts of a batch have similar lengths, but their partners do not: in one group, more than half of their tokens
    were padding. All processes have the same number of groups, as sharded models need.
    """

    def sizes(lengths: list[int]) -> list[int]:
        return [len(part) for part in torch.tensor(lengths).tensor_split(_GROUPS)]

    latents: torch.Tensor
    if attention_mask is None:
        latents = model.encoder(input_ids=input_ids).latents
    else:
        latents = encode_by_length(model.encoder, input_ids, attention_mask, sizes)
    return latents


def matching_loss(left: torch.Tensor, right: torch.Tensor, is_row: torch.Tensor, temperature: float) -> torch.Tensor:
    """Cross entropy of this process's pairs `(left[i], right[i])` among the rows of all processes, summed over the
    pairs, in the mean of both directions.

    Args:
        left, right: `(B, D)`, compared by their cosines.
        is_row: `(B,)`, False for placeholder rows.
        temperature: the divisor of the cosines.
    """
    left, right = (nn.functional.normalize(side.float(), dim=-1) for side in (left, right))
    all_left, all_right, all_rows, first = gather_rows(left, right, is_row)
    own = torch.arange(first, first + len(left), device=left.device)
    total = left.new_zeros(())
    for side, others in ((left, all_right), (right, all_left)):
        with full_precision(side.device):
            scores = side @ others.T / temperature
        scores = scores.masked_fill(~all_rows, -torch.inf)
        # All scores of a placeholder row may be masked.
        scores = torch.where(is_row[:, None], scores, torch.zeros_like(scores))
        losses = nn.functional.cross_entropy(scores, own, reduction="none")
        total = total + (losses * is_row).sum() / 2
    return total


def gather_rows(
    left: torch.Tensor, right: torch.Tensor, is_row: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Gathers both sides (with gradients) and `is_row` from all processes; also returns this process's first row.

    Meta tensors, which are used to count operations, are returned as they are.
    """
    if left.is_meta or not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return left, right, is_row, 0
    # Processes may differ by one row, but `all_gather` needs equal sizes.
    most = torch.tensor(len(left), device=left.device)
    torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
    missing = int(most) - len(left)
    left, right = (nn.functional.pad(side, (0, 0, 0, missing)) for side in (left, right))
    rows = nn.functional.pad(is_row.to(left.dtype), (0, missing))
    left, right, rows = (_GatheredRows.apply(side) for side in (left, right, rows))  # type: ignore[no-untyped-call]
    return left, right, rows > 0, torch.distributed.get_rank() * int(most)


class _GatheredRows(torch.autograd.Function):
    """The rows `(N, ...)` of all processes, one below the other; a row's gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: FunctionCtx, rows: torch.Tensor) -> torch.Tensor:
        gathered = [torch.empty_like(rows) for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather(gathered, rows.contiguous())
        return torch.cat(gathered)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: torch.Tensor) -> torch.Tensor:
        total = gradient.clone(memory_format=torch.contiguous_format)
        torch.distributed.all_reduce(total)
        return total.chunk(torch.distributed.get_world_size())[torch.distributed.get_rank()]
