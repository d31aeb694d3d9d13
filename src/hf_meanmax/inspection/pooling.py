"""What each latent row of an encoder reads of each word of a text."""

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
    """The N tokens of a text, and the share `(N,)` of each in each latent row, by the row's name. Shares sum to 1.

    Of a maximum, the share of the dimensions in which the word is the largest. Of a mean, the part of the row's length
    that comes from the word, where words that point away from it have none. Of inner attention and of the weighted mean
    of word vectors, the weights. Of the last state, the word that it stands at; of the last states of two networks, the
    last word and the first.

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
            # Half of the row is the first state of the network that reads from the end.
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
