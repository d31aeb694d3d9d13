"""Vocabulary expansion: new words are encoded, everything else stays as it was."""

import copy

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from hf_meanmax import (
    MeanMaxAAEConfig,
    MeanMaxAAEForReconstruction,
    MeanMaxAAEModel,
    RNNCNNConfig,
    RNNCNNForContextPrediction,
)
from hf_meanmax.checkpoint.folder import load_checkpoint, save_checkpoint
from hf_meanmax.tokenization import WordVectors, embedding_matrix, expand_vocabulary, train_tokenizer

TEXTS = ["the quick brown fox", "the lazy dog sees it"]
# "Gnu", "two words" and "it's" are never produced by a tokenizer that lower-cases and splits.
WORDS = ["the", "gnu", "quick", "brown", "Gnu", "fox", "zebra", "two words", "lazy", "it's", "dog", "sees", "yak"]


@pytest.fixture
def tokenizer():
    return train_tokenizer(TEXTS, show_progress=False)


@pytest.fixture
def vectors():
    return WordVectors(WORDS, np.random.default_rng(0).standard_normal((len(WORDS), 6)).astype(np.float32))


def make_model(tokenizer, vectors, kind=MeanMaxAAEForReconstruction, **settings):
    torch.manual_seed(0)
    config = MeanMaxAAEConfig(
        vocab_size=len(tokenizer), embedding_size=6, hidden_size=8, intermediate_size=16, num_attention_heads=2,
        **{"freeze_word_embeddings": True, **settings},
    )  # fmt: skip
    model = kind(config).eval()
    matrix, _ = embedding_matrix(tokenizer, vectors)
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(torch.from_numpy(matrix))
    return model


@pytest.mark.parametrize("output_bias", [True, False])
def test_an_output_of_its_own_computes_what_the_tied_one_did(tokenizer, vectors, output_bias, tmp_path):
    model = make_model(tokenizer, vectors, tie_word_embeddings=True, output_bias=output_bias)
    torch.nn.init.normal_(model.output_projection.bias)
    inputs = tokenizer(TEXTS, return_tensors="pt", padding=True)
    before = model(**inputs).logits
    expansion = expand_vocabulary(model, tokenizer, vectors)
    torch.testing.assert_close(model(**inputs).logits, before)
    save_checkpoint(model, expansion.tokenizer, tmp_path / "expanded")
    torch.testing.assert_close(load_checkpoint(tmp_path / "expanded")[0](**inputs).logits, before)


@pytest.mark.parametrize("kind", [MeanMaxAAEModel, MeanMaxAAEForReconstruction])
@pytest.mark.parametrize("tied", [False, True], ids=["own-output", "tied-output"])
def test_new_words_are_encoded_and_the_rest_stays(tokenizer, vectors, kind, tied, tmp_path):
    model = make_model(tokenizer, vectors, kind, tie_word_embeddings=tied)
    size = len(tokenizer)
    inputs = tokenizer(TEXTS, return_tensors="pt", padding=True)
    with torch.no_grad():
        before = model(**inputs)
    expansion = expand_vocabulary(model, tokenizer, vectors)
    expanded = expansion.tokenizer

    assert (expansion.added, expansion.left_out, expansion.quality) == (3, len(WORDS) - 3, None)
    assert len(tokenizer) == size
    assert expanded.convert_tokens_to_ids(["gnu", "zebra", "yak"]) == [size, size + 1, size + 2]
    assert len(expanded) == size + 3 == model.config.input_vocab_size
    assert model.config.vocab_size == size
    assert model.config.tie_word_embeddings is False
    assert expanded("a Gnu and a yak").input_ids[1] == size
    assert expanded(TEXTS).input_ids == tokenizer(TEXTS).input_ids
    table = model.get_input_embeddings()
    assert table.num_embeddings == size + 3
    assert not table.weight.requires_grad
    torch.testing.assert_close(table.weight[size:], torch.from_numpy(vectors.vectors[[1, 6, 12]]))

    with torch.no_grad():
        after = model(**inputs)
    torch.testing.assert_close(after.latents if kind is MeanMaxAAEForReconstruction else after.pooler_output,
                               before.latents if kind is MeanMaxAAEForReconstruction else before.pooler_output,
                               rtol=0, atol=0)  # fmt: skip
    if kind is MeanMaxAAEForReconstruction:
        assert model.lm_head.weight.shape[0] == size
        torch.testing.assert_close(after.logits, before.logits)

    model.save_pretrained(tmp_path)
    expanded.save_pretrained(tmp_path)
    again, words = kind.from_pretrained(tmp_path).eval(), AutoTokenizer.from_pretrained(tmp_path)
    new = words("the gnu sees the zebra", return_tensors="pt")
    assert 1 not in new.input_ids
    with torch.no_grad():
        first, second = model(**new), again(**new)
        encoder = AutoModel.from_pretrained(tmp_path).eval()(**new)
    if kind is MeanMaxAAEForReconstruction:
        torch.testing.assert_close(first.logits, second.logits, rtol=0, atol=0)
        torch.testing.assert_close(first.latents, encoder.latents, rtol=0, atol=0)
    else:
        torch.testing.assert_close(first.latents, second.latents, rtol=0, atol=0)


