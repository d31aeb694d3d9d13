"""What the models return."""

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
        pooler_output: the sentence embedding, Z flattened, `(B, L * latent_width)`, as the decoder reads it (of unit
            rows with `latent_normalization`). None for `pooling="none"`, like `latents`.
        latents: Z `(B, L, latent_width)`.
        hidden_states: on request, the input `(B, N, embedding_size)` and each layer's output.
        attentions: on request (eager attention), each layer's weights `(B, heads, N, N)`.
        pooling_attentions: weights `(B, latent_heads, N)` of a pooling that attends, 0 at padding; or None.
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

    `encoder_last_hidden_state` is all that the decoder reads of the encoder: Z, or the hidden states where there are no
    rows. `attention_penalty` is the mean overlap of the heads of `inner_attention`, without its weight. `latent_gates`
    are, on request (`output_latent_gates=True`), the gates `(B, T, R, d)` of each layer of a decoder that has them, on
    the R rows that `config.gated_rows` names.
    """

    latents: torch.Tensor | None = None
    attention_penalty: torch.Tensor | None = None
    latent_gates: tuple[torch.Tensor, ...] | None = None


@dataclass
class LatentClassifierOutput(SequenceClassifierOutput):
    """A `SequenceClassifierOutput` with the weights `(B, L, N)` of a pooling that
    attends (of pairs `(2 B, L, N)`, all first texts before all second ones), and the mean overlap of its heads, which
    the loss has times `config.attention_penalty`."""

    attention_penalty: torch.Tensor | None = None
    pooling_attentions: torch.Tensor | None = None


@dataclass
class DecoderOutput(BaseModelOutputWithPastAndCrossAttentions):
    """What a decoder returns: `last_hidden_state` `(B, T, d)`, the extended cache, and what was recorded."""

    latent_gates: tuple[torch.Tensor, ...] | None = None
