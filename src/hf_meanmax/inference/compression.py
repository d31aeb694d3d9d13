"""Smaller embeddings: principal components and int8 with calibrated ranges, fitted once and kept in a file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as safetensors_bytes

from hf_meanmax.files import bytes_digest, replacing_file


@dataclass(frozen=True, eq=False)
class PCA:
    """A projection on the directions of largest variance.

    Args:
        mean: the mean of the fitted rows, `(D,)` float32.
        components: orthonormal directions, the largest variance first, `(K, D)` float32.
        variances: the variance along each component, `(K,)` float32.
        total_variance: the total variance of the rows.
    """

    mean: np.ndarray
    components: np.ndarray
    variances: np.ndarray
    total_variance: float

    @classmethod
    def fit(cls, rows: np.ndarray, num_components: int) -> PCA:
        """Fits scikit-learn's `PCA` to rows `(N, D)`.

        Raises:
            ValueError: more components than numbers in a row, or than rows.
        """
        from sklearn import decomposition

        count, dimension = rows.shape
        if not 1 <= num_components <= dimension:
            raise ValueError(f"A PCA of {num_components} components: the vectors have {dimension} numbers.")
        if num_components > count:
            raise ValueError(
                f"A PCA of {num_components} components needs as many rows, got {count:,}; ask for fewer components."
            )
        if count < 2:
            raise ValueError("A PCA needs 2 rows or more, got 1: one row has no variance.")
        # Only the covariance (D, D) is decomposed, whatever the number of rows.
        with np.errstate(invalid="ignore"):  # rows without any variance
            fitted = decomposition.PCA(num_components, svd_solver="covariance_eigh").fit(rows)
        return cls(
            np.ascontiguousarray(fitted.mean_, dtype=np.float32).reshape(-1),
            np.ascontiguousarray(fitted.components_, dtype=np.float32),
            np.ascontiguousarray(fitted.explained_variance_, dtype=np.float32),
            float(rows.var(axis=0, ddof=1, dtype=np.float64).sum()),
        )

    @property
    def explained_variance_ratio(self) -> float:
        """The share of the variance that the components keep, between 0 and 1."""
        return (
            min(1.0, float(self.variances.sum(dtype=np.float64)) / self.total_variance) if self.total_variance else 1.0
        )

    def whitening(self) -> tuple[np.ndarray, np.ndarray]:
        """Weight `(K, D)` and bias `(K,)` of the linear map to the components, each scaled to variance 1."""
        weight = self.components / np.sqrt(self.variances)[:, None]
        return weight, -weight @ self.mean

    def fingerprint(self) -> str:
        """Hash of the projection."""
        return bytes_digest(f"{self.components.shape}".encode() + self.mean.tobytes() + self.components.tobytes())

    def apply(self, rows: np.ndarray) -> np.ndarray:
        """Projects rows `(N, D)` on the components, `(N, K)` float32.

        Raises:
            ValueError: the rows have another number of columns.
        """
        if rows.ndim != 2 or rows.shape[1] != len(self.mean):
            raise ValueError(f"The PCA takes vectors of {len(self.mean)} numbers; got an array {rows.shape}.")
        projected: np.ndarray = (rows.astype(np.float32, copy=False) - self.mean) @ self.components.T
        return projected


@dataclass(frozen=True, eq=False)
class Compression:
    """A fitted compression of a set of vectors: a PCA, int8 ranges, both or neither.

    Args:
        pca: applied first.
        ranges: the least and the greatest value of each dimension, `(2, K)` float32, the ends of the 256 int8 steps.
    """

    pca: PCA | None = None
    ranges: np.ndarray | None = None

    def describe(self) -> dict[str, object]:
        """The PCA's hash and the share of the variance that it keeps, for a manifest; empty without one."""
        if self.pca is None:
            return {}
        return {
            "pca": self.pca.fingerprint(),
            "explained_variance_ratio": round(self.pca.explained_variance_ratio, 6),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a safetensors file."""
        tensors: dict[str, np.ndarray] = {}
        if self.pca is not None:
            tensors |= {
                "pca.mean": self.pca.mean,
                "pca.components": self.pca.components,
                "pca.variances": self.pca.variances,
                "pca.total_variance": np.array([self.pca.total_variance]),
            }
        if self.ranges is not None:
            tensors["ranges"] = self.ranges
        with replacing_file(path, "wb") as file:
            file.write(safetensors_bytes(tensors))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Compression:
        """Reads a file of `save`.

        Raises:
            FileNotFoundError: no such file.
            ValueError: the file is damaged or holds something else.
        """
        if not Path(path).is_file():
            raise FileNotFoundError(f"No such file: {str(path)!r}.")
        try:
            with safe_open(path, framework="numpy") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            pca = None
            if any(name.startswith("pca.") for name in tensors):
                mean, components = tensors["pca.mean"], tensors["pca.components"]
                pca = PCA(mean, components, tensors["pca.variances"], float(tensors["pca.total_variance"][0]))
                if components.ndim != 2 or mean.shape != components.shape[1:]:
                    raise ValueError(f"a mean {mean.shape} with components {components.shape}")
            ranges = tensors.get("ranges")
            if ranges is not None and (ranges.ndim != 2 or len(ranges) != 2):
                raise ValueError(f"ranges of shape {ranges.shape}, expected (2, K)")
            if pca is None and ranges is None:
                raise ValueError(f"it holds {', '.join(tensors) or 'nothing'}")
        except (SafetensorError, KeyError, ValueError) as error:
            raise ValueError(f"{path} is damaged or holds no PCA and no ranges ({error}).") from error
        return cls(pca, ranges)


def check_finite(rows: np.ndarray) -> None:
    """Checks the vectors `(N, D)` that a model gave.

    Raises:
        ValueError: a number is infinite or NaN.
    """
    if len(bad := np.flatnonzero(~np.isfinite(rows.reshape(len(rows), -1)).all(axis=1))):
        raise ValueError(
            f"The model gave {len(bad):,} of {len(rows):,} texts vectors that are not finite, first text "
            f"{bad[0]} (counted from 0). Check that text and the model, or compute in float32."
        )


def calibrate_int8(rows: np.ndarray) -> np.ndarray:
    """The least and the greatest value of each column of rows `(N, D)`, `(2, D)` float32."""
    return np.stack([rows.min(axis=0), rows.max(axis=0)]).astype(np.float32)


def quantize_int8(rows: np.ndarray, ranges: np.ndarray) -> np.ndarray:
    """Rows `(N, D)` as int8, by sentence-transformers' `quantize_embeddings`; values outside the ranges are clipped."""
    from sentence_transformers import quantize_embeddings

    return np.asarray(quantize_embeddings(rows.astype(np.float32, copy=False), "int8", ranges=ranges))


def dequantize_int8(rows: np.ndarray, ranges: np.ndarray) -> np.ndarray:
    """Int8 rows `(N, D)` as float32: the middle of each step, so at most half a step off inside the ranges."""
    low = ranges[0].astype(np.float32)
    step = (ranges[1].astype(np.float32) - low) / 255
    restored: np.ndarray = np.where(step == 0, low, low + (rows.astype(np.float32) + 128.5) * step)
    return restored


def load_pca(path: str | os.PathLike[str], num_components: int | None = None) -> PCA:
    """Loads the PCA from a file of [`Compression.save`] and checks its number of components, if given.

    Raises:
        FileNotFoundError, ValueError: no such file, a damaged one, one without a PCA or with another number.
    """
    pca = Compression.load(path).pca
    if pca is None:
        raise ValueError(f"{path} holds no PCA.")
    if num_components not in (None, len(pca.components)):
        raise ValueError(f"{path} holds a PCA of {len(pca.components)} components, {num_components} are asked for.")
    return pca
