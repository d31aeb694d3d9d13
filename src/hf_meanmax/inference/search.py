"""Nearest sentences in a corpus: a faiss index over its vectors, and the sentences beside it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hf_meanmax.extras import require
from hf_meanmax.files import Json, replacing_folder
from hf_meanmax.inference.compression import PCA, Compression
from hf_meanmax.inference.embedding_files import (
    COMPRESSION,
    MANIFEST,
    count_rows,
    read_embeddings,
    read_manifest,
    read_rows,
)
from hf_meanmax.inference.encode import EncodeSettings, embed_texts, limit_length, model_fingerprints, unit_rows
from hf_meanmax.progress import progress_bar

from .index_plan import BATCH_BYTES, IndexPlan, IndexSettings, format_size, make_index, plan_index
from .recall import RESCORE, RecallQueries, Rows, Vectors
from .text_store import TEXT_FILES, TextStore

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

INDEX_MANIFEST = "index.json"
INDEX_FORMAT_VERSION = 3
INDEX_FILES = (INDEX_MANIFEST, "vectors.faiss", "zero_rows.npy", "pca.safetensors", COMPRESSION, *TEXT_FILES)


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
        for name, given in (("nprobe", nprobe), ("ef_search", ef_search)):
            if given is not None and not self.manifest[name]:
                raise ValueError(f"{name} is no setting of {self.folder}, an index of type {self.manifest['factory']}.")
        _set_effort(self._index, nprobe or self.manifest["nprobe"], ef_search or self.manifest["ef_search"])
        zero_rows = self.folder / "zero_rows.npy"
        without = np.load(zero_rows, allow_pickle=False) if zero_rows.is_file() else np.zeros(0, np.int64)
        self._parameters = _without(self._index, without)

    def __len__(self) -> int:
        return int(self.manifest["rows"])

    @property
    def dimension(self) -> int:
        """Numbers of a vector that [`search`] takes."""
        return int(self.manifest["dimension"])

    def check_model(self, model: SentenceTransformer) -> None:
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

    def embed(self, model: SentenceTransformer, texts: Sequence[str], batch_size: int = 64) -> Vectors:
        """Vectors of texts for [`search`], `(N, dimension)` float32, by a model that [`check_model`] has passed."""
        return embed_texts(model, list(texts), self.encoding, self._encoding_pca, batch_size)

    def search(self, vectors: Vectors, k: int = 5) -> tuple[Vectors, Rows]:
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
        vectors: Vectors,
        k: int = 5,
        *,
        queries: Sequence[str] | None = None,
        skip_identical: bool = False,
        model: SentenceTransformer | None = None,
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
        if model is not None and is_rescored and any(found):
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

    def _exact_scores(self, anchor: Vectors, others: Vectors) -> Vectors:
        if self._settings.metric == "cosine":
            cosines: Vectors = unit_rows(others) @ unit_rows(anchor[None])[0]
            return cosines
        distances: Vectors = np.linalg.norm(others - anchor, axis=1)
        return distances

    def _candidates(self, vectors: Vectors, wanted: int, skip: Sequence[str] | None) -> list[list[Neighbor]]:
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
) -> Json:
    """Builds an index of embeddings, streamed from their files; the folder is there whole or not at all.

    Args:
        sources: one folder of `encode`, or .npy, .safetensors and .parquet files.
        output: the folder of the index; an older index there is replaced.
        settings: see [`IndexSettings`].
        lines: the sentences, one a row; without them rows are found, no sentences.
        model: `name`, `weights` and `pipeline` of the model that made the vectors; known for a folder of `encode`.
        recall_queries: rows that are drawn to measure the recall of an index that is not exact.
        max_memory: refuse to start where building is estimated to take more bytes.
        show_progress: show the plan and progress bars.

    Returns:
        The manifest: the settings and the [`IndexPlan`], `model`, `encoding`, `files` (their bytes), and `recall`:
        `recall@1` and `recall@10`, the mean share of the k nearest rows of a query, itself excluded, among the k that
        the index gives, and `rescored_recall@10`, the same for the best 10 of the first 40 by their full vectors.

    Raises:
        FileExistsError: `output` exists and is no index.
        ValueError: settings that do not fit the vectors, too little memory, or other lines than rows.
        ImportError: faiss is not installed.
    """
    settings = settings or IndexSettings()
    output, paths = Path(output), [Path(source) for source in sources]
    check_index_output(output)
    encoded = _encoded_folder(paths)
    rows, dimension = count_rows(paths)
    plan = plan_index(rows, dimension, settings)
    check_memory(plan, max_memory, show_progress)
    with replacing_folder(output, INDEX_FILES) as partial:
        if lines is not None and (count := TextStore.write(partial, lines)) != rows:
            raise ValueError(f"{count:,} sentences for {rows:,} vectors; there must be one a vector.")
        vectors = _Vectors(paths, settings, rows, show_progress)
        is_reduced = plan.factory != "Flat" or plan.stored_dimension < dimension or settings.pca is not None
        pca, recall = _fill(partial, plan, vectors, min(recall_queries, rows) if is_reduced else 0)
        encoding, compression = EncodeSettings(), {}
        if encoded is not None:
            encoding, model = EncodeSettings(**encoded["settings"]), model or encoded["model"]
            if encoding.pca is not None:
                shutil.copyfile(paths[0] / COMPRESSION, partial / COMPRESSION)
                compression["encoding_pca"] = encoded["compression"]["pca"]
        if pca is not None:
            compression["explained_variance_ratio"] = round(pca.explained_variance_ratio, 6)
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


def _encoded_folder(paths: Sequence[Path]) -> Json | None:
    """The manifest of `encode`, where the source is a folder of it."""
    if not any(path.is_dir() for path in paths):
        return None
    if len(paths) > 1:
        raise ValueError("An index is made of one folder of encode, or of files; got several sources.")
    return read_manifest(paths[0])


def _fill(
    folder: Path, plan: IndexPlan, vectors: _Vectors, num_queries: int
) -> tuple[PCA | None, dict[str, float] | None]:
    """Writes the filled index; returns the PCA before it, and its recall where that is measured."""
    faiss, settings = require("faiss"), vectors.settings
    index, pca = make_index(plan.factory, plan.stored_dimension), None
    if plan.fit_rows:
        if vectors.show_progress:
            print(f"Fitting on {plan.fit_rows:,} rows.", file=sys.stderr)
        sample = _prepare(vectors.read(vectors.draw(plan.fit_rows, 0)), settings, None)
        if not np.isfinite(sample).all():
            raise ValueError("Some vectors are not finite; nothing can be fitted to them.")
        if settings.pca is not None:
            pca = PCA.fit(sample, settings.pca)
            Compression(pca).save(folder / "pca.safetensors")
        index.train(sample if pca is None else pca.apply(sample))
    drawn = vectors.draw(num_queries if vectors.rows > 1 else 0, 1)
    anchors = vectors.read(drawn)
    # A vector of zeros has no neighbour where the metric is cosine.
    has_direction = ~_is_zero(anchors, settings)
    queries = RecallQueries(drawn[has_direction], vectors.full(anchors[has_direction]), vectors.rows)
    for batch in vectors.batches(plan.dimension):
        index.add(_prepare(batch, settings, pca))
        queries.compare(vectors.full(batch[~_is_zero(batch, settings)]))
    if len(vectors.zero_rows):
        np.save(folder / "zero_rows.npy", vectors.zero_rows)
    _set_effort(index, plan.nprobe, plan.ef_search)
    recall = None
    if len(queries.rows):
        parameters = _without(index, vectors.zero_rows)
        recall = queries.measure(
            lambda given, k: index.search(_prepare(given, settings, pca), min(k, index.ntotal), params=parameters),
            lambda rows: vectors.full(vectors.read(np.sort(rows)))[np.argsort(np.argsort(rows))],
        )
    faiss.write_index(index, str(folder / "vectors.faiss"))
    return pca, recall


def check_index_output(output: Path) -> None:
    """Checks that an index may be written to a folder.

    Raises:
        FileExistsError: there is something else.
    """
    is_empty = output.is_dir() and not any(output.iterdir())
    if output.exists() and not is_empty and not (output / INDEX_MANIFEST).is_file():
        raise FileExistsError(f"{output} exists and is no index; name another folder.")


def check_memory(plan: IndexPlan, max_memory: int | None, show_progress: bool = True) -> None:
    """Prints the plan, and checks that it fits.

    Raises:
        ValueError: building is estimated to take more than `max_memory` bytes.
    """
    if show_progress:
        print(" ".join(filter(None, (plan.note, plan.describe()))), file=sys.stderr)
    if max_memory is not None and plan.build_bytes > max_memory:
        raise ValueError(
            f"{plan.describe()} That is more than the {format_size(max_memory)} of --max_memory; use a smaller "
            "--index_type (int8, ivfpq), --truncate_dim or --pca."
        )


class _Vectors:
    """The given vectors."""

    def __init__(self, sources: Sequence[Path], settings: IndexSettings, rows: int, show_progress: bool):
        self.sources, self.settings, self.rows, self.show_progress = sources, settings, rows, show_progress
        # Rows without a direction, known when all batches were read.
        self.zero_rows: Rows = np.zeros(0, np.int64)

    def read(self, rows: Rows) -> Vectors:
        """Rows by their sorted numbers."""
        return read_rows(self.sources, rows)

    def full(self, vectors: Vectors) -> Vectors:
        """Vectors as they are compared, before truncation."""
        return unit_rows(vectors) if self.settings.metric == "cosine" else vectors

    def draw(self, count: int, stream: int) -> Rows:
        """Sorted numbers of rows drawn without replacement."""
        generator = np.random.default_rng((self.settings.seed, stream))
        return np.sort(generator.choice(self.rows, count, replace=False)).astype(np.int64)

    def batches(self, dimension: int) -> Iterator[Vectors]:
        size, zeros = max(1, BATCH_BYTES // (4 * dimension)), [self.zero_rows]
        with progress_bar(total=self.rows, desc="index", unit="row", disable=not self.show_progress) as bar:
            for batch in read_embeddings(self.sources, size, dequantize=True):
                if not np.isfinite(batch).all():
                    row = bar.n + int(np.argmin(np.isfinite(batch).all(axis=1))) + 1
                    raise ValueError(f"The embedding of line {row:,} is not finite; it cannot be found.")
                zeros.append(bar.n + np.flatnonzero(_is_zero(batch, self.settings)))
                yield batch.astype(np.float32, copy=False)
                bar.update(len(batch))
        self.zero_rows = np.concatenate(zeros)


def _is_zero(vectors: Vectors, settings: IndexSettings) -> npt.NDArray[np.bool_]:
    """Which vectors have no direction as the index holds them, `(N,)`; none where the metric is L2."""
    if settings.metric == "l2":
        return np.zeros(len(vectors), dtype=bool)
    return np.logical_not(vectors[:, : settings.truncate_dim].any(axis=1))


def _prepare(vectors: Vectors, settings: IndexSettings, pca: PCA | None) -> Vectors:
    """Given vectors as the index holds them: their squared distance is `2 - 2 cosine` where that is the metric."""
    vectors = vectors[:, : settings.truncate_dim]
    if settings.metric == "cosine":
        vectors = unit_rows(vectors)
    if pca is not None:
        vectors = pca.apply(vectors)
    return np.ascontiguousarray(vectors, dtype=np.float32)


def _without(index: Any, rows: Rows) -> Any:
    """Search parameters that leave out some rows; None where there are none."""
    if not len(rows):
        return None
    faiss = require("faiss")
    found = faiss.IDSelectorNot(faiss.IDSelectorBatch(np.asarray(rows, np.int64)))
    if hasattr(index, "nprobe"):
        return faiss.SearchParametersIVF(sel=found, nprobe=index.nprobe)
    if hasattr(index, "hnsw"):
        return faiss.SearchParametersHNSW(sel=found, efSearch=index.hnsw.efSearch)
    return faiss.SearchParameters(sel=found)


def _set_effort(index: Any, nprobe: int, ef_search: int) -> None:
    if nprobe:
        index.nprobe = nprobe
    if ef_search:
        index.hnsw.efSearch = ef_search


def _read_index_manifest(folder: Path) -> Json:
    path = folder / INDEX_MANIFEST
    if not path.is_file():
        partial = folder.with_name(f".{folder.name}.partial")
        hint = " Its making was interrupted: rerun the command." if partial.is_dir() else ""
        if folder.is_dir() and (folder / MANIFEST).is_file():
            hint = f" It is a folder of embeddings: index it with --embeddings {folder}."
        raise FileNotFoundError(f"{folder} is no index: it has no {INDEX_MANIFEST}.{hint}")
    try:
        manifest: Json = json.loads(path.read_text(encoding="utf-8"))
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
