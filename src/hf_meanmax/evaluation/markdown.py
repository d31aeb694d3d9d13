"""Markdown tables of scores and texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_MARKUP = re.compile(r"[\\`*_\[<~$&]")


def markdown_text(text: str) -> str:
    """A text that is shown as it is: what Markdown, or GitHub's mathematics, would read as markup is escaped."""
    return _MARKUP.sub(r"\\\g<0>", text)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    """A table, without a line break at its end.

    Args:
        header: of the columns.
        rows: of cells in Markdown (see [`markdown_text`]); pipes are escaped here, and line breaks become spaces.
        align: a letter a column, `l` or `r`; by default all are aligned to the left.
    """
    marks = "|".join({"l": "---", "r": "---:"}[letter] for letter in align or "l" * len(header))
    lines = [_line(header), f"|{marks}|", *map(_line, rows)]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.splitlines()).replace("|", r"\|") for cell in cells) + " |"
