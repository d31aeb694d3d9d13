"""Exact nearest neighbours by L2 distance or by cosine."""

from __future__ import annotations

import numpy as np
import torch

from hf_meanmax.cosines import unit_rows
from hf_meanmax.fields import check_choice

METRICS = ("l2", "cosine")
_BLOCK = 512
_CANDIDATES = 8
# Number of neighbours of a text that are compared between two encoders.
_COMPARED = 10


def nearest(
    queries: np.ndarray,
    pool: np.ndarray,
    metric: str = "l2",
    excluded: np.ndarray | None = None,
    device: torch.device | str | None = None,
) -> np.ndarray:
    """The row of the pool that is nearest to each query.

    Candidates come from products in float32; the choice among them is made by their distances in float64. Among a few
    equally near rows the first wins, among many any. A vector of zeros has the cosine 0 with every other.

    Args:
        queries: `(n, D)`.
        pool: `(m, D)`.
        metric: `"l2"` or `"cosine"`.
        excluded: `(n,)` the row to exclude for each query, or None.
        device: torch device of the products (default: the CPU).

    Returns:
        `(n,)` int64.

    Raises:
        ValueError: an unknown metric, shapes that do not fit, or a pool with no row left.
    """
    check_choice("metric", metric, METRICS)
    if queries.ndim != 2 or pool.ndim != 2 or queries.shape[1] != pool.shape[1]:
        raise ValueError(f"Queries of shape {queries.shape} and a pool of shape {pool.shape} do not fit together.")
    if len(pool) <= (excluded is not None):
        raise ValueError(f"A pool of {len(pool)} rows has no neighbour to find.")
    if metric == "cosine":
        queries, pool = (unit_rows(rows.astype(np.float64)).astype(np.float32) for rows in (queries, pool))
        center = np.zeros(pool.shape[1], dtype=np.float32)
    else:
        # Distances do not depend on the origin, the precision of the products does.
        center = pool.mean(axis=0, dtype=np.float64).astype(np.float32)
    rows = torch.from_numpy(pool - center).to(device or "cpu", torch.float32)
    # The squares of unit rows are equal, and a row of zeros must not count as nearer.
    squares = rows.square().sum(dim=1) if metric == "l2" else rows.new_zeros(len(rows))
    result = np.empty(len(queries), dtype=np.int64)
    for start in range(0, len(queries), _BLOCK):
        part = queries[start : start + _BLOCK]
        distances = torch.addmm(squares, torch.from_numpy(part - center).to(rows), rows.T, alpha=-2)
        if excluded is not None:
            places = torch.from_numpy(np.asarray(excluded[start : start + _BLOCK], dtype=np.int64)).to(rows.device)
            distances.scatter_(1, places.unsqueeze(1), torch.inf)
        # Never so many candidates that the excluded row becomes one.
        count = min(_CANDIDATES, len(pool) - (excluded is not None))
        candidates = np.sort(distances.topk(count, largest=False).indices.cpu().numpy(), axis=1)
        found, own = pool[candidates].astype(np.float64), part[:, None].astype(np.float64)
        exact = ((found - own) ** 2 if metric == "l2" else -found * own).sum(axis=2)
        result[start : start + _BLOCK] = candidates[np.arange(len(part)), exact.argmin(axis=1)]
    return result


def shared_neighbors(first: np.ndarray, second: np.ndarray) -> float:
    """The overlap of two encoders' neighbourhoods: the mean share of each text's ten nearest other texts by cosine (all
    others if there are fewer) that are the same in both spaces.

    Args:
        first: vectors `(N, D)` of the texts.
        second: `(N, D')` of the same texts, row by row.

    Raises:
        ValueError: the spaces differ in their number of texts, or there are fewer than two.
    """
    if len(first) != len(second) or len(first) < 2:
        raise ValueError(f"Expected two or more texts, the same in both spaces, got {len(first)} and {len(second)}.")
    number = min(_COMPARED, len(first) - 1)
    spaces = [torch.from_numpy(unit_rows(vectors)) for vectors in (first, second)]
    shared = 0
    for start in range(0, len(first), _BLOCK):
        others = []
        for rows in spaces:
            cosines = rows[start : start + _BLOCK] @ rows.T
            cosines.diagonal(start).fill_(-torch.inf)
            others.append(cosines.topk(number).indices)
        shared += int((others[0][:, :, None] == others[1][:, None, :]).sum())
    return shared / (number * len(first))
