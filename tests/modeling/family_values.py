"""Settings that the tests of every family share."""

from __future__ import annotations

from modeling.family_tests import Family


def without_gradient(config, name: str) -> str | None:
    if ".latent_attention." in name and not name.endswith(("value.weight", "value.bias")) and config.num_latents == 1:
        return "the weight of a single row is 1, whatever the query and the key"
    if name.endswith("key.bias") and config.projection_activation is None:
        return "the same number for all keys cancels in the softmax"
    return None


def is_of_words(family: Family, variant: str) -> bool:
    """Whether the variant predicts all words at once."""
    return not family.config_class(**{**family.tiny, **family.variants[variant]}).is_autoregressive


TINY = {
    "vocab_size": 40,
    "embedding_size": 12,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
}


WITH_WEIGHTED_MEAN = {"weighted_mean_row": True, "decoder_type": "attention"}


# The fields and the checks of LatentConfig, which the families share.
OTHER_VALUES = {
    "vocab_size": {"vocab_size": 40},
    "input_vocab_size": {"input_vocab_size": 30000},
    "embedding_size": {"embedding_size": 12},
    "hidden_size": {"hidden_size": 32},
    "intermediate_size": {"intermediate_size": 48},
    "num_hidden_layers": {"num_hidden_layers": 2},
    "num_attention_heads": {"num_attention_heads": 4},
    "attention_bias": {"attention_bias": True},
    "projection_activation": {"projection_activation": "relu"},
    "encoder_type": {"encoder_type": "bilstm"},
    "encoder_residual": {"encoder_residual": True, "encoder_type": "self_attention"},
    "pooling": {"pooling": "mean_max_last"},
    "weighted_mean_row": WITH_WEIGHTED_MEAN,
    "weighted_mean_map": {"weighted_mean_map": False},
    "weighted_mean_hidden_size": {"weighted_mean_hidden_size": 24, **WITH_WEIGHTED_MEAN},
    "frequency_smoothing": {"frequency_smoothing": 1e-4},
    "freeze_word_weights": {"freeze_word_weights": True},
    "latent_normalization": {"latent_normalization": "rows"},
    "latent_scales": {"latent_scales": True, "latent_normalization": "rows"},
    "contrastive_size": {"contrastive_size": 9},
    "latent_heads": {"latent_heads": 3, "pooling": "inner_attention"},
    "latent_size": {"latent_size": 20, "decoder_type": "attention"},
    "pooling_hidden_size": {"pooling_hidden_size": 20, "pooling": "inner_attention"},
    "decoder_context": {"decoder_context": "constant"},
    "decoder_initial_state": {"decoder_initial_state": True},
    "separate_vocabularies": {"separate_vocabularies": True, "input_vocab_size": 100},
    "mean_first": {"mean_first": True},
    "decoder_type": {"decoder_type": "lstm_gates"},
    "decoder_channels": {"decoder_channels": [60, 300]},
    "num_context_words": {"num_context_words": 10},
    "predict_previous": {"predict_previous": True},
    "context_channels": {"context_channels": [20, 16], "hidden_size": 16, "embedding_size": 16},
    "teacher_size": {"teacher_size": 7},
    "attention_penalty": {"attention_penalty": 0.5, "pooling": "inner_attention"},
    "pair_combination": {"pair_combination": "multiplicative"},
    "pair_size": {"pair_size": 17},
    "classifier_type": {"classifier_type": "pruned"},
    "classifier_hidden_size": {"classifier_hidden_size": 21},
    "classifier_row_size": {"classifier_row_size": 6},
    "classifier_column_size": {"classifier_column_size": 3},
    "classifier_dropout": {"classifier_dropout": 0.3},
    "position_embedding_type": {"position_embedding_type": "learned"},
    "max_position_embeddings": {"max_position_embeddings": 34, "position_embedding_type": "learned"},
    "embedding_dropout": {"embedding_dropout": 0},
    "hidden_dropout": {"hidden_dropout": 0.25},
    "attention_dropout": {"attention_dropout": 0.125},
    "layer_norm_eps": {"layer_norm_eps": 1e-8},
    "label_smoothing": {"label_smoothing": 0.1},
    "freeze_word_embeddings": {"freeze_word_embeddings": True},
    "num_special_tokens": {"num_special_tokens": 6},
    "initializer_range": {"initializer_range": 0.02},
    "tie_word_embeddings": {"tie_word_embeddings": True},
    "output_bias": {"output_bias": False},
    "use_cache": {"use_cache": False},
    "pad_token_id": {"pad_token_id": 3},
    "unk_token_id": {"unk_token_id": 2},
    "bos_token_id": {"bos_token_id": 1},
    "eos_token_id": {"eos_token_id": 1},
    "decoder_start_token_id": {"decoder_start_token_id": 3},
}


