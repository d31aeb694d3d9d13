"""The heat map of correlations between metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .figures import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CELL = 0.42  # inches
_DARK = 0.75  # correlations beyond this need light text


def _label_cells(axes: Axes, names: Sequence[str]) -> None:
    """Labels both axes, and draws thin lines between the cells."""
    axes.set_xticks(range(len(names)), names, rotation=90)
    axes.set_yticks(range(len(names)), names)
    axes.set_xticks(np.arange(len(names) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(names) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=0.6)
    axes.tick_params(which="both", length=0, labelsize=9)
    for spine in axes.spines.values():
        spine.set_visible(False)


def plot_correlations(names: Sequence[str], matrix: np.ndarray) -> Figure:
    """Correlations between metrics as a heat map with a number in each cell (Cifka 2018, figure 5.9).

    Positive ones are green, negative ones pink, and cells without a value grey.

    Args:
        names: K metrics.
        matrix: `(K, K)` correlations, as [`~hf_meanmax.evaluation.correlations.correlation_matrix`] gives them; NaN
            where there is none.

    Raises:
        ValueError: no name, or a matrix of another shape or with values outside -1..1.
        ImportError: matplotlib is not installed.
    """
    size = len(names)
    if size == 0 or np.shape(matrix) != (size, size):
        raise ValueError(f"{size} names need a matrix of {size} rows and columns, got {np.shape(matrix)}.")
    largest = np.nanmax(np.abs(matrix), initial=0)
    if largest > 1 + 1e-9:
        raise ValueError(f"A correlation is {largest:.3g} in size; they are between -1 and 1.")
    longest = 0.085 * max(len(name) for name in names)
    figure = new_figure(_CELL * size + longest + 1.6, _CELL * size + longest + 0.6)
    axes = figure.subplots()
    import matplotlib

    colors = matplotlib.colormaps["PiYG"].with_extremes(bad="0.8")
    image = axes.imshow(np.ma.masked_invalid(matrix), cmap=colors, vmin=-1, vmax=1)
    for row, column in np.argwhere(~np.isnan(matrix)):
        color = "white" if abs(matrix[row, column]) > _DARK else "black"
        axes.text(column, row, _cell_text(matrix[row, column]), ha="center", va="center", fontsize=8, color=color)
    _label_cells(axes, names)
    figure.colorbar(image, ax=axes, label="Pearson correlation", shrink=min(1.0, 0.6 + 1 / size), pad=0.02)
    return figure


def _cell_text(value: float) -> str:
    """`.62`, `-.51`, `1`: two decimals without the leading zero."""
    text = f"{round(value, 2) + 0.0:.2f}"
    return text[:-3] if text in ("1.00", "-1.00") else text.replace("0.", ".", 1)
