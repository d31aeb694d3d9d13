"""Smaller copies of a checkpoint folder, for sending and for keeping: what loads the checkpoint loads them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME

from hf_meanmax.fields import check_choice
from hf_meanmax.files import is_owned, read_json, write_json
from hf_meanmax.modeling.storage import INT8, SCALE, restore_rows, restored_state_dict

from .folder import CHECKPOINT_FILES, check_checkpoint, check_free, replacing_checkpoint, weight_files
from .location import checkpoint_folder
from .sentence_transformer import module_folders

STORED_DTYPES = ("float16", "int8")
_LARGEST_INT8 = 127
# A smaller number has fewer digits in float16.
_SMALLEST_SCALE = torch.finfo(torch.float16).tiny
# Of a matrix's norm. Word tables lose less than 0.01, a map that is near the identity would lose 0.04.
MOST_LOST = 0.02


def compact_checkpoint(
    folder: str | os.PathLike[str], output: str | os.PathLike[str], dtype: str, remote_code: bool = True
) -> Path:
    """Copies a checkpoint folder, its card too, with the matrices of its weights in fewer bytes. Loading makes them
    float again, so the copy also trains; saving it anew writes float weights.

    Args:
        folder: a checkpoint folder or a repository on the Hub; an encoder alone will do.
        output: the new folder, whole or not at all.
        dtype: "int8" with a float16 scale a row, where it is near enough (see
            `store_tensors`), or "float16", in which a file that is int8 already stays as it is.
        remote_code: whether the copy has the model's code, if the folder has.

    Returns:
        The new folder.

    Raises:
        FileNotFoundError, ValueError: no whole checkpoint, or another `dtype`.
        FileExistsError: `output` is `folder`, or holds somebody else's files.
    """
    check_choice("dtype", dtype, STORED_DTYPES)
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
            restored = restored_state_dict([path])
            # Matrices in int8 would have the same digits in twice the bytes.
            is_kept = restored is not None and dtype == "float16"
            tensors = load_file(path) if is_kept else store_tensors(restored or load_file(path), dtype)
            save_file(tensors, partial / path.name, metadata={"format": "pt"})
            shards |= dict.fromkeys(tensors, path.name)
            size += sum(tensor.nbytes for tensor in tensors.values())
        if (partial / SAFE_WEIGHTS_INDEX_NAME).is_file():
            index = {"metadata": {"total_size": size}, "weight_map": shards}
            write_json(partial / SAFE_WEIGHTS_INDEX_NAME, index, indent=2, sort_keys=True)
        if not remote_code:
            _drop_auto_map(partial / "config.json")
    return target


def store_tensors(tensors: Mapping[str, torch.Tensor], dtype: str) -> dict[str, torch.Tensor]:
    """The tensors of a file whose matrices take `dtype`. A matrix that int8 would change by more than `MOST_LOST` of
    its norm is float16; vectors stay as they are, and so does a matrix that float16 cannot tell from zeros or infinity.
    """
    stored: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        largest = float(tensor.abs().max()) if tensor.numel() else 0.0
        fits = _SMALLEST_SCALE * _LARGEST_INT8 < largest < torch.finfo(torch.float16).max
        if tensor.dim() < 2 or not tensor.is_floating_point() or not fits:
            stored[name] = tensor
            continue
        if dtype == "int8" and tensor.dim() == 2 and tensor.shape[1] > 1:
            steps, scales = quantize_rows(tensor)
            if (restore_rows(steps, scales) - tensor).norm() <= MOST_LOST * tensor.norm():
                stored |= {name + INT8: steps, name + SCALE: scales}
                continue
        stored[name] = tensor.half()
    return stored


def quantize_rows(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix `(rows, columns)` as int8, and the scale `(rows,)` of each row in float16: its largest number by 127."""
    matrix = matrix.float()
    scales = (matrix.abs().amax(dim=1) / _LARGEST_INT8).clamp(min=_SMALLEST_SCALE).half()
    steps = (matrix / scales.float()[:, None]).round()
    return steps.clamp(-_LARGEST_INT8, _LARGEST_INT8).to(torch.int8), scales


def _drop_auto_map(path: Path) -> None:
    config = read_json(path)
    config.pop("auto_map", None)
    write_json(path, config, indent=2, sort_keys=True)
