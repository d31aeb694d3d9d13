"""Every family through the tests of `family_tests.py`."""

from __future__ import annotations

import copy
import logging
import math
import shutil

import pytest
import torch
from transformers import AutoModelForPreTraining, AutoModelForSeq2SeqLM

from hf_meanmax import (
    CompoundAttentionConfig,
    CompoundAttentionForTranslation,
    CompoundAttentionModel,
    GatedMeanMaxAAEConfig,
    GatedMeanMaxAAEForReconstruction,
    GatedMeanMaxAAEModel,
    MeanMaxAAEConfig,
    MeanMaxAAEForReconstruction,
    MeanMaxAAEModel,
    RNNCNNConfig,
    RNNCNNForContextPrediction,
    RNNCNNModel,
    StructuredSelfAttentionConfig,
    StructuredSelfAttentionForReconstruction,
    StructuredSelfAttentionModel,
)
from hf_meanmax.modeling.embeddings import sinusoidal_positions
from hf_meanmax.objectives import Decoding, TrainingModel
from training_loss import training_loss

pytest.register_assert_rewrite("modeling.family_tests")

from modeling.family_tests import Family, FamilyTests, make_batch, text_of  # noqa: E402


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
        ("`max_position_embeddings` is 2147483647", "need their number"),
    ),
    ({"intermediate_size": 0}, ("`intermediate_size` is 0", "1 or more")),
    ({"num_context_words": 0}, ("`num_context_words` is 0", "1 or more")),
    ({"num_special_tokens": 0}, ("`num_special_tokens` is 0", "1 or more")),
    ({"num_special_tokens": 41}, ("`num_special_tokens` is 41", "`vocab_size` 40")),
    ({"input_vocab_size": 39}, ("`input_vocab_size` is 39", "`vocab_size` 40", "Leave it out, make it larger")),
    ({"teacher_size": 0}, ("`teacher_size` is 0", "1 or more")),
    (
        {"pooling": "none", "teacher_size": 7, "decoder_type": "attention"},
        ("`teacher_size` is 7", "no embedding to map"),
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
        ("`predict_previous`", "one word after the other", "'words_cnn'"),
    ),
    ({"context_channels": [20, 14]}, ("`context_channels` is [20, 14]", "two widths or more", "output layer")),
    (
        {"context_channels": [20, 16], "decoder_type": "words_cnn", "decoder_channels": [20, 16]},
        ("`context_channels`", "'words_cnn'", "one that says words one after the other"),
    ),
    ({"decoder_channels": [20.5, 12]}, ("decoder_channels", "20.5")),
    ({"encoder_type": "rnn"}, ("encoder_type", "rnn", "self_attention", "bilstm", "bigru", "hierarchical_cnn")),
    ({"decoder_type": "rnn"}, ("decoder_type", "rnn", "attention", "gates", "lstm_gates", "gru", "words_cnn")),
    ({"vocab_size": "40"}, ("vocab_size", "expected int", "'40'")),
]

MEAN_MAX_AAE = Family(
    config_class=MeanMaxAAEConfig,
    model_class=MeanMaxAAEModel,
    full_class=MeanMaxAAEForReconstruction,
    auto_full_class=AutoModelForSeq2SeqLM,
    tiny=TINY,
    variants={
        "paper": {},
        "released": {
            "attention_bias": True,
            "projection_activation": "relu",
            "position_embedding_type": "learned",
            "max_position_embeddings": 34,
            "label_smoothing": 0.1,
            "layer_norm_eps": 1e-8,
            "mean_first": True,
            "freeze_word_embeddings": True,
        },
        "mean": {"pooling": "mean"},
        "max": {"pooling": "max", "attention_bias": True},
        "deep": {"num_hidden_layers": 2, "hidden_dropout": 0.1},
        "residual": {"encoder_residual": True},
        "tied": {"tie_word_embeddings": True, "position_embedding_type": "none"},
        "context": {"context_channels": [20, 32], "num_context_words": 12},
        "mean_max_rae": {
            "encoder_type": "bilstm",
            "decoder_type": "lstm_attention",
            "position_embedding_type": "none",
        },
        "lstm_sdae": {
            "encoder_type": "lstm",
            "pooling": "last",
            "decoder_type": "lstm",
            "position_embedding_type": "none",
        },
        "cnn_lstm": {
            "encoder_type": "cnn",
            "pooling": "max",
            "decoder_type": "lstm",
            "position_embedding_type": "none",
        },
        "deep_rae": {
            "encoder_type": "bilstm",
            "decoder_type": "lstm_attention",
            "num_hidden_layers": 2,
            "hidden_dropout": 0.1,
            "tie_word_embeddings": True,
        },
        # Parts that no paper puts together.
        "attention_to_lstm": {"pooling": "last", "decoder_type": "lstm", "position_embedding_type": "learned"},
        "deep_cnn_to_attention": {
            "encoder_type": "cnn",
            "pooling": "mean_max_last",
            "mean_first": True,
            "num_hidden_layers": 2,
        },
    },
    other_values=OTHER_VALUES,
    bad_settings=BAD_SETTINGS,
    compiled_variants=("paper", "released", "deep_cnn_to_attention"),
    gets_no_gradient=without_gradient,
)

