"""What each latent row reads of each word: shares that are those of the pooling itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hf_meanmax import CompoundAttentionForTranslation
from hf_meanmax.inspection.pooling import pooling_shares
from tiny_model import make_model, make_tokenizer

TEXT = "the old dog sat on a red mat"
TOKENS = [*TEXT.split(), "</s>"]


def shares_of(**settings: object) -> tuple[torch.nn.Module, dict[str, np.ndarray]]:
    encoder = make_model(initializer_range=0.7, **settings).encoder
    tokens, shares = pooling_shares(encoder, make_tokenizer(), TEXT)
    assert tokens == TOKENS
    assert list(shares) == list(encoder.config.pooling_rows)
    for values in shares.values():
        assert values.shape == (len(TOKENS),)
        assert values.min() >= 0
        assert values.sum() == pytest.approx(1)
    return encoder, shares


def states_of(encoder: torch.nn.Module) -> np.ndarray:
    with torch.no_grad():
        return encoder(**make_tokenizer()([TEXT], return_tensors="pt")).last_hidden_state[0].numpy()


def test_maximum_and_mean():
    encoder, shares = shares_of()
    states = states_of(encoder)
    winners = [column.argmax() for column in states.T]
    assert shares["max"].tolist() == pytest.approx([winners.count(row) / len(winners) for row in range(len(TOKENS))])
    mean = states.mean(axis=0)
    parts = np.clip([state @ mean for state in states], 0, None)
    np.testing.assert_allclose(shares["mean"], parts / parts.sum(), rtol=1e-4)


def test_last_state():
    _, shares = shares_of(encoder_type="lstm", pooling="last", decoder_type="lstm")
    assert shares["last"].tolist() == [0.0] * 8 + [1.0]
    # The network that reads from the end has its last state at the first word.
    _, shares = shares_of(encoder_type="bigru", pooling="last", decoder_type="lstm")
    assert shares["last"].tolist() == [0.5, *[0.0] * 7, 0.5]


def test_weighted_mean_leaves_special_tokens_out():
    _, shares = shares_of(weighted_mean_row=True)
    assert shares["weighted_mean"].tolist() == pytest.approx([1 / 8] * 8 + [0.0])


def test_inner_attention():
    encoder, shares = shares_of(full_class=CompoundAttentionForTranslation, latent_heads=2, latent_size=5)
    with torch.no_grad():
        weights = encoder(**make_tokenizer()([TEXT], return_tensors="pt")).pooling_attentions[0].numpy()
    np.testing.assert_allclose(np.stack(list(shares.values())), weights)


def test_a_model_without_rows_is_refused():
    model = make_model(full_class=CompoundAttentionForTranslation, architecture="attn")
    with pytest.raises(ValueError, match="no latent rows"):
        pooling_shares(model.encoder, make_tokenizer(), TEXT)
