"""Which parts of an embedding a task needs: accuracy when latent rows or single dimensions are erased.

Follows Cifka 2018, section 5.4.3. There, classifiers are trained anew without each dimension, on settings so short that
many dimensions seem to do harm. Here, rows are erased with classifiers that are fitted anew, and dimensions in one
fitted classifier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_meanmax.evaluation.logistic_regression import LogisticRegressions, fit_logistic_regressions
from hf_meanmax.evaluation.tasks import Embed
from hf_meanmax.files import Json

if TYPE_CHECKING:
    import torch

_CHUNK_NUMBERS = 16_000_000


@dataclass(frozen=True)
class _Erasure:
    """What the parts of an embedding are worth, by what is left without each; the subclasses say which parts."""

    accuracy: float
    without: np.ndarray

    @property
    def absolute(self) -> np.ndarray:
        """Points of accuracy lost without each part (equation 5.2); negative where it does harm."""
        return self.accuracy - self.without

    @property
    def relative(self) -> np.ndarray:
        """The loss in percent of the accuracy (equation 5.3); NaN where that is 0."""
        return _relative(self.absolute, self.accuracy)


@dataclass(frozen=True)
class RowErasure(_Erasure):
    """What the latent rows are worth.

    Attributes:
        accuracy: percent, of the whole embedding.
        without: `(L,)` percent, without one row.
        only: `(L,)` percent, of one row alone.
    """

    only: np.ndarray

    def to_dict(self) -> Json:
        """As JSON values."""
        return _to_dict(self, "accuracy without only absolute relative")


@dataclass(frozen=True)
class DimensionErasure(_Erasure):
    """What single dimensions are worth to one fitted classifier.

    Attributes:
        accuracy: percent, of the whole embedding.
        without: `(D,)` percent, with one dimension at its mean.
    """

    @property
    def mean_absolute(self) -> float:
        """The absolute importance averaged over the dimensions, as in figure 5.13."""
        return float(self.absolute.mean())

    def to_dict(self) -> Json:
        """As JSON values."""
        return _to_dict(self, "accuracy without absolute relative mean_absolute")


@dataclass(frozen=True)
class ErasureReport:
    """Both kinds of erasure on one task; `rows` is None where the embedding has one row."""

    dimensions: DimensionErasure
    rows: RowErasure | None = None

    def to_dict(self) -> Json:
        """As JSON values."""
        return {
            "dimensions": self.dimensions.to_dict(),
            "rows": None if self.rows is None else self.rows.to_dict(),
        }


def erase_rows(
    features_train: np.ndarray,
    labels_train: Any,
    features_test: np.ndarray,
    labels_test: Any,
    rows: int,
    C: float = 1.0,
    device: torch.device | str | None = None,
    blocks: int = 1,
) -> RowErasure:
    """Accuracy of classifiers fitted anew without each latent row, and on each row alone.

    Args:
        features_train: `(N, blocks * L * d)` float32.
        labels_train: `(N,)` of any sortable kind.
        features_test: `(M, blocks * L * d)`.
        labels_test: `(M,)`.
        rows: L, the latent rows that an embedding is the flattened matrix of; 2 or more.
        C: inverse regularisation strength, as in scikit-learn's `LogisticRegression`.
        device: where it is computed, by default the CPU.
        blocks: how often an embedding's dimensions occur in the features: 2 for pairs as [|u - v|; u * v]. A row is
            erased in all of them.

    Raises:
        ValueError: shapes that do not fit, `rows` below 2, or labels of one class only.
    """
    if rows < 2:
        raise ValueError(f"rows is {rows}; without the only row nothing is left. Give 2 or more.")
    train, test, size = _checked(features_train, labels_train, features_test, labels_test, blocks)
    if size % rows:
        raise ValueError(f"An embedding of {size} dimensions is no matrix of {rows} rows.")
    row_of_column = np.tile(np.repeat(np.arange(rows), size // rows), blocks)

    def accuracy(columns: np.ndarray) -> float:
        fitted = _fit(train[:, columns], labels_train, C, device)
        return _percent(fitted.predict(test[:, columns])[0] == np.asarray(labels_test))

    without = np.array([accuracy(row_of_column != row) for row in range(rows)])
    # Of two rows, each is what the other leaves.
    only = without[::-1].copy() if rows == 2 else np.array([accuracy(row_of_column == row) for row in range(rows)])
    return RowErasure(accuracy(row_of_column >= 0), without, only)


def erase_dimensions(
    features_train: np.ndarray,
    labels_train: Any,
    features_test: np.ndarray,
    labels_test: Any,
    C: float = 1.0,
    device: torch.device | str | None = None,
    blocks: int = 1,
) -> DimensionErasure:
    """Accuracy of one fitted classifier when a dimension is set to its mean over the training set, for each dimension.

    The classifier is fitted once: its logits change by the dimension's own share alone.

    Args:
        features_train: `(N, blocks * D)` float32.
        labels_train: `(N,)` of any sortable kind.
        features_test: `(M, blocks * D)`.
        labels_test: `(M,)`.
        C: inverse regularisation strength, as in scikit-learn's `LogisticRegression`.
        device: where it is fitted, by default the CPU.
        blocks: how often an embedding's dimensions occur in the features: 2 for pairs as [|u - v|; u * v]. A dimension
            is erased in all of them.

    Raises:
        ValueError: shapes that do not fit, or labels of one class only.
    """
    train, test, size = _checked(features_train, labels_train, features_test, labels_test, blocks)
    fitted = _fit(train, labels_train, C, device)
    weights = fitted.coefficients[0].cpu().numpy().reshape(-1, blocks, size)  # (K, blocks, D)
    logits = fitted.decision(test)[:, 0].cpu().numpy()  # (M, K)
    deviations = (test - train.mean(axis=0, dtype=np.float64).astype(np.float32)).reshape(-1, blocks, size)
    # A label that the classifier never saw is number -1, which no class has.
    classes = {label: number for number, label in enumerate(fitted.classes.tolist())}
    gold = np.array([classes.get(label, -1) for label in np.asarray(labels_test).tolist()])
    without = np.empty(size)
    step = max(1, _CHUNK_NUMBERS // logits.size)
    for start in range(0, size, step):
        part = slice(start, start + step)
        share = np.einsum("mbd,kbd->mkd", deviations[:, :, part], weights[:, :, part])
        without[part] = 100 * np.mean(_classes_of(logits[:, :, None] - share) == gold[:, None], axis=0)
    return DimensionErasure(_percent(_classes_of(logits) == gold), without)


def erasure_report(
    embed: Embed,
    texts_train: Sequence[str],
    labels_train: Sequence[Any],
    texts_test: Sequence[str],
    labels_test: Sequence[Any],
    latent_rows: int = 1,
    C: float = 1.0,
    device: torch.device | str | None = None,
) -> ErasureReport:
    """Embeds the texts of a classification and erases rows, if there are several, and dimensions.

    Args:
        embed: n texts -> `(n, L * d)` float32.
        texts_train, labels_train: the training set.
        texts_test, labels_test: the test set.
        latent_rows: L.
        C: inverse regularisation strength.
        device: where classifiers are fitted, by default the CPU.

    Raises:
        ValueError: as [`erase_rows`] and [`erase_dimensions`].
    """
    train, test = embed(list(texts_train)), embed(list(texts_test))
    data = (train, labels_train, test, labels_test)
    rows = erase_rows(*data, rows=latent_rows, C=C, device=device) if latent_rows > 1 else None
    return ErasureReport(erase_dimensions(*data, C=C, device=device), rows)


def _fit(features: np.ndarray, labels: Any, C: float, device: torch.device | str | None) -> LogisticRegressions:
    everything = np.ones((1, len(features)), dtype=bool)
    return fit_logistic_regressions(features, np.asarray(labels), everything, np.array([C]), device=device)


def _classes_of(logits: np.ndarray) -> np.ndarray:
    """Class numbers `(M, ...)` of logits `(M, K, ...)`; one logit is that of the second of two classes."""
    return (logits[:, 0] > 0).astype(np.int64) if logits.shape[1] == 1 else logits.argmax(axis=1)


def _checked(
    features_train: np.ndarray, labels_train: Any, features_test: np.ndarray, labels_test: Any, blocks: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """Both sets of features, and the dimension of an embedding."""
    train, test = np.asarray(features_train, dtype=np.float32), np.asarray(features_test, dtype=np.float32)
    if train.ndim != 2 or test.ndim != 2 or train.shape[1] != test.shape[1]:
        raise ValueError(f"Features of shape {train.shape} for training and {test.shape} for testing do not fit.")
    for name, features, labels in (("training", train, labels_train), ("test", test, labels_test)):
        if len(features) != len(labels) or not len(labels):
            raise ValueError(f"{len(features)} {name} features need as many labels, at least one; got {len(labels)}.")
    if blocks < 1 or train.shape[1] % blocks:
        raise ValueError(f"{train.shape[1]} features are not {blocks} blocks of an embedding's dimensions.")
    return train, test, train.shape[1] // blocks


def _percent(correct: np.ndarray) -> float:
    return 100 * float(np.mean(correct))


def _relative(absolute: np.ndarray, accuracy: float) -> np.ndarray:
    return 100 * absolute / accuracy if accuracy > 0 else np.full_like(absolute, np.nan)


def _to_dict(result: Any, names: str) -> Json:
    values = {name: getattr(result, name) for name in names.split()}
    # JSON has no NaN.
    return {
        name: [None if np.isnan(number) else float(number) for number in value]
        if isinstance(value, np.ndarray)
        else value
        for name, value in values.items()
    }
