"""The vectors in a LanceDB table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute  # type: ignore[import-untyped]

from hf_meanmax.extras import require
from hf_meanmax.inference.embedding_files import choose_column, column_vectors

from .base import SourceOptions, VectorBatch, VectorSource

if TYPE_CHECKING:
    from lancedb.table import Table

LANCEDB = "lancedb:"


class LanceDBSource(VectorSource):
    """A table of a LanceDB folder, in the order of its key column or else of the table. The version at opening is read,
    whatever is written meanwhile.

    Args:
        name: `lancedb:folder/table`, or `lancedb:folder` if the options name the table.
        options: the table's columns.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: there is no such table or column, or a row has no key or vector.
        ImportError: lancedb is not installed.
    """

    def __init__(self, name: str, options: SourceOptions) -> None:
        place = name.removeprefix(LANCEDB).rstrip("/")
        folder, _, table_name = (place, "", options.table) if options.table else place.rpartition("/")
        table_name = (table_name or "").removesuffix(".lance")
        self.name = f"{LANCEDB}{folder}/{table_name}"
        if not table_name or not folder or folder.startswith("db:"):
            raise ValueError(f"{name} names no table of a folder. Give lancedb:folder/table.")
        # connect() would create the folder.
        if "://" not in folder and not Path(folder).is_dir():
            raise FileNotFoundError(f"No such folder: {folder!r}.")
        lancedb = require("lancedb", "stores")
        with self._naming_table():
            self._table: Table = lancedb.connect(folder).open_table(table_name)
            version = self._table.version
            self._table.checkout(version)
            schema = self._table.schema
            self._column = choose_column(schema, options.vector_column)
            self._key = options.key_column
            self.version, self.embedder = str(version), _embedder(schema, self._column)
            kind = schema.field(self._column).type
            if not pa.types.is_floating(kind.value_type):
                raise ValueError(f"column {self._column!r} holds {kind}, expected vectors of floating-point numbers")
            self.dimension = kind.list_size if pa.types.is_fixed_size_list(kind) else None
            missing = self._table.count_rows(f"`{self._column}` IS NULL")
            if missing:
                raise ValueError(f"column {self._column!r} has {missing:,} missing rows")
            self._row_ids, self._keys = self._ordered_rows(schema)
            self.rows = len(self._row_ids)

    def batches(self, batch_size: int, start: int = 0) -> Iterator[VectorBatch]:
        for first in range(start, self.rows, batch_size):
            rows = np.arange(first, min(first + batch_size, self.rows))
            keys = rows.tolist() if self._keys is None else self._keys[first : rows[-1] + 1].to_pylist()
            yield VectorBatch(keys, self._vectors(rows))

    def take(self, rows: np.ndarray) -> np.ndarray:
        parts = [self._vectors(part) for part in np.array_split(rows, max(1, len(rows) // 1024))]
        return np.concatenate(parts).astype(np.float32, copy=False)

    def _vectors(self, rows: np.ndarray) -> np.ndarray:
        wanted = self._row_ids[rows]
        with self._naming_table():
            found = self._table.take_row_ids(wanted.tolist()).select([self._column]).with_row_id().to_arrow()
            # The rows come in the order of the table.
            vectors = column_vectors(found[self._column].combine_chunks(), self._column)
        places = found["_rowid"].to_numpy()
        order = np.argsort(places)
        return np.asarray(vectors[order[np.searchsorted(places, wanted, sorter=order)]])

    def _ordered_rows(self, schema: pa.Schema) -> tuple[np.ndarray, pa.Array | None]:
        """Row ids and keys, in the order of the keys; without a key column, row ids in the table's order and None."""
        if self._key is not None and self._key not in schema.names:
            raise ValueError(f"no column {self._key!r}; name one of {', '.join(schema.names)}")
        columns = [self._column if self._key is None else self._key]
        # Without a key column the vectors are read too, but only the row ids are kept.
        batches = self._table.search().select(columns).with_row_id(True).to_batches()
        parts = [(batch.column("_rowid"), None if self._key is None else batch.column(self._key)) for batch in batches]
        ids = np.concatenate([np.zeros(0, np.uint64), *(part.to_numpy() for part, _ in parts)])
        if self._key is None:
            return ids, None
        keys = pa.chunked_array([part for _, part in parts], type=schema.field(self._key).type).combine_chunks()
        if pa.types.is_dictionary(keys.type):
            keys = keys.dictionary_decode()
        if keys.null_count:
            raise ValueError(f"key column {self._key!r} has {keys.null_count:,} missing rows")
        try:
            order = pa.compute.sort_indices(keys).to_numpy()
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid, TypeError):
            raise ValueError(f"key column {self._key!r} holds {keys.type}, which has no order") from None
        keys = keys.take(pa.array(order))
        if pa.compute.count_distinct(keys).as_py() != len(keys):
            raise ValueError(f"key column {self._key!r} has a value twice; name one whose values are unique")
        return ids[order], keys

    @contextmanager
    def _naming_table(self) -> Iterator[None]:
        """Raises errors as ValueErrors that name the table."""
        try:
            yield
        except (ValueError, RuntimeError, KeyError) as error:
            raise ValueError(f"{self.name}: no vectors can be read from it ({error}).") from error


def _embedder(schema: pa.Schema, column: str) -> str | None:
    """The model name of the embedding function in a table's metadata for a column; None if there is none."""
    try:
        functions = json.loads((schema.metadata or {}).get(b"embedding_functions", b"[]"))
        names = [function["model"].get("name") for function in functions if function["vector_column"] == column]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return next((name for name in names if isinstance(name, str)), None)
