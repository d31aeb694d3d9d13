"""From the words said so far and the latent rows Z to the hidden states that predict the next words."""

from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.configuration_utils import PreTrainedConfig
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer

from .layers import FeedForward, MultiHeadAttention


class LatentAttentionLayer(GradientCheckpointingLayer):
    """a = LN(MHA_causal(y, y, y)); c = LN(MHA(a, Z, Z) + a); h = LN(FFN(c) + c) (mean-max autoencoder, eq. 15-20).

    The first layer changes the width, so nothing is added around its self-attention; deeper layers have the usual
    residual.
    """

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__()
        input_size = config.embedding_size if layer_idx == 0 else config.hidden_size
        self.has_residual = layer_idx > 0
        self.attention = MultiHeadAttention(config, input_size, input_size, layer_idx, is_causal=True)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.latent_attention = MultiHeadAttention(config, config.hidden_size, config.hidden_size, layer_idx)
        self.latent_dropout = nn.Dropout(config.hidden_dropout)
        self.latent_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.output_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(
        self,
        hidden_states: torch.Tensor,
        latents: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """`(B, T, input_size)` and Z `(B, L, hidden_size)` -> `(B, T, hidden_size)`."""
        attended, _ = self.attention(
            hidden_states, attention_mask=attention_mask, past_key_values=past_key_values, **kwargs
        )
        if self.has_residual:
            attended = attended + hidden_states
        attended = self.attention_norm(attended)
        # The L projected rows are recomputed at each step: cheaper than a cache for them.
        context, _ = self.latent_attention(attended, key_value_states=latents, **kwargs)
        context = self.latent_norm(self.latent_dropout(context) + attended)
        return self.output_norm(self.feed_forward(context) + context)


class LatentAttentionDecoder(nn.Module):
    """An autoregressive decoder whose layers attend over the rows of Z."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(LatentAttentionLayer(config, i) for i in range(config.num_hidden_layers))

    def forward(
        self,
        inputs: torch.Tensor,
        latents: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Vectors `(B, T, embedding_size)` of the words said so far, Z `(B, L, d)` -> `(B, T, d)`.

        `attention_mask` `(B, past + T)` hides padding; `past_key_values` is extended in place.
        """
        if isinstance(past_key_values, EncoderDecoderCache):
            past_key_values = past_key_values.self_attention_cache
        mask = create_causal_mask(
            config=self.config, inputs_embeds=inputs, attention_mask=attention_mask, past_key_values=past_key_values
        )
        hidden_states = inputs
        for layer in self.layers:
            hidden_states = layer(
                hidden_states, latents, attention_mask=mask, past_key_values=past_key_values, **kwargs
            )
        return hidden_states


DECODERS = {"attention": LatentAttentionDecoder}
