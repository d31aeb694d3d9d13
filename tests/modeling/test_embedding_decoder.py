"""The decoder of any embedder."""

from __future__ import annotations

import inspect

import pandas as pd
import pytest
import torch
from datasets import Dataset
from transformers import AutoModel, AutoModelForSeq2SeqLM, CompileConfig

from hf_meanmax import EmbeddingDecoderConfig, EmbeddingDecoderForGeneration
from modeling.family_tests import SENTENCES, Family, FamilyTests, make_batch
from modeling.family_values import OTHER_VALUES, TINY, without_gradient

DIM = 10
FIXED = set(EmbeddingDecoderConfig.fixed_fields)
OF_TEXT = "a text is no input: there is no text encoder"

EMBEDDING_DECODER = Family(
    config_class=EmbeddingDecoderConfig,
    model_class=None,
    full_class=EmbeddingDecoderForGeneration,
    auto_full_class=AutoModelForSeq2SeqLM,
    searched=("linear", "conditional_gru"),
    tiny={**TINY, "embedding_dim": DIM, "latent_length": 3},
    variants={
        "linear": {},
        "hidden_layer": {"map_hidden_size": 20, "map_layer_norm": False},
        "of_unit_length": {"normalize_embeddings": True},
        "unit_rows": {"map_layer_norm": False, "latent_normalization": "rows", "latent_scales": True},
        "tied": {"tie_word_embeddings": True, "position_embedding_type": "none"},
        "deep": {"num_hidden_layers": 2, "hidden_dropout": 0.1},
        "gates": {"decoder_type": "gates"},
        "lstm": {"decoder_type": "lstm", "position_embedding_type": "none"},
        "lstm_attention": {"decoder_type": "lstm_attention", "latent_length": 1},
        "lstm_gates": {"decoder_type": "lstm_gates", "latent_names": ["max", "mean", "last"]},
        "gru": {"decoder_type": "gru", "latent_size": 20},
        "conditional_gru": {"decoder_type": "conditional_gru", "latent_size": 20, "decoder_initial_state": True},
        "causal_cnn": {"decoder_type": "causal_cnn", "decoder_channels": [20, 32]},
    },
    other_values={
        **{name: settings for name, settings in OTHER_VALUES.items() if name not in FIXED},
        "input_vocab_size": {"input_vocab_size": 40, "vocab_size": 40},
        "decoder_type": {"decoder_type": "lstm"},
        "embedding_dropout": {"embedding_dropout": 0.1},
        "embedding_dim": {"embedding_dim": DIM},
        "latent_length": {"latent_length": 3},
        "latent_names": {"latent_names": ["max", "mean"], "latent_length": 2},
        "map_hidden_size": {"map_hidden_size": 20},
        "map_layer_norm": {"map_layer_norm": False},
        "normalize_embeddings": {"normalize_embeddings": True},
        "embedder": {"embedder": {"name": "some/embedder", "dimension": 384, "normalized": True, "prompt": None}},
    },
    bad_settings=[
        ({"embedding_dim": 0}, ("`embedding_dim` is 0", "1 or more")),
        ({"latent_length": 0}, ("`latent_length` is 0", "1 or more")),
        ({"map_hidden_size": -1}, ("`map_hidden_size` is -1", "1 or more")),
        ({"latent_names": ["max", "mean"]}, ("`latent_names` is ['max', 'mean']", "`latent_length` 3")),
        ({"latent_names": ["max", "mean", "max"]}, ("`latent_names`", "a name of its own")),
        ({"latent_names": ["max", "mean", "last", "last"]}, ("`latent_names`", "a name of its own")),
        ({"decoder_type": "none"}, ("`decoder_type` is 'none'", "autoregressive")),
        ({"decoder_type": "words_cnn", "decoder_channels": [20, 12]}, ("`decoder_type` is 'words_cnn'",)),
        ({"input_vocab_size": 50}, ("`input_vocab_size` is 50", "one vocabulary")),
        ({"pooling": "mean"}, ("`pooling` is 'mean'", "embedding_decoder", "Leave it out")),
        ({"teacher_size": 7}, ("`teacher_size` is 7", "Leave it out")),
        ({"weighted_mean_row": True}, ("`weighted_mean_row` is True", "Leave it out")),
        ({"embedder": {"name": "a/b", "dimension": 11}}, ("`embedding_dim` is 10", "a/b have 11 numbers")),
        ({"hidden_size": 0}, ("`hidden_size` is 0", "1 or more")),
        ({"vocab_size": 0}, ("`vocab_size` is 0", "1 or more")),
        ({"latent_scales": True}, ("`latent_scales` is True", "latent_normalization='rows'")),
        ({"num_attention_heads": 5}, ("`num_attention_heads` is 5", "must divide")),
        ({"decoder_type": "gates", "latent_size": 20}, ("`latent_size` is 20", "'gates'")),
    ],
    compiled_variants=("of_unit_length",),
    saying="linear",
    gets_no_gradient=without_gradient,
    exemptions={
        "test_encoder_alone_is_saved_and_loaded": OF_TEXT,
        "test_expanded_input_vocabulary": "there is one vocabulary, that of the decoder",
        "test_word_vectors_in_place_of_ids": OF_TEXT,
        "test_empty_input_is_finite": f"{OF_TEXT}; see test_vectors_of_zeros_are_decoded",
        "test_row_without_tokens_leaves_the_others_alone": OF_TEXT,
        "test_mask_types": "the mask is that of the labels, which a padded batch has from the data",
        "test_teacher_embeddings_are_a_term_of_the_loss": "the vector is given, so that none can be learnt",
        "test_a_weighted_mean_of_the_words_is_one_more_row": OF_TEXT,
        "test_sizes_of_the_embedding": "the embedding is not Z; see test_sizes_of_the_map",
        "test_text_and_its_embedding_say_the_same": f"{OF_TEXT}; see test_forms_of_a_vector",
        "test_length_bounds": f"{OF_TEXT}, whose length would bound; see test_length_bounds_of_vectors",
        "test_a_text_is_decoded_as_alone": f"{OF_TEXT}; see test_a_vector_is_decoded_as_alone",
        "test_generation_takes_one_source": f"{OF_TEXT}; see test_forms_of_a_vector",
        "test_vectors_that_are_no_embeddings_are_refused": "of other sizes; see test_foreign_vectors_are_refused",
    },
)


