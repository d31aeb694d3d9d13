"""Writes and reads the SentenceTransformer part of a checkpoint folder."""

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

# Settings of a SentenceTransformer that a new checkpoint takes from an older one, by file.
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
    """Writes the SentenceTransformer part of a checkpoint folder, with prompts and limits from the folder `like`;
    nothing for a model that reads no text."""
    if not config.reads_text:
        return
    written = sentence_transformer_files(min(tokenizer.model_max_length, NO_LIMIT), normalize)
    for name, settings in _OF_ENCODING.items():
        known = read_json(like / name) if like is not None and (like / name).is_file() else {}
        written[name] |= {setting: known[setting] for setting in settings if setting in known}
    write_json_files(folder, written)


def saved_normalization(folder: str | os.PathLike[str]) -> Literal["rows", "embedding"] | None:
    """The scaling of `SentenceTransformer.encode` in a checkpoint folder, as `normalize` of [`save_checkpoint`]; None
    also if the folder has no SentenceTransformer part."""
    settings = Path(folder) / "sentence_bert_config.json"
    if not settings.is_file():
        return None
    modalities = read_json(settings).get("modality_config") or {}
    if modalities.get("text", {}).get("method") == "normalized_rows":
        return "rows"
    modules = read_json(Path(folder) / "modules.json", list)
    return "embedding" if any(module["type"].endswith("Normalize") for module in modules) else None


def saved_length_limit(folder: Path) -> int | None:
    """The number of tokens at which a checkpoint's SentenceTransformer cuts texts; None if it cuts none."""
    settings = folder / "sentence_bert_config.json"
    saved = read_json(settings).get("max_seq_length") if settings.is_file() else None
    # A folder saved by sentence-transformers has the limit in the tokenizer's settings only.
    limit = int(saved or read_json(folder / "tokenizer_config.json").get("model_max_length") or NO_LIMIT)
    return None if limit >= NO_LIMIT else limit


def module_folders(folder: Path) -> list[str]:
    """The sub-folders of a SentenceTransformer's modules; a decoder of another embedder's vectors has none."""
    modules = folder / "modules.json"
    return [entry["path"] for entry in read_json(modules, list) if entry["path"]] if modules.is_file() else []
