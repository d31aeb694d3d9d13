"""Pairs of strings, from files of two columns or from memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from hf_meanmax.data.corpus import TextFile

PairSource: TypeAlias = str | os.PathLike[str] | Iterable[tuple[str, str]]


def read_pairs(source: PairSource, columns: Sequence[str], name: str = "the pairs") -> list[tuple[str, str]]:
    """Pairs that are not blank.

    Args:
        source: a UTF-8 file of lines `first TAB second`, plain or compressed (`.gz`, `.xz`, `.zst`), or such pairs.
        columns: what first and second are, for the messages.
        name: what messages call pairs that come from no file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: there is no pair, the file is damaged or not UTF-8, or a line or an item is no pair of strings that
            are not blank; with its number.
    """
    items: Iterable[Sequence[str]]
    as_given: Callable[[Sequence[str]], object]
    if isinstance(source, (str, os.PathLike)):
        name, place, wanted = str(source), f"{source}, line", f"'{columns[0]} TAB {columns[1]}'"
        if not Path(source).is_file():
            raise FileNotFoundError(f"No such file: {str(source)!r}.")
        as_given = "\t".join
        items = ([part.strip() for part in line.split("\t")] for line in TextFile(Path(source)))
    else:
        place, wanted = f"{name}, item", f"({columns[0]}, {columns[1]}), strings that are not blank"
        as_given = tuple
        items = source
    pairs = []
    for number, pair in enumerate(items, start=1):
        if len(pair) != 2 or not all(isinstance(part, str) and part.strip() for part in pair):
            shown = repr(as_given(pair))
            shown = shown if len(shown) <= 70 else shown[:67] + "..."
            raise ValueError(f"{place} {number}: expected {wanted}, found {shown}.")
        pairs.append((pair[0], pair[1]))
    if not pairs:
        raise ValueError(f"{name}: empty, expected pairs ({columns[0]}, {columns[1]}).")
    return pairs
