"""Figures of evaluations: scores of models and controls, and gains over the strongest control."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hf_meanmax.files import Json
from hf_meanmax.metrics import is_percentage, kind_name
from hf_meanmax.plots.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_MARKERS = "oDsPX*h8"
_CONTROL_MARKERS = "v^<>1234"


def plot_scores(results: Sequence[Json]) -> Figure:
    """Draws the main score of each task: models as filled marks, controls as open ones, with standard deviations.

    Args:
        results: contents of results.json, of one model or of several.

    Raises:
        ImportError: matplotlib is not installed.
    """
    panels = _panels(results)
    figure = new_figure(2.5 + 0.7 * sum(len(tasks) for _, tasks in panels), 4.8)
    axes = figure.subplots(1, len(panels), squeeze=False, width_ratios=[max(2, len(tasks)) for _, tasks in panels])[0]
    kinds = list(dict.fromkeys(kind for one in results for kind in one["spreads"]))
    series = [(number, one, kind) for number, one in enumerate(results) for kind in (None, *one["spreads"])]
    for axis, (label, tasks) in zip(axes, panels, strict=True):
        for index, (number, one, kind) in enumerate(series):
            offset = 0.7 * ((index + 0.5) / len(series) - 0.5)
            found = {place + offset: _score(one, kind, task) for place, task in enumerate(tasks)}
            shown = {place: score for place, score in found.items() if score is not None}
            name, colour = one["model"]["name"], f"C{number}"
            style: Json = {"marker": _MARKERS[number % len(_MARKERS)], "color": colour, "markersize": 7}
            if kind is not None:
                name = kind_name(kind) if len(results) == 1 else f"{name}: {kind_name(kind)}"
                marker = _CONTROL_MARKERS[kinds.index(kind) % len(_CONTROL_MARKERS)]
                style = {"marker": marker, "color": "0.45" if len(results) == 1 else colour, "markersize": 5}
                style["markerfacecolor"] = "none"
            means, deviations = [mean for mean, _ in shown.values()], [deviation for _, deviation in shown.values()]
            axis.errorbar(list(shown), means, yerr=deviations, linestyle="none", capsize=2, label=name, **style)
        axis.set_xticks(range(len(tasks)), tasks, rotation=60, ha="right")
        axis.set_xlim(-0.5, len(tasks) - 0.5)
        axis.set_ylabel(label)
        axis.grid(axis="y", color="0.9")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    return figure


def plot_gains(results: Sequence[Json]) -> Figure:
    """Draws, for each task, the gain over the strongest control with its interval.

    Args:
        results: contents of results.json, of one model or of several, with controls.

    Raises:
        ImportError: matplotlib is not installed.
    """
    # Colours and markers as in the figure of the scores, which shows all results.
    drawn = [(number, one) for number, one in enumerate(results) if one["gains"]]
    panels = _panels([one for _, one in drawn])
    figure = new_figure(3.2 + 3.2 * len(panels), 1.6 + 0.3 * len(drawn) * max(len(tasks) for _, tasks in panels))
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (label, tasks) in zip(axes, panels, strict=True):
        for index, (number, one) in enumerate(drawn):
            offset = 0.6 * ((index + 0.5) / len(drawn) - 0.5)
            found = [(place, one["gains"][task]) for place, task in enumerate(tasks) if task in one["gains"]]
            differences = [gain["difference"] for _, gain in found]
            errors = [
                [math.nan if gain["low"] is None else max(0.0, gain["difference"] - gain["low"]) for _, gain in found],
                [
                    math.nan if gain["high"] is None else max(0.0, gain["high"] - gain["difference"])
                    for _, gain in found
                ],
            ]
            marker = _MARKERS[number % len(_MARKERS)]
            places = [place + offset for place, _ in found]
            axis.errorbar(
                differences, places, xerr=errors, fmt=marker, color=f"C{number}", capsize=3, label=one["model"]["name"]
            )
        axis.axvline(0, color="black", linewidth=0.8)
        axis.set_yticks(range(len(tasks)), tasks)
        axis.set_ylim(len(tasks) - 0.5, -0.5)
        axis.set_xlabel(f"gain over the strongest control: {label}")
        axis.grid(axis="x", color="0.9")
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", fontsize="small", ncols=min(3, len(drawn)))
    return figure


def _panels(results: Sequence[Json]) -> list[tuple[str, list[str]]]:
    """The tasks scored in percent and the tasks scored by correlation, with axis labels."""
    main = {task: one["tasks"][task]["main"] for one in results for task in one["tasks"]}
    panels = [
        ("percent", [task for task in main if is_percentage(main[task])]),
        ("correlation", [task for task in main if not is_percentage(main[task])]),
    ]
    return [(label, tasks) for label, tasks in panels if tasks]


def _score(one: Json, kind: str | None, task: str) -> tuple[float, float] | None:
    """Mean and deviation of a model (`kind` None) or of a kind of control."""
    if task not in one["tasks"]:
        return None
    main = one["tasks"][task]["main"]
    if kind is None:
        value = one["scores"][task]["metrics"].get(main)
        return None if value is None else (value, 0.0)
    spread = one["spreads"][kind]["tasks"].get(task, {}).get(main)
    return None if not spread or spread["mean"] is None else (spread["mean"], spread["std"] or 0.0)
