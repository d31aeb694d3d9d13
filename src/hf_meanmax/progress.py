"""Progress of long work: a bar on a terminal, a line now and then where the output is a file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from tqdm.auto import tqdm

Item = TypeVar("Item")
# Seconds between two lines where nobody watches a bar.
LINE_SECONDS = 30.0


class LineProgress(tqdm):
    """A tqdm bar that writes whole lines, at most one every half minute: for logs, which keep carriage returns."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        lines = {"mininterval": LINE_SECONDS, "miniters": 1, "ascii": True, "ncols": 0, "smoothing": 0}
        super().__init__(*args, **{**kwargs, **lines})

    def close(self) -> None:
        """Writes the last line; tqdm would end it once more."""
        if not self.disable:
            self.refresh()
            self.delay = float("inf")  # as if no bar had been drawn, so there is none to leave
        super().close()

    def moveto(self, n: int) -> None:
        """A log has no line above to go to."""

    @staticmethod
    def status_printer(file: Any) -> Any:
        def write(text: str) -> None:
            if text.strip():
                file.write(text.strip() + "\n")
                file.flush()

        return write


def progress_bar(*args: Any, **kwargs: Any) -> tqdm:
    """A tqdm bar with these arguments, or a [`LineProgress`] where stderr is no terminal."""
    return (tqdm if sys.stderr.isatty() else LineProgress)(*args, **kwargs)


def track(items: Iterable[Item], description: str, total: int | None = None, show: bool = True) -> Iterator[Item]:
    """The items, with a progress bar of this description."""
    yield from progress_bar(items, desc=description, total=total, disable=not show)
