"""Opens the sources of vectors that a command line names."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hf_meanmax.inference.index import INDEX_MANIFEST, INDEX_VECTORS

from .base import SourceOptions, VectorSource
from .faiss_index import FAISS_SUFFIXES, FaissSource
from .files import FileSource
from .lancedb_table import LANCEDB, LanceDBSource
from .postgres_table import POSTGRES, PostgresSource


def open_sources(names: Sequence[str | os.PathLike[str]], options: SourceOptions | None = None) -> list[VectorSource]:
    """Opens sources by their names, in order.

    Args:
        names: files and folders, also of an index; `index.faiss`; `lancedb:folder/table`;
            `postgresql://user@host/database`.
        options: the table and columns; for files only the vector column.

    Raises:
        FileNotFoundError, ConnectionError: a source does not exist or cannot be reached.
        ValueError: a source has no such table or column, or stores no vectors that can be decoded.
        ImportError: the package that reads a source is not installed.
    """
    options = options or SourceOptions()
    kinds = [_scheme(os.fspath(name)) for name in names]
    for option in ("table", "key_column"):
        if getattr(options, option) and not any(kinds):
            raise ValueError(f"`{option}` is of a database (lancedb:folder/table, postgresql://...). Leave it out.")
    sources = [_open(os.fspath(name), kind, options) for name, kind in zip(names, kinds, strict=True)]
    if options.vector_column and sources and not any(source.has_columns for source in sources):
        raise ValueError(
            f"`vector_column` is {options.vector_column!r}, and {sources_named(sources)} has no columns or tensors "
            "with names. Leave it out."
        )
    return sources


def _scheme(name: str) -> str | None:
    """The prefix of a name that identifies the kind of database; None for files.

    Raises:
        ValueError: an unknown kind. The message does not repeat the name, which may hold a password.
    """
    for scheme in (LANCEDB, *POSTGRES):
        if name.startswith(scheme):
            return scheme
    other = re.match(r"([A-Za-z][\w.+-]+):", name)
    if other is not None and not Path(name).exists():
        raise ValueError(
            f"Vectors are read from files, lancedb:folder/table and postgresql://user@host/database, not {other[1]}:."
        )
    return None


def _open(name: str, scheme: str | None, options: SourceOptions) -> VectorSource:
    if scheme == LANCEDB:
        return LanceDBSource(name, options)
    if scheme is not None:
        return PostgresSource(name, options)
    if (Path(name) / INDEX_MANIFEST).is_file():
        return FaissSource(os.fspath(Path(name) / INDEX_VECTORS))
    if name.endswith(FAISS_SUFFIXES) and not Path(name).is_dir():
        return FaissSource(name)
    return FileSource(name, options.vector_column)


def sources_named(sources: Sequence[VectorSource]) -> str:
    """The names of sources, separated by commas, for messages."""
    return ", ".join(source.name for source in sources)


def take_rows(sources: Sequence[VectorSource], rows: np.ndarray) -> np.ndarray:
    """The vectors `(len(rows), D)` float32 of ascending row numbers, which count through all sources.

    Raises:
        ValueError: the sources hold vectors of different sizes.
        OSError: as [`VectorSource.batches`].
    """
    found, first = [], 0
    for source in sources:
        inside = rows[(rows >= first) & (rows < first + source.rows)] - first
        if len(inside):
            found.append(source.take(inside))
        first += source.rows
    if len({vectors.shape[1] for vectors in found}) > 1:
        raise ValueError(f"{sources_named(sources)}: expected vectors of one size, found several.")
    return np.concatenate(found) if found else np.zeros((0, 0), np.float32)