GATED_MEAN_MAX_AAE = Family(
    config_class=GatedMeanMaxAAEConfig,
    model_class=GatedMeanMaxAAEModel,
    full_class=GatedMeanMaxAAEForReconstruction,
    auto_full_class=AutoModelForSeq2SeqLM,
    # Words as small as the paper's would be drowned by the position codes.
    tiny={**TINY, "initializer_range": 0.7},
    variants={
        "paper": {},
        "mean": {"pooling": "mean"},
        "max": {"pooling": "max"},
        "deep": {"num_hidden_layers": 2, "hidden_dropout": 0.1},
        "gated_rae": {
            "encoder_type": "bilstm",
            "pooling": "mean_max_last",
            "decoder_type": "lstm_gates",
            "position_embedding_type": "none",
        },
        "rae": {
            "encoder_type": "bilstm",
            "pooling": "last",
            "decoder_type": "lstm",
            "position_embedding_type": "none",
        },
        "deep_gated_rae": {
            "encoder_type": "bilstm",
            "pooling": "mean_max_last",
            "decoder_type": "lstm_gates",
            "mean_first": True,
            "num_hidden_layers": 2,
            "hidden_dropout": 0.1,
            "tie_word_embeddings": True,
        },
        # Parts that the paper does not put together.
        "gates_on_lstm": {"encoder_type": "lstm", "pooling": "mean_max_last", "freeze_word_embeddings": True},
        "gated_lstm_from_zeros": {"decoder_type": "lstm_gates", "attention_bias": True},
    },
    other_values=OTHER_VALUES,
    bad_settings=BAD_SETTINGS,
    compiled_variants=("paper",),
    gets_no_gradient=without_gradient,
)

# What the mean-max families have by default and RNN-CNN does not, so that their bad settings are bad of it too.
AS_MEAN_MAX = {
    "encoder_type": "self_attention",
    "decoder_type": "attention",
    "position_embedding_type": "sinusoidal",
    "tie_word_embeddings": False,
}

RNN_CNN = Family(
    config_class=RNNCNNConfig,
    model_class=RNNCNNModel,
    full_class=RNNCNNForContextPrediction,
    auto_full_class=AutoModelForPreTraining,
    # As many places as the longest padded test sentence has, and one more.
    tiny={**TINY, "decoder_channels": [20, 28, 12], "num_context_words": 12, "initializer_range": 0.1},
    variants={
        "paper": {},
        "words_rnn": {"decoder_type": "words_rnn"},
        "deeper_decoder": {"decoder_channels": [20, 28, 36, 12], "num_hidden_layers": 2, "hidden_dropout": 0.1},
        "max": {"pooling": "max"},
        "hierarchical_cnn": {"encoder_type": "hierarchical_cnn", "num_hidden_layers": 4, "pooling": "max"},
        "bilstm": {"encoder_type": "bilstm", "freeze_word_embeddings": True},
        "gru": {"decoder_type": "gru", "tie_word_embeddings": False, "output_bias": True},
        "gru_deep": {"decoder_type": "gru", "num_hidden_layers": 2, "hidden_dropout": 0.1},
        "causal_cnn": {"decoder_type": "causal_cnn", "decoder_channels": [20, 28, 24, 12]},
        "skip_thought": {
            "encoder_type": "gru",
            "pooling": "last",
            "decoder_type": "gru",
            "predict_previous": True,
            "tie_word_embeddings": False,
        },
        # Parts that the paper does not put together.
        "self_attention": {
            "encoder_type": "self_attention",
            "position_embedding_type": "sinusoidal",
            "decoder_channels": [20, 12],
        },
        "cnn_to_cnn": {
            "encoder_type": "hierarchical_cnn",
            "num_hidden_layers": 2,
            "decoder_type": "causal_cnn",
            "decoder_channels": [20, 9],
            "position_embedding_type": "learned",
            "tie_word_embeddings": False,
            "predict_previous": True,
        },
    },
    other_values={
        **OTHER_VALUES,
        "input_vocab_size": {"input_vocab_size": 30000, "tie_word_embeddings": False},
        "mean_first": {"mean_first": False},
        "predict_previous": {"predict_previous": True, "decoder_type": "causal_cnn"},
        "context_channels": {**OTHER_VALUES["context_channels"], "decoder_type": "gru"},
        "embedding_dropout": {"embedding_dropout": 0.25},
        "tie_word_embeddings": {"tie_word_embeddings": False},
        "output_bias": {"output_bias": True},
    },
    bad_settings=[({**AS_MEAN_MAX, **settings}, words) for settings, words in BAD_SETTINGS],
    compiled_variants=("hierarchical_cnn", "self_attention", "cnn_to_cnn"),
    saying="gru",
    gets_no_gradient=without_gradient,
)


