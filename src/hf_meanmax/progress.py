"""Progress of long work: a bar on a terminal, an occasional line if the output is a file."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm as plain_tqdm
from tqdm.auto import tqdm

# Seconds between two lines in a log.
LINE_SECONDS = 30.0


class LineProgress(plain_tqdm):
    """A tqdm bar for logs: it writes whole lines, at most one every half minute, without carriage returns."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        lines = {"mininterval": LINE_SECONDS, "miniters": 1, "ascii": True, "ncols": 0, "smoothing": 0}
        super().__init__(*args, **{**kwargs, **lines})

    def close(self) -> None:
        """Writes the last line once; tqdm would end it a second time."""
        if not self.disable:
            self.refresh()
            self.delay = float("inf")  # as if no bar had been drawn, so tqdm leaves none
        super().close()

    def moveto(self, n: int) -> None:
        """Does nothing: a log has no cursor."""

    @staticmethod
    def status_printer(file: Any) -> Any:
        def write(text: str) -> None:
            if text.strip():
                file.write(text.strip() + "\n")
                file.flush()

        return write


def progress_bar(*args: Any, **kwargs: Any) -> plain_tqdm:
    """A tqdm bar, which is a widget in a notebook and a [`LineProgress`] where stderr is no terminal."""
    # By the module's name: importing it would load widgets outside a notebook, too.
    draws_widgets = any(kind.__module__ == "tqdm.notebook" for kind in tqdm.__mro__)
    return (tqdm if draws_widgets or sys.stderr.isatty() else LineProgress)(*args, **kwargs)
