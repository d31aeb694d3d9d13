"""A SentenceTransformer with whitened vectors, whose cosines tell similarity better, of fewer numbers.

    hf-meanmax-whiten runs/mine/model my.txt --output runs/mine/whitened --dimension 256

A few directions hold much of the variance of raw vectors, and so decide their cosines. Whitening keeps the
principal components of the vectors of some texts and gives each the same variance (Su, Cao, Liu and Ou 2021, "Whitening
sentence representations for better semantics and faster retrieval"). The new folder has it as a last `Dense` module and
encodes wherever the old one does; its vectors cannot be decoded.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_meanmax.commands.old_options import (
    add_corpus_options,
    corpus_of,
    make_parser,
    one_line_errors,
    parse_arguments,
    positive_int,
)

from .compression import PCA, check_finite, require_pca
from .encode import draw_lines, encode_texts, load_encoder

# Of the largest variance: less is rounding, and would be blown up to as much as the rest.
_LEAST_VARIANCE = 1e-7


def whiten(model: Any, texts: Sequence[str], dimension: int = 256, batch_size: int = 64) -> PCA:
    """Gives a SentenceTransformer a last module that whitens its vectors.

    Args:
        model: the SentenceTransformer; it is changed.
        texts: what the components are fitted on, some times as many as `dimension`.
        dimension: principal components that are kept; the numbers of a vector from now on.
        batch_size: texts of one forward pass.

    Returns:
        The principal components; `explained_variance_ratio` is what they keep of the variance.

    Raises:
        ValueError: no more texts than `dimension`, vectors that are not finite, or fewer directions in which they vary.
        ImportError: scikit-learn is not installed.
    """
    from sentence_transformers.sentence_transformer.modules import Dense

    require_pca()
    if len(texts) <= dimension:
        raise ValueError(
            f"{len(texts):,} texts are too few for {dimension} components; give more texts, or a smaller dimension."
        )
    vectors = np.asarray(encode_texts(model, list(texts), batch_size), dtype=np.float64)
    check_finite(vectors)
    pca = PCA.fit(vectors, dimension)
    varying = int((pca.variances > _LEAST_VARIANCE * pca.variances[0]).sum())
    if varying < dimension:
        raise ValueError(f"The vectors of these texts vary in {varying} directions only; give a dimension up to that.")
    weight, bias = pca.whitening()
    dense = Dense(
        vectors.shape[1],
        dimension,
        activation_function=None,
        init_weight=torch.from_numpy(weight),
        init_bias=torch.from_numpy(bias),
    )
    model.append(dense.to(model.device))
    return pca


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("hf-meanmax-whiten", "Write a model whose vectors are whitened, for similarity and search.")
    parser.add_argument("model", help="a checkpoint folder, or any SentenceTransformer (folder or name on the Hub)")
    add_corpus_options(parser)
    parser.add_argument("--output", required=True, help="the new folder")
    parser.add_argument("--dimension", type=positive_int, default=256, help="numbers of the new vectors")
    parser.add_argument("--fit-rows", type=positive_int, default=16384, help="texts of the corpus that are fitted on")
    parser.add_argument("--batch-size", type=positive_int, default=64, help="texts of one forward pass")
    parser.add_argument("--trust-remote-code", action="store_true", help="run code that comes with the model")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; see `--help`."""
    from accelerate import PartialState

    args = parse_arguments(build_parser(), argv)
    with one_line_errors("whiten"):
        output = Path(args.output)
        if output.exists() and (not output.is_dir() or os.listdir(output)):
            raise FileExistsError(f"{output} is there already; name a new folder.")
        texts = draw_lines(filter(None, corpus_of(args)), args.fit_rows)
        model = load_encoder(args.model, args.trust_remote_code, PartialState().device)
        pca = whiten(model, texts, args.dimension, args.batch_size)
        model.save_pretrained(str(output))
        print(
            f"{args.dimension} components of {len(pca.mean):,} numbers keep {pca.explained_variance_ratio:.1%} of the "
            f"variance of {len(texts):,} texts: {output}"
        )


if __name__ == "__main__":
    main()
