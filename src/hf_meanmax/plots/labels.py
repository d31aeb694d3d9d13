"""Tokens as the labels of an axis, in any script that an installed font can draw."""

from __future__ import annotations

import math
import re
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Common sans-serif fonts for Chinese, Japanese and Korean, tried before all other fonts.
_CJK_FONTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN",
    "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "PingFang SC", "Hiragino Sans GB", "Microsoft YaHei", "SimHei",
    "Heiti TC", "Droid Sans Fallback", "Arial Unicode MS",
)  # fmt: skip
# Fonts that draw a box or nothing for every character, and bitmaps that matplotlib cannot scale.
_NO_LETTERS = re.compile(r"last ?resort|adobe ?blank|colou?r ?emoji", re.IGNORECASE)
_MOST_FONTS = 4
_VISIBLE_SPACE = "\u2423"
_REMEDY = (
    "Some tokens have characters that no font known to matplotlib can draw; the figure shows their places, #1 being "
    "the first token. Install a font of that script, for Chinese for instance Noto Sans CJK (Debian: apt-get install "
    "fonts-noto-cjk), and remove fontlist-*.json in matplotlib.get_cachedir(), or name the font's file to "
    "matplotlib.font_manager.fontManager.addfont."
)
_POINTS = 8
_LINE, _LETTER = 0.13, 0.068  # inches
_LONGEST = 24


def token_labels(tokens: Sequence[str]) -> tuple[list[str], list[str]]:
    """The label of each token on an axis, and the font families that draw the labels, the default ones first.

    White space becomes a visible sign. A token that no installed font can draw becomes its position (`#1` is the
    first), with one warning per process.
    """
    from matplotlib import rcParams

    labels = [re.sub(r"\s", _VISIBLE_SPACE, token) or _VISIBLE_SPACE for token in tokens]
    labels = [label if len(label) <= _LONGEST else label[: _LONGEST - 1] + "\u2026" for label in labels]
    families = list(rcParams["font.family"])
    wanted = {character for label in labels for character in label}
    printable = {character for character in wanted if character.isprintable()}
    found, missing = _families_for(printable, families)
    missing |= wanted - printable
    if missing:
        _warn_about_fonts()
    labels = [f"#{place}" if missing & set(label) else label for place, label in enumerate(labels, 1)]
    return labels, families + found


@cache
def _warn_about_fonts() -> None:
    """Warns once, by the cache: Python's own record of warnings is lost whenever a library changes the filters."""
    warnings.warn(_REMEDY, stacklevel=2)


def _families_for(characters: set[str], families: list[str]) -> tuple[list[str], set[str]]:
    """A few further fonts for characters that `families` lack, and the characters that no font draws."""
    from matplotlib.font_manager import FontProperties, fontManager

    missing = set(characters)
    for family in families:
        missing -= _drawn(fontManager.findfont(FontProperties(family=[family])), missing)
    found: list[str] = []
    while missing and len(found) < _MOST_FONTS:
        best, drawn = "", set[str]()
        for name, path in _other_fonts():
            here = _drawn(path, missing)
            if len(here) > len(drawn):
                best, drawn = name, here
            if drawn == missing:
                break
        if not drawn:
            break
        found.append(best)
        missing = missing - drawn
    return found, missing


def _other_fonts() -> Iterator[tuple[str, str]]:
    """Name and file of the most regular upright face of each installed family, those of `_CJK_FONTS` first."""
    from matplotlib.font_manager import fontManager

    upright = [font for font in fontManager.ttflist if font.style == "normal"]
    upright.sort(key=lambda font: abs(font.weight - 400) if isinstance(font.weight, int) else 0, reverse=True)
    fonts = {font.name: font.fname for font in upright}
    yield from ((name, fonts.pop(name)) for name in _CJK_FONTS if name in fonts)
    yield from ((name, fonts[name]) for name in sorted(fonts) if not _NO_LETTERS.search(name))


def _drawn(path: str, characters: set[str]) -> set[str]:
    """The characters for which a font file has glyphs."""
    from matplotlib.font_manager import get_font

    try:
        font = get_font(path)
    except (OSError, RuntimeError):  # a file that is gone, or that FreeType cannot read
        return set()
    known = font.get_charmap() if font.scalable else {}
    return {character for character in characters if ord(character) in known}


class TokenAxis:
    """Tokens as labels of an x axis: horizontal if they fit; otherwise rotated, or stacked one character below the
    other in East Asian scripts.

    Args:
        tokens: the label of step 0, 1, ...

    Attributes:
        width, height: inches that the axis and its labels take.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        self._labels, self._families = token_labels(tokens)
        # The width of a figure that can be saved is limited: in a long text only every k-th token is labelled.
        step = min(0.42, max(_LINE, 12 / len(tokens)), 40 / len(tokens))
        self._every = math.ceil(_LINE / step - 1e-9)
        longest = _LETTER * max(_columns(label) for label in self._labels)
        self._is_level = longest + _LETTER <= self._every * step
        self.width = step * len(tokens)
        self.height = _LINE if self._is_level else longest

    def apply(self, axes: Axes) -> None:
        """Labels the steps of matplotlib axes."""
        places = range(0, len(self._labels), self._every)
        labels = [self._labels[place] for place in places]
        is_stacked = [not self._is_level and _columns(label) == 2 * len(label) for label in labels]
        axes.set_xticks(
            places,
            ["\n".join(label) if stacked else label for label, stacked in zip(labels, is_stacked, strict=True)],
            fontsize=_POINTS,
            fontfamily=self._families,
            linespacing=0.95,
            parse_math=False,  # a dollar sign is a token, not mathematics
        )
        axes.set_xlim(-0.5, len(self._labels) - 0.5)
        for text, stacked in zip(axes.get_xticklabels(), is_stacked, strict=True):
            text.set_rotation(0 if self._is_level or stacked else 90)


def _columns(label: str) -> int:
    """The width of a label in letters; Chinese, Japanese and Korean characters count twice."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in label)
