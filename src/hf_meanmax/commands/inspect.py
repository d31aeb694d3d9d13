"""Show which latent rows a decoder reads, or which words an inner attention pooling reads.

hf-meanmax inspect decoding runs/docstrings/model "Return the number of items." --output inspection
hf-meanmax inspect pooling runs/reviews/model "the food was awful but the staff were kind" --output attention
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from hf_meanmax.checkpoint.folder import load_decoder
from hf_meanmax.data.corpus import readable
from hf_meanmax.data.opening import TextOptions
from hf_meanmax.files import short_names
from hf_meanmax.inspection.attention import read_texts, write_attention
from hf_meanmax.inspection.decoding import write_inspection
from hf_meanmax.plots.attention import attention_text
from hf_meanmax.pretrained import DECODER_SOURCES, packaged_folder

from .options import count, option, positional, run_subverb, verb, written


@dataclass
class DecodingOptions(TextOptions):
    """The options of `hf-meanmax inspect decoding`."""

    checkpoint: str = positional(f"a checkpoint with its decoder ({DECODER_SOURCES})")
    text: list[str] = positional("texts", is_text=True)
    output: str = written("folder for inspection.json and the figures", folder=True)
    positions: str | None = option("text file or table: each head's weights by position, averaged over its lines", None)


@dataclass
class PoolingOptions(TextOptions):
    """The options of `hf-meanmax inspect pooling`."""

    what: list[str] = positional("checkpoints (folders), then texts", is_text=True)
    input: str | None = option("text file or table with further texts, one a line", None)
    output: str | None = written("folder for the page, the figures and the numbers", None, folder=True)
    limit: int = count("most texts of --input", 200)
    color: Literal["auto", "always", "never"] = option("shade words on the terminal", "auto")


@verb("inspect decoding")
def inspect_decoding(args: DecodingOptions) -> None:
    """Show which latent rows a decoder reads at each step."""
    model, tokenizer, target_tokenizer = load_decoder(args.checkpoint)
    lines = None if args.positions is None else filter(None, args.open_beside(args.positions))
    texts = [*map(readable, args.text)]
    records = write_inspection(model, tokenizer, texts, args.output, args.checkpoint, target_tokenizer, lines)
    for record in records:
        print(" ".join(record.reconstruction.splitlines()))
    print(f"written to {args.output}", file=sys.stderr)


@verb("inspect pooling")
def inspect_pooling(args: PoolingOptions) -> None:
    """Show which words inner attention reads."""
    checkpoints, given = _checkpoints_and_texts(args.what)
    texts = [*map(readable, given)]
    if args.input is not None:
        texts += islice(filter(None, args.open_beside(args.input)), args.limit)
    if not texts:
        raise ValueError("There is no text to show: give texts after the checkpoints, or --input FILE.")
    read = read_texts(checkpoints, texts)
    color = args.color == "always" or (args.color == "auto" and sys.stdout.isatty())
    for text in read:
        for name, weights in text.weights.items():
            print(" ".join(filter(None, (name, text.predictions.get(name)))))
            print(attention_text(text.tokens, weights, color))
    if args.output is not None:
        write_attention(read, args.output, " and ".join(short_names(checkpoints)))
        print(f"written to {args.output}", file=sys.stderr)


def _checkpoints_and_texts(words: Sequence[str]) -> tuple[list[str], list[str]]:
    checkpoints = [item for item in words if os.path.isfile(os.path.join(item, "config.json")) or packaged_folder(item)]
    texts = [item for item in words if item not in checkpoints]
    # A name on the Hub is not a local folder: without a local one, the first word is taken for such a name.
    if not checkpoints:
        checkpoints, texts = texts[:1], texts[1:]
    paths = [item for item in texts if os.sep in item and item.split() == [item]]
    if paths:
        raise FileNotFoundError(f"There is no checkpoint {paths[0]!r}. (One word with a {os.sep!r} is no text here.)")
    return checkpoints, texts


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; `argv` is the command line by default."""
    return run_subverb("inspect", {"decoding": inspect_decoding, "pooling": inspect_pooling}, argv)
