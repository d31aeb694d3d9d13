"""Write a model whose vectors are whitened, for similarity and search.

hf-meanmax whiten runs/mine/model my.txt --output runs/mine/whitened --dimension 256
"""

from __future__ import annotations

from dataclasses import dataclass

from hf_meanmax.files import check_new_folder, replacing_folder
from hf_meanmax.inference.encode import draw_lines
from hf_meanmax.inference.whitening import whiten

from .options import CorpusOptions, EncoderOptions, count, verb, written


@dataclass
class WhitenOptions:
    """The options of `hf-meanmax whiten`, besides those of encoder and corpus."""

    output: str = written("the new folder", folder=True)
    dimension: int = count("size of the new vectors", 256)
    fit_rows: int = count("texts of the corpus that the whitening is fitted on", 16384)


@verb("whiten")
def main(encoder: EncoderOptions, corpus: CorpusOptions, args: WhitenOptions) -> None:
    """Write a model whose vectors are whitened, for similarity and search."""
    output = check_new_folder(args.output)
    texts = draw_lines(filter(None, corpus.open()), args.fit_rows)
    model, _ = encoder.load()
    if hasattr(model[0], "exported_weights"):
        raise ValueError(f"{encoder.model} is an ONNX export, which cannot be saved again. Give its checkpoint.")
    pca = whiten(model, texts, args.dimension, encoder.batch_size, show_progress=True)
    with replacing_folder(output, ["*"]) as partial:
        model.save_pretrained(str(partial), create_model_card=False)
    print(
        f"{args.dimension} components of {len(pca.mean):,} numbers keep {pca.explained_variance_ratio:.1%} of the "
        f"variance of {len(texts):,} texts: {output}"
    )
