"""Relatedness of sentence pairs: a softmax layer that predicts a score as a distribution over the integers 1 to 5.

Tai, Socher and Manning 2015, section 4.2, as SentEval trains it (Conneau and Kiela 2018, section 3.1).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from hf_meanmax.evaluation.logistic_regression import as_tensor

CLASSES = 5
SEED = 1111
_BATCH_SIZE = 64
_ROUND_EPOCHS = 50
_MAX_EPOCHS = 1000  # checked before each round, so 1,050 are possible
_TOLERATED_ROUNDS = 3
_LEARNING_RATE = 1e-3
RESOLUTION = 1e-6  # relative; float32 predictions that differ by less are equal


@dataclass(frozen=True)
class RelatednessModel:
    """A fitted layer.

    Attributes:
        weight: `(5, D)` float32.
        bias: `(5,)` float32.
        dev_pearson: Pearson's r on the development pairs, 0 if it was never defined.
        epochs: number of epochs, including those after the best round.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    dev_pearson: float
    epochs: int

    def predict(self, features: npt.ArrayLike) -> np.ndarray:
        """Expected scores, between 1 and 5, of pair features `(M, D)`, as `(M,)` float64."""
        rows = as_tensor(features, self.weight.device)
        return _expected(rows, self.weight, self.bias)


