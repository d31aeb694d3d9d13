"""Plot the logged metrics of one or more training runs.

hf-meanmax plot runs/a runs/b --metrics loss validation_loss --output training.png
"""

from __future__ import annotations

from dataclasses import dataclass

from hf_meanmax.plots.figures import save_figure
from hf_meanmax.plots.training import plot_training
from hf_meanmax.training.checkpoints import read_metrics

from .options import named_folders, option, positional, verb, written


@dataclass
class PlotOptions:
    """The options of `hf-meanmax plot`."""

    runs: list[str] = positional("output folders of `hf-meanmax pretrain`, NAME=FOLDER or FOLDER")
    output: str = written("the figure (.png, .svg, .pdf)")
    metrics: list[str] | None = option(
        "a panel for each of these (default: loss, and validation_loss once a run has it)", None
    )


@verb("plot")
def main(args: PlotOptions) -> None:
    """Plot the logged metrics of one or more training runs."""
    runs = {name: read_metrics(folder) for name, folder in named_folders(args.runs).items()}
    metrics = args.metrics
    if metrics is None:
        is_evaluated = any("validation_loss" in record for records in runs.values() for record in records)
        metrics = ["loss", "validation_loss"] if is_evaluated else ["loss"]
    save_figure(plot_training(runs, metrics), args.output)
    print(args.output)
