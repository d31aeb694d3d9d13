"""Which words of a text inner attention reads: figures, a page, and terminal text."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .figures import checked_shares, new_figure
from .labels import TokenAxis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHADES = (231, 224, 217, 210, 203, 196)  # of a terminal's 256 colours, from white to red
_RED = "c0392b"


class ReadText(NamedTuple):
    """A text, with the attention weights and predictions of models.

    Attributes:
        tokens: its N tokens.
        weights: A, `(heads, N)`, by the name of the model.
        predictions: the prediction of each model, for instance a label; may be empty.
    """

    tokens: Sequence[str]
    weights: Mapping[str, np.ndarray]
    predictions: Mapping[str, str] = {}


def plot_head_maps(
    tokens: Sequence[str], weights: np.ndarray | Mapping[str, np.ndarray], row_names: Sequence[str] | None = None
) -> Figure:
    """Heat map of each head's weights of the words of a text, a row per head, with their mean as the last row
    (structured self-attentive embedding, figures 1-2; compound attention, figure 5.11).

    Args:
        tokens: the N tokens.
        weights: A, `(heads, N)`; or a mapping from models' names to their A, which are drawn side by side.
        row_names: names of rows that are not heads, for instance `("max", "mean")`; the mean is then left out.

    Raises:
        ValueError: an array of another shape, or weights outside 0..1.
        ImportError: matplotlib is not installed.
    """
    named = weights if isinstance(weights, Mapping) else {"": weights}
    if row_names is None:
        maps = {name: _with_mean(tokens, given) for name, given in named.items()}
    else:
        axes_of_rows = {"rows": len(row_names), "N": len(tokens)}
        maps = {
            name: (checked_shares("weights", given, axes_of_rows), list(row_names)) for name, given in named.items()
        }
    figure, axis = new_figure(), TokenAxis(tokens)
    rows = max(len(shown) for shown, _ in maps.values())
    figure.set_size_inches((axis.width + 1.9) * len(maps), 0.2 * rows + axis.height + 0.5 + 0.2 * (len(maps) > 1))
    panels = figure.subplots(1, len(maps), squeeze=False)[0]
    top = max(0.2, *(shown.max() for shown, _ in maps.values()))
    for axes, (name, (shown, names)) in zip(panels, maps.items(), strict=True):
        image = axes.imshow(shown, aspect="auto", cmap="Blues", vmin=0, vmax=top)
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.set_title(name, fontsize=9)
        axis.apply(axes)
    figure.colorbar(image, ax=panels.tolist(), label="weight", pad=0.02)
    return figure


def _with_mean(tokens: Sequence[str], weights: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """The weights, with their mean as the last row if there are several heads, and the names of the rows."""
    shown = checked_shares("weights", weights, {"heads": None, "N": len(tokens)})
    names = [f"head {number}" for number in range(1, len(shown) + 1)]
    if len(shown) == 1:
        return shown, names
    return np.vstack([shown, shown.mean(axis=0)]), [*names, "mean"]


def attention_text(tokens: Sequence[str], weights: np.ndarray, color: bool = True) -> str:
    """Text for the terminal: the words with their mean weight over heads, then each head's three largest weights.

    Args:
        tokens: the N tokens.
        weights: A, `(heads, N)`.
        color: shade the words; otherwise each is followed by a digit from 0 to 9, 9 for the largest weight.

    Raises:
        ValueError: an array of another shape, or weights outside 0..1.
    """
    shown, names = _with_mean(tokens, weights)
    # A subword token may include the space before it.
    tokens = [token.strip() or token for token in tokens]
    shares = shown[-1] / max(shown[-1].max(), 1e-12)
    if color:
        words = [
            f"\x1b[30;48;5;{_SHADES[round(share * (len(_SHADES) - 1))]}m{token}\x1b[0m"
            for token, share in zip(tokens, shares, strict=True)
        ]
    else:
        words = [f"{token}/{int(share * 9.999)}" for token, share in zip(tokens, shares, strict=True)]
    lines = [" ".join(words)]
    if len(shown) > 1:
        for name, row in zip(names[:-1], shown[:-1], strict=True):
            best = np.argsort(-row, kind="stable")[:3]
            lines.append(f"  {name}: " + ", ".join(f"{tokens[place]} {row[place]:.2f}" for place in best))
    return "\n".join(lines)


def attention_page(title: str, texts: Sequence[ReadText]) -> str:
    """A self-contained HTML page: for each model, each text shaded by the mean weight over heads, and by each head in a
    collapsed section.

    Raises:
        ValueError: arrays of other shapes, or weights outside 0..1.
    """
    parts = [_PAGE_HEAD.format(title=html.escape(title))]
    for number, text in enumerate(texts, 1):
        parts.append(f"<section><h2>{number}</h2>")
        parts.append('<div class="models">')
        for name, weights in text.weights.items():
            shown, names = _with_mean(text.tokens, weights)
            predicted = text.predictions.get(name, "")
            parts.append(
                f"<article><h3>{html.escape(name)}{': ' if name and predicted else ''}{html.escape(predicted)}</h3>"
            )
            parts.append(f"<p>{shaded_words(text.tokens, shown[-1])}</p>")
            if len(shown) > 1:
                heads = (
                    f"<p><b>{head}</b> {shaded_words(text.tokens, row)}</p>"
                    for head, row in zip(names[:-1], shown[:-1], strict=True)
                )
                parts.append(f"<details><summary>{len(shown) - 1} heads</summary>{''.join(heads)}</details>")
            parts.append("</article>")
        parts.append("</div></section>")
    parts.append("</body></html>")
    return "\n".join(parts)


_PAGE_HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 14px/1.7 system-ui, sans-serif; margin: 2em; color: #222; }}
section {{ margin-bottom: 2em; }}
h2 {{ font-size: 16px; }} h3 {{ font-size: 13px; font-weight: normal; color: #666; }}
.models {{ display: grid; grid-auto-flow: column; grid-auto-columns: minmax(0, 1fr); gap: 2em; }}
span {{ padding: 1px 2px; border-radius: 2px; }}
</style></head><body><h1>{title}</h1>"""


def shaded_words(tokens: Sequence[str], weights: np.ndarray, top: float | None = None) -> str:
    """HTML of the N tokens, each shaded by its weight; `top` (default: the largest weight) is the darkest."""
    shades = (200 * weights / max(weights.max() if top is None else top, 1e-12)).round().astype(int)
    return " ".join(
        f'<span style="background:#{_RED}{shade:02x}" title="{weight:.3f}">{html.escape(token)}</span>'
        for token, weight, shade in zip(tokens, weights.tolist(), shades.tolist(), strict=True)
    )
