"""Checks that the parts of a configuration fit together; each raises a ValueError that names the remedy."""

import math

from transformers.configuration_utils import PreTrainedConfig

DECODERS_WITH_CHANNELS = ("causal_cnn", "words_cnn", "words_rnn")
WEIGHTED_MEAN = "weighted_mean"


def check_parts(config: PreTrainedConfig) -> None:
    """Checks that each part can be built with these sizes, and that `lstm_gates` has rows for its gates."""
    has_attention = config.encoder_type == "self_attention" or config.decoder_type in (
        "attention", "gates", "lstm_attention",
    )  # fmt: skip
    if has_attention and (config.num_attention_heads < 1 or config.hidden_size % config.num_attention_heads):
        raise ValueError(
            f"`num_attention_heads` is {config.num_attention_heads} and `hidden_size` {config.hidden_size}: the heads "
            "must divide the hidden size."
        )
    if config.encoder_residual and config.encoder_type != "self_attention":
        raise ValueError(
            f"`encoder_residual` is True and `encoder_type` {config.encoder_type!r}; only 'self_attention' has it. "
            "Set False."
        )
    if config.encoder_type.startswith("bi") and config.hidden_size % 2:
        raise ValueError(
            f"`hidden_size` is {config.hidden_size}; the two directions of a `{config.encoder_type}` encoder need an "
            "even number."
        )
    if config.encoder_type == "hierarchical_cnn" and config.hidden_size % max(1, config.num_hidden_layers):
        raise ValueError(
            f"`hidden_size` is {config.hidden_size} and `num_hidden_layers` {config.num_hidden_layers}: the layers of "
            "a `hierarchical_cnn` encoder must divide the hidden size."
        )
    if config.encoder_type == "cnn" and config.hidden_size < 3:
        raise ValueError(f"`hidden_size` is {config.hidden_size}; a `cnn` encoder has filters of three widths.")
    if config.decoder_type == "lstm_gates" and not config.gated_rows:
        raise ValueError(
            f"`pooling` is {config.pooling!r}, which leaves the gates of `decoder_type='lstm_gates'` without rows. "
            "Use `pooling='mean_max_last'`, or `decoder_type='lstm'`."
        )


def check_latents(config: PreTrainedConfig) -> None:
    """Checks that the decoder can read the output of the pooling, and rows of this width."""
    attends = config.decoder_type == "attention" or (
        config.decoder_type == "conditional_gru" and config.decoder_context == "attention"
    )
    if not config.has_decoder and (not config.has_latents or config.predict_previous or config.context_channels):
        raise ValueError(
            "`decoder_type` is 'none', and without a decoder a model needs latent rows, and has neither "
            f"`predict_previous` nor `context_channels`; `pooling` is {config.pooling!r}."
        )
    if not config.has_latents and (not attends or config.decoder_initial_state):
        raise ValueError(
            f"`pooling` is 'none', so there are no latent rows; `decoder_type={config.decoder_type!r}` with "
            f"`decoder_context={config.decoder_context!r}` and `decoder_initial_state={config.decoder_initial_state}` "
            "needs them. Use a decoder that only attends (`decoder_type='attention'`, or 'conditional_gru' with "
            "`decoder_context='attention'` and no initial state), or another pooling."
        )
    for name in ("teacher_size", "contrastive_size"):
        if not config.has_latents and getattr(config, name) is not None:
            raise ValueError(
                f"`{name}` is {getattr(config, name)} and `pooling` 'none', so there is no embedding to map. Leave "
                "it out, or use another pooling."
            )
    if not config.has_latents and config.latent_size is not None:
        raise ValueError(
            f"`latent_size` is {config.latent_size} and `pooling` 'none', which has no rows. Leave it out, or set None."
        )
    if config.latent_heads > 1 and config.pooling != "inner_attention":
        raise ValueError(
            f"`latent_heads` is {config.latent_heads} and `pooling` {config.pooling!r}; only 'inner_attention' has "
            "heads."
        )
    if config.attention_penalty > 0 and config.pooling != "inner_attention":
        raise ValueError(
            f"`attention_penalty` is {config.attention_penalty} and `pooling` {config.pooling!r}; only "
            "'inner_attention' has heads. Set 0."
        )
    if config.latent_width != config.hidden_size and config.decoder_type in ("gates", "lstm_gates"):
        raise ValueError(
            f"`latent_size` is {config.latent_size} and `hidden_size` {config.hidden_size}; the gates of "
            f"`decoder_type={config.decoder_type!r}` work on rows as wide as its states. Leave `latent_size` out."
        )
    if (
        config.decoder_type == "conditional_gru"
        and config.decoder_context == "none"
        and not config.decoder_initial_state
    ):
        raise ValueError(
            "`decoder_context` is 'none' and `decoder_initial_state` False: the decoder would never read Z. Set "
            "one of them."
        )


