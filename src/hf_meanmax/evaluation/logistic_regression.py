"""Many L2-regularised logistic regressions on the same features, fitted together.

A cross-validation fits one classifier for each fold and each strength, on rows of one matrix. Here they are columns of
one problem, and an iteration takes two matrix products for all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

_PRECONDITIONER_ROWS = 16384
_CURVATURE = 0.15  # mean p (1 - p) that the preconditioner assumes; at most 0.25, less where classes are far apart
_FEWEST_BETWEEN = 8  # iterations between two preconditioners, so that conjugate directions can build up
_COMMON_BETWEEN = 25
_COMMON_TOLERANCE = 1e-6
_LINE_STEPS = 3
_SLOPE_LEFT = 0.05  # share of the slope at which a line search is good enough


@dataclass(frozen=True)
class LogisticRegressions:
    """P fitted classifiers.

    Attributes:
        classes: the K labels, sorted.
        coefficients: `(P, K, D)` float32, or `(P, 1, D)` for two classes (those of the second).
        intercepts: `(P, K)` or `(P, 1)` float32.
        converged: `(P,)` bool.
    """

    classes: np.ndarray
    coefficients: torch.Tensor
    intercepts: torch.Tensor
    converged: np.ndarray

    def decision(self, features: npt.ArrayLike) -> torch.Tensor:
        """Logits `(M, P, K)`, or `(M, P, 1)` for two classes, of `features` `(M, D)`."""
        count, outputs, size = self.coefficients.shape
        rows = as_tensor(features, self.coefficients.device)
        logits = rows @ self.coefficients.reshape(count * outputs, size).T + self.intercepts.reshape(-1)
        return logits.view(len(rows), count, outputs)

    def predict(self, features: npt.ArrayLike) -> np.ndarray:
        """The label that each of the P classifiers gives to each row of `features` `(M, D)`, as `(P, M)`."""
        logits = self.decision(features)
        chosen = (logits[..., 0] > 0).long() if logits.shape[2] == 1 else logits.argmax(dim=2)
        return self.classes[chosen.T.cpu().numpy()]


def fit_logistic_regressions(
    features: npt.ArrayLike,
    labels: npt.ArrayLike,
    masks: npt.ArrayLike | None,
    C: npt.ArrayLike,
    device: torch.device | str | None = None,
    tolerance: float = 1e-6,
    max_iterations: int = 500,
) -> LogisticRegressions:
    """Fits P classifiers, each on the rows that its mask selects.

    Each minimises what scikit-learn's `LogisticRegression(C=C)` does: `||W||^2 / 2` plus `C` times the sum of the cross
    entropies, intercept not penalised, softmax over the classes if there are more than two. The method is nonlinear
    conjugate gradients with a nearly exact line search, preconditioned for each strength by the mean Hessian of its
    problems, which is recomputed once the iterations since have cost as much.

    Args:
        features: `(N, D)` float32 array or tensor.
        labels: `(N,)` of any sortable kind.
        masks: `(P, N)` bool: the training rows of each problem; None for all rows.
        C: `(P,)` inverse strengths, positive.
        device: torch device (default: that of `features` if it is a tensor, else the CPU).
        tolerance: a problem has converged when the excess of its mean loss over the minimum (nats, estimated by the
            Newton decrement) is below this.
        max_iterations: iterations of all problems together.

    Raises:
        ValueError: shapes that do not fit together, a `C` that is not positive, features that are not finite, or a mask
            with less than two classes.
    """
    rows = as_tensor(features, device)
    C = np.asarray(C, dtype=np.float64)
    masks = np.ones((C.size, len(rows)), dtype=bool) if masks is None else np.asarray(masks, dtype=bool)
    classes, targets = _check(rows, np.asarray(labels), masks, C)
    counts = masks.sum(axis=1)
    spanned = _Span(rows)
    problem = _Problem(
        spanned.rows,
        torch.from_numpy(targets),
        share=torch.from_numpy((masks / counts[:, None]).T.astype(np.float32)),
        decay=torch.from_numpy((1 / (C * counts)).astype(np.float32)),
        classes=len(classes),
    )
    weights, converged = _minimise(problem, problem.common_start(max_iterations), tolerance, max_iterations)
    count, outputs = len(C), problem.outputs
    coefficients = spanned.coefficients(weights[:-1])
    intercepts = weights[-1] - problem.mean @ weights[:-1] - spanned.mean @ coefficients
    return LogisticRegressions(
        classes=classes,
        coefficients=coefficients.T.reshape(count, outputs, -1).contiguous(),
        intercepts=intercepts.reshape(count, outputs),
        converged=converged.cpu().numpy(),
    )


class _Span:
    """The features in N coordinates, if there are fewer rows N than dimensions D.

    A penalised solution lies in the span of the rows, and only depends on their inner products.
    """

    def __init__(self, rows: torch.Tensor) -> None:
        count, size = rows.shape
        self.rows, self.mean = rows, torch.zeros(size, device=rows.device)
        self.centred: torch.Tensor | None = None
        if count < size:
            self.mean = rows.mean(dim=0)
            self.centred = rows - self.mean
            # Centred rows are linearly dependent; a jitter far below the penalty makes the matrix invertible.
            self.rows = _cholesky(self.centred @ self.centred.T, 1e-7)

    def coefficients(self, weights: torch.Tensor) -> torch.Tensor:
        """`(D, columns)` in the original coordinates."""
        if self.centred is None:
            return weights
        return self.centred.T @ torch.linalg.solve_triangular(self.rows.T, weights, upper=True)


def _cholesky(matrix: torch.Tensor, jitter: float) -> torch.Tensor:
    """The Cholesky factor of a matrix, with the first jitter on its diagonal for which the factor exists.

    `matrix` is changed. The jitter is relative to the mean of the diagonal, and grows tenfold with each attempt.

    Raises:
        ValueError: it is not finite.
    """
    diagonal = matrix.diagonal()
    scale = float(diagonal.mean())
    if not math.isfinite(scale):
        raise ValueError("The features are too large: their squares are no float32 numbers. Scale the embeddings down.")
    # Identical rows give a matrix of zeros.
    jitter *= scale or 1.0
    while True:
        diagonal += jitter
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if not failed:
            return factor
        jitter *= 10


def as_tensor(features: npt.ArrayLike, device: torch.device | str | None) -> torch.Tensor:
    """Converts features to a float32 tensor on a device (default: that of a tensor, else the CPU)."""
    tensor = features if torch.is_tensor(features) else torch.from_numpy(np.ascontiguousarray(features))
    return tensor.to(device=device or tensor.device, dtype=torch.float32)


def _check(rows: torch.Tensor, labels: np.ndarray, masks: np.ndarray, C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if rows.ndim != 2 or labels.shape != (len(rows),):
        raise ValueError(f"{tuple(rows.shape)} features need as many labels as rows, got {labels.shape}.")
    if C.ndim != 1 or masks.shape != (len(C), len(rows)):
        raise ValueError(f"{len(rows)} rows and C of shape {C.shape} do not fit masks of shape {masks.shape}.")
    if not (np.isfinite(C).all() and (C > 0).all()):
        raise ValueError(f"C must be positive, got {C.min()}.")
    if not torch.isfinite(rows).all():
        row = int((~torch.isfinite(rows).all(dim=1)).nonzero()[0])
        raise ValueError(f"Row {row} of the features is not finite.")
    classes, targets = np.unique(labels, return_inverse=True)
    counts = masks.astype(np.float32) @ np.eye(len(classes), dtype=np.float32)[targets]
    seen = (counts > 0).sum(axis=1)
    if len(classes) < 2 or seen.min() < 2:
        raise ValueError(f"Problem {int(seen.argmin())} has rows of {int(seen.min())} class; it needs two or more.")
    return classes, targets


class _Problem:
    """Data and operations of all problems. W `(D + 1, columns)` has `outputs` (1 or K) adjacent columns for each
    problem; its last row is the intercept of the centred features."""

    def __init__(
        self, rows: torch.Tensor, targets: torch.Tensor, *, share: torch.Tensor, decay: torch.Tensor, classes: int
    ) -> None:
        """`share` `(N, P)`: each row's weight in the mean loss; `decay` `(P,)`: the penalty's weight."""
        device = rows.device
        self.rows, self.classes, self.labels = rows, classes, targets.to(device)
        self.outputs = 1 if classes == 2 else classes
        self.targets = (
            self.labels.float().unsqueeze(1)
            if classes == 2
            else torch.nn.functional.one_hot(self.labels, classes).float()
        )
        self.share, self.decay = share.to(device).contiguous(), decay.to(device)
        self.mean = self.share.mean(dim=1) @ rows
        # Folds differ by a few rows: problems whose decay differs by a few per cent share one factor.
        keys = (self.decay.log() / np.log(1.1)).round()
        self.groups = [(keys == key).nonzero().squeeze(1) for key in keys.unique()]
        self.step = -(-len(rows) // _PRECONDITIONER_ROWS)
        self.factors: list[torch.Tensor] = []

    def common_start(self, max_iterations: int) -> torch.Tensor:
        """Initial weights; also sets the first preconditioners.

        The folds of one strength have nearly the same solution: the minimum of their mean loss, which costs as much as
        one fold. One preconditioner serves all of them.
        """
        hessian = self._hessian(_CURVATURE * self.share[:: self.step].mean(dim=1))
        self.factors = [self._factor(hessian, group) for group in self.groups]
        del hessian
        weights = torch.zeros(self.rows.shape[1] + 1, len(self.decay) * self.outputs, device=self.rows.device)
        if len(self.decay) <= 2 * len(self.groups):
            return weights
        share = torch.stack([self.share[:, group].mean(dim=1) for group in self.groups], dim=1)
        decay = torch.stack([self.decay[group].mean() for group in self.groups])
        common = _Problem(self.rows, self.labels, share=share, decay=decay, classes=self.classes)
        common.factors = self.factors
        start = weights[:, : len(self.groups) * self.outputs]
        found, _ = _minimise(common, start, _COMMON_TOLERANCE, max_iterations, _COMMON_BETWEEN)
        self.factors = common.factors
        for number, group in enumerate(self.groups):
            shared = found[:, number * self.outputs : (number + 1) * self.outputs]
            weights[:, self.columns(group)] = shared.repeat(1, len(group))
        return weights

    def _hessian(self, curvature: torch.Tensor) -> torch.Tensor:
        """The loss's Hessian `(D + 1, D + 1)` for the given curvature of each row of the sample."""
        sample = self.rows[:: self.step] - self.mean
        curvature = curvature * (len(self.rows) / len(sample))
        size = sample.shape[1]
        weighted = sample * curvature.unsqueeze(1)
        hessian = torch.empty(size + 1, size + 1, device=sample.device)
        hessian[:size, :size] = sample.T @ weighted
        hessian[size, :size] = hessian[:size, size] = weighted.sum(dim=0)
        hessian[size, size] = curvature.sum()
        return hessian

    def _factor(self, hessian: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
        """The Cholesky factor of a group's shared Hessian with its penalty."""
        penalised = hessian.clone()
        penalised.diagonal()[:-1] += float(self.decay[group].mean())
        return _cholesky(penalised, 1e-6)

    def refactor(self, logits: torch.Tensor, active: torch.Tensor) -> None:
        """Recomputes the preconditioners of the active problems from the curvature at their logits."""
        probabilities = self.probabilities(logits[:: self.step])
        curvature = (probabilities * (1 - probabilities)).mean(dim=2) * self.share[:: self.step, active]
        for number, group in enumerate(self.groups):
            here = torch.isin(active, group)
            if here.any():
                self.factors[number] = self._factor(self._hessian(curvature[:, here].mean(dim=1)), group)

    def costs(self, active: int) -> tuple[float, float]:
        """Approximate operations of an iteration and of a refactoring; fewer than 64 columns cost as much as 64."""
        count, size = self.rows.shape
        columns = active * self.outputs
        iteration = 4.0 * count * size * max(columns, 64) + 2.0 * size * size * columns
        return iteration, len(self.groups) * (2.0 * min(count, _PRECONDITIONER_ROWS) * size**2 + size**3 / 3)

    def precondition(self, gradient: torch.Tensor, active: torch.Tensor) -> torch.Tensor:
        """Applies each group's inverse Hessian to a gradient `(D + 1, columns of the active problems)`."""
        result = torch.empty_like(gradient)
        for group, factor in zip(self.groups, self.factors, strict=True):
            columns = self.columns(torch.isin(active, group).nonzero().squeeze(1))
            if len(columns):
                result[:, columns] = torch.cholesky_solve(gradient[:, columns], factor)
        return result

    def columns(self, problems: torch.Tensor) -> torch.Tensor:
        return (problems.unsqueeze(1) * self.outputs + torch.arange(self.outputs, device=problems.device)).reshape(-1)

    def product(self, weights: torch.Tensor) -> torch.Tensor:
        """Logits `(N, columns)` of the centred features."""
        return torch.addmm(weights[-1] - self.mean @ weights[:-1], self.rows, weights[:-1])

    def product_transposed(self, residual: torch.Tensor) -> torch.Tensor:
        """The transpose of [`product`] applied to `(N, columns)`."""
        total = residual.sum(dim=0)
        result = torch.empty(self.rows.shape[1] + 1, residual.shape[1], device=residual.device)
        torch.mm(self.rows.T, residual, out=result[:-1])
        result[:-1].sub_(torch.outer(self.mean, total))
        result[-1] = total
        return result

    def probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """`(N, problems, outputs)`."""
        logits = logits.view(len(logits), -1, self.outputs)
        return logits.sigmoid() if self.outputs == 1 else logits.softmax(dim=2)


def _minimise(
    problem: _Problem, weights: torch.Tensor, tolerance: float, max_iterations: int, between: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the weights, and which problems converged. The preconditioner is recomputed every `between` iterations,
    by default once the iterations since the last time have cost as much."""
    weights = weights.clone()
    converged = torch.zeros(len(problem.decay), dtype=torch.bool, device=problem.rows.device)
    state = _State(problem, weights)
    iterations, since, spent = 0, 0, 0.0
    while True:
        done = state.decrement < tolerance
        converged[state.active[done]] = True
        if done.any() or iterations == max_iterations:
            weights[:, problem.columns(state.active)] = state.weights
            if done.all() or iterations == max_iterations:
                return weights, converged
        # Converged problems are dropped once they are a tenth, since dropping them copies the matrices.
        if done.sum() * 10 >= len(done):
            state.keep((~done).nonzero().squeeze(1))
        iteration, refactoring = problem.costs(len(state.active))
        if since >= (between or _FEWEST_BETWEEN) and (between or spent > refactoring):
            state.refactor()
            since, spent = 0, 0.0
        state.step()
        iterations, since, spent = iterations + 1, since + 1, spent + iteration


class _State:
    """The active problems: weights, logits, gradient and search direction."""

    decrement: torch.Tensor

    def __init__(self, problem: _Problem, weights: torch.Tensor) -> None:
        self.problem = problem
        self.active = torch.arange(len(problem.decay), device=weights.device)
        self.weights = weights.clone()
        self.logits = problem.product(self.weights)
        self._load()
        self._gradient()
        self.direction = -self.scaled

    def _load(self) -> None:
        self.share = self.problem.share[:, self.active].unsqueeze(2)
        self.decay = self.problem.decay[self.active].repeat_interleave(self.problem.outputs)

    def keep(self, positions: torch.Tensor) -> None:
        columns = self.problem.columns(positions)
        self.active, self.decrement = self.active[positions], self.decrement[positions]
        for name in ("weights", "logits", "direction", "gradient", "scaled"):
            setattr(self, name, getattr(self, name)[:, columns].contiguous())
        self._load()

    def refactor(self) -> None:
        self.problem.refactor(self.logits, self.active)
        self._precondition()
        self.direction = -self.scaled

    def _gradient(self) -> None:
        problem = self.problem
        residual = problem.probabilities(self.logits).sub_(problem.targets.unsqueeze(1)).mul_(self.share)
        self.gradient = problem.product_transposed(residual.flatten(1))
        self.gradient[:-1].addcmul_(self.weights[:-1], self.decay)
        self._precondition()

    def _precondition(self) -> None:
        self.scaled = self.problem.precondition(self.gradient, self.active)
        self.decrement = self._dot(self.gradient, self.scaled)

    def _dot(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Inner products `(problems,)`."""
        return torch.linalg.vecdot(a, b, dim=0).view(-1, self.problem.outputs).sum(dim=1)

    def step(self) -> None:
        outputs = self.problem.outputs
        change = self.problem.product(self.direction)
        length = self._line_search(change).repeat_interleave(outputs)
        self.weights.addcmul_(self.direction, length)
        self.logits.addcmul_(change, length)
        old_gradient, old_decrement = self.gradient, self.decrement
        self._gradient()
        # The Polak-Ribiere formula, where clamping at 0 restarts the search.
        overlap = self._dot(old_gradient, self.scaled)
        beta = ((self.decrement - overlap) / old_decrement.clamp_min(1e-30)).clamp_min(0)
        self.direction.mul_(beta.repeat_interleave(outputs)).sub_(self.scaled)
        uphill = self._dot(self.direction, self.gradient) >= 0
        if uphill.any():
            columns = self.problem.columns(uphill.nonzero().squeeze(1))
            self.direction[:, columns] = -self.scaled[:, columns]

    def _line_search(self, change: torch.Tensor) -> torch.Tensor:
        """Step lengths `(problems,)`: a few Newton steps on the slope along the direction, kept inside a bracket."""
        problem = self.problem
        split = change.view(len(change), -1, problem.outputs)
        linear = self._penalty(self.weights)
        quadratic = self._penalty(self.direction)
        length = torch.zeros_like(linear)
        low, high = torch.zeros_like(linear), torch.full_like(linear, torch.inf)
        start = None
        for _ in range(_LINE_STEPS):
            moved = self.logits + change * length.repeat_interleave(problem.outputs)
            probabilities = problem.probabilities(moved)
            slope = ((probabilities - problem.targets.unsqueeze(1)) * split * self.share).sum(dim=(0, 2))
            slope += linear + length * quadratic
            start = slope.abs() if start is None else start
            if bool((slope.abs() < _SLOPE_LEFT * start).all()):
                break
            if problem.outputs == 1:
                spread = probabilities * (1 - probabilities) * split.square()
            else:
                expected = (probabilities * split).sum(dim=2, keepdim=True)
                spread = probabilities * (split - expected).square()
            curvature = (spread * self.share).sum(dim=(0, 2)) + quadratic
            low, high = torch.where(slope < 0, length, low), torch.where(slope < 0, high, length)
            proposal = length - slope / curvature.clamp_min(1e-30)
            middle = torch.where(torch.isinf(high), 4 * length + 1, (low + high) / 2)
            length = torch.where((proposal > low) & (proposal < high), proposal, middle)
        return length

    def _penalty(self, other: torch.Tensor) -> torch.Tensor:
        columns = self.decay * torch.linalg.vecdot(other[:-1], self.direction[:-1], dim=0)
        return columns.view(-1, self.problem.outputs).sum(dim=1)
