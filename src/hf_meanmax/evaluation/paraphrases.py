"""Clusters of paraphrases: are texts of one meaning close together and far from other texts?"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hf_meanmax.evaluation.neighbors import nearest
from hf_meanmax.evaluation.pair_files import read_pairs
from hf_meanmax.evaluation.tasks import Embed, Task, TaskResult
from hf_meanmax.files import Json

if TYPE_CHECKING:
    import torch

SEED, REPEATS = 0, 3  # of the draws of held-out texts

# If the points of every cluster coincide in float32, the Davies-Bouldin index is zero and its inverse infinite.
_LEAST_INDEX = float(np.finfo(np.float32).eps)
# Ledoit and Wolf's estimate can be zero, and the covariance of few points then has no inverse.
_LEAST_SHRINKAGE = 1e-4


class ParaphraseClusters(Task):
    """The scores of Cifka 2018, sections 1.2.4 and 5.2.1, on texts grouped by meaning.

    Metrics, higher is better:
        `lda_accuracy`: percent of the held-out texts that a linear discriminant analysis, fitted on the others, assigns
            to their cluster (see [`lda_predict`]); mean over three draws of the held-out texts.
        `nearest_l2`, `nearest_cosine`: percent of the texts whose nearest other text is in the same cluster.
        `inverse_davies_bouldin`: 1 / the Davies-Bouldin index, at most 2^23.

    The main metric is `nearest_cosine`, which the paper prefers to L2 (section 5.3.3). The paper orders its table by
    the mean of all four, which adds percentages to an index.

    A text may occur in two clusters, as two pictures may have the same caption; it cannot be correct in both. `details`
    counts such texts.

    Args:
        rows: pairs of a cluster and a text; a cluster's pairs need not be adjacent.

    Raises:
        ValueError: a cluster has one text only, or there are fewer than two clusters.
    """

    name = "paraphrases"
    main_metric = "nearest_cosine"

    def __init__(self, rows: Sequence[tuple[str, str]]):
        self.texts = [text for _, text in rows]
        numbers: dict[str, int] = {}
        for cluster, _ in rows:
            numbers.setdefault(cluster, len(numbers))
        self.labels = np.array([numbers[cluster] for cluster, _ in rows], dtype=np.int64)
        self._check_clusters(list(numbers))

    def _check_clusters(self, names: list[str]) -> None:
        if len(names) < 2:
            raise ValueError(f"{self.name}: {len(names)} cluster; a comparison needs two or more.")
        single = np.flatnonzero(np.bincount(self.labels) == 1)
        if len(single):
            line = int(np.flatnonzero(self.labels == single[0])[0]) + 1
            raise ValueError(
                f"{self.name}, line {line}: cluster {names[single[0]]!r} has one text only; a cluster needs two or "
                f"more. Clusters of one text: {len(single):,}."
            )

    def sentences(self) -> list[str]:
        return list(self.texts)

    def data(self) -> Sequence[object]:
        return [*self.texts, self.labels.tolist()]

    def settings(self) -> Json:
        return {"held_out": "one", "seed": SEED, "repeats": REPEATS}

    def evaluate(self, embed: Embed, device: torch.device | str | None = None) -> TaskResult:
        """Scores an encoder; `items` holds `correct` by `nearest_cosine`, and `cluster`, for each text.

        Only the neighbours are computed on `device`.
        """
        vectors = np.asarray(embed(self.texts), dtype=np.float32)
        labels = self.labels
        itself = np.arange(len(labels))
        correct = {
            metric: labels[nearest(vectors, vectors, metric, itself, device)] == labels for metric in ("l2", "cosine")
        }
        accuracies, shrinkages = [], []
        for test in self.held_out_masks():
            predicted, shrinkage = lda_predict(vectors[~test], labels[~test], vectors[test])
            accuracies.append(100 * float(np.mean(predicted == labels[test])))
            shrinkages.append(shrinkage)
        clusters_of_text: dict[str, set[int]] = {}
        for text, label in zip(self.texts, labels.tolist(), strict=True):
            clusters_of_text.setdefault(text, set()).add(label)
        return TaskResult(
            metrics={
                "lda_accuracy": float(np.mean(accuracies)),
                "nearest_l2": 100 * float(correct["l2"].mean()),
                "nearest_cosine": 100 * float(correct["cosine"].mean()),
                "inverse_davies_bouldin": inverse_davies_bouldin(vectors, labels),
            },
            main=self.main_metric,
            # For the bootstrap: the texts of a cluster are not independent, since they are each other's neighbours.
            items={"correct": correct["cosine"].astype(np.float64), "cluster": labels},
            num_test=len(labels),
            details={
                "clusters": int(labels.max()) + 1,
                "lda_accuracies": accuracies,
                "lda_shrinkages": shrinkages,
                "texts_in_several_clusters": sum(len(found) > 1 for found in clusters_of_text.values()),
            },
        )

    def held_out_masks(self) -> list[np.ndarray]:
        """A mask `(n,)` of held-out texts for each draw, one text of each cluster."""
        draw = np.random.default_rng(SEED)
        members = [np.flatnonzero(self.labels == cluster) for cluster in range(self.labels.max() + 1)]
        masks = []
        for _ in range(REPEATS):
            mask = np.zeros(len(self.labels), dtype=bool)
            for rows in members:
                mask[draw.permutation(rows)[0]] = True
            masks.append(mask)
        return masks


def load_paraphrase_task(data_folder: str | os.PathLike[str]) -> ParaphraseClusters:
    """Loads the caption clusters of Multi30k (five descriptions of a picture), in place of those of COCO.

    Only the test set: the training captions occur in Multi30k's translations, on which models may be trained.

    Args:
        data_folder: the folder with `paraphrases/multi30k-captions.test.tsv.xz`.

    Raises:
        FileNotFoundError, ValueError: as [`~hf_meanmax.evaluation.pair_files.read_pairs`].
    """
    path = Path(data_folder) / "paraphrases" / "multi30k-captions.test.tsv.xz"
    return ParaphraseClusters(read_pairs(path, ("cluster", "text")))


def lda_predict(features: np.ndarray, labels: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, float]:
    """Fits a linear discriminant analysis and assigns points to classes.

    Predicts as scikit-learn's `LinearDiscriminantAnalysis(solver="lsqr", shrinkage=s)`, but computes one covariance for
    all classes instead of one for each: 1,000 classes of four points each take seconds. s is Ledoit and Wolf's estimate
    from the points' deviations from their class means, at least 1e-4, since with few points a class and thousands of
    dimensions the covariance is close to singular or worse. If all deviations are zero, the covariance is the identity,
    so that the nearest class mean wins.

    Args:
        features: `(N, D)`.
        labels: `(N,)` class numbers 0..K-1, each of which occurs.
        test: `(M, D)`.

    Returns:
        The class of each test point `(M,)` int64, and s.
    """
    from scipy import linalg
    from sklearn.covariance import ledoit_wolf_shrinkage

    center = features.mean(axis=0, dtype=np.float64)
    points = features - center
    means = _class_means(points, labels)
    deviations = points - means[labels]
    size = features.shape[1]
    shrinkage = max(_LEAST_SHRINKAGE, float(ledoit_wolf_shrinkage(deviations, assume_centered=True)))
    covariance = deviations.T @ deviations / len(deviations)
    variance = np.trace(covariance) / size
    if variance > 0:
        covariance *= 1 - shrinkage
        covariance.flat[:: size + 1] += shrinkage * variance
    else:
        covariance = np.eye(size)
    weights = linalg.cho_solve(linalg.cho_factor(covariance, overwrite_a=True), means.T)  # (D, K)
    priors = np.bincount(labels) / len(labels)
    offsets = np.log(priors) - 0.5 * np.einsum("kd,dk->k", means, weights)
    return ((test - center) @ weights + offsets).argmax(axis=1), shrinkage


def inverse_davies_bouldin(vectors: np.ndarray, labels: np.ndarray) -> float:
    """1 / scikit-learn's `davies_bouldin_score`: 0 if all clusters have the same centre, at most 2^23."""
    from sklearn.metrics import davies_bouldin_score

    points = vectors - vectors.mean(axis=0, dtype=np.float64)
    scale = math.sqrt(float(np.mean(points**2)))
    if scale == 0:
        return 0.0
    # scikit-learn treats distances below 1e-8 as zero, although the index does not depend on the scale.
    points /= scale
    if np.allclose(_class_means(points, labels), 0):
        return 0.0
    return 1 / max(float(davies_bouldin_score(points, labels)), _LEAST_INDEX)


def _class_means(points: np.ndarray, labels: np.ndarray) -> np.ndarray:
    means = np.zeros((int(labels.max()) + 1, points.shape[1]))
    np.add.at(means, labels, points)
    return means / np.bincount(labels)[:, None]
