"""The structured self-attentive sentence embedding (Lin et al., ICLR 2017)."""

from .classifier_model import LatentForSequenceClassification
from .conditional_decoding import LatentForConditionalDecoding
from .configuration_structured_self_attention import StructuredSelfAttentionConfig
from .encoder_model import LatentEncoderModel


class StructuredSelfAttentionModel(LatentEncoderModel):
    """Encoder: a BiLSTM, then as many weighted means of its states as there are heads (eq. 2-7).

    `latents` are M `(B, r, hidden_size)`, `pooling_attentions` A `(B, r, N)`; `pooler_output` is M flattened, raw.
    """

    config: StructuredSelfAttentionConfig


class StructuredSelfAttentionForReconstruction(LatentForConditionalDecoding):
    """The encoder with a decoder that attends over the rows of M to reconstruct the input, and with the penalty.

    The paper's models learn from labels ([`StructuredSelfAttentionForSequenceClassification`][]); this one needs none.
    """

    config: StructuredSelfAttentionConfig
    encoder_class = StructuredSelfAttentionModel


class StructuredSelfAttentionForSequenceClassification(LatentForSequenceClassification):
    """The encoder with a supervised head, over one text (section 2) or two (appendix B), and with the penalty."""

    config: StructuredSelfAttentionConfig
    encoder_class = StructuredSelfAttentionModel


__all__ = [
    "StructuredSelfAttentionForReconstruction",
    "StructuredSelfAttentionForSequenceClassification",
    "StructuredSelfAttentionModel",
]
