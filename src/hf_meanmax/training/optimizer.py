"""Adam for word tables with sparse gradients, and Muon for the hidden matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from hf_meanmax.files import Json
from hf_meanmax.hardware import is_bf16_fast, uses_bf16

if TYPE_CHECKING:
    from .settings import PretrainArguments


def _loss_of(closure: Callable[[], float] | None) -> float | None:
    """Calls an optimizer's `closure`, if there is one, with gradients enabled, and returns its loss."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


class RowAdam(torch.optim.Adam):
    """Adam that also takes sparse gradients.

    Args:
        parameters: the trained parameters, or groups of them.
        lazy: whether a sparse gradient updates only its own rows, so that a step costs no more for a large table. After
            a gradient, Adam's momentum moves a row for further steps: here the row gets these moves at once, for as
            many steps as have passed since its previous gradient, and its next gradient corrects them by the actual
            number. `betas[0]` must be below the square root of `betas[1]`.
        options: those of `torch.optim.Adam`.
    """

    def __init__(self, parameters: Iterable[torch.Tensor] | Iterable[Json], lazy: bool = False, **options: Any) -> None:
        super().__init__(parameters, **options)
        self.lazy = lazy
        self._dense: dict[torch.Tensor, torch.Tensor] = {}

    def __getstate__(self) -> Json:
        return {**super().__getstate__(), "lazy": self.lazy, "_dense": {}}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Updates all parameters that have a gradient."""
        loss = _loss_of(closure)
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
        """The gradient as a dense tensor, kept for later steps: clearing rows is cheaper than a new table of zeros."""
        if parameter not in self._dense:
            self._dense[parameter] = torch.zeros_like(parameter)
        return self._dense[parameter].index_copy_(0, gradient.indices()[0], gradient.values().to(parameter.dtype))

    def _step_rows(self, group: Json, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
            # For each row: the step of its last gradient, and for how many steps it was moved then.
            state["read_at"] = parameter.new_zeros(len(parameter), dtype=torch.float32)
            state["moved_for"] = parameter.new_zeros(len(parameter), dtype=torch.float32)
        state["step"] += 1
        rows, values = gradient.indices()[0], gradient.values().to(parameter.dtype)
        beta1, beta2 = group["betas"]
        mean: torch.Tensor = state["exp_avg"].index_select(0, rows)
        square: torch.Tensor = state["exp_avg_sq"].index_select(0, rows)
        waited = (state["step"] - state["read_at"].index_select(0, rows)).unsqueeze(1)
        moved_for = state["moved_for"].index_select(0, rows).unsqueeze(1)

        # Computed on the device, where the step count is, so that the host does not wait for it.
        first, second = 1 - beta1 ** state["step"], (1 - beta2 ** state["step"]).sqrt()
        # Without a gradient Adam's move shrinks by this factor each step.
        shrinkage = beta1 / beta2**0.5
        before, now = ((1 - shrinkage**steps) / (1 - shrinkage) for steps in (moved_for, waited))

        def move() -> torch.Tensor:
            return mean.div(square.sqrt().div_(second).add_(group["eps"]))

        change = move().mul_(now - before)
        mean.mul_(beta1**waited).add_(values, alpha=1 - beta1)
        square.mul_(beta2**waited).addcmul_(values, values, value=1 - beta2)
        change.addcmul_(move(), now)
        parameter.index_add_(0, rows, change.mul_(-group["lr"] / first))

        state["exp_avg"].index_copy_(0, rows, mean)
        state["exp_avg_sq"].index_copy_(0, rows, square)
        state["read_at"].index_copy_(0, rows, state["step"].expand(len(rows)))
        state["moved_for"].index_copy_(0, rows, waited.squeeze(1))


class Muon(torch.optim.Muon):
    """Muon with updates of Adam's size (`adjust_lr_fn="match_rms_adamw"`), optionally not at every step.

    Args:
        parameters: matrices, or groups of them.
        interval: each matrix is updated once in this many steps, by this many times the learning rate. The matrices
            take turns, and updates pending at the end of a run are lost. The momentum changes little in between, and
            orthogonalizing it can cost as much as the gradients of a small batch.
        dtype: data type of the orthogonalization; torch uses bf16, which is slow on some devices.
        options: those of `torch.optim.Muon`.
    """

    def __init__(
        self,
        parameters: Iterable[torch.Tensor] | Iterable[Json],
        interval: int = 1,
        dtype: torch.dtype = torch.float32,
        **options: Any,
    ) -> None:
        super().__init__(parameters, adjust_lr_fn="match_rms_adamw", **options)
        self.interval = interval
        self.dtype = dtype

    def __getstate__(self) -> Json:
        return {**super().__getstate__(), "interval": self.interval, "dtype": self.dtype}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Updates all parameters that have a gradient."""
        loss = _loss_of(closure)
        for group in self.param_groups:
            for turn, parameter in enumerate(group["params"]):
                if parameter.grad is not None:
                    self._step_matrix(group, parameter, parameter.grad, turn)
        return loss

    def _step_matrix(self, group: Json, parameter: torch.Tensor, gradient: torch.Tensor, turn: int) -> None:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        # A number on the host, since it decides whether to update.
        step = int(state.get("step", 0)) + 1
        state["step"] = torch.tensor(step)
        mean = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
        if (step + turn) % self.interval:
            return
        update = gradient.lerp(mean, group["momentum"]) if group["nesterov"] else mean
        rate = group["lr"] * min(self.interval, step)
        parameter.mul_(1 - rate * group["weight_decay"])
        parameter.add_(self._orthogonalized(update, group), alpha=-0.2 * max(parameter.shape) ** 0.5 * rate)

    def _orthogonalized(self, update: torch.Tensor, group: Json) -> torch.Tensor:
        """The Newton-Schulz iteration, over the shorter side."""
        a, b, c = group["ns_coefficients"]
        is_tall = update.shape[0] > update.shape[1]
        matrix = (update.T if is_tall else update).to(self.dtype)
        matrix = matrix / matrix.norm().clamp(min=group["eps"])
        for _ in range(group["ns_steps"]):
            gram = matrix @ matrix.T
            matrix = torch.addmm(matrix, torch.addmm(gram, gram, gram, beta=b, alpha=c), matrix, beta=a)
        return (matrix.T if is_tall else matrix).to(update.dtype)


