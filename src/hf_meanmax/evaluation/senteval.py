"""SentEval: classification, relatedness and similarity of sentences, with the official data folder.

The protocols are those of the official code with `usepytorch=False, kfold=10` (Conneau and Kiela 2018): logistic
regressions whose L2 strength is chosen by cross-validation or on a development set, a softmax layer for relatedness,
and the cosine for the STS tasks of 2012-2016. Sets are sorted as there, since the folds depend on the order."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hf_meanmax.cosines import paired_cosines
from hf_meanmax.evaluation.logistic_regression import LogisticRegressions, fit_logistic_regressions
from hf_meanmax.evaluation.relatedness import RESOLUTION, correlations, fit_relatedness, pair_features
from hf_meanmax.evaluation.tasks import Embed, Task, TaskResult
from hf_meanmax.files import Json
from hf_meanmax.modeling.suggestions import did_you_mean

from .senteval_files import (
    SEED,
    LabelledSet,
    Sets,
    check_folds,
    downstream,
    read_columns,
    read_each,
    read_matches,
    read_snli,
    read_sts,
    read_two_files,
    stratified_folds,
    sts_files,
)

if TYPE_CHECKING:
    import torch

AVERAGED_TASKS = {
    8: ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC", "SICK-E"),
    7: ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "SICK-E"),
    6: ("MR", "CR", "SUBJ", "MPQA", "TREC", "MRPC"),
}


class SentEvalTask(Task):
    """A task of SentEval.

    Args:
        name: one of [`SENTEVAL_TASKS`] with this protocol.
        folder: SentEval's folder `downstream`, or a folder that contains it or `senteval`.
        check_counts: reject sets of other than the published sizes.

    Attributes:
        sets: the labelled texts by set (`all`; `train` and `test`; `train`, `dev` and `test`; or the data sets of STS).

    Raises:
        FileNotFoundError: a file or the folder is missing.
        ValueError: a file is damaged, or of another size than published.
    """

    main_metric = "accuracy"

    def __init__(self, name: str, folder: str | os.PathLike[str], check_counts: bool = True):
        source = _source(name)
        if not isinstance(self, source.task):
            raise ValueError(f"{name} has another protocol; use {source.task.__name__} or load_senteval_task.")
        root = downstream(folder)
        missing = [root / file for file in source.files if not (root / file).is_file()]
        if missing:
            raise FileNotFoundError(
                f"{name} needs {', '.join(map(str, missing))}: no such file. Expected the files of SentEval, in the "
                "folder that was named or in senteval/downstream/ of it."
            )
        self.name = name
        self.sets = source.read(root)
        if check_counts:
            _check_counts(root, source, self.sets)

    def sentences(self) -> list[str]:
        return [text for part in self.sets.values() for texts in part.texts for text in texts]

    def data(self) -> Sequence[object]:
        return [
            (name, *item)
            for name, part in self.sets.items()
            for item in zip(*part.texts, part.labels.tolist(), strict=True)
        ]

    def settings(self) -> Json:
        return {"seed": SEED}

    def _features(self, embed: Embed, name: str) -> np.ndarray:
        """`(N, D)` embeddings of single sentences, or features of pairs."""
        texts = self.sets[name].texts
        if len(texts) == 1:
            return np.asarray(embed(texts[0]), dtype=np.float32)
        first, second = (np.asarray(embed(column), dtype=np.float32) for column in texts)
        return self._join(first, second)

    def _join(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return pair_features(first, second)

    def _result(self, metrics: dict[str, float], correct: np.ndarray, **details: object) -> TaskResult:
        return TaskResult(metrics, self.main_metric, {"correct": correct}, len(correct), details)


class _FoldsTask(SentEvalTask):
    """A task whose regularisation strength is chosen by cross-validation.

    Args:
        folds: number of folds.
    """

    strengths: ClassVar[tuple[float, ...]]
    cross_validated: ClassVar[str]
    is_nested: ClassVar[bool]

    def __init__(self, name: str, folder: str | os.PathLike[str], check_counts: bool = True, folds: int = 10):
        super().__init__(name, folder, check_counts)
        self.folds = folds
        check_folds(name, self.sets[self.cross_validated].labels, folds, self.is_nested)

    def settings(self) -> Json:
        return {**super().settings(), "folds": self.folds, "C": list(self.strengths)}

    def _search(
        self,
        features: np.ndarray,
        labels: np.ndarray,
        splits: Sequence[Sequence[tuple[np.ndarray, np.ndarray]]],
        device: torch.device | str | None,
    ) -> tuple[list[list[float]], LogisticRegressions]:
        """The mean held-out accuracy of each strength over the folds of each split, and the fitted classifiers."""
        masks = np.zeros((len(splits), len(self.strengths), self.folds, len(labels)), dtype=bool)
        for number, folds in enumerate(splits):
            for fold, (fitted, _) in enumerate(folds):
                masks[number, :, fold, fitted] = True
        strengths = np.tile(np.repeat(self.strengths, self.folds), len(splits))
        search = fit_logistic_regressions(features, labels, masks.reshape(-1, len(labels)), strengths, device=device)
        right = (search.predict(features) == labels).reshape(masks.shape)
        scores = [
            [
                _percent(np.mean([right[number, strength, fold, held].mean() for fold, (_, held) in enumerate(folds)]))
                for strength in range(len(self.strengths))
            ]
            for number, folds in enumerate(splits)
        ]
        return scores, search


class NestedCrossValidationTask(_FoldsTask):
    """MR, CR, SUBJ and MPQA: 10 folds; the strength of each is chosen by 10 inner folds of its training part.

    Every sentence is a test item once; the accuracy is the mean over the folds.
    """

    strengths = tuple(2.0**t for t in range(-2, 4))
    cross_validated, is_nested = "all", True

    def evaluate(self, embed: Embed, device: torch.device | str | None = None) -> TaskResult:
        labels = self.sets["all"].labels
        outer = stratified_folds(labels, self.folds)
        inner = [
            [(train[fitted], train[held]) for fitted, held in stratified_folds(labels[train], self.folds)]
            for train, _ in outer
        ]
        features = self._features(embed, "all")
        scores, search = self._search(features, labels, inner, device)
        chosen = [self.strengths[int(np.argmax(of_split))] for of_split in scores]
        masks = np.zeros((len(outer), len(labels)), dtype=bool)
        for number, (train, _) in enumerate(outer):
            masks[number, train] = True
        final = fit_logistic_regressions(features, labels, masks, chosen, device=device)
        predicted = final.predict(features)
        correct = np.empty(len(labels))
        for number, (_, test) in enumerate(outer):
            correct[test] = predicted[number, test] == labels[test]
        fold_scores = [_percent(correct[test].mean()) for _, test in outer]
        dev_scores = [max(of_split) for of_split in scores]
        return self._result(
            {
                name: round(float(np.mean(of)), 2)
                for name, of in (("accuracy", fold_scores), ("dev_accuracy", dev_scores))
            },
            correct,
            C=chosen,
            folds=fold_scores,
            fits=len(outer) * (len(self.strengths) * self.folds + 1),
            not_converged=_not_converged(search, final),
        )


class CrossValidationTask(_FoldsTask):
    """TREC and MRPC: the strength is chosen by 10 folds of the training set; MRPC also has the F1 of paraphrases."""

    strengths = tuple(2.0**t for t in range(-1, 6))
    cross_validated, is_nested = "train", False

    def evaluate(self, embed: Embed, device: torch.device | str | None = None) -> TaskResult:
        labels, test_labels = self.sets["train"].labels, self.sets["test"].labels
        folds = stratified_folds(labels, self.folds)
        features = self._features(embed, "train")
        (scores,), search = self._search(features, labels, [folds], device)
        best = self.strengths[int(np.argmax(scores))]
        final = fit_logistic_regressions(features, labels, None, [best], device=device)
        del features
        predicted = final.predict(self._features(embed, "test"))[0]
        correct = (predicted == test_labels).astype(float)
        metrics = {"accuracy": _percent(correct.mean()), "dev_accuracy": max(scores)}
        if self.name == "MRPC":
            from sklearn.metrics import f1_score

            metrics["f1"] = _percent(f1_score(test_labels, predicted, zero_division=0))
        fits = len(scores) * len(folds) + 1
        failed = _not_converged(search, final)
        return self._result(metrics, correct, C=best, dev_scores=scores, fits=fits, not_converged=failed)


class DevelopmentSetTask(SentEvalTask):
    """SST2, SST5 and SICK-E: the strength is chosen on the development set. SNLI: C is always 1e9.

    The features of a pair are `[|u - v|; u * v]`; those of SNLI are `[u; v; u * v; |u - v|]`, which take 16 D bytes for
    each of its 549,367 training pairs.
    """

    @property
    def strengths(self) -> tuple[float, ...]:
        return (1e9,) if self.name == "SNLI" else tuple(2.0**t for t in range(-2, 4))

    def settings(self) -> Json:
        return {**super().settings(), "C": list(self.strengths)}

    def _join(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        if self.name != "SNLI":
            return super()._join(first, second)
        product = first * second
        return np.concatenate([first, second, product, np.abs(first - second)], axis=1)

    def evaluate(self, embed: Embed, device: torch.device | str | None = None) -> TaskResult:
        labels = {name: part.labels for name, part in self.sets.items()}
        features = self._features(embed, "train")
        fitted = fit_logistic_regressions(features, labels["train"], None, self.strengths, device=device)
        del features
        right = fitted.predict(self._features(embed, "dev")) == labels["dev"]
        scores = [_percent(row.mean()) for row in right]
        best = int(np.argmax(scores))
        predicted = fitted.predict(self._features(embed, "test"))[best]
        correct = (predicted == labels["test"]).astype(float)
        metrics = {"accuracy": _percent(correct.mean()), "dev_accuracy": scores[best]}
        chosen, failed = self.strengths[best], _not_converged(fitted)
        return self._result(metrics, correct, C=chosen, dev_scores=scores, fits=len(scores), not_converged=failed)


class RelatednessTask(SentEvalTask):
    """SICK-R and STSB: see [`~hf_meanmax.evaluation.relatedness.fit_relatedness`].

    `cosine_pearson` and `cosine_spearman` are computed from the cosines of the test pairs, without fitting.
    """

    main_metric = "pearson"

    def evaluate(self, embed: Embed, device: torch.device | str | None = None) -> TaskResult:
        train, dev, test = (self.sets[name].labels for name in ("train", "dev", "test"))
        model = fit_relatedness(self._features(embed, "train"), train, self._features(embed, "dev"), dev, device=device)
        first, second = (np.asarray(embed(column), dtype=np.float32) for column in self.sets["test"].texts)
        predicted = model.predict(self._join(first, second))
        pearson, spearman = np.nan_to_num(correlations(predicted, test, RESOLUTION)).tolist()
        plain = np.nan_to_num(correlations(paired_cosines(first, second), test)).tolist()
        return TaskResult(
            metrics={
                "pearson": pearson,
                "spearman": spearman,
                "mse": float(np.square(predicted - test).mean()),
                "dev_pearson": model.dev_pearson,
                "cosine_pearson": plain[0],
                "cosine_spearman": plain[1],
            },
            main="pearson",
            items={"predicted": predicted, "gold": test.copy(), "group": np.zeros(len(test), dtype=np.int64)},
            num_test=len(test),
            details={"epochs": model.epochs},
        )


class SimilarityTask(SentEvalTask):
    """STS12 to STS16: correlation of the cosine with the gold scores, on each data set of the year.

    `pearson` and `spearman` are the means over the data sets, `pearson_weighted` and `spearman_weighted` weight each by
    its number of pairs. Undefined cosines and correlations count as 0.
    """

    main_metric = "pearson"

    def evaluate(self, embed: Embed, device: torch.device | str | None = None) -> TaskResult:
        cosines, found = [], []
        for part in self.sets.values():
            first, second = (np.asarray(embed(column), dtype=np.float64) for column in part.texts)
            cosines.append(paired_cosines(first, second))
            found.append(np.nan_to_num(correlations(cosines[-1], part.labels)).tolist())
        sizes = [len(part) for part in self.sets.values()]
        metrics = {}
        for name, values in zip(("pearson", "spearman"), zip(*found, strict=True), strict=True):
            metrics[name] = float(np.mean(values))
            metrics[f"{name}_weighted"] = float(np.average(values, weights=sizes))
        return TaskResult(
            metrics=metrics,
            main="pearson",
            items={
                "predicted": np.concatenate(cosines),
                "gold": np.concatenate([part.labels for part in self.sets.values()]),
                "group": np.repeat(np.arange(len(sizes)), sizes),
            },
            num_test=sum(sizes),
            details={
                "sets": {
                    name: {"pearson": pearson, "spearman": spearman, "pairs": size}
                    for name, (pearson, spearman), size in zip(self.sets, found, sizes, strict=True)
                }
            },
        )


def load_senteval_task(
    name: str, folder: str | os.PathLike[str], check_counts: bool = True, folds: int = 10
) -> SentEvalTask:
    """Reads the files of one task.

    Args:
        name: one of `SENTEVAL_TASKS`.
        folder: SentEval's folder `downstream`, or a folder that contains it or `senteval`.
        check_counts: reject sets of other than the published sizes.
        folds: number of folds of cross-validation; published scores have 10.

    Raises:
        FileNotFoundError: a file or the folder is missing.
        ValueError: there is no such task, a file is damaged, or a set is of another size than published.
    """
    task = _source(name).task
    if issubclass(task, _FoldsTask):
        return task(name, folder, check_counts, folds)
    return task(name, folder, check_counts)


def available_senteval_tasks(folder: str | os.PathLike[str]) -> list[str]:
    """The tasks whose files are in a folder, in the order of [`SENTEVAL_TASKS`].

    A task with only some of its files is left out, with a warning that names the missing ones.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    root = downstream(folder)
    available = []
    for name in SENTEVAL_TASKS:
        missing = [file for file in _SOURCES[name].files if not (root / file).is_file()]
        if not missing:
            available.append(name)
        elif len(missing) < len(_SOURCES[name].files):
            warnings.warn(f"{name} is left out: {root} has no {', '.join(missing)}.", stacklevel=2)
    return available


