"""Adam over word tables of which a step reads few rows, and Muon for the matrices between them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from hf_meanmax.files import Json

if TYPE_CHECKING:
    from .settings import PretrainArguments


class RowAdam(torch.optim.Adam):
    """Adam that also takes sparse gradients.

    Args:
        parameters: what is trained, or groups of it.
        lazy: a sparse gradient moves its own rows and their moments alone, so that a step costs no more for a large
            table. By default all rows get Adam as it is, whose moments decay and move them on without a gradient.
        options: those of `torch.optim.Adam`.
    """

    def __init__(self, parameters: Iterable[torch.Tensor] | Iterable[Json], lazy: bool = False, **options: Any) -> None:
        super().__init__(parameters, **options)
        self.lazy = lazy
        self._dense: dict[torch.Tensor, torch.Tensor] = {}

    def __getstate__(self) -> Json:
        return {**super().__getstate__(), "lazy": self.lazy, "_dense": {}}

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step, of all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        sparse = [
            (group, parameter, parameter.grad.coalesce())
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None and parameter.grad.is_sparse
        ]
        for _, parameter, gradient in sparse:
            parameter.grad = None if self.lazy else self._fill(parameter, gradient)
        super().step()
        for group, parameter, gradient in sparse:
            if self.lazy:
                self._step_rows(group, parameter, gradient)
            else:
                self._dense[parameter].index_fill_(0, gradient.indices()[0], 0.0)
            parameter.grad = gradient
        return loss

    def _fill(self, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient as a dense tensor, which is kept: clearing some rows is cheaper than a table of zeros."""
        if parameter not in self._dense:
            self._dense[parameter] = torch.zeros_like(parameter)
        return self._dense[parameter].index_copy_(0, gradient.indices()[0], gradient.values().to(parameter.dtype))

    def _step_rows(self, group: Json, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        rows, values = gradient.indices()[0], gradient.values().to(parameter.dtype)
        beta1, beta2 = group["betas"]
        mean = state["exp_avg"].index_select(0, rows).lerp_(values, 1 - beta1)
        square = state["exp_avg_sq"].index_select(0, rows).mul_(beta2).addcmul_(values, values, value=1 - beta2)
        state["exp_avg"].index_copy_(0, rows, mean)
        state["exp_avg_sq"].index_copy_(0, rows, square)
        # On the device, where the count is: a number would make the host wait.
        first, second = 1 - beta1 ** state["step"], (1 - beta2 ** state["step"]).sqrt()
        change = mean.div_(square.sqrt_().div_(second).add_(group["eps"])).mul_(-group["lr"] / first)
        parameter.index_add_(0, rows, change)


def make_optimizers(module: torch.nn.Module, args: PretrainArguments, fused: bool) -> list[torch.optim.Optimizer]:
    """The optimizers of what `module` trains: Adam, whose word weights have a learning rate of their own; and for
    `args.optimizer` "muon" one that takes the hidden matrices over, at `args.muon_rate` times the learning rate (Jordan
    et al. 2024; its steps are scaled to the size of Adam's, Liu et al. 2025)."""
    matrices = hidden_matrices(module) if args.optimizer == "muon" else []
    others: list[torch.Tensor] = []
    word_weights: list[torch.Tensor] = []
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and not any(parameter is matrix for matrix in matrices):
            (word_weights if name.endswith("word_pooler.log_weights.weight") else others).append(parameter)
    groups: list[Json] = [{"params": others}, {"params": word_weights, "lr_factor": args.word_weight_rate}]
    groups = [group for group in groups if group["params"]]
    optimizers: list[torch.optim.Optimizer] = []
    if groups:
        betas = (args.adam_beta1, args.adam_beta2)
        shared: Json = {"lr": args.learning_rate, "weight_decay": args.weight_decay, "eps": args.adam_epsilon}
        optimizers.append(RowAdam(groups, lazy=args.lazy_adam, betas=betas, fused=fused, **shared))
    if matrices:
        of_matrices: Json = {"params": matrices, "lr_factor": args.muon_rate}
        decay = args.weight_decay
        optimizers.append(torch.optim.Muon([of_matrices], weight_decay=decay, adjust_lr_fn="match_rms_adamw"))
    return optimizers


def hidden_matrices(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The trained matrices but the tables of words and positions and the output layer."""
    tables = [part.weight for part in module.modules() if isinstance(part, torch.nn.Embedding)]
    return [
        parameter
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
        and parameter.ndim == 2
        and not name.endswith("lm_head.weight")
        and not any(parameter is table for table in tables)
    ]


def clip_gradients(parameters: Iterable[torch.Tensor], max_norm: float) -> torch.Tensor:
    """`torch.nn.utils.clip_grad_norm_` over gradients of which some are sparse; returns their norm before."""
    values = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            # Rows that occur more than once count as their sum.
            parameter.grad = parameter.grad.coalesce()
        values.append(parameter.grad.values() if parameter.grad.is_sparse else parameter.grad)
    norm = torch.nn.utils.get_total_norm(values)
    if not norm.is_cuda and norm + 1e-6 <= max_norm:
        return norm
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for part in values:
        part.mul_(factor)
    return norm