def test_a_decoder_with_words_of_its_own_stays_tied_to_them(tokenizer, vectors, tmp_path):
    model = make_model(tokenizer, vectors, tie_word_embeddings=True, separate_vocabularies=True)
    inputs = tokenizer(TEXTS, return_tensors="pt", padding=True)
    inputs["labels"] = inputs["input_ids"]
    with torch.no_grad():
        before = model(**inputs).logits
    expand_vocabulary(model, tokenizer, vectors)
    assert model.config.tie_word_embeddings is True
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(
            MeanMaxAAEForReconstruction.from_pretrained(tmp_path).eval()(**inputs).logits, before
        )


def test_expanding_twice(tokenizer, vectors):
    model = make_model(tokenizer, vectors)
    size = len(tokenizer)
    once = expand_vocabulary(model, tokenizer, WordVectors(WORDS[:6], vectors.vectors[:6])).tokenizer
    twice = expand_vocabulary(model, once, vectors).tokenizer
    assert twice.convert_tokens_to_ids(["gnu", "zebra", "yak"]) == [size, size + 1, size + 2]
    again = expand_vocabulary(model, twice, vectors)
    assert (len(again.tokenizer), again.added) == (size + 3, 0)


def test_a_frozen_table_keeps_its_scale(tokenizer, vectors):
    """Pretraining scales word vectors (`word_vector_scale`); the new words must not be smaller than the old."""
    model = make_model(tokenizer, WordVectors(WORDS, 2.5 * vectors.vectors))
    expand_vocabulary(model, tokenizer, vectors)
    new = model.get_input_embeddings().weight[len(tokenizer) :]
    torch.testing.assert_close(new, torch.from_numpy(2.5 * vectors.vectors[[1, 6, 12]]))


def test_the_scale_of_a_frozen_table_is_that_of_the_words_it_was_given(tokenizer, vectors):
    """A word without a vector in training started at random, and may have one now."""
    known = [word for word in WORDS if word not in ("cat", "dog")]
    first = WordVectors(known, 2.5 * vectors.vectors[[WORDS.index(word) for word in known]])
    model = make_model(tokenizer, first)
    expand_vocabulary(model, tokenizer, vectors)
    new = model.get_input_embeddings().weight[len(tokenizer) :]
    torch.testing.assert_close(new, torch.from_numpy(2.5 * vectors.vectors[[1, 6, 12]]))


def make_trained(known: int = 60, added: int = 15, noise: float = 0.0, size: int = 5):
    """A model whose 6-dimensional word table is a linear map of `size`-dimensional vectors, and those vectors."""
    names = [f"w{index}" for index in range(known + added)]
    rng = np.random.default_rng(3)
    given = rng.standard_normal((len(names), size)).astype(np.float32)
    matrix = rng.standard_normal((size, 6))
    tokenizer = train_tokenizer([" ".join(names[:known])], show_progress=False)
    torch.manual_seed(0)
    config = RNNCNNConfig(
        vocab_size=len(tokenizer), embedding_size=6, hidden_size=8, decoder_channels=[8, 12, 6], num_context_words=4
    )
    model = RNNCNNForContextPrediction(config).eval()
    ids = tokenizer.convert_tokens_to_ids(names[:known])
    table = model.get_input_embeddings().weight
    with torch.no_grad():
        table[ids] = torch.from_numpy(given[:known] @ matrix + noise * rng.standard_normal((known, 6))).float()
    return model, tokenizer, WordVectors(names, given), table[ids].detach().numpy(), names


