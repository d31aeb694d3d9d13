"""Configuration of the decoder of any embedder."""

from typing import ClassVar

from huggingface_hub.dataclasses import strict

from .configuration_base import DecoderType, EncoderType, LatentConfig, Pooling, PositionType


@strict
class EmbeddingDecoderConfig(LatentConfig):
    r"""A decoder of another embedder's vectors: a map from the vector to latent rows, and any autoregressive decoder.

    The fields are described at [`LatentConfig`][]; those of the encoder, the pooling and the classifier keep their
    defaults.

    Args:
        embedding_dim (int, defaults to 384):
            Dimension of the embedder's vectors.
        latent_length (int, defaults to 8):
            Latent rows that a vector is mapped to.
        latent_names (list[str], optional):
            Names of these rows, for a decoder taken from an autoencoder with named rows.
        map_hidden_size (int, optional):
            Width of the hidden layer (GELU) of the map; with None it is linear.
        map_layer_norm (bool, defaults to True):
            Whether each latent row is layer-normalised.
        normalize_embeddings (bool, defaults to False):
            Scale each vector to unit length first, for an embedder with unit vectors. Multiplying a vector by a
            positive number then does not change what it decodes to.
        embedder (dict, optional):
            Identifies the embedder: `name`, `revision`, `weights` and `pipeline` (hashes), `prompt`, `pooling`,
            `normalized` and `dimension`, as far as they are known.
    """

    model_type = "embedding_decoder"
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoConfig": "configuration_embedding_decoder.EmbeddingDecoderConfig",
        "AutoModelForSeq2SeqLM": "modeling_embedding_decoder.EmbeddingDecoderForGeneration",
    }
    fixed_fields: ClassVar[tuple[str, ...]] = (
        "encoder_type", "encoder_residual", "pooling", "weighted_mean_row", "weighted_mean_map",
        "weighted_mean_hidden_size", "frequency_smoothing", "freeze_word_weights", "latent_heads",
        "pooling_hidden_size", "mean_first", "separate_vocabularies", "predict_previous", "num_context_words",
        "context_channels", "attention_penalty", "teacher_size", "contrastive_size", "pair_combination", "pair_size",
        "classifier_type", "classifier_hidden_size", "classifier_row_size", "classifier_column_size",
        "classifier_dropout",
    )  # fmt: skip

    vocab_size: int = 20000
    embedding_size: int = 300
    hidden_size: int = 512
    intermediate_size: int = 1024
    num_attention_heads: int = 8
    encoder_type: EncoderType = "none"
    pooling: Pooling = "none"
    decoder_type: DecoderType = "attention"
    position_embedding_type: PositionType = "sinusoidal"
    # As large as the sinusoidal codes, which would drown smaller word vectors.
    initializer_range: float | int = 0.7
    embedding_dim: int = 384
    latent_length: int = 8
    latent_names: list[str] | None = None
    map_hidden_size: int | None = None
    map_layer_norm: bool = True
    normalize_embeddings: bool = False
    embedder: dict[str, str | int | bool | None] | None = None

    @property
    def reads_text(self) -> bool:
        """False: there is no text encoder."""
        return False

    @property
    def ignores_length(self) -> bool:
        """Whether multiplying a vector by a positive number leaves its decoding unchanged."""
        return self.normalize_embeddings

    @property
    def has_latents(self) -> bool:
        """True: the map always gives latent rows."""
        return True

    @property
    def state_pooling_rows(self) -> tuple[str, ...]:
        """Names of the latent rows, in their order."""
        return tuple(self.latent_names or (f"row_{row + 1}" for row in range(self.latent_length)))

    @property
    def embedder_name(self) -> str:
        """The embedder's name in messages."""
        return f"{(self.embedder or {}).get('name') or 'the embedder'}"

    def validate_map(self) -> None:
        """Checks the map's sizes, the rows' names, the decoder and the dimension of the embedder's vectors."""
        for name in ("embedding_dim", "latent_length", "map_hidden_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"`{name}` is {value}; it must be 1 or more.")
        names = self.latent_names
        if names is not None and not len(set(names)) == len(names) == self.latent_length:
            raise ValueError(
                f"`latent_names` is {self.latent_names} and `latent_length` {self.latent_length}: each row needs a "
                "name of its own. Leave the names out."
            )
        if not self.is_autoregressive:
            raise ValueError(
                f"`decoder_type` is {self.decoder_type!r}; a decoder of embeddings is autoregressive, for instance "
                "'attention'."
            )
        if self.input_vocab_size != self.vocab_size:
            raise ValueError(
                f"`input_vocab_size` is {self.input_vocab_size} and `vocab_size` {self.vocab_size}: without a text "
                "encoder there is one vocabulary. Leave `input_vocab_size` out."
            )
        dimension = (self.embedder or {}).get("dimension")
        if dimension is not None and dimension != self.embedding_dim:
            raise ValueError(
                f"`embedding_dim` is {self.embedding_dim}, and the vectors of {self.embedder_name} have {dimension} "
                f"numbers. Set `embedding_dim` to {dimension}."
            )


__all__ = ["EmbeddingDecoderConfig"]