# The thesis's parts could be set one by one in any family; so its bad settings are tried without an architecture.
FREE = {"architecture": None}
COMPOUND_ATTENTION = Family(
    config_class=CompoundAttentionConfig,
    model_class=CompoundAttentionModel,
    full_class=CompoundAttentionForTranslation,
    auto_full_class=AutoModelForSeq2SeqLM,
    tiny={**TINY},
    variants={
        "attn-attn": {"latent_heads": 3, "latent_size": 10},
        **{name: {"architecture": name} for name in ("attn", "trf")},
        **{
            name: {"architecture": name, "latent_size": 20}
            for name in ("final", "final-ctx", "avgpool", "maxpool", "avgpool-ctx", "maxpool-ctx")
        },
        "attn-ctx": {"architecture": "attn-ctx", "latent_heads": 2, "latent_size": 9, "pooling_hidden_size": 14},
        "trf-attn-attn": {"architecture": "trf-attn-attn", "latent_heads": 3, "latent_size": 32},
        "two_vocabularies": {
            "latent_heads": 1,
            "latent_size": 24,
            "separate_vocabularies": True,
            "tie_word_embeddings": True,
            "num_hidden_layers": 2,
            "hidden_dropout": 0.1,
        },
        # Parts that the thesis does not put together.
        "transformer_to_gru": {
            "architecture": None,
            "encoder_type": "self_attention",
            "position_embedding_type": "learned",
            "pooling": "mean_max",
            "latent_size": 20,
            "freeze_word_embeddings": True,
        },
    },
    other_values={
        **{name: {**FREE, **value} for name, value in OTHER_VALUES.items()},
        "architecture": {"architecture": "final"},
        "input_vocab_size": {"input_vocab_size": 31000},
        "vocab_size": {"vocab_size": 40},
        "decoder_type": {**FREE, "decoder_type": "lstm"},
        "embedding_dropout": {"embedding_dropout": 0.25},
        "intermediate_size": {"intermediate_size": 48},
        "position_embedding_type": {**FREE, "position_embedding_type": "learned"},
    },
    bad_settings=[
        *(
            ({**FREE, **AS_MEAN_MAX, "pooling": "mean_max", "latent_size": 32, **settings}, words)
            for settings, words in BAD_SETTINGS
        ),
        ({"architecture": "attn-atn"}, ("`architecture` is 'attn-atn'", "Did you mean 'attn-attn'", "'trf'")),
        (
            {"architecture": "final", "pooling": "mean"},
            ("`pooling` is 'mean'", "`architecture='final'` means 'last'", "Leave one of the two out"),
        ),
        ({"architecture": "trf", "latent_size": 100}, ("`latent_size` is 100", "'none'", "Leave it out")),
    ],
    compiled_variants=("trf", "trf-attn-attn"),
    saying="attn-attn",
    free=FREE,
    end_bias=2.0,
    gets_no_gradient=without_gradient,
)


STRUCTURED_SELF_ATTENTION = Family(
    config_class=StructuredSelfAttentionConfig,
    model_class=StructuredSelfAttentionModel,
    full_class=StructuredSelfAttentionForReconstruction,
    auto_full_class=AutoModelForSeq2SeqLM,
    tiny={**TINY, "latent_heads": 3, "pooling_hidden_size": 14},
    variants={
        "paper": {},
        "no_penalty": {"attention_penalty": 0.0, "tie_word_embeddings": True},
        "one_head": {"latent_heads": 1, "attention_penalty": 0.3, "freeze_word_embeddings": True},
        "deep": {"num_hidden_layers": 2, "hidden_dropout": 0.1, "latent_size": 20},
        "max": {"pooling": "max", "latent_heads": None},
        "mean_max": {"pooling": "mean_max", "latent_heads": None},
        "self_attention": {
            "encoder_type": "self_attention",
            "position_embedding_type": "sinusoidal",
            "decoder_type": "attention",
        },
        # What the paper does not put together.
        "translator": {
            "decoder_type": "conditional_gru",
            "separate_vocabularies": True,
            "input_vocab_size": 45,
        },
    },
    other_values={
        **OTHER_VALUES,
        "encoder_type": {"encoder_type": "bigru"},
        "pooling": {"pooling": "max"},
        "latent_heads": {"latent_heads": 3},
        "latent_size": {"latent_size": 20},
        "pooling_hidden_size": {"pooling_hidden_size": 20},
        "attention_penalty": {"attention_penalty": 0.3},
        "embedding_dropout": {"embedding_dropout": 0.25},
        "vocab_size": {"vocab_size": 40},
        "input_vocab_size": {"input_vocab_size": 30000},
    },
    bad_settings=[
        ({**AS_MEAN_MAX, "pooling": "mean_max", "latent_heads": None, **settings}, words)
        for settings, words in BAD_SETTINGS
    ],
    compiled_variants=("self_attention",),
    end_bias=6.0,
    gets_no_gradient=without_gradient,
)


