"""Configuration of the gated mean-max attention autoencoder."""

from typing import ClassVar

from huggingface_hub.dataclasses import strict

from .configuration_base import DecoderType, EncoderType, LatentConfig, Pooling, PositionType


@strict
class GatedMeanMaxAAEConfig(LatentConfig):
    r"""The gated mean-max attention autoencoder for paragraphs (Zhang, Wu, Li and Zhang); defaults are the paper's.

    The paper does not give the inner width of the feed-forward layers; here it is twice the hidden size. New word
    vectors have the size that Xavier's rule gives a table of 25,000 x 512. At first the position codes drown them;
    `initializer_range=0.7` learns far sooner.

    The paper's comparisons are configurations too: `pooling="mean"` or `"max"`; the gated mean-max RAE
    (`encoder_type="bilstm", pooling="mean_max_last", decoder_type="lstm_gates"`) and the plain RAE
    (`encoder_type="bilstm", pooling="last", decoder_type="lstm"`), both with `position_embedding_type="none"`.

    The fields are described at [`LatentConfig`][].
    """

    model_type = "gated_mean_max_aae"
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoConfig": "configuration_gated_mean_max_aae.GatedMeanMaxAAEConfig",
        "AutoModel": "modeling_gated_mean_max_aae.GatedMeanMaxAAEModel",
        "AutoModelForSeq2SeqLM": "modeling_gated_mean_max_aae.GatedMeanMaxAAEForReconstruction",
        "AutoModelForSequenceClassification": "modeling_gated_mean_max_aae.GatedMeanMaxAAEForSequenceClassification",
    }

    vocab_size: int = 25000
    embedding_size: int = 512
    hidden_size: int = 1024
    intermediate_size: int = 2048
    num_attention_heads: int = 8
    encoder_type: EncoderType = "self_attention"
    pooling: Pooling = "mean_max"
    decoder_type: DecoderType = "gates"
    position_embedding_type: PositionType = "sinusoidal"
    embedding_dropout: float | int = 0.2
    attention_dropout: float | int = 0.2
    initializer_range: float | int = 0.0089


__all__ = ["GatedMeanMaxAAEConfig"]
