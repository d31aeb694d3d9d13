"""From the words said so far and the latent rows Z to the hidden states that predict the next words."""

from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.configuration_utils import PreTrainedConfig
from transformers.masking_utils import create_causal_mask

from .layers import FeedForward, LatentGates, MultiHeadAttention, SequenceLayer, run_lstm


class CausalLayer(SequenceLayer):
    """a = LN(MHA_causal(y, y, y)) (mean-max autoencoder, eq. 15-16), which subclasses go on from.

    The first layer changes the width, so nothing is added around its self-attention; deeper layers have the usual
    residual.
    """

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__()
        input_size = config.embedding_size if layer_idx == 0 else config.hidden_size
        self.has_residual = layer_idx > 0
        self.attention = MultiHeadAttention(config, input_size, input_size, layer_idx, is_causal=True)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.latent_dropout = nn.Dropout(config.hidden_dropout)
        self.latent_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
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
        return self.read(self.attention_norm(attended), latents, **kwargs)

    def read(self, attended: torch.Tensor, latents: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """The output `(B, T, d)` of the attended states `(B, T, d)` and Z `(B, L, d)`."""
        raise NotImplementedError


class LatentAttentionLayer(CausalLayer):
    """c = LN(MHA(a, Z, Z) + a); h = LN(FFN(c) + c) (mean-max autoencoder, eq. 17-20)."""

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.latent_attention = MultiHeadAttention(config, config.hidden_size, config.hidden_size, layer_idx)

    def read(self, attended: torch.Tensor, latents: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        # The L projected rows are recomputed at each step: cheaper than a cache for them.
        context, _ = self.latent_attention(attended, key_value_states=latents, **kwargs)
        context = self.latent_norm(self.latent_dropout(context) + attended)
        return self.output_norm(self.feed_forward(context) + context)


class LatentGateLayer(CausalLayer):
    """f = LN(FFN(a) + a); h = LN(f + gated rows of Z) (Zhang, Wu, Li and Zhang, eq. 17-21)."""

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.latent_gates = LatentGates(config)

    def read(self, attended: torch.Tensor, latents: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        states = self.output_norm(self.feed_forward(attended) + attended)
        gated, _ = self.latent_gates(states, latents)
        return self.latent_norm(states + self.latent_dropout(gated))


class RecurrentDecoderLayer(SequenceLayer):
    """An LSTM over y that starts from latent rows (or from zeros), and what reads the latent rows at each step.

    `lstm`: nothing does. `lstm_attention`: c = LN(MHA(h, Z, Z) + h). `lstm_gates`: LN(h + gated rows of Z), the gates
    of Zhang, Wu, Li and Zhang, eq. 19-21. Neither is fed back, so training runs over all steps at once.
    """

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        size = config.hidden_size
        self.lstm = nn.LSTM(config.embedding_size if layer_idx == 0 else size, size, batch_first=True)
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.state_row_indices = [config.pooling_rows.index(row) for row in config.state_rows]
        self.initial_state = nn.Linear(len(config.state_rows) * size, 2 * size) if config.state_rows else None
        reads_by = config.decoder_type
        self.latent_attention = (
            MultiHeadAttention(config, size, size, layer_idx) if reads_by == "lstm_attention" else None
        )
        self.latent_gates = LatentGates(config) if reads_by == "lstm_gates" else None
        self.latent_norm = nn.Identity() if reads_by == "lstm" else nn.LayerNorm(size, eps=config.layer_norm_eps)

    def first_state(self, latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """h and c `(B, d)` before the first word: a tanh and a linear map of the rows of Z that the decoder starts
        from, since a latent row is all that it gets of the encoder's last states."""
        if self.initial_state is None:
            zeros = latents.new_zeros(latents.shape[0], latents.shape[-1])
            return zeros, zeros
        h, c = self.initial_state(latents[:, self.state_row_indices].flatten(1)).chunk(2, dim=-1)
        return h.tanh(), c

    def run(
        self,
        inputs: torch.Tensor,
        latents: torch.Tensor,
        attention_mask: torch.Tensor | None,
        past_key_values: Cache | None,
    ) -> torch.Tensor:
        """The LSTM's outputs `(B, T, d)`.

        The states of all past steps are kept as the keys (h) and values (c) of an attention with one head, so every
        kind of cache, beam search and cropping works as it does there.
        """
        h, c = self.first_state(latents)
        if past_key_values is not None:
            past = past_key_values.get_seq_length(self.layer_idx)
            if past > 0:
                layer = past_key_values.layers[self.layer_idx]
                h, c = layer.keys[:, 0, past - 1], layer.values[:, 0, past - 1]
        # A GPU takes whole states of the inputs' type alone; under autocast an LSTM gives another type than it takes.
        h, c = (state.to(inputs.dtype).contiguous() for state in (h, c))
        if past_key_values is None:
            return run_lstm(self.lstm, inputs, attention_mask, (h[None], c[None]))
        outputs = []
        for t in range(inputs.shape[1]):
            output, next_state = self.lstm(inputs[:, t : t + 1], (h[None], c[None]))
            next_h, next_c = (state[0].to(inputs.dtype) for state in next_state)
            if attention_mask is not None:
                is_word = attention_mask[:, t - inputs.shape[1]].bool().unsqueeze(-1)
                next_h, next_c = torch.where(is_word, next_h, h), torch.where(is_word, next_c, c)
            h, c = next_h, next_c
            past_key_values.update(h[:, None, None], c[:, None, None], self.layer_idx)
            outputs.append(output)
        return torch.cat(outputs, dim=1)

    def forward(
        self,
        hidden_states: torch.Tensor,
        latents: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """`(B, T, input_size)`, Z `(B, L, d)` and mask `(B, past + T)` -> `(B, T, d)`."""
        states = self.run(hidden_states, latents, attention_mask, past_key_values)
        if self.latent_attention is not None:
            read, _ = self.latent_attention(states, key_value_states=latents, **kwargs)
        elif self.latent_gates is not None:
            read, _ = self.latent_gates(states, latents)
        else:
            return self.dropout(states)
        return self.latent_norm(states + self.dropout(read))


class AttentionDecoder(nn.Module):
    """An autoregressive decoder of self-attention layers that read Z by attention or by gates."""

    layer_classes = {"attention": LatentAttentionLayer, "gates": LatentGateLayer}

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.config = config
        layer_class = self.layer_classes[config.decoder_type]
        self.layers = nn.ModuleList(layer_class(config, i) for i in range(config.num_hidden_layers))

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


class RecurrentDecoder(nn.Module):
    """An autoregressive decoder of LSTM layers, each with its own access to Z."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(RecurrentDecoderLayer(config, i) for i in range(config.num_hidden_layers))

    def forward(
        self,
        inputs: torch.Tensor,
        latents: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """As [`AttentionDecoder.forward`]; the cache holds the states of the past steps."""
        if isinstance(past_key_values, EncoderDecoderCache):
            past_key_values = past_key_values.self_attention_cache
        for layer in self.layers:
            inputs = layer(inputs, latents, attention_mask=attention_mask, past_key_values=past_key_values, **kwargs)
        return inputs


DECODERS = {
    "attention": AttentionDecoder,
    "gates": AttentionDecoder,
    "lstm": RecurrentDecoder,
    "lstm_attention": RecurrentDecoder,
    "lstm_gates": RecurrentDecoder,
}
