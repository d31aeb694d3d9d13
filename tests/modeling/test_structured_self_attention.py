"""The structured self-attentive embedding."""

from __future__ import annotations

import torch
from transformers import AutoModelForSeq2SeqLM

from hf_meanmax import (
    StructuredSelfAttentionConfig,
    StructuredSelfAttentionForReconstruction,
    StructuredSelfAttentionModel,
)
from modeling.family_tests import Family, FamilyTests, make_batch, text_of
from modeling.family_values import BAD_SETTINGS, OTHER_VALUES, TINY, without_gradient
from modeling.test_rnn_cnn import AS_MEAN_MAX
from training_loss import training_loss

STRUCTURED_SELF_ATTENTION = Family(
    config_class=StructuredSelfAttentionConfig,
    model_class=StructuredSelfAttentionModel,
    full_class=StructuredSelfAttentionForReconstruction,
    auto_full_class=AutoModelForSeq2SeqLM,
    searched=("paper",),
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
        given = {"encoder_outputs": model.get_encoder()(**text_of(batch)), "labels": batch["labels"]}
        close(model(**given, attention_mask=batch["attention_mask"]).loss, output.loss)
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
