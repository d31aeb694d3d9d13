"""Which parts of an embedding a task needs: accuracy when latent rows or single dimensions are erased.

Follows Cifka 2018, section 5.4.3, where classifiers are retrained without each dimension, so briefly that many
dimensions seem to do harm. Here, classifiers are refitted without each row, and dimensions are erased in one fitted
classifier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hf_meanmax.evaluation.logistic_regression import fit_logistic_regressions
from hf_meanmax.files import Json

if TYPE_CHECKING:
    import torch

_CHUNK_NUMBERS = 16_000_000
_C = (1.0,)  # inverse regularisation strength, as in scikit-learn's `LogisticRegression`


def erase_rows(
    train: np.ndarray,
    labels: np.ndarray,
    test: np.ndarray,
    gold: np.ndarray,
    rows: int,
    device: torch.device | str | None = None,
) -> Json:
    """Accuracy of classifiers fitted anew without each latent row, and on each row alone.

    Args:
        train: embeddings `(N, L * d)` float32 to fit on.
        labels: their labels `(N,)`, of any sortable kind.
        test: embeddings `(M, L * d)` float32 to score.
        gold: their labels `(M,)`.
        rows: L, the number of latent rows in an embedding; 2 or more.
        device: torch device (default: the CPU).

    Returns:
        In percent: the `accuracy` of the whole embedding, `without` each row and of each row alone (`only`); the loss
        without each row in points (`absolute`, equation 5.2; negative where the row does harm), and relative to the
        accuracy (`relative`, equation 5.3; None if the accuracy is 0).

    Raises:
        ValueError: `rows` is below 2 or does not divide the dimension, or all labels are of one class.
    """
    if rows < 2:
        raise ValueError(f"rows is {rows}; without the only row nothing is left. Give 2 or more.")
    size = train.shape[1]
    if size % rows:
        raise ValueError(f"An embedding of {size} dimensions is no matrix of {rows} rows.")
    row_of_column = np.repeat(np.arange(rows), size // rows)

    def accuracy(columns: np.ndarray) -> float:
        fitted = fit_logistic_regressions(train[:, columns], labels, None, _C, device=device)
        return 100 * float(np.mean(fitted.predict(test[:, columns])[0] == gold))

    without = np.array([accuracy(row_of_column != row) for row in range(rows)])
    # With two rows, each is what remains without the other.
    only = without[::-1].copy() if rows == 2 else np.array([accuracy(row_of_column == row) for row in range(rows)])
    whole = accuracy(row_of_column >= 0)
    return {"accuracy": whole, **_losses(whole, without), "only": only.tolist()}


def erase_dimensions(
    train: np.ndarray,
    labels: np.ndarray,
    test: np.ndarray,
    gold: np.ndarray,
    device: torch.device | str | None = None,
) -> Json:
    """Accuracy of one fitted classifier when a dimension is set to its mean over the training set, for each dimension.

    The classifier is fitted once, and each dimension's share is subtracted from its logits. Arguments, result and
    errors are as for [`erase_rows`], with `mean_absolute`, the mean over dimensions (figure 5.13), in place of `only`.
    """
    size = train.shape[1]
    fitted = fit_logistic_regressions(train, labels, None, _C, device=device)
    weights = fitted.coefficients[0].cpu().numpy()  # (K, D)
    logits = fitted.decision(test)[:, 0].cpu().numpy()  # (M, K)
    deviations = test - train.mean(axis=0, dtype=np.float64).astype(np.float32)
    # Labels unknown to the classifier become -1, which matches no class.
    classes = {label: number for number, label in enumerate(fitted.classes.tolist())}
    numbers = np.array([classes.get(label, -1) for label in gold.tolist()])
    without = np.empty(size)
    step = max(1, _CHUNK_NUMBERS // logits.size)
    for start in range(0, size, step):
        part = slice(start, start + step)
        share = deviations[:, None, part] * weights[:, part]
        without[part] = 100 * np.mean(_classes_of(logits[:, :, None] - share) == numbers[:, None], axis=0)
    whole = 100 * float(np.mean(_classes_of(logits) == numbers))
    return {"accuracy": whole, "mean_absolute": whole - float(without.mean()), **_losses(whole, without)}


def _losses(accuracy: float, without: np.ndarray) -> Json:
    """Accuracies without each part, and their absolute and relative losses, in percent."""
    absolute = accuracy - without
    relative = (100 * absolute / accuracy).tolist() if accuracy > 0 else [None] * len(without)
    return {"without": without.tolist(), "absolute": absolute.tolist(), "relative": relative}


def _classes_of(logits: np.ndarray) -> np.ndarray:
    """Class numbers `(M, ...)` of logits `(M, K, ...)`; a single logit belongs to the second of two classes."""
    return (logits[:, 0] > 0).astype(np.int64) if logits.shape[1] == 1 else logits.argmax(axis=1)
