"""Which faiss index settings mean for a number of vectors, and how much memory it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hf_meanmax.extras import require

METRICS = ("cosine", "l2")
INDEX_TYPES = {
    "exact": "every vector in float32, every query against all of them",
    "int8": "a byte a number, every query against all of them",
    "hnsw": "float32 in a graph of near neighbours: fast to search, slow to build",
    "hnsw-int8": "a byte a number in a graph of near neighbours",
    "ivf-int8": "a byte a number in clusters, of which the nearest are searched",
    "ivfpq": "a product-quantised code in clusters, of which the nearest are searched",
}
# faiss asks for so many training rows a centroid, and a product quantiser has 256 of them.
ROWS_A_CENTROID = 39
MIN_IVF_ROWS = ROWS_A_CENTROID * 256
BATCH_BYTES = 1 << 27


@dataclass(frozen=True)
class IndexSettings:
    """How an index is made.

    Args:
        index_type: one of `exact`, `int8`, `hnsw`, `hnsw-int8`, `ivf-int8`, `ivfpq` (see `INDEX_TYPES`).
        metric: `"cosine"` or `"l2"`.
        truncate_dim: keep only the first so many numbers of each vector.
        pca: keep so many principal components of each vector (truncated and, for cosine, of unit length).
        factory: a string of faiss's index factory in place of the type's own, for instance `"IVF4096,SQ8"`.
        nprobe: clusters that a query searches; by default a 32nd of them, at least 8.
        ef_search: breadth of a search in an `hnsw`; by default 128.
        seed: of the rows that are drawn. An `hnsw` is the same again only if it is built by one thread.

    Raises:
        ValueError: a value that is not allowed.
    """

    index_type: str = "exact"
    metric: str = "cosine"
    truncate_dim: int | None = None
    pca: int | None = None
    factory: str | None = None
    nprobe: int | None = None
    ef_search: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (("index_type", tuple(INDEX_TYPES)), ("metric", METRICS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(allowed)}.")
        for name in ("truncate_dim", "pca", "nprobe", "ef_search"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be 1 or more.")


@dataclass(frozen=True)
class IndexPlan:
    """The sizes that settings give for a number of vectors.

    Attributes:
        factory: string of faiss's index factory.
        rows, dimension: the vectors that are given.
        stored_dimension: numbers of a vector after truncation and PCA.
        nprobe, ef_search: effort of a search; 0 where the index has none.
        fit_rows: rows that are drawn to fit something, or 0.
        index_bytes: of the index, in its file and in memory; the sentences are not counted, they stay on the disk.
        build_bytes: most memory that building takes, beside the model and the programs themselves.
        note: what is not as it was asked for.
    """

    factory: str
    rows: int
    dimension: int
    stored_dimension: int
    nprobe: int
    ef_search: int
    fit_rows: int
    index_bytes: int
    build_bytes: int
    note: str = ""

    def describe(self) -> str:
        """One line for the user, with the sizes in bytes."""
        return (
            f"{self.factory} index of {self.rows:,} vectors of {self.stored_dimension:,} numbers: "
            f"{format_size(self.index_bytes)} ({self.index_bytes / self.rows:,.0f} bytes a vector), about "
            f"{format_size(self.build_bytes)} while it is built."
        )


def plan_index(rows: int, dimension: int, settings: IndexSettings) -> IndexPlan:
    """Chooses what the settings leave open.

    With fewer than 9,984 rows, what a product quantiser is fitted on, an `ivf` type becomes `exact`: that is as fast,
    and says so.

    Raises:
        ValueError: no rows, or settings that do not fit the vectors.
        ImportError: faiss is not installed.
    """
    if rows < 1:
        raise ValueError("There is nothing to index: no rows.")
    stored, given = dimension, f"the vectors have {dimension} numbers"
    for name, value in (("truncate_dim", settings.truncate_dim), ("pca", settings.pca)):
        if value is not None:
            if value > stored:
                raise ValueError(f"{name} is {value}, {given}.")
            stored, given = value, f"{value} are left of them"
    kind, note = settings.index_type, ""
    if settings.factory is None and kind.startswith("ivf") and rows < MIN_IVF_ROWS:
        note = f"{kind} needs {MIN_IVF_ROWS:,} rows to be fitted on, there are {rows:,}: the index is exact."
        kind = "exact"
    factory = settings.factory or _factory(kind, rows, stored)
    index = make_index(factory, stored)
    nlist = getattr(index, "nlist", 0)
    fit_rows = 0 if index.is_trained else max((ROWS_A_CENTROID + 1) * nlist, 32768)
    if settings.pca is not None:
        fit_rows = max(fit_rows, 16384, settings.pca)
    fit_rows = min(rows, fit_rows)
    if max(nlist, settings.pca or 0) > fit_rows:
        raise ValueError(f"{factory} is fitted on {max(nlist, settings.pca or 0):,} rows or more; there are {rows:,}.")
    index_bytes = 1024 + rows * _vector_bytes(index) + nlist * (4 * stored + 8)
    index_bytes += 1024 * stored if hasattr(index, "pq") else 8 * stored
    # faiss's arrays double when they grow.
    build_bytes = max(2 * index_bytes + 6 * BATCH_BYTES, 12 * fit_rows * dimension)
    nprobe = min(nlist, settings.nprobe or max(8, nlist // 32))
    ef_search = (settings.ef_search or 128) if hasattr(index, "hnsw") else 0
    return IndexPlan(factory, rows, dimension, stored, nprobe, ef_search, fit_rows, index_bytes, build_bytes, note)


def make_index(factory: str, dimension: int) -> Any:
    """An empty faiss index.

    Raises:
        ValueError: faiss does not know the string, or it does not fit the dimension.
    """
    faiss = require("faiss")
    try:
        index = faiss.index_factory(dimension, factory, faiss.METRIC_L2)
    except RuntimeError as error:
        raise ValueError(f"faiss makes no index {factory!r} of {dimension} numbers: {str(error)[-200:]}.") from None
    if hasattr(index, "hnsw"):
        index.hnsw.efConstruction = 100
    return index


def _factory(kind: str, rows: int, dimension: int) -> str:
    nlist = max(1, min(round(4 * math.sqrt(rows)), rows // ROWS_A_CENTROID))
    if kind == "ivfpq":
        parts = max(number for number in range(1, max(1, dimension // 4) + 1) if dimension % number == 0)
        if 16 * parts < dimension:
            raise ValueError(
                f"A product quantiser splits {dimension} numbers evenly; at most {parts} parts are possible, too few. "
                "Use --truncate_dim or --pca with a multiple of 4."
            )
        # np: without the polysemous training that nothing here reads.
        return f"IVF{nlist},PQ{parts}x8np"
    return {
        "exact": "Flat", "int8": "SQ8", "hnsw": "HNSW32,Flat", "hnsw-int8": "HNSW32,SQ8", "ivf-int8": f"IVF{nlist},SQ8",
    }[kind]  # fmt: skip


def _vector_bytes(index: Any) -> int:
    if hasattr(index, "hnsw"):
        links = index.hnsw.nb_neighbors(1)
        # Two int32 links each on the lowest level, one in `links` vectors on the next, and so on; level and offset.
        graph: int = round(4 * (2 * links + links / max(1, links - 1)) + 12)
        size: int = graph + int(require("faiss").downcast_index(index.storage).code_size)
        return size
    return int(index.code_size) + (8 if hasattr(index, "nlist") else 0)


def format_size(number: int) -> str:
    """A number of bytes in kB, MB or GB."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} bytes"
