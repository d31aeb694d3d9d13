"""The table, the figures and the legend of a plan's systems."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_meanmax.evaluation.markdown import markdown_table, markdown_text
from hf_meanmax.evaluation.report import RESULTS, Results, write_report
from hf_meanmax.files import Json, replacing_file
from hf_meanmax.metrics import is_percentage
from hf_meanmax.plots.figures import save_figure
from hf_meanmax.plots.systems import plot_systems

from .plan import FIGURE, ROWS, TABLE, Plan, folder_name, is_finished

_LEGEND = """\
`macro N`, `micro N`: mean accuracy of the eight classification tasks, of seven (no MRPC) or six (no SST2, no SICK-E
either), of tasks alike and of test items alike. `gain`: over the strongest control on the same word vectors; report.md
has all controls. `word for word`: percent of the held-out sentences that were decoded exactly. After \u00b1: the
standard deviation over as many seeds as `runs`. `tokens/s`: of the training by the clock; `sentences/s`: encoded.
`prepared files`: first digits of the hash of what was prepared, `?` where it was not noted; rows that share it share
their word vectors and controls.
"""


def write_tables(plan: Plan, output: Path) -> None:
    """Writes table.md, report.md and systems.png of the finished rows; of a system with several seeds, the mean and
    the standard deviation of those that are finished."""
    rows = {name: row for name, row in read_rows(output).items() if name in plan.systems}
    for name in [name for name in rows if not (output / folder_name(name) / RESULTS).is_file()]:
        print(f"{output / folder_name(name)} is not there any more; the table has no line of {name!r}.", flush=True)
        del rows[name]
    if not rows:
        return
    groups: dict[str, list[str]] = {}
    for name in rows:
        groups.setdefault(plan.groups.get(name, name), []).append(name)
    tasks = list(dict.fromkeys(task for row in rows.values() for task in row["scores"]))
    averages = list(dict.fromkeys(name for row in rows.values() for name in row["averages"]))
    # STSB trains on the vectors.
    sts = [task for task in tasks if task.startswith("STS") and task != "STSB"]
    results = {name: Results.load(output / folder_name(name)) for name in rows}
    gains = list(dict.fromkeys(name for one in results.values() for name in one.average_gains))
    header = ["system", "dimension", *tasks, *(name.replace("_", " ") for name in averages)]
    header += [f"gain, {name.replace('_', ' ')}" for name in gains]
    if len(sts) > 1:
        header.append(f"mean of {', '.join(sts)}")
    header += ["BLEU", "word for word"]
    header += ["training tokens", "minutes", "CPU minutes", "tokens/s", "sentences/s", "runs", "prepared files"]
    lines = []
    for group, names in groups.items():
        is_current = all(is_finished(plan, name, rows[name]) for name in names)
        line = [markdown_text(group if is_current else f"{group} (older settings)")]
        line.append(format_mean([results[name].model["dimension"] for name in names], 0))
        for task in tasks:
            mains = {results[name].tasks[task]["main"] for name in names if task in results[name].tasks}
            values = [rows[name]["scores"].get(task, {}).get(main) for name in names for main in mains]
            line.append(format_mean(values, 1 if all(map(is_percentage, mains)) else 3))
        line += [format_mean([rows[name]["averages"].get(key) for name in names], 1) for key in averages]
        line += [
            format_mean([results[name].average_gains.get(key, {}).get("difference") for name in names], 1)
            for key in gains
        ]
        if len(sts) > 1:
            line.append(format_mean([_mean_of(rows[name]["scores"], sts) for name in names], 3))
        said = [rows[name].get("reconstruction", {}) for name in names]
        line += [
            format_mean([one.get("bleu") for one in said], 1),
            format_mean([one.get("exact_match") for one in said], 1, 100),
        ]
        training = [rows[name]["training"] for name in names]
        columns = ("tokens", "minutes", "cpu_minutes", "tokens_per_second")
        line += [format_mean([one.get(key) for one in training], 0) for key in columns]
        line.append(format_mean([rows[name].get("sentences_per_second") for name in names], 0))
        # Some, such as word vectors of several threads, come out otherwise each time that they are made.
        files = ["".join(digest[:4] for digest in rows[name].get("prepared", {}).values()) or "?" for name in names]
        is_trained = any("recipe" in plan.systems[name] for name in names)
        lines.append([*line, str(len(names)), ", ".join(dict.fromkeys(files)) if is_trained and plan.prepare else ""])
    with replacing_file(output / TABLE) as file:
        file.write(markdown_table(header, lines, "l" + "r" * (len(header) - 1)) + "\n\n" + _LEGEND)
    write_report(list(results.values()), output)
    _draw(rows, groups, results, output)


def _draw(
    rows: Mapping[str, Any], groups: Mapping[str, Sequence[str]], results: Mapping[str, Results], output: Path
) -> None:
    """The first average that all systems have beside their strongest controls, and BLEU."""
    shared = [
        key for key in next(iter(rows.values()))["averages"] if all(key in row["averages"] for row in rows.values())
    ]
    if not shared:
        return
    average = shared[0]
    scores = {group: [rows[name]["averages"][average] for name in names] for group, names in groups.items()}
    gains = {
        name: one.average_gains[average]["difference"] for name, one in results.items() if average in one.average_gains
    }
    controls = {
        group: [rows[name]["averages"][average] - gains[name] for name in names if name in gains]
        for group, names in groups.items()
    }
    said = {
        group: [rows[name]["reconstruction"]["bleu"] for name in names if "reconstruction" in rows[name]]
        for group, names in groups.items()
    }
    said = {group: values for group, values in said.items() if values}
    try:
        figure = plot_systems(scores, controls, said, average.replace("_", " average of ") + " tasks")
    except ImportError as error:
        print(f"No figure: {error}", flush=True)
        return
    save_figure(figure, output / FIGURE)


def _mean_of(scores: Mapping[str, Mapping[str, float]], tasks: Sequence[str]) -> float | None:
    found = [scores[task]["pearson"] for task in tasks if task in scores]
    return statistics.fmean(found) if found else None


def format_mean(values: Sequence[float | None], digits: int, scale: float = 1) -> str:
    """The mean, and the standard deviation of several; empty where nothing is known."""
    known = [scale * value for value in values if value is not None]
    if not known:
        return ""
    shown = f"{statistics.fmean(known):,.{digits}f}"
    return shown if len(known) == 1 else f"{shown} \u00b1 {statistics.stdev(known):,.{digits}f}"


def read_rows(output: Path) -> Json:
    path = output / ROWS
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged ({error}). Bring it back, or remove it: models and finished tasks are kept."
        ) from error
