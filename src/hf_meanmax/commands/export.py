"""Write a smaller copy of a checkpoint, or a student's encoder with vectors in its teacher's space.

hf-meanmax export runs/mine/model --dtype int8 --output runs/mine/small
hf-meanmax export runs/student/model --space teacher --output runs/student/in-teacher-space
"""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hf_meanmax.checkpoint.compact import compact_checkpoint
from hf_meanmax.checkpoint.folder import saving_code
from hf_meanmax.checkpoint.location import checkpoint_folder
from hf_meanmax.files import check_new_folder, replacing_folder
from hf_meanmax.inference.teacher_space import in_teacher_space
from hf_meanmax.pretrained import ENCODER_SOURCES

from .options import option, positional, verb, written


@dataclass
class ExportOptions:
    """The options of `hf-meanmax export`."""

    model: str = positional(f"a checkpoint ({ENCODER_SOURCES})")
    output: str = written("the new folder, a SentenceTransformer", folder=True)
    space: Literal["own", "teacher"] = option(
        "space of the vectors; those in the teacher's space cannot be decoded", "own"
    )
    dtype: Literal["float32", "float16", "int8"] = option(
        "data type stored on disk; weights load in the checkpoint's own type", "float32"
    )
    remote_code: bool = option("whether the model's code, for trust_remote_code, is kept where the folder has it", True)


@verb("export")
def main(args: ExportOptions) -> None:
    """Write a smaller copy of a checkpoint, or a student's encoder with vectors in its teacher's space."""
    output = check_new_folder(args.output)
    if args.space == "own":
        if args.dtype == "float32":
            raise ValueError("The weights would not change: give --dtype int8 or float16, --space teacher, or both.")
        source = checkpoint_folder(args.model)
        compact_checkpoint(source, output, args.dtype, args.remote_code)
        print(f"weights of {_megabytes(output)} (before: {_megabytes(source)}), vectors in their own space: {output}")
    else:
        _write_in_teacher_space(args, output)
        print(f"weights of {_megabytes(output)}, vectors in the teacher's space: {output}")


def _megabytes(folder: Path) -> str:
    return f"{sum(path.stat().st_size for path in folder.rglob('*.safetensors')) / 1e6:.1f} MB"


def _write_in_teacher_space(args: ExportOptions, output: Path) -> None:
    encoder = in_teacher_space(args.model)
    if args.dtype == "float32":
        as_asked = nullcontext() if args.remote_code else saving_code(encoder[0].auto_model, False)
        with replacing_folder(output, ["*"]) as partial, as_asked:
            encoder.save_pretrained(str(partial), create_model_card=False)
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        encoder.save_pretrained(folder, create_model_card=False)
        compact_checkpoint(folder, output, args.dtype, args.remote_code)
