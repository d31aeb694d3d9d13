"""Smaller copies of a checkpoint folder, for sharing and storage; they load like the checkpoint."""

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
# Smaller numbers are subnormal in float16 and lose precision.
_SMALLEST_SCALE = torch.finfo(torch.float16).tiny
# Largest error of int8, relative to the matrix's norm. Word tables lose less than 0.01, a near-identity map 0.04.
MOST_LOST = 0.02


def compact_checkpoint(
    folder: str | os.PathLike[str], output: str | os.PathLike[str], dtype: str, remote_code: bool = True
) -> Path:
    """Copies a checkpoint folder and its card, with the weight matrices in int8 or float16. Loading restores float
    matrices, so the copy can be trained; saving it again writes float weights.

    Args:
        folder: a checkpoint folder or a repository on the Hub; it may hold an encoder alone.
        output: the new folder; it appears whole or not at all.
        dtype: "int8" with a float16 scale per row, for matrices where its error is small (see `store_tensors`), or
            "float16", which leaves int8 files as they are.
        remote_code: whether to copy the model's code, if the folder has it.

    Returns:
        The new folder.

    Raises:
        FileNotFoundError, ValueError: no whole checkpoint, or another `dtype`.
        FileExistsError: `output` is `folder`, or is no checkpoint but holds files that one would replace.
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
            # As float16, int8 matrices would take twice the bytes for the same precision.
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
    """Converts matrices to `dtype` for storage. A matrix that int8 would change by more than `MOST_LOST` of its norm
    becomes float16. Vectors stay as they are, and so do matrices whose numbers are too large or too small for float16.
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
    """A matrix `(rows, columns)` as int8, and float16 scales `(rows,)`: the largest magnitude of each row / 127."""
    matrix = matrix.float()
    scales = (matrix.abs().amax(dim=1) / _LARGEST_INT8).clamp(min=_SMALLEST_SCALE).half()
    steps = (matrix / scales.float()[:, None]).round()
    return steps.clamp(-_LARGEST_INT8, _LARGEST_INT8).to(torch.int8), scales


def _drop_auto_map(path: Path) -> None:
    config = read_json(path)
    config.pop("auto_map", None)
    write_json(path, config, indent=2, sort_keys=True)
