"""Domain alignment: can an affine map of the embeddings turn a text of one kind into its counterpart of another?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch

from hf_meanmax.evaluation.neighbors import nearest
from hf_meanmax.evaluation.pair_files import read_pairs
from hf_meanmax.evaluation.tasks import Embed, Task, TaskResult
from hf_meanmax.files import Json

SEED = 0  # of the order of the training pairs
BATCH_SIZE = 256
PATIENCE = 3
MAX_EPOCHS = 300
MIN_GAIN = 1e-4

Pairs: TypeAlias = Sequence[tuple[str, str]]


class DomainAlignment(Task):
    """The scores of Cifka 2018, sections 1.2.2 and 5.2.2, on pairs of texts from a domain A and a domain B.

    An affine map from the embeddings of A to those of B is learned on the training pairs (see [`fit_affine_map`]). Then
    each A of the test pairs is mapped, and its nearest embedding is sought among all A and all B of the test pairs; the
    match is correct if it is the pair's own B.

    Metrics, in percent: `incl_l2` and `incl_cosine` search all embeddings, including the text's own; `excl_l2` and
    `excl_cosine` exclude it. The main metric is `incl_l2`, by which the paper orders its table.

    Args:
        train, heldout, test: pairs of texts. The held-out pairs are for early stopping. Training pairs that share a
            text with the other sets are dropped, and held-out pairs that share one with the test pairs.

    Raises:
        ValueError: a set has no pair left.
    """

    name = "domain-alignment"
    main_metric = "incl_l2"

    def __init__(self, train: Pairs, heldout: Pairs, test: Pairs):
        self.pairs = {"train": train, "heldout": heldout, "test": test}
        known: set[str] = set()
        self.dropped = {}
        for split in ("test", "heldout", "train"):
            found = self.pairs[split]
            if not found:
                raise ValueError(f"{self.name}: {split} has no pair.")
            kept = [pair for pair in found if known.isdisjoint(pair)]
            if not kept:
                raise ValueError(f"{self.name}: each pair of {split} shares a text with the other sets; none is left.")
            self.pairs[split], self.dropped[split] = kept, len(found) - len(kept)
            known.update(text for pair in kept for text in pair)

    def sentences(self) -> list[str]:
        return [text for side in self._sides() for text in side]

    def _sides(self) -> list[list[str]]:
        """The texts A of the training pairs, their B, then those of the held-out and of the test pairs."""
        return [[pair[side] for pair in pairs] for pairs in self.pairs.values() for side in (0, 1)]

    def data(self) -> Sequence[object]:
        return self._sides()

    def settings(self) -> Json:
        return {
            "seed": SEED,
            "batch_size": BATCH_SIZE,
            "patience": PATIENCE,
            "max_epochs": MAX_EPOCHS,
            "min_gain": MIN_GAIN,
        }

    def evaluate(self, embed: Embed, device: torch.device | str | None = None) -> TaskResult:
        """Scores an encoder; `items` holds `correct` by `incl_l2` for each test pair."""
        train_a, train_b, heldout_a, heldout_b, test_a, test_b = (
            np.asarray(embed(side), dtype=np.float32) for side in self._sides()
        )
        fitted = fit_affine_map(train_a, train_b, heldout_a, heldout_b, seed=SEED, device=device)
        mapped = fitted(test_a)
        pool = np.concatenate([test_a, test_b])
        own = np.arange(len(test_a))
        # Texts are compared, not rows: pairs may share a B, and only its first row is found.
        texts = np.array([text for side in self._sides()[4:] for text in side], dtype=object)
        correct = {
            f"{kind}_{metric}": texts[nearest(mapped, pool, metric, excluded, device)] == texts[own + len(own)]
            for kind, excluded in (("incl", None), ("excl", own))
            for metric in ("l2", "cosine")
        }
        return TaskResult(
            metrics={name: 100 * float(values.mean()) for name, values in correct.items()},
            main=self.main_metric,
            items={"correct": correct[self.main_metric].astype(np.float64)},
            num_test=len(own),
            details={
                "epochs": fitted.epochs,
                "heldout_loss": fitted.heldout_loss,
                "pairs": {split: len(pairs) for split, pairs in self.pairs.items()},
                "dropped": self.dropped,
            },
        )


def load_domain_alignment_task(data_folder: str | os.PathLike[str]) -> DomainAlignment:
    """Loads pairs of compressed and original sentences (Filippova and Altun 2013).

    In place of the compressions and headlines of Cifka 2018; the scores are not comparable.

    Args:
        data_folder: the folder with `domain-alignment/sentence-compression.{train,heldout,test}.tsv.xz`.

    Raises:
        FileNotFoundError, ValueError: as [`~hf_meanmax.evaluation.pair_files.read_pairs`].
    """
    folder = Path(data_folder) / "domain-alignment"
    paths = (folder / f"sentence-compression.{split}.tsv.xz" for split in ("train", "heldout", "test"))
    return DomainAlignment(*(read_pairs(path, ("text of A", "text of B")) for path in paths))


@dataclass(frozen=True)
class AffineMap:
    """`x -> x @ weight + bias`.

    Attributes:
        weight: `(D, E)` float32.
        bias: `(E,)` float32.
        epochs: passes over the training pairs up to the best held-out loss.
        heldout_loss: mean squared error of the held-out pairs, in units of the training targets' variance.
    """

    weight: np.ndarray
    bias: np.ndarray
    epochs: int
    heldout_loss: float

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        return vectors @ self.weight + self.bias


def fit_affine_map(
    sources: np.ndarray,
    targets: np.ndarray,
    heldout_sources: np.ndarray,
    heldout_targets: np.ndarray,
    seed: int = 0,
    device: torch.device | str | None = None,
) -> AffineMap:
    """Learns an affine map by Adam on the mean squared error, up to the best loss on held-out pairs.

    The paper only specifies Adam and early stopping. Here: batches of 256 pairs; a learning rate of 0.3 / D (0.003 at
    most), so that a step changes a prediction about as much for every D; and a stop when the held-out loss has not
    fallen by 1 in 10,000 for three epochs (300 at most). The map starts from zero, on embeddings that are centred and
    divided by one scale per side, so that the scale of an encoder does not affect the learning rate; dimensions are not
    standardised individually.

    Args:
        sources: `(N, D)` training embeddings of domain A.
        targets: `(N, E)` embeddings of their counterparts in domain B.
        heldout_sources, heldout_targets: `(M, D)` and `(M, E)`.
        seed: seed of the order of the training pairs.
        device: torch device (default: the CPU).
    """
    device = torch.device(device or "cpu")
    source_mean, source_scale = _statistics(sources)
    target_mean, target_scale = _statistics(targets)
    x, heldout_x, y, heldout_y = (
        torch.from_numpy(((vectors - mean) / scale).astype(np.float32)).to(device)
        for mean, scale, of_side in (
            (source_mean, source_scale, (sources, heldout_sources)),
            (target_mean, target_scale, (targets, heldout_targets)),
        )
        for vectors in of_side
    )
    (weight, bias), epochs, loss = _best_map(x, y, heldout_x, heldout_y, seed)
    matrix, offset = (tensor.cpu().numpy().astype(np.float64) for tensor in (weight, bias))
    matrix *= target_scale / source_scale
    return AffineMap(
        weight=matrix.astype(np.float32),
        bias=(target_mean + target_scale * offset - source_mean @ matrix).astype(np.float32),
        epochs=epochs,
        heldout_loss=loss,
    )


def _best_map(
    x: torch.Tensor, y: torch.Tensor, heldout_x: torch.Tensor, heldout_y: torch.Tensor, seed: int
) -> tuple[tuple[torch.Tensor, torch.Tensor], int, float]:
    """Weight and bias at the epoch with the lowest held-out loss, that epoch, and that loss."""
    weight = torch.zeros(x.shape[1], y.shape[1], device=x.device, requires_grad=True)
    bias = torch.zeros(y.shape[1], device=x.device, requires_grad=True)
    is_fused = x.device.type in ("cpu", "cuda")
    optimizer = torch.optim.Adam([weight, bias], lr=min(0.003, 0.3 / x.shape[1]), fused=is_fused)
    mse = torch.nn.functional.mse_loss
    order = torch.Generator().manual_seed(seed)
    best, best_loss, best_epoch = (weight.detach().clone(), bias.detach().clone()), float(heldout_y.square().mean()), 0
    reference, reference_epoch = best_loss, 0
    for epoch in range(1, MAX_EPOCHS + 1):
        for rows in torch.randperm(len(x), generator=order).to(x.device).split(BATCH_SIZE):
            loss = mse(torch.addmm(bias, x[rows], weight), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            heldout_loss = float(mse(torch.addmm(bias, heldout_x, weight), heldout_y))
        if heldout_loss < best_loss:
            best, best_loss, best_epoch = (weight.detach().clone(), bias.detach().clone()), heldout_loss, epoch
        if heldout_loss < (1 - MIN_GAIN) * reference:
            reference, reference_epoch = heldout_loss, epoch
        if epoch - reference_epoch >= PATIENCE:
            break
    return best, best_epoch, best_loss


def _statistics(vectors: np.ndarray) -> tuple[np.ndarray, float]:
    """The mean `(D,)`, and the root mean square of the deviations over all dimensions, or 1 if that is 0."""
    mean = vectors.mean(axis=0, dtype=np.float64)
    scale = float(np.sqrt(np.mean((vectors - mean) ** 2)))
    return mean, scale or 1.0
