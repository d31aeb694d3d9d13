"""Configuration of compound attention."""

from typing import ClassVar, Literal

from huggingface_hub.dataclasses import strict

from .configuration_base import DecoderType, EncoderType, LatentConfig, Pooling, PositionType
from .suggestions import did_you_mean

_GRU = {"encoder_type": "bigru", "decoder_type": "conditional_gru", "position_embedding_type": "none"}
_TRANSFORMER = {
    "encoder_type": "self_attention", "decoder_type": "attention", "position_embedding_type": "sinusoidal",
    "decoder_context": "attention", "decoder_initial_state": False,
}  # fmt: skip
_STATE = {**_GRU, "decoder_context": "none", "decoder_initial_state": True}
_CONSTANT = {**_GRU, "decoder_context": "constant", "decoder_initial_state": True}
_ATTENTION = {**_GRU, "decoder_context": "attention", "decoder_initial_state": False}

# Table 4.1 of the thesis, and the two Transformers of its section 4.3.
ARCHITECTURES: dict[str, dict[str, object]] = {
    "attn": {**_ATTENTION, "pooling": "none"},
    "final": {**_STATE, "pooling": "last"},
    "final-ctx": {**_CONSTANT, "pooling": "last"},
    "avgpool": {**_STATE, "pooling": "mean"},
    "maxpool": {**_STATE, "pooling": "max"},
    "avgpool-ctx": {**_CONSTANT, "pooling": "mean"},
    "maxpool-ctx": {**_CONSTANT, "pooling": "max"},
    "attn-ctx": {**_CONSTANT, "pooling": "inner_attention"},
    "attn-attn": {**_ATTENTION, "pooling": "inner_attention"},
    "trf": {**_TRANSFORMER, "pooling": "none"},
    "trf-attn-attn": {**_TRANSFORMER, "pooling": "inner_attention"},
}


_REPRESENTATION_SIZE = 600
_HEADS = 12


@strict
class CompoundAttentionConfig(LatentConfig):
    r"""Compound attention (Cifka 2018, "Continuous Sentence Representations in Neural Machine Translation"):
    translation through a sentence representation of fixed size, and the translators it is compared with. The default
    is ATTN-ATTN with 12 heads and 600-dimensional vectors.

    Args:
        architecture (str, optional, defaults to "attn-attn"):
            One of the thesis's architectures (table 4.1 and section 4.3): `"attn"`, `"final"`, `"final-ctx"`,
            `"avgpool"`, `"maxpool"`, `"avgpool-ctx"`, `"maxpool-ctx"`, `"attn-ctx"`, `"attn-attn"`, `"trf"`,
            `"trf-attn-attn"`. It sets `encoder_type`, `pooling`, `decoder_type`, `decoder_context`,
            `decoder_initial_state` and `position_embedding_type`, and refuses other values of these. With `None` they
            can be set one by one; those left out are as in `"attn-attn"`.
        latent_heads (int, optional, defaults to 12 for pooling="inner_attention" and 1 for the others):
            Rows of the representation.
        latent_size (int, optional, defaults to 600 // number of rows):
            Width of a row; the representation has 600 numbers or a little less. `"attn"` and `"trf"` have none.

    The other fields are described at [`LatentConfig`][].
    """

    model_type = "compound_attention"
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoConfig": "configuration_compound_attention.CompoundAttentionConfig",
        "AutoModel": "modeling_compound_attention.CompoundAttentionModel",
        "AutoModelForSeq2SeqLM": "modeling_compound_attention.CompoundAttentionForTranslation",
        "AutoModelForSequenceClassification": "modeling_compound_attention.CompoundAttentionForSequenceClassification",
    }

    architecture: str | None = "attn-attn"
    vocab_size: int = 30000
    embedding_size: int = 300
    hidden_size: int = 512
    intermediate_size: int = 2048
    num_attention_heads: int = 8
    initializer_range: float | int = 0.7
    # None until the architecture has set them.
    encoder_type: EncoderType | None = None  # type: ignore[assignment]
    pooling: Pooling | None = None  # type: ignore[assignment]
    latent_heads: int | None = None  # type: ignore[assignment]
    decoder_type: DecoderType | None = None  # type: ignore[assignment]
    decoder_context: Literal["attention", "constant", "none"] | None = None  # type: ignore[assignment]
    decoder_initial_state: bool | None = None  # type: ignore[assignment]
    position_embedding_type: PositionType | None = None  # type: ignore[assignment]

    def __post_init__(self, **kwargs: object) -> None:
        if self.architecture is not None and self.architecture not in ARCHITECTURES:
            hint = did_you_mean(self.architecture, ARCHITECTURES)
            raise ValueError(
                f"`architecture` is {self.architecture!r}.{hint} Allowed: {', '.join(map(repr, ARCHITECTURES))}, or "
                "None to set the parts one by one."
            )
        for name, value in ARCHITECTURES[self.architecture or "attn-attn"].items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        self.validate_architecture()
        if self.latent_heads is None:
            self.latent_heads = _HEADS if self.pooling == "inner_attention" else 1
        if self.latent_size is None and self.has_latents:
            self.latent_size = max(1, _REPRESENTATION_SIZE // max(1, self.num_latents))
        super().__post_init__(**kwargs)

    def validate_architecture(self) -> None:
        """Checks that the parts are those of the architecture, even if a field was set later."""
        if self.architecture is None:
            return
        for name, value in ARCHITECTURES[self.architecture].items():
            if getattr(self, name) != value:
                raise ValueError(
                    f"`{name}` is {getattr(self, name)!r}, but `architecture={self.architecture!r}` means {value!r}. "
                    "Leave one of the two out (with `architecture=None` the parts can be set one by one)."
                )


__all__ = ["CompoundAttentionConfig"]