def test_a_trained_table_gets_a_least_squares_map():
    model, tokenizer, vectors, learnt, names = make_trained(noise=0.3)
    size = len(tokenizer)
    inputs = tokenizer("w1 w2 w3", return_tensors="pt")
    with torch.no_grad():
        before = model(**inputs)
    expansion = expand_vocabulary(model, tokenizer, vectors)

    # The plain reference: the normal equations.
    given = vectors.vectors[:60].astype(np.float64)
    matrix = np.linalg.solve(given.T @ given, given.T @ learnt)
    table = model.get_input_embeddings().weight
    torch.testing.assert_close(table[size:], torch.from_numpy(vectors.vectors[60:] @ matrix).float())
    torch.testing.assert_close(table[tokenizer.convert_tokens_to_ids(names[:60])], torch.from_numpy(learnt))
    assert expansion.tokenizer.convert_tokens_to_ids(names[60:]) == list(range(size, size + 15))
    with torch.no_grad():
        after = model(**inputs)
    torch.testing.assert_close(after.latents, before.latents, rtol=0, atol=0)
    torch.testing.assert_close(after.logits, before.logits)
    assert model.config.tie_word_embeddings is False
    assert model.predict_words(**inputs)[0].max() < size


def test_the_quality_of_a_map_is_that_on_words_it_has_not_seen():
    exact = expand_vocabulary(*make_trained()[:3]).quality
    assert (exact.words, exact.held_out, exact.nearest, exact.nearest_10) == (60, 6, 1.0, 1.0)
    assert exact.explained_variance == pytest.approx(1.0)
    assert exact.cosine == pytest.approx(1.0)
    noisy = expand_vocabulary(*make_trained(noise=0.5)[:3]).quality
    assert 0.5 < noisy.explained_variance < 0.99
    # Vectors that say nothing of the table: no better than the mean row, though the map has fitted what it saw.
    model, tokenizer, vectors, _, names = make_trained()
    other = np.random.default_rng(9).standard_normal(vectors.vectors.shape).astype(np.float32)
    with pytest.warns(UserWarning, match="the new words will be close to noise"):
        useless = expand_vocabulary(model, tokenizer, WordVectors(names, other)).quality
    assert useless.explained_variance < 0.2
    assert useless.nearest < 0.5
    assert "60 words in both; on 6 held-out ones R^2" in str(useless)


def test_a_second_file_is_mapped_by_the_learnt_words_alone():
    model, tokenizer, vectors, _, names = make_trained(noise=0.3)
    reference = make_trained(noise=0.3)[0]
    once = expand_vocabulary(model, tokenizer, WordVectors(names[:70], vectors.vectors[:70])).tokenizer
    expand_vocabulary(model, once, vectors)
    expand_vocabulary(reference, tokenizer, vectors)
    torch.testing.assert_close(model.get_input_embeddings().weight, reference.get_input_embeddings().weight)


def test_a_map_needs_more_words_than_dimensions():
    model, tokenizer, vectors, _, _ = make_trained()
    few = WordVectors(vectors.words[:6] + ["new"], np.eye(7, 6, dtype=np.float32))
    with pytest.raises(ValueError, match=r"^6 words are in both .* needs more words than dimensions beside the 1 that"):
        expand_vocabulary(model, tokenizer, few)
    assert model.config.input_vocab_size == len(tokenizer)
    assert model.config.tie_word_embeddings is True


def test_what_does_not_fit_is_refused_and_nothing_changes(tokenizer, vectors):
    model = make_model(tokenizer, vectors)
    state = copy.deepcopy(model.state_dict())
    rng = np.random.default_rng(1)
    bpe = train_tokenizer(TEXTS, kind="bpe", vocab_size=270, show_progress=False)
    larger = train_tokenizer([*TEXTS, "one more"], show_progress=False)
    cases = [
        (tokenizer, WordVectors(WORDS, vectors.vectors[:, :5]), "5 dimensions, the frozen word table has 6"),
        (tokenizer, WordVectors(WORDS, rng.standard_normal(vectors.vectors.shape).astype(np.float32)), "median cosine"),
        (tokenizer, WordVectors(["gnu"], vectors.vectors[:1]), "none of the 1 words"),
        (bpe, vectors, "is BPE, expected WordLevel"),
        (larger, vectors, "not this model's"),
    ]
    for words, given, message in cases:
        with pytest.raises(ValueError, match=message):
            expand_vocabulary(model, words, given)
    assert model.config.input_vocab_size == len(tokenizer)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, state[name], rtol=0, atol=0)


def test_two_decoders_with_a_tied_output_are_refused(tokenizer, vectors):
    torch.manual_seed(0)
    config = MeanMaxAAEConfig(
        vocab_size=len(tokenizer), embedding_size=6, hidden_size=8, intermediate_size=8, num_attention_heads=2,
        tie_word_embeddings=True, context_channels=[8, 6], num_context_words=4,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"two decoders .* cannot be expanded; train it with `--tie_word_embeddings"):
        expand_vocabulary(MeanMaxAAEForReconstruction(config), tokenizer, vectors)
