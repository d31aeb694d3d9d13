"""Echo state networks: recurrent networks that are never trained (Wieting and Kiela 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import torch

# Steps of the power iteration.
_STEPS = 1000


@dataclass(frozen=True)
class Reservoir:
    """The weights of one direction of an echo state network of n units.

    Attributes:
        project: W_in `(n, e)`.
        inputs: `(n, k)` int64, the units that each unit reads.
        weights: `(n, k)`, their weights.
    """

    project: torch.Tensor
    inputs: torch.Tensor
    weights: torch.Tensor

    @classmethod
    def draw(
        cls, rng: np.random.Generator, units: int, size: int, input_scale: float, fan_in: int, radius: float
    ) -> Reservoir:
        """Draws the weights, with distinct inputs for each unit and the given spectral radius."""
        project = draw_uniform(rng, (units, size), input_scale)
        fan_in = min(fan_in, units)
        inputs = rng.random((units, units)).argpartition(fan_in - 1, axis=1)[:, :fan_in]
        weights = rng.uniform(-1, 1, size=(units, fan_in))
        weights *= radius / spectral_radius(inputs, weights, rng)
        return cls(
            torch.from_numpy(project),
            torch.from_numpy(np.ascontiguousarray(inputs)),
            torch.from_numpy(weights.astype(np.float32)),
        )

    def to(self, device: torch.device | str | None) -> Reservoir:
        """The weights on a device."""
        return Reservoir(self.project.to(device), self.inputs.to(device), self.weights.to(device))


def spectral_radius(inputs: np.ndarray, weights: np.ndarray, rng: np.random.Generator) -> float:
    """The largest modulus of an eigenvalue of a sparse matrix, by the growth of a vector under power iteration.

    A real matrix often has a pair of complex eigenvalues of that modulus, so the vector itself need not converge; its
    growth over many steps does, to well within a per cent.

    Args:
        inputs: `(n, k)`, the columns of each row's k entries.
        weights: `(n, k)`, the entries.
        rng: draws the first vector.
    """
    vector = rng.standard_normal(len(inputs))
    growth = []
    for _ in range(_STEPS):
        vector = (weights * vector[inputs]).sum(axis=1)
        norm = float(np.linalg.norm(vector))
        growth.append(math.log(norm))
        vector /= norm
    # The first fifth is left out: the growth has not converged yet.
    return math.exp(fmean(growth[_STEPS // 5 :]))


def draw_uniform(rng: np.random.Generator, shape: tuple[int, int], limit: float) -> np.ndarray:
    """Float32 numbers, uniform in [-limit, limit]."""
    return (rng.random(shape, dtype=np.float32) * 2 - 1) * np.float32(limit)
