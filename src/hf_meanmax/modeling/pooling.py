"""Poolings: from hidden states (B, N, d) to latent rows Z (B, L, d)."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from transformers.configuration_utils import PreTrainedConfig

from .attention import masked_softmax
from .layers import unit_rows


def max_pooling(hidden_states: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """z[i] = max_t h_t[i] over real tokens (mean-max autoencoder, eq. 12); zeros for a row without tokens."""
    if attention_mask is None:
        return hidden_states.amax(dim=1)
    mask = attention_mask.bool().unsqueeze(-1)
    # Added, since `masked_fill` of all states is many times slower on a CPU.
    hidden = torch.zeros_like(mask, dtype=hidden_states.dtype).masked_fill(~mask, -torch.inf)
    pooled = (hidden_states + hidden).amax(dim=1)
    return torch.where(mask.any(dim=1), pooled, torch.zeros_like(pooled))


def mean_pooling(hidden_states: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """z = (1/N) sum_t h_t over real tokens (mean-max autoencoder, eq. 13); zeros for a row without tokens."""
    if attention_mask is None:
        return hidden_states.mean(dim=1)
    mask = attention_mask.bool().unsqueeze(-1)
    total = (hidden_states * mask.to(hidden_states.dtype)).sum(dim=1)
    return total / mask.sum(dim=1).clamp(min=1).to(total.dtype)


def last_pooling(hidden_states: torch.Tensor, attention_mask: torch.Tensor | None, backward_size: int) -> torch.Tensor:
    """The state at the last real token, `(B, d)`; the last `backward_size` dimensions, those of the backward direction,
    are taken at the first one. Zeros for a row without tokens."""
    if attention_mask is None:
        last, first = hidden_states[:, -1], hidden_states[:, 0]
    else:
        mask = attention_mask.bool()
        places = torch.arange(mask.shape[1], device=mask.device)
        rows = torch.arange(mask.shape[0], device=mask.device)
        last = hidden_states[rows, (places * mask).amax(dim=1)]
        first = hidden_states[rows, mask.long().argmax(dim=1)]
    pooled = last
    if backward_size:
        pooled = torch.cat((last[:, :-backward_size], first[:, -backward_size:]), dim=-1)
    if attention_mask is not None:
        pooled = pooled.masked_fill(~mask.any(dim=1, keepdim=True), 0.0)
    return pooled


def latent_projection(config: PreTrainedConfig) -> nn.Module:
    """Projection from hidden states to the width of a latent row, without a bias: a row without tokens stays zero."""
    if config.latent_width == config.hidden_size:
        return nn.Identity()
    return nn.Linear(config.hidden_size, config.latent_width, bias=False)


class StatePooling(nn.Module):
    """Stacks the rows that `config.state_pooling_rows` names (mean-max autoencoder, eq. 14)."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.projection = latent_projection(config)
        backward_size = config.hidden_size // 2 if config.encoder_type.startswith("bi") else 0
        self.functions: dict[str, Callable[..., torch.Tensor]] = {
            "max": max_pooling,
            "mean": mean_pooling,
            "last": partial(last_pooling, backward_size=backward_size),
        }
        self.rows = config.state_pooling_rows

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`(B, N, d)` and a mask `(B, N)` -> Z `(B, L, latent_width)` and the pooling weights (none for these rows)."""
        projected = self.projection(hidden_states)
        rows = []
        for name in self.rows:
            if name == "last":
                # Its halves come from the two ends, so it is projected as a whole.
                rows.append(self.projection(self.functions[name](hidden_states, attention_mask)))
            else:
                rows.append(self.functions[name](projected, attention_mask))
        return torch.stack(rows, dim=1), None


class InnerAttentionPooling(nn.Module):
    """A = softmax(U tanh(W H')), Z = A H, row by row over the real tokens (structured self-attentive embedding, eq.
    5-6; compound attention, eq. 4.4-4.5). Weights come from the hidden states, rows from their projection.
    """

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        inner_size = config.pooling_hidden_size or config.hidden_size
        self.projection = latent_projection(config)
        self.hidden = nn.Linear(config.hidden_size, inner_size, bias=False)
        self.scores = nn.Linear(inner_size, config.latent_heads, bias=False)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`(B, N, d)` and a mask `(B, N)` -> Z `(B, L, latent_width)` and the weights `(B, L, N)`, 0 at padding; both
        are zeros for a row without tokens."""
        scores = self.scores(self.hidden(hidden_states).tanh()).transpose(1, 2)
        weights = masked_softmax(scores, None if attention_mask is None else attention_mask.unsqueeze(1))
        return weights @ self.projection(hidden_states), weights


class ZeroLinear(nn.Linear):
    """A linear map that starts as zeros."""


class RowFeedForward(nn.Module):
    """z + W2 gelu(W1 z sqrt(d)), z the row at unit length. W2 starts as zeros, and without biases a row of zeros stays
    zeros."""

    def __init__(self, size: int, hidden_size: int) -> None:
        super().__init__()
        self.up = nn.Linear(size, hidden_size, bias=False)
        self.down = ZeroLinear(hidden_size, size, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """`(..., d)` -> `(..., d)`."""
        rows = unit_rows(rows)
        return rows + self.down(nn.functional.gelu(self.up(rows * rows.shape[-1] ** 0.5)))


class WeightedMeanPooling(nn.Module):
    """M sum_t w(x_t) e_t / sum_t w(x_t) over all tokens but padding and special ones: one weight per word, and a linear
    map M (smooth inverse frequency, Arora, Liang and Ma 2017, with trained weights). A feed-forward layer may follow.

    Scaled to unit length, without that layer and with the identity for M, this is the sentence vector of Arora, Liang
    and Ma before they remove the common component.
    """

    frequencies: torch.Tensor

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.config = config
        self.log_weights = nn.Embedding(config.input_vocab_size, 1)
        self.register_buffer("frequencies", torch.zeros(config.input_vocab_size))
        has_map = config.weighted_mean_map
        self.map = nn.Linear(config.embedding_size, config.latent_width, bias=False) if has_map else nn.Identity()
        hidden_size = config.weighted_mean_hidden_size
        self.feed_forward = RowFeedForward(config.latent_width, hidden_size) if hidden_size else nn.Identity()
        self.freeze_as_configured()

    def freeze_as_configured(self) -> None:
        """Excludes the weights from training if `config.freeze_word_weights` is set."""
        if self.config.freeze_word_weights:
            self.log_weights.weight.requires_grad_(False)

    @torch.no_grad()
    def start_from_frequencies(self, token_counts: torch.Tensor) -> None:
        """Sets the weights to a / (a + p), with p the relative frequencies from counts `(V,)`; special tokens are not
        counted."""
        counts = token_counts.double().clone()
        counts[: self.config.num_special_tokens] = 0
        frequencies = counts / counts.sum().clamp(min=1)
        self.frequencies.copy_(frequencies)
        smoothing = self.config.frequency_smoothing
        self.log_weights.weight.copy_((smoothing / (smoothing + frequencies)).log()[:, None])

    @torch.no_grad()
    def resize(self, num_words: int) -> None:
        """Resizes the table of weights; a new word gets the mean of the words' log weights, and frequency 0."""
        old, frequencies = self.log_weights, self.frequencies
        kept, first = min(num_words, old.num_embeddings), self.config.num_special_tokens
        weight = old.weight.new_full((num_words, 1), float(old.weight[first:].mean()) if len(old.weight) > first else 0)
        weight[:kept] = old.weight[:kept]
        self.log_weights.weight = nn.Parameter(weight, requires_grad=old.weight.requires_grad)
        self.log_weights.num_embeddings = num_words
        self.frequencies = frequencies.new_zeros(num_words)
        self.frequencies[:kept] = frequencies[:kept]

    def forward(
        self, words: torch.Tensor, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Word vectors `(B, N, embedding_size)`, their ids and a mask `(B, N)` -> `(B, latent_width)`; zeros for a row
        without a word."""
        is_word = input_ids >= self.config.num_special_tokens
        if attention_mask is not None:
            is_word = is_word & attention_mask.bool()
        weights = (self.log_weights(input_ids).squeeze(-1).exp() * is_word).unsqueeze(1)
        total = weights.sum(dim=2, keepdim=True)
        mean = (weights / total.where(total > 0, 1)).to(words.dtype) @ words
        # Three dimensions until here: onnxruntime cannot quantise a linear map of two.
        return self.feed_forward(self.map(mean)).squeeze(1)


class NoPooling(nn.Module):
    """Makes no row of the hidden states: for translators without a fixed representation, and static models."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """No rows and no weights."""
        return None, None


POOLINGS = {
    **dict.fromkeys(("mean_max", "mean", "max", "last", "mean_max_last"), StatePooling),
    "inner_attention": InnerAttentionPooling,
    "weighted_mean": NoPooling,
    "none": NoPooling,
}
