"""Defences applied to vectors before they are stored: noise, fewer dimensions, fewer bits.

Each defence specifies the stored vectors, on which similarities are computed, and how an attacker who knows the defence
restores them for a decoder of unchanged vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hf_meanmax.inference.compression import PCA, calibrate_int8, dequantize_int8, quantize_int8

NOISE_LEVELS = (0.1, 0.25, 0.5, 1.0)
KEPT_SHARES = (0.5, 0.25, 0.125)


@dataclass(frozen=True)
class Defence:
    """A change applied to vectors before they are stored.

    Args:
        kind: `"none"`, `"noise"`, `"pca"`, `"leading"`, `"int8"` or `"binary"`.
        name: its name in tables.
        num_bytes: size of a stored vector.
        store: maps vectors `(N, D)` to the stored ones, as numbers `(N, K)` float32.
        restore: maps stored vectors to the decoder's input, `(N, D)` float32.
    """

    kind: str
    name: str
    num_bytes: int
    store: Callable[[np.ndarray], np.ndarray]
    restore: Callable[[np.ndarray], np.ndarray]


def make_defences(
    fitted_on: np.ndarray,
    noise_levels: Sequence[float] = NOISE_LEVELS,
    kept_shares: Sequence[float] = KEPT_SHARES,
    seed: int = 0,
) -> list[Defence]:
    """The defences for the vectors of one embedder, with "none" first.

    Args:
        fitted_on: vectors `(N, D)` from which means, ranges and principal components are computed.
        noise_levels: lengths of the Gaussian noise, as shares of the vectors' mean length.
        kept_shares: shares of the dimensions to keep, by PCA and by truncation. PCA with more components than half of
            the rows of `fitted_on` is left out, since it would restore these rows nearly unchanged.
        seed: seed of the noise.

    Raises:
        ValueError: a level is not positive, or a share not between 0 and 1.
    """
    check_levels(noise_levels, kept_shares)
    rows = fitted_on.astype(np.float32, copy=False)
    dimension = rows.shape[1]
    sizes = sorted({max(1, round(share * dimension)) for share in kept_shares} - {dimension}, reverse=True)
    length = float(np.linalg.norm(rows, axis=1).mean())
    return [
        Defence("none", "none", 4 * dimension, _same, _same),
        *(
            Defence("noise", f"noise {level:g}", 4 * dimension, _noise(level * length, seed), _same)
            for level in noise_levels
        ),
        *(_components(rows, size) for size in sizes if 2 * size <= len(rows)),
        *(_leading(rows, size) for size in sizes),
        _int8(rows),
        _binary(rows),
    ]


def check_levels(noise_levels: Sequence[float], kept_shares: Sequence[float]) -> None:
    """Checks the arguments of [`make_defences`].

    Raises:
        ValueError: as for [`make_defences`].
    """
    for level in noise_levels:
        if not 0 < level < np.inf:
            raise ValueError(f"A noise level is {level}; it must be greater than 0.")
    for share in kept_shares:
        if not 0 < share < 1:
            raise ValueError(f"A share of dimensions is {share}; it must be between 0 and 1.")


def _same(vectors: np.ndarray) -> np.ndarray:
    return vectors.astype(np.float32, copy=False)


def _noise(length: float, seed: int) -> Callable[[np.ndarray], np.ndarray]:
    # One random stream for all calls, so that equal texts get different noise.
    draws = np.random.default_rng(seed)

    def add(vectors: np.ndarray) -> np.ndarray:
        scale = length / np.sqrt(vectors.shape[1])
        noise: np.ndarray = vectors + draws.normal(scale=scale, size=vectors.shape)
        return noise.astype(np.float32)

    return add


def _components(rows: np.ndarray, size: int) -> Defence:
    pca = PCA.fit(rows, size)

    def restore(stored: np.ndarray) -> np.ndarray:
        whole: np.ndarray = stored @ pca.components + pca.mean
        return whole

    return Defence("pca", f"PCA {size}", 4 * size, pca.apply, restore)


def _leading(rows: np.ndarray, size: int) -> Defence:
    rest = rows[:, size:].mean(axis=0)

    def restore(stored: np.ndarray) -> np.ndarray:
        return np.hstack([stored, np.tile(rest, (len(stored), 1))])

    return Defence("leading", f"first {size}", 4 * size, lambda vectors: _same(vectors[:, :size]), restore)


def _int8(rows: np.ndarray) -> Defence:
    ranges = calibrate_int8(rows)

    def store(vectors: np.ndarray) -> np.ndarray:
        return dequantize_int8(quantize_int8(vectors, ranges), ranges)

    return Defence("int8", "int8", rows.shape[1], store, _same)


def _binary(rows: np.ndarray) -> Defence:
    """Stores the sign of each number; restores the mean of the dimension's fitted numbers with that sign."""
    positive = rows > 0
    counts = np.stack([(~positive).sum(axis=0), positive.sum(axis=0)])
    sums = np.stack([np.where(positive, 0, rows).sum(axis=0), np.where(positive, rows, 0).sum(axis=0)])
    means = (sums / np.maximum(counts, 1)).astype(np.float32)

    def store(vectors: np.ndarray) -> np.ndarray:
        return np.where(vectors > 0, 1, -1).astype(np.float32)

    def restore(stored: np.ndarray) -> np.ndarray:
        return np.where(stored > 0, means[1], means[0])

    return Defence("binary", "binary", -(-rows.shape[1] // 8), store, restore)
