"""How SentEval's files, in the official layout, are read."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hf_meanmax.evaluation.tasks import read_lines
from hf_meanmax.extras import require

SEED = 1111


@dataclass(frozen=True)
class LabelledSet:
    """One set of a task: single sentences or pairs, with labels, in the order of the protocol.

    Args:
        texts: one list of N texts, or two for pairs.
        labels: `(N,)`: int64 classes, or float64 scores.
    """

    texts: tuple[list[str], ...]
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


Sets = dict[str, LabelledSet]


def stratified_folds(labels: np.ndarray, folds: int) -> list[tuple[np.ndarray, np.ndarray]]:
    splitter = require("sklearn.model_selection").StratifiedKFold(folds, shuffle=True, random_state=SEED)
    return list(splitter.split(np.zeros(len(labels)), labels))


def check_folds(name: str, labels: np.ndarray, folds: int, inner: bool) -> None:
    if folds < 2:
        raise ValueError(f"folds is {folds}; it must be 2 or more.")
    classes, counts = np.unique(labels, return_counts=True)
    smallest = int(counts.min())
    left = smallest - math.ceil(smallest / folds) if inner else smallest
    if len(classes) < 2 or left < folds:
        raise ValueError(
            f"{name} has {len(classes)} classes in training, the smallest with {smallest} examples: too few for "
            f"{folds} folds{' with as many inner ones' if inner else ''}."
        )


def downstream(folder: str | os.PathLike[str]) -> Path:
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"No such folder: {str(folder)!r}; name the one that holds SentEval's downstream/.")
    inside = folder / "downstream"
    return inside if inside.is_dir() else folder


def _sorted_set(columns: Sequence[Sequence[list[str]]], labels: Sequence[Any], dtype: Any) -> LabelledSet:
    """The set of N token lists a column."""
    order = sorted(range(len(labels)), key=lambda row: (*(len(column[row]) for column in columns), labels[row]))
    return LabelledSet(
        tuple([" ".join(column[row]) for row in order] for column in columns),
        np.asarray([labels[row] for row in order], dtype=dtype),
    )


def _split_lines(path: Path, encoding: str) -> list[str]:
    """The lines of `str.splitlines`, which ends them at more characters than `\\n`."""
    lines = read_lines(path, encoding)
    return ("\n".join(lines) + "\n").splitlines() if lines else []


def _lines(path: Path, encoding: str, skip: int = 0) -> Iterator[tuple[int, str]]:
    """Line numbers and stripped lines, after `skip` lines."""
    lines = read_lines(path, encoding)
    if len(lines) <= skip:
        raise ValueError(f"{path} holds no examples.")
    for number, line in enumerate(lines[skip:], start=skip + 1):
        yield number, line.strip()


def _rows(path: Path, columns: int, skip: int = 0) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and tab-separated fields, after `skip` lines."""
    for number, line in _lines(path, "utf-8", skip):
        fields = line.split("\t")
        _check_columns(path, number, fields, columns)
        yield number, fields


def _check_columns(path: Path, number: int, fields: list[str], columns: int) -> None:
    if len(fields) < columns:
        raise ValueError(f"{path}, line {number}: {len(fields)} columns separated by tabs, expected {columns}.")


def _label(path: Path, number: int, text: str, classes: Mapping[str, int]) -> int:
    if text not in classes:
        raise ValueError(f"{path}, line {number}: unknown label {text!r}; expected one of {', '.join(classes)}.")
    return classes[text]


