"""Figures of training runs: what their metrics did, step by step."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_meanmax.commands.old_options import make_parser, named_folders, one_line_errors, parse_arguments
from hf_meanmax.training.checkpoints import METRICS_FILE

from .figures import new_figure, save_figure

_FEW_POINTS = 20  # are shown one by one


def read_metrics(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """What a run of `scripts/pretrain.py` logged, in the order of its steps.

    Args:
        folder: the run's output folder, or its `metrics.jsonl`.

    Raises:
        FileNotFoundError: there is no such log.
        ValueError: a line of it is not JSON, other than a last one that a killed run left unfinished.
    """
    path = Path(folder)
    path = path if path.is_file() else path / METRICS_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"{os.fspath(folder)!r} has no {METRICS_FILE}; give the output folder of a training run."
        )
    lines = path.read_text(encoding="utf-8").splitlines()
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise ValueError(f"Line {number} of {path} is not JSON: {error}.") from error
    return records


def plot_training(runs: Mapping[str, Sequence[Mapping[str, Any]]], metrics: Sequence[str]) -> Any:
    """Metrics of runs over their steps: a panel for each metric, a line for each run that has it.

    Args:
        runs: the logs of runs, as [`read_metrics`] gives them, by name.
        metrics: `"loss"`, `"teacher_loss"`, `"validation_bleu"` and whatever else is in the logs.

    Returns:
        A matplotlib figure.

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


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def main(argv: Sequence[str] | None = None) -> None:
    """The command line of `scripts/plot_training.py`."""
    parser = make_parser("plot_training.py", "Draw what training runs logged, side by side.")
    parser.add_argument("runs", nargs="+", help="output folders of training runs, NAME=FOLDER or FOLDER")
    parser.add_argument("--metrics", nargs="+", default=["loss", "validation_loss"], help="a panel for each")
    parser.add_argument("--output", required=True, help="the figure (.png, .svg, .pdf)")
    args = parse_arguments(parser, argv)
    with one_line_errors("plot_training.py"):
        runs = {name: read_metrics(folder) for name, folder in named_folders(args.runs).items()}
        save_figure(plot_training(runs, args.metrics), args.output)


if __name__ == "__main__":
    main()
