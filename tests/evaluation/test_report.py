"""Reports: numbers, spreads, gains and published rows where they belong."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from evaluation.fake_tasks import LengthEncoder, LengthTask, words
from hf_meanmax.commands import reproduce
from hf_meanmax.evaluation.report import Results, markdown_report, summarize, write_report
from hf_meanmax.evaluation.runner import evaluate
from hf_meanmax.evaluation.senteval import AVERAGED_TASKS
from hf_meanmax.evaluation.significance import gain

COUNT = 24


def controls() -> list[LengthEncoder]:
    return [
        LengthEncoder("strong, seed 0", 3, "random_encoder", 0),
        LengthEncoder("strong, seed 1", 4, "random_encoder", 1),
        LengthEncoder("weak", 1, "bag"),
    ]


def make_results(name: str = "mine", wrong_every: int = 0, with_controls: bool = True) -> Results:
    tasks = [LengthTask(task, words(COUNT)) for task in AVERAGED_TASKS[8]]
    tasks += [LengthTask("STS14", words(COUNT), "pearson"), LengthTask("captions", words(COUNT))]
    evaluation = evaluate(
        [LengthEncoder(name, wrong_every), *(controls() if with_controls else ())], tasks, show_progress=False
    )
    evaluation.models[0].tasks["MR"].unknown_word_rate = 0.0312
    return summarize(evaluation, command="evaluate.py mine", samples=50)


@pytest.fixture(scope="module")
def results() -> Results:
    return make_results()


def rows_of(text: str, title: str) -> list[list[str]]:
    """The first table under a title, as cells."""
    part = text.split(f"## {title}")[1]
    table = re.search(r"(?:^\|.*\|\n)+", part, flags=re.MULTILINE).group()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().split("\n")]


def test_spreads_are_over_the_seeds(results):
    found = results.spreads["random_encoder"]["tasks"]["MR"]["accuracy"]
    scores = [100 * (1 - len(range(every, COUNT + 1, every)) / COUNT) for every in (3, 4)]
    assert found == {"mean": pytest.approx(np.mean(scores)), "std": pytest.approx(np.std(scores, ddof=1)), "n": 2}
    assert results.spreads["bag"]["tasks"]["MR"]["accuracy"] == {"mean": 0, "std": None, "n": 1}
    assert results.spreads["random_encoder"]["averages"]["macro_8"]["mean"] == pytest.approx(np.mean(scores))


def test_gains_are_over_the_strongest_control(results):
    tasks = [LengthTask("MR", words(COUNT))]
    evaluation = evaluate([LengthEncoder("mine"), *controls()[:2]], tasks, show_progress=False)
    model, *others = [run.results["MR"] for run in evaluation.encoders]
    expected = gain(model, others, samples=50)
    assert results.gains["MR"] == {
        "control": "random_encoder",
        "difference": expected.difference,
        "low": expected.low,
        "high": expected.high,
    }
    assert expected.low < expected.difference < expected.high
    average = results.average_gains["macro_8"]
    assert average["control"] == "random_encoder"
    assert average["difference"] == pytest.approx(expected.difference)
    assert set(results.average_gains) == {f"{kind}_{size}" for kind in ("macro", "micro") for size in (8, 7, 6)}
    assert results.averages["macro_8"] == 100


def test_a_control_that_was_not_finished_is_of_no_average():
    tasks = [LengthTask(task, words(COUNT)) for task in AVERAGED_TASKS[8]]
    evaluation = evaluate([LengthEncoder("mine", 2), *controls()], tasks, show_progress=False)
    del evaluation.encoders[1].tasks["SICK-E"]
    gains = summarize(evaluation, command="evaluate.py mine", samples=50).average_gains
    assert gains["macro_8"]["control"] == "bag"
    assert gains["macro_6"]["control"] == "random_encoder"
    for run in evaluation.encoders[1:]:
        run.tasks.pop("SICK-E", None)
    assert set(summarize(evaluation, command="evaluate.py mine", samples=50).average_gains) == {"macro_6", "micro_6"}


def test_results_come_back_as_they_were_written(results, tmp_path):
    path = tmp_path / "new" / "results.json"
    results.save(path)
    assert Results.load(path) == Results.load(path.parent)
    loaded = Results.load(path)
    assert loaded.to_dict() == results.to_dict()
    assert json.loads(path.read_text())["format_version"] == 1
    assert loaded.settings == {"seeds": [0, 1], "confidence": 0.95, "samples": 50}
    assert loaded.model["name"] == "mine"
    assert loaded.model["key"] == "lengths-mine-0"
    assert loaded.model["dimension"] == 2
    assert loaded.command == "evaluate.py mine"
    assert loaded.versions["numpy"] == np.__version__
    assert loaded.scores["MR"]["metrics"] == {"accuracy": 100, "f1": 50}
    assert loaded.scores["MR"]["details"] == {"texts": COUNT}
    assert [(entry["kind"], entry["seed"]) for entry in loaded.controls] == [
        ("random_encoder", 0),
        ("random_encoder", 1),
        ("bag", None),
    ]
    assert markdown_report([loaded]) == markdown_report([results])


def test_scores_that_are_no_numbers_are_null(results, tmp_path):
    spoiled = Results(**{**results.__dict__, "averages": {"macro_8": float("nan")}})
    spoiled.save(tmp_path / "results.json")
    assert json.loads((tmp_path / "results.json").read_text())["averages"] == {"macro_8": None}
    assert "nan" not in markdown_report([Results.load(tmp_path)])


def test_a_metric_that_is_no_number_in_one_seed_has_no_spread():
    evaluation = evaluate([LengthEncoder("mine"), *controls()], [LengthTask("MR", words(COUNT))], show_progress=False)
    evaluation.controls["random_encoder"][0].tasks["MR"].result.metrics["f1"] = float("nan")
    evaluation.controls["random_encoder"][1].tasks["MR"].result.metrics["f1"] = 0.5
    found = summarize(evaluation, samples=50).to_dict()["spreads"]["random_encoder"]["tasks"]["MR"]["f1"]
    assert found == {"mean": None, "std": None, "n": 2}


def test_damaged_results_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"results.json"):
        Results.load(tmp_path)
    path = tmp_path / "results.json"
    path.write_text("{")
    with pytest.raises(ValueError, match=r"results.json is damaged"):
        Results.load(path)
    path.write_text('{"bleu": 3}')
    with pytest.raises(ValueError, match="expected results of `hf-meanmax evaluate`"):
        Results.load(path)
    path.write_text('{"format_version": 1}')
    with pytest.raises(ValueError, match="'model' is missing"):
        Results.load(path)


def test_table_of_measured_scores(results):
    table = rows_of(markdown_report([results]), "SentEval")
    head = table[0]
    assert head[0] == "encoder"
    assert head[1:10] == [*AVERAGED_TASKS[8], "STS14"]
    assert head[10:] == ["macro/micro, 8 tasks", "macro/micro, 7 tasks", "macro/micro, 6 tasks", "dimension"]
    body = {row[0]: dict(zip(head, row, strict=True)) for row in table[2:]}
    assert list(body) == [
        "**mine**",
        "random encoder",
        "bag",
        "gain over the strongest control",
        "the strongest control",
        "unknown words, %",
    ]
    assert body["**mine**"]["MRPC"] == "100.0/50.0"
    assert body["**mine**"]["STS14"] == "1.000/0.500"
    assert body["**mine**"]["macro/micro, 8 tasks"] == "100.0/100.0"
    assert body["**mine**"]["dimension"] == "2"
    assert body["random encoder"]["MR"] == "70.8 ± 5.9 / 50.0 ± 0.0"
    assert body["bag"]["MR"] == "0.0 / 50.0"
    assert re.fullmatch(r"\+29\.2 \[\+\d+\.\d, \+\d+\.\d\]", body["gain over the strongest control"]["MR"])
    assert body["the strongest control"]["MR"] == "random encoder"
    assert body["the strongest control"]["macro/micro, 8 tasks"] == "random encoder"
    assert body["unknown words, %"]["MR"] == "3.1"
    assert body["unknown words, %"]["CR"] == ""
    own = make_results()
    own.scores["CR"]["details"]["not_converged"] = 3
    row = rows_of(markdown_report([own]), "SentEval")[-1]
    assert (row[0], row[head.index("CR")], row[head.index("MR")]) == ("fits that did not converge", "3", "")


def test_published_rows_have_their_own_table(results):
    text = markdown_report([results])
    table = rows_of(text, "Published, with other training data")
    head = table[0]
    assert head[1:10] == [*AVERAGED_TASKS[8], "STS14"]
    row = next(dict(zip(head, row, strict=True)) for row in table if row[0] == "mean-max AAE")
    assert row["MRPC"] == "75.5/82.6"
    assert row["STS14"] == "0.58/0.56"
    assert row["macro/micro, 7 tasks"] == "86.0/86.0"
    assert row["source"].startswith("Zhang")
    names = [row[0] for row in table]
    assert names.index("random echo state network over GloVe") < names.index("mean-max AAE") < names.index("InferSent")
    assert "mean-max AAE" not in [row[0] for row in rows_of(text, "SentEval")]


def test_tasks_that_nobody_published_stand_apart(results):
    text = markdown_report([results])
    assert "captions" not in rows_of(text, "SentEval")[0]
    assert "captions" not in rows_of(text, "Published, with other")[0]
    table = rows_of(text, "Other tasks")
    assert table[2][:4] == ["captions", "accuracy", "**mine**", "100.0"]
    assert "(random encoder)" in table[2][4]
    assert ["", "", "bag", "0.0", ""] in table
    assert "Cífka" not in text.split("## Other tasks")[1].split("## Published")[0]


def test_report_without_controls_and_of_several_models(tmp_path):
    both = [make_results(), make_results("other", 2, with_controls=False)]
    text = markdown_report(both)
    table = rows_of(text, "SentEval")
    assert [row[0] for row in table if row[0].startswith("**")] == ["**mine**", "**other**"]
    alone = markdown_report(both[1:])
    assert "gain" not in [row[0] for row in rows_of(alone, "SentEval")]
    assert "evaluate.py mine" in text
    assert "lengths-other-2" in text
    assert text.startswith("# Evaluation of mine, other\n")
    assert markdown_report(both * 3).startswith("# Evaluation of 6 encoders\n")
    with pytest.raises(ValueError, match="No results"):
        markdown_report([])
    for index, one in enumerate(both):
        one.save(tmp_path / str(index) / "results.json")
    words = [str(tmp_path / "0"), str(tmp_path / "1" / "results.json"), "--output", str(tmp_path / "both")]
    reproduce.main(["compare-evaluations", *words])
    assert "**other**" in (tmp_path / "both" / "report.md").read_text()
    with pytest.raises(SystemExit, match="evaluations are of mine, mine, and a report needs a different name for each"):
        reproduce.main(
            ["compare-evaluations", str(tmp_path / "0"), str(tmp_path / "0"), "--output", str(tmp_path / "b")]
        )


def test_figures_are_drawn(results, tmp_path):
    pytest.importorskip("matplotlib")
    files = write_report([results, make_results("other", 2)], tmp_path)
    assert [path.name for path in files] == ["report.md", "scores.png", "gains.png"]
    for path in files[1:]:
        assert path.read_bytes().startswith(b"\x89PNG")
    text = files[0].read_text()
    assert "![scores](scores.png)" in text
    assert "![gains](gains.png)" in text


def test_figures_show_the_scores(results):
    pytest.importorskip("matplotlib")
    from hf_meanmax.plots.scores import plot_gains, plot_scores

    figure = plot_scores([vars(results)])
    assert [axis.get_ylabel() for axis in figure.axes] == ["percent", "correlation"]
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels == [*AVERAGED_TASKS[8], "captions"]
    drawn = {container.get_label(): container for container in figure.axes[0].containers}
    assert set(drawn) == {"mine", "random encoder", "bag"}
    assert np.allclose(drawn["mine"].lines[0].get_ydata(), 100)
    assert np.allclose(drawn["bag"].lines[0].get_ydata(), 0)
    gains = plot_gains([vars(results)])
    found = gains.axes[0].containers[0].lines[0].get_xdata()
    assert np.allclose(found, [results.gains[task]["difference"] for task in labels])
    # A gain without an interval has no caps, which would look like an interval of width 0.
    unknown = {**results.gains, labels[0]: {**results.gains[labels[0]], "low": None, "high": None}}
    caps = plot_gains([{**vars(results), "gains": unknown}]).axes[0].containers[0].lines[1]
    for side in caps:
        assert np.isnan(np.array(side.get_xdata(), dtype=float)).tolist() == [task == labels[0] for task in labels]
    # A model that was evaluated without controls has no place there, and the other keeps its colour.
    beside = plot_gains([{**vars(results), "model": {"name": "other"}, "gains": {}}, vars(results)])
    assert [container.get_label() for container in beside.axes[0].containers] == ["mine"]
    assert beside.axes[0].containers[0].lines[0].get_color() == "C1"


def test_without_matplotlib_one_line_says_what_to_install(results, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    files = write_report([results], tmp_path)
    assert [path.name for path in files] == ["report.md"]
    said = 'No figures were drawn. A figure needs matplotlib. In a clone: pip install -c constraints.txt ".[plots]"\n'
    assert capsys.readouterr().err == said
    assert "![" not in files[0].read_text()


def test_results_are_of_one_model():
    tasks = [LengthTask("MR", words(3))]
    evaluation = evaluate([LengthEncoder("a"), LengthEncoder("b", 2)], tasks, show_progress=False)
    with pytest.raises(ValueError, match="the evaluation holds 2"):
        summarize(evaluation)
