"""The gated mean-max attention autoencoder for paragraphs (Zhang, Wu, Li and Zhang)."""

from .classifier_model import LatentForSequenceClassification
from .conditional_decoding import LatentForConditionalDecoding
from .configuration_gated_mean_max_aae import GatedMeanMaxAAEConfig
from .encoder_model import LatentEncoderModel


class GatedMeanMaxAAEModel(LatentEncoderModel):
    """Encoder: self-attention, then the maximum and the mean over the tokens (eq. 8-14).

    `pooler_output` `(B, 2 * hidden_size)` is [max; mean], raw, by default; `config.pooling_rows` names the rows.
    """

    config: GatedMeanMaxAAEConfig


class GatedMeanMaxAAEForReconstruction(LatentForConditionalDecoding):
    """The whole autoencoder: at each step, gates select the parts of the two rows for the next word (eq. 15-23).

    `model(**inputs, output_latent_gates=True).latent_gates` holds the gates `(B, T, 2, hidden_size)` of each layer.
    """

    config: GatedMeanMaxAAEConfig
    encoder_class = GatedMeanMaxAAEModel


class GatedMeanMaxAAEForSequenceClassification(LatentForSequenceClassification):
    """The encoder with a supervised head, over one text or two."""

    config: GatedMeanMaxAAEConfig
    encoder_class = GatedMeanMaxAAEModel


__all__ = ["GatedMeanMaxAAEForReconstruction", "GatedMeanMaxAAEForSequenceClassification", "GatedMeanMaxAAEModel"]
