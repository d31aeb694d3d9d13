"""Figures of compound attention: the alignment of two texts induced by two attentions, and where each head reads."""

from __future__ import annotations

import colorsys
import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .figures import checked_shares, new_figure
from .labels import TokenAxis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST_WEIGHT = 0.01  # thinner lines are left out (compound attention, figure 5.11)
_THICKEST = 7.0  # points, for a weight of 1
_SHORTEST = 8  # tokens; shorter texts are left out of averages by position


def induced_alignment(row_weights: np.ndarray, word_weights: np.ndarray) -> np.ndarray:
    """Each head's part of the alignment B A (compound attention, eq. 4.7): `(heads, T, N)`, which sums to B A.

    Args:
        row_weights: B, the decoder's weights `(T, heads)` of the rows at each of T steps.
        word_weights: A, the weights `(heads, N)` of the N source tokens in each row.
    """
    rows, words = np.asarray(row_weights, dtype=np.float64), np.asarray(word_weights, dtype=np.float64)
    if rows.ndim != 2 or words.ndim != 2 or rows.shape[1] != words.shape[0]:
        raise ValueError(
            f"row_weights have the shape {rows.shape} and word_weights {words.shape}; (T, heads) and (heads, N) are "
            "needed."
        )
    return rows.T[:, :, None] * words[:, None, :]


def plot_alignment(source_tokens: Sequence[str], target_tokens: Sequence[str], alignment: np.ndarray) -> Figure:
    """Draws the source above, the generated text below, and a line between each pair of tokens, as thick as its weight
    and in the head's colour; weights below 0.01 are left out (compound attention, figure 5.11 a, b).

    Args:
        source_tokens, target_tokens: the N and the T tokens.
        alignment: `(heads, T, N)`, see [`induced_alignment`].

    Raises:
        ValueError: an array of another shape, or weights outside 0..1.
        ImportError: matplotlib is not installed.
    """
    weights = _checked(alignment, target_tokens, source_tokens)
    figure = new_figure()
    from matplotlib.collections import LineCollection

    above, below = TokenAxis(source_tokens), TokenAxis(target_tokens)
    figure.set_size_inches(max(above.width, below.width, 2.5) + 0.6, 2.2 + above.height + below.height)
    axes = figure.subplots()
    top = axes.twiny()
    below.apply(axes)
    above.apply(top)
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    for name in ("left", "right", "top", "bottom"):
        axes.spines[name].set_visible(False)
        top.spines[name].set_visible(False)
    for head, step, place in _lines(weights):
        # The axes have different numbers of tokens, so positions are shares of the width.
        ends = (((place + 0.5) / len(source_tokens), 1.0), ((step + 0.5) / len(target_tokens), 0.0))
        line = LineCollection(
            [ends], colors=[_color(head, len(weights))], linewidths=_THICKEST * weights[head, step, place], alpha=0.75,
            transform=axes.transAxes,
        )  # fmt: skip
        axes.add_collection(line)
    return figure


def attention_by_position(word_weights: Iterable[np.ndarray], bins: int = 20) -> np.ndarray:
    """Mean weight of each head by relative position in the text, `(heads, bins)`; each row sums to 1.

    Short texts are left out (compound attention, figure 5.11 c).

    Args:
        word_weights: A, `(heads, N)` of each text.
        bins: number of equal parts of a text; a token that spans several is shared among them.

    Raises:
        ValueError: no text is long enough, or their numbers of heads differ.
    """
    total, count = None, 0
    for weights in word_weights:
        weights = np.asarray(weights, dtype=np.float64)
        length = weights.shape[1]
        if length < _SHORTEST:
            continue
        # The share of token n that lies in bin b.
        edges = np.linspace(0, length, bins + 1)
        places = np.arange(length)[:, None]
        shares = np.clip(np.minimum(edges[1:], places + 1) - np.maximum(edges[:-1], places), 0, None)
        if total is not None and len(total) != len(weights):
            raise ValueError(f"A text has weights of {len(weights)} heads, another of {len(total)}.")
        total = weights @ shares + (0 if total is None else total)
        count += 1
    if total is None:
        raise ValueError(f"No text has {_SHORTEST} tokens or more.")
    return total / count


