"""Nearest sentences in a corpus: an index over its embeddings, exact or small enough for millions.

    hf-meanmax-search index runs/books/model books.txt --output books.index --index-type ivfpq
    hf-meanmax-search query books.index "the old man sat by the fire"

The table is that of Zhang, Wu, Li and Zhang, table 4. An index keeps the sentences beside the vectors; it is searched
by the model that it was made with.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from hf_meanmax.extras import require
from hf_meanmax.files import replacing_folder

from .compression import PCA, Compression
from .embedding_files import COMPRESSION, MANIFEST, count_rows, read_embeddings, read_manifest, read_rows
from .encode import (
    EncodeSettings,
    embed_texts,
    limit_length,
    model_fingerprints,
    unit_rows,
)

INDEX_MANIFEST = "index.json"
INDEX_FORMAT_VERSION = 2
INDEX_FILES = (
    INDEX_MANIFEST,
    "vectors.faiss",
    "pca.safetensors",
    "zero_rows.npy",
    COMPRESSION,
    "texts.bin",
    "text_offsets.npy",
)
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
# The index types, by how they begin, that have a setting.
_SETTINGS_OF = {
    "nlist": "ivf", "nprobe": "ivf", "pq_bytes": "ivfpq", "links": "hnsw", "ef_construction": "hnsw",
    "ef_search": "hnsw",
}  # fmt: skip
_HNSW = {"links": 32, "ef_construction": 100, "ef_search": 128}
RECALL_AT = (1, 10)
RESCORE = 4


@dataclass(frozen=True)
class IndexSettings:
    """How an index is made.

    Args:
        index_type: one of `exact`, `int8`, `hnsw`, `hnsw-int8`, `ivf-int8`, `ivfpq` (see `INDEX_TYPES`).
        metric: `"cosine"` or `"l2"`.
        truncate_dim: keep only the first so many numbers of each vector.
        pca: keep so many principal components of each vector (truncated and, for cosine, of unit length).
        nlist: clusters of an `ivf` type; by default `4 * sqrt(rows)`.
        nprobe: clusters that a query searches; by default a 32nd of them, at least 8.
        pq_bytes: bytes of a vector in `ivfpq`, a divisor of its dimension; by default one for every 4 numbers.
        links: neighbours of a vector in an `hnsw` type, twice as many on the lowest level; by default 32.
        ef_construction: breadth of the search for neighbours while an `hnsw` is built; by default 100.
        ef_search: breadth of an `hnsw` search; by default 128.
        fit_rows: rows that clusters, quantisers and PCA are fitted on; by default what they need.
        seed: of everything that is drawn. An `hnsw` is the same again only if it is built by one thread.

    Raises:
        ValueError: a value that is not allowed, or a setting of another index type.
    """

    index_type: str = "exact"
    metric: str = "cosine"
    truncate_dim: int | None = None
    pca: int | None = None
    nlist: int | None = None
    nprobe: int | None = None
    pq_bytes: int | None = None
    links: int | None = None
    ef_construction: int | None = None
    ef_search: int | None = None
    fit_rows: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (("index_type", tuple(INDEX_TYPES)), ("metric", METRICS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(allowed)}.")
        for field in fields(self)[2:-1]:
            value = getattr(self, field.name)
            if value is not None and value < 1:
                raise ValueError(f"{field.name} is {value}; it must be 1 or more.")
        for name, kind in _SETTINGS_OF.items():
            if getattr(self, name) is not None and not self.index_type.startswith(kind):
                kinds = ", ".join(known for known in INDEX_TYPES if known.startswith(kind))
                raise ValueError(f"{name} is a setting of {kinds}, not of index_type {self.index_type!r}.")
        if self.index_type.startswith("hnsw"):
            for name, value in _HNSW.items():
                object.__setattr__(self, name, getattr(self, name) or value)


@dataclass(frozen=True)
class IndexPlan:
    """The sizes that settings give for a number of vectors.

    Attributes:
        index_type: the type that is built: `exact` instead of an `ivf` type where there are too few rows.
        rows, dimension: the vectors that are given.
        stored_dimension: numbers of a vector after truncation and PCA.
        nlist, nprobe, pq_bytes: 0 where the type has none.
        fit_rows: rows that are drawn to fit something, or 0.
        index_bytes: of the index, in its file and in memory.
        build_bytes: most memory that building takes, beside the model and the programs themselves.
        note: what is not as it was asked for.
    """

    index_type: str
    rows: int
    dimension: int
    stored_dimension: int
    nlist: int
    nprobe: int
    pq_bytes: int
    fit_rows: int
    index_bytes: int
    build_bytes: int
    note: str = ""

    def describe(self) -> str:
        """One line for the user, with the sizes in bytes."""
        details = [f"{self.index_bytes / self.rows:,.0f} bytes a vector"]
        if self.nlist:
            details.append(f"{self.nlist:,} clusters, {self.nprobe:,} of them searched")
        return (
            f"{self.index_type} index of {self.rows:,} vectors of {self.stored_dimension:,} numbers: "
            f"{format_size(self.index_bytes)} ({'; '.join(details)}), about {format_size(self.build_bytes)} while it "
            "is built."
        )


def estimate_index_bytes(
    rows: int,
    dimension: int,
    index_type: str = "exact",
    *,
    nlist: int | None = None,
    pq_bytes: int | None = None,
    links: int = _HNSW["links"],
) -> int:
    """Bytes of an index, in its file and in memory; the sentences are not counted, they stay on the disk.

    Args:
        rows: number of vectors.
        dimension: numbers of a vector, after truncation and PCA.
        index_type: see [`IndexSettings`].
        nlist, pq_bytes, links: as in [`IndexSettings`], with the same defaults.

    Raises:
        ValueError: an unknown type, or a dimension that has no fitting divisor for `ivfpq`.
    """
    if index_type not in INDEX_TYPES:
        raise ValueError(f"index_type is {index_type!r}; choose one of {', '.join(INDEX_TYPES)}.")
    code = dimension if "int8" in index_type else 4 * dimension
    if index_type == "ivfpq":
        code = pq_bytes or _choose_pq_bytes(dimension)
    size = rows * code + 1024
    if "int8" in index_type:
        size += 8 * dimension  # the ranges
    if index_type.startswith("hnsw"):
        # Two int32 links each on the lowest level, one in `links` vectors on the next, and so on; level and offset.
        size += int(rows * (4 * (2 * links + links / max(1, links - 1)) + 12))
    if index_type.startswith("ivf"):
        size += rows * 8 + (nlist or _choose_nlist(rows)) * (4 * dimension + 8)
    if index_type == "ivfpq":
        size += 256 * dimension * 4
    return size


def plan_index(rows: int, dimension: int, settings: IndexSettings, recall_queries: int = 0) -> IndexPlan:
    """Chooses what the settings leave open.

    With fewer than 9,984 rows, what a product quantiser is fitted on, an `ivf` type becomes `exact`: that is as fast,
    and says so.

    Raises:
        ValueError: no rows, or settings that do not fit the vectors.
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
    if kind.startswith("ivf") and rows < MIN_IVF_ROWS:
        note = f"{kind} needs {MIN_IVF_ROWS:,} rows to be fitted on, there are {rows:,}: the index is exact."
        kind = "exact"
    nlist = nprobe = pq_bytes = fit_rows = 0
    if kind.startswith("ivf"):
        nlist = settings.nlist or _choose_nlist(rows)
        if nlist > rows:
            raise ValueError(f"nlist is {nlist}, there are {rows:,} rows; ask for fewer clusters.")
        nprobe = min(nlist, settings.nprobe or max(8, nlist // 32))
        fit_rows = max((ROWS_A_CENTROID + 1) * nlist, 16384)
    elif "int8" in kind:
        fit_rows = 32768
    if kind == "ivfpq":
        pq_bytes = settings.pq_bytes or _choose_pq_bytes(stored)
        if stored % pq_bytes:
            near = [number for number in range(1, stored + 1) if stored % number == 0]
            raise ValueError(
                f"pq_bytes is {pq_bytes}, no divisor of {stored}; choose one of {', '.join(map(str, near))}."
            )
    if settings.pca is not None:
        fit_rows = max(fit_rows, 16384, settings.pca)
    if fit_rows:
        fit_rows = min(rows, settings.fit_rows or fit_rows)
        least = max(nlist, 256 if kind == "ivfpq" else 1, settings.pca or 1)
        if fit_rows < least:
            raise ValueError(f"fit_rows is {fit_rows:,}; {least:,} rows are needed to fit this index.")
    index_bytes = estimate_index_bytes(
        rows, stored, kind, nlist=nlist or None, pq_bytes=pq_bytes or None, links=settings.links or _HNSW["links"]
    )
    table = nlist * pq_bytes * 256 * 4
    adding = index_bytes + (table if table <= 2 << 30 else 0) + 6 * BATCH_BYTES + 4 * recall_queries * dimension * 4
    fitting = 3 * fit_rows * 4 * dimension
    return IndexPlan(
        kind, rows, dimension, stored, nlist, nprobe, pq_bytes, fit_rows, index_bytes, max(adding, fitting), note
    )


def _choose_nlist(rows: int) -> int:
    return max(1, min(round(4 * math.sqrt(rows)), rows // ROWS_A_CENTROID))


def _choose_pq_bytes(dimension: int) -> int:
    chosen = max(number for number in range(1, max(1, dimension // 4) + 1) if dimension % number == 0)
    if 16 * chosen < dimension:
        raise ValueError(
            f"A product quantiser splits {dimension} numbers evenly; at most {chosen} parts are possible, too few. "
            f"Use --truncate-dim or --pca with a multiple of 4."
        )
    return chosen


class TextStore:
    """The sentences of an index, read from the disk one at a time.

    Raises:
        ValueError: its files do not fit each other.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        path = Path(folder) / "texts.bin"
        self._offsets: np.ndarray = np.load(Path(folder) / "text_offsets.npy", mmap_mode="r", allow_pickle=False)
        size = path.stat().st_size
        if self._offsets.ndim != 1 or len(self._offsets) < 1 or int(self._offsets[-1]) != size:
            raise ValueError(f"{path}: {size:,} bytes, text_offsets.npy beside it expects another number.")
        self._bytes: np.ndarray = np.memmap(path, np.uint8, "r") if size else np.zeros(0, np.uint8)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> str:
        if not 0 <= row < len(self):
            raise IndexError(f"Row {row:,} is asked for; there are {len(self):,}.")
        return bytes(self._bytes[self._offsets[row] : self._offsets[row + 1]]).decode("utf-8")

    @staticmethod
    def write(folder: Path, lines: Iterable[str]) -> int:
        """Writes lines, in constant memory but for 8 bytes a line; gives their number."""
        offsets = array("q", [0])
        with open(folder / "texts.bin", "wb") as file:
            for line in lines:
                offsets.append(offsets[-1] + file.write(line.encode("utf-8", "replace")))
        np.save(folder / "text_offsets.npy", np.frombuffer(offsets, np.int64))
        return len(offsets) - 1


@dataclass(frozen=True)
class Neighbor:
    """A sentence that was found.

    Attributes:
        row: its row in the index, from 0.
        score: its cosine to the query, or its distance where the metric is L2.
        text: the sentence, or None where the index has none.
    """

    row: int
    score: float
    text: str | None


class SentenceIndex:
    """An index in a folder of [`build_index`]; the vectors are mapped, so that only what is searched is read.

    Args:
        folder: the folder.
        nprobe, ef_search: of an `ivf` and of an `hnsw` index, instead of those that it was built with: greater finds
            more, and takes longer.

    Attributes:
        manifest: what [`build_index`] gave.
        texts: the sentences, or None.

    Raises:
        FileNotFoundError: no such folder, or a file of it is missing.
        ValueError: the folder is no index, or is damaged, or has no such setting.
    """

    def __init__(self, folder: str | os.PathLike[str], nprobe: int | None = None, ef_search: int | None = None):
        self.folder = Path(folder)
        self.manifest = _read_index_manifest(self.folder)
        self.encoding = EncodeSettings(**self.manifest["encoding"])
        self._settings = IndexSettings(**self.manifest["settings"])
        self._encoding_pca = self._pca = None
        if self.encoding.pca is not None:
            self._encoding_pca = Compression.load(self.folder / COMPRESSION).pca
        if self._settings.pca is not None:
            self._pca = Compression.load(self.folder / "pca.safetensors").pca
        self.texts = TextStore(self.folder) if (self.folder / "texts.bin").is_file() else None
        faiss = require("faiss")
        path = self.folder / "vectors.faiss"
        try:
            self._index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise ValueError(f"{path} is damaged: faiss cannot read it ({str(error).splitlines()[-1]}).") from error
        expected = (self.manifest["rows"], self.manifest["stored_dimension"])
        if (self._index.ntotal, self._index.d) != expected:
            raise ValueError(
                f"{path} holds {self._index.ntotal:,} vectors of {self._index.d}, its {INDEX_MANIFEST} says "
                f"{expected[0]:,} of {expected[1]}."
            )
        kind = self.manifest["index_type"]
        for name, given in (("nprobe", nprobe), ("ef_search", ef_search)):
            if given is not None and not kind.startswith(_SETTINGS_OF[name]):
                raise ValueError(
                    f"{name} is a setting of an {_SETTINGS_OF[name]} index; {self.folder} is of type {kind}."
                )
        _set_search_effort(self._index, nprobe or self.manifest["nprobe"], ef_search or self._settings.ef_search)
        zero_rows = self.folder / "zero_rows.npy"
        without = np.load(zero_rows, allow_pickle=False) if zero_rows.is_file() else ()
        self._parameters = _search_parameters(faiss, self._index, without)

    def __len__(self) -> int:
        return self.manifest["rows"]

    @property
    def dimension(self) -> int:
        """Numbers of a vector that [`search`] takes."""
        return self.manifest["dimension"]

    def check_model(self, model: Any) -> None:
        """Checks that a SentenceTransformer is the one that the index was made with, and sets its length limit.

        Raises:
            ValueError: it is another, or the index knows no model.
        """
        made_by = self.manifest["model"]
        if not made_by:
            raise ValueError(f"{self.folder} was made from vectors alone; search it with vectors.")
        limit_length(model, self.encoding.max_length)
        here = model_fingerprints(model)
        if here["weights"] != made_by["weights"]:
            raise ValueError(
                f"{self.folder} was made with another model ({made_by['name']!r}, or its weights have changed since); "
                "vectors of different models cannot be compared."
            )
        if here["pipeline"] != made_by["pipeline"]:
            print(
                f"{self.folder} was made with the same weights, but another tokenizer, prompt, pooling or version of "
                "sentence-transformers; the vectors may differ.",
                file=sys.stderr,
            )

    def embed(self, model: Any, texts: Sequence[str], batch_size: int = 64) -> np.ndarray:
        """Vectors of texts for [`search`], `(N, dimension)` float32, by a model that [`check_model`] has passed."""
        return embed_texts(model, list(texts), self.encoding, self._encoding_pca, batch_size)

    def search(self, vectors: np.ndarray, k: int = 5) -> tuple[np.ndarray, np.ndarray]:
        """The nearest rows of vectors `(N, dimension)`.

        Returns:
            Scores `(N, k)` float32, the nearest first (cosines, or distances where the metric is L2; approximate where
            the index is), and rows `(N, k)` int64. A row of -1 means that fewer were found. A vector of zeros has no
            cosine: as a query it finds nothing, in the index it is not found.

        Raises:
            ValueError: vectors of another dimension, or not finite.
        """
        vectors = np.asarray(vectors, dtype=np.float32)
        if vectors.ndim != 2 or vectors.shape[1] != self.dimension:
            raise ValueError(
                f"This index was made of vectors of {self.dimension} numbers; got an array {vectors.shape}."
            )
        if not np.isfinite(vectors).all():
            raise ValueError("The vectors of the queries hold NaN or infinite values.")
        k = min(k, len(self))
        prepared = _prepare(vectors, self._settings, self._pca)
        distances, rows = self._index.search(prepared, k, params=self._parameters)
        if self._settings.metric == "cosine":
            rows[_is_zero(vectors, self._settings)] = -1
            return np.where(rows < 0, 0, np.clip(1 - distances / 2, -1, 1)), rows
        return np.sqrt(np.maximum(distances, 0)), rows

    def nearest(
        self,
        vectors: np.ndarray,
        k: int = 5,
        *,
        queries: Sequence[str] | None = None,
        skip_identical: bool = False,
        model: Any = None,
        rescore: int = RESCORE,
        batch_size: int = 64,
    ) -> list[list[Neighbor]]:
        """The nearest sentences of each query.

        Args:
            vectors: `(N, dimension)`, of [`embed`].
            k: sentences of a query.
            queries: their texts; needed for the next two.
            skip_identical: leave out sentences that are the query itself or that are listed already.
            model: with it, and where the index holds compressed vectors, the best `rescore * k` sentences are encoded
                anew and ranked by their full vectors, so that the scores are those of an exact search.
            rescore: see above; 0 leaves the scores of the index.
            batch_size: texts of one forward pass.
        """
        if queries is not None and len(queries) != len(vectors):
            raise ValueError(f"{len(queries)} queries with {len(vectors)} vectors; they must be as many.")
        needs_texts = skip_identical or model is not None
        if needs_texts and (queries is None or self.texts is None):
            raise ValueError(
                "Identical sentences are known, and scores made exact, by the texts of queries and index; they are "
                f"missing {'in the index' if self.texts is None else 'for the queries'}."
            )
        is_rescored = model is not None and rescore > 0 and self.manifest["is_lossy"]
        wanted = k * (rescore if is_rescored else 1)
        found = self._candidates(vectors, wanted, queries if skip_identical else None)
        if is_rescored and any(found):
            # Vectors before they were compressed.
            full = EncodeSettings(max_length=self.encoding.max_length, normalize=self.encoding.normalize)
            anchors = embed_texts(model, list(queries or ()), full, None, batch_size)
            others = embed_texts(
                model, [neighbor.text or "" for row in found for neighbor in row], full, None, batch_size
            )
            start = 0
            for number, row in enumerate(found):
                scores = self._exact_scores(anchors[number], others[start : start + len(row)])
                start += len(row)
                order = np.argsort(-scores if self._settings.metric == "cosine" else scores, kind="stable")
                found[number] = [Neighbor(row[i].row, float(scores[i]), row[i].text) for i in order]
        return [row[:k] for row in found]

    def _exact_scores(self, anchor: np.ndarray, others: np.ndarray) -> np.ndarray:
        if self._settings.metric == "cosine":
            return unit_rows(others) @ unit_rows(anchor[None])[0]
        return np.linalg.norm(others - anchor, axis=1)

    def _candidates(self, vectors: np.ndarray, wanted: int, skip: Sequence[str] | None) -> list[list[Neighbor]]:
        found: list[list[Neighbor]] = [[] for _ in vectors]
        missing, asked = list(range(len(vectors))), wanted + (0 if skip is None else 8)
        while missing:
            asked = min(asked, len(self))
            scores, rows = self.search(vectors[missing], asked)
            for number, row_scores, row_numbers in zip(missing, scores, rows, strict=True):
                seen = set() if skip is None else {skip[number].strip()}
                found[number] = []
                for score, row in zip(row_scores.tolist(), row_numbers.tolist(), strict=True):
                    if row < 0 or len(found[number]) == wanted:
                        break
                    text = None if self.texts is None else self.texts[row]
                    if skip is not None and text is not None:
                        if text in seen:
                            continue
                        seen.add(text)
                    found[number].append(Neighbor(row, score, text))
            # Many copies of one sentence: look further.
            is_short = skip is not None and asked < min(len(self), 4096)
            missing = [number for number in missing if is_short and len(found[number]) < wanted]
            asked *= 8
        return found


def build_index(
    sources: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    settings: IndexSettings | None = None,
    *,
    lines: Iterable[str] | None = None,
    model: dict[str, str] | None = None,
    recall_queries: int = 1000,
    max_memory: int | None = None,
    show_progress: bool = True,
) -> dict[str, Any]:
    """Builds an index of embeddings, streamed from their files; the folder is there whole or not at all.

    Args:
        sources: one folder of `encode`, or .npy, .safetensors and .parquet files.
        output: the folder of the index; an older index there is replaced.
        settings: see [`IndexSettings`].
        lines: the sentences, one a row; without them rows are found, no sentences.
        model: `name`, `weights` and `pipeline` of the model that made the vectors; known for a folder of `encode`.
        recall_queries: rows that are drawn to measure the recall of an index that does not give what an exact search
            on the given vectors gives.
        max_memory: refuse to start where building is estimated to take more bytes.
        show_progress: show the plan and progress bars.

    Returns:
        The manifest: the settings and the [`IndexPlan`], `model`, `encoding`, `files` (their bytes), and `recall`:
        `recall@1` and `recall@10`, the mean share of the k nearest rows of a query, itself excluded, among the k that
        the index gives (a row as near as the k-th nearest counts), and `rescored_recall@10`, the same for the best 10
        of the first 40 by their full vectors.

    Raises:
        FileExistsError: `output` exists and is no index.
        ValueError: settings that do not fit the vectors, too little memory, or other lines than rows.
        ImportError: faiss is not installed.
    """
    faiss = require("faiss")
    settings = settings or IndexSettings()
    output = Path(output)
    check_index_output(output)
    paths = [Path(source) for source in sources]
    encoding, folder = EncodeSettings(), None
    if any(path.is_dir() for path in paths):
        if len(paths) > 1:
            raise ValueError("An index is made of one folder of encode, or of files; got several sources.")
        folder = paths[0]
        encoded = read_manifest(folder)
        encoding, model = EncodeSettings(**encoded["settings"]), model or encoded["model"]
    rows, dimension = count_rows(paths)
    plan = plan_index(rows, dimension, settings, recall_queries)
    check_memory(plan, max_memory, show_progress)

    with replacing_folder(output, INDEX_FILES) as partial:
        if lines is not None:
            count = TextStore.write(partial, lines)
            if count != rows:
                raise ValueError(f"{count:,} sentences for {rows:,} vectors; there must be one a vector.")
        vectors = _Vectors(paths, settings, rows, show_progress)
        index, pca = _fit(faiss, plan, settings, vectors)
        # An index that gives what an exact search gives has no recall to measure.
        is_reduced = plan.index_type != "exact" or plan.stored_dimension < dimension or settings.pca is not None
        queries = _RecallQueries(faiss, vectors, min(recall_queries, rows), settings.seed) if is_reduced else None
        _add(faiss, index, plan, settings, vectors, pca, queries)
        _set_search_effort(index, plan.nprobe, settings.ef_search)
        if len(vectors.zero_rows):
            np.save(partial / "zero_rows.npy", vectors.zero_rows)
        recall = None
        if queries is not None and queries.rows.size:
            recall = queries.measure(index, pca, _search_parameters(faiss, index, vectors.zero_rows))
        faiss.write_index(index, str(partial / "vectors.faiss"))
        del index
        compression: dict[str, Any] = {}
        if pca is not None:
            Compression(pca).save(partial / "pca.safetensors")
            compression["explained_variance_ratio"] = round(pca.explained_variance_ratio, 6)
        if folder is not None and encoding.pca is not None:
            shutil.copyfile(folder / COMPRESSION, partial / COMPRESSION)
            compression["encoding_pca"] = encoded["compression"]["pca"]
        manifest = {
            "format_version": INDEX_FORMAT_VERSION,
            "settings": asdict(settings),
            **asdict(plan),
            "model": model,
            "encoding": asdict(encoding),
            "compression": compression,
            "is_lossy": is_reduced or encoding.dtype == "int8" or bool(encoding.pca or encoding.truncate_dim),
            "recall": recall,
            "files": {path.name: path.stat().st_size for path in sorted(partial.iterdir())},
        }
        (partial / INDEX_MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return manifest


def check_index_output(output: Path) -> None:
    """Checks that an index may be written to a folder.

    Raises:
        FileExistsError: there is something else.
    """
    is_empty = output.is_dir() and not any(output.iterdir())
    if output.exists() and not is_empty and not (output / INDEX_MANIFEST).is_file():
        raise FileExistsError(f"{output} exists and is no index; name another folder.")


def check_memory(plan: IndexPlan, max_memory: int | None, show_progress: bool = True) -> None:
    """Tells the plan, and checks that it fits.

    Raises:
        ValueError: building is estimated to take more than `max_memory` bytes.
    """
    if show_progress:
        print(" ".join(filter(None, (plan.note, plan.describe()))), file=sys.stderr)
    if max_memory is not None and plan.build_bytes > max_memory:
        raise ValueError(
            f"{plan.describe()} That is more than the {format_size(max_memory)} of --max_memory; use a smaller "
            "--index_type (int8, ivfpq), --truncate_dim, --pca or --fit_rows."
        )


class _Vectors:
    """The given vectors, truncated and, for cosine, of unit length."""

    def __init__(self, sources: Sequence[Path], settings: IndexSettings, rows: int, show_progress: bool):
        self.sources, self.settings, self.rows, self.show_progress = sources, settings, rows, show_progress
        # Rows without a direction, known when all batches were read.
        self.zero_rows = np.zeros(0, np.int64)

    def full(self, rows: np.ndarray) -> np.ndarray:
        """Rows by their numbers, before truncation."""
        vectors = read_rows(self.sources, rows)
        return unit_rows(vectors) if self.settings.metric == "cosine" else vectors

    def draw(self, count: int, seed: Sequence[int]) -> np.ndarray:
        """Sorted numbers of rows drawn without replacement."""
        return np.sort(np.random.default_rng(seed).choice(self.rows, count, replace=False))

    def batches(self, name: str, dimension: int) -> Iterator[np.ndarray]:
        size, zeros = max(1, BATCH_BYTES // (4 * dimension)), [np.zeros(0, np.int64)]
        with tqdm(total=self.rows, desc=name, unit="row", unit_scale=True, disable=not self.show_progress) as bar:
            for batch in read_embeddings(self.sources, size, dequantize=True):
                if not np.isfinite(batch).all():
                    row = bar.n + int(np.argmin(np.isfinite(batch).all(axis=1))) + 1
                    raise ValueError(f"The embedding of line {row:,} is not finite; it cannot be found.")
                if self.settings.metric == "cosine":
                    zeros.append(bar.n + np.flatnonzero(_is_zero(batch, self.settings)))
                yield batch.astype(np.float32, copy=False)
                bar.update(len(batch))
        self.zero_rows = np.concatenate(zeros)


def _is_zero(vectors: np.ndarray, settings: IndexSettings) -> np.ndarray:
    """Which of given vectors have no direction as the index holds them, `(N,)`."""
    return np.logical_not(vectors[:, : settings.truncate_dim].any(axis=1))


def _prepare(vectors: np.ndarray, settings: IndexSettings, pca: PCA | None) -> np.ndarray:
    """Given vectors as the index holds them: their squared distance is `2 - 2 cosine` where that is the metric."""
    vectors = vectors[:, : settings.truncate_dim]
    if settings.metric == "cosine":
        vectors = unit_rows(vectors)
    if pca is not None:
        vectors = pca.apply(vectors)
    return np.ascontiguousarray(vectors, dtype=np.float32)


def _fit(faiss: Any, plan: IndexPlan, settings: IndexSettings, vectors: _Vectors) -> tuple[Any, PCA | None]:
    """An empty index that is ready for vectors, and the PCA before it."""
    recipe = {
        "exact": "Flat",
        "int8": "SQ8",
        "hnsw": f"HNSW{settings.links},Flat",
        "hnsw-int8": f"HNSW{settings.links},SQ8",
        "ivf-int8": f"IVF{plan.nlist},SQ8",
        # np: without the polysemous training that nothing here reads.
        "ivfpq": f"IVF{plan.nlist},PQ{plan.pq_bytes}x8np",
    }[plan.index_type]
    index = faiss.index_factory(plan.stored_dimension, recipe, faiss.METRIC_L2)
    if plan.index_type.startswith("hnsw"):
        index.hnsw.efConstruction = settings.ef_construction
    if plan.nlist:
        index.cp.seed = settings.seed + 1
    if plan.pq_bytes:
        index.pq.cp.seed = settings.seed + 1
        # A quarter of faiss's default: 64 rows a centroid fit as well, and there may be hundreds of quantisers.
        index.pq.cp.max_points_per_centroid = 64
    pca = None
    if plan.fit_rows:
        if vectors.show_progress:
            print(f"Fitting on {plan.fit_rows:,} rows.", file=sys.stderr)
        sample = read_rows(vectors.sources, vectors.draw(plan.fit_rows, (settings.seed, 0)))
        if not np.isfinite(sample).all():
            raise ValueError("Some vectors are not finite; nothing can be fitted to them.")
        sample = _prepare(sample, settings, None)
        if settings.pca is not None:
            pca = PCA.fit(sample, settings.pca)
            sample = pca.apply(sample)
            if vectors.show_progress:
                kept = f"{pca.explained_variance_ratio:.1%}"
                print(f"{settings.pca} components keep {kept} of the variance.", file=sys.stderr)
        index.train(sample)
    return index, pca


def _add(
    faiss: Any,
    index: Any,
    plan: IndexPlan,
    settings: IndexSettings,
    vectors: _Vectors,
    pca: PCA | None,
    queries: _RecallQueries | None,
) -> None:
    """Adds all vectors. Memory is reserved first: growing by doubling would take twice as much."""
    if not plan.nlist:
        storage = faiss.downcast_index(index.storage) if plan.index_type.startswith("hnsw") else index
        storage.codes.resize(plan.rows * storage.code_size)
        storage.codes.resize(0)
        for batch in vectors.batches("index", plan.dimension):
            index.add(_prepare(batch, settings, pca))
            if queries is not None:
                queries.compare(batch)
        return
    assigned, first = np.empty(plan.rows, np.int64), 0
    for batch in vectors.batches("assign", plan.dimension):
        _, lists = index.quantizer.search(_prepare(batch, settings, pca), 1)
        assigned[first : first + len(batch)] = lists[:, 0]
        first += len(batch)
        if queries is not None:
            queries.compare(batch)
    for number, size in enumerate(np.bincount(assigned, minlength=plan.nlist).tolist()):
        index.invlists.resize(number, size)
        index.invlists.resize(number, 0)
    first = 0
    for batch in vectors.batches("index", plan.dimension):
        rows, lists = _prepare(batch, settings, pca), assigned[first : first + len(batch)]
        index.add_core(len(rows), faiss.swig_ptr(rows), None, faiss.swig_ptr(lists))
        first += len(rows)


def _search_parameters(faiss: Any, index: Any, without: Sequence[int] | np.ndarray) -> Any:
    """What a search is told so that it finds none of some rows; None where there are none."""
    if not len(without):
        return None
    found = faiss.IDSelectorNot(faiss.IDSelectorBatch(np.asarray(without, np.int64)))
    if hasattr(index, "nprobe"):
        return faiss.SearchParametersIVF(sel=found, nprobe=index.nprobe)
    if hasattr(index, "hnsw"):
        return faiss.SearchParametersHNSW(sel=found, efSearch=index.hnsw.efSearch)
    return faiss.SearchParameters(sel=found)


def _set_search_effort(index: Any, nprobe: int, ef_search: int | None) -> None:
    if hasattr(index, "nprobe"):
        index.nprobe = nprobe
    if hasattr(index, "hnsw"):
        index.hnsw.efSearch = ef_search


class _RecallQueries:
    """Rows drawn as queries, and their exact neighbours among the given vectors, gathered batch by batch."""

    def __init__(self, faiss: Any, vectors: _Vectors, count: int, seed: int):
        self._faiss, self._vectors = faiss, vectors
        self.rows = vectors.draw(count if vectors.rows > 1 else 0, (seed, 1))
        self._queries = vectors.full(self.rows)
        if vectors.settings.metric == "cosine":
            # A vector of zeros has no neighbour, and is none.
            has_direction = ~_is_zero(self._queries, vectors.settings)
            self.rows, self._queries = self.rows[has_direction], self._queries[has_direction]
        # One more, for the query itself.
        self._k = min(max(RECALL_AT), vectors.rows - 1) + 1
        self._distances = np.full((len(self.rows), self._k), np.inf, np.float32)
        self._found = np.full((len(self.rows), self._k), -1, np.int64)
        self._seen = 0

    def compare(self, batch: np.ndarray) -> None:
        size, kept = len(batch), np.arange(len(batch))
        if self._vectors.settings.metric == "cosine":
            kept = kept[~_is_zero(batch, self._vectors.settings)]
            batch = unit_rows(batch[kept])
        if len(self.rows) and len(kept):
            count = min(self._k, len(kept))
            distances, found = self._faiss.knn(self._queries, np.ascontiguousarray(batch), count)
            distances = np.concatenate([self._distances, distances], axis=1)
            found = np.concatenate([self._found, kept[found] + self._seen], axis=1)
            order = np.argsort(distances, axis=1, kind="stable")[:, : self._k]
            self._distances = np.take_along_axis(distances, order, axis=1)
            self._found = np.take_along_axis(found, order, axis=1)
        self._seen += size

    def measure(self, index: Any, pca: PCA | None, parameters: Any) -> dict[str, float]:
        """Recall of a filled index that is searched with such parameters."""
        most = self._k - 1
        hits: dict[str, list[float]] = {}
        for start in range(0, len(self.rows), 100):
            part = slice(start, start + 100)
            rows, queries = self.rows[part], self._queries[part]
            # As the index takes them: scaling a unit vector again changes nothing.
            _, found = index.search(
                _prepare(queries, self._vectors.settings, pca),
                min(RESCORE * most + 1, index.ntotal),
                params=parameters,
            )
            numbers, inverse = np.unique(found, return_inverse=True)
            others = self._vectors.full(np.maximum(numbers, 0))
            for number, row in enumerate(rows):
                places = inverse.reshape(found.shape)[number]
                places = places[(found[number] >= 0) & (found[number] != row)][: RESCORE * most]
                distances = np.square(others[places] - queries[number]).sum(axis=1)
                exact = self._distances[start + number][self._found[start + number] != row]
                for k in RECALL_AT:
                    if k <= min(most, np.isfinite(exact).sum()):
                        # Distances in float32 by two ways.
                        bound = exact[k - 1] + 1e-5 * (exact[k - 1] + np.square(queries[number]).sum())
                        hits.setdefault(f"recall@{k}", []).append((distances[:k] <= bound).sum() / k)
                        if k == max(RECALL_AT):
                            best = np.sort(distances)[:k]
                            hits.setdefault(f"rescored_recall@{k}", []).append((best <= bound).sum() / k)
        return {"queries": len(self.rows), **{name: round(float(np.mean(all_)), 4) for name, all_ in hits.items()}}


def _read_index_manifest(folder: Path) -> dict[str, Any]:
    path = folder / INDEX_MANIFEST
    if not path.is_file():
        partial = folder.with_name(f".{folder.name}.partial")
        hint = " Its making was interrupted: give the command again." if partial.is_dir() else ""
        if folder.is_dir() and (folder / MANIFEST).is_file():
            hint = f" It is a folder of embeddings: index it with --embeddings {folder}."
        raise FileNotFoundError(f"{folder} is no index: it has no {INDEX_MANIFEST}.{hint}")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format_version"] != INDEX_FORMAT_VERSION:
            raise ValueError(f"format {manifest['format_version']}, expected {INDEX_FORMAT_VERSION}")
        files = dict(manifest["files"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged or of another version ({error}).") from None
    for name, size in files.items():
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder / name} is missing: the index is not whole; build it again.")
        found = (folder / name).stat().st_size
        if found != size:
            raise ValueError(f"{folder / name} is damaged: {found:,} bytes, expected {size:,}; build the index again.")
    return manifest


def format_size(number: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} bytes"
