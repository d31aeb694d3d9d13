"""An embedder whose vectors are decoded: what a decoder remembers of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hf_meanmax.files import shared_name

from .encode import load_encoder, model_fingerprints

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer

_PROMPT = "text"


def load_embedder(
    name: str, prompt: str = "", device: torch.device | str | None = None, trust_remote_code: bool = False
) -> SentenceTransformer:
    """A SentenceTransformer that puts `prompt`, if there is one, before every text.

    Raises:
        FileNotFoundError, ValueError: as [`~hf_meanmax.inference.encode.load_encoder`].
    """
    embedder = load_encoder(name, trust_remote_code, device)
    if prompt:
        embedder.prompts = {**embedder.prompts, _PROMPT: prompt}
        embedder.default_prompt_name = _PROMPT
    return embedder


def describe_embedder(embedder: SentenceTransformer, name: str) -> dict[str, str | int | bool | None]:
    """What tells the vectors of an embedder from those of another, for `EmbeddingDecoderConfig.embedder`.

    Args:
        embedder: as [`load_embedder`] gives it, before its precision is changed.
        name: its folder, of which the last part is kept, or its name on the Hub.

    Returns:
        `name`, `revision` (the commit on the Hub, where it is known), `weights` and `pipeline` (hashes), `prompt`,
        `pooling`, `normalized` (whether its last module scales to unit length) and `dimension`.
    """
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    config = getattr(getattr(embedder[0], "auto_model", None), "config", None)
    modes = [module.pooling_mode for module in embedder if isinstance(module, Pooling)]
    prompt = embedder.prompts.get(embedder.default_prompt_name) if embedder.default_prompt_name else None
    return {
        "name": str(shared_name(str(Path(name)) if Path(name).exists() else name)),
        "revision": getattr(config, "_commit_hash", None),
        **model_fingerprints(embedder),
        "prompt": prompt or None,
        "pooling": (modes[-1] if isinstance(modes[-1], str) else "+".join(modes[-1])) if modes else None,
        "normalized": any(isinstance(module, Normalize) for module in embedder),
        "dimension": int(embedder.get_embedding_dimension() or 0),
    }
