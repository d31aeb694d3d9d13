"""Nearest sentences in a corpus: a faiss index over its vectors, and the sentences beside it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hf_meanmax.cosines import unit_rows
from hf_meanmax.extras import require
from hf_meanmax.files import read_whole

from .compression import load_pca
from .embedding_files import COMPRESSION
from .encode import EncodeSettings, embed_texts
from .encoder import limited_length
from .fingerprints import model_fingerprints
from .index import (
    INDEX_MANIFEST,
    INDEX_VECTORS,
    RESCORE,
    IndexManifest,
    Rows,
    Vectors,
    read_faiss,
)
from .text_store import TEXT_FILES, TextStore

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# The factories of indexes that keep all numbers of the vectors as they are.
_WHOLE_VECTORS = re.compile(r"(IVF\d+(_HNSW\d+)?,|HNSW\d+,|IDMap2?,)*(Flat|HNSW\d+)")
# At most so many exact copies of a query are skipped.
_MOST_COPIES = 1000
# Queries, so that their neighbours' vectors stay small.
_RESCORED_AT_ONCE = 256


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
    """An index in a folder of `build_index`; the vectors are mapped, so that only what is searched is read.

    Args:
        folder: the folder.
        nprobe, ef_search: of an `ivf` and of an `hnsw` index, instead of those that it was built with: greater finds
            more, and takes longer.

    Attributes:
        manifest: what `build_index` gave.
        encoding: how its vectors were encoded.
        texts: the sentences, or None.
        dimension: numbers of a vector that [`search`][] takes.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: the folder is no index, or is damaged or of another version, or has no such setting.
    """

    def __init__(self, folder: str | os.PathLike[str], nprobe: int | None = None, ef_search: int | None = None):
        self.folder = Path(folder)
        read_whole(self.folder, self._open)
        faiss = require("faiss")
        for name, parameter, value in (("nprobe", "nprobe", nprobe), ("ef_search", "efSearch", ef_search)):
            try:
                if value is not None:
                    faiss.ParameterSpace().set_index_parameter(self._index, parameter, value)
            except RuntimeError:
                kind = self.manifest.factory
                raise ValueError(f"{name} is no setting of {folder}, an index of type {kind}.") from None

    def _open(self) -> None:
        folder = self.folder
        self.manifest = manifest = IndexManifest.read(folder)
        self.settings, self.encoded, self.encoding = manifest.settings, manifest.encoded, manifest.encoding
        self.dimension, self.rows = manifest.dimension, manifest.rows
        self._pca = None if self.encoding.pca is None else load_pca(folder / COMPRESSION)
        self.texts = TextStore(folder) if (folder / TEXT_FILES[0]).is_file() else None
        path = folder / INDEX_VECTORS
        self._index = read_faiss(path)
        if (self._index.d, self._index.ntotal > self.rows) != (self.dimension, False):
            raise ValueError(f"{path} and {INDEX_MANIFEST} beside it do not fit; build the index again.")

    def __len__(self) -> int:
        return self.rows

    @property
    def is_lossy(self) -> bool:
        """Whether it holds less than the model's vectors."""
        is_whole = self.encoding.dtype != "int8" and not self.encoding.pca and not self.encoding.truncate_dim
        return not is_whole or not _WHOLE_VECTORS.fullmatch(self.manifest.factory)

    def check_model(self, model: SentenceTransformer) -> None:
        """Checks that a SentenceTransformer is the one that the index was made with.

        Raises:
            ValueError: it is another, or the index knows no model.
        """
        if self.encoded is None:
            raise ValueError(f"{self.folder} was made from vectors alone; search it with vectors.")
        with limited_length(model, self.encoding.max_length):
            made_by, here = self.encoded["model"], model_fingerprints(model)
        if here["weights"] != made_by["weights"]:
            raise ValueError(
                f"{self.folder} was made with another model ({made_by['name']!r}, or its weights have changed since); "
                "vectors of different models cannot be compared."
            )
        if here["pipeline"] != made_by["pipeline"]:
            print(
                f"{self.folder} was made with the same weights, but another tokenizer, prompt, pooling or version of "
                "sentence-transformers, or one of the two by an ONNX export; the vectors may differ.",
                file=sys.stderr,
            )

    def embed(self, model: SentenceTransformer, texts: Sequence[str], batch_size: int = 64) -> Vectors:
        """Vectors of texts for [`search`][], `(N, dimension)` float32, by a model that [`check_model`][] has passed."""
        texts = [texts] if isinstance(texts, str) else list(texts)
        if not texts:
            return np.empty((0, self.dimension), dtype=np.float32)
        return embed_texts(model, texts, self.encoding, self._pca, batch_size)

    def search(self, vectors: Vectors, k: int = 5) -> tuple[Vectors, Rows]:
        """The nearest rows of vectors `(N, dimension)`.

        Returns:
            Scores `(N, k)` float32, the nearest first (cosines, or distances where the metric is L2; approximate where
            the index is), and rows `(N, k)` int64. A row of -1 means that fewer were found. A vector of zeros has no
            cosine: as a query it finds nothing, in the index it is not found.

        Raises:
            ValueError: vectors of another dimension, or not finite; or `k` is less than 1.
        """
        if k < 1:
            raise ValueError(f"k is {k}; it must be 1 or more.")
        vectors = np.asarray(vectors, dtype=np.float32)
        if vectors.ndim != 2 or vectors.shape[1] != self.dimension:
            raise ValueError(
                f"This index was made of vectors of {self.dimension} numbers; got an array {vectors.shape}."
            )
        if not np.isfinite(vectors).all():
            raise ValueError("The vectors of the queries hold NaN or infinite values.")
        distances, rows = self._index.search(self.settings.prepared(vectors), min(k, len(self)))
        if self.settings.metric == "l2":
            return np.sqrt(np.maximum(distances, 0)), rows
        rows[~self.settings.has_direction(vectors)] = -1
        return np.where(rows < 0, 0, np.clip(1 - distances / 2, -1, 1)), rows

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
            vectors: `(N, dimension)`, of [`embed`][].
            k: sentences of a query.
            queries: their texts; needed for the next two.
            skip_identical: leave out sentences that are the query itself or that are listed already (1,000 copies are
                looked past).
            model: with it, and where the index holds compressed vectors, the best `rescore * k` sentences are encoded
                anew and ranked by their full vectors, so that the scores are those of an exact search.
            rescore: see above; 0 leaves the scores of the index.
            batch_size: texts of one forward pass.
        """
        if queries is not None and len(queries) != len(vectors):
            raise ValueError(f"{len(queries)} queries with {len(vectors)} vectors; they must be as many.")
        if (skip_identical or model is not None) and (queries is None or self.texts is None):
            raise ValueError(
                "`skip_identical` and rescoring compare texts, which are missing "
                f"{'in the index' if self.texts is None else 'for the queries'}."
            )
        is_rescored = model is not None and rescore > 0 and self.is_lossy
        wanted = k * rescore if is_rescored else k
        scores, rows = self.search(vectors, wanted + (_MOST_COPIES if skip_identical else 0))
        found = [
            list(islice(self._neighbors(*one, queries[number].strip() if skip_identical and queries else None), wanted))
            for number, one in enumerate(zip(scores, rows, strict=True))
        ]
        if model is None or queries is None or not is_rescored:
            return found
        blocks = (slice(start, start + _RESCORED_AT_ONCE) for start in range(0, len(queries), _RESCORED_AT_ONCE))
        return [row[:k] for block in blocks for row in self._rescored(model, queries[block], found[block], batch_size)]

    def _neighbors(self, scores: Vectors, rows: Rows, skip: str | None) -> Iterator[Neighbor]:
        seen = {skip}
        for score, row in zip(scores[rows >= 0].tolist(), rows[rows >= 0].tolist(), strict=True):
            text = None if self.texts is None else self.texts[row]
            if skip is None or text not in seen:
                yield Neighbor(row, score, text)
                seen.add(text)

    def _rescored(
        self, model: SentenceTransformer, queries: Sequence[str], found: list[list[Neighbor]], batch_size: int
    ) -> list[list[Neighbor]]:
        # Vectors before they were compressed, of each text once.
        full = EncodeSettings(max_length=self.encoding.max_length, normalize=self.encoding.normalize)
        texts = list(dict.fromkeys([*queries, *(near.text or "" for row in found for near in row)]))
        vectors = embed_texts(model, texts, full, None, batch_size)
        is_cosine = self.settings.metric == "cosine"
        by_text = dict(zip(texts, unit_rows(vectors) if is_cosine else vectors, strict=True))

        def score(query: str, near: Neighbor) -> float:
            one, other = by_text[query], by_text[near.text or ""]
            return float(one @ other if is_cosine else np.linalg.norm(other - one))

        rescored = (
            [replace(near, score=score(query, near)) for near in row] for query, row in zip(queries, found, strict=True)
        )
        return [sorted(row, key=lambda near: near.score, reverse=is_cosine) for row in rescored]
