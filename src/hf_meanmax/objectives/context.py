"""Predicting the text around a sentence, in addition to or instead of the sentence itself."""

from __future__ import annotations

import torch

from hf_meanmax.modeling.conditional_decoding import LatentForConditionalDecoding
from hf_meanmax.modeling.losses import IGNORE_INDEX

from .base import Batch, Divisors, Encoded
from .decoding import Decoding
from .softmax import CANDIDATES, token_loss


class NeighbourDecoding(Decoding):
    """Cross entropy of the next sentence (`labels`) and of the previous one (`previous_targets` `(B, T')`), each with
    its own decoder: skip-thought (Kiros et al. 2015).

    The loss is the mean over the targets of both.
    """

    fields = ("labels", "previous_targets")

    def check(self, model: LatentForConditionalDecoding) -> None:
        super().check(model)
        if model.previous_decoder is None:
            raise ValueError("`previous_targets` need a model with `predict_previous=True`.")

    def states_and_labels(
        self, model: LatentForConditionalDecoding, encoded: Encoded, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        states, labels = super().states_and_labels(model, encoded, batch)
        previous = batch["previous_targets"]
        decoded = model.decode(encoded.latents, previous, batch.get("attention_mask"), decoder=model.previous_decoder)
        previous_states = decoded.last_hidden_state
        return torch.cat((states, previous_states), dim=1), torch.cat((labels, previous), dim=1)


class ContextWords(Decoding):
    """Cross entropy of the words around a text, `context_targets` `(B, N)`, under a second, non-autoregressive decoder
    (`config.context_channels`), in addition to [`Decoding`] of the text.

    The sum is divided by the number of the text's own targets.

    Args:
        weight: the factor of the loss.
        softmax: how the loss is computed ([`~hf_meanmax.objectives.softmax.token_loss`]).
    """

    name = "context_loss"
    fields = ("labels", "context_targets")
    optional_fields = CANDIDATES

    def check(self, model: LatentForConditionalDecoding) -> None:
        if model.context_decoder is None:
            raise ValueError("`context_targets` need a model with `context_channels`.")

    def loss(
        self, model: LatentForConditionalDecoding, encoded: Encoded, batch: Batch, divisors: Divisors
    ) -> torch.Tensor:
        labels, targets = batch["labels"], batch["context_targets"]
        divisor = (labels != IGNORE_INDEX).sum() if divisors.targets is None else divisors.targets
        states = model.predict_context(encoded.latents, targets)
        return token_loss(model, states, targets, batch, divisor, self.softmax)
