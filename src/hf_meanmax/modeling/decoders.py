"""Decoders: from the preceding tokens and the latent rows Z to the hidden states that predict the next words."""

from itertools import pairwise
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.configuration_utils import PreTrainedConfig
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs

from .attention import AdditiveAttention, MultiHeadAttention
from .convolution import convolve
from .layers import FeedForward, LatentGates, SequenceLayer, is_plain
from .recurrent import cached_state, run_recurrent_on


class CausalLayer(SequenceLayer):
    """a = LN(MHA_causal(y, y, y)) (mean-max autoencoder, eq. 15-16), then attention over Z or gates on it.

    `attention`: c = LN(MHA(a, Z, Z) + a); h = LN(FFN(c) + c) (eq. 17-20). `gates`: f = LN(FFN(a) + a); h = LN(f + gated
    rows of Z) (Zhang, Wu, Li and Zhang, eq. 17-21). The first layer changes the width, so nothing is added around its
    self-attention; deeper layers have the usual residual.
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
        self.has_gates = config.decoder_type == "gates"
        if self.has_gates:
            self.latent_gates = LatentGates(config)
        else:
            self.latent_attention = MultiHeadAttention(config, config.hidden_size, config.latent_width, layer_idx)

    def forward(
        self,
        hidden_states: torch.Tensor,
        latents: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        latent_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """`(B, T, input_size)` and Z `(B, L, latent_width)` -> `(B, T, hidden_size)`."""
        attended, _ = self.attention(
            hidden_states, attention_mask=attention_mask, past_key_values=past_key_values, **kwargs
        )
        if self.has_residual:
            attended = attended + hidden_states
        states = self.attention_norm(attended)
        if self.has_gates:
            states = self.output_norm(self.feed_forward(states) + states)
            gated, _ = self.latent_gates(states, latents)
            return self.latent_norm(states + self.latent_dropout(gated))
        # The L projected rows are recomputed at each step: cheaper than a cache for them.
        context, _ = self.latent_attention(states, key_value_states=latents, attention_mask=latent_mask, **kwargs)
        states = self.latent_norm(self.latent_dropout(context) + states)
        return self.output_norm(self.feed_forward(states) + states)


class RecurrentDecoderLayer(SequenceLayer):
    """An LSTM over y that starts from latent rows (or from zeros), and may read the latent rows at each step.

    `lstm` does not. `lstm_attention`: c = LN(MHA(h, Z, Z) + h). `lstm_gates`: LN(h + gated rows of Z), with the gates
    of Zhang, Wu, Li and Zhang, eq. 19-21. Neither is fed back to the LSTM, so training runs over all steps at once.
    """

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        size = config.hidden_size
        self.lstm = nn.LSTM(config.embedding_size if layer_idx == 0 else size, size, batch_first=True)
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.state_row_indices = [config.pooling_rows.index(row) for row in config.state_rows]
        rows_size = len(config.state_rows) * config.latent_width
        self.initial_state = nn.Linear(rows_size, 2 * size) if config.state_rows else None
        reads_by = config.decoder_type
        self.latent_attention = (
            MultiHeadAttention(config, size, config.latent_width, layer_idx) if reads_by == "lstm_attention" else None
        )
        self.latent_gates = LatentGates(config) if reads_by == "lstm_gates" else None
        self.latent_norm = nn.Identity() if reads_by == "lstm" else nn.LayerNorm(size, eps=config.layer_norm_eps)

    def first_state(self, latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """h and c `(B, d)` before the first word: linear maps (of h under tanh) of the rows of Z that the decoder
        starts from, which are all that it receives of the encoder's last states."""
        if self.initial_state is None:
            zeros = latents.new_zeros(latents.shape[0], self.lstm.hidden_size)
            return zeros, zeros
        rows = torch.cat([latents[:, row] for row in self.state_row_indices], dim=-1)
        h, c = self.initial_state(rows).chunk(2, dim=-1)
        return h.tanh(), c

    def forward(
        self,
        hidden_states: torch.Tensor,
        latents: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """`(B, T, input_size)`, Z `(B, L, d)` and mask `(B, past + T)` -> `(B, T, d)`."""
        start = self.first_state(latents)
        states = run_recurrent_on(self.lstm, hidden_states, attention_mask, start, past_key_values, self.layer_idx)
        if self.latent_attention is not None:
            read, _ = self.latent_attention(states, key_value_states=latents, **kwargs)
        elif self.latent_gates is not None:
            read, _ = self.latent_gates(states, latents)
        else:
            return self.dropout(states)
        return self.latent_norm(states + self.dropout(read))


class ContextGRULayer(SequenceLayer):
    """A GRU that starts from zeros and reads all of Z and the previous word at each step (the decoder of skip-thought,
    Kiros et al. 2015: Z enters each of the three gates)."""

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        size = config.embedding_size if layer_idx == 0 else config.hidden_size
        self.gru = nn.GRU(size + config.sentence_embedding_size, config.hidden_size, batch_first=True)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(
        self,
        hidden_states: torch.Tensor,
        latents: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """`(B, T, input_size)`, Z `(B, L, d)` and mask `(B, past + T)` -> `(B, T, d)`."""
        context = latents.flatten(1).unsqueeze(1).expand(-1, hidden_states.shape[1], -1)
        inputs = torch.cat((hidden_states, context.to(hidden_states.dtype)), dim=-1)
        start = (hidden_states.new_zeros(len(latents), self.gru.hidden_size),)
        states = run_recurrent_on(self.gru, inputs, attention_mask, start, past_key_values, self.layer_idx)
        return self.dropout(states)


class ConditionalGRULayer(SequenceLayer):
    """Two GRU blocks per step (compound attention, section 4.1.2; Sennrich et al. 2017): the first reads the previous
    word, the second a context; a tanh layer over state, word and context gives the output.

    The context, by `decoder_context`: additive attention over the rows of Z (over the hidden states if there are no
    rows) with the first block's state as the query; all of Z; or nothing, without a second block.
    """

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        size = config.hidden_size
        word_size = config.embedding_size if layer_idx == 0 else size
        context_size = {
            "attention": config.latent_width, "constant": config.sentence_embedding_size, "none": 0,
        }[config.decoder_context]  # fmt: skip
        self.initial_state = nn.Linear(config.sentence_embedding_size, size) if config.decoder_initial_state else None
        # A trained start: the text then reaches the decoder through the context alone.
        self.start = None if config.decoder_initial_state else nn.Parameter(torch.zeros(size))
        self.word_block = nn.GRUCell(word_size, size)
        self.context_block = nn.GRUCell(context_size, size) if context_size else None
        attends = config.decoder_context == "attention"
        self.latent_attention = AdditiveAttention(size, config.latent_width, size) if attends else None
        self.weights = LatentWeights()
        self.readout = nn.Linear(size + word_size + context_size, size)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def first_state(self, latents: torch.Tensor) -> torch.Tensor:
        """h `(B, d)` before the first word."""
        if self.start is not None:
            return self.start.expand(len(latents), -1)
        initial_state: Any = self.initial_state
        return initial_state(latents.flatten(1)).tanh()

    def forward(
        self,
        hidden_states: torch.Tensor,
        latents: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        latent_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """`(B, T, input_size)`, Z `(B, L, latent_width)`, masks `(B, past + T)` and `(B, L)` -> `(B, T, d)`."""
        steps, dtype = hidden_states.shape[1], hidden_states.dtype
        (state,) = cached_state(past_key_values, self.layer_idx, (self.first_state(latents),))
        state = state.to(dtype)
        # Products that do not depend on the state are computed for all steps at once.
        word_gates = input_gates(self.word_block, hidden_states).unbind(dim=1)
        attention, context_gates, keys, context = self.latent_attention, None, None, None
        if attention is not None:
            keys = attention.key(latents)
        elif self.context_block is not None:
            context = latents.flatten(1).to(dtype)
            context_gates = input_gates(self.context_block, context)
        states, contexts, weights = [], [], []
        for t in range(steps):
            new = gru_step(self.word_block, word_gates[t], state)
            if attention is not None:
                context, attended = attention(new, latents, keys, latent_mask)
                context_gates = input_gates(self.context_block, context)
                contexts.append(context)
                weights.append(attended)
            if context_gates is not None:
                new = gru_step(self.context_block, context_gates, new)
            new = new.to(dtype)
            if attention_mask is not None:
                new = torch.where(attention_mask[:, t - steps].bool().unsqueeze(-1), new, state)
            state = new
            states.append(state)
            if past_key_values is not None:
                past_key_values.update(state[:, None, None], state[:, None, None], self.layer_idx)
        read = [torch.stack(states, dim=1), hidden_states]
        if contexts:
            attended_rows, _ = self.weights(torch.stack(contexts, dim=1), torch.stack(weights, dim=1))
            read.append(attended_rows.to(dtype))
        elif context is not None:
            read.append(context.unsqueeze(1).expand(-1, steps, -1))
        return self.dropout(self.readout(torch.cat(read, dim=-1)).tanh())


class LatentWeights(nn.Module):
    """Passes on the weights of stepwise attention, so that they can be recorded like those of an attention head."""

    def forward(self, context: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`(B, T, d)` and weights `(B, T, L)` -> the same, with the weights as `(B, 1, T, L)`."""
        return context, weights.unsqueeze(1)


def input_gates(block: Any, inputs: torch.Tensor) -> torch.Tensor:
    """The products `(..., 3 d)` of a GRU block with its inputs `(..., input_size)`; for a modified block, which
    computes them itself, the inputs unchanged."""
    if not is_plain(block, nn.GRUCell):
        return inputs
    return nn.functional.linear(inputs, block.weight_ih, block.bias_ih)


def gru_step(block: Any, gates: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """The next state `(B, d)` of a GRU block, from its [`input_gates`]."""
    if not is_plain(block, nn.GRUCell):
        return block(gates, state)
    reset_in, update_in, new_in = gates.chunk(3, dim=-1)
    reset, update, new = nn.functional.linear(state, block.weight_hh, block.bias_hh).chunk(3, dim=-1)
    update = torch.sigmoid(update_in + update)
    new = torch.tanh(new_in + torch.sigmoid(reset_in + reset) * new)
    return new + update * (state - new)


class CausalConvolutionLayer(SequenceLayer):
    """Convolutions over the preceding tokens, each joined with Z: the autoregressive CNN that RNN-CNN is compared with.

    `decoder_channels` are the widths of a linear map of word and Z, of convolutions over three words, and of a last one
    over a single word, with ReLU between them.
    """

    width = 3

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.expansion = nn.Linear(config.embedding_size + config.sentence_embedding_size, config.decoder_channels[0])
        self.convolutions = make_convolutions(config.decoder_channels, self.width)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(
        self,
        hidden_states: torch.Tensor,
        latents: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """`(B, T, embedding_size)`, Z `(B, L, d)` and mask `(B, past + T)` -> `(B, T, last of decoder_channels)`."""
        steps = hidden_states.shape[1]
        context = latents.flatten(1).unsqueeze(1).expand(-1, steps, -1)
        states = self.expansion(torch.cat((hidden_states, context.to(hidden_states.dtype)), dim=-1)).relu()
        if attention_mask is not None:
            # Padding before the first word then equals the zeros that a convolution sees there.
            states = states.masked_fill(attention_mask[:, -steps:].unsqueeze(-1) == 0, 0.0)
        if past_key_values is not None:
            # Copied as an int: a static cache returns the tensor that it counts in.
            past = int(past_key_values.get_seq_length(self.layer_idx))
            # Only the expanded words are cached; the convolutions are recomputed over the few words there are.
            kept, _ = past_key_values.update(states[:, None], states[:, None], self.layer_idx)
            states = kept[:, 0, : past + steps]
        *inner, last = self.convolutions
        for convolution in inner:
            states = convolve(convolution, self.dropout(states), before=self.width - 1).relu()
            if attention_mask is not None:
                states = states.masked_fill(attention_mask[:, -states.shape[1] :].unsqueeze(-1) == 0, 0.0)
        return convolve(last, self.dropout(states[:, -steps:]), before=0)


def make_convolutions(channels: list[int], width: int) -> nn.ModuleList:
    """Convolutions over `width` words, from each of `channels` to the next; the last one is over a single word."""
    pairs = list(pairwise(channels))
    return nn.ModuleList(
        nn.Conv1d(inner, outer, width if i < len(pairs) - 1 else 1) for i, (inner, outer) in enumerate(pairs)
    )


class NonAutoregressiveLayer(SequenceLayer):
    """Non-autoregressive decoder (RNN-CNN, section 2): a linear map of Z for each of N places, then layers over these.

    `words_cnn`: convolutions over three places, the last one over a single place, with ReLU before each.
    `words_rnn`: a BiGRU in place of all convolutions but the last, with about as many weights.
    """

    width = 3

    def __init__(self, config: PreTrainedConfig, channels: list[int] | None = None) -> None:
        super().__init__()
        channels = channels or config.decoder_channels
        self.places = config.num_context_words
        self.expansion = nn.Linear(config.sentence_embedding_size, self.places * channels[0])
        self.gru = None
        if config.decoder_type == "words_rnn":
            units = max(1, max(channels[1:]) // 3)
            self.gru = nn.GRU(channels[0], units, batch_first=True, bidirectional=True)
            channels = [2 * units, channels[-1]]
        self.convolutions = make_convolutions(channels, self.width)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, latents: torch.Tensor, **kwargs: Unpack[TransformersKwargs]) -> torch.Tensor:
        """Z `(B, L, d)` -> `(B, N, last of decoder_channels)`."""
        states = self.expansion(latents.flatten(1)).unflatten(1, (self.places, -1)).relu()
        if self.gru is not None:
            states, _ = self.gru(states)
        *inner, last = self.convolutions
        for convolution in inner:
            states = convolve(convolution, self.dropout(states), before=1).relu()
        states = self.dropout(states)
        return convolve(last, states, before=0)


class AutoregressiveDecoder(nn.Module):
    """A decoder that generates one word after the other: layers over the preceding tokens, each with access to Z."""

    layer_classes = {
        "attention": CausalLayer,
        "gates": CausalLayer,
        "lstm": RecurrentDecoderLayer,
        "lstm_attention": RecurrentDecoderLayer,
        "lstm_gates": RecurrentDecoderLayer,
        "gru": ContextGRULayer,
        "conditional_gru": ConditionalGRULayer,
        "causal_cnn": CausalConvolutionLayer,
    }

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.config = config
        layer_class = self.layer_classes[config.decoder_type]
        self.layers = nn.ModuleList(layer_class(config, i) for i in range(config.num_decoder_layers))

    def forward(
        self,
        inputs: torch.Tensor,
        latents: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        latent_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """Vectors `(B, T, embedding_size)` of the preceding tokens, Z `(B, L, latent_width)` -> `(B, T, d)`.

        `attention_mask` `(B, past + T)` hides padding, `latent_mask` `(B, L)` the padding of Z if these are hidden
        states; `past_key_values` is extended in place, by keys and values or by the states of the past steps.
        """
        if isinstance(past_key_values, EncoderDecoderCache):
            past_key_values = past_key_values.self_attention_cache
        if self.layer_classes[self.config.decoder_type] is CausalLayer:
            if latent_mask is not None:
                latent_mask = create_bidirectional_mask(self.config, inputs, latent_mask, encoder_hidden_states=latents)
            attention_mask = create_causal_mask(
                config=self.config, inputs_embeds=inputs, attention_mask=attention_mask, past_key_values=past_key_values
            )
        if latent_mask is not None:
            kwargs["latent_mask"] = latent_mask
        for layer in self.layers:
            inputs = layer(inputs, latents, attention_mask=attention_mask, past_key_values=past_key_values, **kwargs)
        return inputs


class NonAutoregressiveDecoder(nn.Module):
    """A non-autoregressive decoder, which reads nothing but Z."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList([NonAutoregressiveLayer(config)])

    def forward(
        self, inputs: None, latents: torch.Tensor, *args: object, **kwargs: Unpack[TransformersKwargs]
    ) -> torch.Tensor:
        """Z `(B, L, d)` -> `(B, N, last of decoder_channels)`."""
        return self.layers[0](latents, **kwargs)


DECODERS = {
    **dict.fromkeys(AutoregressiveDecoder.layer_classes, AutoregressiveDecoder),
    "words_cnn": NonAutoregressiveDecoder,
    "words_rnn": NonAutoregressiveDecoder,
}