def averages(results: Mapping[str, TaskResult]) -> dict[str, float]:
    """Mean accuracies over 8, 7 (no MRPC) and 6 (no SST2, no SICK-E) tasks (Zhang, Wu, Li and Li 2018, table 2).

    Args:
        results: results by task. Other tasks are ignored.

    Returns:
        `macro_8`, `micro_8`, `macro_7` and so on, for the averages whose tasks are all present. A micro average weights
        each task by its number of test items, which is the whole set for MR, CR, SUBJ and MPQA.
    """
    means = {}
    for number, names in AVERAGED_TASKS.items():
        if not all(name in results for name in names):
            continue
        found = [results[name] for name in names]
        scores, sizes = [one.score for one in found], [one.num_test for one in found]
        means[f"macro_{number}"] = float(np.mean(scores))
        means[f"micro_{number}"] = float(np.average(scores, weights=sizes))
    return means


def _percent(share: float | np.floating) -> float:
    return float(round(100 * np.float64(share), 2))


def _not_converged(*fits: LogisticRegressions) -> int:
    return sum(int((~fit.converged).sum()) for fit in fits)


def _check_counts(root: Path, source: _Source, sets: Sets) -> None:
    found = {name: len(part) for name, part in sets.items()}
    if "total" in source.sizes:
        found = {"total": sum(found.values())}
    for name, expected in source.sizes.items():
        if found[name] != expected:
            which = {"all": "", "total": ""}.get(name, f" of {name}")
            raise ValueError(
                f"{', '.join(str(root / file) for file in source.files)}: found {found[name]:,} examples{which}, "
                f"expected {expected:,}. Scores of other data compare with no published ones; "
                "--any_size (in Python check_counts=False) takes it nevertheless."
            )


