"""The vectors of a teacher, or of an embedder that is decoded: computed once for the texts of a token store."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from hf_meanmax.data import StoredTexts
from hf_meanmax.files import replacing_file
from hf_meanmax.hardware import uses_bf16
from hf_meanmax.inference.embedder import load_embedder
from hf_meanmax.inference.embedding_files import embedding_files
from hf_meanmax.inference.encode import EncodeSettings, encode_corpus
from hf_meanmax.inference.encoder import encode_texts
from hf_meanmax.inference.fingerprints import model_fingerprints

from .preparation import cache_folder, digest, one_at_a_time
from .settings import PretrainArguments

if TYPE_CHECKING:
    from accelerate import PartialState
    from sentence_transformers import SentenceTransformer

# A slow teacher takes a minute for a shard: so often it is saved, and the bar moves.
_SETTINGS = EncodeSettings(dtype="float16", shard_size=2048)
_MOST_OPEN = 256


class TeacherVectors:
    """Vectors in files, read row by row as they are needed.

    Args:
        folder: what [`~hf_meanmax.inference.encode.encode_corpus`] has written.
        order: which row of the files each row is; by default itself.
    """

    def __init__(self, folder: Path, order: npt.NDArray[np.int64] | None = None) -> None:
        self.files = embedding_files(folder)
        shapes = [np.load(path, mmap_mode="r").shape for path in self.files]
        self.ends = np.cumsum([rows for rows, _ in shapes])
        self.size = int(shapes[0][1])
        self.order = order
        # A large corpus has more files than a process may hold open.
        self._open = functools.lru_cache(maxsize=_MOST_OPEN)(functools.partial(np.load, mmap_mode="r"))

    def __len__(self) -> int:
        return int(self.ends[-1])

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and numbers a row."""
        return len(self), self.size

    def __getitem__(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """The rows `(B, size)` of these numbers."""
        rows = rows if self.order is None else self.order[rows]
        vectors = np.empty((len(rows), self.shape[1]), dtype=np.float32)
        numbers = np.searchsorted(self.ends, rows, side="right")
        for number in np.unique(numbers):
            mine = numbers == number
            file = self._open(self.files[number])
            vectors[mine] = file[rows[mine] - (self.ends[number] - len(file))]
        return vectors


def load_teacher(args: PretrainArguments, device: torch.device | str | None) -> SentenceTransformer:
    """The teacher or the embedder of a run, with its prompt.

    Raises:
        FileNotFoundError, ValueError: no such encoder, or one without a fixed representation.
    """
    return load_embedder(args.frozen_encoder, args.teacher_prompt or args.embedder_prompt, device)


def vector_size(teacher: SentenceTransformer) -> int:
    """Numbers of a teacher's vector."""
    return int(encode_texts(teacher, ["a"], 1).shape[1])


def prepare_teacher(
    args: PretrainArguments,
    texts: StoredTexts,
    teacher: SentenceTransformer,
    state: PartialState | None = None,
    show_progress: bool = True,
) -> TeacherVectors:
    """The teacher's, or the embedder's, vectors of the texts of a store, computed once and cached as float16.

    They belong to the texts, to the teacher with its prompt, and to the precision it ran in, which is the run's: other
    ones are computed anew. A killed run keeps the finished shards. With several processes each computes a part.

    Args:
        args: the run's, with `cache_dir`, `precision` and `teacher_shuffled`.
        texts: what the teacher reads.
        teacher: see [`load_teacher`].
        state: accelerate's, of the processes, each of which must call this.
        show_progress: whether progress is shown.

    Raises:
        ValueError: the teacher gave a vector that is not finite.
    """
    cache = cache_folder(args) / "teachers"
    with one_at_a_time(cache / "texts"):
        known = cache / f"{digest(texts.corpus.fingerprint(), texts.encoder.fingerprint(), str(texts.rule))}.texts"
        if not known.is_file():
            texts.identity()
            with replacing_file(known) as file:
                file.write(str(texts.digest))
        texts.digest = known.read_text()
    in_bf16 = uses_bf16(args.precision, teacher.device)
    parts = [model_fingerprints(teacher), texts.fingerprint(), _SETTINGS.shard_size, *(["bf16"] if in_bf16 else [])]
    folder = cache / digest(*parts)
    is_main = state is None or state.is_main_process
    lock = one_at_a_time(folder)
    if is_main:
        lock.acquire()
    try:
        # The weights stay as they are: the validation texts, or another run, ask for their hash again.
        with torch.autocast(teacher.device.type, torch.bfloat16, enabled=in_bf16):
            encode_corpus(
                teacher, texts, folder, _SETTINGS, model_name=args.frozen_encoder, state=state,
                show_progress=show_progress,
            )  # fmt: skip
    finally:
        if is_main:
            lock.release()
    order = None
    if args.teacher_shuffled:
        order = np.random.default_rng(args.seed).permutation(len(TeacherVectors(folder)))
    return TeacherVectors(folder, order)
