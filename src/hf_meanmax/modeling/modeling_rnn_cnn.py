"""RNN-CNN: sentence vectors learnt by predicting the words that follow ("Exploring Asymmetric Encoder-Decoder Structure
for Context-based Sentence Representation Learning")."""

from .classifier_model import LatentForSequenceClassification
from .conditional_decoding import LatentForConditionalDecoding
from .configuration_rnn_cnn import RNNCNNConfig
from .encoder_model import LatentEncoderModel


class RNNCNNModel(LatentEncoderModel):
    """Encoder: a BiGRU, then the mean and the maximum over the tokens (section 2).

    `pooler_output` `(B, 2 * hidden_size)` is [mean; max], raw, by default; `config.pooling_rows` names the rows.
    """

    config: RNNCNNConfig


class RNNCNNForContextPrediction(LatentForConditionalDecoding):
    """The encoder with a decoder of the words that follow, all at once: `predict_words()` gives the likeliest.

    An autoregressive decoder, which configurations of the paper's ablations have, has `generate()` in its place.
    """

    config: RNNCNNConfig
    encoder_class = RNNCNNModel


class RNNCNNForSequenceClassification(LatentForSequenceClassification):
    """The encoder with a supervised head, over one text or two."""

    config: RNNCNNConfig
    encoder_class = RNNCNNModel


__all__ = ["RNNCNNForContextPrediction", "RNNCNNForSequenceClassification", "RNNCNNModel"]
