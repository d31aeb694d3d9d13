"""Learning from the vectors of a teacher: the vectors themselves, or only their cosine similarities."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal, get_args

import torch
from torch import nn

from hf_meanmax.fields import check_choice
from hf_meanmax.modeling.conditional_decoding import LatentForConditionalDecoding
from hf_meanmax.modeling.layers import full_precision
from hf_meanmax.modeling.losses import mean_over_sentences

from .base import Batch, Divisors, Encoded, Objective
from .contrastive import check_temperature, gather_rows, matching_loss

TeacherLoss = Literal["cosine", "squared", "contrast"]


class _Teacher(Objective):
    """Base of objectives that read `teacher_embeddings` `(B, teacher_size)`, NaN in rows without a teacher vector."""

    fields = ("teacher_embeddings",)
    optional_fields = ("labels",)

    def check(self, model: LatentForConditionalDecoding) -> None:
        if not model.config.has_latents:
            raise ValueError("`pooling` is 'none': there is no embedding to compare with a teacher's.")

    def loss(
        self, model: LatentForConditionalDecoding, encoded: Encoded, batch: Batch, divisors: Divisors
    ) -> torch.Tensor:
        teacher = batch["teacher_embeddings"]
        # Cosines and squares of float16 vectors overflow.
        teacher = teacher.to(torch.promote_types(teacher.dtype, torch.float32))
        is_given = teacher.isfinite().all(dim=-1)
        teacher = torch.where(is_given[:, None], teacher, torch.zeros_like(teacher))
        total = self.total(model, encoded.latents.flatten(1), teacher, is_given)
        return mean_over_sentences(total, is_given.sum(), divisors.sentences, batch.get("labels"), divisors.targets)

    @abstractmethod
    def total(
        self,
        model: LatentForConditionalDecoding,
        embeddings: torch.Tensor,
        teacher: torch.Tensor,
        is_given: torch.Tensor,
    ) -> torch.Tensor:
        """The loss summed over the sentences that have a teacher vector."""


class TeacherDistance(_Teacher):
    """Distance of a linear map of the embedding, the model's `teacher_head`, from the teacher's vector, averaged over
    the sentences. Without `config.teacher_size` there is no map: the embedding itself is compared.

    Args:
        weight: the factor of the loss.
        kind: `"cosine"`, 1 - cosine; `"squared"`, the squared distance (compound attention, eq. 4.9); `"contrast"`, the
            cross entropy of the teacher's vector among those of the batch.
        temperature: the divisor of the cosines of `"contrast"`.

    Raises:
        ValueError: an unknown kind, or a temperature that is not positive.
    """

    name = "teacher_loss"

    def __init__(self, weight: float = 1.0, kind: TeacherLoss = "cosine", temperature: float = 0.05) -> None:
        super().__init__(weight)
        check_choice("teacher_loss", kind, get_args(TeacherLoss))
        check_temperature(temperature)
        self.kind = kind
        self.temperature = temperature

    def total(
        self,
        model: LatentForConditionalDecoding,
        embeddings: torch.Tensor,
        teacher: torch.Tensor,
        is_given: torch.Tensor,
    ) -> torch.Tensor:
        mapped = embeddings if model.teacher_head is None else model.teacher_head(embeddings)
        if mapped.shape != teacher.shape:
            raise ValueError(
                f"The embedding has {mapped.shape[-1]} numbers and the teacher's vectors {teacher.shape[-1]}: without "
                "`teacher_size` they are compared as they are. Set it, or make the embedding as wide."
            )
        mapped = mapped.to(teacher.dtype)
        if self.kind == "contrast":
            return matching_loss(mapped, teacher, is_given, self.temperature)
        if self.kind == "squared":
            return ((mapped - teacher).square() * is_given[:, None]).sum()
        return ((1 - nn.functional.cosine_similarity(mapped, teacher, dim=-1)) * is_given).sum()


class TeacherSimilarities(_Teacher):
    """Squared difference of the embeddings' pairwise cosines from the teacher's, (cos(z_i, z_j) - cos(t_i, t_j))^2,
    averaged over the other sentences j of the batch and over the sentences i.

    It acts on the published embedding, without a map, so the cosines become the teacher's whatever the embedding's
    dimension (relational knowledge distillation, Park et al., CVPR 2019).
    """

    name = "similarity_loss"

    def total(
        self,
        model: LatentForConditionalDecoding,
        embeddings: torch.Tensor,
        teacher: torch.Tensor,
        is_given: torch.Tensor,
    ) -> torch.Tensor:
        own, wanted = (nn.functional.normalize(rows.float(), dim=-1) for rows in (embeddings, teacher))
        all_own, all_wanted, all_given, first = gather_rows(own, wanted, is_given)
        with full_precision(own.device):
            differences = (own @ all_own.T - wanted @ all_wanted.T).square() * all_given
        places = torch.arange(len(own), device=own.device)
        is_other = torch.ones_like(differences)
        is_other[places, first + places] = 0
        sums = (differences * is_other).sum(dim=1) * is_given
        return sums.sum() / (all_given.sum() - 1).clamp(min=1)
