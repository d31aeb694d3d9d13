"""What each packaged recipe publishes: vectors that its own decoder reads."""

from __future__ import annotations

import pytest
import torch
from sentence_transformers import SentenceTransformer

from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.families import FAMILIES
from hf_meanmax.training.recipes import arguments_from_settings, list_recipes, read_recipe
from tiny_model import make_model, make_tokenizer

TEXTS = ["the cat sat", "a dog ran on the mat", "the red dog ran"]
# Widths that fit each other, whatever the recipe combines.
TINY = {
    "embedding_size": 8, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "embedding_dropout": 0.0,
    "attention_dropout": 0.0,
}  # fmt: skip


@pytest.mark.parametrize("name", list_recipes())
def test_a_decoder_reads_what_is_published(name, tmp_path):
    """What `SentenceTransformer(folder).encode` returns decodes to what the text itself decodes to."""
    settings = read_recipe(name)
    target = {"target": ["pairs.de"]} if settings.get("objective") == "translation" else {}
    args = arguments_from_settings({**settings, **target, "output_dir": str(tmp_path / "run")}, name)
    config = args.build_config()
    if not config.has_decoder:
        pytest.skip(f"{name} trains no decoder: its vectors are for search alone")
    if not config.is_autoregressive:
        pytest.skip(f"{name} has a decoder that predicts words at once, which reads the same raw vector")
    if not config.reads_text:
        pytest.skip(f"{name} publishes no vectors: it decodes those of another embedder")
    fields = {key: value for key, value in args.model.items() if key not in ("vocab_size", "latent_size")}
    narrow = {"latent_size": 4} if config.latent_size is not None else {}
    model = make_model(full_class=FAMILIES[args.family].full, **{**fields, **TINY, **narrow})
    tokenizer = make_tokenizer()
    target_tokenizer = make_tokenizer() if config.separate_vocabularies else None
    normalize = None if args.normalize == "none" else args.normalize
    folder = save_checkpoint(
        model, tokenizer, tmp_path / "model", normalize=normalize, target_tokenizer=target_tokenizer
    )
    published = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    words = model.generate(sentence_embedding=published, max_new_tokens=8)
    again = model.generate(**tokenizer(TEXTS, return_tensors="pt", padding=True), max_new_tokens=8)
    assert torch.equal(words, again)
    if config.latent_normalization == "rows":
        unit = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, normalize_embeddings=True)
        assert torch.equal(model.generate(sentence_embedding=unit, max_new_tokens=8), words)
