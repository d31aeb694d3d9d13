"""Random streams by name: each is a function of its key alone, so any part of a run can be made again."""

from __future__ import annotations

import numpy as np

ORDER, NOISE, CANDIDATES, CUTTING, VIEW = range(5)


def stream(seed: int, purpose: int, *key: int) -> np.random.Generator:
    """The random numbers of one purpose at one place of the run, for example (epoch, step, micro)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, purpose, *key))))
