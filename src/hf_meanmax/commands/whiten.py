"""Write a model whose vectors are whitened, for similarity and search.

hf-meanmax whiten runs/mine/model my.txt --output runs/mine/whitened --dimension 256
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hf_meanmax.inference.encode import draw_lines, load_encoder
from hf_meanmax.inference.whitening import whiten

from .options import CorpusOptions, OptionParser, count, one_line_errors, option, positional


@dataclass
class WhitenOptions:
    """The options of `hf-meanmax whiten`, beside those of the corpus."""

    model: str = positional("a checkpoint folder, or any SentenceTransformer (a folder, or a name on the Hub)")
    output: str = option("the new folder")
    dimension: int = count("size of the new vectors", 256)
    fit_rows: int = count("texts of the corpus that the whitening is fitted on", 16384)
    batch_size: int = count("texts of one forward pass", 64)
    trust_remote_code: bool = option("run code that comes with the model", False)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command; `argv` is the command line by default."""
    description = "Write a model whose vectors are whitened, for similarity and search."
    with one_line_errors("whiten"):
        from accelerate import PartialState

        args, corpus = OptionParser("whiten", description, WhitenOptions, CorpusOptions).parse(argv)
        output = Path(args.output)
        if output.exists() and (not output.is_dir() or os.listdir(output)):
            raise FileExistsError(f"{output} is there already; name a new folder.")
        texts = draw_lines(filter(None, corpus.open()), args.fit_rows)
        model = load_encoder(args.model, args.trust_remote_code, PartialState().device)
        pca = whiten(model, texts, args.dimension, args.batch_size)
        model.save_pretrained(str(output))
        print(
            f"{args.dimension} components of {len(pca.mean):,} numbers keep {pca.explained_variance_ratio:.1%} of the "
            f"variance of {len(texts):,} texts: {output}"
        )
