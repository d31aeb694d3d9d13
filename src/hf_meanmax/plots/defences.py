"""A figure of defences of vectors: recovery by a decoder, and the similarity that remains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hf_meanmax.files import Json

from .figures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {"none": "0.3", "noise": "C0", "pca": "C1", "leading": "C2", "int8": "C3", "binary": "C4"}


def plot_defences(defences: Sequence[Json], floor: float | None = None) -> Figure:
    """Draws a row for each defence: token F1 of the decoded texts and, if known, the similarity that remains.

    Args:
        defences: dicts of `kind`, `name`, `token_f1` (0-1) and perhaps `spearman` (-1 to 1, or None).
        floor: the token F1 of decoding another text's vector, drawn as a line.

    Raises:
        ValueError: there is no defence.
        ImportError: matplotlib is not installed.
    """
    if not defences:
        raise ValueError("There is nothing to draw: no defence was tried.")
    panels = [("token_f1", "token F1 of what is decoded\n(less is safer)")]
    if any("spearman" in row for row in defences):
        panels.append(("spearman", "Spearman's correlation on STS\n(more is more useful)"))
    figure = new_figure(1.8 + 3.4 * len(panels), 1.4 + 0.27 * len(defences))
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, (metric, label) in zip(axes, panels, strict=True):
        values = [math.nan if row.get(metric) is None else row[metric] for row in defences]
        colours = [_COLOURS.get(row["kind"], "0.5") for row in defences]
        bars = axis.barh(range(len(defences)), values, color=colours, height=0.7)
        axis.bar_label(bars, ["" if math.isnan(value) else f"{value:.2f}" for value in values], padding=2)
        axis.set_xlim(min(0, *(value for value in [0.0, *values] if not math.isnan(value))), 1.12)
        axis.set_xlabel(label)
        axis.grid(axis="x", color="0.9")
        axis.set_axisbelow(True)
    if floor is not None:
        axes[0].axvline(floor, color="black", linestyle="--", linewidth=0.9, label="another text's vector")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", fontsize="small")
    axes[0].set_yticks(range(len(defences)), [row["name"] for row in defences])
    axes[0].set_ylim(len(defences) - 0.4, -0.6)
    return figure