class TestMeanMaxAAE(FamilyTests):
    family = MEAN_MAX_AAE

    def test_rows_of_the_embedding(self):
        """Max then mean, the paper's order, or the released code's, which changes the flat vector but not the words."""
        batch = make_batch()
        paper, released = self.full(), self.full(mean_first=True)
        real = batch["attention_mask"].bool().unsqueeze(-1)
        output = paper.encoder(**text_of(batch))
        states = output.last_hidden_state
        torch.testing.assert_close(output.latents[:, 0], states.masked_fill(~real, -1e9).amax(dim=1))
        torch.testing.assert_close(output.latents[:, 1], (states * real).sum(dim=1) / real.sum(dim=1))
        swapped = released(**batch)
        torch.testing.assert_close(swapped.latents, output.latents.flip(1))
        torch.testing.assert_close(swapped.loss, paper(**batch).loss)

    @pytest.mark.parametrize("tied", [False, True])
    def test_words_around_a_text_have_a_decoder_of_their_own(self, tied):
        """Their loss is that of the likeliest words at each place, times its weight, beside the loss of the text."""
        channels = [20, 12] if tied else [20, 32]
        model = self.full("context", torch.float64, context_channels=channels, tie_word_embeddings=tied)
        batch = make_batch()
        around = torch.tensor([[5, 9, 8, 7], [6, 5, -100, -100], [8, -100, -100, -100], [-100, -100, -100, -100]])
        alone = model(**batch)
        batch["context_targets"] = around
        both = training_loss(model, batch, softmax="chunked", context_weight=0.25)
        scores = model.lm_head(model.context_decoder(alone.latents))[:, :4]
        num_targets = (batch["labels"] != -100).sum()
        summed = torch.nn.functional.cross_entropy(scores.flatten(0, 1), around.flatten(), reduction="sum")
        torch.testing.assert_close(both.losses["context_loss"], summed / num_targets)
        torch.testing.assert_close(both.loss, alone.loss + 0.25 * summed / num_targets)
        torch.testing.assert_close(both.losses["decoding"], alone.loss)
        # In two halves of a step, with the number of targets of all of it; and with a sampled softmax.
        halves = [
            training_loss(model, {name: value[rows] for name, value in batch.items()}, num_targets).loss
            for rows in (slice(0, 2), slice(2, 4))
        ]
        torch.testing.assert_close(sum(halves), alone.loss + summed / num_targets)
        candidates = {"candidate_ids": torch.arange(40), "candidate_log_prob": torch.zeros(40)}
        sampled = training_loss(model, {**batch, **candidates}, softmax="sampled", context_weight=0.25)
        torch.testing.assert_close(sampled.loss, both.loss)
        torch.testing.assert_close(sampled.losses["context_loss"], both.losses["context_loss"])
        both.losses["context_loss"].backward()
        assert all(parameter.grad is None for parameter in model.decoder.parameters())
        assert all(parameter.grad.abs().sum() > 0 for parameter in model.context_decoder.parameters())
        assert any(parameter.grad is not None for parameter in model.encoder.parameters())

    def test_words_around_a_text_need_their_decoder(self):
        batch = make_batch()
        with pytest.raises(ValueError, match="`context_targets` need a model with `context_channels`"):
            training_loss(self.full(), {**batch, "context_targets": batch["labels"]})
        with pytest.raises(ValueError, match="needs `labels`, which the batch lacks"):
            training_loss(self.full("context"), {**text_of(batch), "context_targets": batch["labels"]})
        with pytest.raises(ValueError, match="`context_targets` has 13 places; this decoder predicts 12 words"):
            training_loss(self.full("context"), {**batch, "context_targets": torch.full((4, 13), 5)})
        with pytest.raises(ValueError, match="`context_targets` is in the batch, but no objective reads it"):
            TrainingModel(self.full("context"), [Decoding()])(**batch, context_targets=batch["labels"])

    def test_normalised_rows(self):
        encoder = self.full().encoder
        rows = encoder.normalized_rows(**text_of(make_batch())).view(-1, 2, 32)
        torch.testing.assert_close(rows.norm(dim=-1), torch.ones(4, 2))
        torch.testing.assert_close(
            rows, torch.nn.functional.normalize(encoder(**text_of(make_batch())).latents, dim=-1)
        )


class TestGatedMeanMaxAAE(FamilyTests):
    family = GATED_MEAN_MAX_AAE

    def test_rows_by_their_part(self):
        """The decoder of the gated RAE starts from the last state and has gates on the others; AAE gates are on all."""
        assert self.config("gated_rae").pooling_rows == ("max", "mean", "last")
        assert self.config("gated_rae", mean_first=True).pooling_rows == ("mean", "max", "last")
        for variant, gated, state in (
            ("paper", ("max", "mean"), ()),
            ("mean", ("mean",), ()),
            ("gates_on_lstm", ("max", "mean", "last"), ()),
            ("gated_rae", ("max", "mean"), ("last",)),
            ("deep_gated_rae", ("mean", "max"), ("last",)),
            ("rae", (), ("last",)),
            ("gated_lstm_from_zeros", ("max", "mean"), ()),
        ):
            config = self.config(variant)
            assert (config.gated_rows, config.state_rows) == (gated, state), variant

    def test_last_row_moves_only_the_start(self):
        """What the gates let through does not come from the row that the decoder starts from, and the other way."""
        model = self.full("gated_rae", torch.float64)
        layer = model.decoder.sequence_decoder.layers[0]
        latents = model.encoder(**text_of(make_batch())).latents.detach()
        states = torch.randn(4, 2, 32, dtype=torch.float64)
        for row, name in enumerate(model.config.pooling_rows):
            moved = latents.clone()
            moved[:, row] += 1
            assert torch.equal(layer.latent_gates(states, moved)[0], layer.latent_gates(states, latents)[0]) == (
                name == "last"
            )
            assert torch.equal(layer.first_state(moved)[0], layer.first_state(latents)[0]) == (name != "last")