def plot_attention_by_position(profile: np.ndarray) -> Figure:
    """Draws [`attention_by_position`] in a panel per head (compound attention, figure 5.11 c)."""
    profile = np.asarray(profile, dtype=np.float64)
    heads, bins = profile.shape
    columns = min(4, heads)
    figure = new_figure(2.0 * columns + 0.6, 1.3 * -(-heads // columns) + 0.6)
    panels = figure.subplots(-(-heads // columns), columns, sharex=True, sharey=True, squeeze=False)
    places = (np.arange(bins) + 0.5) / bins
    for number, axes in enumerate(panels.ravel()):
        if number >= heads:
            axes.set_visible(False)
            continue
        axes.bar(places, profile[number], width=1 / bins, color=_color(number, heads), alpha=0.7, linewidth=0)
        axes.set_title(f"head {number + 1}", fontsize=8, pad=2)
        axes.tick_params(labelsize=7)
        axes.set_xlim(0, 1)
    figure.supxlabel("relative position in the text", fontsize=8)
    figure.supylabel("mean weight", fontsize=8)
    return figure


def alignment_page(title: str, texts: Sequence[tuple[Sequence[str], Sequence[str], np.ndarray, np.ndarray]]) -> str:
    """A self-contained HTML page: for each text its alignment, a switch for each head, and the words that each head
    reads.

    Args:
        title: title of the page.
        texts: source tokens (N), target tokens (T), their alignment `(heads, T, N)` (see [`induced_alignment`]) and the
            weights `(heads, N)` of the source tokens in each row.

    Raises:
        ValueError: arrays of other shapes, or weights outside 0..1.
    """
    parts = [_PAGE_HEAD.format(title=html.escape(title))]
    for number, (source, target, alignment, words) in enumerate(texts, 1):
        weights = _checked(alignment, target, source)
        colors = [_color(head, len(weights)) for head in range(len(weights))]
        switches = "".join(
            f'<label style="color:{color}"><input type="checkbox" checked data-head="{head}"> head {head + 1}</label> '
            for head, color in enumerate(colors)
        )
        parts.append(f"<section><h2>{number}</h2><p>{switches if len(colors) > 1 else ''}</p>")
        parts.append(_alignment_svg(source, target, weights, colors))
        parts.append(_head_table(source, np.asarray(words, dtype=np.float64), colors))
        parts.append("</section>")
    parts.append(_PAGE_END)
    return "\n".join(parts)


_PAGE_HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 14px system-ui, sans-serif; margin: 2em; color: #222; }}
section {{ margin-bottom: 3em; overflow-x: auto; }}
svg text {{ font-size: 13px; text-anchor: middle; }}
td, th {{ padding: 2px 6px; font-size: 12px; font-weight: normal; text-align: center; }}
.off {{ display: none; }}
</style></head><body><h1>{title}</h1>"""
_PAGE_END = """<script>
document.querySelectorAll("input[data-head]").forEach(box => box.addEventListener("change", () => {
  box.closest("section").querySelectorAll(`.head-${box.dataset.head}`).forEach(
    part => part.classList.toggle("off", !box.checked));
}));
</script></body></html>"""
_CELL, _HEIGHT = 90, 180  # pixels


def _alignment_svg(source: Sequence[str], target: Sequence[str], weights: np.ndarray, colors: Sequence[str]) -> str:
    width = _CELL * max(len(source), len(target))

    def place(index: int, count: int) -> float:
        return round((index + 0.5) / count * width, 1)

    lines = [
        f'<line class="head-{head}" x1="{place(n, len(source))}" y1="24" x2="{place(step, len(target))}" '
        f'y2="{_HEIGHT - 24}" stroke="{colors[head]}" stroke-opacity="0.75" '
        f'stroke-width="{10 * weights[head, step, n]:.2f}"><title>head {head + 1}: {weights[head, step, n]:.2f}</title>'
        "</line>"
        for head, step, n in _lines(weights)
    ]
    words = [
        f'<text x="{place(index, len(tokens))}" y="{y}">{html.escape(token)}</text>'
        for tokens, y in ((source, 16), (target, _HEIGHT - 8))
        for index, token in enumerate(tokens)
    ]
    return f'<svg width="{width}" height="{_HEIGHT}" role="img">{"".join(lines + words)}</svg>'


def _head_table(tokens: Sequence[str], words: np.ndarray, colors: Sequence[str]) -> str:
    header = "<tr><th></th>" + "".join(f"<th>{html.escape(token)}</th>" for token in tokens) + "</tr>"
    rows = [
        f'<tr class="head-{head}"><th style="color:{colors[head]}">head {head + 1}</th>'
        + "".join(
            f'<td style="background:{colors[head]}{round(255 * min(1.0, weight)):02x}">{weight:.2f}</td>'
            for weight in weights
        )
        + "</tr>"
        for head, weights in enumerate(words)
    ]
    return f"<table>{header}{''.join(rows)}</table>"


def _lines(weights: np.ndarray) -> list[tuple[int, int, int]]:
    """Head, step and position of each weight to draw, in ascending order of weight."""
    found = np.argwhere(weights >= LEAST_WEIGHT)
    order = np.argsort(weights[tuple(found.T)], kind="stable")
    return [(head, step, place) for head, step, place in found[order].tolist()]


def _color(head: int, heads: int) -> str:
    """The colour of a head: from the palette if it is large enough, otherwise one of evenly spaced hues."""
    if heads <= len(_PALETTE):
        return f"#{_PALETTE[head]}"
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hsv_to_rgb(head / heads, 0.75, 0.8))


_PALETTE = (
    "1f77b4", "ff7f0e", "2ca02c", "d62728", "9467bd", "8c564b", "e377c2", "7f7f7f", "bcbd22", "17becf",
)  # fmt: skip


def _checked(alignment: np.ndarray, target: Sequence[str], source: Sequence[str]) -> np.ndarray:
    return checked_shares("alignment", alignment, {"heads": None, "T": len(target), "N": len(source)})
