"""A student's vectors in its teacher's space, so that the student can query an index of the teacher's vectors."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hf_meanmax.checkpoint.folder import load_checkpoint
from hf_meanmax.checkpoint.location import checkpoint_folder
from hf_meanmax.checkpoint.sentence_transformer import saved_normalization

from .encoder import append_linear, load_encoder

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def in_teacher_space(folder: str | os.PathLike[str]) -> SentenceTransformer:
    """The SentenceTransformer of a checkpoint trained with a teacher, followed by the map to the teacher's space
    (`Dense`) and `Normalize`. Its vectors have the teacher's dimension and cannot be decoded.

    Raises:
        FileNotFoundError, ValueError: no whole checkpoint, or one without a map to a teacher's space.
    """
    from sentence_transformers.sentence_transformer.modules import Normalize

    model, _ = load_checkpoint(folder)
    head = model.teacher_head
    if head is None:
        raise ValueError(
            f"{os.fspath(folder)} has no map to a teacher's space: it was trained without a teacher, or with "
            "`--teacher_head false`, and then its own vectors are in that space."
        )
    normalization = saved_normalization(checkpoint_folder(folder))
    if normalization is not None:
        raise ValueError(
            f"{os.fspath(folder)} was exported with `--normalize {normalization}`, and the map to the teacher's space "
            "reads the raw vector. Train with `--normalize none`; `--latent_normalization rows` scales rows before it."
        )
    encoder = load_encoder(os.fspath(folder))
    # The setting is for the student's own vectors, but would cut the mapped ones.
    encoder.truncate_dim = None
    append_linear(encoder, head.weight.detach(), head.bias.detach())
    encoder.append(Normalize())
    return encoder
