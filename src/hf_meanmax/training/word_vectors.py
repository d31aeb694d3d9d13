"""Vectors of all frequent words of a corpus, by skip-gram or from a teacher."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from transformers import PreTrainedTokenizerFast

from hf_meanmax.data import Corpus, SentenceFilter, StoredWords, TokenStore, build_token_store
from hf_meanmax.fields import count, option
from hf_meanmax.files import naming_failed_writes
from hf_meanmax.inference.encoder import load_encoder
from hf_meanmax.inference.teacher_words import teacher_words
from hf_meanmax.pretrained import ENCODER_SOURCES
from hf_meanmax.tokenization import SkipGramSettings, WordVectors, train_tokenizer, train_word_vectors
from hf_meanmax.tokenization.tokenizers import split_words
from hf_meanmax.tokenization.word_vectors import load_gensim

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@dataclass
class VectorSettings(SkipGramSettings):
    """Settings of word vectors: how they are made, and for which words.

    Raises:
        ValueError: a number that is less than 1, or teacher settings without a teacher.
    """

    seed: int = option("seed of the training", 0)
    max_words: int = count("most words with a vector", 1_000_000)
    keep_case: bool = option("do not lower-case", False)
    teacher: str = option(
        f"take a SentenceTransformer's ({ENCODER_SOURCES}) vector of each word, in place of skip-gram",
        "",
    )
    components: int = option(
        "keep so many principal components of the teacher's vectors (0: all numbers)", 0, at_least=0
    )
    pieces: bool = option("add the pieces of the teacher's own vocabulary, for `--tokenizer wordpiece`", False)
    join: str = option("put the vectors of this file beside them (zeros for a word that it lacks)", "")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("components", "pieces"):
            if getattr(self, name) and not self.teacher:
                raise ValueError(f"`{name}` is {getattr(self, name)!r} without a `teacher`. Give one, or leave it out.")
        for field in fields(SkipGramSettings) if self.teacher else ():
            if field.name not in ("min_count", "seed") and getattr(self, field.name) != field.default:
                raise ValueError(
                    f"`{field.name}` is {getattr(self, field.name)}, but a teacher's vectors are not trained. Leave it "
                    "out; `components` bounds how many numbers they have."
                )
        if self.join and not Path(self.join).is_file():
            raise FileNotFoundError(f"`join` is {self.join!r}: no such file. Give a file of word vectors.")


def train_corpus_vectors(
    corpus: Corpus,
    output: str | os.PathLike[str],
    settings: VectorSettings | None = None,
    show_progress: bool = True,
    teacher: SentenceTransformer | None = None,
) -> WordVectors:
    """Vectors and counts of the words of a corpus, as split by this package's word-level tokenizer.

    Args:
        corpus: sentences, as of [`~hf_meanmax.data.open_corpus`]; a list of words, one per line, works too.
        output: a `.safetensors` file.
        settings: default: `VectorSettings()`.
        show_progress: whether progress is shown.
        teacher: the teacher that the settings name, if it is already loaded.

    Raises:
        ImportError: gensim is not installed, and there is no teacher.
        ValueError: `output` has another ending, the corpus has no frequent word, or the teacher's vectors are not
            finite.
    """
    output, settings = Path(output), settings or VectorSettings()
    if output.suffix != ".safetensors":
        raise ValueError(f"output is {str(output)!r}; word vectors are written as .safetensors.")
    output.parent.mkdir(parents=True, exist_ok=True)
    other = WordVectors.load(settings.join) if settings.join else None
    # Loaded first, so that errors show before the corpus is read.
    if teacher is None and settings.teacher:
        teacher = load_encoder(settings.teacher)
    if teacher is None and not output.is_file():
        load_gensim()
    stored = _stored(corpus, output, settings, show_progress)
    with naming_failed_writes(output, output.with_name(_hidden(output))), stored as (store, tokenizer):
        _warn_of_rare_words(corpus, store, tokenizer, settings)
        if other is not None:
            # Fails before the training if the vectors of `join` have none of the words.
            other.known(tokenizer.get_vocab().keys())
        if teacher is None:
            vectors = train_word_vectors(
                StoredWords(store, tokenizer), settings, cache_path=None if settings.join else output,
                corpus_key=store.fingerprint, show_progress=show_progress,
            )  # fmt: skip
        else:
            words = _counted_words(store, tokenizer, settings.min_count)
            vectors = teacher_words(teacher, words, settings.components or None, settings.pieces, show_progress)
    if other is not None:
        vectors = vectors.join(other)
    if teacher is not None or other is not None:
        vectors.save(output, teacher=Path(settings.teacher).name, joined=Path(settings.join).name)
    return vectors


@contextmanager
def _stored(
    corpus: Corpus, output: Path, settings: VectorSettings, show_progress: bool
) -> Iterator[tuple[TokenStore, PreTrainedTokenizerFast]]:
    """The corpus as a temporary token store, and its tokenizer of all frequent words."""
    tokenizer = train_tokenizer(
        filter(None, corpus), "word", settings.max_words, settings.min_count, not settings.keep_case,
        show_progress=show_progress,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=_hidden(output)) as folder:
        yield build_token_store(corpus, tokenizer, Path(folder) / "store", SentenceFilter(), show_progress), tokenizer


def _warn_of_rare_words(
    corpus: Corpus, store: TokenStore, tokenizer: PreTrainedTokenizerFast, settings: VectorSettings
) -> None:
    """Warns if `min_count` leaves out more than a tenth of the running words, as happens with little text."""
    rare, words = int(store.token_counts[tokenizer.unk_token_id]), int(store.token_counts.sum()) - len(store)
    if 10 * rare > words and len(tokenizer) < settings.max_words:
        # Only small corpora have so many, so reading the corpus once more is fast.
        different = len(set(chain.from_iterable(split_words(tokenizer, corpus))))
        left_out = different - len(tokenizer) + len(tokenizer.all_special_ids)
        warnings.warn(
            f"{left_out:,} of {different:,} different words occur less than {settings.min_count} times, and have no "
            "vector. Give more text, or a smaller `min_count` (in pretraining `min_frequency`).",
            stacklevel=3,
        )


def _hidden(output: Path) -> str:
    """The prefix of temporary folders that exist while `output` is made."""
    return f".{output.name}."


def _counted_words(store: TokenStore, tokenizer: PreTrainedTokenizerFast, least: int) -> WordVectors:
    """The words that occur at least `least` times in a store, most frequent first, with empty vectors."""
    special = set(tokenizer.all_special_ids)
    order = np.argsort(-store.token_counts, kind="stable")
    ids = [number for number in order.tolist() if number not in special and store.token_counts[number] >= least]
    if not ids:
        raise ValueError(
            f"no word of the corpus occurs {least} times. Give more text, or a smaller `min_count` (in pretraining "
            "`min_frequency`)."
        )
    words = tokenizer.convert_ids_to_tokens(ids)
    return WordVectors(words, np.zeros((len(words), 0), dtype=np.float32), store.token_counts[ids])
