"""A SentenceTransformer with whitened vectors, whose cosines tell similarity better, of fewer numbers.

A few directions hold much of the variance of raw vectors, and so decide their cosines. Whitening keeps the
principal components of the vectors of some texts and gives each the same variance (Su, Cao, Liu and Ou 2021, "Whitening
sentence representations for better semantics and faster retrieval"). The new folder has it as a last `Dense` module and
encodes wherever the old one does; its vectors cannot be decoded.
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

# Of the largest variance, and of the mean square of a vector: less is rounding, and would be blown up to as much as
# the rest.
_LEAST_VARIANCE, _ROUNDING = 1e-7, 1e-11


def whiten(
    model: SentenceTransformer,
    texts: Sequence[str],
    dimension: int = 256,
    batch_size: int = 64,
    show_progress: bool = False,
) -> PCA:
    """Gives a SentenceTransformer a last module that whitens its vectors.

    Args:
        model: the SentenceTransformer; it is changed, unless there is an error.
        texts: what the components are fitted on, some times as many as `dimension`.
        dimension: principal components that are kept; the numbers of a vector from now on.
        batch_size: texts of one forward pass.
        show_progress: show a progress bar.

    Returns:
        The principal components; `explained_variance_ratio` is what they keep of the variance.

    Raises:
        ValueError: no more different texts than `dimension`, or fewer numbers of a vector; vectors that are not finite,
            or that vary in fewer directions.
    """
    if (number := len(set(texts))) <= dimension:
        raise ValueError(
            f"{number:,} different texts are too few for {dimension} components; give more texts, or a smaller "
            "dimension."
        )
    # The last module reads whole vectors: a SentenceTransformer cuts them after all modules.
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
