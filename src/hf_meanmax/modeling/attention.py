"""Multi-head and additive attention."""

from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs

from .layers import autocast_dtype

# Number of tokens up to which eager attention needs little memory.
_SHORT = 256


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Eager attention (eq. 5-6): returns `(B, Nq, heads, d_k)` and the weights `(B, heads, Nq, Nk)`."""
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    weights = masked_softmax(scores, None).to(query.dtype)
    dropped = nn.functional.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(dropped, value).transpose(1, 2), weights


def _unweighted_eager_attention(*args: Any, **kwargs: Unpack[TransformersKwargs]) -> tuple[torch.Tensor, None]:
    return eager_attention_forward(*args, **kwargs)[0], None


def masked_softmax(scores: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Softmax over the last dimension, exactly 0 where `mask` is 0; a fully masked row is all 0."""
    if mask is None:
        return scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(scores.dtype)
    hidden = mask == 0
    scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    return masked_softmax(scores, None).masked_fill(hidden, 0.0)


class AdditiveAttention(nn.Module):
    """Additive attention (Bahdanau et al. 2015): weights softmax_j v' tanh(W q + U k_j) of a query over keys, and the
    weighted mean of the keys."""

    def __init__(self, query_size: int, key_size: int, inner_size: int) -> None:
        super().__init__()
        self.query = nn.Linear(query_size, inner_size)
        self.key = nn.Linear(key_size, inner_size, bias=False)
        self.score = nn.Linear(inner_size, 1, bias=False)

    def forward(
        self, query: torch.Tensor, states: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries `(B, query_size)`, states `(B, L, key_size)`, their keys `key(states)` (shared by all queries), and
        mask `(B, L)` -> `(B, key_size)` and weights `(B, L)`."""
        scores = self.score((self.query(query).unsqueeze(1) + keys).tanh()).squeeze(-1)
        weights = masked_softmax(scores, mask)
        return (weights.unsqueeze(1) @ states).squeeze(1), weights


class MultiHeadAttention(nn.Module):
    """Multi-head attention without an output projection (mean-max autoencoder, eq. 3-7).

    Maps queries of width `query_size` and keys of width `key_size` to `config.hidden_size`; the output is the
    concatenation of the heads. With `adds_value` (self-attention only), each state's own value is added to its output.
    """

    def __init__(
        self,
        config: PreTrainedConfig,
        query_size: int,
        key_size: int,
        layer_idx: int,
        is_causal: bool = False,
        adds_value: bool = False,
    ) -> None:
        super().__init__()
        self.adds_value = adds_value
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = is_causal
        self.num_heads = config.num_attention_heads
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.scaling = self.head_dim**-0.5
        self.attention_dropout = config.attention_dropout
        self.query = nn.Linear(query_size, config.hidden_size, bias=config.attention_bias)
        self.key = nn.Linear(key_size, config.hidden_size, bias=config.attention_bias)
        self.value = nn.Linear(key_size, config.hidden_size, bias=config.attention_bias)

    def _heads(self, projected: torch.Tensor) -> torch.Tensor:
        if self.config.projection_activation == "relu":
            projected = nn.functional.relu(projected)
        return projected.view(*projected.shape[:-1], self.num_heads, self.head_dim).transpose(1, 2)

    def forward(
        self,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        projected: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`(B, Nq, query_size)` -> `(B, Nq, hidden_size)` and, with eager attention, weights `(B, heads, Nq, Nk)`.

        `projected` `(B, Nq, 3 * hidden_size)` are query, key and value of the states, if they are already computed.
        """
        if projected is not None:
            query, key, value = map(self._heads, projected.chunk(3, dim=-1))
        else:
            # Cast once: autocast would do so for each projection, and again for each gradient.
            hidden_states = hidden_states.to(autocast_dtype(hidden_states))
            states = hidden_states
            if key_value_states is not None:
                states = key_value_states.to(autocast_dtype(key_value_states))
            query = self._heads(self.query(hidden_states))
            key, value = self._heads(self.key(states)), self._heads(self.value(states))
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        implementation = self.config._attn_implementation
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
        # The length is checked last: in an exported graph the check would bound it.
        if (
            implementation == "sdpa"
            and not self.is_causal
            and query.is_cpu
            and query.dtype == torch.bfloat16
            and key.shape[2] <= _SHORT
        ):
            # On texts of this length, torch's own kernel takes over 1.5 times as long.
            attend = _unweighted_eager_attention
        output, weights = attend(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        if self.adds_value:
            output = output + value.transpose(1, 2)
        return output.flatten(-2), weights