class TestRNNCNN(FamilyTests):
    family = RNN_CNN

    def test_rows_of_the_embedding(self):
        """The mean first (section 2)."""
        batch = make_batch()
        real = batch["attention_mask"].bool().unsqueeze(-1)
        output = self.full().encoder(**text_of(batch))
        states = output.last_hidden_state
        mean, maximum = output.pooler_output.chunk(2, dim=-1)
        torch.testing.assert_close(mean, (states * real).sum(dim=1) / real.sum(dim=1))
        torch.testing.assert_close(maximum, states.masked_fill(~real, -1e9).amax(dim=1))

    def test_the_paper_by_default(self):
        """The small model: 2 x 300 units, 600-1200-300 channels, 30 words, the output tied and without a bias."""
        with torch.device("meta"):
            model = RNNCNNForContextPrediction(RNNCNNConfig())
        shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        decoder = "decoder.sequence_decoder.layers.0"
        assert shapes["encoder.sequence_encoder.layers.0.network.weight_hh_l0_reverse"] == (900, 300)
        assert shapes[f"{decoder}.expansion.weight"] == (30 * 600, 1200)
        assert shapes[f"{decoder}.convolutions.0.weight"] == (1200, 600, 3)
        assert shapes[f"{decoder}.convolutions.1.weight"] == (300, 1200, 1)
        assert [name for name in shapes if name.startswith(("lm_head", "output_projection"))] == []
        assert RNNCNNConfig(embedding_size=100).decoder_channels == [600, 1200, 100]

    def test_each_kind_of_decoder_has_its_own_method(self, variant):
        """Each kind of decoder has its own method, and refuses the other with the reason."""
        model = self.full(variant)
        text, kind = text_of(make_batch()), model.config.decoder_type
        embedding = model.encoder(**text).pooler_output
        for source in (text, {"sentence_embedding": embedding}):
            if model.config.is_autoregressive:
                with pytest.raises(ValueError, match=f"'{kind}', which is autoregressive: use generate"):
                    model.predict_words(**source)
            else:
                with pytest.raises(ValueError, match=f"'{kind}', which is not autoregressive: use predict_words"):
                    model.generate(**source)
        given = {"encoder_outputs": (embedding.view(4, -1, 32),), "decoder_input_ids": torch.full((4, 1), 2)}
        if model.config.is_autoregressive:
            assert model(**given).logits.shape == (4, 1, 40)
        else:
            with pytest.raises(ValueError, match="takes no `decoder_input_ids`"):
                model(**given)

    @pytest.mark.parametrize("words_variant", [name for name in RNN_CNN.variants if is_of_words(RNN_CNN, name)])
    def test_predicted_words(self, words_variant):
        """Of a text, its embedding and its rows alike; the likeliest first, as the logits have them."""
        model = self.full(words_variant, torch.float64)
        text = text_of(make_batch(side="left"))
        latents = model.encoder(**text).latents
        ids, log_probabilities = model.predict_words(**text, top_k=40)
        assert ids.shape == log_probabilities.shape == (4, 12, 40)
        expected = model(**text).logits.log_softmax(dim=-1)
        torch.testing.assert_close(log_probabilities, expected.gather(2, ids).float(), atol=1e-5, rtol=1e-6)
        torch.testing.assert_close(log_probabilities.exp().sum(dim=-1), torch.ones(4, 12), check_dtype=False)
        assert (log_probabilities.diff(dim=-1) <= 0).all()
        assert len({tuple(row) for row in ids.flatten(1).tolist()}) == 4  # what is predicted depends on Z
        for embedding in (latents, latents.flatten(1), latents.flatten(1).numpy(force=True)):
            again, scores = model.predict_words(sentence_embedding=embedding, top_k=3)
            assert torch.equal(again, ids[:, :, :3])
            torch.testing.assert_close(scores, log_probabilities[:, :, :3])
        assert model.predict_words(sentence_embedding=latents[0].flatten())[0].tolist() == ids[:1, :, :5].tolist()
        assert not log_probabilities.requires_grad
        for sources in ({}, {**text, "sentence_embedding": latents}):
            with pytest.raises(ValueError, match="exactly one of `input_ids` and `sentence_embedding`"):
                model.predict_words(**sources)
        for top_k in (0, 41):
            with pytest.raises(ValueError, match=rf"`top_k` is {top_k}; it must be in 1\.\.40"):
                model.predict_words(**text, top_k=top_k)

    def test_more_labels_than_places_are_refused(self):
        model = self.full()
        text = text_of(make_batch())
        assert model(**text, labels=torch.full((4, 12), 5)).loss.isfinite()
        with pytest.raises(
            ValueError, match=r"`labels` has 13 places; this decoder predicts 12 words .*Cut the labels"
        ):
            model(**text, labels=torch.full((4, 13), 5))

    def test_fewer_labels_than_places(self):
        """A context that its document ends early: the same words at the same places."""
        model = self.full(dtype=torch.float64)
        text = text_of(make_batch())
        every = model(**text).logits
        assert every.shape == (4, 12, 40)
        labels = torch.tensor([[5, 9, 8, 7], [6, 5, -100, -100], [8, -100, -100, -100], [-100, -100, -100, -100]])
        output = model(**text, labels=labels)
        assert torch.equal(output.logits, every[:, :4])
        expected = torch.nn.functional.cross_entropy(every[:, :4].flatten(0, 1), labels.flatten())
        torch.testing.assert_close(output.loss, expected)

    @pytest.mark.parametrize("previous", ["skip_thought", "cnn_to_cnn"])
    def test_previous_sentence_has_a_decoder_of_its_own(self, previous):
        """The two losses add up, over the targets of both; each decoder learns from its own alone."""
        model = self.full(previous, torch.float64)
        batch = make_batch()
        labels = make_batch([[9, 3], [5, 6, 7, 8, 9, 10, 11, 12, 3], [21, 3], [3]])["labels"]
        both = training_loss(model, {**batch, "previous_targets": labels})
        following = model(**batch, num_items_in_batch=1).loss
        swapped = copy.deepcopy(model)
        swapped.decoder = swapped.previous_decoder
        before = swapped(**text_of(batch), labels=labels, num_items_in_batch=1).loss
        num_targets = (batch["labels"] != -100).sum() + (labels != -100).sum()
        torch.testing.assert_close(both.loss, (following + before) / num_targets)
        assert (before - model(**text_of(batch), labels=labels, num_items_in_batch=1).loss).abs() > 1e-3
        model(**batch).loss.backward()
        assert all(parameter.grad is None for parameter in model.previous_decoder.parameters())

    def test_previous_sentence_needs_its_decoder(self):
        batch = make_batch()
        with pytest.raises(ValueError, match="need a model with `predict_previous=True`"):
            training_loss(self.full("gru"), {**batch, "previous_targets": batch["labels"]})
        with pytest.raises(ValueError, match="need a model with `predict_previous=True`"):
            training_loss(self.full(), {**batch, "previous_targets": batch["labels"]})
        with pytest.raises(ValueError, match="needs `labels`, which the batch lacks"):
            training_loss(self.full("skip_thought"), {**text_of(batch), "previous_targets": batch["labels"]})


