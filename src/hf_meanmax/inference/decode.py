"""Embeddings back to text, one line a row.

    hf-meanmax-decode runs/docstrings/model embeddings --output decoded.txt

Needs the model that made the embeddings, and raw embeddings: a normalised, truncated or quantised vector, or one of
principal components, cannot be decoded.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from hf_meanmax.checkpoint.folder import load_checkpoint, load_target_tokenizer
from hf_meanmax.commands.old_options import make_parser, one_line_errors, parse_arguments, positive_int
from hf_meanmax.files import replacing_file

from .embedding_files import MANIFEST, read_embeddings, read_manifest
from .encode import weights_fingerprint


def decode_embeddings(
    model: Any,
    tokenizer: Any,
    sources: Sequence[str | os.PathLike[str]],
    *,
    batch_size: int = 64,
    name: str | None = None,
    **generation: Any,
) -> Iterator[str]:
    """The text of each embedding, in order and in constant memory. A line break in a text becomes a space.

    How long a text was, its embedding does not tell: decoding ends at the model's own bound, which is no shorter than
    1.5 times its longest training text. Texts that had not ended by then are counted, and reported at the end.

    Args:
        model: an autoencoder.
        tokenizer: the tokenizer of what it says.
        sources: files, or folders of `encode` (see [`read_embeddings`]).
        batch_size: embeddings decoded at a time.
        name: the tensor or column that holds the embeddings.
        generation: arguments of `generate`, for instance `num_beams` and `max_new_tokens`.

    Raises:
        ValueError: the vectors are not raw embeddings of this model, as far as that can be seen; the message tells
            the row.
        FileNotFoundError: a file is missing.
    """
    paths = [Path(source) for source in sources]
    # A shard alone is what its folder says, too.
    shards = [path for path in paths if path.name.startswith("shard-") and (path.parent / MANIFEST).is_file()]
    for folder in dict.fromkeys(path.parent if path in shards else path for path in paths):
        if folder.is_dir():
            check_decodable(folder, model)
    row = cut = longest = 0
    for batch in read_embeddings(sources, batch_size, name):
        try:
            tokens = model.generate(sentence_embedding=torch.from_numpy(batch), **generation)
        except ValueError as error:
            raise ValueError(f"Rows {row + 1:,}-{row + len(batch):,}: {error}") from error
        for text in tokenizer.batch_decode(tokens, skip_special_tokens=True):
            yield " ".join(text.splitlines())
        row += len(batch)
        cut += int((tokens != tokenizer.eos_token_id).all(dim=1).sum())
        longest = max(longest, tokens.shape[1] - 1)
    if cut:
        print(f"{cut:,} texts had not ended after {longest:,} tokens and were cut.", file=sys.stderr)


def check_decodable(folder: Path, model: Any) -> None:
    """Checks by the manifest of a folder of `encode` that `model` can decode what is in it.

    Raises:
        ValueError: the vectors were normalised, truncated, projected or quantised, or another model made them.
    """
    manifest = read_manifest(folder)
    settings = manifest["settings"]
    for changed, option in (
        (settings["normalize"], "--normalize"),
        (settings["truncate_dim"], "--truncate-dim"),
        (settings["pca"], "--pca"),
        (settings["dtype"] == "int8", "--dtype int8"),
    ):
        if changed:
            raise ValueError(
                f"{folder} was encoded with {option}; only raw vectors can be decoded. Encode again without it."
            )
    made_by, here = manifest["model"]["weights"], weights_fingerprint(model.encoder)
    if made_by != here:
        raise ValueError(
            f"{folder} was encoded by another model ({manifest['model']['name']!r}); decode it with that one."
        )


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("hf-meanmax-decode", "Decode embeddings back to text, one line a row.")
    parser.add_argument("model", help="the checkpoint that made the embeddings (folder or name on the Hub)")
    parser.add_argument("input", nargs="+", help="folders of encode, or .npy, .safetensors, .parquet files")
    parser.add_argument("--output", help="text file; by default the text goes to standard output")
    parser.add_argument("--name", help="tensor or column that holds the embeddings")
    parser.add_argument("--batch-size", type=positive_int, default=64, help="embeddings decoded at a time")
    parser.add_argument("--num-beams", type=positive_int, default=1, help="beams of the search; 1 is greedy")
    parser.add_argument("--max-length", type=positive_int, help="most tokens of a text, by default the model's bound")
    return parser


def main(argv: list[str] | None = None) -> None:
    """The command line; see `--help`."""
    args = parse_arguments(build_parser(), argv)
    with one_line_errors("decode"):
        from accelerate import PartialState

        model, tokenizer = load_checkpoint(args.model)
        model.to(PartialState().device)
        texts = decode_embeddings(
            model,
            load_target_tokenizer(args.model, model.config, tokenizer),
            args.input,
            batch_size=args.batch_size,
            name=args.name,
            num_beams=args.num_beams,
            max_new_tokens=args.max_length,
        )
        with replacing_file(args.output) if args.output else nullcontext(sys.stdout) as file:
            for text in tqdm(texts, unit="row", desc="decode", disable=not args.output):
                print(text, file=file)


if __name__ == "__main__":
    main()
