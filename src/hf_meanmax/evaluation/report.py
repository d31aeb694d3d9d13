"""Scores as files: results.json, a Markdown report with the published rows beside it, figures."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hf_meanmax.evaluation.markdown import markdown_table
from hf_meanmax.evaluation.published import published_intrinsic_rows, published_rows, published_tasks
from hf_meanmax.evaluation.runner import MODEL, EncoderRun, Evaluation, json_value, package_versions
from hf_meanmax.evaluation.senteval import AVERAGED_TASKS, averages
from hf_meanmax.evaluation.significance import average_gain, gain, spread, strongest
from hf_meanmax.files import Json, replacing_file
from hf_meanmax.metrics import format_score, gain_text, is_percentage, kind_name
from hf_meanmax.plots.figures import save_figure
from hf_meanmax.plots.scores import plot_gains, plot_scores

FORMAT_VERSION = 1
RESULTS = "results.json"
REPORT = "report.md"

# A metric that tables show after the main one, as the papers do: accuracy/F1, Pearson/Spearman.
_SECOND = {"accuracy": "f1", "pearson": "spearman"}


@dataclass
class Results:
    """What results.json holds of one model and its controls. All values are JSON's.

    Args:
        model: `name`, `key` (hash of weights and settings), `dimension`, `sentences_per_second`.
        tasks: by task: `main` (its main metric), `num_test`, `fingerprint`, `unknown_word_rate`.
        scores: the model's, by task: `metrics`, `details`, `seconds_embedding`, `seconds_scoring`, `versions`.
        averages: the model's `macro_8`, `micro_8` and so on, where all their tasks were run.
        controls: one entry a control: `name`, `kind`, `seed`, `key`, `dimension`, `scores`, `averages`.
        spreads: by kind of control: `tasks` (by task and metric) and `averages`, each with `mean`, `std` over the seeds
            (None for one) and `n`.
        gains: by task, the model against the strongest control: `control` (its kind), `difference`, and `low` and
            `high`, which are None where the test items give no interval.
        average_gains: the same by average.
        settings: `seeds`, `confidence`, `samples` of the bootstrap.
        versions: of the packages that wrote this; each score has those that computed it.
        command: the command line, if there was one.
        created: time, ISO 8601.
    """

    model: Json
    tasks: dict[str, Json]
    scores: dict[str, Json]
    averages: dict[str, float] = field(default_factory=dict)
    controls: list[Json] = field(default_factory=list)
    spreads: dict[str, Json] = field(default_factory=dict)
    gains: dict[str, Json] = field(default_factory=dict)
    average_gains: dict[str, Json] = field(default_factory=dict)
    settings: Json = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    command: str | None = None
    created: str = ""

    @property
    def name(self) -> str:
        return self.model["name"]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes results.json, whole or not at all."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing_file(path) as file:
            json.dump(self.to_dict(), file, indent=1, ensure_ascii=False, allow_nan=False)
            file.write("\n")

    def to_dict(self) -> Json:
        """The content of results.json; a score that is no number is None."""
        return _strict({"format_version": FORMAT_VERSION, **asdict(self)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Results:
        """Reads a results.json, or the one in a folder.

        Raises:
            FileNotFoundError: there is none.
            ValueError: it is damaged, or of another version.
        """
        path = Path(path)
        path = path / RESULTS if path.is_dir() else path
        if not path.is_file():
            raise FileNotFoundError(f"No such file: {str(path)!r}; evaluate.py writes {RESULTS}.")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is damaged or cut short: expected JSON ({error}).") from None
        if not isinstance(content, dict) or content.get("format_version") != FORMAT_VERSION:
            raise ValueError(f"{path}: expected results of evaluate.py in format {FORMAT_VERSION}.")
        try:
            return cls(**{known.name: content[known.name] for known in fields(cls)})
        except KeyError as error:
            raise ValueError(f"{path} is damaged: {error} is missing.") from None


def summarize(
    evaluation: Evaluation,
    *,
    command: str | None = None,
    samples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Results:
    """The results of an evaluation of one model: spreads over seeds, gains over the strongest control, averages.

    Args:
        evaluation: of one model, with or without controls.
        command: the command line that made it.
        samples: of the bootstrap.
        confidence: of the intervals.
        seed: of the bootstrap.

    Raises:
        ValueError: the evaluation holds no model, or several.
    """
    if len(evaluation.models) != 1:
        raise ValueError(f"Results are of one model; the evaluation holds {len(evaluation.models)}.")
    model = evaluation.models[0]
    controls = [run for run in evaluation.encoders if run.kind != MODEL]
    control_averages = {run.name: averages(run.results) for run in controls}
    gains = {}
    for task, result in model.results.items():
        found = evaluation.control_results(task)
        if found:
            kind = strongest(found)
            gains[task] = _gain(kind, gain(result, found[kind], samples=samples, confidence=confidence, seed=seed))
    return Results(
        model={
            "name": model.name,
            "key": model.key,
            "dimension": model.dimension,
            "sentences_per_second": model.sentences_per_second,
        },
        tasks={name: _task_record(run) for name, run in model.tasks.items()},
        scores=_scores(model),
        averages=averages(model.results),
        controls=[_control_record(run, control_averages[run.name]) for run in controls],
        spreads=_spreads(evaluation, control_averages),
        gains=gains,
        average_gains=_average_gains(evaluation, control_averages, samples, confidence, seed),
        settings={
            "seeds": sorted({run.seed for run in controls if run.seed is not None}),
            "confidence": confidence,
            "samples": samples,
        },
        versions=package_versions(),
        command=command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _task_record(run: Any) -> Json:
    return {
        "main": run.result.main,
        "num_test": run.result.num_test,
        "fingerprint": run.fingerprint,
        "unknown_word_rate": run.unknown_word_rate,
    }


def _control_record(run: Any, means: dict[str, float]) -> Json:
    record = {name: getattr(run, name) for name in ("name", "kind", "seed", "key", "dimension")}
    return {**record, "scores": _scores(run), "averages": means}


def _spreads(evaluation: Evaluation, control_averages: Json) -> dict[str, Json]:
    """Mean and standard deviation over the seeds of each kind of control, by task and metric, and of the averages."""
    model = evaluation.models[0]
    spreads: dict[str, Json] = {}
    for kind, runs in evaluation.controls.items():
        tasks: dict[str, Json] = {}
        for task in model.tasks:
            results = [run.results[task] for run in runs if task in run.tasks]
            tasks[task] = {
                metric: _spread(spread, [result.metrics[metric] for result in results])
                for metric in (results[0].metrics if results else ())
            }
        means = [control_averages[run.name] for run in runs]
        spreads[kind] = {
            "tasks": tasks,
            "averages": {name: _spread(spread, [mean[name] for mean in means]) for name in means[0]},
        }
    return spreads


def write_report(results: Sequence[Results], folder: str | os.PathLike[str], figures: Sequence[str] = ()) -> list[Path]:
    """Writes report.md and, where matplotlib is installed, scores.png and gains.png.

    Args:
        results: of one model or of several.
        folder: where to write.
        figures: addresses of further figures to show.

    Returns:
        The files.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    drawn: list[Path] = []
    try:
        save_figure(plot_scores(results), folder / "scores.png")
        drawn.append(folder / "scores.png")
        if any(one.gains for one in results):
            save_figure(plot_gains(results), folder / "gains.png")
            drawn.append(folder / "gains.png")
    except ImportError as error:
        print(f"No figures were drawn. {error}", file=sys.stderr)
    with replacing_file(folder / REPORT) as file:
        file.write(markdown_report(results, [*(path.name for path in drawn), *figures]))
    return [folder / REPORT, *drawn]


