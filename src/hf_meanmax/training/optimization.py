"""The model and objectives of a run, wrapped by Accelerate, and the optimizers of its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from accelerate import Accelerator

from hf_meanmax.modeling.conditional_decoding import LatentForConditionalDecoding
from hf_meanmax.objectives import Objective, TrainingModel

from .accelerator import is_sharded
from .optimizer import clip_gradients, make_optimizers
from .settings import PretrainArguments


class Optimization:
    """A model and its objectives on the run's device and processes, with their optimizers.

    Args:
        accelerator: of the run.
        model: the model to train; its gradients become sparse where that is faster.
        objectives: its training objectives.
        args: the run's settings.

    Attributes:
        wrapped: the module that computes the loss of a micro batch.
        trained: the parameters that are trained.
        optimizers: their optimizers.
        stateful_model: the module whose weights a checkpoint saves: the model, or `wrapped` if it is sharded.
    """

    wrapped: Any

    def __init__(
        self,
        accelerator: Accelerator,
        model: LatentForConditionalDecoding,
        objectives: Sequence[Objective],
        args: PretrainArguments,
    ) -> None:
        self.accelerator = accelerator
        self.max_grad_norm = args.max_grad_norm
        device, self.is_sharded = accelerator.device.type, is_sharded(accelerator)
        # On a CPU, dense gradients of word tables cost more than rows; a GPU would have to wait for the number of rows.
        self.has_sparse_gradients = args.lazy_adam or (accelerator.num_processes == 1 and device == "cpu")
        if self.has_sparse_gradients:
            model.make_gradients_sparse()
        module: Any = TrainingModel(model, objectives)
        if args.compile:
            module = torch.compile(module)
        fused = device in ("cpu", "cuda")
        if self.is_sharded:
            # Accelerate replaces the parameters in these optimizers by their shards.
            self.wrapped, *prepared = accelerator.prepare(module, *make_optimizers(module, args, fused))
            self.optimizers = [accelerated.optimizer for accelerated in prepared]
        else:
            # An optimizer must be made after its parameters have moved to the device.
            self.wrapped = accelerator.prepare_model(module)
            self.optimizers = make_optimizers(self.wrapped, args, fused)
        self.trained = [parameter for parameter in self.wrapped.parameters() if parameter.requires_grad]
        self.stateful_model = self.wrapped if self.is_sharded else model

    def step(self, learning_rate: float) -> None:
        """Clips the gradients, updates each parameter group at its multiple of the rate, and clears the gradients."""
        if self.max_grad_norm and self.has_sparse_gradients:
            clip_gradients(self.trained, self.max_grad_norm)
        elif self.max_grad_norm:
            # Accelerate recognises a sharded model only by the full list of its parameters.
            clipped = list(self.wrapped.parameters()) if self.is_sharded else self.trained
            self.accelerator.clip_grad_norm_(clipped, self.max_grad_norm)
        for group in chain.from_iterable(optimizer.param_groups for optimizer in self.optimizers):
            group["lr"] = learning_rate * group.get("lr_factor", 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
