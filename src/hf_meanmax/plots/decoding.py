"""Figures of how a decoder reads the latent rows while it generates: attention over them, and gates on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .figures import checked_shares, new_figure
from .labels import TokenAxis, token_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

_ROW = 0.34  # inches
_MOST_BINS = 64
GATE_QUANTILES = (0.1, 0.9)


def plot_latent_attention(
    tokens: Sequence[str], attentions: np.ndarray, row_names: Sequence[str], per_head: bool = False
) -> Figure:
    """The decoder's attention over the latent rows at each step as a heat map (Zhang, Wu, Li and Li 2018, figure 2).

    Args:
        tokens: the tokens generated at each of T steps.
        attentions: weights `(heads, T, L)` of one text and layer.
        row_names: of the L latent rows, for instance `("max", "mean")`.
        per_head: also show each head in its own panel, below the mean over the heads.

    Raises:
        ValueError: no token, an array of another shape, or weights that do not sum to 1 over the rows.
        ImportError: matplotlib is not installed.
    """
    _check_tokens(tokens)
    values = checked_shares("attentions", attentions, {"heads": None, "T": len(tokens), "L": len(row_names)})
    totals = values.sum(axis=2)
    if np.abs(totals - 1).max() > 0.02:
        head, step = np.unravel_index(np.abs(totals - 1).argmax(), totals.shape)
        raise ValueError(
            f"attentions of head {head + 1} at step {step + 1} sum to {totals[head, step]:.3g} over the rows; the "
            "weights of a step must sum to 1."
        )
    panels = [("mean of\nthe heads" if len(values) > 1 else "", values.mean(axis=0))]
    if per_head:
        panels += [(f"head {number}", weights) for number, weights in enumerate(values, 1)]
    figure = new_figure()
    axis = TokenAxis(tokens)
    width = axis.width + 2.6
    figure.set_size_inches(width, (_ROW * len(row_names) + 0.1) * len(panels) + axis.height + 0.3)
    all_axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    # Without latent rows, the names are source tokens.
    labels, families = token_labels(row_names)
    for axes, (name, weights) in zip(all_axes, panels, strict=True):
        image = axes.imshow(weights.T, aspect="auto", cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        axes.set_xticks([])
        axes.set_yticks(range(len(labels)), labels, fontsize=8, fontfamily=families, parse_math=False)
        axes.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
    axis.apply(all_axes[-1])
    _add_scale(figure, image, all_axes, "attention", width)
    return figure


def plot_latent_gates(tokens: Sequence[str], gates: np.ndarray, row_names: Sequence[str]) -> Figure:
    """The gates on the latent rows over time (sigma in equations 19-20 of Zhang, Wu, Li and Zhang).

    Above: for each row, the mean over its dimensions as a line, and the range from the 10 % to the 90 % quantile.
    Below: for each row, a heat map of its dimensions, sorted by their mean over time; neighbours are averaged if there
    are many.

    Args:
        tokens: the tokens generated at each of T steps.
        gates: `(T, R, d)` of one text and layer, between 0 and 1.
        row_names: of the R gated rows, for instance `("max", "mean")`.

    Raises:
        ValueError: no token, an array of another shape, or a gate outside 0..1.
        ImportError: matplotlib is not installed.
    """
    _check_tokens(tokens)
    values = checked_shares("gates", gates, {"T": len(tokens), "R": len(row_names), "d": None})
    steps = np.arange(len(tokens))
    figure = new_figure()
    axis = TokenAxis(tokens)
    width = axis.width + 2.6
    figure.set_size_inches(width, 2.0 + 1.4 * len(row_names) + axis.height)
    lines, *maps = figure.subplots(1 + len(row_names), 1, height_ratios=[1.2, *[1] * len(row_names)])
    for number, name in enumerate(row_names):
        low, high = np.quantile(values[:, number], GATE_QUANTILES, axis=1)
        lines.plot(steps, values[:, number].mean(axis=1), marker=".", color=f"C{number}", label=name)
        lines.fill_between(steps, low, high, color=f"C{number}", alpha=0.12, linewidth=0)
    lines.set_xticks([])
    lines.set_xlim(-0.5, len(tokens) - 0.5)
    lines.set_ylim(0, 1)
    lines.set_ylabel("gate: mean,\n10-90 % of dimensions", fontsize=8)
    lines.tick_params(labelsize=8)
    lines.grid(axis="y", alpha=0.3)
    lines.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(row_names), frameon=False)
    for number, (axes, name) in enumerate(zip(maps, row_names, strict=True)):
        bins = sorted_bins(values[:, number])
        image = axes.imshow(bins, aspect="auto", cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_ylabel(f"{name}:\n{values.shape[2]:,} dimensions", fontsize=8)
    axis.apply(maps[-1])
    _add_scale(figure, image, maps, "gate", width)
    return figure


def sorted_bins(values: np.ndarray, most: int = _MOST_BINS) -> np.ndarray:
    """Activities `(T, d)` as rows `(bins, T)`: dimensions sorted by their mean over time, the most active first.

    More than `most` dimensions are averaged, in that order, into `most` bins.
    """
    order = np.argsort(-values.mean(axis=0), kind="stable")
    parts = np.array_split(order, min(most, values.shape[1]))
    return np.stack([values[:, part].mean(axis=1) for part in parts])


def _add_scale(figure: Figure, image: AxesImage, axes: Sequence[Axes] | np.ndarray, label: str, width: float) -> None:
    """Adds the colour bar of a heat map, with the same width in inches in every figure."""
    scale = figure.colorbar(image, ax=axes, fraction=0.15 / width, pad=0.1 / width, aspect=4 + 4 * len(axes))
    scale.set_label(label, size=8)
    scale.ax.tick_params(labelsize=8)


def _check_tokens(tokens: Sequence[str]) -> None:
    if isinstance(tokens, str) or not len(tokens):
        raise ValueError(f"tokens is {tokens!r}; give a list of what was generated at each step, one at least.")
