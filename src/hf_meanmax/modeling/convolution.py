"""Convolutions over the places of a sequence."""

from typing import Any

import torch
from torch import nn


def convolve(convolution: Any, states: torch.Tensor, before: int) -> torch.Tensor:
    """A convolution over the places of `(B, N, C)` that sees `before` places before each and the rest of its width from
    there on, with zeros beyond the ends: `(B, N, C')`.

    Written as one product over windows, which reaches the rate of large matrix products on a CPU; torch's own reaches
    three quarters of it.
    """
    (width,) = convolution.kernel_size
    if width > 1:
        windows = nn.functional.pad(states, (0, 0, before, width - 1 - before)).unfold(1, width, 1)
        states = windows.flatten(2)
    return nn.functional.linear(states, convolution.weight.flatten(1), convolution.bias)
