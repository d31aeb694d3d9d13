"""Staying near the vectors of another encoder (compound attention, eq. 4.9)."""

from __future__ import annotations

import torch

from hf_meanmax.modeling.conditional_decoding import LatentForConditionalDecoding
from hf_meanmax.modeling.losses import mean_over_sentences

from .base import Batch, Divisors, Encoded, Objective


class TeacherDistance(Objective):
    """Squared distance ||W u + b - t||^2 of a linear map of the embedding u from the teacher's vector t, in the mean
    over the sentences.

    `teacher_embeddings` is `(B, teacher_size)`, NaN in rows that have none. The map is the model's `teacher_head`.
    """

    name = "teacher_loss"
    fields = ("teacher_embeddings",)
    optional_fields = ("labels",)

    def check(self, model: LatentForConditionalDecoding) -> None:
        if model.teacher_head is None:
            raise ValueError("`teacher_embeddings` need a model with `teacher_size`, the width of the vectors.")

    def loss(
        self, model: LatentForConditionalDecoding, encoded: Encoded, batch: Batch, divisors: Divisors
    ) -> torch.Tensor:
        assert model.teacher_head is not None
        teacher = batch["teacher_embeddings"]
        is_given = teacher.isfinite().all(dim=-1, keepdim=True)
        wanted = torch.where(is_given, teacher, torch.zeros_like(teacher))
        distances = (model.teacher_head(encoded.latents.flatten(1)).to(wanted.dtype) - wanted).square() * is_given
        return mean_over_sentences(
            distances.sum(), is_given.sum(), divisors.sentences, batch.get("labels"), divisors.targets
        )