class TestEmbeddingDecoder(FamilyTests):
    family = EMBEDDING_DECODER

    def make_batch(self, sentences=SENTENCES, side="right", extra=0):
        """Vectors in place of token ids, each a function of its sentence."""
        batch = make_batch(sentences, side, extra)
        del batch["input_ids"]
        vectors = [torch.randn(DIM, generator=torch.Generator().manual_seed(hash(tuple(ids)))) for ids in sentences]
        return {"sentence_embedding": torch.stack(vectors), **batch}

    def vectors(self, rows: int = 4) -> torch.Tensor:
        return 3 * torch.randn(rows, DIM, generator=torch.Generator().manual_seed(1))

    def test_sizes_of_the_map(self, variant):
        config, model = self.config(variant), self.full(variant)
        output = model.encoder(self.vectors())
        assert output.latents.shape == (4, config.num_latents, config.latent_width)
        assert len(config.pooling_rows) == config.num_latents == config.latent_length
        assert torch.equal(output.pooler_output, self.vectors())

    def test_the_map_by_hand(self):
        model = self.full("of_unit_length", torch.float64)
        encoder = model.encoder
        encoder.standardization.mean.copy_(torch.randn(DIM))
        encoder.standardization.scale.copy_(torch.rand(DIM) + 0.5)
        vectors = self.vectors().double()
        unit = vectors / vectors.norm(dim=1, keepdim=True)
        standard = (unit - encoder.standardization.mean) / encoder.standardization.scale
        rows = (standard @ encoder.map.weight.T + encoder.map.bias).view(4, 3, 32)
        expected = (rows - rows.mean(-1, keepdim=True)) / (rows.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
        expected = expected * encoder.layer_norm.weight + encoder.layer_norm.bias
        torch.testing.assert_close(encoder(vectors).latents, expected)

    def test_standardization_is_saved(self, tmp_path):
        model = self.full()
        model.encoder.standardization.mean.copy_(torch.randn(DIM))
        model.encoder.standardization.scale.fill_(0.25)
        model.save_pretrained(tmp_path)
        loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
        assert torch.equal(loaded.encoder.standardization.mean, model.encoder.standardization.mean)
        assert torch.equal(loaded.encoder.standardization.scale, model.encoder.standardization.scale)
        with pytest.raises(ValueError, match="EmbeddingDecoderConfig"):
            AutoModel.from_pretrained(tmp_path)

    def test_forms_of_a_vector(self, variant):
        model, vectors = self.full(variant), self.vectors()
        for strategy in ({}, {"num_beams": 2, "num_return_sequences": 2}, {"do_sample": True, "top_k": 5}):
            said = []
            for source in (
                {"sentence_embedding": vectors},
                {"sentence_embedding": vectors.numpy()},
                {"sentence_embedding": list(vectors)},
                {"sentence_embedding": pd.DataFrame(vectors.numpy())},
                {"sentence_embedding": Dataset.from_dict({"v": vectors.numpy()}).with_format("torch")["v"]},
                {"sentence_embedding": vectors.double()},
                {"encoder_outputs": model.encoder(vectors)},
            ):
                torch.manual_seed(3)
                said.append(model.generate(**source, **strategy, max_new_tokens=6))
            assert all(torch.equal(said[0], other) for other in said[1:]), strategy
        assert len(model.generate(sentence_embedding=vectors[0], max_new_tokens=6)) == 1
        by_name, by_place = model.generate(sentence_embedding=vectors), model.generate(vectors)
        assert torch.equal(by_name, by_place)
        for sources, words in (
            ({}, "got 0 inputs"),
            ({"sentence_embedding": vectors, "encoder_outputs": model.encoder(vectors)}, "got 2 inputs"),
            ({"input_ids": torch.tensor([[5, 6, 3]])}, "has no text encoder: give `sentence_embedding`"),
        ):
            with pytest.raises(ValueError, match=words):
                model.generate(**sources)
        with pytest.raises(ValueError, match="has no text encoder"):
            model(labels=torch.tensor([[5, 6, 3]]))
        with pytest.raises(TypeError, match="input_ids"):
            model.encoder(vectors, input_ids=torch.tensor([[5, 6, 3]]))

    def test_what_is_no_batch_of_vectors_is_said(self):
        model = self.full()
        for given in ((row for row in self.vectors()), object(), [[1.0] * DIM, [1.0] * 5]):
            with pytest.raises(ValueError, match=r"no batch \(.*\); this model decodes vectors of"):
                model.generate(sentence_embedding=given)

    def test_columns_of_the_decoder_are_kept_by_a_trainer(self):
        """It drops what `forward` does not name."""
        names = inspect.signature(self.full().forward).parameters
        assert {"labels", "decoder_input_ids", "decoder_attention_mask"} <= names.keys()

    def test_any_length_where_the_embedder_has_one(self):
        vectors = self.vectors()
        for variant, is_same in (("of_unit_length", True), ("linear", False)):
            model = self.full(variant)
            assert model.config.ignores_length == is_same
            rows = [model.encoder(factor * vectors).latents for factor in (1.0, 7.0)]
            assert torch.allclose(*rows, atol=1e-5) == is_same

    def test_vectors_of_zeros_are_decoded(self, variant):
        model = self.full(variant)
        vectors = torch.cat([self.vectors(2), torch.zeros(1, DIM)])
        assert model.encoder(vectors).latents.isfinite().all()
        model(sentence_embedding=vectors, labels=torch.full((3, 4), 5)).loss.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
        assert model.generate(sentence_embedding=vectors, max_new_tokens=5).shape[0] == 3

    def test_foreign_vectors_are_refused(self):
        """Each message says what was expected. One bad vector among good ones is enough."""
        model = self.full(embedder={"name": "some/embedder", "dimension": DIM})
        vectors = self.vectors()
        broken = vectors.clone()
        broken[2, 3] = float("nan")
        for bad, reason in (
            (vectors[:, :-1], r"of shape \(4, 9\) cannot be decoded"),
            (torch.cat([vectors, vectors], dim=1), r"of shape \(4, 20\) cannot be decoded"),
            (vectors[None], r"of shape \(1, 4, 10\) cannot be decoded"),
            (torch.zeros(0), r"of shape \(0,\) cannot be decoded"),
            (broken, "NaN or infinite"),
            ((10 * vectors).to(torch.int8), "of type int8 are quantised"),
        ):
            with pytest.raises(ValueError, match=reason) as caught:
                model.generate(sentence_embedding=bad)
            assert f"vectors of some/embedder, of {DIM} numbers" in str(caught.value)
        for bad in (vectors[:, :-1], vectors[:, :1], vectors[0], vectors.numpy()):
            with pytest.raises(ValueError, match=rf"a tensor \(B, {DIM}\), the vectors of some/embedder"):
                model(sentence_embedding=bad, labels=torch.tensor(4 * [[5, 6]]))

    def test_length_bounds_of_vectors(self):
        model = self.full()
        with torch.no_grad():
            model.lm_head.bias[3] = -1e4  # it never stops by itself
        for bounds, width in (({}, 257), ({"max_new_tokens": 5}, 6), ({"max_length": 5}, 5)):
            assert model.generate(sentence_embedding=self.vectors(), **bounds).shape == (4, width)
        model.generation_config.max_new_tokens = 25
        assert model.generate(sentence_embedding=self.vectors()).shape == (4, 26)

    def test_a_vector_is_decoded_as_alone(self, variant):
        model, vectors = self.full(variant, torch.float64), self.vectors()
        with torch.no_grad():
            model.lm_head.bias[3] += 2  # so that texts end at different lengths
        for strategy in ({}, {"num_beams": 3}):
            together = model.generate(sentence_embedding=vectors, **strategy, max_new_tokens=9)
            for row, vector in zip(together, vectors, strict=True):
                alone = model.generate(sentence_embedding=vector, **strategy, max_new_tokens=9)[0]
                assert torch.equal(row[: len(alone)], alone)
                assert (row[len(alone) :] == 0).all()

    def test_a_compiled_step_goes_on_from_a_static_cache(self):
        """A GPU's: there transformers compiles the step of a cache of fixed size without being asked."""
        model, vectors = self.full("conditional_gru"), torch.randn(32, DIM)
        # As it is traced; what inductor makes of it takes a C++ compiler twenty seconds.
        options = CompileConfig(mode="default", backend="eager")
        options._compile_all_devices = True
        found = model.generate(
            sentence_embedding=vectors, max_new_tokens=6, cache_implementation="static", compile_config=options
        )
        assert found.tolist() == model.generate(sentence_embedding=vectors, max_new_tokens=6).tolist()
