"""Word vectors of a whole corpus, for all its frequent words."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hf_meanmax.data import Corpus, SentenceFilter, build_token_store
from hf_meanmax.tokenization import SkipGramSettings, WordVectors, train_tokenizer, train_word_vectors

from .preparation import StoredWords


@dataclass
class VectorSettings(SkipGramSettings):
    """How skip-gram vectors are trained on a corpus, and which words have one.

    Raises:
        ValueError: a number that is less than 1.
    """

    seed: int = field(default=0, metadata={"help": "seed of the training"})
    max_words: int = field(default=1_000_000, metadata={"help": "most words with a vector"})
    keep_case: bool = field(default=False, metadata={"help": "do not lower-case"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_words < 1:
            raise ValueError(f"`max_words` is {self.max_words}; it must be 1 or more.")


def train_corpus_vectors(
    corpus: Corpus,
    output: str | os.PathLike[str],
    settings: VectorSettings | None = None,
    show_progress: bool = True,
) -> WordVectors:
    """Trains skip-gram vectors on a corpus, cut into words as a word-level tokenizer of this package cuts it.

    Args:
        corpus: sentences, as [`~hf_meanmax.data.open_corpus`] gives them.
        output: a `.safetensors` file.
        settings: how; by default as the class says.
        show_progress: whether progress is shown.

    Raises:
        ImportError: gensim is not installed.
        ValueError: `output` has another ending, or the corpus has no frequent word.
    """
    output, settings = Path(output), settings or VectorSettings()
    if output.suffix != ".safetensors":
        raise ValueError(f"output is {str(output)!r}; word vectors are written as .safetensors.")
    output.parent.mkdir(parents=True, exist_ok=True)
    lowercase = not settings.keep_case
    words = filter(None, corpus)
    tokenizer = train_tokenizer(
        words, "word", settings.max_words, settings.min_count, lowercase, show_progress=show_progress
    )
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as folder:
        store = build_token_store(corpus, tokenizer, Path(folder) / "store", SentenceFilter(), show_progress)
        return train_word_vectors(
            StoredWords(store, tokenizer),
            settings,
            cache_path=output,
            corpus_key=store.fingerprint,
            show_progress=show_progress,
        )
