"""Write a student's encoder with its vectors in the space of its teacher, for indexes that the teacher has filled.

hf-meanmax export runs/student/model --space teacher --output runs/student/in-teacher-space
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hf_meanmax.inference.teacher_space import in_teacher_space

from .options import option, positional, verb


@dataclass
class ExportOptions:
    """The options of `hf-meanmax export`."""

    model: str = positional("a checkpoint folder that had a teacher")
    output: str = option("the new folder, a SentenceTransformer")
    space: Literal["teacher"] = option("whose space the vectors are in", "teacher")
    trust_remote_code: bool = option("run code that comes with the model", False)


@verb("export")
def main(args: ExportOptions) -> None:
    """Write a student's encoder with its vectors in the space of its teacher."""
    output = Path(args.output)
    if output.exists() and (not output.is_dir() or os.listdir(output)):
        raise FileExistsError(f"{output} is there already; name a new folder.")
    encoder = in_teacher_space(args.model, args.trust_remote_code)
    encoder.save_pretrained(str(output))
    print(f"vectors of {encoder.get_embedding_dimension()} numbers, in the teacher's space: {output}")
