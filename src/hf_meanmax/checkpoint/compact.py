"""Smaller copies of a checkpoint folder, for sending and for keeping: what loads the checkpoint loads them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME

from hf_meanmax.files import is_owned, read_json, write_json
from hf_meanmax.modeling.storage import STORED_DTYPES, restored_state_dict, store_tensors

from .folder import CHECKPOINT_FILES, check_checkpoint, check_free, replacing_checkpoint, weight_files
from .location import checkpoint_folder
from .sentence_transformer import module_folders


def compact_checkpoint(
    folder: str | os.PathLike[str], output: str | os.PathLike[str], dtype: str, remote_code: bool = True
) -> Path:
    """Copies a checkpoint folder, its card too, with the matrices of its weights in fewer bytes. Loading makes them
    float again, so the copy also trains; saving it anew writes float weights.

    Args:
        folder: a checkpoint folder or a repository on the Hub; an encoder alone will do.
        output: the new folder, whole or not at all.
        dtype: "int8" with a float16 scale a row, where it is near enough (see
            `store_tensors`), or "float16".
        remote_code: whether the copy has the model's code, if the folder has.

    Returns:
        The new folder.

    Raises:
        FileNotFoundError, ValueError: no whole checkpoint, or another `dtype`.
        FileExistsError: `output` is `folder`, or holds somebody else's files.
    """
    if dtype not in STORED_DTYPES:
        raise ValueError(f"dtype is {dtype!r}; choose one of {', '.join(map(repr, STORED_DTYPES))}.")
    source, target = checkpoint_folder(folder), check_free(Path(output))
    check_checkpoint(source, encoder_alone=True)
    if target.resolve() == source.resolve():
        raise FileExistsError(f"{output} is the checkpoint itself, whose weights would lose precision; name another.")
    wanted = [*CHECKPOINT_FILES, *module_folders(source), "README.md"]
    with replacing_checkpoint(target) as partial:
        for entry in source.iterdir():
            if not is_owned(entry.name, wanted) or (not remote_code and entry.suffix == ".py"):
                continue
            if entry.is_dir():
                shutil.copytree(entry, partial / entry.name)
            elif entry.suffix != ".safetensors":
                shutil.copyfile(entry, partial / entry.name)
        shards: dict[str, str] = {}
        size = 0
        for path in weight_files(source):
            tensors = store_tensors(restored_state_dict([path]) or load_file(path), dtype)
            save_file(tensors, partial / path.name, metadata={"format": "pt"})
            shards |= dict.fromkeys(tensors, path.name)
            size += sum(tensor.nbytes for tensor in tensors.values())
        if (partial / SAFE_WEIGHTS_INDEX_NAME).is_file():
            index = {"metadata": {"total_size": size}, "weight_map": shards}
            write_json(partial / SAFE_WEIGHTS_INDEX_NAME, index, indent=2, sort_keys=True)
        if not remote_code:
            _drop_auto_map(partial / "config.json")
    return target


def _drop_auto_map(path: Path) -> None:
    config = read_json(path)
    config.pop("auto_map", None)
    write_json(path, config, indent=2, sort_keys=True)
