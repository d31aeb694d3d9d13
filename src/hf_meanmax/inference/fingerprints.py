"""Hashes by which a model and its vectors are recognised."""

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
    # An export has its weights in a file of its own, and remembers the hash of those that it was made of.
    exported = getattr(model[0], "exported_weights", None) if model[-1] is model[0] else None
    return {"weights": exported or weights_fingerprint(model), "pipeline": pipeline_fingerprint(model)}


def weights_fingerprint(module: torch.nn.Module) -> str:
    """Hash of the values of all weights, whatever they are called."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in module.state_dict().values():
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def pipeline_fingerprint(model: SentenceTransformer) -> str:
    """Hash of what a SentenceTransformer does around its weights: modules, length limit, prompts, tokenizer."""
    parts = [repr(model), model.max_seq_length, model.prompts, tokenizer_text(getattr(model, "tokenizer", None))]
    # Most have neither, and keep the hash that they had.
    parts += [given for given in (model.default_prompt_name, model.truncate_dim) if given is not None]
    return json_digest(parts)


def tokenizer_text(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """All settings of a fast tokenizer; None of another."""
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        return None
    return str(bare_backend(tokenizer).to_str())