def pair_features(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """`[|u - v|; u * v]` of the rows of two `(N, D)` arrays, as `(N, 2 D)` float32."""
    size = first.shape[1]
    features = np.empty((len(first), 2 * size), dtype=np.float32)
    np.subtract(first, second, out=features[:, :size])
    np.abs(features[:, :size], out=features[:, :size])
    np.multiply(first, second, out=features[:, size:])
    return features


def score_distributions(scores: npt.ArrayLike) -> np.ndarray:
    """Spreads each score y between 0 and 5 over its neighbouring integers, as `(N, 5)` float32.

    The integer floor(y) gets floor(y) + 1 - y, and floor(y) + 1 gets y - floor(y); there is no class for 0 or 6, so the
    weights of a score below 1 sum to that score.

    Raises:
        ValueError: a score is not between 0 and 5.
    """
    scores = np.asarray(scores, dtype=np.float64)
    if not ((scores >= 0) & (scores <= CLASSES)).all():
        bad = scores[~((scores >= 0) & (scores <= CLASSES))][0]
        raise ValueError(f"A score is {bad}; scores lie between 0 and {CLASSES}.")
    classes = np.arange(1, CLASSES + 1)
    floors = np.floor(scores)
    fractions = scores - floors
    spread = (classes == floors[:, None]) * (1 - fractions)[:, None]
    spread += (classes == floors[:, None] + 1) * fractions[:, None]
    return spread.astype(np.float32)


def fit_relatedness(
    train_features: npt.ArrayLike,
    train_scores: npt.ArrayLike,
    dev_features: npt.ArrayLike,
    dev_scores: npt.ArrayLike,
    device: torch.device | str | None = None,
) -> RelatednessModel:
    """Fits the layer by mean squared error between its softmax and the spread scores.

    Adam in batches of 64, in rounds of 50 epochs. The layer of the round with the highest Pearson's r on the
    development pairs is kept; training stops at the fourth round without an improvement, not necessarily in a row. The
    seeds are SentEval's, fixed; the caller's random states are not changed.

    Args:
        train_features: `(N, D)` float32 array or tensor.
        train_scores: `(N,)` between 0 and 5.
        dev_features: `(M, D)`.
        dev_scores: `(M,)`.
        device: torch device (default: that of `train_features` if it is a tensor, else the CPU).

    Raises:
        ValueError: shapes that do not fit together, no rows, features that are not finite, or a score that is not
            between 0 and 5.
    """
    rows, dev_rows = as_tensor(train_features, device), as_tensor(dev_features, device)
    targets, dev_scores = score_distributions(train_scores), np.asarray(dev_scores, dtype=np.float64)
    for name, part, scores in (("train", rows, targets), ("dev", dev_rows, dev_scores)):
        if part.ndim != 2 or part.shape[1] != rows.shape[1] or len(part) != len(scores) or len(part) == 0:
            raise ValueError(
                f"{name}: features of shape {tuple(part.shape)} and {len(scores)} scores; expected at least one row, "
                f"a score a row, and {rows.shape[-1]} columns as train has."
            )
        if not torch.isfinite(part).all():
            row = int((~torch.isfinite(part).all(dim=1)).nonzero()[0])
            raise ValueError(f"{name}: row {row} of the features is not finite.")
    layer = _Layer(rows, torch.from_numpy(targets).to(rows.device))
    permutations = np.random.RandomState(SEED)  # SentEval's generator, for the same batches
    best, kept = -1.0, layer.parameters
    failures = epochs = 0
    while epochs <= _MAX_EPOCHS:
        for _ in range(_ROUND_EPOCHS):
            layer.train_epoch(permutations.permutation(len(rows)))
        epochs += _ROUND_EPOCHS
        pearson = correlations(_expected(dev_rows, layer.weight, layer.bias), dev_scores, RESOLUTION)[0]
        if pearson > best:
            best, kept = pearson, layer.parameters.clone()
        elif failures >= _TOLERATED_ROUNDS:
            break
        else:
            failures += 1
    weight, bias = _split(kept)
    return RelatednessModel(weight, bias, 0.0 if best == -1 else best, epochs)


def correlations(predicted: np.ndarray, gold: np.ndarray, resolution: float = 0.0) -> tuple[float, float]:
    """Pearson's r and Spearman's rho of two `(N,)` arrays, N >= 2; NaN where one of them is constant.

    Args:
        predicted, gold: the scores.
        resolution: predictions whose range is below this, relative to the largest, count as constant.
    """
    from scipy import stats

    if np.ptp(predicted) <= resolution * np.abs(predicted).max():
        return float("nan"), float("nan")
    with warnings.catch_warnings():
        # A warning of constant input, for which NaN is returned.
        warnings.simplefilter("ignore")
        return float(stats.pearsonr(predicted, gold)[0]), float(stats.spearmanr(predicted, gold)[0])


class _Layer:
    """Weight and bias as one vector with its optimizer; the gradient in closed form."""

    def __init__(self, rows: torch.Tensor, targets: torch.Tensor) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            layer = torch.nn.Linear(rows.shape[1], CLASSES)
        self.rows, self.targets = rows, targets
        self.parameters = torch.cat([layer.weight.detach().flatten(), layer.bias.detach()]).to(rows.device)
        self.weight, self.bias = _split(self.parameters)
        self.parameters.grad = torch.zeros_like(self.parameters)
        self.weight_gradient, self.bias_gradient = _split(self.parameters.grad)
        has_fused = rows.device.type in ("cpu", "cuda")
        self.optimizer = torch.optim.Adam([self.parameters], lr=_LEARNING_RATE, fused=has_fused or None)
        self.batch = rows.new_empty(min(_BATCH_SIZE, len(rows)), rows.shape[1])

    @torch.no_grad()
    def train_epoch(self, permutation: np.ndarray) -> None:
        order = torch.from_numpy(permutation).to(self.rows.device)
        targets = self.targets[order]
        for start in range(0, len(order), _BATCH_SIZE):
            chosen = order[start : start + _BATCH_SIZE]
            # A batch stays in the processor's cache for both products.
            batch = torch.index_select(self.rows, 0, chosen, out=self.batch[: len(chosen)])
            self._step(batch, targets[start : start + _BATCH_SIZE])

    def _step(self, batch: torch.Tensor, targets: torch.Tensor) -> None:
        probabilities = torch.addmm(self.bias, batch, self.weight.T).softmax(dim=1)
        # The gradient of the mean of (p - t)^2 over batch and classes: for p, then through the softmax.
        slope = (probabilities - targets).mul_(2 / targets.numel())
        slope.sub_((slope * probabilities).sum(dim=1, keepdim=True)).mul_(probabilities)
        torch.mm(slope.T, batch, out=self.weight_gradient)
        torch.sum(slope, dim=0, out=self.bias_gradient)
        self.optimizer.step()


def _split(parameters: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of weight `(5, D)` and bias `(5,)`."""
    return parameters[:-CLASSES].view(CLASSES, -1), parameters[-CLASSES:]


@torch.no_grad()
def _expected(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> np.ndarray:
    probabilities = torch.addmm(bias, rows, weight.T).softmax(dim=1)
    # Apple's GPUs have no double precision.
    return probabilities.cpu().double().numpy() @ np.arange(1.0, CLASSES + 1)
