"""Reads SentEval's files in the official layout."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hf_meanmax.evaluation.tasks import read_lines

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
    """The training and test rows of each of scikit-learn's stratified folds, shuffled with SentEval's seed."""
    from sklearn.model_selection import StratifiedKFold

    splitter = StratifiedKFold(folds, shuffle=True, random_state=SEED)
    return list(splitter.split(np.zeros(len(labels)), labels))


def check_folds(name: str, labels: np.ndarray, folds: int, inner: bool) -> None:
    """Raises ValueError unless each fold can have an example of each class; with `inner`, also each inner fold of the
    training parts."""
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
    """SentEval's folder downstream/: `folder` itself, or its senteval/downstream/, downstream/ or senteval/.

    Raises:
        FileNotFoundError: no such folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"No such folder: {str(folder)!r}; it must hold SentEval's downstream/ or senteval/.")
    inside = [folder / name for name in ("senteval/downstream", "downstream", "senteval")]
    return next((path for path in inside if path.is_dir()), folder)


# The words of an example's texts, and its label.
Example = tuple[tuple[list[str], ...], float | str]


def _sorted_set(examples: Iterable[Example], dtype: npt.DTypeLike) -> LabelledSet:
    rows = sorted(examples, key=lambda row: (*map(len, row[0]), row[1]))
    columns = zip(*(texts for texts, _ in rows), strict=True)
    return LabelledSet(
        tuple([" ".join(words) for words in column] for column in columns),
        np.asarray([label for _, label in rows], dtype=dtype),
    )


def _split_lines(path: Path, encoding: str) -> list[str]:
    """The lines of `str.splitlines`, which splits at more characters than `\\n`."""
    lines = ("\n".join([*read_lines(path, encoding), ""])).splitlines()
    if not lines:
        raise ValueError(f"{path} holds no examples.")
    return lines


def _lines(path: Path, encoding: str, skip: int = 0) -> Iterator[tuple[int, str]]:
    """Line numbers and stripped lines, after `skip` lines."""
    lines = read_lines(path, encoding)
    if len(lines) <= skip:
        raise ValueError(f"{path} holds no examples.")
    for number, line in enumerate(lines[skip:], start=skip + 1):
        yield number, line.strip()


def _fields(path: Path, number: int, line: str, columns: int) -> list[str]:
    fields = line.split("\t")
    if len(fields) < columns:
        raise ValueError(f"{path}, line {number}: {len(fields)} columns separated by tabs, expected {columns}.")
    return fields


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
    """Returns a reader of a task with one file per class."""

    def read(root: Path) -> Sets:
        files = ((root / positive, 1), (root / negative, 0))
        examples = [((line.split(),), label) for path, label in files for line in _split_lines(path, "latin-1")]
        return {"all": _sorted_set(examples, np.int64)}

    return read


def read_each(read: Callable[[Path], LabelledSet], files: Mapping[str, str]) -> Callable[[Path], Sets]:
    """Returns a reader of a task with one file per set."""
    return lambda root: {name: read(root / file) for name, file in files.items()}


def read_matches(
    pattern: str, expected: str, classes: Mapping[str, int], encoding: str = "utf-8"
) -> Callable[[Path], LabelledSet]:
    """Returns a reader of lines by a regular expression, whose groups are the label and the text."""

    def read(path: Path) -> LabelledSet:
        examples: list[Example] = []
        for number, line in _lines(path, encoding):
            match = re.fullmatch(pattern, line)
            if match is None:
                raise ValueError(f"{path}, line {number}: expected {expected}, got {line!r}.")
            examples.append(((match[2].split(),), _label(path, number, match[1], classes)))
        return _sorted_set(examples, np.int64)

    return read


def read_columns(
    texts: Sequence[int], target: int, columns: int, skip: int = 0, classes: Mapping[str, int] | None = None
) -> Callable[[Path], LabelledSet]:
    """Returns a reader of tab-separated lines, given the columns of the texts and of the label (or score)."""

    def read(path: Path) -> LabelledSet:
        examples: list[Example] = []
        for number, line in _lines(path, "utf-8", skip):
            fields = _fields(path, number, line, columns)
            text = fields[target]
            label = _score(path, number, text) if classes is None else _label(path, number, text, classes)
            examples.append((tuple(fields[column].split() for column in texts), label))
        return _sorted_set(examples, np.float64 if classes is None else np.int64)

    return read


def read_snli(root: Path) -> Sets:
    classes = {"entailment": 0, "neutral": 1, "contradiction": 2}
    sets = {}
    for name in ("train", "dev", "test"):
        first, second, gold = (root / f"SNLI/{kind}.{name}" for kind in ("s1", "s2", "labels"))
        labels = _split_lines(gold, "utf-8")
        for number, label in enumerate(labels, start=1):
            _label(gold, number, label, classes)
        columns = []
        # The official code sorts by the second sentence first, and by the labels' names.
        for path in (second, first):
            lines = _split_lines(path, "latin-1")
            _check_lengths(path, lines, gold, labels)
            # Only ASCII white space separates words here: the official code splits bytes.
            columns.append([[word.decode() for word in line.encode().split()] for line in lines])
        part = _sorted_set(zip(zip(*columns, strict=True), labels, strict=True), np.str_)
        numbers = np.asarray([classes[label] for label in part.labels.tolist()], dtype=np.int64)
        sets[name] = LabelledSet((part.texts[1], part.texts[0]), numbers)
    return sets


def _check_lengths(path: Path, lines: Sequence[str], other: Path, other_lines: Sequence[str]) -> None:
    if len(lines) != len(other_lines):
        raise ValueError(
            f"{path}, line {min(len(lines), len(other_lines)) + 1}: it has {len(lines):,} lines and {other} has "
            f"{len(other_lines):,}; line n of one belongs to line n of the other."
        )


def read_sts(year: str, names: Sequence[str]) -> Callable[[Path], Sets]:
    """Returns a reader of an STS task, with one set per part."""

    def read(root: Path) -> Sets:
        return {name: _read_sts_set(*(root / file for file in sts_files(year, name))) for name in names}

    return read


def sts_files(year: str, name: str) -> tuple[str, str]:
    """The files of a part of an STS task: its pairs and their scores."""
    return f"STS/STS{year}-en-test/STS.input.{name}.txt", f"STS/STS{year}-en-test/STS.gs.{name}.txt"


def _read_sts_set(inputs: Path, golds: Path) -> LabelledSet:
    lines, gold = _split_lines(inputs, "utf-8"), _split_lines(golds, "utf-8")
    _check_lengths(golds, gold, inputs, lines)
    examples: list[Example] = []
    for number, (line, score) in enumerate(zip(lines, gold, strict=True), start=1):
        first, second, *_ = _fields(inputs, number, line, 2)
        # Pairs without a score were not part of the evaluation.
        if score.strip():
            examples.append(((first.split(), second.split()), _score(golds, number, score)))
    if len(examples) < 2:
        raise ValueError(f"{golds} has {len(examples)} scores; a correlation needs two or more.")
    return _sorted_set(examples, np.float64)