def make_optimizers(module: torch.nn.Module, args: PretrainArguments, fused: bool) -> list[torch.optim.Optimizer]:
    """Returns the optimizers of `module`: Adam, and with `args.optimizer` "muon" also Muon for the hidden matrices.

    Adam has separate learning rates for word vectors and word weights. Muon (Jordan et al. 2024) has `args.muon_rate`
    times the learning rate; its updates are scaled to the size of Adam's (Liu et al. 2025).
    """
    matrices = hidden_matrices(module) if args.optimizer == "muon" else []
    rates = {
        "encoder.embeddings.word_embeddings.weight": args.word_vector_rate,
        "encoder.word_pooler.log_weights.weight": args.word_weight_rate,
    }
    of_rates: dict[float, list[torch.Tensor]] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and not any(parameter is matrix for matrix in matrices):
            rate = next((rate for part, rate in rates.items() if name.endswith(part)), 1.0)
            of_rates.setdefault(rate, []).append(parameter)
    groups: list[Json] = [{"params": parameters, "lr_factor": rate} for rate, parameters in of_rates.items()]
    optimizers: list[torch.optim.Optimizer] = []
    if groups:
        betas = (args.adam_beta1, args.adam_beta2)
        shared: Json = {"lr": args.learning_rate, "weight_decay": args.weight_decay, "eps": args.adam_epsilon}
        optimizers.append(RowAdam(groups, lazy=args.lazy_adam, betas=betas, fused=fused, **shared))
    if matrices:
        device = matrices[0].device
        in_bf16 = uses_bf16(args.precision, device) and is_bf16_fast(device)
        optimizers.append(
            Muon(
                [{"params": matrices, "lr_factor": args.muon_rate}], args.muon_interval,
                torch.bfloat16 if in_bf16 else torch.float32, weight_decay=args.weight_decay,
            )
        )  # fmt: skip
    return optimizers


def hidden_matrices(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The trained matrices, except the tables of words and positions and the output layer."""
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
    """`torch.nn.utils.clip_grad_norm_` that also takes sparse gradients; returns the norm before clipping."""
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
