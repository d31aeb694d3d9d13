"""How much better one encoder is than another, with confidence intervals from a paired bootstrap over test items.

Efron and Tibshirani 1993, chapter 13 (percentile intervals); Berg-Kirkpatrick, Burkett and Klein 2012 (paired, in NLP).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from hf_meanmax.evaluation.relatedness import RESOLUTION, correlations
from hf_meanmax.evaluation.tasks import TaskResult

_CHUNK = 2_000_000  # drawn numbers held at a time
# The metric computed from the items may differ by this share of its unit, due to unequal folds and rounding.
_TOLERANCE = 0.01


@dataclass(frozen=True)
class Gain:
    """The difference between a model and its controls.

    Args:
        difference: main metric of the model minus the mean of the controls, in the metric's unit.
        low, high: ends of the confidence interval; None if it cannot be computed from the test items.
    """

    difference: float
    low: float | None
    high: float | None


def gain(
    model: TaskResult,
    controls: Sequence[TaskResult],
    samples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Gain:
    """The main metric of a model minus its mean over several controls, with a bootstrap interval.

    Each sample draws test items with replacement, the same ones for the model and all controls; for a correlation over
    several data sets, pairs are drawn within each data set and the correlations are averaged. The interval lies between
    quantiles of the samples' differences. It covers the choice of test items, not the seeds of the controls, whose
    effect is measured by their standard deviation.

    Args:
        model: the result of the model.
        controls: results of one kind of control on the same task, one per seed.
        samples: number of samples.
        confidence: the level, between 0 and 1.
        seed: seed of the samples.

    Returns:
        The gain; without an interval if a result has no items, or if its main metric cannot be computed from them (an
        F1 score, for instance).

    Raises:
        ValueError: no control, a setting out of range, or results that differ in metric, number of items or gold.
    """
    return _combined([(model, controls)], np.ones(1), [np.random.default_rng(seed)], samples, confidence)


def average_gain(
    pairs: Sequence[tuple[TaskResult, Sequence[TaskResult]]],
    samples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
    weights: Sequence[float] | None = None,
) -> Gain:
    """The gain in the average over several tasks, whose test items are resampled independently of one another.

    Args:
        pairs: for each task the result of the model and the results of its controls, as for [`gain`]; the main metrics
            have the same unit.
        samples, confidence, seed: as for [`gain`].
        weights: weights of the tasks, for a micro average (default: equal).

    Returns:
        The gain; without an interval if one of the tasks has none.

    Raises:
        ValueError: as [`gain`], or no task, or weights that are not one positive number per task.
    """
    if not pairs:
        raise ValueError("An average needs at least one task.")
    shares = np.ones(len(pairs)) if weights is None else np.asarray(weights, dtype=np.float64)
    if shares.shape != (len(pairs),) or not (shares > 0).all():
        raise ValueError(f"weights are {weights!r}; expected {len(pairs)} positive numbers, one a task.")
    return _combined(pairs, shares / shares.sum(), np.random.default_rng(seed).spawn(len(pairs)), samples, confidence)


def _combined(
    pairs: Sequence[tuple[TaskResult, Sequence[TaskResult]]],
    shares: np.ndarray,
    generators: Sequence[np.random.Generator],
    samples: int,
    confidence: float,
) -> Gain:
    """The sum of the gains in several tasks, each times its share."""
    if samples < 1:
        raise ValueError(f"samples is {samples}; it must be 1 or more.")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; it must lie between 0 and 1.")
    for model, controls in pairs:
        _check_comparable(model, controls)
    difference = math.fsum(share * _score_difference(*pair) for share, pair in zip(shares, pairs, strict=True))
    total = np.zeros(samples)
    for share, pair, rng in zip(shares, pairs, generators, strict=True):
        drawn = _sampled_differences(*pair, samples, rng)
        if drawn is None:
            return Gain(difference, None, None)
        total += share * drawn
    tail = (1 - confidence) / 2
    low, high = np.quantile(total, [tail, 1 - tail]).tolist()
    return Gain(difference, low, high)


def strongest(controls: Mapping[str, Sequence[TaskResult]]) -> str:
    """The kind of control with the highest mean of the main metric over its seeds; the first on a tie.

    Args:
        controls: results on one task by kind, one per seed.

    Raises:
        ValueError: no kind, or one without results.
    """
    if not controls:
        raise ValueError("There is no control, so none is the strongest.")
    return max(controls, key=lambda kind: fmean(result.score for result in controls[kind]))


def _check_comparable(model: TaskResult, controls: Sequence[TaskResult]) -> None:
    if not controls:
        raise ValueError("A gain needs at least one control.")
    for control in controls:
        if control.main != model.main:
            raise ValueError(f"The model's main metric is {model.main!r}, a control's {control.main!r}; expected one.")
        if set(control.items) != set(model.items):
            raise ValueError(
                f"The model's result has items {sorted(model.items)}, a control's {sorted(control.items)}; they are "
                "results of different tasks."
            )
        for name, values in model.items.items():
            count = len(control.items[name])
            if count != len(values):
                raise ValueError(
                    f"The model has {len(values):,} test items ({name!r}), a control {count:,}; they must be results "
                    "on the same test set."
                )
            if name in ("gold", "group", "cluster") and not np.array_equal(control.items[name], values):
                raise ValueError(f"{name!r} of the model and of a control differ: results on different test sets.")


def _score_difference(model: TaskResult, controls: Sequence[TaskResult]) -> float:
    # The mean of differences, not the difference of means: equal scores give 0 exactly.
    return math.fsum(model.score - control.score for control in controls) / len(controls)


def _sampled_differences(
    model: TaskResult, controls: Sequence[TaskResult], samples: int, rng: np.random.Generator
) -> np.ndarray | None:
    """Differences `(samples,)` of the main metric, or None if they cannot be computed from the items."""
    if not model.items or not len(next(iter(model.items.values()))):
        return None
    if "correct" in model.items:
        unit = 100.0
        own = [100 * float(np.mean(result.items["correct"])) for result in (model, *controls)]
        drawn = _correct_differences(model, controls, samples, rng)
    elif "predicted" in model.items and "gold" in model.items:
        unit = 1.0
        own = [_mean_pearson(result) for result in (model, *controls)]
        drawn = _pearson_differences(model, controls, samples, rng)
    else:
        return None
    scores = [result.score for result in (model, *controls)]
    if not np.allclose(own, scores, rtol=0, atol=_TOLERANCE * unit):
        return None
    # Averages over unequal folds and rounded scores differ slightly from the scores of the items.
    shift = _score_difference(model, controls) - math.fsum(own[0] - value for value in own[1:]) / len(controls)
    return drawn + shift


def _correct_differences(
    model: TaskResult, controls: Sequence[TaskResult], samples: int, rng: np.random.Generator
) -> np.ndarray:
    correct = np.asarray(model.items["correct"], dtype=np.float64)
    differences = np.mean([correct - np.asarray(control.items["correct"]) for control in controls], axis=0)
    # Dependent items are drawn as whole clusters; otherwise each item is a cluster.
    clusters = np.unique(model.items.get("cluster", np.arange(len(correct))), return_inverse=True)[1]
    kinds = np.stack([np.bincount(clusters, differences), np.bincount(clusters)], axis=1)
    # Clusters of equal sum and size are interchangeable, so only the number of each kind in a sample is drawn.
    kinds, counts = np.unique(kinds, axis=0, return_counts=True)
    drawn = rng.multinomial(counts.sum(), counts / counts.sum(), size=samples)
    totals = drawn @ kinds
    return 100 * totals[:, 0] / totals[:, 1]


def _pearson_differences(
    model: TaskResult, controls: Sequence[TaskResult], samples: int, rng: np.random.Generator
) -> np.ndarray:
    groups = _groups(model)
    total = np.zeros(samples)
    for rows in groups:
        gold = _standardised(model.items["gold"][rows], 0.0)
        own = _standardised(model.items["predicted"][rows])
        others = [_standardised(control.items["predicted"][rows]) for control in controls]
        for part, counts in _resampled_counts(len(rows), samples, rng):
            pearson = _weighted_pearson(counts, own, gold)
            total[part] += np.mean([pearson - _weighted_pearson(counts, other, gold) for other in others], axis=0)
    return total / len(groups)


def _mean_pearson(result: TaskResult) -> float:
    """The mean over the data sets of Pearson's r, 0 for a constant."""
    predicted, gold = result.items["predicted"], result.items["gold"]
    return float(
        np.mean([np.nan_to_num(correlations(predicted[rows], gold[rows], RESOLUTION)[0]) for rows in _groups(result)])
    )


