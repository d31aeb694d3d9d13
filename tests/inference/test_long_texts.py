"""Texts that are too long to be read at once."""

from __future__ import annotations

import copy
import tracemalloc

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from hf_meanmax import CompoundAttentionForTranslation
from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.inference import long_texts
from hf_meanmax.inference.encoder import count_truncated, encode_texts
from hf_meanmax.inference.reconstruct import reconstruct
from hf_meanmax.tokenization import train_tokenizer
from tiny_model import WORDS, make_model, make_tokenizer, random_lines

TEXT = " ".join(random_lines(12))


def load(tmp_path, normalize=None, **config):
    model = make_model(position_embedding_type="none", **config)
    return SentenceTransformer(
        str(save_checkpoint(model, make_tokenizer(), tmp_path / "model", normalize=normalize)), device="cpu"
    )


FORMS = {
    "raw": {},
    "latent rows": {"latent_normalization": "rows"},
    "student": {"latent_normalization": "rows", "latent_scales": True, "weighted_mean_row": True},
    "rows": {},
    "embedding": {},
}


@pytest.mark.parametrize("pooling", ["mean_max", "mean", "max"])
@pytest.mark.parametrize("form", FORMS)
def test_parts_make_the_vector_of_their_rows(tmp_path, monkeypatch, pooling, form):
    """By hand: the maxima and the means of the parts, cut at the tokens, and then the scales."""
    monkeypatch.setattr(long_texts, "MOST_TOKENS", 11)
    normalize = form if form in ("rows", "embedding") else None
    model = load(tmp_path, normalize, pooling=pooling, **FORMS[form])
    encoder = model[0].auto_model
    unscaled = copy.deepcopy(encoder)
    unscaled.config.latent_normalization = None
    words = TEXT.split()

    @torch.no_grad()
    def raw_rows(text):
        return unscaled(input_ids=model.tokenizer(text, return_tensors="pt")["input_ids"]).latents[0].numpy()

    parts = [" ".join(words[start : start + 10]) for start in range(0, len(words), 10)]
    vectors = np.stack([raw_rows(part) for part in parts])
    lengths = [len(part.split()) for part in parts]
    rows = []
    for number, name in enumerate(encoder.config.pooling_rows):
        if name == "weighted_mean":
            rows.append(raw_rows(TEXT)[number])
        else:
            row = np.average(vectors[:, number], axis=0, weights=lengths)
            rows.append(vectors[:, number].max(0) if name == "max" else row)
    expected = np.stack(rows)
    if form in ("latent rows", "student", "rows"):
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    if form == "student":
        scales = torch.arange(1.0, 1 + len(rows))
        encoder.latent_scales.data.copy_(scales)
        expected *= scales[:, None].numpy()
    expected = expected.reshape(-1)
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


def test_the_default_prompt_stands_before_a_long_text_too(tmp_path, monkeypatch):
    monkeypatch.setattr(long_texts, "MOST_TOKENS", 11)
    model = load(tmp_path)
    texts = [TEXT, "the cat"]
    expected = encode_texts(model, [f"a dog {text}" for text in texts], 8)
    model.prompts, model.default_prompt_name = {"query": "a dog "}, "query"
    np.testing.assert_allclose(encode_texts(model, texts, 8), expected, atol=1e-6)


def test_the_default_prompt_counts_as_tokens(tmp_path):
    model = load(tmp_path)
    model.max_seq_length = 4
    texts = ["the cat", "the cat sat on"]
    assert count_truncated(model, texts) == 1
    model.prompts, model.default_prompt_name = {"query": "a dog "}, "query"
    assert count_truncated(model, texts) == 2


def test_what_reads_word_by_word_is_not_cut(tmp_path, monkeypatch):
    whole = load(tmp_path, encoder_type="bilstm").encode([TEXT])
    monkeypatch.setattr(long_texts, "MOST_TOKENS", 11)
    np.testing.assert_array_equal(encode_texts(load(tmp_path, encoder_type="bilstm"), [TEXT], 1), whole)


def test_a_pooling_of_all_words_together_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(long_texts, "MOST_TOKENS", 11)
    monkeypatch.setattr("hf_meanmax.inference.reconstruct.MOST_TOKENS", 11)
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
