"""Sentences in a file, read one at a time."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hf_meanmax.files import open_array

TEXT_FILES = ("texts.bin", "text_offsets.npy")


class TextStore:
    """The sentences of a folder, memory-mapped.

    Raises:
        ValueError: the folder's files do not fit each other.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        path, offsets = (Path(folder) / name for name in TEXT_FILES)
        self._offsets: npt.NDArray[np.int64] = open_array(offsets)
        size = path.stat().st_size
        if self._offsets.ndim != 1 or len(self._offsets) < 1 or int(self._offsets[-1]) != size:
            raise ValueError(f"{path}: {size:,} bytes, {offsets.name} beside it expects another number.")
        self._bytes: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, "r") if size else np.zeros(0, np.uint8)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> str:
        if not 0 <= row < len(self):
            raise IndexError(f"Row {row:,} is asked for; there are {len(self):,}.")
        return bytes(self._bytes[self._offsets[row] : self._offsets[row + 1]]).decode("utf-8")

    def are_blank(self, first: int, count: int) -> npt.NDArray[np.bool_]:
        """Whether each of `count` rows from `first` on is empty, `(count,)`."""
        blank: npt.NDArray[np.bool_] = np.diff(self._offsets[first : first + count + 1]) == 0
        return blank

    @staticmethod
    def write(folder: Path, lines: Iterable[str]) -> int:
        """Writes lines and returns their number; memory holds only 8 bytes per line."""
        offsets = array("q", [0])
        with open(folder / TEXT_FILES[0], "wb") as file:
            for line in lines:
                offsets.append(offsets[-1] + file.write(line.encode("utf-8", "replace")))
        np.save(folder / TEXT_FILES[1], np.frombuffer(offsets, np.int64))
        return len(offsets) - 1
