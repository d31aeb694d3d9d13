"""Parts of the beam search; whole searches are compared with those of transformers for every family."""

import pytest
import torch
from transformers import GenerationConfig

from hf_meanmax.modeling.beam_search import BeamSearch, top_words
from modeling.kinds import make, read


@pytest.mark.parametrize("words", [40, 64 * 20, 64 * 20 + 7, 64 * 20 + 63])
def test_the_likeliest_words_are_those_of_topk(words):
    scores = torch.randn(5, words, generator=torch.Generator().manual_seed(words))
    # All of the best in one block, in the last words, and a row of few words that are possible at all.
    scores[0, 8:24] += 100
    scores[1, -9:] += 100
    scores[2, 3:] = -torch.inf
    best, ids = top_words(scores, 8)
    expected = scores.topk(8)
    assert torch.equal(best, expected.values)
    possible = best > -torch.inf
    assert torch.equal(ids[possible], expected.indices[possible])
    assert torch.equal(scores.gather(1, ids), best)


@pytest.fixture
def model(monkeypatch):
    """A model whose own beam search must not be used."""
    monkeypatch.setattr(BeamSearch, "run", None)
    return make("attention")


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"early_stoping": False}, "early_stoping"),
        ({"foo": False}, "foo"),
        ({"num_return_sequences": 3}, "num_return_sequences"),
        ({"early_stopping": "sometimes"}, "early_stopping"),
    ],
)
def test_what_transformers_refuses_is_refused(model, settings, error):
    with pytest.raises(ValueError, match=error):
        model.generate(**read("attention"), num_beams=2, max_new_tokens=4, **settings)


def test_settings_on_the_config_are_refused(model):
    model.config.repetition_penalty = 2.0
    for num_beams in (1, 2):
        with pytest.raises(ValueError, match="repetition_penalty"):
            model.generate(**read("attention"), num_beams=num_beams, max_new_tokens=4)


def test_the_start_is_that_of_the_generation_config(model):
    """Where it has none, transformers takes its `bos_token_id`, and does not look into the model's own."""
    settings = {"eos_token_id": 3, "pad_token_id": 0, "use_cache": True}
    model.generation_config = GenerationConfig(bos_token_id=7, **settings)
    assert (model.generate(**read("attention"), num_beams=2, max_new_tokens=4)[:, 0] == 7).all()
    model.generation_config = GenerationConfig(**settings)
    with pytest.raises(ValueError, match="decoder_start_token_id"):
        model.generate(**read("attention"), num_beams=2, max_new_tokens=4)


@pytest.mark.parametrize("num_beams", [1, 2])
def test_a_mask_beside_vectors_is_not_read(num_beams):
    model = make("attention")
    vectors = torch.randn(3, model.config.sentence_embedding_size)
    settings = {"sentence_embedding": vectors, "num_beams": num_beams, "max_new_tokens": 4}
    expected = model.generate(**settings)
    assert torch.equal(model.generate(**settings, attention_mask=torch.ones(1, 5)), expected)
