"""Writes scores: results.json, a Markdown report that includes published scores, and figures."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

import numpy as np

from hf_meanmax.evaluation.markdown import markdown_table, markdown_text
from hf_meanmax.evaluation.published import published_rows
from hf_meanmax.evaluation.runner import MODEL, EncoderRun, Evaluation, TaskRun, json_value, package_versions
from hf_meanmax.evaluation.senteval import AVERAGED_TASKS, averages
from hf_meanmax.evaluation.significance import Gain, average_gain, gain, strongest
from hf_meanmax.files import Json, read_json, replacing_file, write_json
from hf_meanmax.metrics import SENTEVAL, format_score, gain_text, is_percentage, kind_name
from hf_meanmax.plots.figures import save_figure, skip_figures_without_matplotlib
from hf_meanmax.plots.scores import plot_gains, plot_scores

FORMAT_VERSION = 1
RESULTS = "results.json"
REPORT = "report.md"

# The second metric in tables, as in the papers: accuracy/F1, Pearson/Spearman.
_SECOND = {"accuracy": "f1", "pearson": "spearman"}
_CONFIDENCE = 0.95  # of the intervals of gains


@dataclass
class Results:
    """The content of results.json: scores of one model and its controls, as JSON values.

    Args:
        model: `name`, `key` (hash of weights and settings), `dimension`, `sentences_per_second`.
        tasks: by task: `main` (its main metric), `num_test`, `fingerprint`, `unknown_word_rate`.
        scores: the model's scores by task: `metrics`, `details`, `seconds_embedding`, `seconds_scoring`, `versions`.
        averages: the model's `macro_8`, `micro_8` and so on, if all their tasks were run.
        controls: one entry per control: `name`, `kind`, `seed`, `key`, `dimension`, `scores`, `averages`.
        spreads: by kind of control: `tasks` (by task and metric) and `averages`, each with `mean`, `std` over the seeds
            (None for one) and `n`.
        gains: by task, the model's gain over the strongest control: `control` (its kind), `difference`, and `low` and
            `high`, which are None if the test items give no interval.
        average_gains: the same for each average.
        settings: `seeds`, `confidence`, `samples` (of the bootstrap).
        versions: package versions when this was written; each score has the versions that computed it.
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
        write_json(path, self.to_dict(), ensure_ascii=False, allow_nan=False)

    def to_dict(self) -> Json:
        """The content of results.json; NaN and infinite scores become None."""
        text = json.dumps({"format_version": FORMAT_VERSION, **asdict(self)}, default=json_value)
        content: Json = json.loads(text, parse_constant=lambda _: None)
        return content

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
            raise FileNotFoundError(f"No such file: {str(path)!r}; `hf-meanmax evaluate` writes {RESULTS}.")
        content = read_json(path)
        if content.get("format_version") != FORMAT_VERSION:
            raise ValueError(f"{path}: expected results of `hf-meanmax evaluate` in format {FORMAT_VERSION}.")
        try:
            return cls(**{known.name: content[known.name] for known in fields(cls)})
        except KeyError as error:
            raise ValueError(f"{path} is damaged: {error} is missing.") from None


