"""The SentenceTransformer part of a checkpoint folder: what is written, and what is read of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hf_meanmax.files import read_json
from hf_meanmax.modeling.configuration_base import NO_LIMIT, LatentConfig
from hf_meanmax.modeling.sentence_transformer_files import sentence_transformer_files, write_json_files

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NORMALIZATIONS = (None, "rows", "embedding")

# What its user has set, by the file of a SentenceTransformer.
_OF_ENCODING = {
    "sentence_bert_config.json": ("max_seq_length",),
    "config_sentence_transformers.json": ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim"),
}


def write_sentence_transformer(
    folder: Path,
    config: LatentConfig,
    tokenizer: PreTrainedTokenizerBase,
    normalize: str | None,
    like: Path | None,
) -> None:
    """Writes the SentenceTransformer part of a checkpoint folder, with the prompts and limits of the folder `like`; of
    a model that reads no text, nothing."""
    if not config.reads_text:
        return
    written = sentence_transformer_files(min(tokenizer.model_max_length, NO_LIMIT), normalize)
    for name, settings in _OF_ENCODING.items():
        known = read_json(like / name) if like is not None and (like / name).is_file() else {}
        written[name] |= {setting: known[setting] for setting in settings if setting in known}
    write_json_files(folder, written)


def saved_normalization(folder: str | os.PathLike[str]) -> Literal["rows", "embedding"] | None:
    """What `SentenceTransformer.encode` of a checkpoint folder scales to unit length, as `normalize` of
    [`save_checkpoint`]; None where it has no such part."""
    settings = Path(folder) / "sentence_bert_config.json"
    if not settings.is_file():
        return None
    modalities = read_json(settings).get("modality_config") or {}
    if modalities.get("text", {}).get("method") == "normalized_rows":
        return "rows"
    modules = read_json(Path(folder) / "modules.json", list)
    return "embedding" if any(module["type"].endswith("Normalize") for module in modules) else None


def saved_length_limit(folder: Path) -> int | None:
    """The tokens at which the SentenceTransformer of a checkpoint folder cuts a text; None where it cuts none."""
    settings = folder / "sentence_bert_config.json"
    saved = read_json(settings).get("max_seq_length") if settings.is_file() else None
    # sentence-transformers leaves it to the tokenizer when it saves.
    limit = int(saved or read_json(folder / "tokenizer_config.json").get("model_max_length") or NO_LIMIT)
    return None if limit >= NO_LIMIT else limit


def module_folders(folder: Path) -> list[str]:
    """The sub-folders of a SentenceTransformer's modules; a decoder of another embedder's vectors has none."""
    modules = folder / "modules.json"
    return [entry["path"] for entry in read_json(modules, list) if entry["path"]] if modules.is_file() else []
