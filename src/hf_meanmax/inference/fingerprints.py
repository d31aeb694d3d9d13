"""Hashes that identify a model and its vectors."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

from hf_meanmax.files import json_digest
from hf_meanmax.tokenization.tokenizers import bare_backend

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedTokenizerBase


def model_fingerprints(model: SentenceTransformer) -> dict[str, str]:
    """Hashes of a SentenceTransformer: `weights`, and `pipeline` (modules, length limit, prompts, tokenizer)."""
    # An ONNX export has no weights in torch, but records the hash of those it was made from.
    exported = getattr(model[0], "exported_weights", None) if model[-1] is model[0] else None
    return {"weights": exported or weights_fingerprint(model), "pipeline": pipeline_fingerprint(model)}


def weights_fingerprint(module: torch.nn.Module) -> str:
    """Hash of the values of all weights, whatever their names."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in module.state_dict().values():
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def pipeline_fingerprint(model: SentenceTransformer) -> str:
    """Hash of a SentenceTransformer without its weights: modules, length limit, prompts, tokenizer."""
    parts = [repr(model), model.max_seq_length, model.prompts, tokenizer_text(getattr(model, "tokenizer", None))]
    # Left out if None, so that the hashes of most models stay as they were before these were added.
    parts += [given for given in (model.default_prompt_name, model.truncate_dim) if given is not None]
    return json_digest(parts)


def tokenizer_text(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """All settings of a fast tokenizer; None for any other tokenizer."""
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        return None
    return str(bare_backend(tokenizer).to_str())
