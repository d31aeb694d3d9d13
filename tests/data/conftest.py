"""A tiny word-level tokenizer and stores made with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from hf_meanmax.data import Documents, SentenceFilter, TokenStore, build_token_store

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]


def make_tokenizer(words: list[str], template: str = "$A </s>") -> PreTrainedTokenizerFast:
    vocab = {word: i for i, word in enumerate(["<pad>", "<unk>", "<s>", "</s>", *words])}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=[("</s>", 3), ("<s>", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


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
