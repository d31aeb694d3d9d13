"""Unit vectors and cosine similarities."""

from __future__ import annotations

import numpy as np


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Rows `(N, D)` scaled to unit length; a zero row stays zero. Half precision becomes float32, since squares would
    overflow."""
    rows = rows.astype(np.promote_types(rows.dtype, np.float32), copy=False)
    # Scaled first, since the squares of large numbers would overflow and those of small ones underflow.
    largest = np.abs(rows).max(axis=1, keepdims=True, initial=0)
    rows = rows / np.where(largest == 0, 1, largest)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms == 0, 1, norms)


def paired_cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Cosines `(N,)` between corresponding rows of two matrices `(N, D)`; 0 where a row is zero."""
    products: np.ndarray = np.einsum("nd,nd->n", unit_rows(first), unit_rows(second))
    return products
