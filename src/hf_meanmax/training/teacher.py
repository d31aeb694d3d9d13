"""Vectors of a teacher or an embedder for the texts of a token store, computed once and cached."""

from __future__ import annotations

import functools
import hashlib
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from hf_meanmax.data import Corpus, StoredTexts
from hf_meanmax.data.corpus import CHANGED
from hf_meanmax.files import Json, bytes_digest, open_array, replacing_file, write_json
from hf_meanmax.hardware import most_open_files, uses_bf16
from hf_meanmax.inference.embedding_files import (
    MANIFEST,
    embedding_files,
    is_finished,
    lacking_shards,
    read_manifest,
    shard_name,
)
from hf_meanmax.inference.encode import EncodeSettings, encode_corpus
from hf_meanmax.inference.fingerprints import model_fingerprints
from hf_meanmax.processes import of_main_process
from hf_meanmax.progress import progress_bar

from .cache import cache_folder, cache_lock, digest
from .settings import PretrainArguments

if TYPE_CHECKING:
    from accelerate import PartialState
    from sentence_transformers import SentenceTransformer

# A slow teacher takes a minute per shard, after which the shard is saved and the progress bar moves.
_SETTINGS = EncodeSettings(dtype="float16", shard_size=2048)


class TeacherVectors:
    """Vectors in files, whose rows are read on demand.

    Args:
        folders: folders written by [`~hf_meanmax.inference.encode.encode_corpus`], in this order.
        places: for each row, its row number in the files put together.
    """

    def __init__(self, folders: Sequence[Path], places: npt.NDArray[np.int64]) -> None:
        self.files = [file for folder in folders for file in embedding_files(folder)]
        shapes = [np.load(path, mmap_mode="r").shape for path in self.files]
        self.ends = np.cumsum([rows for rows, _ in shapes])
        self.places = places
        self.shape = len(self.places), int(shapes[0][1])
        # A large corpus has more files than a process may keep open, and opening one takes longer than reading a row.
        self._open = functools.lru_cache(maxsize=most_open_files() // 2)(functools.partial(np.load, mmap_mode="r"))

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """The vectors `(B, size)` with these row numbers."""
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
    """The teacher's or embedder's vectors of the texts of a store, each computed once and cached as float16.

    The cache distinguishes teachers, their prompts and the precision of the run. Only texts that no earlier run has
    computed are computed, for instance when a corpus has grown. Finished shards of a killed run serve later ones, also
    those of another corpus. With several processes each computes a part.

    Args:
        args: the run's settings, with `cache_dir`, `precision` and `teacher_shuffled`.
        texts: the texts of the store.
        teacher: with its prompt; see [`~hf_meanmax.inference.embedder.load_embedder`].
        state: Accelerate's state of the processes, each of which must call this.
        show_progress: whether progress is shown.

    Raises:
        ValueError: the teacher gave a vector that is not finite, or the texts or the cache have changed meanwhile.
    """
    in_bf16 = uses_bf16(args.precision, teacher.device)
    cache = cache_folder(args) / "teachers"
    own = cache / digest(model_fingerprints(teacher), *(["bf16"] if in_bf16 else []))
    own.mkdir(parents=True, exist_ok=True)
    hashes = _text_hashes(cache, texts, show_progress)
    is_main = state is None or state.is_main_process
    if is_main:
        _close_interrupted(own)
    distinct, first = np.unique(hashes, return_index=True)
    parts, has_vector = _parts_with(distinct, own, state)
    if not has_vector.all():
        is_new = np.zeros(len(hashes), dtype=bool)
        is_new[first] = ~has_vector
        new = _NewTexts(texts, hashes, is_new)
        part = own / digest(new.fingerprint())
        if show_progress and has_vector.any():
            print(f"{args.frozen_encoder}: {new.size:,} of {len(first):,} texts have no vector yet.", file=sys.stderr)
        lock = cache_lock(part) if is_main else nullcontext()
        # Autocast leaves the weights unchanged: their hash is needed again, for validation texts or by another run.
        with lock, torch.autocast(teacher.device.type, torch.bfloat16, enabled=in_bf16):
            if is_main and part.is_dir() and not (part / MANIFEST).is_file():
                shutil.rmtree(part)
            if is_main:
                _write_hashes(part, hashes[is_new])
            encode_corpus(
                teacher, new, part, _SETTINGS, model_name=args.frozen_encoder, state=state, show_progress=show_progress
            )
        parts[part] = hashes[is_new]
    known = np.concatenate(list(parts.values()))
    order = np.argsort(known, kind="stable")
    places = order[np.searchsorted(known, hashes, sorter=order)]
    if args.teacher_shuffled:
        places = np.random.default_rng(args.seed).permutation(places)
    vectors = TeacherVectors(list(parts), places)
    if vectors.ends[-1] != len(known):
        raise ValueError(f"Another run has changed the vectors in {own} meanwhile; give the command again.")
    return vectors


def _parts_with(
    distinct: npt.NDArray[np.uint64], own: Path, state: PartialState | None
) -> tuple[dict[Path, npt.NDArray[np.uint64]], npt.NDArray[np.bool_]]:
    """The cached parts with some of these texts, each with all of its hashes; and which of the texts are cached."""
    # Listed by the main process alone: another run may finish a part between the listings of two processes.
    listed = own.glob("*.npy") if state is None or state.is_main_process else ()
    names = of_main_process(state, sorted(path.stem for path in listed if _is_whole(path.with_suffix(""))))
    parts, has_vector = {}, np.zeros(len(distinct), dtype=bool)
    for part in (own / name for name in names):
        found = np.load(part.with_suffix(".npy"))
        if (is_in := np.isin(distinct, found)).any():
            has_vector |= is_in
            parts[part] = found
    return parts, has_vector


def _write_hashes(part: Path, hashes: npt.NDArray[np.uint64]) -> None:
    with replacing_file(part.with_suffix(".npy"), "wb") as file:
        np.save(file, hashes)


def _close_interrupted(own: Path) -> None:
    """Ends each part of a killed run after its finished shards."""
    for path in own.glob("*.npy"):
        part = path.with_suffix("")
        if _is_whole(part):
            continue
        # A part that a run is computing is locked; one without a manifest has no vectors.
        with suppress(OSError, ValueError, KeyError, EOFError), cache_lock(part).acquire(blocking=False):
            manifest, hashes = read_manifest(part), np.load(path)
            shards = _finished_shards(part, manifest, len(hashes))
            if shards:
                _write_hashes(part, hashes[: sum(shards)])
                write_json(part / MANIFEST, {**manifest, "shards": shards, "rows": sum(shards), "complete": True})


def _finished_shards(part: Path, manifest: Json, texts: int) -> list[int]:
    """The number of rows of each shard of an interrupted part, up to the first that is not finished."""
    size = manifest["settings"]["shard_size"]
    shards: list[int] = []
    for first in range(0, texts, size):
        rows = min(size, texts - first)
        if not is_finished(part / shard_name(len(shards), ".npy"), rows, manifest["dimension"]):
            break
        shards.append(rows)
    return shards


def _is_whole(part: Path) -> bool:
    """Whether an encoding and its file of hashes are finished, and none of their files is missing or truncated."""
    try:
        manifest = read_manifest(part)
        rows = sum(manifest["shards"]) if manifest["complete"] else 0
        hashes = open_array(part.with_suffix(".npy"))
        return len(hashes) == rows > 0 and not lacking_shards(part, manifest)
    except (OSError, ValueError, EOFError):
        return False


class _NewTexts(Corpus):
    """The texts of a store that have no vector yet, each once. All texts are read and checked against the hashes."""

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
    """The hash of each text, computed in one pass and cached."""
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
    """A 64-bit hash of a text. The probability that any two of 10^9 texts share one is 3 %."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