def summarize(evaluation: Evaluation, *, command: str | None = None, samples: int = 2000) -> Results:
    """The results of an evaluation of one model: spreads over seeds, gains over the strongest control, averages.

    Args:
        evaluation: the evaluation of one model, with or without controls.
        command: the command line that made it.
        samples: number of bootstrap samples.

    Raises:
        ValueError: the evaluation holds no model, or several.
    """
    if len(evaluation.models) != 1:
        raise ValueError(f"Results are of one model; the evaluation holds {len(evaluation.models)}.")
    model = evaluation.models[0]
    bootstrap: Json = {"confidence": _CONFIDENCE, "samples": samples}
    controls = [run for run in evaluation.encoders if run.kind != MODEL]
    control_averages = {run.name: averages(run.results) for run in controls}
    gains = {}
    for task, result in model.results.items():
        found = evaluation.control_results(task)
        if found:
            kind = strongest(found)
            gains[task] = _gain(kind, gain(result, found[kind], **bootstrap))
    return Results(
        model=_record(model, "name", "key", "dimension", "sentences_per_second"),
        tasks={name: _task_record(run) for name, run in model.tasks.items()},
        scores=_scores(model),
        averages=averages(model.results),
        controls=[
            _record(run, "name", "kind", "seed", "key", "dimension")
            | {"scores": _scores(run), "averages": control_averages[run.name]}
            for run in controls
        ],
        spreads=_spreads(evaluation, control_averages),
        gains=gains,
        average_gains=_average_gains(evaluation, control_averages, bootstrap),
        settings={"seeds": sorted({run.seed for run in controls if run.seed is not None}), **bootstrap},
        versions=package_versions(),
        command=command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _record(run: object, *names: str) -> Json:
    return {name: getattr(run, name) for name in names}


def _task_record(run: TaskRun) -> Json:
    return _record(run.result, "main", "num_test") | _record(run, "fingerprint", "unknown_word_rate")


def _scores(run: EncoderRun) -> dict[str, Json]:
    timed = ("seconds_embedding", "seconds_scoring", "versions")
    return {
        name: _record(done.result, "metrics", "details") | _record(done, *timed) for name, done in run.tasks.items()
    }


def _spreads(evaluation: Evaluation, control_averages: Mapping[str, Mapping[str, float]]) -> dict[str, Json]:
    """Mean and standard deviation over the seeds of each kind of control, by task and metric, and of the averages."""

    def of_each(seeds: Sequence[Mapping[str, float]]) -> Json:
        names = seeds[0] if seeds else ()
        values = {name: [float(scores[name]) for scores in seeds] for name in names}
        return {
            name: {"mean": fmean(one), "std": float(np.std(one, ddof=1)) if len(one) > 1 else None, "n": len(one)}
            for name, one in values.items()
        }

    return {
        kind: {
            "tasks": {
                task: of_each([run.results[task].metrics for run in runs if task in run.tasks])
                for task in evaluation.models[0].tasks
            },
            "averages": of_each([control_averages[run.name] for run in runs]),
        }
        for kind, runs in evaluation.controls.items()
    }


def _gain(kind: str, found: Gain) -> Json:
    return {"control": kind, **_record(found, "difference", "low", "high")}


def _average_gains(
    evaluation: Evaluation, control_averages: Mapping[str, Mapping[str, float]], bootstrap: Json
) -> dict[str, Json]:
    """The gain in each average over the kind of control with the highest mean of that average."""
    model, controls = evaluation.models[0], evaluation.controls
    gains: dict[str, Json] = {}
    if not controls:
        return gains
    for average in averages(model.results):
        means = {
            kind: fmean(control_averages[run.name][average] for run in runs)
            for kind, runs in controls.items()
            if all(average in control_averages[run.name] for run in runs)
        }
        if not means:
            continue
        kind = max(means, key=lambda kind: means[kind])
        weighting, size = average.split("_")
        tasks = AVERAGED_TASKS[int(size)]
        pairs = [(model.results[task], [run.results[task] for run in controls[kind]]) for task in tasks]
        weights = [model.results[task].num_test for task in tasks] if weighting == "micro" else None
        gains[average] = _gain(kind, average_gain(pairs, weights=weights, **bootstrap))
    return gains


def write_report(results: Sequence[Results], folder: str | os.PathLike[str], figures: Sequence[str] = ()) -> list[Path]:
    """Writes report.md and, where matplotlib is installed, scores.png and gains.png.

    Args:
        results: of one model or of several.
        folder: where to write.
        figures: links to further figures.

    Returns:
        The paths of the files.
    """
    folder = Path(folder)
    drawn: list[Path] = []
    contents = [vars(one) for one in results]
    with skip_figures_without_matplotlib():
        save_figure(plot_scores(contents), folder / "scores.png")
        drawn.append(folder / "scores.png")
        if any(one.gains for one in results):
            save_figure(plot_gains(contents), folder / "gains.png")
            drawn.append(folder / "gains.png")
    with replacing_file(folder / REPORT) as file:
        file.write(markdown_report(results, [*(path.name for path in drawn), *figures]))
    return [folder / REPORT, *drawn]


# The most encoder names in a heading.
_NAMED = 4


def markdown_report(results: Sequence[Results], figures: Sequence[str] = ()) -> str:
    """The report in Markdown: measured scores, published ones in separate tables, and how the scores were made.

    Args:
        results: of one model or of several.
        figures: links to figures.

    Raises:
        ValueError: no results.
    """
    if not results:
        raise ValueError("No results to report.")
    tasks = list(dict.fromkeys(task for one in results for task in one.tasks))
    senteval = [task for task in tasks if task in SENTEVAL]
    others = [task for task in tasks if task not in SENTEVAL]
    names = (
        ", ".join(markdown_text(one.name) for one in results) if len(results) <= _NAMED else f"{len(results)} encoders"
    )
    parts = [f"# Evaluation of {names}"]
    if senteval:
        confidence = " or ".join(sorted({f"{one.settings.get('confidence', 0.95):.0%}" for one in results}))
        parts += ["## SentEval", _SENTEVAL_NOTE.format(confidence=confidence), _measured(results, senteval)]
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


def _averages(sizes: Iterable[int]) -> dict[str, str]:
    """The column headings of averages, by the name of the macro average."""
    return {f"macro_{size}": f"macro/micro, {size} tasks" for size in sizes}


def _measured(results: Sequence[Results], tasks: Sequence[str]) -> str:
    """The table of measured scores: a row for each model, then its controls, gains and unknown words."""
    means = _averages(sorted({int(name.split("_")[1]) for one in results for name in one.averages}, reverse=True))
    rows = [row for one in results for row in _measured_rows(one, [*tasks, *means])]
    return markdown_table(["encoder", *tasks, *means.values(), "dimension"], rows)


def _measured_rows(one: Results, columns: Sequence[str]) -> Iterator[list[str]]:
    names = {column: _metric_names(one, column) for column in columns}

    def cells(by_task: Json, averages: Json) -> list[str]:
        return [
            _cell(averages if column not in one.tasks else by_task.get(column, {}), names[column]) for column in columns
        ]

    yield [
        f"**{markdown_text(one.name)}**",
        *cells({task: scores["metrics"] for task, scores in one.scores.items()}, one.averages),
        _dimension(one.model["dimension"]),
    ]
    for kind, spreads in one.spreads.items():
        dimension = next((control["dimension"] for control in one.controls if control["kind"] == kind), None)
        yield [kind_name(kind), *cells(spreads["tasks"], spreads["averages"]), _dimension(dimension)]
    if one.gains:
        gains = {**one.gains, **one.average_gains}
        yield ["gain over the strongest control", *(gain_text(gains.get(name), names[name][0]) for name in columns), ""]
        kinds = [kind_name(gains.get(column, {}).get("control", "")) for column in columns]
        yield ["the strongest control", *kinds, ""]
    rates = [one.tasks.get(column, {}).get("unknown_word_rate") for column in columns]
    if any(rate is not None for rate in rates):
        yield ["unknown words, %", *("" if rate is None else f"{100 * rate:.1f}" for rate in rates), ""]
    unfinished = [one.scores.get(column, {}).get("details", {}).get("not_converged", 0) for column in columns]
    if any(unfinished):
        yield ["fits that did not converge", *(str(number or "") for number in unfinished), ""]


def _metric_names(one: Results, column: str) -> list[str]:
    """The metrics in a column of [`_measured`], for a task or an average: the main one first."""
    if column.startswith("macro_"):
        return [column, column.replace("macro", "micro")]
    main = one.tasks.get(column, {}).get("main", "")
    return [main, _SECOND[main]] if main in _SECOND else [main]


def _cell(found: Json, names: Sequence[str]) -> str:
    """The named scores that are present, or their means and deviations; empty without the first."""
    if names[0] not in found:
        return ""
    separator = " / " if isinstance(found[names[0]], dict) else "/"
    return separator.join(_shown(found[name], name) for name in names if name in found)


def _shown(value: float | Json | None, metric: str) -> str:
    """A score, or the mean and the standard deviation of several."""
    if isinstance(value, dict):
        mean = _shown(value["mean"], metric)
        return mean if value["std"] is None else f"{mean} \u00b1 {_shown(value['std'], metric)}"
    return "" if value is None else format_score(value, metric)


def _measured_metrics(results: Sequence[Results], tasks: Sequence[str]) -> str:
    """Like [`_measured`], with a row for each metric and encoder, since these tasks have several metrics."""
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
                rows.append([task, metric, f"**{markdown_text(one.name)}**", _shown(value, metric), shown])
                for kind, spreads in one.spreads.items():
                    spread = spreads["tasks"].get(task, {}).get(metric)
                    if spread:
                        rows.append(["", "", kind_name(kind), _shown(spread, metric), ""])
    return markdown_table(header, rows)


def _published(tasks: Sequence[str]) -> str:
    means = _averages((8, 7, 6))
    rows: list[list[str]] = []
    group = ""
    for row in published_rows():
        if not any(task in row.scores for task in tasks):
            continue
        if row.group != group:
            group = row.group
            rows.append([f"*{group}*", *("" for _ in [*tasks, *means]), "", ""])
        cells = [_printed(row.scores.get(task, {})) for task in tasks]
        cells += [_cell(dict(row.averages), [name, name.replace("macro", "micro")]) for name in means]
        rows.append([row.name, *cells, _dimension(row.dimension), row.source])
    return markdown_table(["encoder", *tasks, *means.values(), "dimension", "source"], rows)


def _printed(metrics: Mapping[str, float]) -> str:
    """Published numbers with their original decimals, at least two for a correlation."""
    texts = {metric: format_score(value, metric) for metric, value in metrics.items()}
    return "/".join(text if is_percentage(metric) else text.removesuffix("0") for metric, text in texts.items())


def _published_intrinsic() -> str:
    rows = [
        [
            row.name,
            *(format_score(value, metric) for scores in row.scores.values() for metric, value in scores.items()),
            _dimension(row.dimension),
            row.source,
        ]
        for row in published_rows("intrinsic")
    ]
    first = published_rows("intrinsic")[0]
    columns = [f"{task}: {metric}" for task, scores in first.scores.items() for metric in scores]
    return markdown_table(["encoder", *columns, "dimension", "source"], rows)


def _provenance(results: Sequence[Results]) -> str:
    header = ["encoder", "hash", "dimension", "texts/s", "embedding, s", "scoring, s"]
    rows = []
    for one in results:
        speed = one.model["sentences_per_second"]
        for run in ({**one.model, "scores": one.scores}, *one.controls):
            rows.append(
                [
                    markdown_text(run["name"]),
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
        text = f"{markdown_text(one.name)}: {one.created}; seeds of the controls: {seeds}; {versions}."
        if one.gains:
            text += f" Intervals: {settings['confidence']:.0%}, {settings['samples']:,} bootstrap samples."
        lines.append(text)
        if one.command:
            lines.append(f"```bash\n{one.command}\n```")
    return "\n\n".join(lines)


def _dimension(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
