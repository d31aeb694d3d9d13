"""Files of vectors, and folders written by `encode`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np

from hf_meanmax.files import json_digest
from hf_meanmax.inference.embedding_files import embedding_files, file_shapes, read_embeddings, read_rows

from .base import VectorBatch, VectorSource


class FileSource(VectorSource):
    """A .npy, .safetensors or .parquet file, or a folder written by `encode`; keys are row numbers.

    Args:
        path: the file or folder.
        vector_column: the tensor or column that holds the vectors.

    Raises:
        FileNotFoundError: there is no such file or folder.
        ValueError: it is a file of another kind, or a folder's encoding is not finished.
    """

    def __init__(self, path: str | os.PathLike[str], vector_column: str | None = None) -> None:
        self.path, self.name, self._column = Path(path), str(path), vector_column
        files = embedding_files(path)
        self.version = json_digest([file_version(file) for file in files])
        self.has_columns = any(file.suffix != ".npy" for file in files)

    @cached_property
    def _shapes(self) -> list[tuple[int, int]]:
        return file_shapes(self.path, self._column)

    @property
    def rows(self) -> int:  # type: ignore[override]
        """The number of vectors, from the files' headers."""
        return sum(count for count, _ in self._shapes)

    @property
    def dimension(self) -> int | None:  # type: ignore[override]
        """The size of the vectors, from the files' headers; None without files, or for a table without rows."""
        return next((size for _, size in self._shapes if size), None)

    def batches(self, batch_size: int, start: int = 0) -> Iterator[VectorBatch]:
        for vectors in read_embeddings([self.path], batch_size, self._column, start=start):
            yield VectorBatch(list(range(start, start + len(vectors))), vectors)
            start += len(vectors)

    def key(self, row: int) -> object:
        return row

    def take(self, rows: np.ndarray) -> np.ndarray:
        return read_rows(self.path, rows, self._column)


def file_version(path: Path) -> str:
    """The size and modification time of a file."""
    status = path.stat()
    return f"{status.st_size}-{status.st_mtime_ns}"
