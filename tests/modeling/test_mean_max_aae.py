"""The mean-max attention autoencoder."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from hf_meanmax import MeanMaxAAEConfig, MeanMaxAAEForReconstruction, MeanMaxAAEModel
from hf_meanmax.objectives import Decoding, TrainingModel
from modeling.family_tests import Family, FamilyTests, make_batch, text_of
from modeling.family_values import BAD_SETTINGS, OTHER_VALUES, TINY, without_gradient
from tiny_model import make_model
from training_loss import training_loss

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
        "weighted": {"weighted_mean_row": True},
        "normalised": {"weighted_mean_row": True, "latent_normalization": "rows", "latent_scales": True},
        "static": {"encoder_type": "none", "pooling": "weighted_mean"},
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
    compiled_variants=("paper", "deep_cnn_to_attention"),
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


def test_weights_of_another_decoder_are_named(tmp_path):
    """An encoder takes no notice of a decoder; a whole model says what it leaves."""
    make_model().save_pretrained(tmp_path)
    given = {"output_loading_info": True, "decoder_type": "lstm"}
    _, found = MeanMaxAAEForReconstruction.from_pretrained(tmp_path, **given)
    assert any(name.startswith("decoder.") for name in found["unexpected_keys"])
    _, found = MeanMaxAAEModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not found["unexpected_keys"]