def _score(path: Path, number: int, text: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not 0 <= score <= 5:
        raise ValueError(f"{path}, line {number}: {text!r} is no score between 0 and 5.")
    return score


def read_two_files(positive: str, negative: str) -> Callable[[Path], Sets]:
    def read(root: Path) -> Sets:
        texts: list[list[str]] = []
        labels: list[int] = []
        for file, label in ((positive, 1), (negative, 0)):
            lines = _split_lines(root / file, "latin-1")
            if not lines:
                raise ValueError(f"{root / file} holds no examples.")
            texts += [line.split() for line in lines]
            labels += [label] * len(lines)
        return {"all": _sorted_set([texts], labels, np.int64)}

    return read


def read_each(read: Callable[[Path], LabelledSet], files: Mapping[str, str]) -> Callable[[Path], Sets]:
    return lambda root: {name: read(root / file) for name, file in files.items()}


def read_sst2(path: Path) -> LabelledSet:
    texts, labels = [], []
    for number, fields in _rows(path, 2):
        texts.append(fields[0].split())
        labels.append(_label(path, number, fields[1], {"0": 0, "1": 1}))
    return _sorted_set([texts], labels, np.int64)


def read_sst5(path: Path) -> LabelledSet:
    texts, labels = [], []
    classes = {str(label): label for label in range(5)}
    for number, line in _lines(path, "utf-8"):
        label, _, text = line.partition(" ")
        if not text:
            raise ValueError(f"{path}, line {number}: expected a label, a space and a text, got {line!r}.")
        texts.append(text.split())
        labels.append(_label(path, number, label, classes))
    return _sorted_set([texts], labels, np.int64)


def read_trec(path: Path) -> LabelledSet:
    texts, labels = [], []
    classes = {label: number for number, label in enumerate(("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"))}
    for number, line in _lines(path, "latin-1"):
        coarse, colon, rest = line.partition(":")
        _, _, question = rest.partition(" ")
        if not (colon and question):
            raise ValueError(f"{path}, line {number}: expected COARSE:fine and a question, got {line!r}.")
        texts.append(question.split())
        labels.append(_label(path, number, coarse, classes))
    return _sorted_set([texts], labels, np.int64)


def read_pairs(
    first: int, second: int, target: int, columns: int, skip: int, classes: Mapping[str, int] | None = None
) -> Callable[[Path], LabelledSet]:
    """Reads tab-separated pairs, given the columns of the two texts and of the label, or of the score."""

    def read(path: Path) -> LabelledSet:
        pairs: tuple[list[list[str]], list[list[str]]] = ([], [])
        labels: list[float] = []
        for number, fields in _rows(path, columns, skip):
            pairs[0].append(fields[first].split())
            pairs[1].append(fields[second].split())
            if classes is None:
                labels.append(_score(path, number, fields[target]))
            else:
                labels.append(_label(path, number, fields[target], classes))
        return _sorted_set(pairs, labels, np.float64 if classes is None else np.int64)

    return read


def read_snli(root: Path) -> Sets:
    classes = {"entailment": 0, "neutral": 1, "contradiction": 2}
    sets = {}
    for name in ("train", "dev", "test"):
        first, second, gold = (root / f"SNLI/{kind}.{name}" for kind in ("s1", "s2", "labels"))
        labels = _split_lines(gold, "utf-8")
        if not labels:
            raise ValueError(f"{gold} holds no examples.")
        for number, label in enumerate(labels, start=1):
            _label(gold, number, label, classes)
        # Only ASCII white space separates words here: the official code splits bytes.
        texts = [
            [[word.decode() for word in line.encode().split()] for line in _split_lines(path, "latin-1")]
            for path in (first, second)
        ]
        for path, lines in zip((first, second), texts, strict=True):
            _check_lengths(path, lines, gold, labels)
        # The second sentence comes first in the order, and the labels are ordered by their names.
        part = _sorted_set([texts[1], texts[0]], labels, np.str_)
        numbers = np.asarray([classes[label] for label in part.labels.tolist()], dtype=np.int64)
        sets[name] = LabelledSet((part.texts[1], part.texts[0]), numbers)
    return sets


def _check_lengths(path: Path, lines: Sequence[Any], other: Path, other_lines: Sequence[Any]) -> None:
    if len(lines) != len(other_lines):
        raise ValueError(
            f"{path}, line {min(len(lines), len(other_lines)) + 1}: it has {len(lines):,} lines and {other} has "
            f"{len(other_lines):,}; line n of one belongs to line n of the other."
        )


def read_sts(year: str, names: Sequence[str]) -> Callable[[Path], Sets]:
    def read(root: Path) -> Sets:
        return {name: _read_sts_set(*(root / file for file in sts_files(year, name))) for name in names}

    return read


def sts_files(year: str, name: str) -> tuple[str, str]:
    return f"STS/STS{year}-en-test/STS.input.{name}.txt", f"STS/STS{year}-en-test/STS.gs.{name}.txt"


def _read_sts_set(inputs: Path, golds: Path) -> LabelledSet:
    lines, gold = _split_lines(inputs, "utf-8"), _split_lines(golds, "utf-8")
    _check_lengths(golds, gold, inputs, lines)
    pairs: tuple[list[list[str]], list[list[str]]] = ([], [])
    scores = []
    for number, (line, score) in enumerate(zip(lines, gold, strict=True), start=1):
        fields = line.split("\t")
        _check_columns(inputs, number, fields, 2)
        # Pairs without a score were not part of the evaluation.
        if score.strip():
            pairs[0].append(fields[0].split())
            pairs[1].append(fields[1].split())
            scores.append(_score(golds, number, score))
    if len(scores) < 2:
        raise ValueError(f"{golds} has {len(scores)} scores; a correlation needs two or more.")
    return _sorted_set(pairs, scores, np.float64)
