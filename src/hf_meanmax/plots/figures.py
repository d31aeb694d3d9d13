"""Making and saving figures, without a display."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hf_meanmax.files import replacing_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float = 6.4, height: float = 4.8) -> Figure:
    """A matplotlib figure (inches) of its own, outside pyplot's global state.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure as NewFigure
    except ImportError:
        raise ImportError('Figures need matplotlib: pip install "hf_meanmax[plots]"') from None
    return NewFigure(figsize=(width, height), layout="constrained")


def save_figure(figure: Figure, path: str | os.PathLike[str], dpi: int = 150) -> None:
    """Writes a figure whole or not at all, in the format that the suffix names (`.png`, `.svg`, `.pdf`)."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing_file(path, "wb") as file:
        figure.savefig(file, format=path.suffix.lstrip(".") or "png", dpi=dpi)
