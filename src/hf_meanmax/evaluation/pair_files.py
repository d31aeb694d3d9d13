"""Pairs of strings, from files of two columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hf_meanmax.data.corpus import TextFile


def read_pairs(path: Path, columns: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs of a UTF-8 file of lines `first TAB second`, plain or compressed (`.gz`, `.xz`, `.zst`).

    Args:
        path: the file.
        columns: names of the two columns, for error messages.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: there is no pair, the file is damaged or not UTF-8, or a line is not a pair (with its number).
    """
    if not path.is_file():
        raise FileNotFoundError(f"No such file: {str(path)!r}.")
    pairs = []
    for number, line in enumerate(TextFile(path), start=1):
        parts = [part.strip() for part in line.split("\t")]
        if len(parts) != 2 or not all(parts):
            shown = repr(line if len(line) <= 70 else line[:67] + "...")
            raise ValueError(f"{path}, line {number}: expected '{columns[0]} TAB {columns[1]}', found {shown}.")
        pairs.append((parts[0], parts[1]))
    if not pairs:
        raise ValueError(f"{path}: empty, expected pairs ({columns[0]}, {columns[1]}).")
    return pairs