BAD_SETTINGS = [
    ({"vocab_size": 0}, ("`vocab_size` is 0", "1 or more")),
    ({"embedding_size": -2}, ("`embedding_size` is -2", "1 or more")),
    ({"hidden_size": 0}, ("`hidden_size` is 0", "1 or more")),
    ({"num_hidden_layers": 0}, ("`num_hidden_layers` is 0", "1 or more")),
    ({"max_position_embeddings": 0}, ("`max_position_embeddings` is 0", "1 or more")),
    (
        {"max_position_embeddings": 2**31 - 1, "position_embedding_type": "learned"},
        ("`max_position_embeddings` is 2147483647", "need a table"),
    ),
    ({"intermediate_size": 0}, ("`intermediate_size` is 0", "1 or more")),
    ({"num_context_words": 0}, ("`num_context_words` is 0", "1 or more")),
    ({"num_special_tokens": 0}, ("`num_special_tokens` is 0", "1 or more")),
    ({"num_special_tokens": 41}, ("`num_special_tokens` is 41", "`vocab_size` 40")),
    ({"input_vocab_size": 39}, ("`input_vocab_size` is 39", "`vocab_size` 40", "Leave it out, make it larger")),
    ({"teacher_size": 0}, ("`teacher_size` is 0", "1 or more")),
    ({"contrastive_size": 0}, ("`contrastive_size` is 0", "1 or more")),
    ({"weighted_mean_hidden_size": 24}, ("`weighted_mean_hidden_size` is 24", "no weighted mean")),
    ({"frequency_smoothing": 0.0}, ("`frequency_smoothing` is 0.0", "positive number")),
    ({"encoder_type": "none"}, ("`encoder_type` is 'none'", "Use `pooling='weighted_mean'`")),
    (
        {"pooling": "weighted_mean", "latent_size": None, "encoder_type": "self_attention"},
        ("`pooling` is 'weighted_mean'", "Use `encoder_type='none'`"),
    ),
    (
        {"weighted_mean_row": True, "weighted_mean_map": False, "latent_size": 20, "decoder_type": "attention"},
        ("`weighted_mean_map` is False", "`embedding_size` 12", "20 wide"),
    ),
    (
        {"pooling": "none", "weighted_mean_row": True, "decoder_type": "attention", "latent_size": None},
        ("`weighted_mean_row` is True", "no rows"),
    ),
    ({"latent_scales": True}, ("`latent_scales` is True", "latent_normalization='rows'")),
    (
        {"pooling": "none", "latent_normalization": "rows", "decoder_type": "attention", "latent_size": None},
        ("`latent_normalization` is 'rows'", "no rows"),
    ),
    ({"decoder_type": "none", "pooling": "none"}, ("`decoder_type` is 'none'", "needs latent rows")),
    (
        {"pooling": "none", "teacher_size": 7, "decoder_type": "attention"},
        ("`teacher_size` is 7", "no embedding to map"),
    ),
    (
        {"pooling": "none", "contrastive_size": 7, "decoder_type": "attention"},
        ("`contrastive_size` is 7", "no embedding to map"),
    ),
    ({"latent_heads": 0}, ("`latent_heads` is 0", "1 or more")),
    ({"attention_penalty": -1.0}, ("`attention_penalty` is -1.0", "0 or a positive number")),
    (
        {"attention_penalty": 1.0, "pooling": "max", "latent_heads": 1},
        ("`attention_penalty` is 1.0", "`pooling` 'max'", "'inner_attention'", "Set 0"),
    ),
    ({"pair_combination": "sum"}, ("pair_combination", "sum", "concatenation", "multiplicative")),
    ({"pair_size": 0}, ("`pair_size` is 0", "1 or more")),
    ({"classifier_type": "tree"}, ("classifier_type", "tree", "mlp", "pruned")),
    ({"classifier_hidden_size": 0}, ("`classifier_hidden_size` is 0", "1 or more")),
    ({"classifier_row_size": 0}, ("`classifier_row_size` is 0", "1 or more")),
    ({"classifier_column_size": -1}, ("`classifier_column_size` is -1", "1 or more")),
    ({"classifier_dropout": 1}, ("`classifier_dropout` is 1", "at least 0 and less than 1")),
    ({"latent_size": 0, "decoder_type": "attention"}, ("`latent_size` is 0", "1 or more")),
    ({"latent_heads": 2, "pooling": "mean"}, ("`latent_heads` is 2", "`pooling` 'mean'", "'inner_attention'")),
    (
        {"pooling": "none", "latent_size": 20, "decoder_type": "attention"},
        ("`latent_size` is 20", "no rows", "Leave it out"),
    ),
    ({"pooling": "none", "decoder_type": "gates"}, ("`pooling` is 'none'", "'gates'", "only attends")),
    (
        {"pooling": "none", "decoder_type": "conditional_gru", "decoder_initial_state": True},
        ("`pooling` is 'none'", "`decoder_initial_state=True`", "no initial state"),
    ),
    ({"decoder_type": "gates", "latent_size": 20}, ("`latent_size` is 20", "`hidden_size` 32", "'gates'")),
    (
        {"decoder_type": "conditional_gru", "decoder_context": "none", "decoder_initial_state": False},
        ("`decoder_context` is 'none'", "never read Z"),
    ),
    (
        {"input_vocab_size": 50, "tie_word_embeddings": True},
        ("`tie_word_embeddings`", "is 50", "`vocab_size` 40", "Leave `input_vocab_size` out"),
    ),
    (
        {"pad_token_id": 30, "freeze_word_embeddings": True},
        ("`pad_token_id` is 30", "below `num_special_tokens`, which is 4"),
    ),
    ({"pad_token_id": -1}, ("`pad_token_id` is -1", "0..39")),
    ({"eos_token_id": 40}, ("`eos_token_id` is 40", "0..39")),
    ({"decoder_start_token_id": 99}, ("`decoder_start_token_id` is 99", "0..39")),
    ({"embedding_dropout": 1.0}, ("`embedding_dropout` is 1.0", "at least 0 and less than 1")),
    ({"hidden_dropout": -0.1}, ("`hidden_dropout` is -0.1", "at least 0 and less than 1")),
    ({"attention_dropout": 2}, ("`attention_dropout` is 2", "at least 0 and less than 1")),
    ({"label_smoothing": float("nan")}, ("`label_smoothing` is nan", "at least 0 and less than 1")),
    ({"layer_norm_eps": 0.0}, ("`layer_norm_eps` is 0.0", "positive number")),
    ({"initializer_range": float("inf")}, ("`initializer_range` is inf", "positive number")),
    ({"embedding_size": 13}, ("`embedding_size` is 13", "even number", 'position_embedding_type="learned"')),
    ({"num_attention_heads": 5}, ("`num_attention_heads` is 5", "`hidden_size` 32", "must divide")),
    ({"num_attention_heads": 0}, ("`num_attention_heads` is 0", "must divide")),
    # Attention in one part is enough: the encoder's, the decoder's own, the decoder's over the latent rows.
    (
        {"num_attention_heads": 5, "decoder_type": "lstm"},
        ("`num_attention_heads` is 5", "`hidden_size` 32", "must divide"),
    ),
    (
        {"num_attention_heads": 5, "encoder_type": "cnn", "decoder_type": "gates"},
        ("`num_attention_heads` is 5", "`hidden_size` 32", "must divide"),
    ),
    (
        {"num_attention_heads": 5, "encoder_type": "bilstm", "decoder_type": "lstm_attention"},
        ("`num_attention_heads` is 5", "`hidden_size` 32", "must divide"),
    ),
    (
        {"num_attention_heads": 0, "encoder_type": "lstm", "decoder_type": "lstm"},
        ("`num_attention_heads` is 0", "1 or more"),
    ),
    (
        {"hidden_size": 33, "encoder_type": "bilstm", "decoder_type": "lstm"},
        ("`hidden_size` is 33", "`bilstm`", "even number"),
    ),
    (
        {"hidden_size": 2, "num_attention_heads": 2, "encoder_type": "cnn"},
        ("`hidden_size` is 2", "`cnn`", "three widths"),
    ),
    (
        {"decoder_type": "lstm_gates", "pooling": "last"},
        ("`pooling` is 'last'", "without rows", "`pooling='mean_max_last'`", "`decoder_type='lstm'`"),
    ),
    ({"pooling": "median"}, ("pooling", "median", "mean_max", "mean_max_last")),
    (
        {"encoder_residual": True, "encoder_type": "bilstm"},
        ("`encoder_residual` is True", "'bilstm'", "'self_attention'", "Set False"),
    ),
    ({"position_embedding_type": "rotary"}, ("position_embedding_type", "rotary", "sinusoidal")),
    ({"projection_activation": "gelu"}, ("projection_activation", "gelu", "relu")),
    (
        {"hidden_size": 33, "encoder_type": "bigru", "decoder_type": "gru"},
        ("`hidden_size` is 33", "`bigru`", "even number"),
    ),
    (
        {"num_hidden_layers": 3, "encoder_type": "hierarchical_cnn"},
        ("`hidden_size` is 32", "`num_hidden_layers` 3", "`hierarchical_cnn`", "must divide"),
    ),
    (
        {"decoder_type": "words_cnn", "decoder_channels": [12]},
        ("`decoder_channels` is [12]", "`decoder_type='words_cnn'`", "two widths or more", "[600, 1200, 300]"),
    ),
    ({"decoder_type": "causal_cnn", "decoder_channels": [20, 0, 12]}, ("`decoder_channels` is [20, 0, 12]", "two")),
    (
        {"decoder_type": "words_rnn", "decoder_channels": [20, 14], "tie_word_embeddings": True},
        ("`decoder_channels` ends in 14", "`embedding_size` is 12", "`tie_word_embeddings`"),
    ),
    (
        {"decoder_type": "words_cnn", "decoder_channels": [20, 12], "predict_previous": True},
        ("`predict_previous`", "needs an autoregressive decoder", "'words_cnn'"),
    ),
    ({"context_channels": [20, 14]}, ("`context_channels` is [20, 14]", "two widths or more", "output layer")),
    (
        {"context_channels": [20, 16], "decoder_type": "words_cnn", "decoder_channels": [20, 16]},
        ("`context_channels`", "'words_cnn'", "beside an autoregressive one"),
    ),
    ({"decoder_channels": [20.5, 12]}, ("decoder_channels", "20.5")),
    ({"encoder_type": "rnn"}, ("encoder_type", "rnn", "self_attention", "bilstm", "bigru", "hierarchical_cnn")),
    ({"decoder_type": "rnn"}, ("decoder_type", "rnn", "attention", "gates", "lstm_gates", "gru", "words_cnn")),
    ({"vocab_size": "40"}, ("vocab_size", "expected int", "'40'")),
]