class TestStructuredSelfAttention(FamilyTests):
    family = STRUCTURED_SELF_ATTENTION

    def test_the_paper_by_default(self):
        config = StructuredSelfAttentionConfig()
        assert (config.latent_heads, config.attention_penalty, config.sentence_embedding_size) == (30, 1.0, 18000)
        with torch.device("meta"):
            shapes = {name: tuple(p.shape) for name, p in StructuredSelfAttentionModel(config).named_parameters()}
        assert shapes["sequence_encoder.layers.0.network.weight_hh_l0_reverse"] == (1200, 300)
        assert [shape for name, shape in shapes.items() if name.startswith("pooler")] == [(350, 600), (30, 350)]
        baseline = StructuredSelfAttentionConfig(pooling="mean_max")
        assert (baseline.latent_heads, baseline.attention_penalty, baseline.num_latents) == (1, 0.0, 2)

    def test_the_penalty_is_a_term_of_the_loss(self):
        """In the mean over the sentences; parts of a batch add up to the whole, and rows without a target count not."""
        model, without = self.full(dtype=torch.float64), self.full("paper", torch.float64, attention_penalty=0.0)
        batch = make_batch()
        output = model(**batch)
        plain = without(**batch)
        assert plain.attention_penalty is None
        close = torch.testing.assert_close
        weights = model.encoder(**text_of(batch)).pooling_attentions
        by_hand = torch.stack([((row @ row.T - torch.eye(3)) ** 2).sum() for row in weights])
        close(output.attention_penalty, by_hand.mean())
        close(output.loss, plain.loss + output.attention_penalty)
        close(training_loss(model, batch, softmax="chunked").loss, output.loss)
        parts = []
        for rows in (slice(0, 1), slice(1, 4)):
            part = {name: tensor[rows] for name, tensor in batch.items()}
            part["num_sentences_in_batch"] = torch.tensor(4)
            parts.append(training_loss(model, part).losses["attention_penalty"])
        close(sum(parts), output.attention_penalty)
        # Where targets alone are counted, as transformers' Trainer does, a part counts by its share of them.
        targets = (batch["labels"] != -100).sum(dim=1)
        parts = [
            model(**{k: v[rows] for k, v in batch.items()}, num_items_in_batch=targets.sum())
            for rows in (slice(0, 1), slice(1, 4))
        ]
        shares = targets[:1].sum() / targets.sum(), targets[1:].sum() / targets.sum()
        close(sum(part.attention_penalty for part in parts), shares[0] * by_hand[0] + shares[1] * by_hand[1:].mean())
        close(sum(part.loss for part in parts), plain.loss + sum(part.attention_penalty for part in parts))
        batch["labels"][1] = -100
        close(model(**batch).attention_penalty, by_hand[[0, 2, 3]].mean())


