"""How many of the nearest rows an index finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from hf_meanmax.extras import require

Rows = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]
RECALL_AT = (1, 10)
RESCORE = 4


class RecallQueries:
    """Rows drawn as queries, and the distances of their exact neighbours, gathered batch by batch.

    Args:
        rows: their numbers.
        queries: their vectors `(Q, D)`.
        total: rows of the index.
    """

    def __init__(self, rows: Rows, queries: Vectors, total: int):
        self.rows, self.queries = rows, queries
        # One more, for the query itself, which is as near as can be.
        self._distances = np.full((len(rows), min(max(RECALL_AT), total - 1) + 1), np.inf, np.float32)

    def compare(self, batch: Vectors) -> None:
        """Takes the next vectors of the index into account."""
        if len(self.rows) and len(batch):
            width = self._distances.shape[1]
            found, _ = require("faiss").knn(self.queries, np.ascontiguousarray(batch), min(width, len(batch)))
            self._distances = np.sort(np.concatenate([self._distances, found], axis=1), axis=1)[:, :width]

    def measure(
        self, search: Callable[[Vectors, int], tuple[Any, Rows]], read: Callable[[Rows], Vectors]
    ) -> dict[str, float]:
        """Recall of an index: a row as near as the k-th nearest counts as found.

        Args:
            search: the nearest rows of queries, by the index.
            read: vectors of rows, for their exact distances.
        """
        most = self._distances.shape[1] - 1
        hits: dict[str, list[float]] = {}
        _, found = search(self.queries, RESCORE * most + 1)
        for number, row in enumerate(self.rows):
            places = found[number][(found[number] >= 0) & (found[number] != row)][: RESCORE * most]
            distances = np.square(read(places) - self.queries[number]).sum(axis=1)
            exact = self._distances[number, 1:]
            for k in RECALL_AT:
                if k <= np.isfinite(exact).sum():
                    # Distances in float32 by two ways.
                    bound = exact[k - 1] + 1e-5 * (exact[k - 1] + np.square(self.queries[number]).sum())
                    hits.setdefault(f"recall@{k}", []).append((distances[:k] <= bound).sum() / k)
                    if k == max(RECALL_AT):
                        best = np.sort(distances)[:k]
                        hits.setdefault(f"rescored_recall@{k}", []).append((best <= bound).sum() / k)
        return {"queries": len(self.rows), **{name: round(float(np.mean(all_)), 4) for name, all_ in hits.items()}}
