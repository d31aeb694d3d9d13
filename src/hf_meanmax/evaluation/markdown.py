"""Markdown tables of scores and texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_MARKUP = re.compile(r"[\\`*_\[<~$&]")


def markdown_text(text: str) -> str:
    """Escapes a text for Markdown, including GitHub's mathematics."""
    return _MARKUP.sub(r"\\\g<0>", text)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    """A table, without a line break at its end.

    Args:
        header: names of the columns.
        rows: rows of cells in Markdown (see [`markdown_text`]); pipes are escaped here, and line breaks become spaces.
        align: one letter per column, `l` (left) or `r` (right); default: left.
    """
    marks = "|".join({"l": "---", "r": "---:"}[letter] for letter in align or "l" * len(header))
    lines = [_line(header), f"|{marks}|", *map(_line, rows)]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.splitlines()).replace("|", r"\|") for cell in cells) + " |"
