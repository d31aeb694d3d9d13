"""Loads matrices that are stored in int8, with a float16 scale per row, as float matrices.

A matrix `NAME` in int8 is stored as two tensors, `NAME_int8` `(rows, columns)` and `NAME_scale` `(rows,)`: a reader
without support for them reports `NAME` as missing instead of using integers as weights.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack

import torch
from safetensors import safe_open

INT8, SCALE = "_int8", "_scale"


def restore_rows(steps: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The float32 matrix `(rows, columns)` from int8 steps and the scale of each row `(rows,)`."""
    return steps.float() * scales.float()[:, None]


def stored_names(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Maps the name of each tensor of the model to the names of the tensors that store it in a file."""
    found, parts = {}, set()
    for name in names:
        base = name.removesuffix(INT8)
        if base != name and base + SCALE in names:
            found[base] = (name, base + SCALE)
            parts |= {name, base + SCALE}
    return found | {name: (name,) for name in names if name not in parts}


def restored_state_dict(files: Sequence[str | os.PathLike[str]]) -> dict[str, torch.Tensor] | None:
    """The tensors of safetensors files with every matrix restored; None if none is in int8, since transformers reads
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
