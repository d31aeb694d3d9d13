"""The output of the tabs, as self-contained HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from hf_meanmax.cosines import paired_cosines
from hf_meanmax.inspection.decoding import DecodingRecord
from hf_meanmax.plots.attention import shaded_words

from .model import DecodedText, EncodedSentences, SearchResult

STYLE = """
.hm { font-size: 15px; line-height: 1.6; color: var(--body-text-color); overflow-wrap: anywhere; }
.hm .wide { overflow-x: auto; }
.hm table { border-collapse: collapse; margin: .5em 0; }
.hm table, .hm thead, .hm tbody, .hm tr, .hm th, .hm td { border: 0; }
.hm th, .hm td { padding: .3em .6em; text-align: left; vertical-align: middle; font-weight: normal; }
.hm .number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.hm table.map td { text-align: center; min-width: 3em; padding: .5em .3em; font-variant-numeric: tabular-nums; }
.hm table.map thead th { text-align: center; }
.hm table.reading { overflow-wrap: normal; white-space: nowrap; }
.hm table.texts tr > th:last-child { min-width: 9em; }
.hm .rows { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20em), 1fr)); gap: 1em 2em; }
.hm h4 { margin: .8em 0 .3em; font-weight: 600; }
.hm p.note { opacity: .75; font-size: 13px; margin: .4em 0; }
.hm p.said { font-size: 18px; margin: .3em 0 .6em; }
.hm p.message { border-left: 4px solid #c0392b; padding: .4em .8em; background: #c0392b1a; }
.hm .words span { padding: 1px 3px; border-radius: 3px; }
.hm .tokens { display: flex; flex-wrap: wrap; gap: .35em; }
.hm .tokens > span { display: inline-flex; flex-direction: column; align-items: center; padding: .1em .45em;
  border-radius: 4px; line-height: 1.3; }
.hm .tokens small { font-size: 11px; font-variant-numeric: tabular-nums; }
@media (max-width: 600px) {
  .hm { font-size: 14px; }
  .hm th, .hm td { padding: .3em; }
  .tab-container button { padding: 0 4px !important; font-size: 13px !important; }
}
"""
_BLUE = "8,81,156"


def panel(content: str) -> str:
    """Wraps content in the frame of all output."""
    return f'<div class="hm">{content}</div>'


def message_panel(text: str) -> str:
    """An error message for the reader of the page."""
    return panel(f'<p class="message" role="alert">{escape(text)}</p>')


def similarity_panel(texts: Sequence[str], cosines: np.ndarray) -> str:
    """A heat map of the cosines `(n, n)`."""
    head = "".join(f'<th class="number">{number}</th>' for number in range(1, len(texts) + 1))
    rows = []
    for number, (text, row) in enumerate(zip(texts, cosines.tolist(), strict=True), 1):
        cells = "".join(f'<td style="{_shade(value)}">{value:.2f}</td>' for value in row)
        rows.append(f'<tr><th class="number">{number}</th>{cells}<th>{escape(text)}</th></tr>')
    table = f'<table class="map texts"><thead><tr><th></th>{head}<th></th></tr></thead>{"".join(rows)}</table>'
    return panel(f'<div class="wide">{table}</div><p class="note">Cosines of the vectors.</p>')


def decoded_panel(vector: np.ndarray, changed: np.ndarray, decoded: DecodedText) -> str:
    """A decoded text, with the probability of each token."""
    (cosine,) = paired_cosines(vector[None], changed[None])
    tokens = "".join(
        f'<span style="{_shade(value)}">{escape(token)}<small>{value:.2f}</small></span>'
        for token, value in zip(decoded.tokens, decoded.probabilities, strict=True)
    )
    return panel(
        f'<p class="said">{escape(decoded.text) or "(an empty text)"}</p><h4>Probability of each token</h4>'
        f'<div class="tokens">{tokens}</div><p class="note">Decoded from {np.count_nonzero(changed):,} of '
        f"{len(vector):,} numbers; cosine to the text's own vector {cosine:.3f}.</p>"
    )


def between_panel(path: Sequence[tuple[float, np.ndarray, DecodedText]]) -> str:
    """The steps of a path between two vectors, a row per step."""
    rows = "".join(
        f'<tr><td class="number">{share:.2f}</td><td class="number" style="{_shade(cosines[0])}">{cosines[0]:.2f}</td>'
        f'<td class="number" style="{_shade(cosines[1])}">{cosines[1]:.2f}</td><td>{escape(decoded.text)}</td></tr>'
        for share, cosines, decoded in path
    )
    heads = '<th class="number">share</th><th class="number">first</th><th class="number">second</th><th>decoded</th>'
    return panel(
        f"<table><thead><tr>{heads}</tr></thead>{rows}</table>"
        '<p class="note">Share of the second vector in the mean of both; cosines to the first and to the second.</p>'
    )


def search_panel(corpus: EncodedSentences, found: SearchResult) -> str:
    """The nearest sentences, and the time to find them."""
    rows = "".join(
        f'<tr><td class="number" style="{_shade(score)}">{score:.2f}</td><td>{escape(text)}</td></tr>'
        for score, text in found.neighbors
    )
    rate = len(corpus.texts) / max(corpus.seconds, 1e-9)
    return panel(
        f'<table>{rows}</table><p class="note">{len(corpus.texts):,} sentences encoded in {corpus.seconds:.2f} s '
        f"({rate:,.0f} a second); the query in {found.encoding * 1e3:.1f} ms, the exact search in "
        f"{found.searching * 1e3:.1f} ms.</p>"
    )


_READS = {
    "max": "share of the dimensions in which the word is the largest",
    "mean": "part of the row that comes from the word",
    "last": "where the last state stands",
    "weighted_mean": "weight of the word",
}


def attention_panel(tokens: Sequence[str], shares: Mapping[str, np.ndarray], record: DecodingRecord | None) -> str:
    """The share of each word in each latent row, side by side; below, the decoder's attention over the rows."""
    top = max(float(values.max()) for values in shares.values())
    parts = [
        f"<section><h4>{escape(name.replace('_', ' '))}</h4>"
        f'<p class="words">{shaded_words(tokens, values, top)}</p>{_strongest(tokens, values)}'
        f'<p class="note">{_READS.get(name, "weight of the word")}</p></section>'
        for name, values in shares.items()
    ]
    return panel(f'<div class="rows">{"".join(parts)}</div>{"" if record is None else _reading(record, list(shares))}')


def _strongest(tokens: Sequence[str], values: np.ndarray) -> str:
    best = [place for place in np.argsort(-values, kind="stable")[:3] if values[place] > 0]
    return f'<p class="note">{", ".join(f"{escape(tokens[place])} {values[place]:.2f}" for place in best)}</p>'


def _reading(record: DecodingRecord, names: Sequence[str]) -> str:
    """The decoder's attention over the latent rows at each generated token, averaged over heads and layers."""
    if record.attentions is None or record.attentions.shape[-1] != len(names):
        return ""
    weights = record.attentions.mean(axis=(0, 1))
    heads = "".join(f"<td>{escape(token)}</td>" for token in record.tokens)
    rows = "".join(
        f"<tr><th>{escape(name.replace('_', ' '))}</th>"
        + "".join(f'<td style="{_shade(value)}">{value:.2f}</td>' for value in weights[:, row].tolist())
        + "</tr>"
        for row, name in enumerate(names)
    )
    return (
        "<h4>What the decoder reads while it generates the text again</h4>"
        f'<div class="wide"><table class="map reading"><tr><th></th>{heads}</tr>{rows}</table></div>'
    )


def _shade(value: float) -> str:
    """A background from white to blue for 0 to 1, with text that can be read on it."""
    share = min(max(value, 0.0), 1.0)
    return f"background:rgba({_BLUE},{share:.2f});" + ("color:#fff;" if share > 0.55 else "")
