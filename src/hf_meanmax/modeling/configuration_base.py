"""Fields and checks that the configurations of all families share."""

import copy
import dataclasses
import math
from collections.abc import Iterable
from typing import Any, ClassVar, Literal

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError
from transformers import GenerationConfig
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils import logging

from .configuration_checks import (
    DECODERS_WITH_CHANNELS,
    WEIGHTED_MEAN,
    check_channels,
    check_context,
    check_latents,
    check_parts,
    check_weighted_mean,
)
from .suggestions import did_you_mean

logger = logging.get_logger(__name__)

# Stands for an unlimited text length: no text is this long.
NO_LIMIT = 2**31 - 1

# Names that transformers itself passes to a configuration beside its declared fields.
_TRANSFORMERS_KEYWORDS = {
    "_attn_implementation",
    "_commit_hash",
    "_name_or_path",
    "attn_implementation",
    "auto_map",
    "custom_pipelines",
    "model_type",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "quantization_config",
    "tokenizer_class",
    "torch_dtype",
    "trust_remote_code",
}

POOLING_ROWS = {
    "mean_max": ("max", "mean"),
    "max": ("max",),
    "mean": ("mean",),
    "last": ("last",),
    "mean_max_last": ("max", "mean", "last"),
    "weighted_mean": (),
}
EncoderType = Literal["self_attention", "bilstm", "lstm", "bigru", "gru", "cnn", "hierarchical_cnn", "none"]
PositionType = Literal["sinusoidal", "learned", "none"]
Pooling = Literal["mean_max", "mean", "max", "last", "mean_max_last", "inner_attention", "weighted_mean", "none"]


DecoderType = Literal[
    "attention", "gates", "lstm", "lstm_attention", "lstm_gates", "gru", "conditional_gru", "causal_cnn", "words_cnn",
    "words_rnn", "none",
]  # fmt: skip


