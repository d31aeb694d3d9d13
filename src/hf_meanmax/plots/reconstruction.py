"""Figures of reconstructions and translations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hf_meanmax.files import Json
from hf_meanmax.metrics import LENGTH_METRICS, count_label, length_bins

from .figures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARKERS = "os^Dv<>pX*"


def plot_by_length(systems: Mapping[str, Sequence[Json]], metric: str = "bleu") -> Figure:
    """Plots a score by length of the text (Zhang, Wu, Li and Zhang, figure 2), one line per system.

    Each bin is labelled with its number of texts.

    Args:
        systems: the results of [`~hf_meanmax.evaluation.text_scores.scores_by_length`] by the name of the system. Equal
            bins of several systems share a position on the axis.
        metric: `"bleu"`, `"chrf"`, `"exact_match"` or `"token_accuracy"`.

    Raises:
        ValueError: an unknown metric, or no system.
        ImportError: matplotlib is not installed.
    """
    bins = length_bins(systems, [metric])
    figure = new_figure(max(6.4, 0.8 * len(bins)), 4.2)
    axes = figure.subplots()
    for number, system in enumerate(systems):
        points = [(place, found[system][metric]) for place, (_, found) in enumerate(bins) if system in found]
        axes.plot(
            [place for place, _ in points],
            [math.nan if value is None else value for _, value in points],
            marker=_MARKERS[number % len(_MARKERS)],
            label=system,
        )
    axes.set_xticks(range(len(bins)), [f"{label}\nn={count_label(found)}" for label, found in bins])
    axes.set_xlim(-0.5, max(len(bins), 1) - 0.5)
    top = 100.0 if metric in ("bleu", "chrf") else 1.0
    axes.set_ylim(0, 1.03 * top)
    axes.set_xlabel("length of the text (tokens)")
    axes.set_ylabel(LENGTH_METRICS[metric][0])
    axes.grid(axis="y", alpha=0.3)
    if len(systems) > 1:
        axes.legend()
    return figure
