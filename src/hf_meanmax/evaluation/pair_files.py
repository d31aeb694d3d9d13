"""Pairs of strings, from files of two columns or from memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
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
    if isinstance(source, (str, os.PathLike)):
        name, pairs = str(source), _from_file(Path(source), columns)
    else:
        pairs = _from_memory(source, columns, name)
    if not pairs:
        raise ValueError(f"{name}: empty, expected pairs ({columns[0]}, {columns[1]}).")
    return pairs


def _from_file(path: Path, columns: Sequence[str]) -> list[tuple[str, str]]:
    if not path.is_file():
        raise FileNotFoundError(f"No such file: {str(path)!r}.")
    pairs = []
    for number, line in enumerate(TextFile(path), start=1):
        parts = [part.strip() for part in line.split("\t")]
        if len(parts) != 2 or not all(parts):
            shown = line if len(line) <= 60 else line[:57] + "..."
            raise ValueError(f"{path}, line {number}: expected '{columns[0]} TAB {columns[1]}', found {shown!r}.")
        pairs.append((parts[0], parts[1]))
    return pairs


def _from_memory(source: Iterable[tuple[str, str]], columns: Sequence[str], name: str) -> list[tuple[str, str]]:
    pairs = []
    for number, pair in enumerate(source, start=1):
        if len(pair) != 2 or not all(isinstance(part, str) and part.strip() for part in pair):
            raise ValueError(
                f"{name}, item {number}: expected ({columns[0]}, {columns[1]}), strings that are not blank, "
                f"found {pair!r}."
            )
        pairs.append((pair[0], pair[1]))
    return pairs
