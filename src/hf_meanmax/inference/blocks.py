"""Iteration over items in blocks, with a progress bar."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np

from hf_meanmax.progress import progress_bar

Items = TypeVar("Items", list[str], list[int], np.ndarray)


def in_blocks(items: Items, size: int, **bar_options: Any) -> Iterator[Items]:
    """Yields blocks of `size` items in order; `bar_options` go to `progress_bar`, which moves after each block."""
    if size < 1:
        raise ValueError(f"batch_size is {size}; it must be 1 or more.")
    with progress_bar(total=len(items), **bar_options) as bar:
        for start in range(0, len(items), size):
            block = items[start : start + size]
            yield block
            bar.update(len(block))
