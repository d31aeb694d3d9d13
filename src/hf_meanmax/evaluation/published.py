"""Scores that others have published, with their sources, to stand beside measured ones.

Their encoders were trained on other text, and with other word vectors, than those of this package: they show what the
field has reached, and are no controls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

AAE = "Zhang, Wu, Li and Li 2018, tables 1 and 2"
AAE_ABLATIONS = "Zhang, Wu, Li and Li 2018, table 3"
RNN_CNN = "Tang, Jin, Fang, Wang and de Sa 2017, table 2"
RANDOM = "Wieting and Kiela 2019"
THESIS = "C\u00edfka 2018 (thesis), tables 5.4 and A.1"
THESIS_INTRINSIC = "C\u00edfka 2018 (thesis), tables 5.6 and A.3"

UNTRAINED = "no training: the controls that were published"
UNSUPERVISED = "trained without labels"
SUPERVISED = "trained with labels or translations"


@dataclass(frozen=True)
class PublishedRow:
    """What a publication says of one encoder.

    Args:
        name: the encoder.
        group: how it was trained.
        source: where the numbers are from.
        dimension: of its embeddings, None where the source does not say.
        scores: metrics by task, in the units of [`~hf_meanmax.evaluation.tasks.TaskResult`].
        averages: `macro_8`, `micro_8` and the like over 6, 7 or 8 tasks, in percent.
    """

    name: str
    group: str
    source: str
    dimension: int | None
    scores: Mapping[str, Mapping[str, float]]
    averages: Mapping[str, float] = field(default_factory=dict)


def published_rows() -> list[PublishedRow]:
    """SentEval scores: the published controls first, then what was trained without labels, then with them."""
    return list(_ROWS)


def published_intrinsic_rows() -> list[PublishedRow]:
    """The thesis's intrinsic scores, on sets of its own: paraphrases of HyTER and COCO, headlines and compressions.

    No score of this package is on these sets, so none belongs into a table with them.
    """
    return list(_INTRINSIC_ROWS)


def published_tasks() -> set[str]:
    """The tasks of [`published_rows`], the SentEval tasks."""
    return {task for row in _ROWS for task in row.scores}


def _metrics(task: str, cell: str) -> dict[str, float]:
    """`75.5/82.6` and `.58/.56` by the names of the two metrics, a single number by that of the first."""
    names: tuple[str, ...]
    if task == "MRPC":
        names = ("accuracy", "f1")
    elif task.startswith("STS") or task == "SICK-R":
        names = ("pearson", "spearman")
    else:
        names = ("accuracy",)
    values = [part.strip() for part in cell.split("/")]
    return {name: float(value) for name, value in zip(names, values, strict=False) if value != "-"}


def _row(
    name: str, group: str, source: str, dimension: int | None, tasks: str, cells: str, averages: str = ""
) -> PublishedRow:
    given = dict(zip(tasks.split(), cells.split(), strict=True))
    scores = {task: _metrics(task, cell) for task, cell in given.items() if cell != "-"}
    means: dict[str, float] = {}
    for part in averages.split():
        size, values = part.split(":")
        for kind, value in zip(("macro", "micro"), values.split("/"), strict=False):
            means[f"{kind}_{size}"] = float(value)
    return PublishedRow(name, group, source, dimension, scores, means)


_TEN = "MR CR SUBJ MPQA SST2 TREC MRPC SICK-E SICK-R STS14"
_RANDOM_TASKS = "MR CR MPQA SUBJ SST2 TREC SICK-R SICK-E MRPC STSB"
_RNN_CNN_TASKS = "SICK-R SICK-E STS14 MRPC TREC MR CR SUBJ MPQA SST2"
_THESIS_TASKS = "MR CR SUBJ MPQA SST2 SST5 TREC MRPC SICK-E SNLI SICK-R STSB STS12 STS13 STS14 STS15 STS16"

_ROWS = (
    # MRPC accuracy only; SICK-R and STSB are Pearson.
    _row("bag of GloVe", UNTRAINED, RANDOM, 300, _RANDOM_TASKS, "77.3 78.9 87.7 91.0 79.7 83.0 .804 78.6 72.9 .707"),
    _row(
        "random projection of GloVe",
        UNTRAINED,
        RANDOM,
        4096,
        _RANDOM_TASKS,
        "77.3 79.0 88.4 92.0 81.2 88.0 .855 81.6 73.2 .684",
        "8:82.6",
    ),
    _row(
        "random echo state network over GloVe",
        UNTRAINED,
        RANDOM,
        4096,
        _RANDOM_TASKS,
        "78.4 80.3 88.6 92.4 83.5 88.8 .861 82.3 73.7 .746",
        "8:83.5",
    ),
    _row(
        "most frequent class",
        UNTRAINED,
        THESIS,
        None,
        "MR CR SUBJ MPQA SST2 SST5 TREC MRPC SICK-E SNLI",
        "50.0 63.8 50.0 68.8 49.9 23.1 18.8 66.5 56.7 34.3",
    ),
    _row(
        "GloVe BOW",
        UNTRAINED,
        THESIS,
        300,
        _THESIS_TASKS,
        "77.0 78.2 91.1 87.9 81.0 44.4 82.0 72.3 78.2 66.0 .80/.72 .64/.62 .52/.53 .50/.51 .55/.56 .56/.59 .51/.58",
    ),
    _row("ParagraphVec (DBOW)", UNSUPERVISED, AAE, None, _TEN, "60.2 66.9 76.3 70.7 - 59.4 72.9/81.1 - - .42/.43"),
    _row("SDAE", UNSUPERVISED, AAE, None, _TEN, "74.6 78.0 90.8 86.9 - 78.4 73.7/80.7 - - .37/.38"),
    _row("SIF (GloVe + WR)", UNSUPERVISED, AAE, None, _TEN, "- - - - 82.2 - - 84.6 - .69/-"),
    _row("word2vec BOW", UNTRAINED, AAE, 300, _TEN, "77.7 79.8 90.9 88.3 79.7 83.6 72.5/81.4 78.7 .803 .65/.64"),
    _row("GloVe BOW", UNTRAINED, AAE, 300, _TEN, "78.7 78.5 91.6 87.6 79.8 83.6 72.1/80.9 78.6 .800 .54/.56"),
    _row("FastSent", UNSUPERVISED, AAE, None, _TEN, "70.8 78.4 88.7 80.6 - 76.8 72.2/80.3 - - .63/.64"),
    _row("FastSent+AE", UNSUPERVISED, AAE, None, _TEN, "71.8 76.7 88.8 81.5 - 80.4 71.2/79.1 - - .62/.62"),
    _row("uni-skip", UNSUPERVISED, AAE, None, _TEN, "75.5 79.3 92.1 86.9 - 91.4 73.0/81.9 - - -", "6:83.0/83.7"),
    _row("bi-skip", UNSUPERVISED, AAE, None, _TEN, "73.9 77.9 92.5 83.3 - 89.4 71.2/81.2 - - -", "6:81.4/82.1"),
    _row(
        "hierarchical-CNN", UNSUPERVISED, AAE, None, _TEN, "75.3 79.3 91.9 88.4 - 90.4 74.2/82.7 - - -", "6:83.3/84.0"
    ),
    _row("composite-CNN", UNSUPERVISED, AAE, None, _TEN, "77.1 80.6 92.1 88.6 - 91.2 74.8/82.2 - - -", "6:84.1/84.8"),
    _row(
        "skip-thoughts+LN",
        UNSUPERVISED,
        AAE,
        4800,
        _TEN,
        "79.4 83.1 93.7 89.3 82.9 88.4 - 79.5 .858 .44/.45",
        "7:85.2/85.9",
    ),
    _row(
        "combine-skip",
        UNSUPERVISED,
        AAE,
        None,
        _TEN,
        "76.5 80.1 93.6 87.1 82.0 92.2 73.0/82.0 82.3 .858 .29/.35",
        "8:83.4/84.2",
    ),
    _row("combine-CNN", UNSUPERVISED, AAE, None, _TEN, "77.7 82.0 93.6 89.3 - 92.6 76.4/83.7 - - -", "6:85.3/85.8"),
    _row(
        "mean-max AAE",
        UNSUPERVISED,
        AAE,
        4096,
        _TEN,
        "78.7 82.3 93.4 88.8 83.8 91.4 75.5/82.6 83.5 .854 .58/.56",
        "8:84.7/85.6 7:86.0/86.0 6:85.0/85.9",
    ),
    _row(
        "mean AAE",
        UNSUPERVISED,
        AAE_ABLATIONS,
        2048,
        _TEN,
        "78.6 81.6 93.3 88.6 83.5 90.2 74.8/82.3 82.2 .851 .57/.55",
        "8:84.1",
    ),
    _row(
        "max AAE",
        UNSUPERVISED,
        AAE_ABLATIONS,
        2048,
        _TEN,
        "78.6 81.4 93.1 88.7 82.8 90.6 75.1/82.5 82.2 .851 .57/.55",
        "8:84.1",
    ),
    _row(
        "mean-max RAE",
        UNSUPERVISED,
        AAE_ABLATIONS,
        4096,
        _TEN,
        "77.4 80.1 92.2 88.5 82.3 90.6 74.6/82.0 83.2 .853 .68/.65",
        "8:83.6",
    ),
    _row(
        "small RNN-CNN",
        UNSUPERVISED,
        RNN_CNN,
        1200,
        _RNN_CNN_TASKS,
        ".8530 82.6 .58/.56 75.6/82.9 89.2 77.6 80.3 92.3 87.8 82.8",
    ),
    _row(
        "large RNN-CNN",
        UNSUPERVISED,
        RNN_CNN,
        4800,
        _RNN_CNN_TASKS,
        ".8698 85.2 .59/.57 75.1/83.2 92.2 79.7 81.9 94.0 88.7 84.1",
    ),
    _row(
        "skip-thoughts + LN",
        UNSUPERVISED,
        RANDOM,
        4800,
        _RANDOM_TASKS,
        "79.4 83.1 89.3 93.7 82.9 88.4 .858 79.5 73.2 .689",
        "8:83.7",
    ),
    _row(
        "cs-FINAL-CTX",
        SUPERVISED,
        THESIS,
        1000,
        _THESIS_TASKS,
        "68.7 77.4 88.5 85.5 73.0 38.2 88.6 71.8 82.1 70.2 .82/.76 .74/.74 .51/.53 .44/.44 .52/.50 .62/.61 .57/.58",
    ),
    _row(
        "cs-ATTN-ATTN, 1 head",
        SUPERVISED,
        THESIS,
        1000,
        _THESIS_TASKS,
        "68.2 76.0 86.9 84.9 72.0 35.7 89.0 70.7 80.8 69.3 .81/.76 .73/.73 .46/.49 .32/.33 .45/.44 .53/.52 .47/.48",
    ),
    _row(
        "InferSent",
        SUPERVISED,
        RANDOM,
        4096,
        _RANDOM_TASKS,
        "79.7 83.4 88.9 92.6 83.5 90.8 .885 84.1 76.4 .773",
        "8:84.9",
    ),
    _row(
        "InferSent",
        SUPERVISED,
        THESIS,
        4096,
        _THESIS_TASKS.replace("SNLI ", ""),
        "81.5 86.7 92.7 90.6 85.0 45.8 88.2 76.6 86.4 .88/.83 .76/.75 .59/.60 .59/.59 .70/.67 .71/.72 .71/.73",
    ),
    _row(
        "BiLSTM-Max (on SST)",
        SUPERVISED,
        AAE,
        4096,
        _TEN,
        "- 83.7 90.2 89.5 - 86.0 72.7/80.9 83.1 .863 .55/.54",
    ),
    _row(
        "BiLSTM-Max (on SNLI)",
        SUPERVISED,
        AAE,
        4096,
        _TEN,
        "79.9 84.6 92.1 89.8 83.3 88.7 75.1/82.3 86.3 .885 .68/.65",
        "8:85.0/86.2",
    ),
    _row(
        "BiLSTM-Max (on AllNLI)",
        SUPERVISED,
        AAE,
        4096,
        _TEN,
        "81.1 86.3 92.4 90.2 84.6 88.2 76.2/83.1 86.3 .884 .70/.67",
        "8:85.7/86.9",
    ),
)


def _intrinsic_row(name: str, dimension: int, hyter: str, coco: str, alignment: str) -> PublishedRow:
    paraphrase_names = ("cluster accuracy", "neighbour accuracy (L2)", "neighbour accuracy (cosine)", "inverse DB")
    alignment_names = ("incl. (L2)", "incl. (cosine)", "excl. (L2)", "excl. (cosine)")
    cells = (("HyTER", paraphrase_names, hyter), ("COCO", paraphrase_names, coco))
    scores = {
        task: dict(zip(names, map(float, values.split()), strict=True))
        for task, names, values in (*cells, ("domain alignment", alignment_names, alignment))
    }
    group = UNTRAINED if name == "GloVe BOW" else SUPERVISED
    return PublishedRow(name, group, THESIS_INTRINSIC, dimension, scores)


_INTRINSIC_ROWS = (
    _intrinsic_row("InferSent", 4096, "99.99 100 100 .579", "31.58 25.28 26.21 .367", "36.3 33.7 97.4 97.2"),
    _intrinsic_row("GloVe BOW", 300, "99.94 100 100 .654", "34.28 20.29 19.72 .352", "10.5 15.7 87.5 88.7"),
    _intrinsic_row("cs-FINAL-CTX", 1000, "99.92 100 100 .406", "23.20 15.74 16.07 .346", "31.9 34.6 95.4 96.2"),
    _intrinsic_row(
        "cs-ATTN-ATTN, 1 head", 1000, "99.88 99.91 99.91 .347", "21.54 11.15 11.50 .331", "60.0 57.3 90.7 92.6"
    ),
)
