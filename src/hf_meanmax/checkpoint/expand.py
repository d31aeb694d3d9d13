"""Let a trained model encode words beyond its vocabulary, by the vectors of a word2vec or GloVe file.

    hf-meanmax-expand runs/mine/model vectors.bin --output runs/mine/expanded --texts reviews.txt

Into a trained word table a linear map is fitted by least squares; a frozen one takes the vectors as they are.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from hf_meanmax.commands.old_options import make_parser, one_line_errors, parse_arguments, positive_int
from hf_meanmax.data.corpus import ENCODING_ERRORS, open_corpus
from hf_meanmax.tokenization import Expansion, expand_vocabulary, load_word_vectors, unknown_word_rate

from .folder import (
    checkpoint_folder,
    is_own_checkpoint,
    load_checkpoint,
    load_target_tokenizer,
    save_checkpoint,
    saved_normalization,
    saved_training_args,
)

# Where `training_args.json` tells of an expansion.
_EXPANSION = "vocabulary_expansion"


def expand_checkpoint(
    model: str | os.PathLike[str],
    vectors: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    limit: int | None = None,
    encoding_errors: str = "strict",
) -> Expansion:
    """Writes a checkpoint like `model` that encodes every word of a file of word vectors (see [`expand_vocabulary`]).

    The new folder loads wherever the old one does. What it decodes stays; a tied output layer is saved on its own.

    Args:
        model: a checkpoint folder, or a repository on the Hub.
        vectors: a file that [`load_word_vectors`] reads.
        output: the new folder; not `model` itself.
        limit: read only the first so many vectors, which are usually those of the most frequent words.
        encoding_errors: what is done with words that are not UTF-8.

    Returns:
        The new tokenizer and, for a trained word table, the map's quality on held-out words.

    Raises:
        FileNotFoundError: there is no such checkpoint, or no such file.
        FileExistsError: `output` holds something else than an expanded checkpoint.
        ValueError: the vectors do not fit the model, or `output` is `model`.
    """
    folder = checkpoint_folder(model)
    if Path(output).resolve() == folder.resolve():
        raise ValueError(f"output is {str(output)!r}, the checkpoint itself; name another folder.")
    is_taken = Path(output).is_dir() and any(Path(output).iterdir())
    if is_taken and not (is_own_checkpoint(output) and _EXPANSION in saved_training_args(output)):
        raise FileExistsError(f"{output} holds something else than an expanded checkpoint; name another folder.")
    whole, tokenizer = load_checkpoint(folder)
    words = load_word_vectors(vectors, limit=limit, encoding_errors=encoding_errors)  # type: ignore[arg-type]
    expansion = expand_vocabulary(whole, tokenizer, words)
    told = {
        "words_added": expansion.added,
        "words_in_all": len(expansion.tokenizer),
        **({"map": asdict(expansion.quality)} if expansion.quality else {}),
    }
    save_checkpoint(
        whole,
        expansion.tokenizer,
        output,
        target_tokenizer=load_target_tokenizer(folder, whole.config, None),
        normalize=saved_normalization(folder),
        remote_code=bool(getattr(whole.config, "auto_map", None)),
        training_args={**saved_training_args(folder), _EXPANSION: told},
    )
    return expansion


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("hf-meanmax-expand", "Let a trained model encode the words of a file of word vectors.")
    parser.add_argument("model", help="the checkpoint (folder or name on the Hub)")
    parser.add_argument("vectors", help="word2vec (.bin or text), GloVe, each also .gz, or .safetensors of ours")
    parser.add_argument("--output", required=True, help="folder of the expanded checkpoint")
    parser.add_argument("--limit", type=positive_int, help="read only the first so many vectors")
    parser.add_argument("--texts", nargs="+", help="texts whose unknown words are counted, before and after")
    parser.add_argument("--encoding-errors", choices=ENCODING_ERRORS, default="strict", help="bytes that are not UTF-8")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; see `--help`."""
    args = parse_arguments(build_parser(), argv)
    with one_line_errors("expand"):
        texts = open_corpus(args.texts, args.encoding_errors) if args.texts else None
        expansion = expand_checkpoint(
            args.model, args.vectors, args.output, limit=args.limit, encoding_errors=args.encoding_errors
        )
        print(
            f"{expansion.added:,} words added, {len(expansion.tokenizer):,} in all; "
            f"{expansion.left_out:,} vectors left out (known, or words that the tokenizer never produces)"
        )
        if expansion.quality:
            print(f"the map: {expansion.quality}")
        if texts is not None:
            from transformers import AutoTokenizer

            for name, tokenizer in (
                ("before", AutoTokenizer.from_pretrained(checkpoint_folder(args.model))),
                ("after", expansion.tokenizer),
            ):
                unknown = unknown_word_rate(tokenizer, filter(None, texts))
                print(f"unknown words {name}: {unknown.rate:.2%} of {unknown.total:,}")


if __name__ == "__main__":
    main()
