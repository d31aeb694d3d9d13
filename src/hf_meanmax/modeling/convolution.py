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
    if not _is_plain(convolution):
        (width,) = getattr(convolution, "base_layer", convolution).kernel_size
        padded = nn.functional.pad(states, (0, 0, before, width - 1 - before))
        convolved: torch.Tensor = convolution(padded.transpose(1, 2)).transpose(1, 2)
        return convolved
    (width,) = convolution.kernel_size
    if width > 1:
        windows = nn.functional.pad(states, (0, 0, before, width - 1 - before)).unfold(1, width, 1)
        states = windows.flatten(2)
    return nn.functional.linear(states, convolution.weight.flatten(1), convolution.bias)


def _is_plain(convolution: nn.Module) -> bool:
    """Whether it is torch's own, with its weights in memory and nothing that changes them when it is called."""
    hooks = (convolution._forward_hooks, convolution._forward_pre_hooks)
    return type(convolution) is nn.Conv1d and "forward" not in vars(convolution) and not any(hooks)
