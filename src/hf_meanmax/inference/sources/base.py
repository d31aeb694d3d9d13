"""The interface of a source of vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hf_meanmax.fields import option
from hf_meanmax.inference.embedding_files import pick_rows


@dataclass(kw_only=True)
class SourceOptions:
    """The table and columns of a source that hold the vectors."""

    vector_column: str | None = option("tensor or column that holds the vectors; by default the only one", None)
    key_column: str | None = option(
        "column of a database table whose order the rows are read in; by default the primary key (PostgreSQL) or the "
        "table's own order (LanceDB)",
        None,
    )
    table: str | None = option("table of the database", None)


@dataclass(frozen=True)
class VectorBatch:
    """Some rows of a source.

    Args:
        keys: the source's key of each row.
        vectors: `(B, D)`, floating-point numbers.
    """

    keys: list[Any]
    vectors: np.ndarray


class VectorSource(ABC):
    """Vectors in a fixed order, read in batches.

    Attributes:
        name: the name in messages, without a password.
        version: changes with the vectors, as far as the source records changes.
        rows: number of vectors.
        dimension: numbers of a vector; None if the source does not record it.
        embedder: name of the model that made the vectors; None if the source does not record it.
        has_columns: whether the vectors are in a named column or tensor.
    """

    name: str
    version: str = ""
    rows: int
    dimension: int | None = None
    embedder: str | None = None
    has_columns: bool = True

    @abstractmethod
    def batches(self, batch_size: int, start: int = 0) -> Iterator[VectorBatch]:
        """Yields the rows from `start` on, at most `batch_size` at a time, always in the same order.

        Raises:
            ValueError: the rows hold no vectors, or vectors of different sizes.
            OSError: the source cannot be read.
        """

    def key(self, row: int) -> object:
        """The key of a row."""
        return next(self.batches(1, row)).keys[0]

    def take(self, rows: np.ndarray) -> np.ndarray:
        """The vectors `(len(rows), D)` float32 of ascending row numbers; by default rows before these are read too."""
        return pick_rows((batch.vectors for batch in self.batches(1024)), rows).astype(np.float32, copy=False)
