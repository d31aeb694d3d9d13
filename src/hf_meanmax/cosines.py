"""Vectors of unit length, and cosines."""

from __future__ import annotations

import numpy as np


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Rows `(N, D)` scaled to unit length; a zero row stays zero. Half precision, in which squares overflow, becomes
    float32."""
    rows = rows.astype(np.promote_types(rows.dtype, np.float32), copy=False)
    # The squares of large numbers overflow, and those of small ones become zeros.
    largest = np.abs(rows).max(axis=1, keepdims=True, initial=0)
    rows = rows / np.where(largest == 0, 1, largest)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms == 0, 1, norms)


def paired_cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The cosine `(N,)` of each row `(N, D)` with the other side's; 0 where a row is zero."""
    products: np.ndarray = np.einsum("nd,nd->n", unit_rows(first), unit_rows(second))
    return products
