"""SentEval's protocols fitted by scikit-learn, one classifier at a time, beside ours on the same embeddings.

    python benchmarks/senteval_agreement.py --data "$HF_MEANMAX_DATA" --dimension 300

The embeddings are those of senteval_speed.py. The loops below follow the official code: the same folds and seeds, the
same strengths and rounding, `LogisticRegression(C=C)` with enough iterations to converge; for relatedness an
`nn.Linear` with autograd and torch's Adam. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
from scipy.stats import pearsonr
from senteval_speed import RandomWords
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from tqdm.auto import tqdm

from hf_meanmax.evaluation.relatedness import score_distributions
from hf_meanmax.evaluation.suite import data_folder, load_tasks

SEED = 1111


def folds(features: np.ndarray, labels: np.ndarray) -> Any:
    return StratifiedKFold(10, shuffle=True, random_state=SEED).split(features, labels)


def accuracy(train: tuple, test: tuple, C: float) -> float:
    classifier = LogisticRegression(C=C, max_iter=2000, random_state=SEED).fit(*train)
    return classifier.score(*test)


def best_strength(features: np.ndarray, labels: np.ndarray, strengths: tuple[float, ...]) -> float:
    scores = []
    for C in strengths:
        each = [
            accuracy((features[train], labels[train]), (features[held], labels[held]), C)
            for train, held in folds(features, labels)
        ]
        scores.append(round(100 * np.mean(each), 2))
    return strengths[int(np.argmax(scores))]


def nested(sets: dict, strengths: tuple[float, ...]) -> float:
    features, labels = sets["all"]
    scores = []
    for train, test in tqdm(list(folds(features, labels)), leave=False):
        C = best_strength(features[train], labels[train], strengths)
        scores.append(round(100 * accuracy((features[train], labels[train]), (features[test], labels[test]), C), 2))
    return float(np.mean(scores))


def cross_validated(sets: dict, strengths: tuple[float, ...]) -> float:
    return 100 * accuracy(sets["train"], sets["test"], best_strength(*sets["train"], strengths))


def development_set(sets: dict, strengths: tuple[float, ...]) -> float:
    scores = [round(100 * accuracy(sets["train"], sets["dev"], C), 2) for C in strengths]
    return 100 * accuracy(sets["train"], sets["test"], strengths[int(np.argmax(scores))])


def relatedness(sets: dict) -> float:
    np.random.seed(SEED)  # noqa: NPY002
    torch.manual_seed(SEED)
    rows, targets = torch.from_numpy(sets["train"][0]), torch.from_numpy(score_distributions(sets["train"][1]))
    layer = torch.nn.Sequential(torch.nn.Linear(rows.shape[1], 5), torch.nn.Softmax(dim=-1))
    optimizer = torch.optim.Adam(layer.parameters())
    best, failures, kept = -1.0, 0, {name: value.clone() for name, value in layer.state_dict().items()}

    def predict(features: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return layer(torch.from_numpy(features)).numpy() @ np.arange(1, 6)

    for _ in range(21):
        for _ in range(50):
            order = torch.from_numpy(np.random.permutation(len(rows)))  # noqa: NPY002
            for chosen in order.split(64):
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(layer(rows[chosen]), targets[chosen]).backward()
                optimizer.step()
        pearson = pearsonr(predict(sets["dev"][0]), sets["dev"][1])[0]
        if pearson > best:
            best, kept = pearson, {name: value.clone() for name, value in layer.state_dict().items()}
        elif failures >= 3:
            break
        else:
            failures += 1
    layer.load_state_dict(kept)
    return float(pearsonr(predict(sets["test"][0]), sets["test"][1])[0])


def similarity(task: Any, embed: Any) -> float:
    found = []
    for part in task.sets.values():
        first, second = (embed(texts) for texts in part.texts)
        cosines = [u @ v / (np.linalg.norm(u) * np.linalg.norm(v)) for u, v in zip(first, second, strict=True)]
        found.append(pearsonr(np.nan_to_num(cosines), part.labels)[0])
    return float(np.mean(found))


PROTOCOLS = {
    "NestedCrossValidationTask": nested,
    "CrossValidationTask": cross_validated,
    "DevelopmentSetTask": development_set,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder that holds senteval/ (default: $HF_MEANMAX_DATA)")
    parser.add_argument("--dimension", type=int, default=300)
    parser.add_argument("--tasks", default="CR,TREC,MRPC,SST5,SICK-E,SICK-R,STS14")
    args = parser.parse_args()
    tasks = load_tasks(args.tasks, data_folder(args.data))
    embed = RandomWords([text for task in tasks for text in task.sentences()], args.dimension)
    print("| task | ours | reference | difference | our seconds | its seconds |\n|---|---|---|---|---|---|", flush=True)
    for task in tasks:
        start = time.perf_counter()
        ours = task.evaluate(embed).score
        middle = time.perf_counter()
        kind = type(task).__name__
        if kind == "SimilarityTask":
            reference = similarity(task, embed)
        else:
            sets = {name: (task._features(embed, name), part.labels) for name, part in task.sets.items()}
            reference = relatedness(sets) if kind == "RelatednessTask" else PROTOCOLS[kind](sets, task.strengths)
        seconds = time.perf_counter() - middle
        digits = 4 if task.main_metric == "pearson" else 2
        print(
            f"| {task.name} | {ours:.{digits}f} | {reference:.{digits}f} | {ours - reference:+.{digits}f} "
            f"| {middle - start:.1f} | {seconds:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
