"""Random number streams that depend on their key alone, so any part of a run can be reproduced."""

from __future__ import annotations

import numpy as np

ORDER, NOISE, CANDIDATES, CUTTING, VIEW = range(5)


def stream(seed: int, purpose: int, *key: int) -> np.random.Generator:
    """The random generator for one purpose at one place of a run; `key` is for example (epoch, step, micro)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, purpose, *key))))
