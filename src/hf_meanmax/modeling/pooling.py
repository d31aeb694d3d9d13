"""From hidden states (B, N, d) to latent rows Z (B, L, d)."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from transformers.configuration_utils import PreTrainedConfig


def max_pooling(hidden_states: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """z[i] = max_t h_t[i] over real tokens (mean-max autoencoder, eq. 12); zeros for a row without tokens."""
    if attention_mask is None:
        return hidden_states.amax(dim=1)
    mask = attention_mask.bool().unsqueeze(-1)
    pooled = hidden_states.masked_fill(~mask, torch.finfo(hidden_states.dtype).min).amax(dim=1)
    return torch.where(mask.any(dim=1), pooled, torch.zeros_like(pooled))


def mean_pooling(hidden_states: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """z = (1/N) sum_t h_t over real tokens (mean-max autoencoder, eq. 13); zeros for a row without tokens."""
    if attention_mask is None:
        return hidden_states.mean(dim=1)
    mask = attention_mask.bool().unsqueeze(-1)
    total = torch.where(mask, hidden_states, torch.zeros_like(hidden_states)).sum(dim=1)
    return total / mask.sum(dim=1).clamp(min=1).to(total.dtype)


def last_pooling(hidden_states: torch.Tensor, attention_mask: torch.Tensor | None, backward_size: int) -> torch.Tensor:
    """The state at the last real token, `(B, d)`; the last `backward_size` dimensions, those of a network that reads
    from the end, are taken at the first one. Zeros for a row without tokens."""
    if attention_mask is None:
        last, first = hidden_states[:, -1], hidden_states[:, 0]
    else:
        mask = attention_mask.bool()
        places = torch.arange(mask.shape[1], device=mask.device)
        rows = torch.arange(mask.shape[0], device=mask.device)
        last = hidden_states[rows, (places * mask).amax(dim=1)]
        first = hidden_states[rows, mask.long().argmax(dim=1)]
    pooled = last
    if backward_size:
        pooled = torch.cat((last[:, :-backward_size], first[:, -backward_size:]), dim=-1)
    if attention_mask is not None:
        pooled = pooled.masked_fill(~mask.any(dim=1, keepdim=True), 0.0)
    return pooled


class StatePooling(nn.Module):
    """Stacks the rows that `config.pooling_rows` names (mean-max autoencoder, eq. 14)."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        backward_size = config.hidden_size // 2 if config.encoder_type.startswith("bi") else 0
        self.functions: dict[str, Callable[..., torch.Tensor]] = {
            "max": max_pooling,
            "mean": mean_pooling,
            "last": partial(last_pooling, backward_size=backward_size),
        }
        self.rows = config.pooling_rows

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`(B, N, d)` and a mask `(B, N)` -> Z `(B, L, d)` and the pooling weights (none for these rows)."""
        rows = [self.functions[name](hidden_states, attention_mask) for name in self.rows]
        return torch.stack(rows, dim=1), None

    def explain_foreign(self, latents: torch.Tensor) -> str | None:
        """What shows that rows `(B, L, d)` did not come from this pooling, or None if nothing does."""
        if not {"max", "mean"} <= set(self.rows):
            return None
        named = dict(zip(self.rows, latents.float().unbind(dim=1), strict=True))
        # A maximum over tokens is never below their mean, in any dimension; mixtures of embeddings keep this.
        slack = 0.02 * named["max"].abs().amax(dim=-1, keepdim=True)
        share = (named["max"] + slack < named["mean"]).float().mean(dim=-1).amax()
        if share > 0.001:
            return f"its max row lies below its mean row in {100 * share.item():.1f} % of the dimensions"
        return None


POOLINGS = dict.fromkeys(("mean_max", "mean", "max", "last", "mean_max_last"), StatePooling)
