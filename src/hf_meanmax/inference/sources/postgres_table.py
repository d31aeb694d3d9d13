"""The vectors in a PostgreSQL table with pgvector."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_meanmax.extras import require
from hf_meanmax.inference.embedding_files import choose_name

from .base import SourceOptions, VectorBatch, VectorSource

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.sql import Composable, Composed

POSTGRES = ("postgresql://", "postgres://")
_TYPES = ("vector", "halfvec")
_WHOLE_NUMBERS = ("int2", "int4", "int8")
# Least number of rows per query.
_PAGE = 1024
_CONNECT_SECONDS = "10"

_TABLE = """
SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname = %(table)s AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
AND CASE WHEN %(schema)s::text IS NULL THEN pg_catalog.pg_table_is_visible(c.oid) ELSE n.nspname = %(schema)s END
"""
_COLUMNS = """
SELECT a.attname, t.typname, a.atttypmod, pg_catalog.format_type(a.atttypid, a.atttypmod)
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
# Columns with a unique index and a NOT NULL constraint, the primary key first.
_UNIQUE = """
SELECT a.attname, i.indisprimary FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indnkeyatts = 1 AND i.indpred IS NULL AND a.attnotnull
ORDER BY i.indisprimary DESC, a.attname
"""


class PostgresSource(VectorSource):
    """A table or view of a PostgreSQL database, in the order of its key column.

    Each page of rows is a query of its own (`WHERE key > last ORDER BY key LIMIT n`): no transaction stays open while a
    model works, and a row written meanwhile is read if its key comes after those already read.

    Args:
        url: a libpq URL, `postgresql://user@host/database`; a password is safer in PGPASSWORD or ~/.pgpass, since the
            list of processes shows the URL.
        options: the table and its columns.

    Raises:
        ConnectionError: the server cannot be reached or refuses the login.
        ValueError: an invalid URL, no such table or column, a row without a vector, or a duplicate key.
        ImportError: psycopg or pgvector is not installed.
    """

    def __init__(self, url: str, options: SourceOptions) -> None:
        self._psycopg, self._sql = require("psycopg", "stores"), require("psycopg.sql", "stores")
        require("pgvector.psycopg", "stores")
        self._parameters, place = _read_url(self._psycopg, url)
        self.name = place
        if not options.table:
            raise ValueError(f"{place}: name the table (`table`).")
        self.name = f"{place} table {options.table}"
        with self._connected() as connection:
            schema, _, table = options.table.rpartition(".")
            row = connection.execute(_TABLE, {"table": table, "schema": schema or None}).fetchone()
            if row is None:
                raise ValueError(
                    f"{place} has no table {options.table!r}, or none that this user sees (SCHEMA.TABLE; names with a "
                    "dot in them cannot be given: make a view)."
                )
            oid = row[0]
            self._table = self._sql.Identifier(*options.table.split(".")[-2:] if schema else [table])
            found = connection.execute(_COLUMNS, (oid,)).fetchall()
            columns = {name: (kind, size) for name, kind, size, _ in found}
            vectors = self._choose_vectors(columns, options.vector_column)
            self.dimension = columns[vectors][1] if columns[vectors][1] > 0 else None
            unique = connection.execute(_UNIQUE, (oid,)).fetchall()
            key = self._choose_key(columns, unique, options.key_column)
            self._column, self._key = self._sql.Identifier(vectors), self._sql.Identifier(key)
            self._key_type = self._sql.SQL(next(full for name, _, _, full in found if name == key))
            self._has_numbers = columns[key][0] in _WHOLE_NUMBERS
            self.rows = self._count(connection, vectors, key, is_unique=key in [name for name, _ in unique])

    def batches(self, batch_size: int, start: int = 0) -> Iterator[VectorBatch]:
        page = -(-_PAGE // batch_size) * batch_size
        with self._connected() as connection:
            rows = self._page(connection, page, offset=start)
            while rows:
                for first in range(0, len(rows), batch_size):
                    yield self._batch(rows[first : first + batch_size])
                rows = self._page(connection, page, after=rows[-1][0]) if len(rows) == page else []

    def _page(
        self, connection: Connection, limit: int, offset: int = 0, after: str | None = None
    ) -> list[tuple[str, Any]]:
        """Keys, as text, and vectors of the next `limit` rows, after a key or an offset."""
        # Values are literals: with parameters, a % in a column's name would be read as a placeholder.
        literal = self._sql.Literal
        is_later = self._sql.SQL("")
        if after is not None:
            is_later = self._query(
                "WHERE t.{key} > CAST({after} AS {key_type})", after=literal(after), key_type=self._key_type
            )
        # Without `t.`, ORDER BY would sort by the selected text.
        query = self._query(
            "SELECT t.{key}::text, t.{vectors} FROM {table} AS t {is_later} ORDER BY t.{key} "
            "LIMIT {limit} OFFSET {offset}",
            is_later=is_later,
            limit=literal(limit),
            offset=literal(offset),
        )
        # Keys stay text, which PostgreSQL casts back exactly; some types have no exact Python value.
        rows: list[tuple[str, Any]] = connection.execute(query).fetchall()
        return rows

    def _batch(self, rows: list[tuple[str, Any]]) -> VectorBatch:
        keys: list[Any] = [int(key) if self._has_numbers else key for key, _ in rows]
        vectors = []
        for key, (_, vector) in zip(keys, rows, strict=True):
            if vector is None:
                raise ValueError(f"{self.name}: the row of key {key!r} has no vector.")
            vectors.append(vector.to_numpy())
            if len(vectors[-1]) != len(vectors[0]):
                sizes = f"{len(vectors[0])} and {len(vectors[-1])} (key {key!r}) numbers"
                raise ValueError(f"{self.name}: expected vectors of one size, found {sizes}.")
        return VectorBatch(keys, np.stack(vectors).astype(np.float32))

    def _choose_vectors(self, columns: dict[str, tuple[str, int]], name: str | None) -> str:
        if name is not None and name in columns and columns[name][0] not in _TYPES:
            raise ValueError(
                f"{self.name}: column {name!r} is of type {columns[name][0]}, expected {' or '.join(_TYPES)}."
            )
        try:
            return choose_name(name, [name for name, (kind, _) in columns.items() if kind in _TYPES], "vector column")
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}.") from None

    def _choose_key(self, columns: dict[str, tuple[str, int]], unique: list[tuple[str, bool]], name: str | None) -> str:
        if name is None:
            name = next((column for column, is_primary in unique if is_primary), None)
        if name is None:
            raise ValueError(
                f"{self.name} has no primary key of one column, and rows without an order. Name a column whose values "
                "are unique (`key_column`)."
            )
        if name not in columns:
            raise ValueError(f"{self.name}: no column {name!r}; name one of {', '.join(columns)}.")
        return name

    def _count(self, connection: Connection, vectors: str, key: str, is_unique: bool) -> int:
        """Counts the rows; each must have a vector and a unique key."""
        keys = "count(*)" if is_unique else "count(DISTINCT {key})"
        query = self._query(f"SELECT count(*), count({{vectors}}), {keys} FROM {{table}}")
        counts = connection.execute(query).fetchone()
        rows, filled, distinct = counts or (0, 0, 0)
        if filled < rows:
            raise ValueError(
                f"{self.name}: {rows - filled:,} of {rows:,} rows of column {vectors!r} are NULL. Name a view without "
                "them."
            )
        if distinct < rows:
            raise ValueError(
                f"{self.name}: the {rows:,} rows have {distinct:,} different values of {key!r}; name a key column "
                "whose values are unique and not NULL."
            )
        return int(rows)

    def _query(self, text: str, **parts: Composable) -> Composed:
        names = {"table": self._table, "key": self._key, "vectors": self._column, **parts}
        query: Composed = self._sql.SQL(text).format(**names)
        return query

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """Connects, with pgvector's types registered; errors repeat the server's message, without the password."""
        try:
            with closing(self._psycopg.connect(**self._parameters, autocommit=True)) as connection:
                if "_table" in vars(self):
                    require("pgvector.psycopg", "stores").register_vector(connection)
                yield connection
        except self._psycopg.Error as error:
            kind = ConnectionError if isinstance(error, self._psycopg.OperationalError) else ValueError
            password = str(self._parameters.get("password") or "")
            message = str(error).replace(password, "***") if password else str(error)
            raise kind(f"{self.name}: {message}") from None


def _read_url(psycopg: ModuleType, url: str) -> tuple[dict[str, str], str]:
    """The parameters of a connection, and its URL without user and password.

    Raises:
        ValueError: libpq cannot read the URL, or a password in it is not escaped. The message does not repeat the URL.
    """
    try:
        parameters: dict[str, str] = dict(psycopg.conninfo.conninfo_to_dict(url))
    except psycopg.Error:
        parameters = {"port": "none"}
    host, port, database = (str(parameters.get(name) or "") for name in ("host", "port", "dbname"))
    # An unescaped : or @ in a password makes libpq take a part of it for a host, port or database.
    if not re.fullmatch(r"[\d,]*", port) or "@" in host + database:
        raise ValueError(
            "The postgresql:// URL cannot be read. Give postgresql://user@host:port/database; in a password, write "
            "@ : / ? # % as %40 %3A %2F %3F %23 %25, or leave it to PGPASSWORD or ~/.pgpass."
        )
    if "PGCONNECT_TIMEOUT" not in os.environ:
        parameters.setdefault("connect_timeout", _CONNECT_SECONDS)
    return parameters, f"postgresql://{host}{':' if port else ''}{port}/{database}"
