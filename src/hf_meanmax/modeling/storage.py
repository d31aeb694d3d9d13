"""Weights in fewer bytes: matrices as int8 with a float16 scale a row, or as float16. They load as float matrices.

A matrix `NAME` in int8 is two tensors of the file, `NAME_int8` `(rows, columns)` and `NAME_scale` `(rows,)`: a reader
that does not know them finds `NAME` missing, and takes no integers for weights.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import torch
from safetensors import safe_open

STORED_DTYPES = ("float16", "int8")
INT8, SCALE = "_int8", "_scale"
_LARGEST_INT8 = 127
# A smaller number has fewer digits in float16.
_SMALLEST_SCALE = torch.finfo(torch.float16).tiny
# Of a matrix's norm. Word tables lose less than 0.01, a map that is near the identity would lose 0.04.
MOST_LOST = 0.02


def store_tensors(tensors: Mapping[str, torch.Tensor], dtype: str) -> dict[str, torch.Tensor]:
    """The tensors of a file whose matrices take `dtype`. A matrix that int8 would change by more than `MOST_LOST` of
    its norm is float16; vectors stay as they are, and so does a matrix that float16 cannot tell from zeros or infinity.

    Raises:
        ValueError: `dtype` is none of `STORED_DTYPES`.
    """
    if dtype not in STORED_DTYPES:
        raise ValueError(f"dtype is {dtype!r}; choose one of {', '.join(map(repr, STORED_DTYPES))}.")
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


def restore_rows(steps: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The matrix `(rows, columns)`, float32, that [`quantize_rows`] has stored."""
    return steps.float() * scales.float()[:, None]


def stored_names(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The tensors of a file that hold each tensor of the model, by the name of the latter."""
    found, parts = {}, set()
    for name in names:
        base = name.removesuffix(INT8)
        if base != name and base + SCALE in names:
            found[base] = (name, base + SCALE)
            parts |= {name, base + SCALE}
    return found | {name: (name,) for name in names if name not in parts}


def restored_state_dict(files: Sequence[str | os.PathLike[str]]) -> dict[str, torch.Tensor] | None:
    """The tensors of safetensors files with every matrix restored; None where none is in int8, since transformers reads
    such files itself."""
    if not all(str(file).endswith(".safetensors") for file in files):
        return None
    tensors: dict[str, torch.Tensor] = {}
    with ExitStack() as stack:
        opened = [stack.enter_context(safe_open(file, framework="pt")) for file in files]
        stored = [stored_names(list(file.keys())) for file in opened]
        if all(len(parts) == 1 for names in stored for parts in names.values()):
            return None
        for file, names in zip(opened, stored, strict=True):
            for name, parts in names.items():
                first, *scales = (file.get_tensor(part) for part in parts)
                tensors[name] = restore_rows(first, scales[0]) if scales else first
    return tensors
