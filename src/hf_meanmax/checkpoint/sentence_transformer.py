"""The SentenceTransformer part of a checkpoint folder: what is written, and what is read of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from hf_meanmax.files import Json, read_json
from hf_meanmax.modeling.configuration_base import NO_LIMIT, LatentConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NORMALIZATIONS = (None, "rows", "embedding")

_TRANSFORMER = "sentence_transformers.base.modules.transformer.Transformer"
_NORMALIZE = "sentence_transformers.base.modules.normalize.Normalize"
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
    written = sentence_transformer_files(tokenizer, normalize)
    for name, settings in _OF_ENCODING.items():
        known = read_json(like / name) if like is not None and (like / name).is_file() else {}
        written[name] |= {setting: known[setting] for setting in settings if setting in known}
    for name, content in written.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def sentence_transformer_files(tokenizer: PreTrainedTokenizerBase, normalize: str | None) -> Json:
    """The SentenceTransformer part of a checkpoint folder: the JSON content of each file, by its name."""
    # sentence-transformers' own pooling would pool a second time, and `forward` pads a batch to its longest text. A
    # model without an embedding refuses the call, and says why.
    scales_rows = normalize == "rows"
    output = {
        "method": "normalized_rows" if scales_rows else "forward_by_length",
        "method_output_name": None if scales_rows else "pooler_output",
    }
    modules = [("", _TRANSFORMER)]
    files: Json = {
        "sentence_bert_config.json": {
            "transformer_task": "feature-extraction",
            "modality_config": {"text": output},
            "module_output_name": "sentence_embedding",
            "max_seq_length": min(tokenizer.model_max_length, NO_LIMIT),
            # Sentences joined to one row would share their positions.
            "unpad_inputs": False,
        },
        "config_sentence_transformers.json": {
            "model_type": "SentenceTransformer",
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    }
    if normalize == "embedding":
        modules.append(("1_Normalize", _NORMALIZE))
        files["1_Normalize/config.json"] = {
            "module_input_name": "sentence_embedding",
            "module_output_name": "sentence_embedding",
        }
    files["modules.json"] = [
        {"idx": index, "name": str(index), "path": path, "type": kind} for index, (path, kind) in enumerate(modules)
    ]
    return files


def saved_normalization(folder: str | os.PathLike[str]) -> str | None:
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