@pytest.mark.parametrize("encoder", ["bilstm", "lstm", "cnn"])
@pytest.mark.parametrize("decoder", ["lstm", "lstm_gates"])
def test_heads_need_not_divide_where_nothing_attends(encoder, decoder):
    settings = {**TINY, "num_attention_heads": 5, "encoder_type": encoder, "decoder_type": decoder}
    assert MeanMaxAAEForReconstruction(MeanMaxAAEConfig(**settings))(**make_batch()).loss.isfinite()


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
def test_positions_beyond_a_learned_table(padded, caplog):
    """A zero code, and one warning that counts the tokens."""
    settings = {**MEAN_MAX_AAE.tiny, "position_embedding_type": "learned", "max_position_embeddings": 4}
    model = MeanMaxAAEForReconstruction(MeanMaxAAEConfig(**settings)).eval()
    batch = make_batch([[5, 6, 7, 8, 9, 10, 3], [5, 6, 3] if padded else [11, 6, 7, 8, 9, 10, 3]])
    if not padded:
        del batch["attention_mask"]
    with caplog.at_level(logging.WARNING, logger="hf_meanmax"):
        for _ in range(2):
            model(**batch)
            model.generate(input_ids=batch["input_ids"], max_new_tokens=6)
    warnings = [record.getMessage() for record in caplog.records if "position" in record.getMessage()]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"{3 if padded else 6} token(s) of this batch stand beyond the 4 learned positions")

    embeddings = model.encoder.embeddings
    inputs = embeddings(batch["input_ids"], None, None)
    words = embeddings.embed_words(batch["input_ids"])
    assert torch.equal(inputs[:, 4:], words[:, 4:])
    torch.testing.assert_close(inputs[:, :4] - words[:, :4], embeddings.position_embeddings.weight.expand(2, 4, -1))


@pytest.mark.parametrize("config_class", [MeanMaxAAEConfig, GatedMeanMaxAAEConfig], ids=lambda c: c.model_type)
def test_generation_beyond_a_learned_table(config_class, caplog):
    """The decoder goes on with zero codes, with a cache as without one, and warns once."""
    settings = {**TINY, "position_embedding_type": "learned", "max_position_embeddings": 4}
    model = AutoModelForSeq2SeqLM.from_config(config_class(**settings)).eval().double()
    with torch.no_grad():
        model.lm_head.bias[3] = -1e4  # it never stops by itself
        model.lm_head.weight.mul_(10)
    batch = text_of(make_batch([[5, 6, 3], [7, 3], [9, 8, 3]]))
    with caplog.at_level(logging.WARNING, logger="hf_meanmax"):
        said = model.generate(**batch, max_new_tokens=30)
        again = model.generate(**batch, max_new_tokens=30, use_cache=False)
    warnings = [record.getMessage() for record in caplog.records if "position" in record.getMessage()]
    assert len(warnings) == 1
    assert warnings[0].startswith("3 token(s) of this batch stand beyond the 4 learned positions")
    assert said.shape == (3, 31)
    assert torch.equal(said, again)
    latents = model.encode_latents(**batch)
    logits = model(encoder_outputs=(latents,), decoder_input_ids=said[:, :-1]).logits
    assert torch.equal(logits.argmax(dim=-1), said[:, 1:])
    embeddings = model.encoder.embeddings
    far = embeddings(said[:, :1], None, torch.tensor([[29]]), 30)
    assert torch.equal(far, embeddings.embed_words(said[:, :1]))


@pytest.mark.parametrize("config_class", [MeanMaxAAEConfig, GatedMeanMaxAAEConfig], ids=lambda c: c.model_type)
def test_sinusoidal_positions_have_no_end(config_class):
    """2,000 tokens, where 512 are the default length of a learned table."""
    codes = sinusoidal_positions(2000, 12)
    for t in (0, 1, 511, 512, 1999):
        code = [(math.cos if i % 2 else math.sin)(t / 10000 ** ((i - i % 2) / 12)) for i in range(12)]
        torch.testing.assert_close(codes[t], torch.tensor(code))
    model = AutoModelForSeq2SeqLM.from_config(config_class(**TINY)).eval()
    embeddings = model.encoder.embeddings
    # As the decoder reads one word after 1,999 others.
    last = embeddings(torch.tensor([[5]]), None, torch.tensor([[1999]]), 2000) - embeddings.embed_words(
        torch.tensor([[5]])
    )
    torch.testing.assert_close(last[0, 0], codes[1999])

    long, short = torch.randint(4, 40, (1, 2000)), torch.tensor([[7, 5, 3]])
    batch = make_batch([long[0].tolist(), short[0].tolist()])
    with torch.no_grad():
        output = model(**batch)
        alone = model(input_ids=long, labels=long)
        near = model.encoder(input_ids=long[:, :512]).latents
    assert output.logits.isfinite().all()
    assert output.loss.isfinite()
    torch.testing.assert_close(output.latents[:1], alone.latents)
    torch.testing.assert_close(output.logits[:1], alone.logits)
    torch.testing.assert_close(output.latents[1:], model.encoder(input_ids=short).latents)
    assert (near - alone.latents).abs().max() > 1e-3  # what comes after them is read


