"""The table, the figures and the legend of a plan's systems."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from hf_meanmax.evaluation.markdown import markdown_table, markdown_text
from hf_meanmax.evaluation.report import RESULTS, Results, write_report
from hf_meanmax.files import Json, replacing_file
from hf_meanmax.metrics import is_percentage
from hf_meanmax.plots.figures import save_figure, skip_figures_without_matplotlib
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
    """Writes table.md, report.md and systems.png of the finished rows; a system with several seeds has the mean and the
    standard deviation of its finished ones."""
    rows = {name: row for name, row in read_rows(output).items() if name in plan.systems}
    for name in [name for name in rows if not (output / folder_name(name) / RESULTS).is_file()]:
        print(f"{output / folder_name(name)} is not there any more; the table has no line of {name!r}.", flush=True)
        del rows[name]
    if not rows:
        return
    groups: dict[str, list[str]] = {}
    for name in rows:
        groups.setdefault(plan.groups[name], []).append(name)
    results = {name: Results.load(output / folder_name(name)) for name in rows}
    shared = Counter(one.name for one in results.values())
    for name, one in results.items():
        if shared[one.name] > 1:
            one.model["name"] = name
    # STSB is left out of the mean: it fits a layer to the vectors.
    tasks = dict.fromkeys(task for row in rows.values() for task in row["scores"])
    sts = [task for task in tasks if task.startswith("STS") and task != "STSB"]
    numbers = {name: _numbers(row, results[name], sts) for name, row in rows.items()}
    columns = list(dict.fromkeys(key for part in zip(*numbers.values(), strict=True) for one in part for key in one))
    lines = []
    for group, names in groups.items():
        is_current = all(is_finished(plan, name, rows[name]) for name in names)
        line = [markdown_text(group if is_current else f"{group} (older settings)")]
        for column in columns:
            found = [part[column] for name in names for part in numbers[name] if column in part]
            line.append(format_mean([value for value, _ in found], found[0][1] if found else 0))
        # Some files, such as word vectors trained in several threads, differ each time they are made.
        files = ["".join(digest[:4] for digest in rows[name].get("prepared", {}).values()) or "?" for name in names]
        is_trained = any("recipe" in plan.systems[name] for name in names)
        lines.append([*line, str(len(names)), ", ".join(dict.fromkeys(files)) if is_trained and plan.prepare else ""])
    header = ["system", *columns, "runs", "prepared files"]
    with replacing_file(output / TABLE) as file:
        file.write(markdown_table(header, lines, "l" + "r" * (len(header) - 1)) + "\n\n" + _LEGEND)
    write_report(list(results.values()), output)
    _draw(rows, groups, results, output)


def _numbers(row: Json, results: Results, sts: Sequence[str]) -> list[dict[str, tuple[float | None, int]]]:
    """The numbers of a system in the table, in parts: by column, the number and its decimals."""
    mains = {task: results.tasks[task]["main"] for task in row["scores"] if task in results.tasks}
    has_all = all(task in row["scores"] for task in sts)
    similarity = statistics.fmean(row["scores"][task]["pearson"] for task in sts) if sts and has_all else None
    reconstruction, training = row.get("reconstruction", {}), row["training"]
    share = reconstruction.get("exact_match")
    return [
        {"dimension": (results.model["dimension"], 0)},
        {task: (row["scores"][task].get(main), 1 if is_percentage(main) else 3) for task, main in mains.items()},
        {key.replace("_", " "): (value, 1) for key, value in row["averages"].items()},
        {f"gain, {key.replace('_', ' ')}": (gain["difference"], 1) for key, gain in results.average_gains.items()},
        {f"mean of {', '.join(sts)}": (similarity, 3)} if len(sts) > 1 else {},
        {"BLEU": (reconstruction.get("bleu"), 1), "word for word": (None if share is None else 100 * share, 1)},
        {"training tokens": (training.get("tokens"), 0), "minutes": (training.get("minutes"), 0)},
        {"CPU minutes": (training.get("cpu_minutes"), 0), "tokens/s": (training.get("tokens_per_second"), 0)},
        {"sentences/s": (row.get("sentences_per_second"), 0)},
    ]


def _draw(rows: Json, groups: Mapping[str, Sequence[str]], results: Mapping[str, Results], output: Path) -> None:
    """Draws the first average that all systems have, with their strongest controls, and BLEU."""
    shared = [
        key for key in next(iter(rows.values()))["averages"] if all(key in row["averages"] for row in rows.values())
    ]
    if not shared:
        return
    average = shared[0]
    scores = {name: row["averages"][average] for name, row in rows.items()}
    known = {name: one.average_gains[average] for name, one in results.items() if average in one.average_gains}
    controls = {name: scores[name] - gain["difference"] for name, gain in known.items()}
    bleu = {name: row["reconstruction"]["bleu"] for name, row in rows.items() if "reconstruction" in row}
    score_of, control_of, bleu_of = (
        {group: [values[name] for name in names if name in values] for group, names in groups.items()}
        for values in (scores, controls, bleu)
    )
    bleu_of = {group: values for group, values in bleu_of.items() if values}
    with skip_figures_without_matplotlib(f"{FIGURE} was not drawn."):
        save_figure(
            plot_systems(score_of, control_of, bleu_of, average.replace("_", " average of ") + " tasks"),
            output / FIGURE,
        )


def format_mean(values: Sequence[float | None], digits: int) -> str:
    """The mean, with the standard deviation of several values; empty without values."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    shown = f"{statistics.fmean(known):,.{digits}f}"
    # Sizes are whole numbers, and the same for all seeds.
    is_size = digits == 0 and len(set(known)) == 1
    return shown if len(known) == 1 or is_size else f"{shown} \u00b1 {statistics.stdev(known):,.{digits}f}"


def read_rows(output: Path) -> Json:
    path = output / ROWS
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged ({error}). Bring it back, or remove it: models and finished tasks are kept."
        ) from error
