"""Tasks and encoders without data, for tests of what surrounds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hf_meanmax.evaluation.tasks import Embed, Task, TaskResult


class LengthTask(Task):
    """Whether a vector's first number tells a text's length: accuracy by rounding, and its correlation.

    Args:
        name: the task's name.
        texts: the texts.
        main: `"accuracy"` or `"pearson"`.
    """

    def __init__(self, name: str, texts: Sequence[str], main: str = "accuracy"):
        self.name = name
        self.texts = list(texts)
        self.main_metric = main
        self.calls = 0

    def sentences(self) -> list[str]:
        return self.texts

    def evaluate(self, embed: Embed, device: Any = None) -> TaskResult:
        self.calls += 1
        predicted = embed(self.texts)[:, 0].astype(np.float64)
        gold = np.array([len(text) for text in self.texts], dtype=np.float64)
        if self.main_metric == "accuracy":
            correct = (np.rint(predicted) == gold).astype(np.float64)
            metrics = {"accuracy": 100 * float(correct.mean()), "f1": 50.0}
            items = {"correct": correct}
        else:
            pearson = float(np.corrcoef(predicted, gold)[0, 1]) if predicted.std() > 0 else 0.0
            metrics = {"pearson": pearson, "spearman": pearson / 2}
            items = {"predicted": predicted, "gold": gold, "group": np.zeros(len(gold), dtype=np.int64)}
        return TaskResult(metrics, self.main_metric, items, len(gold), {"texts": len(self.texts)})


class LengthEncoder:
    """`[length + error, 1]`, with an error on every text whose length is a multiple of `wrong_every`."""

    def __init__(self, name: str, wrong_every: int = 0, kind: str | None = None, seed: int | None = None):
        self.name = name
        self.key = f"lengths-{name}-{wrong_every}"
        self.wrong_every = wrong_every
        if kind is not None:
            self.kind = kind
            self.seed = seed
        self.calls = 0

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        self.calls += 1
        lengths = np.array([len(text) for text in texts], dtype=np.float64)
        wrong = (lengths % self.wrong_every == 0) if self.wrong_every else np.zeros(len(texts), dtype=bool)
        return np.stack([np.where(wrong, -lengths - 2, lengths), np.ones(len(texts))], axis=1)


def words(count: int, start: int = 1) -> list[str]:
    """`count` texts of different lengths."""
    return ["x" * length for length in range(start, start + count)]
