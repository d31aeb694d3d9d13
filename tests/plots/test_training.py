"""Figures of training runs, read back from the drawn lines."""

import json

import pytest

from hf_meanmax.commands.plot import main
from hf_meanmax.plots.training import plot_training
from hf_meanmax.training.checkpoints import read_metrics


def write_log(folder, records, tail=""):
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records) + tail)
    return folder


def test_a_panel_a_metric_and_a_line_a_run_that_has_it(tmp_path):
    with_teacher = write_log(
        tmp_path / "a",
        [
            {"step": 10, "loss": 3.0, "teacher_loss": 1.0},
            {"step": 20, "loss": 2.0, "teacher_loss": 0.5},
            {"step": 20, "validation_loss": 2.5, "stopped_by": "max_steps"},
        ],
    )
    plain = write_log(tmp_path / "b", [{"step": 10, "loss": 2.5}, {"step": 20, "loss": float("nan")}])
    figure = plot_training({"a": read_metrics(with_teacher), "b": read_metrics(plain)}, ["loss", "teacher_loss"])
    panels = [
        {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()}
        for axes in figure.axes
    ]
    assert panels == [
        {"a": ([10, 20], [3.0, 2.0]), "b": ([10], [2.5])},
        {"a": ([10, 20], [1.0, 0.5])},
    ]
    assert [axes.get_ylabel() for axes in figure.axes] == ["loss", "teacher loss"]


def test_a_line_cut_short_at_the_end_is_left_out_and_one_before_it_is_refused(tmp_path):
    cut = write_log(tmp_path / "cut", [{"step": 1, "loss": 1.0}], tail='{"step": 2, "lo')
    assert read_metrics(cut) == [{"step": 1, "loss": 1.0}]
    (cut / "metrics.jsonl").write_text('{"step"\n{"step": 2, "loss": 1.0}\n')
    with pytest.raises(ValueError, match=r"Line 1 of .* is not JSON"):
        read_metrics(cut)
    for line in ('{"loss": 1.0}', "[1, 2]"):
        (cut / "metrics.jsonl").write_text(f'{{"step": 1, "loss": 1.0}}\n{line}\n')
        with pytest.raises(ValueError, match=r"Line 2 of .* is no record of a step"):
            read_metrics(cut)


def test_what_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="output folder of a run of `hf-meanmax pretrain`"):
        read_metrics(tmp_path)
    with pytest.raises(ValueError, match=r"metric 'bleu'; they have loss\."):
        plot_training({"a": [{"step": 1, "loss": 1.0, "stopped_by": "epochs"}]}, ["bleu"])
    with pytest.raises(ValueError, match="at least one run"):
        plot_training({}, ["loss"])


def test_command_line(tmp_path):
    folder = write_log(tmp_path / "run", [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}])
    main([f"a run={folder}", str(folder), "--metrics", "loss", "--output", str(tmp_path / "out.png")])
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    # Before its first evaluation a run has its loss alone.
    main([str(folder), "--output", str(tmp_path / "loss.png")])
    assert (tmp_path / "loss.png").is_file()
    with pytest.raises(SystemExit, match="different names"):
        main([str(folder), str(folder), "--output", str(tmp_path / "out.png")])
