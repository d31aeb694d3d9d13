"""Edits are what they are said to be: one word or some moved words, the likeliest first, none twice."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hf_meanmax.inference import edits
from hf_meanmax.inference.edits import log_likelihoods, propose_edits
from tiny_model import make_model

TEXTS = [(5, 6, 7, 8), (9,), (), (4, 11, 4, 5, 10, 8, 5)]


@pytest.fixture
def model():
    return make_model(vocab_size=40).eval()


@pytest.fixture
def latents(model):
    torch.manual_seed(0)
    return torch.randn(len(TEXTS), model.config.num_latents, model.config.latent_width)


def plain_scores(model, latents, text):
    """Log probabilities `(T + 1, V)` of what follows each part of one text."""
    labels = torch.tensor([[*text, model.config.eos_token_id]])
    with torch.no_grad():
        return model(encoder_outputs=(latents[None],), labels=labels).logits[0].log_softmax(dim=-1)


def propose(model, latents, count=1000, tried=None, **settings):
    tried = [set() for _ in TEXTS] if tried is None else tried
    return propose_edits(model, latents, TEXTS, count, tried, longest=8, **settings)


@pytest.mark.parametrize("together", [1, 16, 1024])
def test_log_likelihoods(model, latents, together, monkeypatch):
    monkeypatch.setattr(edits, "_PLACES_TOGETHER", together)
    expected = []
    for row, text in enumerate(TEXTS):
        scores = plain_scores(model, latents[row], text)
        expected.append(sum(float(scores[place, word]) for place, word in enumerate([*text, 3])))
    assert log_likelihoods(model, latents, TEXTS) == pytest.approx(expected, rel=1e-4)
    assert len(log_likelihoods(model, latents[:0], [])) == 0


def test_every_edit_of_one_word(model, latents, monkeypatch):
    monkeypatch.setattr(edits, "_SHARE_OF_MOVES", 0.0)
    monkeypatch.setattr(edits, "_WORDS_OF_A_PLACE", 1000)
    vocabulary = range(model.config.num_special_tokens, model.config.vocab_size)
    for text, found in zip(TEXTS, propose(model, latents, 100_000), strict=True):
        expected = set()
        for place in range(len(text) + 1):
            expected |= {(*text[:place], word, *text[place:]) for word in vocabulary}
            expected |= {(*text[:place], word, *text[place + 1 :]) for word in vocabulary if place < len(text)}
            if len(text) > 1:
                expected.add((*text[:place], *text[place + 1 :]))
        expected.discard(text)
        assert set(found) == expected
        assert len(found) == len(expected)


def gain_of(text, edit, scores, end=3):
    """By brute force: log probability of the word that an edit begins with, less that of the text's own there."""
    place = next(place for place in range(len(text) + 1) if (*text, end)[: place + 1] != (*edit, end)[: place + 1])
    return float(scores[place, (*edit, end)[place]] - scores[place, (*text, end)[place]])


def test_the_likeliest_come_first(model, latents, monkeypatch):
    monkeypatch.setattr(edits, "_SHARE_OF_MOVES", 0.0)
    for row, found in enumerate(propose(model, latents, count=30)):
        scores = plain_scores(model, latents[row], TEXTS[row])
        gains = [gain_of(TEXTS[row], edit, scores) for edit in found]
        words = scores[0, model.config.num_special_tokens :].topk(2).values - scores[0, (*TEXTS[row], 3)[0]]
        assert gains == pytest.approx(sorted(gains, reverse=True), abs=1e-4)
        # Nothing at the first place is better than what comes first, which is no edit where it is the text's own word.
        assert gains[0] >= float(words[1]) - 1e-4


def test_moves_are_of_a_few_words_in_a_row(model, latents, monkeypatch):
    monkeypatch.setattr(edits, "_SHARE_OF_MOVES", 1.0)
    words = tuple(range(4, 16))
    moved = set(edits._moves(words, 300, np.random.default_rng(0))) - {words}
    lengths = set()
    for edit in moved:
        runs = [
            (start, length)
            for length in range(1, 5)
            for start in range(13 - length)
            for rest in [words[:start] + words[start + length :]]
            if any(rest[:to] + words[start : start + length] + rest[to:] == edit for to in range(len(rest) + 1))
        ]
        assert runs
        lengths.add(min(length for _, length in runs))
    assert len(moved) > 100
    assert lengths == {1, 2, 3, 4}
    first = propose(model, latents, count=20)
    assert all(sorted(edit) == sorted(TEXTS[3]) for edit in first[3][:10])
    assert propose(model, latents, count=20) == first
    assert propose(model, latents, count=20, seed=1) != first


def test_what_was_tried_is_not_proposed_again(model, latents):
    tried = [{text} for text in TEXTS]
    rounds = [propose(model, latents, count=7, tried=tried) for _ in range(3)]
    for row, text in enumerate(TEXTS):
        found = [edit for proposed in rounds for edit in proposed[row]]
        # The empty text has one place, and twelve words are tried there.
        assert len(found) == len(set(found)) == (21 if text else 12)
        assert tried[row] == {text, *found}
        assert all(len(edit) <= 8 for edit in found)
        assert min(min(edit) for edit in found) >= model.config.num_special_tokens


def test_a_text_does_not_depend_on_its_batch(model, latents, monkeypatch):
    monkeypatch.setattr(edits, "_PLACES_TOGETHER", 16)
    together = propose(model, latents, count=12)
    for row, text in enumerate(TEXTS):
        assert propose_edits(model, latents[row : row + 1], [text], 12, [set()], 8) == [together[row]]
