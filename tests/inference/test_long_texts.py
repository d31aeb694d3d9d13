"""Texts that are too long to be read at once."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from hf_meanmax import CompoundAttentionForTranslation
from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.inference import long_texts
from hf_meanmax.inference.encode import encode_texts
from hf_meanmax.inference.reconstruct import reconstruct
from hf_meanmax.tokenization import train_tokenizer
from tiny_model import WORDS, make_model, make_tokenizer, random_lines

TEXT = " ".join(random_lines(12))


def load(tmp_path, normalize=None, **config):
    model = make_model(position_embedding_type="none", **config)
    return SentenceTransformer(
        str(save_checkpoint(model, make_tokenizer(), tmp_path / "model", normalize=normalize)), device="cpu"
    )


@pytest.mark.parametrize("pooling", ["mean_max", "mean", "max"])
@pytest.mark.parametrize("form", ["raw", "latent rows", "rows", "embedding"])
def test_parts_make_the_vector_of_their_rows(tmp_path, monkeypatch, pooling, form):
    """By hand: the maxima and the means of the parts, cut at the tokens."""
    monkeypatch.setattr(long_texts, "MOST_TOKENS", 11)
    normalize = form if form in ("rows", "embedding") else None
    model = load(
        tmp_path, normalize, pooling=pooling, **({"latent_normalization": "rows"} if form == "latent rows" else {})
    )
    words = TEXT.split()
    parts = [" ".join(words[start : start + 10]) for start in range(0, len(words), 10)]
    vectors = model.encode(parts).reshape(len(parts), -1, 16)
    lengths = np.array([len(part.split()) for part in parts])
    rows = []
    for number, name in enumerate(pooling.split("_")[::-1] if pooling == "mean_max" else [pooling]):
        row = np.average(vectors[:, number], axis=0, weights=lengths) if name == "mean" else vectors[:, number].max(0)
        rows.append(row / np.linalg.norm(row) if form in ("latent rows", "rows") else row)
    expected = np.concatenate(rows)
    expected = expected / np.linalg.norm(expected) if form == "embedding" else expected
    found = encode_texts(model, ["the cat", TEXT, ""], 8)
    np.testing.assert_allclose(found[1], expected, atol=1e-5)
    np.testing.assert_allclose(found[[0, 2]], model.encode(["the cat", ""]), atol=1e-6)
    np.testing.assert_allclose(encode_texts(model, [TEXT], 8, truncate_dim=5)[0], expected[:5], atol=1e-5)


def test_a_length_limit_cuts_first(tmp_path, monkeypatch):
    monkeypatch.setattr(long_texts, "MOST_TOKENS", 11)
    model = load(tmp_path)
    words = (3 * f"{TEXT} ").split()
    whole = encode_texts(model, [" ".join(words[:99])], 1)
    model.max_seq_length = 100
    np.testing.assert_allclose(encode_texts(model, [" ".join(words)], 1), whole, atol=1e-6)


def test_what_reads_word_by_word_is_not_cut(tmp_path, monkeypatch):
    whole = load(tmp_path, encoder_type="bilstm").encode([TEXT])
    monkeypatch.setattr(long_texts, "MOST_TOKENS", 11)
    np.testing.assert_array_equal(encode_texts(load(tmp_path, encoder_type="bilstm"), [TEXT], 1), whole)


def test_a_pooling_of_all_words_together_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(long_texts, "MOST_TOKENS", 11)
    model = make_model(full_class=CompoundAttentionForTranslation, architecture="trf-attn-attn")
    folder = save_checkpoint(model, make_tokenizer(), tmp_path / "model")
    with pytest.raises(ValueError, match=r"more than the 11 tokens.*--max_length"):
        encode_texts(SentenceTransformer(str(folder), device="cpu"), [TEXT], 1)
    with pytest.raises(ValueError, match=r"what is generated of it is as long.*--max_length"):
        reconstruct(model, make_tokenizer(), [TEXT])


def test_memory_grows_with_the_length_alone(tmp_path):
    """Attention between 20,000 words would take some gigabytes."""
    model = load(tmp_path)
    tracemalloc.start()
    assert np.isfinite(encode_texts(model, [" ".join(WORDS * 2000), "the cat"], 8)).all()
    assert tracemalloc.get_traced_memory()[1] < 500e6
    tracemalloc.stop()


def test_a_word_of_ten_megabytes(tmp_path):
    """The regular expression of the tokenizer panics at it, which no `except Exception` catches."""
    tokenizer = train_tokenizer(["the cat"], show_progress=False)
    model = make_model(vocab_size=len(tokenizer))
    folder = save_checkpoint(model, tokenizer, tmp_path / "model")
    assert np.isfinite(encode_texts(SentenceTransformer(str(folder), device="cpu"), ["x" * 10_000_000], 8)).all()
