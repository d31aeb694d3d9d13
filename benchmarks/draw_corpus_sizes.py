"""Quality of vectors against the number of training sentences: a figure of what `vectors.py` wrote, with a prediction.

    python benchmarks/vectors.py n50000-s0=runs/a/model n50000-s1=runs/b/model n100000-s0=runs/c/model ... \\
        --texts held-out.txt --no_speed --output quality.json
    python benchmarks/draw_corpus_sizes.py quality.json --output docs/figures/corpus-size.png

Models are named n<sentences>-s<seed>. A line through their figures against the logarithm of the sentences gives what a
doubling adds, and the prediction for ten times the largest corpus. Prints means and standard deviations over the seeds.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hf_meanmax.evaluation.markdown import markdown_table
from hf_meanmax.plots.figures import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS = ("STS12-16", "STSB", "SICK-R")

# Scores by metric and number of sentences, one a seed.
Scores = dict[str, dict[int, list[float]]]


def by_size(rows: Mapping[str, Mapping[str, float]]) -> Scores:
    """The scores of models by the number of sentences in their names, smallest first.

    Raises:
        SystemExit: a name does not say it.
    """
    found: Scores = {metric: defaultdict(list) for metric in METRICS}
    sizes = {}
    for name in rows:
        match = re.fullmatch(r"n(\d+)-s\d+", name)
        if match is None:
            raise SystemExit(f"{name!r} is not named n<sentences>-s<seed>, as n50000-s0 is.")
        sizes[name] = int(match[1])
    for name in sorted(rows, key=sizes.__getitem__):
        for metric in METRICS:
            found[metric][sizes[name]].append(rows[name][metric])
    return found


def fit(scores: Mapping[int, list[float]]) -> tuple[float, float]:
    """What a doubling of the sentences adds, and the score at 2^0 of them, of the least squares line."""
    points = [(np.log2(size), score) for size, ones in scores.items() for score in ones]
    slope, start = np.polyfit(*np.transpose(points), deg=1)
    return float(slope), float(start)


def draw(scores: Scores) -> Figure:
    """A panel for each metric: mean and standard deviation of each size, and the line to ten times the largest."""
    figure = new_figure(4.0 * len(METRICS), 3.5)
    for axes, (metric, ones) in zip(figure.subplots(1, len(METRICS)), scores.items(), strict=True):
        sizes = list(ones)
        axes.errorbar(sizes, [np.mean(v) for v in ones.values()], [np.std(v, ddof=1) for v in ones.values()], fmt="o")
        slope, start = fit(ones)
        ends = np.array([sizes[0], 10 * sizes[-1]])
        axes.plot(ends, slope * np.log2(ends) + start, linestyle="--", color="grey", linewidth=1)
        axes.set_xscale("log")
        axes.set_xlabel("training sentences")
        axes.set_ylabel(metric)
        axes.grid(alpha=0.3)
    return figure


def table(scores: Scores) -> str:
    """A row for each size, what a doubling adds, and what ten times the largest corpus would give if that went on."""
    sizes = list(scores[METRICS[0]])
    rows = [
        [f"{size:,}", *(f"{np.mean(scores[m][size]):.4f} ± {np.std(scores[m][size], ddof=1):.4f}" for m in METRICS)]
        for size in sizes
    ]
    lines = {metric: fit(scores[metric]) for metric in METRICS}
    rows.append(["each doubling", *(f"{slope:+.4f}" for slope, _ in lines.values())])
    more = 10 * sizes[-1]
    rows.append([f"{more:,}, by the line", *(f"{a * np.log2(more) + b:.3f}" for a, b in lines.values())])
    return markdown_table(["sentences", *METRICS], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("quality", type=Path)
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    scores = by_size(json.loads(args.quality.read_text())["rows"])
    if min(len(ones) for ones in scores[METRICS[0]].values()) < 2 or len(scores[METRICS[0]]) < 2:
        raise SystemExit("A line needs two sizes or more, of two seeds or more each.")
    save_figure(draw(scores), args.output)
    print(table(scores))


if __name__ == "__main__":
    main()