@strict
class LatentConfig(PreTrainedConfig):
    """Base of every configuration: a choice of encoder, pooling and decoder, and their sizes.

    The defaults here are neutral; each family sets its own parts and sizes, and may add fields.

    Args:
        vocab_size (int, defaults to 30000):
            Number of tokens that the decoder can generate.
        input_vocab_size (int, optional, defaults to vocab_size):
            Rows of the encoder's word table. Larger than `vocab_size` after a vocabulary expansion; ids below
            `vocab_size` mean the same token on both sides.
        separate_vocabularies (bool, defaults to False):
            Give the decoder its own word table, for another tokenizer than the encoder's. `input_vocab_size` may then
            be any size; the special tokens have the same ids on both sides.
        embedding_size (int, defaults to 300):
            Width of the word vectors.
        hidden_size (int, defaults to 512):
            Width of the hidden states and of each latent row.
        num_hidden_layers (int, defaults to 1):
            Layers of the encoder and of the decoder (a non-autoregressive decoder and `causal_cnn` always have one).
        intermediate_size (int, defaults to 2048):
            Inner width of the feed-forward layers.
        num_attention_heads (int, defaults to 8):
            Heads of every attention; must divide `hidden_size`.
        attention_bias (bool, defaults to False):
            Whether the query, key and value projections have biases.
        projection_activation ("relu" or None, optional):
            Activation on the query, key and value projections.
        attention_dropout (float, defaults to 0.0):
            Dropout on the weights of multi-head attention, not of inner or additive attention.
        encoder_type ("self_attention", "bilstm", "lstm", "bigru", "gru", "cnn", "hierarchical_cnn" or \
            "none", defaults to "self_attention"):
            The network that turns tokens into hidden states; `"none"` is a static model. Its hidden states are the word
            vectors, and it needs `pooling="weighted_mean"`. A `bilstm` or `bigru` has `hidden_size / 2` units per
            direction; a `cnn` splits `hidden_size` among filters of 3, 4 and 5 words; a `hierarchical_cnn` splits it
            among its layers, whose outputs are concatenated.
        encoder_residual (bool, defaults to False):
            In the first layer of a `self_attention` encoder, add each token's own value to its attention output. The
            mean-max papers have no residual there, so a word reaches its own state through attention alone.
        pooling ("mean_max", "mean", "max", "last", "mean_max_last", "inner_attention", "weighted_mean" \
            or "none", defaults to "mean"):
            The latent rows: maximum, mean or last state over the tokens, weighted means, or no rows. The last state is
            that of each direction in a `bilstm` or `bigru`. `inner_attention` gives weighted means of the states with
            weights from a small network, `weighted_mean` a mean of the word vectors with one weight per word (see
            `weighted_mean_row`). With `none` the decoder attends over the hidden states and there is no embedding.
        weighted_mean_row (bool, defaults to False):
            Add a last row to those of `pooling`: a mean of the word vectors, without positions, with one weight per
            word. The weights start from word frequencies p as a / (a + p), the smooth inverse frequency of Arora, Liang
            and Ma (ICLR 2017), and are trained. A linear map follows, which starts as the identity if the word vectors
            are no wider than a row. Special tokens have no weight.
        weighted_mean_map (bool, defaults to True):
            Whether a linear map follows the weighted mean. Without it the word vectors must be as wide as a row.
        weighted_mean_hidden_size (int, optional):
            Inner width of a residual feed-forward layer over the weighted mean, mapped and scaled to unit length. The
            layer models which words occur together and starts as the identity. Default: no layer.
        frequency_smoothing (float, defaults to 1e-3):
            The a of the initial word weights, a / (a + frequency), of the weighted mean.
        freeze_word_weights (bool, defaults to False):
            Keep the word weights of the weighted mean at their initial values.
        latent_normalization ("rows", optional):
            Scale each latent row to unit length inside the model, so that one vector serves cosines and the decoder.
            Multiplying a vector by a positive number then does not change what it decodes to.
        latent_scales (bool, defaults to False):
            With `latent_normalization="rows"`, multiply each row by the absolute value of a trained scale. The square
            of the scale is the row's share in a cosine.
        latent_heads (int, defaults to 1):
            Rows of `inner_attention`.
        latent_size (int, optional, defaults to hidden_size):
            Width of a latent row: the hidden states are projected to it before they are combined.
        pooling_hidden_size (int, optional, defaults to hidden_size):
            Inner width of the network that weighs the tokens for `inner_attention`.
        mean_first (bool, defaults to False):
            Put the mean row before the max row. The decoder's attention does not depend on the order, the flat
            embedding does.
        decoder_type ("attention", "gates", "lstm", "lstm_attention", "lstm_gates", "gru", \
            "conditional_gru", "causal_cnn", "words_cnn", "words_rnn" or "none", defaults to "attention"):
            How the decoder reads the latent rows. Self-attention over the preceding tokens, then attention over the
            rows (`attention`) or element-wise gates on them (`gates`); an LSTM that starts from all rows (`lstm`),
            starts from zeros and attends over the rows (`lstm_attention`), or starts from the last-state row, if there
            is one, and has gates on the others (`lstm_gates`); a GRU or convolutions over the preceding tokens, with
            all rows as an input at each step (`gru`, `causal_cnn`); two GRU blocks per step, the second over
            `decoder_context` (`conditional_gru`); or a non-autoregressive network over the rows (`words_cnn`,
            `words_rnn`). With `"none"` there is no decoder: the model only encodes.
        decoder_context ("attention", "constant" or "none", defaults to "attention"):
            Context of a `conditional_gru` at each step: attention over the rows, all of Z, or nothing (then it has one
            block).
        decoder_initial_state (bool, defaults to False):
            Start a `conditional_gru` from Z; otherwise it starts from a trained vector.
        decoder_channels (list[int], optional):
            Layer widths of a `causal_cnn`, `words_cnn` or `words_rnn`, up to the input of the output layer.
        num_context_words (int, defaults to 30):
            Words that a `words_cnn` or `words_rnn` predicts.
        context_channels (list[int], optional):
            Layer widths of a second decoder, a `words_cnn` that predicts the words around the text (`context_targets`).
            It needs an autoregressive first decoder, and its last width is the input width of the output layer.
        predict_previous (bool, defaults to False):
            Add a second decoder of the same kind, for the previous sentence (skip-thought).
        attention_penalty (float, defaults to 0.0):
            Weight of ||A A' - I||^2 in the training loss, which keeps the heads of `inner_attention` from reading the
            same words (structured self-attentive embedding, equation 8). It is averaged over the sentences.
        teacher_size (int, optional):
            Width of a teacher's vectors, which a linear map of the embedding (`teacher_head`) learns to predict
            (compound attention, section 4.4).
        contrastive_size (int, optional):
            Width of a linear map of the embeddings that only contrastive training uses. Default: the embeddings
            themselves are compared.
        pair_combination ("concatenation" or "multiplicative", optional):
            How a classifier combines two texts, with embeddings u and v: [u; v; |u - v|; u * v], or products of mapped
            latent rows. Each row of each text then has its own map (structured self-attentive embedding, appendix B).
            Default: the classifier reads one text.
        pair_size (int, optional, defaults to the width of a latent row):
            Width of the products of a `multiplicative` combination.
        classifier_type ("mlp" or "pruned", defaults to "mlp"):
            Head of a classifier: a layer over the whole embedding, or hidden units that each see one latent row or one
            column of the rows (structured self-attentive embedding, appendix A).
        classifier_hidden_size (int, optional):
            Width of the hidden layer (ReLU) of an `mlp` classifier; with None it is a linear map.
        classifier_row_size (int, defaults to 150):
            Hidden units of each row in a `pruned` classifier; the rows share their weights.
        classifier_column_size (int, defaults to 10):
            Hidden units of each column in a `pruned` classifier; the columns share their weights.
        classifier_dropout (float, defaults to 0.1):
            Dropout on the input and on the hidden layer of a classifier.
        position_embedding_type ("sinusoidal", "learned" or "none", defaults to "none"):
            Position codes added to the word vectors; positions count from 0 in encoder and decoder alike.
        max_position_embeddings (int, defaults to 512):
            Rows of a learned position table; positions beyond it get a zero code. Without such a table there is no
            limit, and this becomes 2**31 - 1, since sentence-transformers cuts texts at it.
        embedding_dropout (float, defaults to 0.0):
            Dropout on the sum of word vector and position code.
        hidden_dropout (float, defaults to 0.0):
            Dropout on residual branches, between recurrent and convolutional layers, and on their output.
        layer_norm_eps (float, defaults to 1e-5):
            Epsilon of the layer normalisations.
        label_smoothing (float, defaults to 0.0):
            Probability spread over the vocabulary by the training loss.
        freeze_word_embeddings (bool, defaults to False):
            Freeze the word table, except for the input vectors of special tokens. A decoder's own word table is trained
            all the same. A tied output layer uses the frozen table, for special tokens too.
        num_special_tokens (int, defaults to 4):
            Number of special tokens, which have the ids below it.
        initializer_range (float, defaults to 0.02):
            Standard deviation of new word vectors and learned position codes. Sinusoidal codes have a root mean square
            of 0.7; they drown word vectors that are much smaller, and learning to copy starts far later.
        tie_word_embeddings (bool, defaults to False):
            Use the word table as the weights of the output layer, after a projection to its width (a decoder with
            `decoder_channels` ends in that width without one).
        output_bias (bool, defaults to True):
            Whether the output layer has a bias.
        use_cache (bool, defaults to True):
            Whether generation keeps the decoder's past keys and values.
    """

    # Every Auto class that loads a checkpoint of the family, as "module.Class" (see save_pretrained in base.py).
    auto_classes: ClassVar[dict[str, str]] = {}
    # Fields without a meaning in the family, which keep their defaults.
    fixed_fields: ClassVar[tuple[str, ...]] = ()
    # Name of the Auto class that loads the model with its decoder.
    full_auto_class: ClassVar[str] = "AutoModelForSeq2SeqLM"
    # Trainer's predictions are the logits alone.
    keys_to_ignore_at_inference = [
        "past_key_values", "encoder_last_hidden_state", "latents", "attention_penalty",
        "pooling_attentions",
    ]  # fmt: skip

    vocab_size: int = 30000
    input_vocab_size: int | None = None
    separate_vocabularies: bool = False
    embedding_size: int = 300
    hidden_size: int = 512
    num_hidden_layers: int = 1
    intermediate_size: int = 2048
    num_attention_heads: int = 8
    attention_bias: bool = False
    projection_activation: Literal["relu"] | None = None
    attention_dropout: float | int = 0.0
    encoder_type: EncoderType = "self_attention"
    encoder_residual: bool = False
    pooling: Pooling = "mean"
    weighted_mean_row: bool = False
    weighted_mean_map: bool = True
    weighted_mean_hidden_size: int | None = None
    frequency_smoothing: float | int = 1e-3
    freeze_word_weights: bool = False
    latent_normalization: Literal["rows"] | None = None
    latent_scales: bool = False
    latent_heads: int = 1
    latent_size: int | None = None
    pooling_hidden_size: int | None = None
    mean_first: bool = False
    decoder_type: DecoderType = "attention"
    decoder_context: Literal["attention", "constant", "none"] = "attention"
    decoder_initial_state: bool = False
    decoder_channels: list[int] | None = None
    num_context_words: int = 30
    context_channels: list[int] | None = None
    predict_previous: bool = False
    attention_penalty: float | int = 0.0
    teacher_size: int | None = None
    contrastive_size: int | None = None
    pair_combination: Literal["concatenation", "multiplicative"] | None = None
    pair_size: int | None = None
    classifier_type: Literal["mlp", "pruned"] = "mlp"
    classifier_hidden_size: int | None = None
    classifier_row_size: int = 150
    classifier_column_size: int = 10
    classifier_dropout: float | int = 0.1
    position_embedding_type: PositionType = "none"
    max_position_embeddings: int = 512
    embedding_dropout: float | int = 0.0
    hidden_dropout: float | int = 0.0
    layer_norm_eps: float | int = 1e-5
    label_smoothing: float | int = 0.0
    freeze_word_embeddings: bool = False
    num_special_tokens: int = 4
    initializer_range: float | int = 0.02
    tie_word_embeddings: bool = False
    output_bias: bool = True
    use_cache: bool = True
    pad_token_id: int = 0
    unk_token_id: int = 1
    bos_token_id: int = 2
    eos_token_id: int = 3
    decoder_start_token_id: int = 2
    is_encoder_decoder: bool = True

    def __post_init__(self, **kwargs: object) -> None:
        if unknown := self._unknown_names(kwargs):
            fields = sorted(field.name for field in dataclasses.fields(self))
            raise TypeError(self._no_setting(unknown[0], otherwise=f" Known: {', '.join(fields)}."))
        if self.input_vocab_size is None:
            self.input_vocab_size = self.vocab_size
        size = self.max_position_embeddings
        if self.position_embedding_type != "learned" and isinstance(size, int) and size > 0:
            self.max_position_embeddings = NO_LIMIT
        super().__post_init__(**kwargs)

    @classmethod
    def _unknown_names(cls, names: Iterable[str]) -> list[str]:
        """The names that are neither fields nor keywords of transformers."""
        fields = {field.name for field in dataclasses.fields(cls)}
        allowed = fields | _TRANSFORMERS_KEYWORDS | set(GenerationConfig._get_default_generation_params())
        return [name for name in names if name not in allowed and not name.startswith("_")]

    @classmethod
    def _no_setting(cls, name: str, otherwise: str = "") -> str:
        hint = did_you_mean(name, [field.name for field in dataclasses.fields(cls)], quote="`") or otherwise
        return f"{cls.__name__} has no setting named `{name}`.{hint}"

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """[`~transformers.PreTrainedConfig.from_dict`]; unknown entries of a saved configuration (a note, a setting of
        another version) are kept as attributes, with a warning."""
        unknown = cls._unknown_names(config_dict)
        loaded = super().from_dict({name: config_dict[name] for name in config_dict if name not in unknown}, **kwargs)
        config = loaded[0] if isinstance(loaded, tuple) else loaded
        for name in unknown:
            # Properties are computed from the fields.
            if not hasattr(config, name):
                setattr(config, name, config_dict[name])
        if unknown:
            logger.warning(
                f"{' '.join(map(cls._no_setting, unknown))} What was saved under it is kept; nothing reads it."
            )
        return loaded

    @property
    def auto_class_names(self) -> dict[str, str]:
        """Maps the name of each class of the family to the Auto class that loads it."""
        return {path.split(".")[1]: name for name, path in self.auto_classes.items()}

    @property
    def pooling_rows(self) -> tuple[str, ...]:
        """Names of the latent rows, in their order."""
        return (*self.state_pooling_rows, WEIGHTED_MEAN) if self.has_weighted_mean else self.state_pooling_rows

    @property
    def state_pooling_rows(self) -> tuple[str, ...]:
        """Names of the latent rows that are computed from the hidden states, in their order."""
        if self.pooling == "inner_attention":
            return tuple(f"head_{head + 1}" for head in range(self.latent_heads))
        rows = POOLING_ROWS.get(self.pooling, ())
        return ("mean", "max", *rows[2:]) if self.mean_first and rows[:2] == ("max", "mean") else rows

    @property
    def has_weighted_mean(self) -> bool:
        """Whether the last latent row is the weighted mean of the word vectors."""
        return self.weighted_mean_row or self.pooling == WEIGHTED_MEAN

    @property
    def gated_rows(self) -> tuple[str, ...]:
        """Names of the latent rows that the decoder has gates on, in their order."""
        if self.decoder_type == "gates":
            return self.pooling_rows
        return tuple(row for row in self.pooling_rows if row != "last") if self.decoder_type == "lstm_gates" else ()

    @property
    def state_rows(self) -> tuple[str, ...]:
        """Names of the latent rows that a recurrent decoder starts from; if empty, it starts from zeros."""
        if self.decoder_type == "lstm":
            return self.pooling_rows
        return tuple(row for row in self.pooling_rows if row == "last") if self.decoder_type == "lstm_gates" else ()

    @property
    def has_latents(self) -> bool:
        """Whether there are latent rows, and so an embedding; otherwise the decoder reads the hidden states."""
        return self.pooling != "none"

    @property
    def latent_width(self) -> int:
        """Width of a latent row, or of a hidden state if the decoder reads these instead."""
        return self.latent_size if self.latent_size is not None and self.has_latents else self.hidden_size

    @property
    def is_autoregressive(self) -> bool:
        """Whether there is an autoregressive decoder."""
        return self.has_decoder and not self.decoder_type.startswith("words_")

    @property
    def reads_text(self) -> bool:
        """Whether there is a text encoder; otherwise the model decodes the vectors of another model."""
        return True

    @property
    def ignores_length(self) -> bool:
        """Whether multiplying a vector by a positive number leaves its decoding unchanged."""
        return self.latent_normalization is not None

    @property
    def is_static(self) -> bool:
        """Whether a word's contribution to the embedding does not depend on the other words."""
        return self.encoder_type == "none"

    @property
    def has_decoder(self) -> bool:
        """Whether there is a decoder."""
        return self.decoder_type != "none"

    @property
    def num_decoder_layers(self) -> int:
        """Number of decoder layers: as many as the encoder has, but 1 for the autoregressive CNN."""
        return 1 if self.decoder_type == "causal_cnn" else self.num_hidden_layers

    @property
    def problem(self) -> str:
        """A classifier's problem type: `problem_type`, or else inferred from the number of labels."""
        return self.problem_type or ("regression" if self.num_labels == 1 else "single_label_classification")

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> PreTrainedConfig:
        """As in the base class; the decoder's has the decoder's number of layers, by which caches are made."""
        config = super().get_text_config(decoder, encoder)
        if decoder and not encoder and self.num_decoder_layers != self.num_hidden_layers:
            config = copy.copy(config)
            config.num_hidden_layers = self.num_decoder_layers
        return config

    @property
    def decoder_output_size(self) -> int:
        """Width of the decoder's states."""
        channels = self.decoder_channels if self.decoder_type in DECODERS_WITH_CHANNELS else None
        return channels[-1] if channels else self.hidden_size

    @property
    def scored_size(self) -> int:
        """Input width of the output layer: the decoder's output width, or, if it is tied, the word vectors' width."""
        return self.embedding_size if self.tie_word_embeddings else self.decoder_output_size

    @property
    def num_latents(self) -> int:
        """Number L of latent rows."""
        return len(self.pooling_rows)

    @property
    def sentence_embedding_size(self) -> int:
        """Dimension L * latent_width of the flat sentence embedding; 0 if there is none."""
        return self.num_latents * self.latent_width

    @property
    def projection_dim(self) -> int:
        """`sentence_embedding_size`, by the name that sentence-transformers reads for models that return embeddings."""
        return self.sentence_embedding_size

    def check(self) -> None:
        """Checks that the fields fit together, as the constructor does.

        Raises:
            ValueError: for fields that do not fit together.
        """
        try:
            self.validate()
        except StrictDataclassError as error:
            raise ValueError(str(error.__cause__ or error)) from error

    def validate_fixed_fields(self) -> None:
        """Checks that fields without a meaning in the family keep their defaults."""
        for name in self.fixed_fields:
            value, default = getattr(self, name), type(self).__dataclass_fields__[name].default
            if value != default:
                raise ValueError(
                    f"`{name}` is {value!r}, which has no meaning for `{self.model_type}`. Leave it out ({default!r})."
                )

    def validate_sizes(self) -> None:
        """Checks the sizes and that the two vocabularies agree."""
        for name in (
            "vocab_size", "embedding_size", "hidden_size", "num_hidden_layers", "intermediate_size",
            "num_attention_heads", "max_position_embeddings", "num_special_tokens", "num_context_words",
            "latent_heads", "latent_size", "pooling_hidden_size", "weighted_mean_hidden_size", "teacher_size",
            "contrastive_size", "pair_size", "classifier_hidden_size", "classifier_row_size", "classifier_column_size",
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"`{name}` is {value}; it must be 1 or more.")
        if self.position_embedding_type == "learned" and self.max_position_embeddings == NO_LIMIT:
            raise ValueError(
                f"`max_position_embeddings` is {NO_LIMIT}, which stands for no limit; learned positions need a table, "
                "for instance of 512."
            )
        is_smaller = self.input_vocab_size is not None and self.input_vocab_size < self.vocab_size
        if is_smaller and not self.separate_vocabularies:
            raise ValueError(
                f"`input_vocab_size` is {self.input_vocab_size}, smaller than `vocab_size` {self.vocab_size}: the "
                "encoder must know every token that the decoder generates. Leave it out, make it larger, or set "
                "`separate_vocabularies=True`."
            )
        smallest = min(self.vocab_size, self.input_vocab_size or self.vocab_size)
        if self.num_special_tokens > smallest:
            raise ValueError(f"`num_special_tokens` is {self.num_special_tokens}, more than `vocab_size` {smallest}.")
        for name in ("pad_token_id", "unk_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < smallest:
                raise ValueError(f"`{name}` is {value}; it must be in 0..{smallest - 1} (`vocab_size` - 1).")

    def validate_tables(self) -> None:
        """Checks that a tied output has the input's vocabulary, and a frozen table's padding is a special token."""
        is_one = self.separate_vocabularies or self.input_vocab_size in (None, self.vocab_size)
        if self.tie_word_embeddings and not is_one:
            raise ValueError(
                f"`tie_word_embeddings` needs one vocabulary, but `input_vocab_size` is {self.input_vocab_size} and "
                f"`vocab_size` {self.vocab_size}. Leave `input_vocab_size` out or set `tie_word_embeddings=False`."
            )
        if self.freeze_word_embeddings and self.pad_token_id >= self.num_special_tokens:
            raise ValueError(
                f"`pad_token_id` is {self.pad_token_id}; with `freeze_word_embeddings` it must be below "
                f"`num_special_tokens`, which is {self.num_special_tokens}."
            )

    def validate_rates(self) -> None:
        """Checks every probability and scale."""
        for name in (
            "embedding_dropout", "hidden_dropout", "attention_dropout", "label_smoothing", "classifier_dropout",
        ):  # fmt: skip
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ValueError(f"`{name}` is {value}; it must be at least 0 and less than 1.")
        if not (self.attention_penalty >= 0 and math.isfinite(self.attention_penalty)):
            raise ValueError(f"`attention_penalty` is {self.attention_penalty}; it must be 0 or a positive number.")
        for name in ("layer_norm_eps", "initializer_range"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"`{name}` is {value}; it must be a positive number.")

    validate_parts = check_parts
    validate_latents = check_latents
    validate_weighted_mean = check_weighted_mean
    validate_channels = check_channels
    validate_context = check_context

    def validate_positions(self) -> None:
        """Checks that the width is even for sinusoidal codes, which are pairs (eq. 1-2 of the mean-max autoencoder)."""
        if self.position_embedding_type == "sinusoidal" and self.embedding_size % 2:
            raise ValueError(
                f"`embedding_size` is {self.embedding_size}; sinusoidal positions need an even number. "
                'Change it, or use `position_embedding_type="learned"`.'
            )