# So many encoders' names fit into a heading.
_NAMED = 4


def markdown_report(results: Sequence[Results], figures: Sequence[str] = ()) -> str:
    """The report: measured scores; in tables of their own what others published; how the scores were made.

    Args:
        results: of one model or of several.
        figures: addresses of figures to show.

    Raises:
        ValueError: no results.
    """
    if not results:
        raise ValueError("No results to report.")
    known = published_tasks()
    tasks = list(dict.fromkeys(task for one in results for task in one.tasks))
    senteval = [task for task in tasks if task in known]
    others = [task for task in tasks if task not in known]
    names = ", ".join(one.name for one in results) if len(results) <= _NAMED else f"{len(results)} encoders"
    parts = [f"# Evaluation of {names}"]
    if senteval:
        parts += ["## SentEval", _SENTEVAL_NOTE.format(confidence=_confidence(results)), _measured(results, senteval)]
    if others:
        parts += ["## Other tasks", _OTHER_NOTE, _measured_metrics(results, others)]
    parts += [f"![{Path(figure).stem}]({figure})" for figure in figures]
    if senteval:
        parts += ["## Published, with other training data and other word vectors", _published(senteval)]
    if any(word in task.lower() for task in others for word in ("paraphrase", "alignment")):
        parts += ["## Published intrinsic scores, on other sets", _INTRINSIC_NOTE, _published_intrinsic()]
    parts += ["## How these figures were made", _provenance(results)]
    return "\n\n".join(parts) + "\n"


