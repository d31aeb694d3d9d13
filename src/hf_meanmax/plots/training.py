"""Figures of training runs: their metrics by step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hf_meanmax.files import Json

from .figures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FEW_POINTS = 20  # fewer are drawn with markers


def plot_training(runs: Mapping[str, Sequence[Json]], metrics: Sequence[str]) -> Figure:
    """Metrics of runs over their steps: a panel for each metric, a line for each run that has it.

    Args:
        runs: the logs of runs, as [`read_metrics`] gives them, by name.
        metrics: `"loss"`, `"teacher_loss"`, `"validation_bleu"` and whatever else is in the logs.

    Raises:
        ValueError: no run, no metric, or a metric that no run has.
        ImportError: matplotlib is not installed.
    """
    known = sorted(
        {name for records in runs.values() for record in records for name in record if _is_number(record[name])}
        - {"step"}
    )
    if not runs or not metrics:
        raise ValueError("There is nothing to draw: give at least one run and one metric.")
    for metric in metrics:
        if metric not in known:
            raise ValueError(f"No run has the metric {metric!r}; they have {', '.join(known)}.")
    figure = new_figure(max(6.4, 4.6 * len(metrics)), 4.0)
    panels = figure.subplots(1, len(metrics), squeeze=False)[0]
    for axes, metric in zip(panels, metrics, strict=True):
        for number, (name, records) in enumerate(runs.items()):
            points = [(one["step"], one[metric]) for one in records if _is_number(one.get(metric))]
            if points:
                steps, values = zip(*points, strict=True)
                marker = "o" if len(points) < _FEW_POINTS else None
                axes.plot(steps, values, color=f"C{number}", marker=marker, label=name)
        axes.set_xlabel("step")
        axes.set_ylabel(metric.replace("_", " "))
        axes.grid(alpha=0.3)
        axes.legend()
    return figure


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
