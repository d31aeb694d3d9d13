"""Do metrics agree on which models are better?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations_with_replacement

import numpy as np

MIN_MODELS = 3


def correlation_matrix(scores: Mapping[str, Mapping[str, float | None]]) -> tuple[list[str], np.ndarray]:
    """Pearson correlations between all metrics over models (Cifka 2018, section 5.4.1).

    Each correlation is over the models that have both metrics. It is NaN for fewer than three models, or if a metric is
    the same for all of them.

    Args:
        scores: model -> metric -> score; a score that is missing, None or not finite counts as missing.

    Returns:
        The K metrics in the order in which they first occur, and the correlations `(K, K)` float64.

    Raises:
        ValueError: there is no metric.
    """
    names = list(dict.fromkeys(metric for metrics in scores.values() for metric in metrics))
    if not names:
        raise ValueError(f"There is no metric to correlate in the scores of {len(scores)} models.")
    table = np.array([[_number(metrics.get(name)) for name in names] for metrics in scores.values()])
    matrix = np.full((len(names), len(names)), np.nan)
    for row, column in combinations_with_replacement(range(len(names)), 2):
        both = table[:, [row, column]]
        both = both[~np.isnan(both).any(axis=1)]
        # A metric that only differs by rounding counts as the same.
        if len(both) >= MIN_MODELS and (np.ptp(both, axis=0) > 1e-12 * np.abs(both).max(axis=0)).all():
            matrix[row, column] = matrix[column, row] = 1.0 if row == column else np.corrcoef(both.T)[0, 1]
    return names, matrix


def _number(score: float | None) -> float:
    return float(score) if score is not None and math.isfinite(score) else math.nan
