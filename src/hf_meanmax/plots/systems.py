"""A figure of many systems: the score of each, with its strongest control."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hf_meanmax.files import Json

from .figures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_systems(
    scores: Mapping[str, Sequence[float]],
    controls: Mapping[str, Sequence[float]],
    bleu: Mapping[str, Sequence[float]],
    label: str,
) -> Figure:
    """Draws a line for each system, the best at the top: its score as a filled mark with a bar of one standard
    deviation over its runs, the strongest control as an open mark; in a second panel, reconstruction BLEU.

    Args:
        scores: scores of all runs, by system.
        controls: scores of the strongest control of each run, by system; systems without one are left out.
        bleu: BLEU of each run, by system; systems that do not reconstruct are left out. If empty, there is no panel.
        label: axis label of the scores.

    Raises:
        ValueError: no system.
        ImportError: matplotlib is not installed.
    """
    if not scores:
        raise ValueError("There is nothing to draw: no system has scores.")
    order = sorted(scores, key=lambda name: statistics.fmean(scores[name]))
    panels: list[tuple[str, list[tuple[Mapping[str, Sequence[float]], Json]]]] = [
        (label, [(controls, {"fmt": "o", "mfc": "none", "color": "0.45", "label": "strongest control"}),
                 (scores, {"fmt": "o", "color": "C0", "label": "system"})])
    ]  # fmt: skip
    if bleu:
        panels.append(("reconstruction BLEU", [(bleu, {"fmt": "s", "color": "C1"})]))
    figure = new_figure(5.0 + 3.2 * len(panels), 1.6 + 0.3 * len(order))
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, (name, series) in zip(axes, panels, strict=True):
        for values, style in series:
            shown = [system for system in order if values.get(system)]
            axis.errorbar(
                [statistics.fmean(values[system]) for system in shown],
                [order.index(system) for system in shown],
                xerr=[statistics.stdev(values[system]) if len(values[system]) > 1 else math.nan for system in shown],
                capsize=3,
                linestyle="none",
                **style,
            )
        axis.set_xlabel(name)
        axis.grid(color="0.9")
    axes[0].set_yticks(range(len(order)), order)
    axes[0].set_ylim(-0.6, len(order) - 0.4)
    if bleu:
        axes[1].set_xlim(left=0)
    if any(controls.get(system) for system in order):
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", fontsize="small", ncols=2)
    return figure
