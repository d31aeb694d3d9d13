"""Keeping the heads of inner attention from reading the same words (structured self-attentive embedding, eq. 8)."""

from __future__ import annotations

import torch

from hf_meanmax.modeling.conditional_decoding import LatentForConditionalDecoding
from hf_meanmax.modeling.losses import penalty_of_sentences

from .base import Batch, Divisors, Encoded, Objective


class AttentionPenalty(Objective):
    """||A A' - I||_F^2 of the pooling's attention weights A, averaged over the sentences."""

    name = "attention_penalty"
    fields = ("labels",)

    def check(self, model: LatentForConditionalDecoding) -> None:
        if model.config.pooling != "inner_attention":
            raise ValueError(
                f"`attention_penalty` needs `pooling='inner_attention'`; the model has {model.config.pooling!r}."
            )

    def loss(
        self, model: LatentForConditionalDecoding, encoded: Encoded, batch: Batch, divisors: Divisors
    ) -> torch.Tensor:
        assert encoded.weights is not None
        return penalty_of_sentences(encoded.weights, batch["labels"], divisors.sentences, divisors.targets)
