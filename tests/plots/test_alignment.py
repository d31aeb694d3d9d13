"""Figures of alignments: a line for each weight that counts, and pages that stand alone."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from hf_meanmax.plots.alignment import (
    LEAST_WEIGHT,
    alignment_page,
    attention_by_position,
    induced_alignment,
    plot_alignment,
    plot_attention_by_position,
)

pytest.importorskip("matplotlib")
from matplotlib.collections import LineCollection

SOURCE, TARGET = ["a", "<man>", "sleeps", "</s>"], ["ein", "Mann", "&", "\u4e2d", "</s>"]


def weights_of(heads: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """B `(T, heads)` and A `(heads, N)`, distributions."""
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(heads), len(TARGET)), rng.dirichlet(np.full(len(SOURCE), 0.3), heads)


def test_heads_sum_to_the_product():
    rows, words = weights_of()
    parts = induced_alignment(rows, words)
    assert parts.shape == (3, 5, 4)
    np.testing.assert_allclose(parts.sum(axis=0), rows @ words)
    np.testing.assert_allclose(parts.sum(axis=(0, 2)), 1)
    with pytest.raises(ValueError, match=r"\(5, 3\) and word_weights \(2, 4\)"):
        induced_alignment(rows, words[:2])


@pytest.mark.parametrize("heads", [1, 3, 12])
def test_a_line_for_each_weight(heads):
    """From the source above to what was said below, as thick as the weight, in one colour a head."""
    weights = induced_alignment(*weights_of(heads))
    figure = plot_alignment(SOURCE, TARGET, weights)
    lines = [item for item in figure.axes[0].collections if isinstance(item, LineCollection)]
    drawn = weights[weights >= LEAST_WEIGHT]
    assert len(lines) == len(drawn) < weights.size
    widths = sorted(float(line.get_linewidths()[0]) for line in lines)
    np.testing.assert_allclose(widths, np.sort(drawn) * (max(widths) / drawn.max()))
    colors = {tuple(line.get_colors()[0][:3]) for line in lines}
    assert len(colors) == len({head for head, _, _ in np.argwhere(weights >= LEAST_WEIGHT)})
    for line in lines:
        (top, bottom) = line.get_segments()[0]
        assert (top[1], bottom[1]) == (1, 0)
        assert top[0] * len(SOURCE) % 1 == pytest.approx(0.5)
        assert bottom[0] * len(TARGET) % 1 == pytest.approx(0.5)
    figure.savefig("/dev/null", format="png")


def test_attention_by_relative_position():
    """Short texts do not count; a token that lies in two stretches is shared; each head's profile sums to 1."""
    first = np.zeros((2, 8))
    first[0, 0] = first[1, 7] = 1
    second = np.zeros((2, 12))
    second[0, :2], second[1, 11] = 0.5, 1
    profile = attention_by_position([first, second, np.ones((2, 3)) / 3], bins=4)
    np.testing.assert_allclose(profile, [[1, 0, 0, 0], [0, 0, 0, 1]])
    shared = attention_by_position([np.eye(9)[[4]]], bins=2)
    np.testing.assert_allclose(shared, [[0.5, 0.5]])
    rng = np.random.default_rng(0)
    many = [rng.dirichlet(np.ones(n), 5) for n in (8, 11, 30)]
    np.testing.assert_allclose(attention_by_position(many, bins=7).sum(axis=1), 1)
    assert len([axes for axes in plot_attention_by_position(profile).axes if axes.get_visible()]) == 2
    with pytest.raises(ValueError, match="No text has 8 tokens"):
        attention_by_position([np.ones((2, 3)) / 3])
    with pytest.raises(ValueError, match="heads, another of"):
        attention_by_position([first, first[:1]])


class Page(HTMLParser):
    """The elements of a page, and what it would load."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)


def test_the_page_stands_alone():
    rows, words = weights_of()
    parts = induced_alignment(rows, words)
    text = alignment_page(
        "A < B", [(SOURCE, TARGET, parts, words), (SOURCE[:2], TARGET[:1], parts[:, :1, :2], words[:, :2])]
    )
    page = Page(text)
    assert not [attrs for _, attrs in page.found if {"src", "href"} & set(attrs)]
    assert not re.search(r"https?://|@import|url\(", text)
    assert page.words.count("<man>") == 4  # above the lines and in the table, in both texts
    assert "A < B" in page.words
    lines = [attrs for tag, attrs in page.found if tag == "line"]
    expected = (parts >= LEAST_WEIGHT).sum() + (parts[:, :1, :2] >= LEAST_WEIGHT).sum()
    assert len(lines) == expected
    boxes = [attrs["data-head"] for tag, attrs in page.found if tag == "input"]
    assert boxes == ["0", "1", "2"] * 2
    assert {line["class"] for line in lines} == {"head-0", "head-1", "head-2"}


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones((3, 5, 3)) / 3, r"shape \(3, 5, 3\); expected \(heads, T=5, N=4\)"),
        (np.full((3, 5, 4), 1.2), "holds 1.2"),
        (np.full((3, 5, 4), np.nan), "holds nan"),
    ],
)
def test_what_is_no_alignment(weights, message):
    with pytest.raises(ValueError, match=message):
        plot_alignment(SOURCE, TARGET, weights)
