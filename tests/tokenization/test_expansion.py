"""Vocabulary expansion: new words are encoded, everything else stays as it was."""

import copy

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from hf_meanmax import MeanMaxAAEConfig, MeanMaxAAEForReconstruction, MeanMaxAAEModel
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


@pytest.mark.parametrize("kind", [MeanMaxAAEModel, MeanMaxAAEForReconstruction])
@pytest.mark.parametrize("tied", [False, True], ids=["own-output", "tied-output"])
def test_new_words_are_encoded_and_the_rest_stays(tokenizer, vectors, kind, tied, tmp_path):
    model = make_model(tokenizer, vectors, kind, tie_word_embeddings=tied)
    size = len(tokenizer)
    inputs = tokenizer(TEXTS, return_tensors="pt", padding=True)
    with torch.no_grad():
        before = model(**inputs)
    expanded = expand_vocabulary(model, tokenizer, vectors)

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
    torch.testing.assert_close(table.weight[size:], torch.from_numpy(vectors.vectors[[1, 6, 12]]), rtol=0, atol=0)

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


def test_expanding_twice(tokenizer, vectors):
    model = make_model(tokenizer, vectors)
    size = len(tokenizer)
    once = expand_vocabulary(model, tokenizer, WordVectors(WORDS[:6], vectors.vectors[:6]))
    twice = expand_vocabulary(model, once, vectors)
    assert twice.convert_tokens_to_ids(["gnu", "zebra", "yak"]) == [size, size + 1, size + 2]
    assert len(expand_vocabulary(model, twice, vectors)) == size + 3


def test_what_does_not_fit_is_refused_and_nothing_changes(tokenizer, vectors):
    model = make_model(tokenizer, vectors)
    state = copy.deepcopy(model.state_dict())
    rng = np.random.default_rng(1)
    bpe = train_tokenizer(TEXTS, kind="bpe", vocab_size=270, show_progress=False)
    larger = train_tokenizer([*TEXTS, "one more"], show_progress=False)
    cases = [
        (tokenizer, WordVectors(WORDS, vectors.vectors[:, :5]), "5 dimensions, the word table has 6"),
        (tokenizer, WordVectors(WORDS, rng.standard_normal(vectors.vectors.shape).astype(np.float32)), "median cosine"),
        (tokenizer, WordVectors(["gnu"], vectors.vectors[:1]), "none of the 1 words"),
        (bpe, vectors, "is BPE, expected WordLevel"),
        (larger, vectors, "not this model's"),
    ]
    for words, given, message in cases:
        with pytest.raises(ValueError, match=message):
            expand_vocabulary(model, words, given)
    with pytest.raises(ValueError, match="the word table was trained"):
        expand_vocabulary(make_model(tokenizer, vectors, freeze_word_embeddings=False), tokenizer, vectors)
    assert model.config.input_vocab_size == len(tokenizer)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, state[name], rtol=0, atol=0)
