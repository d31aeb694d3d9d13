"""A tiny word-level tokenizer and stores made with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from transformers import PreTrainedTokenizerFast

from hf_meanmax.data import Documents, SentenceFilter, TokenStore, build_token_store
from tiny_words import WORDS, make_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    # More words than 256, so that sampled candidates are not simply the whole vocabulary.
    return make_tokenizer([*WORDS, *(f"filler{i}" for i in range(600))])


@pytest.fixture
def make_store(tmp_path, tokenizer) -> Callable[..., TokenStore]:
    def make(documents: list[list[str]], filters: SentenceFilter | None = None, name: str = "store") -> TokenStore:
        return build_token_store(Documents(documents), tokenizer, tmp_path / name, filters, show_progress=False)

    return make


@pytest.fixture
def store(make_store) -> TokenStore:
    """60 sentences of 1 to 9 words, so of 2 to 10 tokens."""
    return make_store([[" ".join(WORDS[(i + k) % 10] for k in range(i % 9 + 1)) for i in range(60)]])
