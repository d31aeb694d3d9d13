"""Do metrics agree on which models are better?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

MIN_MODELS = 3


def correlation_matrix(
    scores: Mapping[str, Mapping[str, float | None]], names: Sequence[str] | None = None
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Pearson correlations between all metrics over models (Cifka 2018, section 5.4.1).

    Each correlation is over the models that have both metrics. It is NaN where they are fewer than three, or where one
    metric is the same for all of them.

    Args:
        scores: model -> metric -> score; a score that is missing, None or not finite counts as missing.
        names: the metrics and their order; by default all, in the order in which they first occur.

    Returns:
        The K metrics, the correlations `(K, K)` float64, and the numbers of models `(K, K)` int64.

    Raises:
        ValueError: no metric, or one of `names` that no model has or that is repeated.
    """
    found = list(dict.fromkeys(metric for metrics in scores.values() for metric in metrics))
    chosen = found if names is None else list(names)
    if not chosen:
        raise ValueError(f"There is no metric to correlate in the scores of {len(scores)} models.")
    for name in chosen:
        if name not in found:
            raise ValueError(f"No model has the metric {name!r}; there are {', '.join(map(repr, found)) or 'none'}.")
        if chosen.count(name) > 1:
            raise ValueError(f"The metric {name!r} is named twice.")
    table = np.array([[_number(metrics.get(name)) for name in chosen] for metrics in scores.values()])
    size = len(chosen)
    matrix = np.full((size, size), np.nan)
    counts = np.zeros((size, size), dtype=np.int64)
    for row in range(size):
        for column in range(row, size):
            both = table[:, [row, column]]
            both = both[~np.isnan(both).any(axis=1)]
            counts[row, column] = counts[column, row] = len(both)
            if len(both) >= MIN_MODELS and not _constant(both).any():
                value = 1.0 if row == column else float(np.corrcoef(both.T)[0, 1])
                matrix[row, column] = matrix[column, row] = value
    return chosen, matrix, counts


def _number(score: float | None) -> float:
    return float(score) if score is not None and math.isfinite(score) else math.nan


def _constant(values: np.ndarray) -> np.ndarray:
    """Whether each column `(2,)` differs by rounding at most."""
    return np.ptp(values, axis=0) <= 1e-12 * np.abs(values).max(axis=0)
