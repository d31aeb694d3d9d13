"""Write a model whose vectors are whitened, for similarity and search.

hf-meanmax whiten runs/mine/model my.txt --output runs/mine/whitened --dimension 256
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hf_meanmax.inference.encode import draw_lines
from hf_meanmax.inference.whitening import whiten

from .options import CorpusOptions, EncoderOptions, count, option, verb


@dataclass
class WhitenOptions:
    """The options of `hf-meanmax whiten`, beside those of encoder and corpus."""

    output: str = option("the new folder")
    dimension: int = count("size of the new vectors", 256)
    fit_rows: int = count("texts of the corpus that the whitening is fitted on", 16384)


@verb("whiten")
def main(encoder: EncoderOptions, corpus: CorpusOptions, args: WhitenOptions) -> None:
    """Write a model whose vectors are whitened, for similarity and search."""
    output = Path(args.output)
    if output.exists() and (not output.is_dir() or os.listdir(output)):
        raise FileExistsError(f"{output} is there already; name a new folder.")
    texts = draw_lines(filter(None, corpus.open()), args.fit_rows)
    model, _ = encoder.load()
    pca = whiten(model, texts, args.dimension, encoder.batch_size)
    model.save_pretrained(str(output))
    print(
        f"{args.dimension} components of {len(pca.mean):,} numbers keep {pca.explained_variance_ratio:.1%} of the "
        f"variance of {len(texts):,} texts: {output}"
    )
