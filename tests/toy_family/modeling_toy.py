"""The models of a family that is not in the package."""

from hf_meanmax.modeling.classifier_model import LatentForSequenceClassification
from hf_meanmax.modeling.conditional_decoding import LatentForConditionalDecoding
from hf_meanmax.modeling.encoder_model import LatentEncoderModel
from toy_family.configuration_toy import ToyConfig


class ToyModel(LatentEncoderModel):
    config: ToyConfig


class ToyForReconstruction(LatentForConditionalDecoding):
    config: ToyConfig
    encoder_class = ToyModel


class ToyForSequenceClassification(LatentForSequenceClassification):
    config: ToyConfig
    encoder_class = ToyModel
