"""Figures of evaluations: scores beside those of the controls, and gains over the strongest control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from hf_meanmax.files import Json
from hf_meanmax.metrics import is_percentage, kind_name
from hf_meanmax.plots.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Evaluated(Protocol):
    """What a figure shows of an evaluation: [`~hf_meanmax.evaluation.report.Results`] has it."""

    @property
    def name(self) -> str: ...

    @property
    def tasks(self) -> Mapping[str, Any]: ...

    @property
    def scores(self) -> Mapping[str, Any]: ...

    @property
    def spreads(self) -> Mapping[str, Any]: ...

    @property
    def gains(self) -> Mapping[str, Any]: ...


_MARKERS = "oDsPX*h8"
_CONTROL_MARKERS = "v^<>1234"


def plot_scores(results: Sequence[Evaluated]) -> Figure:
    """Draws the main score of each task: models as filled marks, controls as open ones with bars of one deviation.

    Args:
        results: of one model or of several.

    Returns:
        A matplotlib figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    panels = _panels(results)
    figure = new_figure(2.5 + 0.7 * sum(len(tasks) for _, tasks in panels), 4.8)
    axes = figure.subplots(1, len(panels), squeeze=False, width_ratios=[max(2, len(tasks)) for _, tasks in panels])[0]
    for axis, (label, tasks) in zip(axes, panels, strict=True):
        series = [(one, kind) for one in results for kind in (None, *one.spreads)]
        colours = {one.name: f"C{index}" for index, one in enumerate(results)}
        kinds = list(dict.fromkeys(kind for _, kind in series if kind is not None))
        for index, (one, kind) in enumerate(series):
            offset = 0.7 * ((index + 0.5) / len(series) - 0.5)
            places, means, deviations = [], [], []
            for place, task in enumerate(tasks):
                found = _score(one, kind, task)
                if found is not None:
                    places.append(place + offset)
                    means.append(found[0])
                    deviations.append(found[1])
            if kind is None:
                marker = _MARKERS[results.index(one) % len(_MARKERS)]
                style: Json = {"marker": marker, "color": colours[one.name], "markersize": 7}
                name = one.name
            else:
                marker = _CONTROL_MARKERS[kinds.index(kind) % len(_CONTROL_MARKERS)]
                colour = "0.45" if len(results) == 1 else colours[one.name]
                style = {"marker": marker, "color": colour, "markerfacecolor": "none", "markersize": 5}
                name = kind_name(kind) if len(results) == 1 else f"{one.name}: {kind_name(kind)}"
            axis.errorbar(places, means, yerr=deviations, linestyle="none", capsize=2, label=name, **style)
        axis.set_xticks(range(len(tasks)), tasks, rotation=60, ha="right")
        axis.set_xlim(-0.5, len(tasks) - 0.5)
        axis.set_ylabel(label)
        axis.grid(axis="y", color="0.9")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize="small")
    return figure


def plot_gains(results: Sequence[Evaluated]) -> Figure:
    """Draws, for each task, the gain over the strongest control with its interval.

    Args:
        results: of one model or of several, with controls.

    Returns:
        A matplotlib figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    panels = _panels([one for one in results if one.gains])
    figure = new_figure(3.2 + 3.2 * len(panels), 1.6 + 0.3 * len(results) * max(len(tasks) for _, tasks in panels))
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (label, tasks) in zip(axes, panels, strict=True):
        for index, one in enumerate(results):
            offset = 0.6 * ((index + 0.5) / len(results) - 0.5)
            found = [(place, one.gains[task]) for place, task in enumerate(tasks) if task in one.gains]
            differences = [gain["difference"] for _, gain in found]
            errors = [
                [0.0 if gain["low"] is None else max(0.0, gain["difference"] - gain["low"]) for _, gain in found],
                [0.0 if gain["high"] is None else max(0.0, gain["high"] - gain["difference"]) for _, gain in found],
            ]
            marker = _MARKERS[index % len(_MARKERS)]
            places = [place + offset for place, _ in found]
            axis.errorbar(differences, places, xerr=errors, fmt=marker, color=f"C{index}", capsize=3, label=one.name)
        axis.axvline(0, color="black", linewidth=0.8)
        axis.set_yticks(range(len(tasks)), tasks)
        axis.set_ylim(len(tasks) - 0.5, -0.5)
        axis.set_xlabel(f"gain over the strongest control: {label}")
        axis.grid(axis="x", color="0.9")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", fontsize="small", ncols=min(3, len(labels)))
    return figure


def _panels(results: Sequence[Evaluated]) -> list[tuple[str, list[str]]]:
    """The tasks whose scores are percentages, and those whose are not."""
    main = {task: one.tasks[task]["main"] for one in results for task in one.tasks}
    panels = [
        ("percent", [task for task in main if is_percentage(main[task])]),
        ("correlation", [task for task in main if not is_percentage(main[task])]),
    ]
    return [(label, tasks) for label, tasks in panels if tasks]


def _score(one: Evaluated, kind: str | None, task: str) -> tuple[float, float] | None:
    """Mean and deviation of a model (`kind` None) or of a kind of control."""
    if task not in one.tasks:
        return None
    main = one.tasks[task]["main"]
    if kind is None:
        value = one.scores[task]["metrics"].get(main)
        return None if value is None else (value, 0.0)
    spread = one.spreads[kind]["tasks"].get(task, {}).get(main)
    return None if not spread or spread["mean"] is None else (spread["mean"], spread["std"] or 0.0)
