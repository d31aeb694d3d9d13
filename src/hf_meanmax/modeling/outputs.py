"""The output classes of the models."""

from dataclasses import dataclass

import torch
from transformers.modeling_outputs import (
    BaseModelOutputWithPastAndCrossAttentions,
    ModelOutput,
    Seq2SeqLMOutput,
    SequenceClassifierOutput,
)


@dataclass
class LatentModelOutput(ModelOutput):
    """Output of every `...Model`.

    Args:
        last_hidden_state: hidden states `(B, N, d)`.
        pooler_output: the sentence embedding, Z flattened, `(B, L * latent_width)`, as the decoder reads it (of
            normalised rows with `latent_normalization`). None for `pooling="none"`, like `latents`.
        latents: Z `(B, L, latent_width)`.
        hidden_states: on request, the input `(B, N, embedding_size)` and each layer's output.
        attentions: on request (eager attention), each layer's weights `(B, heads, N, N)`.
        pooling_attentions: weights `(B, latent_heads, N)` of `inner_attention`, 0 at padding; None for other poolings.
    """

    last_hidden_state: torch.Tensor | None = None
    pooler_output: torch.Tensor | None = None
    latents: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
    pooling_attentions: torch.Tensor | None = None


@dataclass
class LatentSeq2SeqOutput(Seq2SeqLMOutput):
    """A `Seq2SeqLMOutput` with the latent rows Z `(B, L, latent_width)` that were
    decoded; None for `pooling="none"`.

    `encoder_last_hidden_state` is the decoder's only input from the encoder: Z, or the hidden states if there are no
    rows. `attention_penalty` is the mean overlap of the heads of `inner_attention`, without its weight. `latent_gates`
    are, on request (`output_latent_gates=True`), the gates `(B, T, R, d)` of each layer of a decoder with gates, on the
    R rows named by `config.gated_rows`.
    """

    latents: torch.Tensor | None = None
    attention_penalty: torch.Tensor | None = None
    latent_gates: tuple[torch.Tensor, ...] | None = None


@dataclass
class LatentClassifierOutput(SequenceClassifierOutput):
    """A `SequenceClassifierOutput` with the weights `(B, L, N)` of `inner_attention` (of pairs `(2 B, L, N)`, all first
    texts before all second ones) and the mean overlap of its heads, which enters the loss with the weight
    `config.attention_penalty`."""

    attention_penalty: torch.Tensor | None = None
    pooling_attentions: torch.Tensor | None = None


@dataclass
class DecoderOutput(BaseModelOutputWithPastAndCrossAttentions):
    """Output of a decoder: `last_hidden_state` `(B, T, d)`, the extended cache, and recorded states and weights."""

    latent_gates: tuple[torch.Tensor, ...] | None = None
