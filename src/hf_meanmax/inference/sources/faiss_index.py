"""The vectors in a faiss index that stores them unquantised."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_meanmax.extras import require
from hf_meanmax.inference.index import read_faiss

from .base import VectorBatch, VectorSource
from .files import file_version

if TYPE_CHECKING:
    import faiss

FAISS_SUFFIXES = (".faiss", ".index")
_EXACT = "Flat, IVF with Flat, HNSW with Flat, their 16-bit forms, and IDMap or RFlat around one"


class FaissSource(VectorSource):
    """A faiss index file that stores unquantised vectors, read in the order of their ids, which are the keys.

    Args:
        path: the file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, or the index stores no unquantised vectors.
        ImportError: faiss is not installed.
    """

    has_columns = False

    def __init__(self, path: str) -> None:
        self.name, self.path = path, Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"No such file: {path!r}.")
        self.version = file_version(self.path)
        index: Any = read_faiss(path, "stores")
        self._index = index  # keeps the inner indexes alive
        ids: np.ndarray | None = None
        while (inner := self._inner(index)) is not None:
            if hasattr(index, "id_map"):
                outer = require("faiss").vector_to_array(index.id_map)
                ids = outer if ids is None else ids[outer]
            index = inner
        self._check_exact(index)
        self._flat, self.rows, self.dimension = index, index.ntotal, index.d
        self._lists: np.ndarray | None = None
        if hasattr(index, "invlists"):
            self._lists, rows = _places_in_lists(index)
            ids = rows if ids is None else ids[rows]
        # Without ids, the rows are already in order.
        self._order = None if ids is None else np.argsort(ids, kind="stable")
        self._ids = ids

    def batches(self, batch_size: int, start: int = 0) -> Iterator[VectorBatch]:
        for first in range(start, self.rows, batch_size):
            rows = np.arange(first, min(first + batch_size, self.rows))
            if self._order is not None:
                rows = self._order[rows]
            keys = rows if self._ids is None else self._ids[rows]
            yield VectorBatch(keys.tolist(), self._vectors(rows))

    def take(self, rows: np.ndarray) -> np.ndarray:
        return self._vectors(rows if self._order is None else self._order[rows])

    def _vectors(self, rows: np.ndarray) -> np.ndarray:
        if self._lists is None:
            vectors: np.ndarray = self._flat.reconstruct_batch(rows)
            return vectors
        pointer = require("faiss").swig_ptr
        vectors = np.empty((len(rows), self._flat.d), np.float32)
        for vector, row in zip(vectors, rows.tolist(), strict=True):
            number, offset = self._lists[row].tolist()
            self._flat.reconstruct_from_offset(number, offset, pointer(vector))
        return vectors

    @staticmethod
    def _inner(index: Any) -> Any:
        """The index that a wrapper stores its vectors in; None if `index` is no wrapper."""
        faiss = require("faiss")
        if isinstance(index, faiss.IndexIDMap):
            return faiss.downcast_index(index.index)
        if isinstance(index, faiss.IndexRefineFlat):
            return faiss.downcast_index(index.refine_index)
        if isinstance(index, faiss.IndexHNSWFlat | faiss.IndexHNSWSQ):
            return faiss.downcast_index(index.storage)
        return None

    def _check_exact(self, index: faiss.Index) -> None:
        faiss = require("faiss")
        kind = type(index).__name__.removeprefix("Index")
        if isinstance(index, faiss.IndexScalarQuantizer | faiss.IndexIVFScalarQuantizer):
            if index.sq.qtype in (faiss.ScalarQuantizer.QT_fp16, faiss.ScalarQuantizer.QT_bf16):
                return
        elif kind in ("Flat", "FlatL2", "FlatIP", "IVFFlat"):
            return
        elif isinstance(index, faiss.IndexPreTransform):
            raise ValueError(
                f"{self.name} keeps transformed vectors ({kind}); only raw vectors can be decoded. Read the vectors "
                "that it was built from."
            )
        raise ValueError(
            f"{self.name} keeps no whole vectors ({kind}); only raw vectors can be decoded, as these keep them: "
            f"{_EXACT}. Read the vectors that it was built from."
        )


def _places_in_lists(index: Any) -> tuple[np.ndarray, np.ndarray]:
    """The list and offset of each vector `(N, 2)` and the ids `(N,)` of an inverted file."""
    pointer, lists = require("faiss").rev_swig_ptr, index.invlists
    sizes = [lists.list_size(number) for number in range(index.nlist)]
    ids = [pointer(lists.get_ids(number), size).copy() for number, size in enumerate(sizes) if size]
    numbers = np.repeat(np.arange(index.nlist), sizes)
    offsets = np.concatenate([np.arange(size) for size in sizes])
    return np.stack([numbers, offsets], axis=1), np.concatenate(ids) if ids else np.zeros(0, np.int64)
