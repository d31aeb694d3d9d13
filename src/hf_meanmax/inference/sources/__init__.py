"""Sources of vectors: one interface to files, faiss indexes, and tables of LanceDB and PostgreSQL."""

from .base import SourceOptions, VectorBatch, VectorSource
from .faiss_index import FaissSource
from .files import FileSource
from .opening import open_sources, sources_named, take_rows

__all__ = [
    "FaissSource",
    "FileSource",
    "SourceOptions",
    "VectorBatch",
    "VectorSource",
    "open_sources",
    "sources_named",
    "take_rows",
]
