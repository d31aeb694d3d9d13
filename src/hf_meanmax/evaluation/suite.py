"""Evaluates several models on a list of tasks, one after the other, and writes the results of each."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hf_meanmax.checkpoint.folder import ONNX_FOLDER
from hf_meanmax.files import replacing_file, run_name, write_json
from hf_meanmax.metrics import format_score, gain_text, kind_name
from hf_meanmax.modeling.suggestions import did_you_mean
from hf_meanmax.plots.correlations import plot_correlations
from hf_meanmax.plots.figures import save_figure

from .controls import CONTROL_KINDS
from .correlations import MIN_MODELS, correlation_matrix
from .domain_alignment import load_domain_alignment_task
from .embedding import Embedder
from .erasure import erase_dimensions, erase_rows
from .paraphrases import load_paraphrase_task
from .report import RESULTS, Results, summarize, write_report
from .runner import evaluate_with_controls
from .senteval import PAPER_TASKS, SENTEVAL_TASKS, available_senteval_tasks, load_senteval_task
from .senteval_files import LabelledSet
from .tasks import Task

if TYPE_CHECKING:
    import torch

INTRINSIC_TASKS = ("paraphrases", "domain-alignment")
GROUPS = ("ten", "senteval", "intrinsic", "all")
DATA_VARIABLE = "HF_MEANMAX_DATA"


def load_tasks(names: str, data: str | os.PathLike[str] | None = None, check_counts: bool = True) -> list[Task]:
    """The tasks of a list of names and groups.

    Args:
        names: comma-separated names of tasks and groups. `ten` are the tasks of Zhang, Wu, Li and Li 2018, `senteval`
            all of SentEval whose files exist, `intrinsic` the paraphrase clusters and the domain alignment of Cifka
            2018, `all` the last two.
        data: the folder with `senteval/`, `paraphrases/` and `domain-alignment/`; by default HF_MEANMAX_DATA.
        check_counts: reject SentEval sets of other than the published sizes.

    Raises:
        FileNotFoundError: the folder, or a file of a task that was named, is missing.
        ValueError: there is no such task; the message has the nearest name.
    """
    known = (*GROUPS, *SENTEVAL_TASKS, *INTRINSIC_TASKS)
    parts = [part.strip() for part in names.split(",") if part.strip()]
    if not parts:
        raise ValueError(f"No task was named; choose among {', '.join(known)}.")
    parts = [_known_name(part, known) for part in parts]
    folder = data_folder(data)
    found = available_senteval_tasks(folder) if {"senteval", "all"} & set(parts) else []
    if not found and {"senteval", "all"} & set(parts):
        raise FileNotFoundError(
            f"{folder} has the files of no SentEval task; expected senteval/downstream/MR/rt-polarity.pos."
        )
    groups = {"ten": PAPER_TASKS, "senteval": found, "intrinsic": INTRINSIC_TASKS, "all": (*found, *INTRINSIC_TASKS)}
    chosen = dict.fromkeys(name for part in parts for name in groups.get(part, [part]))
    return [_load_task(name, folder, check_counts) for name in chosen]


def data_folder(data: str | os.PathLike[str] | None = None) -> Path:
    """The folder of the tasks' files.

    Raises:
        FileNotFoundError: none was named, or there is no such folder.
    """
    value = os.environ.get(DATA_VARIABLE) if data is None else data
    if not value:
        raise FileNotFoundError(
            f"Where are the tasks' files? Give --data FOLDER, or set {DATA_VARIABLE}, to the folder that holds "
            "senteval/ in the official layout."
        )
    folder = Path(value)
    if not folder.is_dir():
        source = "" if data is not None else f" (from {DATA_VARIABLE})"
        raise FileNotFoundError(f"No such folder: {str(folder)!r}{source}; it should hold senteval/.")
    return folder


@dataclass
class SuiteSettings:
    """Settings of [`evaluate_models`].

    Args:
        controls: kinds of controls (default: all); none if empty.
        seeds: seeds of the random controls.
        cache_dir, device, batch_size: as for [`~hf_meanmax.evaluation.runner.evaluate`].
        command: the command line that results.json records.
        erasure: tasks of single sentences with a test set, on which rows and dimensions of the embeddings are erased.
        latent_rows: number of rows in an embedding, for the erasure.
        unit_length: scale all vectors to unit length, including the controls'.
    """

    controls: Sequence[str] | None = None
    seeds: Sequence[int] = (0, 1, 2)
    cache_dir: str | os.PathLike[str] | None = None
    device: torch.device | str | None = None
    batch_size: int = 64
    command: str | None = None
    erasure: Sequence[Task] = ()
    latent_rows: int = 1
    unit_length: bool = False


def evaluate_models(
    models: Sequence[tuple[str, Callable[[], object]]],
    tasks: Sequence[Task],
    output: str | os.PathLike[str],
    settings: SuiteSettings,
) -> list[Results]:
    """Evaluates models one after the other, and writes results.json, report.md and figures.

    Args:
        models: names, and functions that load the encoders, so that only one is in memory at a time.
        tasks: the tasks.
        output: the folder to write to. With several models, each has a subfolder, beside the common report.
        settings: the settings.

    Raises:
        ValueError: an encoder or a task fails; the models before it are written, the tasks before it are in the cache.
    """
    output = Path(output)
    for task in settings.erasure:
        _erasable_sets(task)  # fails before hours of work
    done: list[Results] = []
    for name, load in models:
        encoder = load()
        embedder = Embedder(encoder, name, None, settings.batch_size, unit_length=settings.unit_length)
        device = getattr(encoder, "device", None) if settings.device is None else settings.device
        if settings.erasure:
            train, _ = _erasable_sets(settings.erasure[0])
            dimension = embedder(train.texts[0][:1]).shape[1]
            if dimension % settings.latent_rows:
                raise ValueError(
                    f"--latent_rows is {settings.latent_rows}; the vectors of {name} have {dimension} numbers, not so "
                    "many rows of one length."
                )
        evaluation = evaluate_with_controls(
            embedder,
            tasks,
            settings.seeds,
            settings.controls,
            cache_dir=settings.cache_dir,
            device=device,
        )
        done.append(summarize(evaluation, command=settings.command))
        folder = output if len(models) == 1 else output / name
        done[-1].save(folder / RESULTS)
        write_report(done[-1:], folder)
        if settings.erasure:
            write_erasure(embedder, settings.erasure, settings.latent_rows, folder, device)
        del encoder, embedder
    if len(models) > 1:
        figures = [path.name for path in write_correlations(done, output) if path.suffix == ".png"]
        write_report(done, output, figures)
    return done


def write_erasure(
    embedder: Embedder,
    tasks: Sequence[Task],
    latent_rows: int,
    folder: str | os.PathLike[str],
    device: torch.device | str | None = None,
) -> None:
    """Writes erasure.json: the accuracy of some tasks without each latent row or dimension (Cifka 2018, 5.4.3).

    Raises:
        ValueError: a task is not a classification of single sentences with a test set.
    """
    reports = {}
    for task in tasks:
        train, test = _erasable_sets(task)
        data = (embedder(train.texts[0]), train.labels, embedder(test.texts[0]), test.labels)
        rows = erase_rows(*data, latent_rows, device) if latent_rows > 1 else None
        reports[task.name] = {"dimensions": erase_dimensions(*data, device), "rows": rows}
    write_json(Path(folder) / "erasure.json", reports)


def _erasable_sets(task: Task) -> tuple[LabelledSet, LabelledSet]:
    """The training and the test set of a classification of single sentences."""
    sets = getattr(task, "sets", {})
    if task.main_metric != "accuracy" or "test" not in sets or len(sets["train"].texts) != 1:
        raise ValueError(f"{task.name} cannot be used for erasure; choose among TREC, SST2 and SST5.")
    return sets["train"], sets["test"]


def write_correlations(results: Sequence[Results], folder: str | os.PathLike[str]) -> list[Path]:
    """Writes the correlations of metrics over models (Cifka 2018, section 5.4): correlations.csv and correlations.png.

    Nothing is written for fewer than three models, for which every correlation would be 1 or -1.

    Returns:
        The files; without matplotlib, only the table.
    """
    if len(results) < MIN_MODELS:
        return []
    scores = {
        one.name: {
            f"{task} {metric}": value
            for task, found in one.scores.items()
            for metric, value in found["metrics"].items()
            if metric != "mse" and not metric.startswith("dev_") and not metric.endswith("_weighted")
        }
        for one in results
    }
    names, matrix = correlation_matrix(scores)
    table, figure = (Path(folder) / f"correlations.{suffix}" for suffix in ("csv", "png"))
    with replacing_file(table) as file:
        file.write(",".join(["metric", *names]) + "\n")
        for name, row in zip(names, matrix.tolist(), strict=True):
            file.write(",".join([name, *("" if math.isnan(value) else f"{value:.4f}" for value in row)]) + "\n")
    try:
        save_figure(plot_correlations(names, matrix), figure)
    except ImportError:  # write_report has printed what to install
        return [table]
    return [table, figure]


def summary(results: Results) -> str:
    """The main scores of a model and its gains over the strongest controls, a line each."""
    lines = [results.name]
    for task, scores in results.scores.items():
        metric = results.tasks[task]["main"]
        gain = results.gains.get(task)
        beside = "" if gain is None else f"  {gain_text(gain, metric)} over {kind_name(gain['control'])}"
        lines.append(f"  {task:10} {format_score(scores['metrics'][metric], metric):>6}{beside}")
    return "\n".join(lines)


def model_name(model: str) -> str:
    """A model's name in tables: the last part of its path, or the part before a folder `model`. The names of a folder
    `expanded` and of ONNX exports are those of the checkpoint with a suffix."""
    path = Path(model).resolve() if Path(model).exists() else Path(model)
    if path.suffix == ".onnx":
        return f"{model_name(str(path.parent))}-{path.stem}"
    if path.name == ONNX_FOLDER and path.parent.name:
        return f"{model_name(str(path.parent))}-{ONNX_FOLDER}"
    return f"{path.parent.name}-expanded" if path.name == "expanded" and path.parent.name else run_name(path)


def control_kinds(text: str) -> list[str] | None:
    """The kinds of controls in a comma-separated list; None for all of them.

    Raises:
        ValueError: there is no such kind; the message has the nearest name.
    """
    parts = [part.strip().lower().replace("-", "_") for part in text.split(",") if part.strip()]
    if parts in (["all"], ["none"]):
        return None if parts == ["all"] else []
    if not parts or {"all", "none"} & set(parts):
        raise ValueError(f"`controls` is {text!r}; give all, none, or a list of {', '.join(CONTROL_KINDS)}.")
    return [_known_name(part, CONTROL_KINDS, "control") for part in parts]


def _known_name(name: str, known: Sequence[str], what: str = "task or group") -> str:
    found = {other.lower(): other for other in known}
    if name.lower() in found:
        return found[name.lower()]
    hint = did_you_mean(name, known, cutoff=0.3)
    raise ValueError(f"There is no {what} {name!r}.{hint} Known: {', '.join(known)}.")


def _load_task(name: str, folder: Path, check_counts: bool) -> Task:
    if name == "paraphrases":
        return load_paraphrase_task(folder)
    if name == "domain-alignment":
        return load_domain_alignment_task(folder)
    return load_senteval_task(name, folder, check_counts)
