"""From token vectors (B, N, embedding_size) to hidden states (B, N, hidden_size)."""

from typing import Any

import torch
from torch import nn
from transformers.configuration_utils import PreTrainedConfig
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_layers import GradientCheckpointingLayer

from .layers import FeedForward, MultiHeadAttention


class SelfAttentionLayer(GradientCheckpointingLayer):
    """a = LN(MHA(x, x, x)); h = LN(FFN(a) + a) (mean-max autoencoder, eq. 8-11).

    The first layer changes the width, so nothing is added around its attention; deeper layers have the usual residual.
    """

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__()
        input_size = config.embedding_size if layer_idx == 0 else config.hidden_size
        self.has_residual = layer_idx > 0
        self.attention = MultiHeadAttention(config, input_size, input_size, layer_idx)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.output_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: Any
    ) -> torch.Tensor:
        """`(B, N, input_size)` -> `(B, N, hidden_size)`."""
        attended, _ = self.attention(hidden_states, attention_mask=attention_mask, **kwargs)
        if self.has_residual:
            attended = attended + hidden_states
        attended = self.attention_norm(attended)
        return self.output_norm(self.feed_forward(attended) + attended)


class SelfAttentionEncoder(nn.Module):
    """A stack of self-attention layers."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(SelfAttentionLayer(config, i) for i in range(config.num_hidden_layers))

    def forward(self, inputs: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: Any) -> torch.Tensor:
        """Token vectors `(B, N, embedding_size)` and mask `(B, N)` -> `(B, N, hidden_size)`."""
        if attention_mask is not None:
            attention_mask = create_bidirectional_mask(self.config, inputs, attention_mask)
        hidden_states = inputs
        for layer in self.layers:
            hidden_states = layer(hidden_states, attention_mask=attention_mask, **kwargs)
        return hidden_states


ENCODERS = {"self_attention": SelfAttentionEncoder}