_SENTEVAL_NOTE = (
    "Accuracies in percent (MRPC: accuracy/F1), correlations as Pearson/Spearman. Controls have the model's own word "
    "vectors; mean \u00b1 standard deviation over their seeds. The gain is the model's over the control that is "
    "strongest on that task, with its {confidence} interval (bootstrap)."
)
_OTHER_NOTE = "On sets of this package's own choice, for which nobody has published scores."
_INTRINSIC_NOTE = (
    "From HyTER, COCO and pairs of headlines and compressions. The tasks above use other sets and are not comparable "
    "with these numbers; only orders of encoders are."
)


def _measured(results: Sequence[Results], tasks: Sequence[str]) -> str:
    """One row an encoder: each model, then its controls, gains and unknown words."""
    sizes = _average_sizes(results)
    header = ["encoder", *tasks, *(f"macro/micro, {size} tasks" for size in sizes), "dimension"]
    rows: list[list[str]] = []
    for one in results:
        rows.append(
            [
                f"**{one.name}**",
                *(_model_cell(one, task) for task in tasks),
                *(_average_cell(one.averages, size) for size in sizes),
                _dimension(one.model["dimension"]),
            ]
        )
        for kind, spreads in one.spreads.items():
            means = spreads["averages"]
            rows.append(
                [
                    kind_name(kind),
                    *(_spread_cell(one, spreads["tasks"].get(task, {}), task) for task in tasks),
                    *(_average_spread_cell(means, size) for size in sizes),
                    _dimension(next((c["dimension"] for c in one.controls if c["kind"] == kind), None)),
                ]
            )
        if one.gains:
            rows.append(
                [
                    "gain over the strongest control",
                    *(gain_text(one.gains.get(task), _main(one, task)) for task in tasks),
                    *(_average_gain_text(one.average_gains, size) for size in sizes),
                    "",
                ]
            )
            rows.append(
                [
                    "the strongest control",
                    *(kind_name(one.gains.get(task, {}).get("control", "")) for task in tasks),
                    *(_strongest_cell(one.average_gains, size) for size in sizes),
                    "",
                ]
            )
        if any(_unknown(one, task) for task in tasks):
            rows.append(["unknown words, %", *(_unknown(one, task) for task in tasks), *("" for _ in sizes), ""])
    return markdown_table(header, rows)


def _measured_metrics(results: Sequence[Results], tasks: Sequence[str]) -> str:
    """Like [`_measured`], with a row for each metric of a task: these tasks have several, and encoders are few."""
    header = ["task", "metric", "encoder", "score", "gain over the strongest control"]
    rows = []
    for task in tasks:
        for one in results:
            if task not in one.scores:
                continue
            for metric, value in one.scores[task]["metrics"].items():
                if metric.startswith("dev_"):
                    continue
                gain = one.gains.get(task) if metric == one.tasks[task]["main"] else None
                shown = f"{gain_text(gain, metric)} ({kind_name(gain['control'])})" if gain else ""
                rows.append([task, metric, f"**{one.name}**", _shown(value, metric), shown])
                for kind, spreads in one.spreads.items():
                    spread = spreads["tasks"].get(task, {}).get(metric)
                    if spread:
                        rows.append(["", "", kind_name(kind), _shown_spread(spread, metric), ""])
    return markdown_table(header, rows)


