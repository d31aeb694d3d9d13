"""The decoder as a transformers model."""

import torch
from transformers.cache_utils import Cache
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_outputs import ModelOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention import MultiHeadAttention
from .base import LatentPreTrainedModel
from .decoders import DECODERS, LatentWeights
from .layers import LatentGates, SequenceLayer
from .losses import IGNORE_INDEX
from .outputs import DecoderOutput


class LatentDecoderModel(LatentPreTrainedModel):
    """A decoder of `decoders.py` as a transformers model, which records hidden states and attentions."""

    _can_record_outputs = {
        "hidden_states": SequenceLayer,
        # transformers 5.10 looks for the name anywhere in a path; the dot keeps `latent_attention` out.
        "attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name=".attention"),
        "cross_attentions": [
            OutputRecorder(MultiHeadAttention, index=1, layer_name="latent_attention"),
            OutputRecorder(LatentWeights, index=1),
        ],
        "latent_gates": OutputRecorder(LatentGates, index=1),
    }

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.sequence_decoder = DECODERS[config.decoder_type](config)
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        inputs_embeds: torch.Tensor | None,
        latents: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        latent_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ModelOutput:
        """`(B, T, embedding_size)`, or None for a non-autoregressive decoder, and Z `(B, L, d)` ->
        `last_hidden_state` `(B, T, d)`. `latent_mask` `(B, L)` hides padding if Z are hidden states."""
        self.refuse_unknown(kwargs)
        hidden_states = self.sequence_decoder(
            inputs_embeds, latents, attention_mask, past_key_values, latent_mask, **kwargs
        )
        return DecoderOutput(last_hidden_state=hidden_states, past_key_values=past_key_values)


def shift_right(labels: torch.Tensor, start_id: int, pad_id: int) -> torch.Tensor:
    """Decoder inputs `(B, T)` for targets `(B, T)`: the start symbol, then all targets but the last.

    Targets of -100 are padding; the start symbol stands right before the first target, so padding may be on either
    side.
    """
    is_target = labels != IGNORE_INDEX
    shifted = labels.roll(1, dims=1).masked_fill(torch.arange(labels.shape[1], device=labels.device) == 0, pad_id)
    is_first = is_target & (is_target.long().cumsum(dim=-1) == 1)
    shifted = shifted.masked_fill(shifted == IGNORE_INDEX, pad_id)
    return shifted.masked_fill(is_first, start_id)
