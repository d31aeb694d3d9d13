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
    """The encoder with a non-autoregressive decoder of the words that follow: `predict_words()` gives the likeliest.

    With an autoregressive decoder, as in the paper's ablations, `generate()` takes its place.
    """

    config: RNNCNNConfig
    encoder_class = RNNCNNModel


class RNNCNNForSequenceClassification(LatentForSequenceClassification):
    """The encoder with a supervised head, over one text or two."""

    config: RNNCNNConfig
    encoder_class = RNNCNNModel


__all__ = ["RNNCNNForContextPrediction", "RNNCNNForSequenceClassification", "RNNCNNModel"]
