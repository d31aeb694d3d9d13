"""The gated mean-max attention autoencoder."""

from __future__ import annotations

import torch
from transformers import AutoModelForSeq2SeqLM

from hf_meanmax import GatedMeanMaxAAEConfig, GatedMeanMaxAAEForReconstruction, GatedMeanMaxAAEModel
from modeling.family_tests import Family, FamilyTests, make_batch, text_of
from modeling.family_values import BAD_SETTINGS, OTHER_VALUES, TINY, without_gradient

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
