"""Vectors of unit length, and cosines."""

from __future__ import annotations

import numpy as np
import pytest

from hf_meanmax.cosines import paired_cosines, unit_rows


def test_rows_have_length_one_and_zeros_stay_zeros():
    rows = np.array([[3, 4], [0, 0], [-1e-10, 0]], dtype=np.float32)
    np.testing.assert_allclose(unit_rows(rows), [[0.6, 0.8], [0, 0], [-1, 0]], rtol=1e-6)
    for scale in (8e37, 1e30, 1e-30):
        scaled = unit_rows(rows * np.float32(scale))
        assert scaled.dtype == np.float32
        np.testing.assert_allclose(scaled, [[0.6, 0.8], [0, 0], [-1, 0]], rtol=1e-6)


@pytest.mark.filterwarnings("error")
def test_a_cosine_with_zeros_is_zero_and_one_with_nan_is_nan():
    first = np.array([[3.0, 4], [1, 0], [0, 0], [np.nan, 1]])
    second = np.array([[4.0, 3], [-2, 0], [1, 1], [1, 1]])
    np.testing.assert_allclose(paired_cosines(first, second), [0.96, -1, 0, np.nan])
