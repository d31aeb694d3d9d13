"""Quality of vectors against speed, and against what can be decoded: a figure of what `vectors.py` wrote.

    python benchmarks/draw_vectors.py quality.json speed.json --output docs/figures/vectors.png

`quality.json` is of `--output`, `speed.json` of `--json`. Models are joined by their names; the first of the speeds is
the reference, a dashed line. A model that lacks a figure is left out of the panels that need it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_meanmax.plots.figures import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPEED = "sentences/s, times the reference's"
PANELS = ((SPEED, "STS12-16"), (SPEED, "eight tasks"), ("BLEU", "STS12-16"))


def joined(quality: Mapping[str, Any], speed: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The figures of each model; those of speed are ratios to the first."""
    rows = {name: dict(row) for name, row in quality["rows"].items()}
    for number, (name, row) in enumerate(speed["rows"].items()):
        figure = row["figures"]["sentences/s"]
        rows.setdefault(name, {})[SPEED] = figure["ratio"]["median"] if number else 1.0
    return rows


def draw(rows: Mapping[str, Mapping[str, float]], reference: str) -> Figure:
    """A panel for each pair of figures that some model has."""
    drawn = [(x, y) for x, y in PANELS if any(x in row and y in row for row in rows.values())]
    if not drawn:
        raise SystemExit("No model has both figures of a panel; the names in the two files must be the same.")
    figure = new_figure(5.0 * len(drawn), 4.0)
    for axes, (x, y) in zip(figure.subplots(1, len(drawn), squeeze=False)[0], drawn, strict=True):
        if y in rows.get(reference, {}):
            axes.axhline(rows[reference][y], color="grey", linestyle="--", linewidth=1)
        if x == SPEED:
            axes.set_xscale("log")
        axes.margins(0.2)
        shown = {name: (row[x], row[y]) for name, row in rows.items() if x in row and y in row}
        for number, name in enumerate(rows):
            if name in shown:
                axes.plot(*shown[name], "o", color=f"C{number}")
        axes.autoscale_view()
        to_axes = (axes.transData + axes.transAxes.inverted()).transform
        places = {name: to_axes(point) for name, point in shown.items()}
        for name, (across, up) in places.items():
            # To the left where another point would lie under the name.
            beside = [a - across for a, b in places.values() if abs(b - up) < 0.05]
            is_left = across > 0.8 or any(0 < distance < 0.3 for distance in beside)
            offset, side = ((-5, 5), "right") if is_left else ((5, 5), "left")
            # Below where points lie on both sides.
            if is_left and any(-0.4 < distance < 0 for distance in beside):
                offset, side = (0, -17), "center"
            axes.annotate(name, shown[name], xytext=offset, textcoords="offset points", fontsize=8, ha=side)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.grid(alpha=0.3)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("quality", type=Path)
    parser.add_argument("speed", type=Path)
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    speed = json.loads(args.speed.read_text())
    rows = joined(json.loads(args.quality.read_text()), speed)
    save_figure(draw(rows, next(iter(speed["rows"]))), args.output)


if __name__ == "__main__":
    main()
