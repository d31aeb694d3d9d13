"""What every place of vectors has."""

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
    """Which part of a source holds the vectors."""

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
        keys: what the source calls each row.
        vectors: `(B, D)`, floating-point numbers.
    """

    keys: list[Any]
    vectors: np.ndarray


class VectorSource(ABC):
    """Vectors in a fixed order, read in batches.

    Attributes:
        name: what to call it in a sentence; holds no password.
        version: differs if the vectors have changed, as far as the source tells.
        rows: how many vectors there are.
        dimension: numbers of a vector, where the source tells before it is read.
        embedder: what made the vectors, where the source tells.
        has_columns: whether its vectors are one of several columns or tensors that have names.
    """

    name: str
    version: str = ""
    rows: int
    dimension: int | None = None
    embedder: str | None = None
    has_columns: bool = True

    @abstractmethod
    def batches(self, batch_size: int, start: int = 0) -> Iterator[VectorBatch]:
        """The rows from `start` on, at most `batch_size` at a time, always in the same order.

        Raises:
            ValueError: what is read holds no vectors of one size.
            OSError: it cannot be read.
        """

    def key(self, row: int) -> object:
        """What the source calls a row."""
        return next(self.batches(1, row)).keys[0]

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Some vectors `(len(rows), D)` float32, of ascending row numbers; the others are read, but not kept."""
        return pick_rows((batch.vectors for batch in self.batches(1024)), rows).astype(np.float32, copy=False)
