"""The files that make a checkpoint folder a SentenceTransformer."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TRANSFORMER = "sentence_transformers.base.modules.transformer.Transformer"
_NORMALIZE = "sentence_transformers.base.modules.normalize.Normalize"


def sentence_transformer_files(max_seq_length: int | None = None, normalize: str | None = None) -> dict[str, Any]:
    """The SentenceTransformer part of a checkpoint folder: the JSON content of each file, by its name.

    Args:
        max_seq_length: the number of tokens at which a text is cut; None leaves it to the tokenizer.
        normalize: `"rows"` or `"embedding"` scales these to unit length; None gives the model's own embedding.
    """
    # These methods return the embedding, since sentence-transformers' own pooling would pool a second time, and
    # `forward` pads a batch to its longest text. For a model without an embedding they raise an error.
    scales_rows = normalize == "rows"
    output = {
        "method": "normalized_rows" if scales_rows else "forward_by_length",
        "method_output_name": None if scales_rows else "pooler_output",
    }
    modules = [("", _TRANSFORMER)]
    files: dict[str, Any] = {
        "sentence_bert_config.json": {
            "transformer_task": "feature-extraction",
            "modality_config": {"text": output},
            "module_output_name": "sentence_embedding",
            "max_seq_length": max_seq_length,
            # Sentences packed into one row would share positions.
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


def write_json_files(folder: Path, files: Mapping[str, Any]) -> None:
    """Writes JSON files by their names in a folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
