"""Making and saving figures, without a display."""

from __future__ import annotations

import base64
import io
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hf_meanmax.extras import require
from hf_meanmax.files import replacing_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float = 6.4, height: float = 4.8) -> Figure:
    """A new matplotlib figure (size in inches), outside pyplot's global state.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure: Figure = require("matplotlib.figure", "plots", "A figure").Figure(
        figsize=(width, height), layout="constrained"
    )
    return figure


def checked_shares(name: str, values: npt.ArrayLike, axes: Mapping[str, int | None]) -> np.ndarray:
    """Checks that values lie between 0 and 1 and have these axes (None: any size but 0); returns them as float64.

    Raises:
        ValueError: an array of another shape, or a value outside 0..1; the message includes the name.
    """
    array = np.asarray(values, dtype=np.float64)
    fits = array.ndim == len(axes) and 0 not in array.shape
    if not fits or any(size not in (None, found) for size, found in zip(axes.values(), array.shape, strict=True)):
        expected = ", ".join(axis if size is None else f"{axis}={size}" for axis, size in axes.items())
        raise ValueError(f"{name} has the shape {array.shape}; expected ({expected}).")
    is_bad = ~((array >= 0) & (array <= 1 + 1e-5))
    if is_bad.any():
        raise ValueError(f"{name} holds {array[is_bad][0]:.3g}; every value must be between 0 and 1.")
    return array


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Writes a figure atomically, in the format of the suffix (`.png`, `.svg`, `.pdf`)."""
    with replacing_file(path, "wb") as file:
        figure.savefig(file, format=Path(path).suffix.lstrip(".") or "png", dpi=150)


@contextmanager
def skip_figures_without_matplotlib(missing: str = "No figures were drawn.") -> Iterator[None]:
    """Without matplotlib, skips the figures drawn inside and prints `missing` on stderr."""
    try:
        yield
    except ImportError as error:
        print(f"{missing} {error}", file=sys.stderr)


def figure_data_uri(figure: Figure, dpi: int = 120) -> str:
    """A figure as a `data:` URI of a PNG, for self-contained pages."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
