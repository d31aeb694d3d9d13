"""Classification heads: from latent rows (B, L, d) of one text or of two to logits (B, num_labels)."""

from typing import Any

import torch
from torch import nn
from transformers.configuration_utils import PreTrainedConfig

from .layers import tokens_first


class RowwiseLinear(nn.Module):
    """A separate linear map for each latent row, without a bias."""

    def __init__(self, rows: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, in_features, out_features))

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        """`(B, L, in_features)` -> `(B, L, out_features)`."""
        return torch.einsum("bld,ldk->blk", latents, self.weight)


class ConcatenatedPair(nn.Module):
    """[u; v; |u - v|; u * v], row by row."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.width = 4 * config.latent_width

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Two `(B, L, d)` -> `(B, L, 4 d)`."""
        return torch.cat((first, second, (first - second).abs(), first * second), dim=-1)


class MultipliedPair(nn.Module):
    """F = (M_1 W_1) * (M_2 W_2), with separate maps for each row (structured self-attentive embedding, appendix B)."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.width = config.pair_size or config.latent_width
        self.first = RowwiseLinear(config.num_latents, config.latent_width, self.width)
        self.second = RowwiseLinear(config.num_latents, config.latent_width, self.width)

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Two `(B, L, d)` -> `(B, L, pair_size)`."""
        return self.first(first) * self.second(second)


PAIRS = {"concatenation": ConcatenatedPair, "multiplicative": MultipliedPair}


class MLPHead(nn.Module):
    """A linear map of all rows, optionally after one hidden layer with ReLU."""

    def __init__(self, config: PreTrainedConfig, width: int) -> None:
        super().__init__()
        size = config.num_latents * width
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.hidden = None
        if config.classifier_hidden_size is not None:
            self.hidden = nn.Linear(size, config.classifier_hidden_size)
            size = config.classifier_hidden_size
        self.output = nn.Linear(size, config.num_labels)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """`(B, L, width)` -> logits `(B, num_labels)`."""
        states = self.dropout(rows.flatten(1))
        if self.hidden is not None:
            states = self.dropout(self.hidden(states).relu())
        return self.output(states)


class PrunedHead(nn.Module):
    """L p hidden units that each see one row, and width q units that each see one column (structured self-attentive
    embedding, appendix A); all rows share their weights, and so do all columns."""

    def __init__(self, config: PreTrainedConfig, width: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.rows = nn.Linear(width, config.classifier_row_size)
        self.columns = nn.Linear(config.num_latents, config.classifier_column_size)
        size = config.num_latents * config.classifier_row_size + width * config.classifier_column_size
        self.output = nn.Linear(size, config.num_labels)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """`(B, L, width)` -> logits `(B, num_labels)`."""
        rows = self.dropout(rows)
        of_rows, of_columns = self.rows(rows).relu(), self.columns(rows.transpose(1, 2)).relu()
        return self.output(self.dropout(torch.cat((of_rows.flatten(1), of_columns.flatten(1)), dim=-1)))


HEADS = {"mlp": MLPHead, "pruned": PrunedHead}


class LatentClassifier(nn.Module):
    """The part of a classifier after the encoder: the combination of two texts, if there are two, and the head."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.pair: Any = None if config.pair_combination is None else PAIRS[config.pair_combination](config)
        width: Any = config.latent_width if self.pair is None else self.pair.width
        self.head = HEADS[config.classifier_type](config, width)

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        """Z `(B, L, d)`, or `(2 B, L, d)` with all first texts before all second ones -> logits `(B, num_labels)`."""
        if self.pair is not None:
            latents = self.pair(*latents.chunk(2))
        return self.head(latents)


def split_pairs(
    inputs: torch.Tensor, attention_mask: torch.Tensor | None, token_type_ids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Splits rows of two texts into twice as many rows of one, all first texts before all second ones.

    Args:
        inputs: ids `(B, N)` or vectors `(B, N, size)`.
        attention_mask: `(B, N)`, 0 for padding on either side.
        token_type_ids: `(B, N)`, 0 for tokens of the first text and 1 for those of the second.

    Returns:
        Ids `(2 B, M)` or vectors `(2 B, M, size)`, padded on the right, and their mask `(2 B, M)`.

    Raises:
        ValueError: a row has a first text but no second.
    """
    is_real = torch.ones_like(token_type_ids) if attention_mask is None else attention_mask
    is_real = is_real.bool()
    chosen = torch.cat((is_real & (token_type_ids == 0), is_real & (token_type_ids == 1)))
    lengths = chosen.sum(dim=1).tolist()
    for row, (first, second) in enumerate(zip(lengths[: len(inputs)], lengths[len(inputs) :], strict=True)):
        if first and not second:
            raise ValueError(f"`token_type_ids` mark no second text in row {row}; this model reads pairs.")
    width = max([1, *lengths])
    order = tokens_first(chosen)[:, :width]
    rows = torch.arange(len(chosen), device=chosen.device)[:, None] % len(inputs)
    return inputs[rows, order], chosen.gather(1, order).long()
