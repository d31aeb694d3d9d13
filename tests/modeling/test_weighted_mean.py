"""The weighted mean of the word vectors, rows of unit length, and models without a decoder."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForSeq2SeqLM

from hf_meanmax import MeanMaxAAEConfig, MeanMaxAAEForReconstruction
from modeling.family_tests import make_batch, text_of

SIZES = {"vocab_size": 40, "embedding_size": 12, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 4}
STATIC = {**SIZES, "encoder_type": "none", "pooling": "weighted_mean", "latent_size": 12, "decoder_type": "none"}

WITHOUT_WORDS = [[7, 5, 9, 3], [1, 3], [8, 30, 1, 3]]  # the second has an unknown word and the end alone


def make(**settings) -> MeanMaxAAEForReconstruction:
    torch.manual_seed(0)
    return MeanMaxAAEForReconstruction(MeanMaxAAEConfig(**{**SIZES, **settings})).eval()


def smooth_inverse_frequency(table, counts, texts, smoothing, num_special=4):
    """The sentence vectors of Arora, Liang and Ma (2017) before a component is removed, word by word."""
    counts = np.array(counts, dtype=np.float64)
    counts[:num_special] = 0
    probability = counts / counts.sum()
    vectors = []
    for ids in texts:
        words = [word for word in ids if word >= num_special]
        weighted = [smoothing / (smoothing + probability[word]) * table[word] for word in words]
        vectors.append(sum(weighted, np.zeros(table.shape[1])) / max(1, len(words)))
    return np.stack(vectors)


@pytest.mark.parametrize("smoothing", [1e-3, 0.05])
def test_untrained_it_is_the_bag_of_smooth_inverse_frequencies(smoothing):
    model = make(**STATIC, frequency_smoothing=smoothing).double()
    counts = np.random.default_rng(0).integers(0, 1000, 40)
    model.encoder.word_pooler.start_from_frequencies(torch.from_numpy(counts))
    batch = make_batch(WITHOUT_WORDS)
    texts = [ids[mask.bool()].tolist() for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)]
    table = model.encoder.embeddings.word_embeddings.weight.detach().numpy()
    wanted = smooth_inverse_frequency(table, counts, texts, smoothing)
    found = model.encoder(**text_of(batch)).pooler_output.detach().numpy()
    known = np.linalg.norm(wanted, axis=1) > 0
    unit = [rows[known] / np.linalg.norm(rows[known], axis=1, keepdims=True) for rows in (found, wanted)]
    np.testing.assert_allclose(unit[0], unit[1], rtol=1e-6, atol=1e-9)
    assert known.tolist() == [True, False, True]
    assert not found[~known].any()


def test_small_weights_are_shares_all_the_same():
    model = make(**STATIC, weighted_mean_map=False)
    model.encoder.word_pooler.log_weights.weight.data.fill_(-20)
    vector = model.encoder(input_ids=torch.tensor([[7, 7, 3]])).pooler_output[0]
    torch.testing.assert_close(vector, model.encoder.embeddings.word_embeddings.weight[7])


def test_a_feed_forward_layer_starts_as_no_change_and_adds_what_it_learns():
    plain, layered = make(**STATIC).double(), make(**STATIC, weighted_mean_hidden_size=24).double()
    layered.load_state_dict(plain.state_dict(), strict=False)
    batch = text_of(make_batch(WITHOUT_WORDS))
    rows = torch.nn.functional.normalize(plain.encoder(**batch).pooler_output, dim=-1)
    torch.testing.assert_close(layered.encoder(**batch).pooler_output, rows)
    layer = layered.encoder.word_pooler.feed_forward
    torch.nn.init.normal_(layer.down.weight)
    found = layered.encoder(**batch).pooler_output.detach().numpy()
    for row, vector in zip(rows.detach().numpy(), found, strict=True):
        inner = layer.up.weight.detach().numpy() @ (row * 12**0.5)
        inner = inner * np.array([0.5 * (1 + math.erf(number / 2**0.5)) for number in inner])
        np.testing.assert_allclose(vector, row + layer.down.weight.detach().numpy() @ inner, atol=1e-12)
    assert found.any(axis=1).tolist() == [True, False, True]


def test_a_checkpoint_without_the_layer_gets_one_that_changes_nothing(tmp_path):
    make(**STATIC).save_pretrained(tmp_path)
    ids = torch.tensor([[7, 5, 9, 3]])
    plain, layered = (
        AutoModel.from_pretrained(tmp_path, weighted_mean_hidden_size=size).eval()(input_ids=ids).pooler_output
        for size in (None, 24)
    )
    torch.testing.assert_close(layered, torch.nn.functional.normalize(plain, dim=-1))


@pytest.mark.parametrize("hidden_size", [None, 24])
def test_what_stands_around_a_text_changes_nothing(hidden_size):
    model = make(**STATIC, weighted_mean_hidden_size=hidden_size).double()
    if hidden_size:
        torch.nn.init.normal_(model.encoder.word_pooler.feed_forward.down.weight)
    alone = [model.encoder(input_ids=torch.tensor([ids])).pooler_output for ids in ([7, 5, 9, 3], [6, 3], [8, 30, 3])]
    for side in ("left", "right"):
        batch = make_batch([[7, 5, 9, 3], [6, 3], [8, 30, 3]], side=side, extra=2)
        torch.testing.assert_close(model.encoder(**text_of(batch)).pooler_output, torch.cat(alone))


@pytest.mark.parametrize("decoder", ["attention", "none"])
def test_a_resized_vocabulary_has_a_weight_for_each_word(decoder):
    model = make(weighted_mean_row=True, decoder_type=decoder, freeze_word_weights=True)
    pooler = model.encoder.word_pooler
    pooler.start_from_frequencies(torch.arange(40))
    before = model.encoder(input_ids=torch.tensor([[7, 5, 9, 3]])).pooler_output
    weights = pooler.log_weights.weight.flatten()
    model.resize_token_embeddings(43)
    torch.testing.assert_close(pooler.log_weights.weight[40:, 0], weights[4:].mean().expand(3))
    assert not pooler.log_weights.weight.requires_grad
    assert torch.equal(model.encoder(input_ids=torch.tensor([[7, 5, 9, 3]])).pooler_output, before)
    assert model.encoder(input_ids=torch.tensor([[42, 5, 3]])).pooler_output.isfinite().all()
    model.resize_token_embeddings(20)
    assert len(pooler.frequencies) == pooler.log_weights.num_embeddings == 20


def test_frozen_weights_stay_and_trained_ones_move():
    for frozen in (False, True):
        model = make(**STATIC, freeze_word_weights=frozen)
        model.train().encoder(input_ids=torch.tensor([[7, 5, 9, 3]])).pooler_output.sum().backward()
        assert (model.encoder.word_pooler.log_weights.weight.grad is None) == frozen


def test_word_vectors_in_place_of_ids_are_refused():
    with pytest.raises(ValueError, match="give `input_ids`"):
        make(**STATIC).encoder(inputs_embeds=torch.zeros(1, 2, 12))


def test_a_map_to_narrower_rows_starts_orthogonal():
    weight = make(**{**STATIC, "latent_size": 8}).encoder.word_pooler.map.weight
    torch.testing.assert_close(weight @ weight.T, torch.eye(8), atol=1e-5, rtol=0)


@pytest.mark.parametrize("scales", [False, True])
def test_one_vector_serves_cosines_and_the_decoder(scales):
    """The published vector, scaled by any positive number, gives back the rows that the decoder was trained on."""
    model = make(weighted_mean_row=True, latent_normalization="rows", latent_scales=scales)
    if scales:
        model.encoder.latent_scales.data = torch.tensor([0.5, 2.0, 1.0])
    batch = text_of(make_batch())
    output = model.encoder(**batch)
    wanted = torch.tensor([0.5, 2.0, 1.0]) if scales else torch.ones(3)
    torch.testing.assert_close(output.latents.norm(dim=-1), wanted.expand(4, 3))
    for factor in (1.0, 3.7, 1e-3, 1e-30, 1e30):
        torch.testing.assert_close(model.latents_from_embedding(factor * output.pooler_output), output.latents)
    for factor in (1e-12, 1e12):  # which float16 cannot hold
        rows = copy.deepcopy(model).half().latents_from_embedding(factor * output.pooler_output)
        torch.testing.assert_close(rows.float(), output.latents, atol=2e-3, rtol=0)
    unit = torch.nn.functional.normalize(output.pooler_output, dim=-1)
    words = model.generate(sentence_embedding=output.pooler_output, max_new_tokens=9)
    assert torch.equal(model.generate(sentence_embedding=unit, max_new_tokens=9), words)


def test_without_a_decoder_there_are_vectors_alone(tmp_path):
    model = make(**STATIC)
    ids = torch.tensor([[7, 5, 9, 3]])
    model.save_pretrained(tmp_path)
    vector = AutoModel.from_pretrained(tmp_path).eval()(input_ids=ids).pooler_output
    assert torch.equal(vector, model.encoder(input_ids=ids).pooler_output)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    for call in (
        lambda: loaded.generate(input_ids=ids),
        lambda: loaded.generate(sentence_embedding=vector),
        lambda: loaded.predict_words(ids),
        lambda: loaded(input_ids=ids, labels=ids),
    ):
        with pytest.raises(ValueError, match="this checkpoint gives vectors alone"):
            call()


def test_numbers_that_the_type_cannot_hold_are_called_so():
    model = make(weighted_mean_row=True).half()
    size = model.config.num_latents * model.config.latent_width
    with pytest.raises(ValueError, match="holds values that are too large for float16; this model decodes a raw"):
        model.latents_from_embedding(torch.full((1, size), 1e6))
    with pytest.raises(ValueError, match="holds NaN or infinite values"):
        model.latents_from_embedding(torch.full((1, size), torch.inf))


def test_a_text_of_no_word_has_zeros_in_float16():
    model = make(**{**STATIC, "latent_normalization": "rows"}).half()
    vector = model.encoder(input_ids=torch.tensor([[3]])).pooler_output
    assert torch.equal(vector, torch.zeros_like(vector))
