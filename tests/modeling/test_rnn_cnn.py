"""RNN-CNN."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoModelForPreTraining

from hf_meanmax import RNNCNNConfig, RNNCNNForContextPrediction, RNNCNNModel
from modeling.family_tests import Family, FamilyTests, make_batch, text_of
from modeling.family_values import BAD_SETTINGS, OTHER_VALUES, TINY, is_of_words, without_gradient
from training_loss import training_loss

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
    compiled_variants=("cnn_to_cnn",),
    saying="gru",
    gets_no_gradient=without_gradient,
)


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
