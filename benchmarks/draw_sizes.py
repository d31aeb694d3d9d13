"""Quality against a size, such as the number of training sentences or steps: a figure with a prediction.

    python benchmarks/vectors.py n50000-s0=runs/a/model n50000-s1=runs/b/model n100000-s0=runs/c/model ... \\
        --texts held-out.txt --no_speed --output quality.json
    python benchmarks/draw_sizes.py quality.json --output docs/figures/corpus-size.png

Models are named n<size>-s<seed>, with figures of them in the file's `rows`. A line through the figures against the
logarithm of the size gives what a doubling adds, and the prediction for ten times the largest. Prints means and
standard deviations over the seeds.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hf_meanmax.evaluation.markdown import markdown_table
from hf_meanmax.plots.figures import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Scores by metric and size, one a seed.
Scores = dict[str, dict[int, list[float]]]


def by_size(rows: Mapping[str, Mapping[str, float]], metrics: Sequence[str]) -> Scores:
    """The scores of models by the size in their names, smallest first.

    Raises:
        SystemExit: a name does not say it, or a row lacks a figure.
    """
    found: Scores = {metric: defaultdict(list) for metric in metrics}
    sizes = {}
    for name in rows:
        match = re.fullmatch(r"n(\d+)-s\d+", name)
        if match is None:
            raise SystemExit(f"{name!r} is not named n<size>-s<seed>, as n50000-s0 is.")
        sizes[name] = int(match[1])
    lacking = [metric for metric in metrics if not all(metric in row for row in rows.values())]
    if lacking:
        raise SystemExit(f"Not all rows have {', '.join(lacking)}; name others with --metrics.")
    for name in sorted(rows, key=sizes.__getitem__):
        for metric in metrics:
            found[metric][sizes[name]].append(rows[name][metric])
    return found


def fit(scores: Mapping[int, list[float]]) -> tuple[float, float]:
    """What a doubling of the size adds, and the score at size 1, of the least squares line."""
    points = [(np.log2(size), score) for size, ones in scores.items() for score in ones]
    slope, start = np.polyfit(*np.transpose(points), deg=1)
    return float(slope), float(start)


def draw(scores: Scores, size_label: str) -> Figure:
    """A panel for each metric: mean and standard deviation of each size, and the line to ten times the largest."""
    figure = new_figure(4.0 * len(scores), 3.5)
    panels = figure.subplots(1, len(scores), squeeze=False)[0]
    for axes, (metric, ones) in zip(panels, scores.items(), strict=True):
        sizes = list(ones)
        axes.errorbar(sizes, [np.mean(v) for v in ones.values()], [spread(v) for v in ones.values()], fmt="o")
        slope, start = fit(ones)
        ends = np.array([sizes[0], 10 * sizes[-1]])
        axes.plot(ends, slope * np.log2(ends) + start, linestyle="--", color="grey", linewidth=1)
        axes.set_xscale("log")
        axes.set_xlabel(size_label)
        axes.set_ylabel(metric)
        axes.grid(alpha=0.3)
    return figure


def spread(ones: Sequence[float]) -> float:
    """The standard deviation over the seeds; 0 of a single one."""
    return float(np.std(ones, ddof=1)) if len(ones) > 1 else 0.0


def shown(ones: Sequence[float]) -> str:
    return f"{np.mean(ones):.4g} ± {spread(ones):.2g}" if len(ones) > 1 else f"{ones[0]:.4g}"


def table(scores: Scores, size_label: str) -> str:
    """A row for each size, what a doubling adds, and what ten times the largest would give if that went on."""
    sizes = list(next(iter(scores.values())))
    rows = [[f"{size:,}", *(shown(ones[size]) for ones in scores.values())] for size in sizes]
    lines = [fit(ones) for ones in scores.values()]
    rows.append(["each doubling", *(f"{slope:+.3g}" for slope, _ in lines)])
    more = 10 * sizes[-1]
    rows.append([f"{more:,}, by the line", *(f"{slope * np.log2(more) + start:.3g}" for slope, start in lines)])
    return markdown_table([size_label, *scores], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("quality", type=Path)
    parser.add_argument("--output", required=True)
    parser.add_argument("--metrics", nargs="+", default=["STS12-16", "STSB", "SICK-R"], help="figures of `rows`")
    parser.add_argument("--size", default="training sentences", help="what the sizes are of")
    args = parser.parse_args()
    scores = by_size(json.loads(args.quality.read_text())["rows"], args.metrics)
    if len(scores[args.metrics[0]]) < 2:
        raise SystemExit("A line needs two sizes or more.")
    save_figure(draw(scores, args.size), args.output)
    print(table(scores, args.size))


if __name__ == "__main__":
    main()
