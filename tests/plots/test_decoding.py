"""Figures of a decoder's attention and gates: what they show is what they were given, in labels that can be read."""

from __future__ import annotations

import sys
import warnings
from itertools import pairwise

import numpy as np
import pytest

from hf_meanmax.plots.decoding import plot_latent_attention, plot_latent_gates, sorted_bins
from hf_meanmax.plots.labels import TokenAxis, _warn_about_fonts, token_labels

matplotlib = pytest.importorskip("matplotlib")
font_manager = pytest.importorskip("matplotlib.font_manager")

ROWS = ("max", "mean")
ENGLISH = ["the", "extraordinarily", "$", "long", "$", "\u2423", "story", "of", "\ufffd", "</s>"]
CHINESE = ["中国", "经济", "，", "2025", "年", "增长", "。", "</s>"]


def attention_of(tokens: list[str], heads: int = 3, seed: int = 0) -> np.ndarray:
    first = np.random.default_rng(seed).random((heads, len(tokens)))
    return np.stack([first, 1 - first], axis=-1)


def gates_of(tokens: list[str], dimensions: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((len(tokens), len(ROWS), dimensions))


def x_labels(axes) -> list[str]:
    return [label.get_text() for label in axes.get_xticklabels()]


def panels(figure) -> list:
    """All axes but the colour bar, which comes last."""
    return figure.axes[:-1]


@pytest.fixture(autouse=True)
def one_warning_a_test():
    _warn_about_fonts.cache_clear()


@pytest.fixture
def only_dejavu(monkeypatch):
    """A machine with none but matplotlib's own fonts."""
    fonts = [font for font in font_manager.fontManager.ttflist if font.name.startswith(("DejaVu", "Last Resort"))]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", fonts)


def test_attention_is_averaged_over_the_heads():
    tokens = ["a", "cat", "sat", "</s>"]
    weights = attention_of(tokens)
    figure = plot_latent_attention(tokens, weights, ROWS)
    (axes,) = panels(figure)
    assert np.allclose(axes.images[0].get_array(), weights.mean(axis=0).T)
    assert axes.images[0].get_clim() == (0, 1)
    assert [label.get_text() for label in axes.get_yticklabels()] == list(ROWS)
    assert x_labels(axes) == tokens
    assert axes.get_ylabel() == "mean of\nthe heads"


def test_each_head_has_a_panel_below_the_mean():
    tokens = ["a", "cat", "</s>"]
    weights = attention_of(tokens, heads=4)
    all_axes = panels(plot_latent_attention(tokens, weights, ROWS, per_head=True))
    assert [axes.get_ylabel() for axes in all_axes] == ["mean of\nthe heads", *(f"head {n}" for n in (1, 2, 3, 4))]
    for axes, expected in zip(all_axes, [weights.mean(axis=0), *weights], strict=True):
        assert np.allclose(axes.images[0].get_array(), expected.T)
    assert x_labels(all_axes[-1]) == tokens


def test_gates_are_a_line_with_its_spread_above_a_map_a_row():
    tokens = ["a", "cat", "sat", "</s>"]
    gates = gates_of(tokens, dimensions=11)
    lines, *maps = panels(plot_latent_gates(tokens, gates, ROWS))
    assert [line.get_label() for line in lines.lines] == list(ROWS)
    assert [text.get_text() for text in lines.get_legend().get_texts()] == list(ROWS)
    for number, (line, band) in enumerate(zip(lines.lines, lines.collections, strict=True)):
        assert np.allclose(line.get_xdata(), range(4))
        assert np.allclose(line.get_ydata(), gates[:, number].mean(axis=1))
        for step in range(4):
            # Of 11 sorted values the quantiles 10 % and 90 % are the second and the last but one.
            expected = np.sort(gates[step, number])[[1, 9]]
            edge = band.get_paths()[0].vertices
            drawn = edge[edge[:, 0] == step, 1]
            assert np.allclose([drawn.min(), drawn.max()], expected)
    assert lines.get_ylim() == (0, 1)
    for number, axes in enumerate(maps):
        order = sorted(range(11), key=lambda dimension: -sum(gates[:, number, dimension]))
        assert np.allclose(axes.images[0].get_array(), gates[:, number, order].T)
        assert axes.images[0].get_clim() == (0, 1)
        assert axes.get_ylabel() == f"{ROWS[number]}:\n11 dimensions"
    assert x_labels(maps[-1]) == tokens


def test_many_dimensions_share_bins():
    values = np.random.default_rng(1).random((3, 10))
    order = np.argsort(-values.mean(axis=0))
    expected = [values[:, order[part]].mean(axis=1) for part in (slice(0, 3), slice(3, 6), slice(6, 8), slice(8, 10))]
    assert np.allclose(sorted_bins(values, most=4), expected)
    image = panels(plot_latent_gates(["a"] * 3, gates_of(["a"] * 3, 1000), ROWS))[1].images[0].get_array()
    assert image.shape == (64, 3)
    assert (np.diff(image.mean(axis=1)) <= 0).all()


@pytest.mark.parametrize("count", [1, 15, 60])
@pytest.mark.parametrize("words", [ENGLISH, CHINESE], ids=["english", "chinese"])
@pytest.mark.usefixtures("only_dejavu")
def test_labels_do_not_overlap_and_every_character_is_drawn(words, count):
    tokens = [words[place % len(words)] for place in range(count)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some tokens have characters")
        figures = [
            plot_latent_attention(tokens, attention_of(tokens), ROWS),
            plot_latent_gates(tokens, gates_of(tokens), ROWS),
        ]
        # matplotlib warns of a glyph that a font lacks and of axes that have no room left.
        warnings.simplefilter("error")
        for figure in figures:
            figure.draw_without_rendering()
    for figure in figures:
        bottom = panels(figure)[-1]
        boxes = [label.get_window_extent() for label in bottom.get_xticklabels()]
        assert len(boxes) == count
        assert all(not left.overlaps(right) for left, right in pairwise(boxes))
        assert min(box.y0 for box in boxes) >= 0
        assert bottom.get_window_extent().height > 15


def test_a_very_long_text_is_still_an_image():
    tokens = ["word"] * 5000
    figure = plot_latent_attention(tokens, attention_of(tokens, heads=1), ROWS)
    width = figure.get_size_inches()[0]
    assert width < 45
    assert 250 < len(x_labels(panels(figure)[0])) < 350


@pytest.mark.usefixtures("only_dejavu")
def test_tokens_that_no_font_can_draw_are_numbered_and_that_is_said_once():
    with pytest.warns(UserWarning, match=r"shows their places.*apt-get install fonts-noto-cjk") as told:
        labels, families = token_labels(CHINESE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        token_labels([*CHINESE, "的"])
    assert labels == ["#1", "#2", "#3", "2025", "#5", "#6", "#7", "</s>"]
    assert families == list(matplotlib.rcParams["font.family"])
    assert len(told) == 1


def test_white_space_and_long_tokens_become_visible():
    labels, _ = token_labels([" the", "\n", "", "a" * 30])
    assert labels == ["\u2423the", "\u2423", "\u2423", "a" * 23 + "\u2026"]
    with pytest.warns(UserWarning, match="shows their places"):
        assert token_labels(["a", "\x07"])[0] == ["a", "#2"]


def make_font(path, name: str, characters: str) -> None:
    """A font whose glyphs are squares."""
    builder = pytest.importorskip("fontTools.fontBuilder").FontBuilder(1000, isTTF=True)
    pen_class = pytest.importorskip("fontTools.pens.ttGlyphPen").TTGlyphPen
    glyphs = [".notdef", *(f"u{ord(character):04X}" for character in characters)]
    pen = pen_class(None)
    pen.moveTo((100, 0))
    for point in ((100, 800), (900, 800), (900, 0)):
        pen.lineTo(point)
    pen.closePath()
    builder.setupGlyphOrder(glyphs)
    builder.setupCharacterMap({ord(character): f"u{ord(character):04X}" for character in characters})
    builder.setupGlyf(dict.fromkeys(glyphs, pen.glyph()))
    builder.setupHorizontalMetrics(dict.fromkeys(glyphs, (1000, 100)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": name, "styleName": "Regular"})
    builder.setupOS2(sTypoAscender=800, usWeightClass=400)
    builder.setupPost()
    builder.save(path)


@pytest.mark.usefixtures("only_dejavu")
def test_installed_fonts_draw_what_the_usual_one_lacks(tmp_path):
    make_font(tmp_path / "few.ttf", "Aa Few", "中国")
    make_font(tmp_path / "most.ttf", "Zz Most", "中国经济，年增长")
    make_font(tmp_path / "stop.ttf", "Stop", "。")
    make_font(tmp_path / "boxes.ttf", "LastResort", "".join(set("".join(CHINESE))))
    (tmp_path / "gone.ttf").write_bytes((tmp_path / "few.ttf").read_bytes())
    for name in ("few", "most", "stop", "boxes"):
        font_manager.fontManager.addfont(tmp_path / f"{name}.ttf")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        labels, families = token_labels(CHINESE)
        figure = plot_latent_attention(CHINESE, attention_of(CHINESE), ROWS)
        figure.draw_without_rendering()
    assert labels == CHINESE
    assert families == [*matplotlib.rcParams["font.family"], "Zz Most", "Stop"]
    assert panels(figure)[0].get_xticklabels()[0].get_fontfamily() == families


@pytest.mark.usefixtures("only_dejavu")
def test_where_words_do_not_fit_side_by_side_chinese_is_written_downwards(tmp_path):
    make_font(tmp_path / "cjk.ttf", "Squares", "中国经济，年增长。")
    font_manager.fontManager.addfont(tmp_path / "cjk.ttf")
    few, many = CHINESE[:2], CHINESE * 8
    figure = plot_latent_attention(few, attention_of(few), ROWS)
    assert x_labels(panels(figure)[0]) == few
    labels = panels(plot_latent_attention(many, attention_of(many), ROWS))[0].get_xticklabels()
    assert [label.get_text() for label in labels[:4]] == ["中\n国", "经\n济", "，", "2025"]
    assert [label.get_rotation() for label in labels[:4]] == [0, 0, 0, 90]
    assert TokenAxis(many).width == pytest.approx(12)


@pytest.mark.parametrize(
    ("tokens", "change", "message"),
    [
        ([], lambda a: a, r"tokens is \[\]; give a list"),
        ("abc", lambda a: a, "tokens is 'abc'; give a list"),
        (["a"], lambda a: a, r"the shape \(2, 3, 2\); expected \(heads, T=1, L=2\)"),
        (["a"] * 3, lambda a: a[:, :, :1], r"shape \(2, 3, 1\)"),
        (["a"] * 3, lambda a: a[0], r"shape \(3, 2\)"),
        (["a"] * 3, lambda a: a[:0], r"shape \(0, 3, 2\)"),
        (["a"] * 3, lambda a: a * np.nan, "holds nan; every value must be between 0 and 1"),
        (["a"] * 3, lambda a: a * [2.5, -1.5], "holds 1.25; every value must be between 0 and 1"),
        (["a"] * 3, lambda a: a * np.array([1, 0.5, 1])[:, None], "head 1 at step 2 sum to 0.5 over the rows"),
    ],
)
def test_bad_attention_is_refused(tokens, change, message):
    with pytest.raises(ValueError, match=message):
        plot_latent_attention(tokens, change(np.full((2, 3, 2), 0.5)), ROWS)


def test_bad_gates_are_refused():
    gates = gates_of(["a", "b"])
    with pytest.raises(ValueError, match=r"gates has the shape \(2, 2, 5\); expected \(T=2, R=1, d\)"):
        plot_latent_gates(["a", "b"], gates, ["max"])
    with pytest.raises(ValueError, match=r"gates holds 1\.1"):
        plot_latent_gates(["a", "b"], np.full((2, 2, 5), 1.1), ROWS)


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    for plot, values in ((plot_latent_attention, attention_of(["a"])), (plot_latent_gates, gates_of(["a"]))):
        with pytest.raises(ImportError, match=r"pip install .* \"\.\[plots\]\""):
            plot(["a"], values, ROWS)
