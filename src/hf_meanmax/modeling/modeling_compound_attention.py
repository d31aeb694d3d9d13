"""Compound attention: the encoder, and the encoder with its decoder."""

from .classifier_model import LatentForSequenceClassification
from .conditional_decoding import LatentForConditionalDecoding
from .configuration_compound_attention import CompoundAttentionConfig
from .encoder_model import LatentEncoderModel


class CompoundAttentionModel(LatentEncoderModel):
    """Encoder of compound attention: tokens -> BiGRU or Transformer -> inner attention, pooling, or the last state.

    `"attn"` and `"trf"` have no fixed representation: their `latents` and `pooler_output` are None.
    """

    config: CompoundAttentionConfig


class CompoundAttentionForTranslation(LatentForConditionalDecoding):
    """Compound attention with its decoder: translates text, or its representation alone.

    Labels are the translation. `cross_attentions` are the decoder's weights B over the rows, the encoder's
    `pooling_attentions` the rows' weights A over the words; their product is the alignment of the two sentences.
    """

    config: CompoundAttentionConfig
    encoder_class = CompoundAttentionModel


class CompoundAttentionForSequenceClassification(LatentForSequenceClassification):
    """The encoder with a supervised head, over one text or two."""

    config: CompoundAttentionConfig
    encoder_class = CompoundAttentionModel


__all__ = ["CompoundAttentionForTranslation", "CompoundAttentionForSequenceClassification", "CompoundAttentionModel"]
