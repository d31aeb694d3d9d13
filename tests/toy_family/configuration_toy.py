"""Configuration of a family that is not in the package: a GRU, its last state, and a GRU decoder."""

from typing import ClassVar

from huggingface_hub.dataclasses import strict

from hf_meanmax.modeling.configuration_base import DecoderType, EncoderType, LatentConfig, Pooling


@strict
class ToyConfig(LatentConfig):
    """The fields are described at `LatentConfig`."""

    model_type = "toy"
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoConfig": "configuration_toy.ToyConfig",
        "AutoModel": "modeling_toy.ToyModel",
        "AutoModelForSeq2SeqLM": "modeling_toy.ToyForReconstruction",
        "AutoModelForSequenceClassification": "modeling_toy.ToyForSequenceClassification",
    }

    encoder_type: EncoderType = "gru"
    pooling: Pooling = "last"
    decoder_type: DecoderType = "gru"