@dataclass(frozen=True)
class _Source:
    """The files of a task, how they are read, and the published sizes by set, or in `total`."""

    task: type[SentEvalTask]
    files: tuple[str, ...]
    read: Callable[[Path], Sets]
    sizes: dict[str, int]


def _source(name: str) -> _Source:
    if name not in _SOURCES:
        hint = did_you_mean(name, SENTEVAL_TASKS, cutoff=0)
        raise ValueError(f"There is no SentEval task {name!r}.{hint} They are {', '.join(SENTEVAL_TASKS)}.")
    return _SOURCES[name]


def _two_files(positive: str, negative: str, size: int) -> _Source:
    return _Source(NestedCrossValidationTask, (positive, negative), read_two_files(positive, negative), {"all": size})


def _one_file_a_set(
    task: type[SentEvalTask], read: Callable[[Path], LabelledSet], files: dict[str, str], *sizes: int
) -> _Source:
    return _Source(task, tuple(files.values()), read_each(read, files), dict(zip(files, sizes, strict=True)))


def _sts(year: str, names: str, size: int) -> _Source:
    data_sets = names.split()
    files = tuple(file for name in data_sets for file in sts_files(year, name))
    return _Source(SimilarityTask, files, read_sts(year, data_sets), {"total": size})


_TREC = {"train": "TREC/train_5500.label", "test": "TREC/TREC_10.label"}
_MRPC = {"train": "MRPC/msr_paraphrase_train.txt", "test": "MRPC/msr_paraphrase_test.txt"}
_SICK = {"train": "SICK/SICK_train.txt", "dev": "SICK/SICK_trial.txt", "test": "SICK/SICK_test_annotated.txt"}
_SST2, _SST5, _STSB = (
    {name: f"{stem}-{name}{suffix}" for name in ("train", "dev", "test")}
    for stem, suffix in (("SST/binary/sentiment", ""), ("SST/fine/sentiment", ""), ("STS/STSBenchmark/sts", ".csv"))
)
_SNLI = tuple(f"SNLI/{kind}.{name}" for name in ("train", "dev", "test") for kind in ("s1", "s2", "labels"))
_BINARY, _FIVE = {"0": 0, "1": 1}, {str(label): label for label in range(5)}
_ENTAILMENT = {"CONTRADICTION": 0, "NEUTRAL": 1, "ENTAILMENT": 2}
_QUESTIONS = {label: number for number, label in enumerate(("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"))}
_read_sst5 = read_matches(r"([^ ]*) (.+)", "a label, a space and a text", _FIVE)
_read_trec = read_matches(r"([^:]*):[^ ]* (.+)", "COARSE:fine and a question", _QUESTIONS, "latin-1")