def _published(tasks: Sequence[str]) -> str:
    sizes = (8, 7, 6)
    header = ["encoder", *tasks, *(f"macro/micro, {size} tasks" for size in sizes), "dimension", "source"]
    rows = []
    group = ""
    for row in sorted(published_rows(), key=lambda row: _GROUPS.index(row.group)):
        if not any(task in row.scores for task in tasks):
            continue
        if row.group != group:
            group = row.group
            rows.append([f"*{group}*", *("" for _ in header[1:])])
        cells = [_printed(row.scores.get(task, {})) for task in tasks]
        means = [_average_cell(row.averages, size) for size in sizes]
        rows.append([row.name, *cells, *means, _dimension(row.dimension), row.source])
    return markdown_table(header, rows)


_GROUPS = list(dict.fromkeys(row.group for row in published_rows()))


def _published_intrinsic() -> str:
    rows = published_intrinsic_rows()
    columns = [(task, metric) for task, metrics in rows[0].scores.items() for metric in metrics]
    header = ["encoder", *(f"{task}: {metric}" for task, metric in columns), "dimension", "source"]
    return markdown_table(
        header,
        [
            [
                row.name,
                *(
                    f"{row.scores[task][metric]:.3f}" if metric == "inverse DB" else f"{row.scores[task][metric]:.1f}"
                    for task, metric in columns
                ),
                _dimension(row.dimension),
                row.source,
            ]
            for row in rows
        ],
    )


def _provenance(results: Sequence[Results]) -> str:
    header = ["encoder", "hash", "dimension", "texts/s", "embedding, s", "scoring, s"]
    rows = []
    for one in results:
        speed = one.model["sentences_per_second"]
        for run in ({**one.model, "scores": one.scores}, *one.controls):
            rows.append(
                [
                    run["name"],
                    f"`{run['key']}`" if run["key"] else "none",
                    _dimension(run["dimension"]),
                    f"{speed:,.0f}" if run["name"] == one.name and speed else "",
                    f"{sum(score['seconds_embedding'] for score in run['scores'].values()):,.0f}",
                    f"{sum(score['seconds_scoring'] for score in run['scores'].values()):,.0f}",
                ]
            )
    lines = [markdown_table(header, rows)]
    for one in results:
        settings = one.settings
        seeds = ", ".join(map(str, settings.get("seeds", ()))) or "none"
        versions = ", ".join(f"{name} {number}" for name, number in one.versions.items())
        text = f"{one.name}: {one.created}; seeds of the controls: {seeds}; {versions}."
        if one.gains:
            text += f" Intervals: {settings['confidence']:.0%}, {settings['samples']:,} bootstrap samples."
        lines.append(text)
        if one.command:
            lines.append(f"```bash\n{one.command}\n```")
    return "\n\n".join(lines)


def _scores(run: EncoderRun) -> dict[str, Json]:
    return {
        name: {
            "metrics": done.result.metrics,
            "details": done.result.details,
            "seconds_embedding": done.seconds_embedding,
            "seconds_scoring": done.seconds_scoring,
            "versions": done.versions,
        }
        for name, done in run.tasks.items()
    }


def _spread(spread: Any, values: list[float]) -> Json:
    mean, std, n = spread(values)
    return {"mean": mean, "std": std, "n": n}


def _gain(kind: str, found: Any) -> Json:
    return {"control": kind, "difference": found.difference, "low": found.low, "high": found.high}


