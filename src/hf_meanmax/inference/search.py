"""Search for the nearest sentences in a corpus, with a faiss index of its vectors."""

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

# Factory strings of indexes that store the vectors unquantised.
_WHOLE_VECTORS = re.compile(r"(IVF\d+(_HNSW\d+)?,|HNSW\d+,|IDMap2?,)*(Flat|HNSW\d+)")
# Largest number of identical sentences that are skipped per query.
_MOST_COPIES = 1000
# Queries rescored at once, which bounds the memory of their neighbours' vectors.
_RESCORED_AT_ONCE = 256


@dataclass(frozen=True)
class Neighbor:
    """A sentence found by a search.

    Attributes:
        row: its row in the index, from 0.
        score: its cosine to the query, or its distance if the metric is L2.
        text: the sentence, or None if the index has no sentences.
    """

    row: int
    score: float
    text: str | None


class SentenceIndex:
    """An index in a folder of `build_index`; the vectors are memory-mapped, so a search reads only what it needs.

    Args:
        folder: the folder.
        nprobe, ef_search: search effort of an `ivf` and of an `hnsw` index (default: as built); larger values find
            more neighbours and take longer.

    Attributes:
        manifest: the manifest that `build_index` wrote.
        encoding: the settings its vectors were encoded with.
        texts: the sentences, or None.
        dimension: size of the vectors that [`search`][] takes.

    Raises:
        FileNotFoundError: no such folder, or the folder is no index.
        ValueError: the index is damaged or of another version, or has no such setting.
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
        """Whether it holds compressed vectors instead of the model's full ones."""
        is_whole = self.encoding.dtype != "int8" and not self.encoding.pca and not self.encoding.truncate_dim
        return not is_whole or not _WHOLE_VECTORS.fullmatch(self.manifest.factory)

    def check_model(self, model: SentenceTransformer) -> None:
        """Checks that a SentenceTransformer is the one that the index was made with.

        Raises:
            ValueError: it is another model, or the index was made from vectors alone.
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
        """Vectors of texts for [`search`][], `(N, dimension)` float32, by a model that passed [`check_model`][]."""
        texts = [texts] if isinstance(texts, str) else list(texts)
        if not texts:
            return np.empty((0, self.dimension), dtype=np.float32)
        return embed_texts(model, texts, self.encoding, self._pca, batch_size)

    def search(self, vectors: Vectors, k: int = 5) -> tuple[Vectors, Rows]:
        """The nearest rows of vectors `(N, dimension)`.

        Returns:
            Scores `(N, k)` float32, the nearest first (cosines, or distances if the metric is L2; approximate if the
            index is), and rows `(N, k)` int64. A row of -1 means that fewer were found. A vector of zeros has no
            cosine: as a query it finds nothing, and in the index it is never found.

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
            vectors: `(N, dimension)`, from [`embed`][].
            k: number of sentences per query.
            queries: the texts of the queries; needed for `skip_identical` and `model`.
            skip_identical: leave out copies of the query and of sentences listed already (up to 1,000 copies).
            model: if given and the index holds compressed vectors, the best `rescore * k` sentences are encoded again
                and ranked by their full vectors, which gives the scores of an exact search.
            rescore: see `model`; 0 keeps the scores of the index.
            batch_size: texts per forward pass.
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
        # Uncompressed vectors, each text once.
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