_SOURCES = {
    "MR": _two_files("MR/rt-polarity.pos", "MR/rt-polarity.neg", 10662),
    "CR": _two_files("CR/custrev.pos", "CR/custrev.neg", 3775),
    "SUBJ": _two_files("SUBJ/subj.objective", "SUBJ/subj.subjective", 10000),
    "MPQA": _two_files("MPQA/mpqa.pos", "MPQA/mpqa.neg", 10606),
    "SST2": _one_file_a_set(DevelopmentSetTask, read_columns([0], 1, 2, 0, _BINARY), _SST2, 67349, 872, 1821),
    "SST5": _one_file_a_set(DevelopmentSetTask, _read_sst5, _SST5, 8544, 1101, 2210),
    "TREC": _one_file_a_set(CrossValidationTask, _read_trec, _TREC, 5452, 500),
    "MRPC": _one_file_a_set(CrossValidationTask, read_columns([3, 4], 0, 5, 1, _BINARY), _MRPC, 4076, 1725),
    "SICK-E": _one_file_a_set(DevelopmentSetTask, read_columns([1, 2], 4, 5, 1, _ENTAILMENT), _SICK, 4500, 500, 4927),
    "SICK-R": _one_file_a_set(RelatednessTask, read_columns([1, 2], 3, 5, 1), _SICK, 4500, 500, 4927),
    "STS12": _sts("12", "MSRpar MSRvid SMTeuroparl surprise.OnWN surprise.SMTnews", 3108),
    "STS13": _sts("13", "FNWN headlines OnWN", 1500),
    "STS14": _sts("14", "deft-forum deft-news headlines images OnWN tweet-news", 3750),
    "STS15": _sts("15", "answers-forums answers-students belief headlines images", 3000),
    "STS16": _sts("16", "answer-answer headlines plagiarism postediting question-question", 1186),
    "STSB": _one_file_a_set(RelatednessTask, read_columns([5, 6], 4, 7), _STSB, 5749, 1500, 1379),
    "SNLI": _Source(DevelopmentSetTask, _SNLI, read_snli, {"train": 549367, "dev": 9842, "test": 9824}),
}
SENTEVAL_TASKS: tuple[str, ...] = tuple(_SOURCES)
PAPER_TASKS: tuple[str, ...] = (*AVERAGED_TASKS[8], "SICK-R", "STS14")
