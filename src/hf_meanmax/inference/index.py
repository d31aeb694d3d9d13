"""A faiss index of embeddings and their sentences in a folder; building it also measures its recall."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from hf_meanmax.cosines import unit_rows
from hf_meanmax.data.corpus import Corpus
from hf_meanmax.extras import require
from hf_meanmax.fields import check_settings, count, option
from hf_meanmax.files import Json, read_json, replacing_folder, write_json
from hf_meanmax.progress import progress_bar

from .embedding_files import COMPRESSION, count_rows, read_embeddings, read_manifest
from .encode import EncodeSettings
from .text_store import TEXT_FILES, TextStore

if TYPE_CHECKING:
    import faiss

Rows = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]
IndexType = Literal["exact", "int8", "hnsw", "hnsw-int8", "ivf-int8", "ivfpq"]
Metric = Literal["cosine", "l2"]

INDEX_MANIFEST, INDEX_VECTORS = "index.json", "vectors.faiss"
INDEX_FILES = (INDEX_MANIFEST, INDEX_VECTORS, COMPRESSION, *TEXT_FILES)
INDEX_FORMAT_VERSION = 4
RECALL_AT = (1, 10)
RESCORE = 4
# faiss asks for this many training rows per centroid, and a product quantiser has 256 centroids.
_ROWS_A_CENTROID = 39
_MIN_IVF_ROWS = _ROWS_A_CENTROID * 256
_BATCH_BYTES = 1 << 27
# faiss parameters are C ints.
MAX_C_INT = 2**31 - 1
_AGAIN = "build the index again (`search index --overwrite`)."


@dataclass(frozen=True)
class IndexSettings:
    """The settings of an index.

    Raises:
        ValueError: an unknown type or metric, or a number out of its bounds.
    """

    index_type: IndexType = option(
        "exact: float32 vectors; int8: a byte a number; hnsw: a graph; hnsw-int8: a graph of int8 vectors; ivf-int8: "
        "clusters of int8 vectors; ivfpq: clusters of product-quantised vectors",
        "exact",
    )
    metric: Metric = option("similarity by which neighbours are ranked", "cosine")
    factory: str | None = option("string of faiss's index factory in place of the type's own (IVF4096,SQ8)", None)
    nprobe: int | None = count(
        "clusters that a query searches (default: 1/32 of them, at least 8)", None, at_most=MAX_C_INT
    )
    ef_search: int | None = count("breadth of searching an hnsw (default: 128)", None, at_most=MAX_C_INT)
    seed: int = option("seed of the rows and clusters that are drawn", 0, at_least=0, at_most=MAX_C_INT)

    def __post_init__(self) -> None:
        check_settings(self)

    def prepared(self, vectors: Vectors) -> Vectors:
        """Vectors `(N, D)` as input for faiss: for the metric cosine scaled to unit length, so that their squared
        distance is `2 - 2 cosine`."""
        return np.ascontiguousarray(unit_rows(vectors) if self.metric == "cosine" else vectors, dtype=np.float32)

    def has_direction(self, vectors: Vectors) -> npt.NDArray[np.bool_]:
        """Whether each of the vectors `(N, D)` can have neighbours, `(N,)`: for the metric cosine, zeros cannot."""
        return (vectors != 0).any(axis=1) if self.metric == "cosine" else np.ones(len(vectors), dtype=bool)


@dataclass(frozen=True)
class IndexManifest:
    """The description of an index that [`build_index`][] writes beside its vectors.

    Args:
        settings: the settings it was built with.
        factory: its string for faiss's index factory.
        rows: number of sentences, including blank ones and vectors of zeros.
        dimension: size of the vectors.
        encoded: the manifest of the `encode` folder that was indexed; None if files were indexed.
        recall: `recall@1` and `recall@10`, the mean share of a query's k nearest rows, itself excluded, among the k
            that the index returns, and `rescored_recall@10`, the same for the best 10 of the first 40 ranked by their
            original vectors; None if the index is exact. With 10 rows or fewer, only k = 1.
    """

    settings: IndexSettings
    factory: str
    rows: int
    dimension: int
    encoded: Json | None
    recall: Json | None

    def write(self, folder: Path) -> None:
        """Writes the manifest into the folder of an index."""
        write_json(folder / INDEX_MANIFEST, {"format_version": INDEX_FORMAT_VERSION, **asdict(self)}, indent=2)

    @classmethod
    def read(cls, folder: Path) -> IndexManifest:
        """Reads the manifest of the index in a folder.

        Raises:
            FileNotFoundError: the folder holds no index.
            ValueError: the manifest is damaged, or of another version.
        """
        path = folder / INDEX_MANIFEST
        if not folder.exists():
            raise FileNotFoundError(f"No index {str(folder)!r}: there is no such folder.")
        if not path.is_file():
            raise FileNotFoundError(f"{folder} is no index: it has no {INDEX_MANIFEST}; make one with `search index`.")
        try:
            content = read_json(path)
        except ValueError as error:
            raise ValueError(f"{error}; {_AGAIN}") from None
        version = content.pop("format_version", None)
        if version != INDEX_FORMAT_VERSION:
            raise ValueError(f"{folder} has format {version}, expected {INDEX_FORMAT_VERSION}; {_AGAIN}")
        try:
            manifest = cls(**{**content, "settings": IndexSettings(**content["settings"])})
            if not 0 <= int(manifest.rows) < 2**63:
                raise ValueError(f"`rows` is {manifest.rows}")
            if not (isinstance(manifest.factory, str) and isinstance(manifest.dimension, int)):
                raise ValueError(f"`factory` is {manifest.factory!r}, `dimension` {manifest.dimension!r}")
            _ = manifest.encoding
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is damaged ({error}); {_AGAIN}") from None
        return manifest

    @property
    def encoding(self) -> EncodeSettings:
        """The settings its vectors were encoded with; the defaults if they are not known."""
        return EncodeSettings(**(self.encoded["settings"] if self.encoded else {}))


def make_index(rows: int, dimension: int, settings: IndexSettings) -> tuple[str, faiss.Index]:
    """Makes the empty index for a number of vectors of a dimension; also returns its factory string.

    With fewer than 9,984 rows, which a product quantiser needs for training, an `ivf` type becomes `exact`, as fast.

    Raises:
        ValueError: no rows, fewer rows than clusters, a setting that the index does not have, or a factory string that
            faiss does not accept for this dimension.
        ImportError: faiss is not installed.
    """
    if rows < 1:
        raise ValueError("There is nothing to index: no rows.")
    faiss, kind, effort = require("faiss"), settings.index_type, require("faiss").ParameterSpace()
    has_few_rows = settings.factory is None and kind.startswith("ivf") and rows < _MIN_IVF_ROWS
    if has_few_rows:
        kind = "exact"
    factory = settings.factory or _factory(kind, rows, dimension)
    try:
        index = faiss.index_factory(dimension, f"IDMap,{factory}", faiss.METRIC_L2)
    except RuntimeError as error:
        raise ValueError(f"faiss makes no index {factory!r} of {dimension} numbers: {str(error)[-200:]}.") from None
    clusters = _clusters(index)
    if clusters > rows:
        raise ValueError(f"{factory} is fitted on {clusters:,} rows or more; there are {rows:,}.")
    is_graph = not clusters and "HNSW" in factory
    for name, is_read in (("nprobe", bool(clusters) or has_few_rows), ("ef_search", is_graph)):
        if getattr(settings, name) is not None and not is_read:
            raise ValueError(
                f"{name} is {getattr(settings, name)}, which is no setting of an index {factory}. Leave it out."
            )
    if clusters:
        faiss.try_extract_index_ivf(index).cp.seed = settings.seed
        effort.set_index_parameter(index, "nprobe", min(clusters, settings.nprobe or max(8, clusters // 32)))
    elif is_graph:
        effort.set_index_parameter(index, "efConstruction", 100)
        effort.set_index_parameter(index, "efSearch", settings.ef_search or 128)
    return factory, index


def _clusters(index: faiss.Index) -> int:
    return int(getattr(require("faiss").try_extract_index_ivf(index), "nlist", 0))


def _factory(kind: str, rows: int, dimension: int) -> str:
    clusters = max(1, min(round(4 * math.sqrt(rows)), rows // _ROWS_A_CENTROID))
    if kind == "ivfpq":
        parts = max(number for number in range(1, max(1, dimension // 4) + 1) if dimension % number == 0)
        if 16 * parts < dimension:
            raise ValueError(
                f"A product quantiser splits {dimension} numbers evenly; at most {parts} parts are possible, too few. "
                "Use --truncate_dim or --pca with a multiple of 4."
            )
        # np: no polysemous training, which is not used here.
        return f"IVF{clusters},PQ{parts}x8np"
    names = {"exact": "Flat", "int8": "SQ8", "hnsw": "HNSW32,Flat", "hnsw-int8": "HNSW32,SQ8"}
    return names.get(kind, f"IVF{clusters},SQ8")


def check_index_output(output: Path, corpus: Corpus | None = None) -> None:
    """Checks that an index may be written to a folder.

    Args:
        output: the folder.
        corpus: the corpus of the new index; if given, an index of another corpus is not replaced.

    Raises:
        FileExistsError: the folder holds something else.
        ValueError: faiss cannot write to a path of this name.
    """
    try:
        os.fspath(output).encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{os.fspath(output)!r} is no UTF-8, which faiss needs; name another folder.") from None
    is_empty = output.is_dir() and not any(output.iterdir())
    if not output.exists() or is_empty:
        return
    if not (output / INDEX_MANIFEST).is_file():
        raise FileExistsError(f"{output} exists and is no index; name another folder.")
    if corpus is None:
        return
    encoded = IndexManifest.read(output).encoded
    if encoded is None or encoded.get("input") != corpus.fingerprint():
        raise FileExistsError(
            f"{output} is an index of another text, or the text has changed since. Name another folder, or give "
            "--overwrite."
        )


def read_faiss(path: str | os.PathLike[str], extra: str = "evaluation") -> faiss.Index:
    """Opens the index in a faiss file, memory-mapped.

    Args:
        path: the file.
        extra: the extra of this package that the error names if faiss is missing.

    Raises:
        ValueError: the file is damaged.
        ImportError: faiss is not installed.
    """
    package = require("faiss", extra)
    try:
        index: faiss.Index = package.read_index(os.fspath(path), package.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise ValueError(f"{path} is damaged: faiss cannot read it ({str(error).splitlines()[-1]}).") from error
    return index


def build_index(
    sources: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    settings: IndexSettings | None = None,
    *,
    lines: Iterable[str] | None = None,
    recall_queries: int = 1000,
    show_progress: bool = True,
) -> IndexManifest:
    """Builds an index of embeddings, streamed from their files; the folder appears whole or not at all.

    Args:
        sources: one folder of `encode`, or .npy, .safetensors and .parquet files.
        output: the folder of the index; an older index there is replaced.
        settings: see [`IndexSettings`][].
        lines: the sentences, one per row; without them a search finds only row numbers. Blank ones are not indexed.
        recall_queries: number of rows drawn to measure the recall of an index that is not exact.
        show_progress: show progress bars.

    Returns:
        The manifest of the index.

    Raises:
        FileExistsError: `output` exists and is no index.
        ValueError: settings that do not fit the vectors, vectors that are not finite, or not one line per row.
        ImportError: faiss is not installed.
    """
    settings = settings or IndexSettings()
    output, paths = Path(output), [Path(source) for source in sources]
    check_index_output(output)
    if len(paths) > 1 and any(path.is_dir() for path in paths):
        raise ValueError("An index is made of one folder of encode, or of files; got several sources.")
    encoded = read_manifest(paths[0]) if paths[0].is_dir() else None
    vectors = _VectorFiles(paths, *count_rows(paths), settings, show_progress)
    factory, index = make_index(vectors.rows, vectors.dimension, settings)
    if settings.factory is None and settings.index_type.startswith("ivf") and factory == "Flat":
        needed = f"{settings.index_type} needs {_MIN_IVF_ROWS:,} rows to be fitted on, there are {vectors.rows:,}"
        print(f"{needed}: the index is exact.", file=sys.stderr)
    with replacing_folder(output, INDEX_FILES) as partial:
        if lines is not None:
            if (sentences := TextStore.write(partial, lines)) != vectors.rows:
                raise ValueError(f"{sentences:,} sentences for {vectors.rows:,} vectors; there must be one a vector.")
            vectors = replace(vectors, texts=TextStore(partial))
        _fill(index, vectors)
        recall = None
        if factory != "Flat" and recall_queries and index.ntotal > 1:
            recall = _measure_recall(index, vectors, recall_queries)
        require("faiss").write_index(index, str(partial / INDEX_VECTORS))
        manifest = IndexManifest(settings, factory, vectors.rows, vectors.dimension, encoded, recall)
        if manifest.encoding.pca is not None:
            shutil.copyfile(paths[0] / COMPRESSION, partial / COMPRESSION)
        manifest.write(partial)
    return manifest


@dataclass(frozen=True)
class _VectorFiles:
    """The vectors of files as input for faiss, without blank texts and, for the metric cosine, vectors of zeros."""

    paths: Sequence[Path]
    rows: int
    dimension: int
    settings: IndexSettings
    show_progress: bool
    texts: TextStore | None = None

    def batches(self, doing: str) -> Iterator[tuple[Rows, Vectors]]:
        """Yields ascending row numbers and the vectors of each batch."""
        size, first = max(1, _BATCH_BYTES // (4 * self.dimension)), 0
        with progress_bar(total=self.rows, desc=doing, unit="row", disable=not self.show_progress) as bar:
            for read in read_embeddings(self.paths, size, dequantize=True):
                batch = read.astype(np.float32, copy=False)
                finite = np.isfinite(batch).all(axis=1)
                if not finite.all():
                    row = first + int(np.argmin(finite)) + 1
                    raise ValueError(f"The embedding of line {row:,} is not finite; it cannot be found.")
                found = self.settings.has_direction(batch)
                if self.texts is not None:
                    found &= ~self.texts.are_blank(first, len(batch))
                rows = np.flatnonzero(found)
                if len(rows):
                    yield first + rows, self.settings.prepared(batch[rows])
                first += len(batch)
                bar.update(len(batch))

    def draw(self, count: int, *seed: int) -> tuple[Rows, Vectors]:
        """Draws row numbers and vectors without replacement; rows that are not indexed are left out."""
        drawn = np.random.default_rng(seed).choice(self.rows, count, replace=False)
        parts: list[tuple[Rows, Vectors]] = [(np.zeros(0, np.int64), np.zeros((0, self.dimension), np.float32))]
        for rows, batch in self.batches("draw"):
            is_drawn = np.isin(rows, drawn)
            parts.append((rows[is_drawn], batch[is_drawn]))
        return np.concatenate([rows for rows, _ in parts]), np.concatenate([batch for _, batch in parts])


def _fill(index: faiss.Index, vectors: _VectorFiles) -> None:
    if not index.is_trained:
        fit_rows = min(vectors.rows, max((_ROWS_A_CENTROID + 1) * _clusters(index), 32768))
        drawn = vectors.draw(fit_rows, vectors.settings.seed, 0)[1]
        if len(drawn) < max(1, _clusters(index)):
            raise ValueError(
                f"An index of this type is fitted on {max(1, _clusters(index)):,} vectors of texts, or more; of "
                f"{fit_rows:,} that were drawn, {len(drawn):,} are none of zeros or of a blank line. Leave empty texts "
                "out, or make it exact."
            )
        try:
            index.train(drawn)
        except RuntimeError as error:
            raise ValueError(
                f"faiss cannot fit this index on {len(drawn):,} vectors ({str(error)[-200:]}). Give more, or another "
                "index."
            ) from None
    for rows, batch in vectors.batches("index"):
        index.add_with_ids(batch, rows)


def _measure_recall(index: faiss.Index, vectors: _VectorFiles, count: int) -> dict[str, float] | None:
    """Recall of an index for queries drawn from its rows; a row as near as the k-th nearest counts as found. None if no
    drawn row is indexed."""
    faiss, most = require("faiss"), min(max(RECALL_AT), index.ntotal - 1)
    drawn, queries = vectors.draw(min(count, vectors.rows), vectors.settings.seed, 1)
    if not len(drawn):
        return None
    _, found = index.search(queries, RESCORE * most + 1)
    # Move the query itself to the end, and drop it.
    found = np.take_along_axis(found, np.argsort(found == drawn[:, None], axis=1, kind="stable"), axis=1)[:, :-1]
    distances = np.full(found.shape, np.inf, np.float32)
    nearest = faiss.ResultHeap(len(drawn), most + 1)
    for rows, batch in vectors.batches("recall"):
        nearest.add_result(*faiss.knn(queries, batch, min(most + 1, len(batch))))
        query, rank = np.nonzero(np.isin(found, rows))
        places = np.searchsorted(rows, found[query, rank])
        distances[query, rank] = np.square(batch[places] - queries[query]).sum(axis=1)
    nearest.finalize()
    recall: dict[str, float] = {"queries": len(drawn)}
    for k in (k for k in RECALL_AT if k <= most):
        # A tolerance, as distances are computed in float32 in two ways; `nearest.D[:, 0]` is the query itself.
        bound = (nearest.D[:, k] + 1e-5 * (nearest.D[:, k] + np.square(queries).sum(axis=1)))[:, None]
        recall[f"recall@{k}"] = round(float((distances[:, :k] <= bound).mean()), 4)
        best = np.sort(distances, axis=1)[:, :k]
    return {**recall, f"rescored_recall@{k}": round(float((best <= bound).mean()), 4)}
