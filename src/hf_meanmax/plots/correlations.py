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
    """Names along both sides, and thin lines between the cells."""
    axes.set_xticks(range(len(names)), names, rotation=90)
    axes.set_yticks(range(len(names)), names)
    axes.set_xticks(np.arange(len(names) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(names) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=0.6)
    axes.tick_params(which="both", length=0, labelsize=9)
    for spine in axes.spines.values():
        spine.set_visible(False)


def plot_correlations(
    names: Sequence[str],
    matrix: np.ndarray,
    lower: np.ndarray | None = None,
    groups: tuple[str, str] | None = None,
) -> Figure:
    """Correlations between metrics as a heat map with a number in each cell (Cifka 2018, figure 5.9).

    Positive ones are green, negative ones pink, and cells without a value grey.

    Args:
        names: K metrics.
        matrix: `(K, K)` correlations, as [`~hf_meanmax.evaluation.correlations.correlation_matrix`] gives them; NaN
            where there is none.
        lower: `(K, K)` correlations of the same metrics over another group of models, shown below the diagonal, while
            `matrix` is shown above; the diagonal is left out. By default `matrix` fills both halves.
        groups: what the models above and below the diagonal are called, for the axes.

    Raises:
        ValueError: no name, or a matrix of another shape or with values outside -1..1.
        ImportError: matplotlib is not installed.
    """
    size = len(names)
    for part in (matrix, matrix if lower is None else lower):
        if size == 0 or np.shape(part) != (size, size):
            raise ValueError(f"{size} names need a matrix of {size} rows and columns, got {np.shape(part)}.")
        if np.nanmax(np.abs(part), initial=0) > 1 + 1e-9:
            raise ValueError(f"A correlation is {np.nanmax(np.abs(part)):.3g} in size; they are between -1 and 1.")
    shown = np.array(matrix, dtype=np.float64)
    if lower is not None:
        below = np.tril_indices(size, -1)
        shown[below] = np.asarray(lower)[below]
        np.fill_diagonal(shown, np.nan)

    longest = 0.085 * max(len(name) for name in names)
    figure = new_figure(_CELL * size + longest + 1.6, _CELL * size + longest + 0.6)
    axes = figure.subplots()
    import matplotlib

    colors = matplotlib.colormaps["PiYG"].with_extremes(bad="0.8")
    image = axes.imshow(np.ma.masked_invalid(shown), cmap=colors, vmin=-1, vmax=1)
    for row in range(size):
        for column in range(size):
            value = shown[row, column]
            if not np.isnan(value):
                color = "white" if abs(value) > _DARK else "black"
                axes.text(column, row, _cell_text(value), ha="center", va="center", fontsize=8, color=color)
    _label_cells(axes, names)
    if groups is not None:
        axes.set_title(f"above the diagonal: {groups[0]}; below: {groups[1]}", fontsize=10)
    figure.colorbar(image, ax=axes, label="Pearson correlation", shrink=min(1.0, 0.6 + 1 / size), pad=0.02)
    return figure


def _cell_text(value: float) -> str:
    """`.62`, `-.51`, `1`: two decimals without the leading zero."""
    text = f"{round(value, 2) + 0.0:.2f}"
    return text[:-3] if text in ("1.00", "-1.00") else text.replace("0.", ".", 1)
