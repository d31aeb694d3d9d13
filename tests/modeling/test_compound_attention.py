"""Compound attention."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from hf_meanmax import CompoundAttentionConfig, CompoundAttentionForTranslation, CompoundAttentionModel
from modeling.family_tests import Family, FamilyTests, make_batch, text_of
from modeling.family_values import BAD_SETTINGS, OTHER_VALUES, TINY, without_gradient
from modeling.test_rnn_cnn import AS_MEAN_MAX
from tiny_model import make_model

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
    compiled_variants=("trf-attn-attn",),
    saying="attn-attn",
    free=FREE,
    end_bias=2.0,
    gets_no_gradient=without_gradient,
)


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

    def test_words_of_the_decoders_own_are_trained_beside_frozen_ones(self):
        model = self.full("two_vocabularies", input_vocab_size=70, freeze_word_embeddings=True)
        assert not model.encoder.embeddings.word_embeddings.weight.requires_grad
        assert model.decoder_embeddings.word_embeddings.weight.requires_grad
        assert model.decoder_embeddings.special_embeddings is None

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
        with pytest.raises(ValueError, match="of another vocabulary"):
            loaded(input_ids=ids)

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


def test_an_override_that_is_no_part_of_the_architecture_is_refused(tmp_path):
    make_model(full_class=CompoundAttentionForTranslation, architecture="attn-attn").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="`pooling` is 'mean', but `architecture='attn-attn'` means"):
        CompoundAttentionForTranslation.from_pretrained(tmp_path, pooling="mean", latent_heads=1)
