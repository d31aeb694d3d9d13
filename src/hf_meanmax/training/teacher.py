"""The vectors of a teacher, or of an embedder that is decoded: computed once for the texts of a token store."""

from __future__ import annotations

import functools
import hashlib
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from hf_meanmax.data import Corpus, StoredTexts
from hf_meanmax.data.corpus import CHANGED
from hf_meanmax.files import bytes_digest, open_array, replacing_file
from hf_meanmax.hardware import most_open_files, uses_bf16
from hf_meanmax.inference.embedding_files import MANIFEST, embedding_files, lacking_shards, read_manifest
from hf_meanmax.inference.encode import EncodeSettings, encode_corpus
from hf_meanmax.inference.fingerprints import model_fingerprints
from hf_meanmax.processes import of_main_process
from hf_meanmax.progress import progress_bar

from .cache import cache_folder, cache_lock, digest
from .settings import PretrainArguments

if TYPE_CHECKING:
    from accelerate import PartialState
    from sentence_transformers import SentenceTransformer

# A slow teacher takes a minute for a shard: so often it is saved, and the bar moves.
_SETTINGS = EncodeSettings(dtype="float16", shard_size=2048)


class TeacherVectors:
    """Vectors in files, read row by row as they are needed.

    Args:
        folders: what [`~hf_meanmax.inference.encode.encode_corpus`] has written, one after another.
        places: which row of the files each row is.
    """

    def __init__(self, folders: Sequence[Path], places: npt.NDArray[np.int64]) -> None:
        self.files = [file for folder in folders for file in embedding_files(folder)]
        shapes = [np.load(path, mmap_mode="r").shape for path in self.files]
        self.ends = np.cumsum([rows for rows, _ in shapes])
        self.places = places
        self.shape = len(self.places), int(shapes[0][1])
        # A large corpus has more files than a process may hold open, and to open one takes longer than to read a row.
        self._open = functools.lru_cache(maxsize=most_open_files() // 2)(functools.partial(np.load, mmap_mode="r"))

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """The rows `(B, size)` of these numbers."""
        rows = self.places[rows]
        vectors = np.empty((len(rows), self.shape[1]), dtype=np.float32)
        numbers = np.searchsorted(self.ends, rows, side="right")
        for number in np.unique(numbers):
            mine = numbers == number
            file = self._open(self.files[number])
            vectors[mine] = file[rows[mine] - (self.ends[number] - len(file))]
        return vectors


def teacher_vectors(
    args: PretrainArguments,
    texts: StoredTexts,
    teacher: SentenceTransformer,
    state: PartialState | None = None,
    show_progress: bool = True,
) -> TeacherVectors:
    """The teacher's, or the embedder's, vectors of the texts of a store, each computed once and cached as float16.

    They belong to the teacher with its prompt, and to the precision it ran in, which is the run's: others are computed
    anew. Of a corpus that has grown only the new texts are computed, whichever run had the others. A killed run keeps
    the finished shards. With several processes each computes a part.

    Args:
        args: the run's, with `cache_dir`, `precision` and `teacher_shuffled`.
        texts: what the teacher reads.
        teacher: with its prompt; see [`~hf_meanmax.inference.embedder.load_embedder`].
        state: accelerate's, of the processes, each of which must call this.
        show_progress: whether progress is shown.

    Raises:
        ValueError: the teacher gave a vector that is not finite, or the texts have changed meanwhile.
    """
    in_bf16 = uses_bf16(args.precision, teacher.device)
    cache = cache_folder(args) / "teachers"
    own = cache / digest(model_fingerprints(teacher), *(["bf16"] if in_bf16 else []))
    own.mkdir(parents=True, exist_ok=True)
    hashes = _text_hashes(cache, texts, show_progress)
    distinct, first = np.unique(hashes, return_index=True)
    parts, has_vector = _parts_with(distinct, own, state)
    if not has_vector.all():
        is_new = np.zeros(len(hashes), dtype=bool)
        is_new[first] = ~has_vector
        new = _NewTexts(texts, hashes, is_new)
        part = own / digest(new.fingerprint())
        if show_progress and has_vector.any():
            print(f"{args.frozen_encoder}: {new.size:,} of {len(first):,} texts have no vector yet.", file=sys.stderr)
        is_main = state is None or state.is_main_process
        lock = cache_lock(part) if is_main else nullcontext()
        # The weights stay as they are: the validation texts, or another run, ask for their hash again.
        with lock, torch.autocast(teacher.device.type, torch.bfloat16, enabled=in_bf16):
            if is_main and part.is_dir() and not (part / MANIFEST).is_file():
                shutil.rmtree(part)
            encode_corpus(
                teacher, new, part, _SETTINGS, model_name=args.frozen_encoder, state=state, show_progress=show_progress
            )
            parts[part] = hashes[is_new]
            if is_main:
                with replacing_file(part.with_suffix(".npy"), "wb") as file:
                    np.save(file, parts[part])
    known = np.concatenate(list(parts.values()))
    order = np.argsort(known, kind="stable")
    places = order[np.searchsorted(known, hashes, sorter=order)]
    if args.teacher_shuffled:
        places = np.random.default_rng(args.seed).permutation(places)
    return TeacherVectors(list(parts), places)


def _parts_with(
    distinct: npt.NDArray[np.uint64], own: Path, state: PartialState | None
) -> tuple[dict[Path, npt.NDArray[np.uint64]], npt.NDArray[np.bool_]]:
    """The parts of a teacher that have texts of these hashes, each with its own; and which of the texts have one."""
    # Another run may finish a part meanwhile, which one process would see and another not.
    listed = own.glob("*.npy") if state is None or state.is_main_process else ()
    names = of_main_process(state, sorted(path.stem for path in listed if _is_whole(path.with_suffix(""))))
    parts, has_vector = {}, np.zeros(len(distinct), dtype=bool)
    for part in (own / name for name in names):
        found = np.load(part.with_suffix(".npy"))
        if (is_in := np.isin(distinct, found)).any():
            has_vector |= is_in
            parts[part] = found
    return parts, has_vector


def _is_whole(part: Path) -> bool:
    """Whether an encoding and the hashes beside it are finished, and nothing of them is gone or cut short."""
    try:
        manifest = read_manifest(part)
        rows = sum(manifest["shards"]) if manifest["complete"] else 0
        hashes = open_array(part.with_suffix(".npy"))
        return len(hashes) == rows > 0 and not lacking_shards(part, manifest)
    except (OSError, ValueError, EOFError):
        return False


class _NewTexts(Corpus):
    """Those of a store's texts that have no vector yet, each once. All are read, and must be those of the hashes."""

    def __init__(self, texts: StoredTexts, hashes: npt.NDArray[np.uint64], is_new: npt.NDArray[np.bool_]) -> None:
        self.texts, self.hashes, self.is_new = texts, hashes, is_new
        self.size = int(is_new.sum())

    def __iter__(self) -> Iterator[str]:
        self.position = read = 0
        for text in self.texts:
            if read == len(self.hashes) or text_hash(text) != self.hashes[read]:
                raise ValueError(CHANGED)
            if self.is_new[read]:
                self.position += 1
                yield text
            read += 1
        if read != len(self.hashes):
            raise ValueError(CHANGED)

    def identity(self) -> object:
        return ["new texts", bytes_digest(self.hashes[self.is_new].tobytes())]


def _text_hashes(cache: Path, texts: StoredTexts, show_progress: bool) -> npt.NDArray[np.uint64]:
    """The hash of each text, made in one pass and kept."""
    fingerprint = texts.fingerprint()
    path = cache / f"{fingerprint}.npy"
    with cache_lock(path):
        if not path.is_file():
            made = map(text_hash, progress_bar(texts, desc="hash texts", total=texts.size, disable=not show_progress))
            hashes = np.fromiter(made, np.uint64)
            texts.check_unchanged(fingerprint)
            with replacing_file(path, "wb") as file:
                np.save(file, hashes)
        found: npt.NDArray[np.uint64] = np.load(path)
        return found


def text_hash(text: str) -> int:
    """64 bits of a hash of a text. That any two of 10^9 texts have the same has a chance of 3 %."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