def _average_gains(
    evaluation: Evaluation,
    control_averages: Mapping[str, Mapping[str, float]],
    samples: int,
    confidence: float,
    seed: int,
) -> dict[str, Json]:
    """The gain in each average over the kind of control whose mean of that average is highest."""
    model = evaluation.models[0]
    gains = {}
    for size, tasks in AVERAGED_TASKS.items():
        if not all(task in model.tasks for task in tasks) or not evaluation.controls:
            continue
        pairs = {
            kind: [(model.results[task], [run.results[task] for run in runs]) for task in tasks]
            for kind, runs in evaluation.controls.items()
        }
        for name in ("macro", "micro"):
            average = f"{name}_{size}"
            means = {
                kind: sum(control_averages[run.name][average] for run in runs) / len(runs)
                for kind, runs in evaluation.controls.items()
            }
            kind = max(means, key=lambda kind: means[kind])
            weights = [model.results[task].num_test for task in tasks] if name == "micro" else None
            found = average_gain(pairs[kind], samples=samples, confidence=confidence, seed=seed, weights=weights)
            gains[average] = _gain(kind, found)
    return gains


def _strict(value: Any) -> Any:
    """Without NaN and infinity, which JSON lacks, and without numpy's types."""
    if isinstance(value, Mapping):
        return {str(name): _strict(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (str, bool, int)):
        return value
    return _strict(json_value(value))


def _main(one: Results, task: str) -> str:
    return one.tasks.get(task, {}).get("main", "")


def _shown(value: float | None, metric: str) -> str:
    return "" if value is None else format_score(value, metric)


def _shown_spread(spread: Mapping[str, Any], metric: str) -> str:
    shown = _shown(spread["mean"], metric)
    return shown if spread["std"] is None else f"{shown} \u00b1 {format_score(spread['std'], metric)}"


def _pair(metrics: Mapping[str, float], main: str) -> str:
    if main not in metrics:
        return ""
    second = _SECOND.get(main, "")
    shown = _shown(metrics[main], main)
    return f"{shown}/{_shown(metrics[second], second)}" if second in metrics else shown


def _printed(metrics: Mapping[str, float]) -> str:
    """Published numbers with the decimals that they were printed with, two at least for a correlation."""
    shown = []
    for metric, value in metrics.items():
        text = format_score(value, metric)
        shown.append(text if is_percentage(metric) else text.removesuffix("0"))
    return "/".join(shown)


def _model_cell(one: Results, task: str) -> str:
    return _pair(one.scores[task]["metrics"], _main(one, task)) if task in one.scores else ""


def _spread_cell(one: Results, spreads: Mapping[str, Any], task: str) -> str:
    main = _main(one, task)
    if main not in spreads:
        return ""
    second = _SECOND.get(main, "")
    shown = _shown_spread(spreads[main], main)
    return f"{shown} / {_shown_spread(spreads[second], second)}" if second in spreads else shown


def _average_sizes(results: Sequence[Results]) -> list[int]:
    names = {name for one in results for name in one.averages}
    return sorted({int(name.split("_")[1]) for name in names}, reverse=True)


def _average_cell(averages: Mapping[str, float], size: int) -> str:
    found = [averages.get(f"{kind}_{size}") for kind in ("macro", "micro")]
    if found[0] is None:
        return ""
    return "/".join(f"{value:.1f}" for value in found if value is not None)


def _average_spread_cell(averages: Mapping[str, Any], size: int) -> str:
    found = [averages[name] for name in (f"macro_{size}", f"micro_{size}") if name in averages]
    return " / ".join(_shown_spread(spread, "accuracy") for spread in found)


def _average_gain_text(gains: Mapping[str, Any], size: int) -> str:
    return gain_text(gains.get(f"macro_{size}"), "accuracy")


def _strongest_cell(gains: Mapping[str, Any], size: int) -> str:
    return kind_name(gains.get(f"macro_{size}", {}).get("control", ""))


def _unknown(one: Results, task: str) -> str:
    rate = one.tasks.get(task, {}).get("unknown_word_rate")
    return "" if rate is None else f"{100 * rate:.1f}"


def _dimension(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _confidence(results: Sequence[Results]) -> str:
    return " or ".join(sorted({f"{one.settings.get('confidence', 0.95):.0%}" for one in results}))
