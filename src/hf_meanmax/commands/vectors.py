"""Skip-gram word vectors of a corpus, for all its frequent words: to start a model from, and to expand it with later.

    hf-meanmax-vectors 'my/*.txt' --output vectors.safetensors --size 300

A model starts from them with `--word_vectors vectors.safetensors`, and hf-meanmax-expand reads the same file.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hf_meanmax.data import Corpus, SentenceFilter, build_token_store
from hf_meanmax.tokenization import WordVectors, train_tokenizer, train_word_vectors
from hf_meanmax.training.preparation import StoredWords

from .old_options import add_corpus_options, corpus_of, make_parser, one_line_errors, parse_arguments, positive_int


def train_corpus_vectors(
    corpus: Corpus,
    output: str | os.PathLike[str],
    *,
    size: int = 300,
    epochs: int = 2,
    window: int = 5,
    min_count: int = 5,
    max_words: int = 1_000_000,
    lowercase: bool | None = None,
    seed: int = 0,
    deterministic: bool = False,
    show_progress: bool = True,
) -> WordVectors:
    """Trains skip-gram vectors on a corpus, cut into words as a word-level tokenizer of this package cuts it.

    Args:
        corpus: sentences, as [`open_corpus`] gives them.
        output: a `.safetensors` file.
        size: dimension of the vectors.
        epochs, window: as in [`train_word_vectors`].
        min_count: rarer words get no vector.
        max_words: most words with a vector.
        lowercase: by default words are lower-cased, as [`train_tokenizer`] does.
        seed: of the training.
        deterministic: one thread, so that the same corpus and seed give the same vectors.
        show_progress: whether progress bars are drawn.

    Raises:
        ImportError: gensim is not installed.
        ValueError: `output` has another ending, or the corpus has no frequent word.
    """
    output = Path(output)
    if output.suffix != ".safetensors":
        raise ValueError(f"output is {str(output)!r}; word vectors are written as .safetensors.")
    output.parent.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(filter(None, corpus), "word", max_words, min_count, lowercase, show_progress)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as folder:
        store = build_token_store(corpus, tokenizer, Path(folder) / "store", SentenceFilter(), show_progress)
        return train_word_vectors(
            StoredWords(store, tokenizer), size, epochs, window=window, min_count=min_count, seed=seed,
            deterministic=deterministic, cache_path=output, corpus_key=store.fingerprint, show_progress=show_progress,
        )  # fmt: skip


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("hf-meanmax-vectors", "Train skip-gram word vectors on a corpus.")
    add_corpus_options(parser)
    parser.add_argument("--output", required=True, help="a .safetensors file")
    parser.add_argument("--size", type=positive_int, default=300, help="dimension of the vectors")
    parser.add_argument("--epochs", type=positive_int, default=2, help="passes over the corpus")
    parser.add_argument("--window", type=positive_int, default=5, help="words on either side")
    parser.add_argument("--min-count", type=positive_int, default=5, help="rarer words get no vector")
    parser.add_argument("--max-words", type=positive_int, default=1_000_000, help="most words with a vector")
    parser.add_argument("--keep-case", action="store_true", help="do not lower-case")
    parser.add_argument("--seed", type=int, default=0, help="of the training")
    parser.add_argument(
        "--deterministic", action="store_true", help="one thread, so that the same command gives the same vectors"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; see `--help`."""
    args = parse_arguments(build_parser(), argv)
    with one_line_errors("vectors"):
        vectors = train_corpus_vectors(
            corpus_of(args),
            args.output,
            size=args.size,
            epochs=args.epochs,
            window=args.window,
            min_count=args.min_count,
            max_words=args.max_words,
            lowercase=not args.keep_case,
            seed=args.seed,
            deterministic=args.deterministic,
        )
        print(f"{len(vectors):,} words, {vectors.size} dimensions: {args.output}")


if __name__ == "__main__":
    main()
