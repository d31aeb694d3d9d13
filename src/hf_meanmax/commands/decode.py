"""Decode embeddings back to text, one line a row.

hf-meanmax decode runs/docstrings/model embeddings --output decoded.txt --num_beams 4
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass

from hf_meanmax.checkpoint.folder import load_checkpoint, load_target_tokenizer
from hf_meanmax.files import replacing_file
from hf_meanmax.inference.correction import Corrector, embedder_of
from hf_meanmax.inference.decode import MOST_BEAMS, decode_embeddings
from hf_meanmax.progress import progress_bar

from .options import count, option, positional, verb, written


@dataclass
class DecodeOptions:
    """The options of `hf-meanmax decode`."""

    model: str = positional("the checkpoint that made the embeddings (a folder, or a name on the Hub)")
    input: list[str] = positional("folders of `encode`, or .npy, .safetensors and .parquet files")
    output: str | None = written("text file; by default the text goes to standard output", None)
    name: str | None = option("tensor or column that holds the embeddings", None)
    batch_size: int = count("embeddings decoded together", 64)
    num_beams: int = count("beams of the search; 1 is greedy", 1, at_most=MOST_BEAMS)
    rerank: int | None = count(
        "candidates of each vector (beams, or samples), of which the one is taken whose own embedding is nearest",
        None,
        at_most=MOST_BEAMS,
    )
    num_corrections: int = option(
        "rounds of --rerank on the vector moved by what the best text so far misses of it", 0, at_least=0
    )
    do_sample: bool = option("draw the candidates of --rerank instead of searching beams", False)
    embedder: str | None = option("where the embedder is, for --rerank; by default as the checkpoint calls it", None)
    trust_remote_code: bool = option("run code that comes with the embedder", False)
    max_length: int | None = count("most tokens of a text; by default the model's bound", None)


@verb("decode")
def main(args: DecodeOptions) -> None:
    """Decode embeddings back to text, one line a row."""
    from accelerate import PartialState

    model, tokenizer = load_checkpoint(args.model)
    model.to(PartialState().device)
    target_tokenizer = load_target_tokenizer(args.model, model.config, tokenizer)
    corrector = None
    if args.rerank is not None:
        if args.num_beams != 1:
            raise ValueError(
                f"`num_beams` is {args.num_beams} and `rerank` {args.rerank}, which says how many beams there are. "
                "Leave `num_beams` out."
            )
        embedder = embedder_of(model, args.model, args.embedder, model.device, args.trust_remote_code)
        corrector = Corrector(
            model, target_tokenizer, embedder, args.rerank, args.num_corrections, args.do_sample, args.batch_size
        )
    elif args.num_corrections or args.do_sample or args.embedder:
        raise ValueError("`num_corrections`, `do_sample` and `embedder` go with `rerank`. Give it, for instance 8.")
    texts = decode_embeddings(
        model,
        target_tokenizer,
        args.input,
        batch_size=args.batch_size,
        name=args.name,
        corrector=corrector,
        max_new_tokens=args.max_length,
        **({} if args.rerank else {"num_beams": args.num_beams}),
    )
    with replacing_file(args.output) if args.output else nullcontext(sys.stdout) as file:
        for text in progress_bar(texts, unit="row", desc="decode", disable=not args.output):
            print(text, file=file)
