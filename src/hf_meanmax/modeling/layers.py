"""Layers that encoders and decoders share."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_layers import GradientCheckpointingLayer


# torch 2.11 cannot compile `is_autocast_available`.
@torch.compiler.assume_constant_result
def _has_autocast(device: str) -> bool:
    return torch.amp.is_autocast_available(device)


def autocast_dtype(states: torch.Tensor) -> torch.dtype:
    """The dtype in which autocast multiplies these states; their own if it is off or they are float64."""
    device = states.device.type
    if states.dtype != torch.float64 and _has_autocast(device) and torch.is_autocast_enabled(device):
        dtype: torch.dtype = torch.get_autocast_dtype(device)
        return dtype
    return states.dtype


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Switches autocast off: products of float32 tensors stay float32."""
    if _has_autocast(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def is_plain(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Whether a module is exactly of one of these types and has no hooks: not quantised, adapted or offloaded."""
    hooks = module._forward_hooks or module._forward_pre_hooks
    return type(module) in kinds and not (hooks or "forward" in vars(module))


class SequenceLayer(GradientCheckpointingLayer):
    """A layer of an encoder or a decoder: `output_hidden_states` records its output."""


class FeedForward(nn.Module):
    """FFN(a) = max(0, a W1 + b1) W2 + b2, position by position (mean-max autoencoder, eq. 10)."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(B, N, hidden_size)` -> `(B, N, hidden_size)`."""
        return self.dropout(self.down(nn.functional.relu(self.up(hidden_states))))


class LatentGates(nn.Module):
    """The gated sum of the latent rows at each step: sum_i z_i * sigma(z_i W_i + f U_i + b_i) (Zhang, Wu, Li and Zhang,
    eq. 19-20)."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.row_indices = [config.pooling_rows.index(row) for row in config.gated_rows]
        size = config.hidden_size
        self.latent_projections = nn.ModuleList(nn.Linear(size, size) for _ in self.row_indices)
        self.state_projections = nn.ModuleList(nn.Linear(size, size, bias=False) for _ in self.row_indices)

    def forward(self, hidden_states: torch.Tensor, latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`(B, T, d)` and Z `(B, L, d)` -> the sum over the R gated rows `(B, T, d)` and the gates `(B, T, R, d)`."""
        read, gates = torch.zeros_like(hidden_states), []
        for i, row in enumerate(self.row_indices):
            z = latents[:, row : row + 1]
            gates.append(torch.sigmoid(self.latent_projections[i](z) + self.state_projections[i](hidden_states)))
            read = read + z * gates[-1]
        return read, torch.stack(gates, dim=2)


class WordSpaceProjection(nn.Linear):
    """Projects the decoder's states into the space of the word vectors, for a tied output layer."""


class Standardization(nn.Module):
    """(x - mean) / scale, elementwise; both are buffers that start as 0 and 1."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.mean: torch.Tensor
        self.scale: torch.Tensor
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """`(B, size)` -> `(B, size)`."""
        return (vectors - self.mean) / self.scale


def unit_rows(rows: torch.Tensor) -> torch.Tensor:
    """Scales vectors `(..., d)` to unit length; zeros stay zeros. Uses float32 for float16, whose squares overflow."""
    numbers = rows.float() if rows.dtype == torch.float16 else rows
    return nn.functional.normalize(numbers, dim=-1).to(rows.dtype)


def tokens_first(is_token: torch.Tensor) -> torch.Tensor:
    """Indices `(B, N)` that move each row's tokens, in order, before its padding; `is_token` is `(B, N)`."""
    return (~is_token).long().argsort(dim=1, stable=True)


def has_padding_first(is_token: torch.Tensor) -> bool:
    """Whether a row of `is_token` `(B, N)` has padding before a token."""
    return bool((is_token[:, 1:] > is_token[:, :-1]).any())


def scale_rows(latents: torch.Tensor, config: PreTrainedConfig, scales: torch.Tensor | None) -> torch.Tensor:
    """Applies `config.latent_normalization` to Z `(B, L, d)`: rows of unit length, times the trained scales `(L,)`.
    Multiplying a row by a positive number before does not change the result; rows of zeros stay zeros."""
    if config.latent_normalization is None:
        return latents
    latents = unit_rows(latents)
    return latents if scales is None else latents * scales.abs()[:, None]
