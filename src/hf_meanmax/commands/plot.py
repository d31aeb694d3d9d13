"""Draw what training runs logged, side by side.

hf-meanmax plot runs/a runs/b --metrics loss validation_loss --output training.png
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hf_meanmax.plots.figures import save_figure
from hf_meanmax.plots.training import plot_training
from hf_meanmax.training.checkpoints import read_metrics

from .options import OptionParser, named_folders, one_line_errors, option, positional


@dataclass
class PlotOptions:
    """The options of `hf-meanmax plot`."""

    runs: list[str] = positional("output folders of training runs, NAME=FOLDER or FOLDER")
    output: str = option("the figure (.png, .svg, .pdf)")
    metrics: list[str] = option("a panel for each of these", ["loss", "validation_loss"])


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command; `argv` is the command line by default."""
    with one_line_errors("plot"):
        (args,) = OptionParser("plot", "Draw what training runs logged, side by side.", PlotOptions).parse(argv)
        runs = {name: read_metrics(folder) for name, folder in named_folders(args.runs).items()}
        save_figure(plot_training(runs, args.metrics), args.output)
        print(args.output)
