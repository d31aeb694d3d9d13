"""What inner attention reads, as figures, terminal text and a page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from hf_meanmax.plots.attention import ReadText, attention_page, attention_text, plot_head_maps

TOKENS = ["the", "food", "<was>", "awful"]
WEIGHTS = np.array([[0.1, 0.2, 0.0, 0.7], [0.0, 0.9, 0.1, 0.0]])


def test_head_maps_show_the_weights():
    pytest.importorskip("matplotlib")
    image = plot_head_maps(TOKENS, WEIGHTS).axes[0].images[0].get_array()
    np.testing.assert_allclose(image, [*WEIGHTS, WEIGHTS.mean(axis=0)])
    assert plot_head_maps(TOKENS, WEIGHTS[:1]).axes[0].images[0].get_array().shape == (1, 4)
    pair = plot_head_maps(TOKENS, {"with": WEIGHTS, "without": WEIGHTS[::-1]})
    panels = [axes for axes in pair.axes if axes.images]
    assert [axes.get_title() for axes in panels] == ["with", "without"]
    np.testing.assert_allclose(panels[1].images[0].get_array()[0], WEIGHTS[1])
    assert panels[0].images[0].get_clim() == panels[1].images[0].get_clim()  # the same colour means the same weight


def test_head_maps_of_named_rows():
    pytest.importorskip("matplotlib")
    axes = plot_head_maps(TOKENS, WEIGHTS, ("max", "mean")).axes[0]
    np.testing.assert_allclose(axes.images[0].get_array(), WEIGHTS)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["max", "mean"]
    with pytest.raises(ValueError, match="rows=3"):
        plot_head_maps(TOKENS, WEIGHTS, ("max", "mean", "last"))


def test_terminal_text():
    plain = attention_text(TOKENS, WEIGHTS, color=False).splitlines()
    assert plain[0] == "the/0 food/9 <was>/0 awful/6"  # of the sum over heads: .1, 1.1, .1, .7
    assert plain[1] == "  head 1: awful 0.70, food 0.20, the 0.10"
    assert plain[2] == "  head 2: food 0.90, <was> 0.10, the 0.00"
    shaded = attention_text(TOKENS, WEIGHTS)
    assert re.sub(r"\x1b\[[0-9;]*m", "", shaded).splitlines()[0] == " ".join(TOKENS)
    assert len(re.findall(r"48;5;196m", shaded)) == 1
    assert attention_text(["a"], np.array([[1.0]]), color=False) == "a/9"
    assert attention_text([" a", "b"], np.array([[0.5, 0.5]]), color=False) == "a/9 b/9"


def test_page_is_one_file_that_says_it_all():
    text = ReadText(TOKENS, {"with": WEIGHTS, "without": WEIGHTS[:1]}, {"with": "1 & bad"})
    page = attention_page("Reviews <test>", [text, text])
    words, opened = [], []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attributes):
            opened.append((tag, dict(attributes)))

        def handle_data(self, data):
            words.append(data)

    Reader().feed(page)
    assert "Reviews <test>" in words
    assert "2" in words
    assert "with: 1 & bad" in words
    assert words.count("<was>") == 2 * (3 + 1)  # the sum and two heads of one model, the only head of the other
    assert not any("src" in attributes or "href" in attributes for _, attributes in opened)
    assert "2 heads" in words
    shades = [a["style"] for tag, a in opened if tag == "span"][:4]
    assert shades == [f"background:#c0392b{value:02x}" for value in (18, 200, 18, 127)]


def test_other_numbers_are_refused():
    for weights in (WEIGHTS[:, :3], WEIGHTS * 3, -WEIGHTS):
        with pytest.raises(ValueError, match=r"weights has the shape|must be between 0 and 1"):
            attention_text(TOKENS, weights)
