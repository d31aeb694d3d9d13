"""The embedder whose vectors are decoded, and the description of it that a decoder keeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from hf_meanmax.cosines import unit_rows
from hf_meanmax.data.batches import VectorRows
from hf_meanmax.files import shared_name
from hf_meanmax.modeling.layers import Standardization

from .blocks import in_blocks
from .compression import check_finite
from .encoder import embedding_dimension, encode_texts, load_encoder
from .fingerprints import model_fingerprints
from .long_texts import default_prompt

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_PROMPT = "text"
_MOST_FITTED = 200_000
_BLOCK = 1024


def load_embedder(
    name: str, prompt: str = "", device: torch.device | str | None = None, trust_remote_code: bool = False
) -> SentenceTransformer:
    """Loads a SentenceTransformer that puts `prompt`, if given, before every text.

    Raises:
        FileNotFoundError, ValueError: as [`~hf_meanmax.inference.encoder.load_encoder`].
    """
    embedder = load_encoder(name, trust_remote_code, device)
    if prompt:
        embedder.prompts = {**embedder.prompts, _PROMPT: prompt}
        embedder.default_prompt_name = _PROMPT
    return embedder


def embed(
    embedder: SentenceTransformer,
    texts: Sequence[str],
    batch_size: int = 64,
    show_progress: bool = False,
    what: str = "",
) -> np.ndarray:
    """An embedder's vectors `(N, D)` float32 of one or more texts.

    Raises:
        ValueError: a vector is not finite.
    """
    blocks = in_blocks(
        list(texts), _BLOCK, desc=f"embed {what}".strip(), unit="text", disable=not show_progress, leave=False
    )
    parts = [encode_texts(embedder, block, batch_size) for block in blocks]
    vectors = np.concatenate(parts).astype(np.float32, copy=False)
    check_finite(vectors)
    return vectors


def describe_embedder(embedder: SentenceTransformer, name: str) -> dict[str, str | int | bool | None]:
    """A description that identifies an embedder and its vectors, for `EmbeddingDecoderConfig.embedder`.

    Args:
        embedder: the result of [`load_embedder`], before its precision is changed.
        name: its name on the Hub, or its folder, of whose path only the last part is kept.

    Returns:
        `name`, `revision` (the commit on the Hub, if known), `weights` and `pipeline` (hashes), `prompt`,
        `pooling`, `normalized` (whether its last module scales to unit length) and `dimension`.
    """
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    config = getattr(getattr(embedder[0], "auto_model", None), "config", None)
    modes = [module.pooling_mode for module in embedder if isinstance(module, Pooling)]
    return {
        "name": str(shared_name(str(Path(name)) if Path(name).exists() else name)),
        "revision": getattr(config, "_commit_hash", None),
        **model_fingerprints(embedder),
        "prompt": default_prompt(embedder) or None,
        "pooling": (modes[-1] if isinstance(modes[-1], str) else "+".join(modes[-1])) if modes else None,
        # A module after Normalize would change the length again.
        "normalized": isinstance(embedder[-1], Normalize),
        "dimension": embedding_dimension(embedder),
    }


def fit_standardization(standardization: Standardization, vectors: VectorRows, normalize: bool) -> None:
    """Sets mean and scale to the mean and standard deviation of vectors per dimension; a constant one has scale 1.

    Args:
        standardization: the module of a model.
        vectors: vectors of the training texts; at most 200,000, evenly spaced, are read.
        normalize: whether the model scales vectors to unit length first.
    """
    rows = np.unique(np.linspace(0, len(vectors) - 1, min(len(vectors), _MOST_FITTED)).astype(np.int64))
    sums = np.zeros((2, vectors.shape[1]))
    for part in np.array_split(rows, max(1, len(rows) // 8192)):
        batch = np.asarray(vectors[part], dtype=np.float64)
        batch = unit_rows(batch) if normalize else batch
        sums += batch.sum(axis=0), np.square(batch).sum(axis=0)
    mean, squares = sums / len(rows)
    deviation = np.sqrt(np.maximum(squares - np.square(mean), 0))
    # The deviation of a constant dimension is only rounding error.
    deviation[deviation < 1e-6 * max(deviation.max(), 1e-12)] = 1.0
    with torch.no_grad():
        standardization.mean.copy_(torch.from_numpy(mean))
        standardization.scale.copy_(torch.from_numpy(deviation))
