"""The contract of an objective, and the module that trains a model on several of them."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from hf_meanmax.modeling.conditional_decoding import LatentForConditionalDecoding
from hf_meanmax.modeling.outputs import LatentSeq2SeqOutput

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Encoded:
    """A batch after the encoder.

    Args:
        latents: the decoder's input, Z `(B, L, latent_width)` or, without latent rows, the hidden states.
        weights: attention weights `(B, latent_heads, N)` of `inner_attention`; None for other poolings.
    """

    latents: torch.Tensor
    weights: torch.Tensor | None


@dataclass(frozen=True)
class Divisors:
    """Denominators of the losses: counts over the whole step, across micro batches and processes.

    Args:
        targets: number of target tokens; None counts those of the batch.
        sentences: number of sentences; None takes the mean over the batch, weighted by its share of `targets`.
    """

    targets: torch.Tensor | int | None = None
    sentences: torch.Tensor | int | None = None


class Objective(ABC):
    """A term of the training loss.

    Subclasses declare the batch fields that they read (`fields`; `optional_fields` may be absent), check that the model
    has the parts they need (`check`), and compute the loss (`loss`).

    Args:
        weight: the factor of the loss in the weighted sum.
    """

    name: str
    fields: tuple[str, ...] = ()
    optional_fields: tuple[str, ...] = ()

    def __init__(self, weight: float = 1.0) -> None:
        self.weight = weight

    @abstractmethod
    def check(self, model: LatentForConditionalDecoding) -> None:
        """Raises ValueError if the model lacks a part that the objective needs; the message names the field to set."""

    @abstractmethod
    def loss(
        self, model: LatentForConditionalDecoding, encoded: Encoded, batch: Batch, divisors: Divisors
    ) -> torch.Tensor:
        """The loss without its weight, a scalar."""


@dataclass
class TrainingOutput:
    """The weighted sum of the losses, and each objective's own loss without its weight, by its name."""

    loss: torch.Tensor
    losses: dict[str, torch.Tensor]


class TrainingModel(nn.Module):
    """A model with its training objectives; in evaluation mode a model with a decoder runs without them.

    Args:
        model: the model to train.
        objectives: the terms of the loss, in the order in which they are computed and added.

    Raises:
        ValueError: if there is no objective, if two have one name, or if the model lacks a part that one needs.
    """

    def __init__(self, model: LatentForConditionalDecoding, objectives: Sequence[Objective]) -> None:
        super().__init__()
        if not objectives:
            raise ValueError("There is no objective; give one or more, for instance [Decoding()].")
        for objective in objectives:
            objective.check(model)
        names = [objective.name for objective in objectives]
        if len(set(names)) < len(names):
            raise ValueError(
                f"Two objectives have one name ({', '.join(names)}); their losses could not be distinguished."
            )
        self.model = model
        self.config = model.config
        self.objectives = list(objectives)
        # Fields that only the objectives read; evaluation drops them from the batch.
        fields = {name for objective in objectives for name in (*objective.fields, *objective.optional_fields)}
        self._fields_of_objectives = fields - set(inspect.signature(model.forward).parameters)
        # Modules that Accelerate shards as units; it raises on class names that the model lacks.
        found = {type(module).__name__ for module in model.modules()}
        self._no_split_modules = [name for name in model._no_split_modules or () if name in found]

    def forward(
        self, num_items_in_batch: torch.Tensor | int | None = None, **batch: torch.Tensor
    ) -> TrainingOutput | LatentSeq2SeqOutput:
        """Encodes a batch once and adds up the objectives' losses.

        Args:
            num_items_in_batch: number of target tokens in the whole step.
            batch: the encoder's inputs (`input_ids` `(B, N)`), `attention_mask`, `labels`, the fields of the
                objectives and `num_sentences_in_batch`.

        Raises:
            ValueError: if the batch lacks a field of an objective, or has one that no objective reads.
        """
        num_sentences = batch.pop("num_sentences_in_batch", None)
        if not self.training and self.config.has_decoder:
            batch = {name: value for name, value in batch.items() if name not in self._fields_of_objectives}
            output: LatentSeq2SeqOutput = self.model(**batch, num_items_in_batch=num_items_in_batch)
            return output
        divisors = Divisors(num_items_in_batch, num_sentences)
        self._check_fields(batch)
        encoded = self.model.encoder(**{name: batch[name] for name in self.model.encoder_inputs if name in batch})
        rows = Encoded(self.model.read_by_decoder(encoded), encoded.pooling_attentions)
        losses = {term.name: term.loss(self.model, rows, batch, divisors) for term in self.objectives}
        weighted = [losses[t.name] if t.weight == 1 else t.weight * losses[t.name] for t in self.objectives]
        return TrainingOutput(sum(weighted[1:], weighted[0]), losses)

    def _check_fields(self, batch: Batch) -> None:
        read = {*self.model.encoder_inputs, "attention_mask"}
        for objective in self.objectives:
            read.update(objective.fields, objective.optional_fields)
            missing = [name for name in objective.fields if name not in batch]
            if missing:
                raise ValueError(f"The objective {objective.name!r} needs `{missing[0]}`, which the batch lacks.")
        for name in batch:
            if name not in read:
                names = ", ".join(repr(objective.name) for objective in self.objectives)
                raise ValueError(f"`{name}` is in the batch, but no objective reads it; there are {names}.")