def test_frozen_table_leaves_the_special_tokens_to_their_own(tmp_path):
    model = MeanMaxAAEForReconstruction(MeanMaxAAEConfig(**MEAN_MAX_AAE.tiny, freeze_word_embeddings=True))
    table = model.encoder.embeddings.word_embeddings.weight.clone()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    specials = model.encoder.embeddings.special_embeddings.weight.clone()
    model(**make_batch()).loss.backward()
    optimizer.step()
    assert torch.equal(model.encoder.embeddings.word_embeddings.weight, table)
    changed = (model.encoder.embeddings.special_embeddings.weight != specials).any(dim=-1)
    assert changed.tolist() == [False, True, True, True]  # <pad> stays zero


@pytest.mark.skipif(shutil.which("g++") is None, reason="flex attention on the CPU needs g++")
def test_flex_attention_agrees():
    model = MeanMaxAAEForReconstruction(MeanMaxAAEConfig(**MEAN_MAX_AAE.tiny | {"hidden_size": 64})).eval()
    batch = make_batch()
    with torch.no_grad():  # torch has no backward pass for it on the CPU
        expected = model(**batch)
        model.set_attn_implementation("flex_attention")
        output = model(**batch)
    torch.testing.assert_close(output.latents, expected.latents, atol=1e-5, rtol=0)
    torch.testing.assert_close(output.loss, expected.loss, atol=1e-5, rtol=0)


class TestCompoundAttention(FamilyTests):
    family = COMPOUND_ATTENTION

    @pytest.mark.parametrize("architecture", ["attn-attn", "attn", "final"])
    def test_defaults_are_of_one_size(self, architecture):
        """600 numbers for every architecture that has a representation, whatever the heads."""
        config = CompoundAttentionConfig(architecture=architecture)
        assert config.sentence_embedding_size == (0 if architecture == "attn" else 600)
        if architecture == "attn-attn":
            assert (config.latent_heads, config.latent_size) == (12, 50)
            assert CompoundAttentionConfig(latent_heads=4).latent_size == 150

    def test_alignment_is_the_product_of_the_two_attentions(self):
        """C = B M = (B A) H (eq. 4.7): what the decoder reads is a weighted mean of the projected hidden states."""
        model = self.full("attn-attn", torch.float64)
        batch = make_batch(side="left")
        encoded = model.encoder(**text_of(batch))
        output = model(**batch, output_attentions=True)
        alignment = output.cross_attentions[0][:, 0] @ encoded.pooling_attentions
        states = model.encoder.pooler.projection(encoded.last_hidden_state)
        read = output.cross_attentions[0][:, 0] @ encoded.latents
        torch.testing.assert_close(alignment @ states, read, atol=1e-12, rtol=0)
        torch.testing.assert_close(alignment.sum(dim=-1), torch.ones_like(alignment[..., 0]))
        assert alignment.masked_select(batch["attention_mask"].unsqueeze(1) == 0).abs().max() == 0

    def test_two_vocabularies(self, tmp_path):
        """Source words and target words have tables of their own, of any sizes."""
        model = self.full("two_vocabularies", input_vocab_size=70)
        model.save_pretrained(tmp_path)
        loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
        assert loaded.encoder.get_input_embeddings().num_embeddings == 70
        assert loaded.decoder_embeddings.word_embeddings.num_embeddings == 40
        assert loaded.lm_head.weight is loaded.decoder_embeddings.word_embeddings.weight
        ids = torch.tensor([[5, 69, 3]])
        assert torch.equal(
            loaded(input_ids=ids, labels=torch.tensor([[39, 3]])).logits,
            model(input_ids=ids, labels=torch.tensor([[39, 3]])).logits,
        )
        with pytest.raises(ValueError, match="two vocabularies"):
            loaded.resize_token_embeddings(50)

    @pytest.mark.parametrize("architecture", ["attn", "trf"])
    @pytest.mark.parametrize("side", ["left", "right"])
    def test_a_text_without_rows_is_translated_as_alone(self, architecture, side):
        """Its mask goes along with its hidden states, through beams and caches."""
        model = self.full(architecture, torch.float64)
        sentences = [[7, 5, 9, 21, 4, 3], [6, 3], [12, 13, 14, 15, 16, 17, 18, 3]]
        batch = text_of(make_batch(sentences, side=side))
        for strategy in ({}, {"num_beams": 3}, {"use_cache": False}, {"cache_implementation": "static"}):
            said = model.generate(**batch, **strategy, max_new_tokens=7)
            for row, ids in zip(said.tolist(), sentences, strict=True):
                alone = model.generate(input_ids=torch.tensor([ids]), **strategy, max_new_tokens=7)[0].tolist()
                assert row[: len(alone)] == alone
                assert set(row[len(alone) :]) <= {0}
        assert len({tuple(row) for row in said.tolist()}) == 3
