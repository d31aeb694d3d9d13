"""Checks that a model can decode vectors: only those of its own embedder, unchanged."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hf_meanmax.files import Json
from hf_meanmax.modeling.encoder_model import NO_REPRESENTATION

from .embedding_files import MANIFEST, read_manifest
from .fingerprints import weights_fingerprint
from .index import INDEX_MANIFEST, IndexManifest
from .sources import FaissSource, FileSource, VectorSource

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.configuration_utils import PreTrainedConfig


def has_unit_length(vectors: np.ndarray) -> bool:
    """Whether all vectors `(N, D)` have length 1, up to rounding in float16 or bfloat16."""
    return bool((np.abs(np.linalg.norm(vectors.astype(np.float32), axis=1) - 1) <= 0.02).all())


def refuse_scaled(vectors: np.ndarray, config: PreTrainedConfig) -> None:
    """Raises ValueError if vectors `(N, D)` were normalised but the model is an autoencoder that decodes raw ones,
    whose lengths vary."""
    if not config.reads_text or config.ignores_length or vectors.shape[1] != config.sentence_embedding_size:
        return
    rows = vectors.reshape(-1, config.latent_width)
    for scaled, what in ((vectors, "vectors are"), (rows, "rows of the vectors are")):
        lengths = np.linalg.norm(scaled.astype(np.float32), axis=1)
        # Some raw vectors may have length 1 by chance, and zeros stand for a missing vector.
        lengths = lengths[lengths > 0]
        if len(lengths) and np.mean(np.abs(lengths - 1) <= 2e-3) > 0.9:
            raise ValueError(
                f"The {what} of unit length, so they were normalised; this model decodes raw vectors only. Encode "
                "again without `normalize`; of a checkpoint that was saved with it, take the model's `pooler_output`."
            )


def check_sources(sources: Sequence[VectorSource], model: PreTrainedModel) -> None:
    """Checks that `model` can decode the vectors of sources, as far as these record how they were made.

    Raises:
        ValueError: the vectors are of another embedder or another size, or were changed; or the model decodes none.
    """
    if not model.config.has_latents:
        raise ValueError(f"The model decodes no vectors: {NO_REPRESENTATION}")
    files = [source.path for source in sources if isinstance(source, FileSource)]
    # A single shard is also checked by its folder's manifest.
    shards = [path for path in files if path.name.startswith("shard-") and (path.parent / MANIFEST).is_file()]
    for folder in dict.fromkeys(path.parent if path in shards else path for path in files):
        if folder.is_dir():
            check_decodable(folder, read_manifest(folder), model)
    for source in sources:
        if isinstance(source, FaissSource) and (source.path.parent / INDEX_MANIFEST).is_file():
            _check_index(source.path.parent, model)
        else:
            has_manifest = isinstance(source, FileSource) and (source.path.is_dir() or source.path in shards)
            _check_store(source, model, has_manifest)


def _check_index(folder: Path, model: PreTrainedModel) -> None:
    """Checks an index by the manifest that `search index` wrote."""
    manifest = IndexManifest.read(folder)
    if manifest.settings.metric == "cosine" and not model.config.ignores_length:
        raise ValueError(
            f"{folder} holds vectors of unit length (`metric` cosine); only raw vectors can be decoded. Build it with "
            "--metric l2."
        )
    if manifest.encoded:
        check_decodable(folder, manifest.encoded, model)


def _check_store(source: VectorSource, model: PreTrainedModel, has_manifest: bool) -> None:
    config = model.config
    size = config.sentence_embedding_size if config.reads_text else config.embedding_dim
    if source.dimension not in (None, size):
        raise ValueError(f"{source.name} holds vectors of {source.dimension:,} numbers; the model decodes {size:,}.")
    wanted = None if config.reads_text else (config.embedder or {}).get("name")
    if has_manifest or not (wanted or config.reads_text):
        return
    if source.embedder is None:
        whose = repr(wanted) if wanted else "this model itself"
        print(
            f"{source.name} does not say which model made its vectors; they are decoded as those of {whose}.",
            file=sys.stderr,
        )
    elif wanted and Path(source.embedder).name.casefold() != Path(str(wanted)).name.casefold():
        raise ValueError(
            f"{source.name} says that {source.embedder!r} made its vectors; this model decodes those of {wanted!r}."
        )


def check_decodable(folder: Path, manifest: Json, model: PreTrainedModel) -> None:
    """Checks by the manifest of `encode` that `model` can decode the vectors in a folder.

    Raises:
        ValueError: the vectors were normalised, truncated, projected or quantised, or another model made them.
    """
    settings = manifest["settings"]
    for changed, flag in (
        (settings["normalize"] and not model.config.ignores_length, "--normalize"),
        (settings["truncate_dim"], "--truncate_dim"),
        (settings["pca"], "--pca"),
        (settings["dtype"] == "int8", "--dtype int8"),
    ):
        if changed:
            raise ValueError(
                f"{folder} was encoded with {flag}; only raw vectors can be decoded. Encode again without it."
            )
    made_by = manifest["model"]
    embedder = None if model.config.reads_text else model.config.embedder or {}
    wanted = weights_fingerprint(model.encoder) if embedder is None else embedder.get("weights")
    if wanted not in (None, made_by["weights"]):
        remedy = (
            "decode it with that one, or if it has no decoder, train one: `hf-meanmax pretrain embedding-decoder`"
            if embedder is None
            else f"this one decodes the vectors of {model.config.embedder_name!r}"
        )
        raise ValueError(f"{folder} was encoded by another model ({made_by['name']!r}); {remedy}.")
    if embedder and embedder.get("pipeline") not in (None, made_by["pipeline"]):
        print(
            f"{folder} was encoded with other settings of the embedder (prompt, length limit) than the decoder has "
            "learnt from.",
            file=sys.stderr,
        )
