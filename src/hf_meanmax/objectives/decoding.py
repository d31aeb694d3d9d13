"""Generating the targets from the latent rows: the input itself, its translation, or sentences around it.

The batches (`hf_meanmax.data`) determine the targets: the mean-max autoencoder reconstructs its input (eq. 22),
compound attention translates it, RNN-CNN and skip-thought predict the text around it.
"""

from __future__ import annotations

from typing import get_args

import torch

from hf_meanmax.fields import check_choice
from hf_meanmax.modeling.conditional_decoding import LatentForConditionalDecoding

from .base import Batch, Divisors, Encoded, Objective
from .softmax import CANDIDATES, Softmax, token_loss


class Decoding(Objective):
    """Cross entropy of `labels` `(B, T)` under the model's decoder, per target token.

    If the batch has `decoder_input_ids` `(B, T)`, the decoder reads these instead of the shifted labels.

    Args:
        weight: the factor of the loss.
        softmax: how the loss is computed ([`~hf_meanmax.objectives.softmax.token_loss`]).
    """

    name = "decoding"
    fields: tuple[str, ...] = ("labels",)
    optional_fields: tuple[str, ...] = ("decoder_input_ids", "decoder_attention_mask", *CANDIDATES)

    def __init__(self, weight: float = 1.0, softmax: Softmax = "full") -> None:
        super().__init__(weight)
        check_choice("softmax", softmax, get_args(Softmax))
        self.softmax: Softmax = softmax

    def check(self, model: LatentForConditionalDecoding) -> None:
        if not model.config.has_decoder:
            raise ValueError("`decoder_type` is 'none': there is no decoder to train. Leave this objective out.")

    def loss(
        self, model: LatentForConditionalDecoding, encoded: Encoded, batch: Batch, divisors: Divisors
    ) -> torch.Tensor:
        states, labels = self.states_and_labels(model, encoded, batch)
        return token_loss(model, model.output_states(states), labels, batch, divisors.targets, self.softmax)

    def states_and_labels(
        self, model: LatentForConditionalDecoding, encoded: Encoded, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The decoder's states `(B, T, d)` and the labels `(B, T)` that they are scored against."""
        outputs = model.decode(
            encoded.latents, batch["labels"], batch.get("attention_mask"), batch.get("decoder_input_ids"),
            batch.get("decoder_attention_mask"),
        )  # fmt: skip
        assert outputs.last_hidden_state is not None
        return outputs.last_hidden_state, batch["labels"]
