"""Configuration of the mean-max attention autoencoder."""

from typing import ClassVar

from huggingface_hub.dataclasses import strict

from .configuration_base import DecoderType, EncoderType, LatentConfig, Pooling, PositionType


@strict
class MeanMaxAAEConfig(LatentConfig):
    r"""The mean-max attention autoencoder (Zhang, Wu, Li and Li, EMNLP 2018); defaults are the paper's, except that
    word vectors are trained.

    The authors' released code differs from the paper's equations; it corresponds to
    `MeanMaxAAEConfig(attention_bias=True, projection_activation="relu", position_embedding_type="learned",
    max_position_embeddings=34, label_smoothing=0.1, layer_norm_eps=1e-8, mean_first=True)`, exported with
    L2-normalised rows. Paper and code freeze GloVe vectors; give `freeze_word_embeddings=True` with such vectors.

    Its ablations and baselines are configurations too: `pooling="mean"` or `"max"`; the mean-max RAE
    (`encoder_type="bilstm", decoder_type="lstm_attention"`), the LSTM denoising autoencoder (`encoder_type="lstm",
    pooling="last", decoder_type="lstm"`, trained with noise) and the CNN-LSTM autoencoder (`encoder_type="cnn",
    pooling="max", decoder_type="lstm"`), all with `position_embedding_type="none"`.

    The fields are described at [`LatentConfig`][].
    """

    model_type = "mean_max_aae"
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoConfig": "configuration_mean_max_aae.MeanMaxAAEConfig",
        "AutoModel": "modeling_mean_max_aae.MeanMaxAAEModel",
        "AutoModelForSeq2SeqLM": "modeling_mean_max_aae.MeanMaxAAEForReconstruction",
        "AutoModelForSequenceClassification": "modeling_mean_max_aae.MeanMaxAAEForSequenceClassification",
    }

    vocab_size: int = 21583
    embedding_size: int = 300
    hidden_size: int = 2048
    intermediate_size: int = 4096
    num_attention_heads: int = 8
    encoder_type: EncoderType = "self_attention"
    pooling: Pooling = "mean_max"
    decoder_type: DecoderType = "attention"
    position_embedding_type: PositionType = "sinusoidal"
    embedding_dropout: float | int = 0.5
    attention_dropout: float | int = 0.5
    # As large as the sinusoidal codes, which would drown smaller word vectors.
    initializer_range: float | int = 0.7


__all__ = ["MeanMaxAAEConfig"]
