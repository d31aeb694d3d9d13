"""Decode embeddings back to text, one line a row.

hf-meanmax decode runs/docstrings/model embeddings --output decoded.txt --num_beams 4
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass

from hf_meanmax.checkpoint.folder import load_checkpoint, load_target_tokenizer
from hf_meanmax.files import replacing_file
from hf_meanmax.inference.decode import decode_embeddings
from hf_meanmax.progress import progress_bar

from .options import count, option, positional, verb


@dataclass
class DecodeOptions:
    """The options of `hf-meanmax decode`."""

    model: str = positional("the checkpoint that made the embeddings (a folder, or a name on the Hub)")
    input: list[str] = positional("folders of `encode`, or .npy, .safetensors and .parquet files")
    output: str | None = option("text file; by default the text goes to standard output", None)
    name: str | None = option("tensor or column that holds the embeddings", None)
    batch_size: int = count("embeddings decoded together", 64)
    num_beams: int = count("beams of the search; 1 is greedy", 1)
    max_length: int | None = count("most tokens of a text; by default the model's bound", None)


@verb("decode")
def main(args: DecodeOptions) -> None:
    """Decode embeddings back to text, one line a row."""
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
        for text in progress_bar(texts, unit="row", desc="decode", disable=not args.output):
            print(text, file=file)
