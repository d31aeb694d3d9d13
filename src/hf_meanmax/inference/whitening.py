"""Whitens the vectors of a SentenceTransformer: they get smaller, and their cosines measure similarity better.

A few directions hold much of the variance of raw vectors and so dominate their cosines. Whitening keeps the leading
principal components, fitted to the vectors of some texts, and gives each the same variance (Su, Cao, Liu and Ou 2021,
"Whitening sentence representations for better semantics and faster retrieval"). The map is a last `Dense` module, so
the new folder encodes wherever the old one does; its vectors cannot be decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from .compression import PCA
from .embedder import embed
from .encoder import append_linear, embedding_dimension

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Least variance of a component, relative to the largest variance and to the mean squared length of a vector: a smaller
# one is rounding error, which whitening would scale up to variance 1.
_LEAST_VARIANCE, _ROUNDING = 1e-7, 1e-11


def whiten(
    model: SentenceTransformer,
    texts: Sequence[str],
    dimension: int = 256,
    batch_size: int = 64,
    show_progress: bool = False,
) -> PCA:
    """Appends a module to a SentenceTransformer that whitens its vectors.

    Args:
        model: the SentenceTransformer; it is changed in place, unless there is an error.
        texts: texts to fit the components on, several times as many as `dimension`.
        dimension: number of principal components to keep, the new size of the vectors.
        batch_size: texts per forward pass.
        show_progress: show a progress bar.

    Returns:
        The principal components; `explained_variance_ratio` is the share of the variance that they keep.

    Raises:
        ValueError: too few different texts (`dimension` or fewer), vectors smaller than `dimension`, vectors that are
            not finite, or vectors that vary in fewer directions.
    """
    if (number := len(set(texts))) <= dimension:
        raise ValueError(
            f"{number:,} different texts are too few for {dimension} components; give more texts, or a smaller "
            "dimension."
        )
    # The new module reads full vectors, since a SentenceTransformer truncates after its last module.
    with model.truncate_embeddings(None):
        if dimension > (given := embedding_dimension(model)):
            raise ValueError(
                f"`dimension` is {dimension}, and the model's vectors have {given} numbers; give as many at most."
            )
        vectors = embed(model, texts, batch_size, show_progress).astype(np.float64)
    pca = PCA.fit(vectors, dimension)
    least = max(_LEAST_VARIANCE * pca.variances[0], _ROUNDING * float(np.square(vectors).sum(axis=1).mean()))
    varying = int((pca.variances > least).sum())
    if not varying:
        raise ValueError("The vectors of these texts are all the same; give other texts.")
    if varying < dimension:
        raise ValueError(f"The vectors of these texts vary in {varying} directions only; give a dimension up to that.")
    model.truncate_dim = None
    weight, bias = pca.whitening()
    append_linear(model, torch.from_numpy(weight), torch.from_numpy(bias))
    return pca
