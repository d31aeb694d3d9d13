"""The share of each word of a text in each latent row of an encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from hf_meanmax.modeling.pooling import InnerAttentionPooling, StatePooling

from .decoding import token_texts

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@torch.no_grad()
def pooling_shares(
    encoder: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str
) -> tuple[list[str], dict[str, np.ndarray]]:
    """The N tokens of a text, and their shares `(N,)` in each latent row, by the row's name. Shares sum to 1.

    For a maximum: the share of the dimensions in which the word is the largest. For a mean: the word's part of the
    row's length; words that point away from the row have none. For inner attention and the weighted mean of word
    vectors: the weights. For a last state: 1 for the last word; for the last states of two directions: a half each for
    the last and first word.

    Raises:
        ValueError: the model has no latent rows.
    """
    config = encoder.config
    if not config.has_latents:
        raise ValueError("`pooling` is 'none': the model has no latent rows to show.")
    batch = tokenizer([text], return_tensors="pt").to(encoder.device)
    output = encoder(**batch)
    shares: dict[str, np.ndarray] = {}
    if isinstance(encoder.pooler, InnerAttentionPooling):
        shares |= dict(zip(config.state_pooling_rows, output.pooling_attentions[0].float().cpu().numpy(), strict=True))
    elif isinstance(encoder.pooler, StatePooling):
        states = encoder.pooler.projection(output.last_hidden_state)[0].float()
        shares |= {row: _READ[row](states).cpu().numpy() for row in config.state_pooling_rows}
        if "last" in shares and config.encoder_type.startswith("bi"):
            # Half of the row is the backward network's state at the first word.
            shares["last"] = (shares["last"] + shares["last"][::-1]) / 2
    if encoder.word_pooler is not None:
        ids = batch["input_ids"][0]
        is_word = (ids >= config.num_special_tokens).float()
        weights = encoder.word_pooler.log_weights(ids).squeeze(-1).float().exp() * is_word
        shares[config.pooling_rows[-1]] = (weights / weights.sum().clamp(min=1e-12)).cpu().numpy()
    return token_texts(tokenizer, batch["input_ids"][0].tolist()), shares


def _read_by_max(states: torch.Tensor) -> torch.Tensor:
    return torch.bincount(states.argmax(dim=0), minlength=len(states)) / states.shape[1]


def _read_by_mean(states: torch.Tensor) -> torch.Tensor:
    parts = (states @ states.mean(dim=0)).clamp(min=0)
    return parts / parts.sum().clamp(min=1e-12)


def _read_by_last(states: torch.Tensor) -> torch.Tensor:
    return (torch.arange(len(states), device=states.device) == len(states) - 1).float()


_READ = {"max": _read_by_max, "mean": _read_by_mean, "last": _read_by_last}
