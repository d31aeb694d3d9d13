"""Configuration of the structured self-attentive embedding."""

from typing import ClassVar

from huggingface_hub.dataclasses import strict

from .configuration_base import DecoderType, EncoderType, LatentConfig, Pooling, PositionType


@strict
class StructuredSelfAttentionConfig(LatentConfig):
    r"""The structured self-attentive sentence embedding (Lin et al., ICLR 2017): several weighted means of a BiLSTM's
    states, whose weights a penalty keeps apart. The defaults are the paper's: 300 units per direction, an inner width
    of 350, 30 heads, a hidden layer of 3,000 (the paper has 2,000 to 4,000), penalty 1.0 (0.3 for entailment).

    `latent_heads=1` is one weighted mean; `pooling="max"`, `"mean"` or `"mean_max"` with `attention_penalty=0` are the
    baselines on the same BiLSTM; `encoder_type="self_attention"` with `position_embedding_type="sinusoidal"` replaces
    the BiLSTM. Without labels the family learns by reconstruction: an LSTM that starts from zeros and attends over the
    rows reconstructs the text.

    Args:
        attention_penalty (float, optional, defaults to 1.0 for pooling="inner_attention" and 0 for the others):
            Weight of the penalty.
        latent_heads (int, optional, defaults to 30 for pooling="inner_attention" and 1 for the others):
            Rows of the embedding.

    The other fields are described at [`LatentConfig`][].
    """

    model_type = "structured_self_attention"
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoConfig": "configuration_structured_self_attention.StructuredSelfAttentionConfig",
        "AutoModel": "modeling_structured_self_attention.StructuredSelfAttentionModel",
        "AutoModelForSeq2SeqLM": "modeling_structured_self_attention.StructuredSelfAttentionForReconstruction",
        "AutoModelForSequenceClassification": (
            "modeling_structured_self_attention.StructuredSelfAttentionForSequenceClassification"
        ),
    }

    vocab_size: int = 20000
    embedding_size: int = 300
    hidden_size: int = 600
    intermediate_size: int = 1200
    num_attention_heads: int = 8
    encoder_type: EncoderType = "bilstm"
    pooling: Pooling = "inner_attention"
    latent_heads: int | None = None  # type: ignore[assignment]
    pooling_hidden_size: int | None = 350
    attention_penalty: float | int | None = None  # type: ignore[assignment]
    decoder_type: DecoderType = "lstm_attention"
    position_embedding_type: PositionType = "none"
    initializer_range: float | int = 0.1
    classifier_hidden_size: int | None = 3000
    classifier_dropout: float | int = 0.5

    def __post_init__(self, **kwargs: object) -> None:
        attends = self.pooling == "inner_attention"
        if self.latent_heads is None:
            self.latent_heads = 30 if attends else 1
        if self.attention_penalty is None:
            self.attention_penalty = 1.0 if attends else 0.0
        super().__post_init__(**kwargs)


__all__ = ["StructuredSelfAttentionConfig"]