def check_weighted_mean(config: PreTrainedConfig) -> None:
    """Checks that a static model has a weighted mean, that it fits a row, and that the rows can be normalised."""
    if config.reads_text and config.encoder_type == "none" and config.pooling != WEIGHTED_MEAN:
        raise ValueError(
            f"`encoder_type` is 'none' and `pooling` {config.pooling!r}; without an encoder the only row is the "
            "weighted mean of the word vectors. Use `pooling='weighted_mean'`."
        )
    if config.is_static and not config.is_autoregressive and config.position_embedding_type == "learned":
        raise ValueError(
            "`encoder_type` is 'none' and `position_embedding_type` 'learned': a mean of the words has no places, and "
            "no decoder would learn them. Leave `position_embedding_type` out."
        )
    if config.pooling == WEIGHTED_MEAN and config.encoder_type != "none":
        raise ValueError(
            f"`pooling` is 'weighted_mean', which reads the word vectors, and `encoder_type` {config.encoder_type!r}, "
            "which nothing would read. Use `encoder_type='none'`, or `weighted_mean_row=True` beside another pooling."
        )
    if config.weighted_mean_row and not config.has_latents:
        raise ValueError(
            "`weighted_mean_row` is True and `pooling` 'none', which has no rows. Use another pooling, or "
            "`pooling='weighted_mean'` with `encoder_type='none'`."
        )
    if config.has_weighted_mean and not config.weighted_mean_map and config.embedding_size != config.latent_width:
        raise ValueError(
            f"`weighted_mean_map` is False, `embedding_size` {config.embedding_size} and a latent row "
            f"{config.latent_width} wide; without the map they must be equal. Set `latent_size` to "
            f"{config.embedding_size}, or `weighted_mean_map=True`."
        )
    if config.weighted_mean_hidden_size is not None and not config.has_weighted_mean:
        raise ValueError(
            f"`weighted_mean_hidden_size` is {config.weighted_mean_hidden_size}, and there is no weighted mean. Leave "
            "it out, or set `weighted_mean_row=True`."
        )
    if not (config.frequency_smoothing > 0 and math.isfinite(config.frequency_smoothing)):
        raise ValueError(f"`frequency_smoothing` is {config.frequency_smoothing}; it must be a positive number.")
    if config.latent_scales and config.latent_normalization is None:
        raise ValueError("`latent_scales` is True without `latent_normalization='rows'`. Set both, or neither.")
    if config.latent_normalization is not None and not config.has_latents:
        raise ValueError(
            f"`latent_normalization` is {config.latent_normalization!r} and `pooling` 'none', which has no rows. "
            "Leave it out."
        )


def check_channels(config: PreTrainedConfig) -> None:
    """Checks that a decoder that needs `decoder_channels` has them, and that they fit a tied output layer."""
    if config.decoder_type not in DECODERS_WITH_CHANNELS:
        return
    channels = config.decoder_channels or []
    if len(channels) < 2 or min(channels) < 1:
        raise ValueError(
            f"`decoder_channels` is {config.decoder_channels}; `decoder_type={config.decoder_type!r}` needs two widths "
            "or more, for instance [600, 1200, 300]."
        )
    if config.tie_word_embeddings and channels[-1] != config.embedding_size:
        raise ValueError(
            f"`decoder_channels` ends in {channels[-1]} and `embedding_size` is {config.embedding_size}; with "
            "`tie_word_embeddings` they must be equal."
        )
    if config.predict_previous and not config.is_autoregressive:
        raise ValueError(f"`predict_previous` needs an autoregressive decoder, not {config.decoder_type!r}.")


def check_context(config: PreTrainedConfig) -> None:
    """Checks that a second decoder of the words around the text has rows to read, and fits the output layer."""
    channels = config.context_channels
    if channels is None:
        return
    if len(channels) < 2 or min(channels) < 1 or channels[-1] != config.scored_size:
        raise ValueError(
            f"`context_channels` is {channels}; give two widths or more that end in {config.scored_size}, what the "
            f"output layer scores, for instance [{2 * config.scored_size}, {config.scored_size}]."
        )
    if not (config.has_latents and config.is_autoregressive) or config.predict_previous:
        raise ValueError(
            f"`context_channels` adds a decoder beside an autoregressive one that reads latent rows, "
            f"but `pooling` is {config.pooling!r}, `decoder_type` {config.decoder_type!r} and `predict_previous` "
            f"{config.predict_previous}. Leave it out, or change these."
        )
