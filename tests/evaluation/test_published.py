"""Published numbers as data: they agree with the averages that the same papers print."""

from __future__ import annotations

import pytest

from hf_meanmax.evaluation.published import published_rows
from hf_meanmax.evaluation.senteval import AVERAGED_TASKS, SENTEVAL_TASKS

AAE = "Zhang, Wu, Li and Li 2018, tables 1 and 2"
RANDOM = "Wieting and Kiela 2019"
THESIS = "Cífka 2018 (thesis), tables 5.4 and A.1"
ROWS = {(row.name, row.source): row for row in published_rows()}


def test_numbers_of_the_papers():
    row = ROWS["mean-max AAE", AAE]
    assert row.scores["MRPC"] == {"accuracy": 75.5, "f1": 82.6}
    assert row.scores["STS14"] == {"pearson": 0.58, "spearman": 0.56}
    assert row.scores["SICK-R"] == {"pearson": 0.854}
    assert row.scores["TREC"] == {"accuracy": 91.4}
    assert row.averages["macro_8"] == 84.7
    assert row.dimension == 4096
    assert ROWS["SIF (GloVe + WR)", AAE].scores["STS14"] == {"pearson": 0.69}
    network = ROWS["random echo state network over GloVe", RANDOM]
    assert network.scores["MPQA"] == {"accuracy": 88.6}
    assert network.scores["SUBJ"] == {"accuracy": 92.4}
    assert network.scores["STSB"] == {"pearson": 0.746}
    assert network.group == "no training: the controls that were published"
    assert ROWS["most frequent class", THESIS].scores["SNLI"] == {"accuracy": 34.3}
    assert "SNLI" not in ROWS["InferSent", THESIS].scores


@pytest.mark.parametrize("row", [row for row in ROWS.values() if row.averages], ids=lambda row: row.name)
def test_macro_averages_are_those_of_the_scores(row):
    for size, tasks in AVERAGED_TASKS.items():
        printed = row.averages.get(f"macro_{size}")
        if printed is not None:
            mean = sum(row.scores[task]["accuracy"] for task in tasks) / size
            assert mean == pytest.approx(printed, abs=0.0501 + 1e-9), (row.name, size)


def test_tasks_and_units():
    assert {task for row in published_rows() for task in row.scores} <= set(SENTEVAL_TASKS)
    for row in published_rows():
        for task, metrics in row.scores.items():
            for metric, value in metrics.items():
                low, high = (0, 1) if metric in ("pearson", "spearman") else (15, 100)
                assert low < value <= high, (row.name, task, metric)
    assert not {task for row in published_rows("intrinsic") for task in row.scores} & set(SENTEVAL_TASKS)