def _groups(result: TaskResult) -> list[np.ndarray]:
    """The rows of each data set."""
    gold = result.items["gold"]
    numbers = np.asarray(result.items.get("group", np.zeros(len(gold), dtype=np.int64)))
    return [np.flatnonzero(numbers == number) for number in np.unique(numbers)]


def _standardised(values: np.ndarray, resolution: float = RESOLUTION) -> np.ndarray:
    """Mean 0 and variance 1, which changes no correlation and keeps sums of squares accurate; zeros for a constant."""
    values = np.asarray(values, dtype=np.float64)
    if np.ptp(values) <= resolution * np.abs(values).max():
        return np.zeros_like(values)
    values = values - values.mean()
    return values / values.std()


def _resampled_counts(number: int, samples: int, rng: np.random.Generator) -> Iterator[tuple[slice, np.ndarray]]:
    """How often each of `number` items is drawn in each sample, `(some samples, number)`, some samples at a time."""
    size = max(1, _CHUNK // number)
    for start in range(0, samples, size):
        rows = min(size, samples - start)
        drawn = rng.integers(number, size=(rows, number)) + number * np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * number).reshape(rows, number)
        yield slice(start, start + rows), counts.astype(np.float64)


def _weighted_pearson(counts: np.ndarray, predicted: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """Pearson's r `(S,)` of standardised pairs `(n,)` that occur `counts` `(S, n)` times; 0 for a constant."""
    number = counts.sum(axis=1)
    moments = counts @ np.stack([predicted, gold, predicted**2, gold**2, predicted * gold], axis=1)
    mean_p, mean_g, square_p, square_g, product = (moments / number[:, None]).T
    variances = np.maximum(square_p - mean_p**2, 0) * np.maximum(square_g - mean_g**2, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(variances > 1e-20, (product - mean_p * mean_g) / np.sqrt(variances), 0.0)
