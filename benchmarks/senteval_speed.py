"""How long SentEval takes after encoding, and how that compares with scikit-learn doing the same fits.

    python benchmarks/senteval_speed.py --data "$HF_MEANMAX_DATA" --dimension 4096

The embeddings are the maximum and the mean of random word vectors of the size of pretrained ones (standard deviation
0.3), so no model is needed; making them is not timed. scikit-learn fits a few classifiers of each task, on the same
rows and threads, and its time for all fits is extrapolated from their mean. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from rounds import peak_memory
from tqdm.auto import tqdm

from hf_meanmax.evaluation.senteval import NestedCrossValidationTask
from hf_meanmax.evaluation.suite import data_folder, load_tasks


class RandomWords:
    """`[max; mean]` of random word vectors, `(n, dimension)` float32."""

    def __init__(self, texts: Sequence[str], dimension: int, seed: int = 0):
        words = sorted({word for text in texts for word in text.lower().split()})
        self.index = {word: row for row, word in enumerate(words)}
        generator = torch.Generator().manual_seed(seed)
        self.table = 0.3 * torch.randn(len(words) + 1, dimension // 2, generator=generator)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        rows = [[self.index[word] for word in text.lower().split()] or [len(self.index)] for text in texts]
        result = np.empty((len(rows), 2 * self.table.shape[1]), dtype=np.float32)
        for start in range(0, len(rows), 1024):
            part = rows[start : start + 1024]
            flat = torch.tensor([row for item in part for row in item])
            offsets = torch.tensor(np.cumsum([0, *map(len, part[:-1])]))
            for half, mode in enumerate(("max", "mean")):
                pooled = torch.nn.functional.embedding_bag(flat, self.table, offsets, mode=mode)
                columns = slice(half * self.table.shape[1], (half + 1) * self.table.shape[1])
                result[start : start + len(part), columns] = pooled.numpy()
        return result


class Timed:
    """Counts the seconds that embedding takes, which are not those of the tasks."""

    def __init__(self, embed: Any):
        self.embed, self.seconds = embed, 0.0

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        start = time.perf_counter()
        result = self.embed(texts)
        self.seconds += time.perf_counter() - start
        return result


def fit_with_scikit_learn(task: Any, embed: Any, fits: int) -> float:
    """Mean seconds of one `LogisticRegression` fit on the training rows of a fold, over `fits` of its strengths."""
    from sklearn.linear_model import LogisticRegression

    name = "all" if isinstance(task, NestedCrossValidationTask) else "train"
    labels = task.sets[name].labels
    features = task._features(embed, name)
    # A search over folds fits 9/10 of the rows, a nested one 81/100.
    share = {"NestedCrossValidationTask": 0.81, "CrossValidationTask": 0.9}.get(type(task).__name__, 1.0)
    rows = np.random.default_rng(0).permutation(len(labels))[: round(share * len(labels))]
    strengths = task.strengths
    chosen = [strengths[round(position)] for position in np.linspace(0, len(strengths) - 1, fits)]
    start = time.perf_counter()
    for C in chosen:
        LogisticRegression(C=C).fit(features[rows], labels[rows])
    return (time.perf_counter() - start) / fits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder that holds senteval/ (default: $HF_MEANMAX_DATA)")
    parser.add_argument("--dimension", type=int, default=4096)
    parser.add_argument("--tasks", default="ten")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--scikit-learn-fits", type=int, default=0, help="classifiers that scikit-learn fits a task")
    args = parser.parse_args()
    tasks = load_tasks(args.tasks, data_folder(args.data))
    embed = Timed(RandomWords([text for task in tasks for text in task.sentences()], args.dimension))
    report: dict[str, Any] = {"dimension": args.dimension, "threads": torch.get_num_threads(), "tasks": {}}
    for task in tqdm(tasks):
        seconds = []
        for _ in range(args.rounds):
            embed.seconds, start = 0.0, time.perf_counter()
            result = task.evaluate(embed)
            seconds.append(time.perf_counter() - start - embed.seconds)
        entry = {"seconds": round(statistics.median(seconds), 2), task.main_metric: result.score}
        entry |= {key: result.details[key] for key in ("fits", "not_converged", "epochs") if key in result.details}
        if args.scikit_learn_fits and "fits" in entry:
            one = fit_with_scikit_learn(task, embed, args.scikit_learn_fits)
            entry["scikit_learn_seconds"] = round(one * entry["fits"], 1)
            entry["ratio"] = round(entry["scikit_learn_seconds"] / entry["seconds"], 1)
        report["tasks"][task.name] = entry
    report["seconds"] = round(sum(entry["seconds"] for entry in report["tasks"].values()), 1)
    report["peak_gib"] = round(peak_memory(), 2)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
