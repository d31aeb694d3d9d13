"""A list of systems, trained one after the other, evaluated alike, and put into one table.

    hf-meanmax reproduce books.yaml --data data --output results/books

The list is YAML; `{data}` and `{output}` stand for folders in every text, and so does `{run}`, the system's own folder,
but for `prepare` and `cards`:

    prepare:  # commands, each run once, before all systems
      - command: "hf-meanmax vectors {data}/books/*.txt --output {output}/vectors.safetensors"
        makes: "{output}/vectors.safetensors"
    common: {corpus: "{data}/books/*.txt", max_training_tokens: 10000000}
    systems:
      mean-max AAE: {recipe: mean-max-aae-small}  # and settings of `pretrain`, which win over `common`
      mean AAE: {recipe: mean-max-aae-small, pooling: mean, seeds: [0, 1, 2]}  # three runs, one line of the table
      TSDAE: {command: "python tsdae.py {run}/model", model: "{run}/model"}  # anything that makes an encoder
      MiniLM: {model: sentence-transformers/all-MiniLM-L6-v2, controls: none}  # or is one; with other controls
    evaluate: {tasks: ten, controls: all, seeds: 3, expand: "{output}/vectors.safetensors"}
    reconstruct: {source: "{data}/books/test.txt", limit: 2000}
    cards: {folder: model_cards, owner: me, data: "Fiction.", limits: "Old words."}  # a model card of each

A system that is finished is not run again, one that was interrupted goes on; one that fails is told at the end, after
the others. Several processes may work on one list: each leaves out what another is at.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from hf_meanmax.checkpoint.folder import check_checkpoint, is_own_checkpoint, saved_training_args
from hf_meanmax.checkpoint.hub import write_model_card
from hf_meanmax.data import open_corpus
from hf_meanmax.evaluation.markdown import markdown_table, markdown_text
from hf_meanmax.evaluation.reconstruction import ReconstructionSettings, score_checkpoint
from hf_meanmax.evaluation.report import RESULTS, Results, write_report
from hf_meanmax.evaluation.runner import package_versions
from hf_meanmax.evaluation.suite import control_kinds, load_tasks
from hf_meanmax.files import replacing_file
from hf_meanmax.metrics import is_percentage
from hf_meanmax.plots.figures import save_figure
from hf_meanmax.plots.systems import plot_systems
from hf_meanmax.training.checkpoints import CHECKPOINTS, METRICS_FILE, Checkpoints

# The command line in a process of its own, in this environment.
COMMAND = (sys.executable, "-m", "hf_meanmax.commands")
ROWS, TABLE, FIGURE, RUNS, SYSTEM, EXPANDED = "rows.json", "table.md", "systems.png", "runs", "system.json", "expanded"
PREPARED = "prepared.json"
_PARTS = {"prepare": list, "common": dict, "systems": dict, "evaluate": dict, "reconstruct": dict, "cards": dict}
_CARDS = {"folder", "owner", "prefix", "data", "limits", "language", "license"}
_EVALUATE = {"tasks": "ten", "controls": "all", "seeds": 3, "any_size": False, "expand": ""}


_LEGEND = """\
`macro N`, `micro N`: mean accuracy of the eight classification tasks, of seven (no MRPC) or six (no SST2, no SICK-E
either), of tasks alike and of test items alike. `gain`: over the strongest control on the same word vectors; report.md
has all controls. `word for word`: percent of the held-out sentences that were decoded exactly. After \u00b1: the
standard deviation over as many seeds as `runs`. `tokens/s`: of the training by the clock; `sentences/s`: encoded.
`prepared files`: first digits of the hash of what was prepared, `?` where it was not noted; rows that share it share
their word vectors and controls.
"""


@dataclass
class Plan:
    """What is to be trained and evaluated.

    Attributes:
        systems: by name, settings of pretraining with `recipe`, or `command` and `model`; one with several `seeds` is
            a system for each. Any may have `controls` of its own.
        groups: by system, the name that it has in the table, as the mean with the others of that name.
        common: settings of every pretraining.
        prepare: `command` and `makes` of what all systems need.
        evaluate: `tasks`, `controls`, `seeds` and `any_size` as for `evaluate.py`; and `expand`, a file of word vectors
            whose words the models with frozen word vectors are given first.
        reconstruct: arguments of [`score_checkpoint`]; none, and nothing is decoded.
        cards: the `folder` of the model cards of what is trained here, of several seeds the first; the `owner` of
            their repositories on the Hub (without one, usage names the folders of the runs); a `prefix` of their
            names; and what [`~hf_meanmax.checkpoint.hub.write_model_card`] takes, of which `data` and `limits`
            are for systems without a `corpus` of their own. None, and no card is written.
        written: by system, what its row depends on as the plan has it: a row stays finished wherever the folders lie.
    """

    systems: dict[str, dict[str, Any]]
    common: dict[str, Any] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)
    prepare: list[dict[str, str]] = field(default_factory=list)
    evaluate: dict[str, Any] = field(default_factory=lambda: dict(_EVALUATE))
    reconstruct: dict[str, Any] = field(default_factory=dict)
    cards: dict[str, str] = field(default_factory=dict)
    written: dict[str, dict[str, Any]] = field(default_factory=dict)


def read_plan(path: str | Path, data: str | Path, output: str | Path) -> Plan:
    """Reads a plan and puts in the folders.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no plan: an unknown part, no system, a system that is neither trained nor named, or `seeds`
            of one that is not trained here.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"No such file: {str(path)!r}.")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(content, dict) or not content.get("systems"):
        raise ValueError(f"{path}: expected `systems:` with one system or more.")
    for name in content:
        if name not in _PARTS:
            near = difflib.get_close_matches(str(name), _PARTS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{path}: unknown part {name!r}.{hint} Known: {', '.join(sorted(_PARTS))}.")
    folders = {"{data}": str(Path(data)), "{output}": str(Path(output))}
    # A part may be named and left empty.
    as_written = {name: part for name, part in content.items() if part is not None}
    for name, part in as_written.items():
        if not isinstance(part, _PARTS[name]):
            shape = "`- ` items" if _PARTS[name] is list else "`name: value` lines"
            raise ValueError(f"{path}: `{name}` is {part!r}; it takes {shape}, see hf_meanmax.reproduce.run.")
    content = _put_in(as_written, folders)
    reconstruct = {"source", *(setting.name for setting in fields(ReconstructionSettings))}
    known = {"evaluate": set(_EVALUATE), "reconstruct": reconstruct, "cards": _CARDS}
    for part, names in known.items():
        for name in content.get(part, {}):
            if name not in names:
                raise ValueError(f"{path}: unknown setting {name!r} of `{part}`. Known: {', '.join(sorted(names))}.")
    for step in content.get("prepare", []):
        if not isinstance(step, dict) or set(step) != {"command", "makes"}:
            raise ValueError(f"{path}: a step of `prepare` has `command` and `makes`, not {step!r}.")
    if content.get("reconstruct") and "source" not in content["reconstruct"]:
        raise ValueError(f"{path}: `reconstruct` needs `source`, the texts to say again.")
    if content.get("cards") and "folder" not in content["cards"]:
        raise ValueError(f"{path}: `cards` needs `folder`, where to write them.")
    content["evaluate"] = {**_EVALUATE, **content.get("evaluate", {})}
    for name, default in _EVALUATE.items():
        if type(content["evaluate"][name]) is not type(default):
            example = "MR,CR" if name == "tasks" else repr(default)
            raise ValueError(
                f"{path}: `{name}` of `evaluate` is {content['evaluate'][name]!r}; give one like {example}."
            )
    systems: dict[str, dict[str, Any]] = {}
    groups, written = {}, {}
    parts = {"prepare": as_written.get("prepare", []), "reconstruct": as_written.get("reconstruct", {})}
    parts["evaluate"] = {**_EVALUATE, **as_written.get("evaluate", {})}
    for name, system in content["systems"].items():
        if not isinstance(system, dict) or ("recipe" in system) == ("model" in system):
            raise ValueError(f"{path}: the system {name!r} needs either `recipe` or `model` (and perhaps `command`).")
        if not isinstance(system.get("controls", ""), str):
            raise ValueError(
                f"{path}: `controls` of the system {name!r} is {system['controls']!r}; give one like 'bag,majority'."
            )
        for one, settings in _with_seeds(str(name), system, path).items():
            systems[one] = _put_in(settings, {"{run}": str(Path(output) / RUNS / folder_name(one))})
            groups[one] = str(name)
        common = as_written.get("common", {}) if "recipe" in system else {}
        for one, settings in _with_seeds(str(name), as_written["systems"][name], path).items():
            written[one] = {"system": {**common, **settings}, **parts}
    places = [folder_name(name) for name in systems]
    for name in systems:
        if places.count(folder_name(name)) > 1:
            raise ValueError(f"{path}: the system {name!r} would share its folder with another; rename it.")
    return Plan(**{**content, "systems": systems, "groups": groups, "written": written})


def _with_seeds(name: str, system: Mapping[str, Any], path: Path) -> dict[str, dict[str, Any]]:
    """The system, or one for each of its `seeds`."""
    settings = {key: value for key, value in system.items() if key != "seeds"}
    seeds = system.get("seeds")
    if seeds is None:
        return {name: settings}
    is_list = isinstance(seeds, list) and seeds and all(isinstance(seed, int) for seed in seeds)
    if "recipe" not in system or not is_list or len(set(seeds)) < len(seeds):
        raise ValueError(
            f"{path}: `seeds` of the system {name!r} is {seeds!r}; a `recipe` takes a list of different numbers."
        )
    return {f"{name}, seed {seed}": {**settings, "seed": seed} for seed in seeds}


def folder_name(name: str) -> str:
    """A system's name as that of a folder."""
    return "-".join("".join(letter if letter.isalnum() else " " for letter in name.lower()).split())


def reproduce(plan: Plan, data: str | Path, output: str | Path, only: Sequence[str] = ()) -> dict[str, str]:
    """Trains and evaluates the systems that are not finished, and writes the table after each.

    Args:
        plan: what to do.
        data: the folder with `senteval/`.
        output: where to write: a row a system in rows.json, table.md, systems.png (with matplotlib), report.md with
            all controls and the published rows, and each system's results.json and metrics.jsonl; runs and checkpoints
            are in its sub-folder `runs`.
        only: names of systems, with or without their seed; by default all.

    Returns:
        What went wrong, by the name of the system.

    Raises:
        FileNotFoundError: the data of a task, or the texts of `reconstruct`, are missing.
        ValueError: an unknown name in `only`, an unknown task or control, a preparation that did not make what it
            should, or one whose file another command made.
        ChildProcessError: a preparation failed.
    """
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    names = {name: plan.groups.get(name, name) for name in plan.systems}
    for name in only:
        if name not in names and name not in names.values():
            raise ValueError(f"There is no system {name!r}; choose among {', '.join(names)}.")
    chosen = [name for name, group in names.items() if not only or name in only or group in only]
    (output / RUNS).mkdir(exist_ok=True)
    results = FileLock(output / RUNS / "results.lock")
    finished = _read_rows(output)
    todo = [name for name in chosen if not _is_finished(plan, name, finished.get(name, {}))]
    if todo:
        _check_evaluation(plan, todo, data)
        with FileLock(output / RUNS / "prepare.lock"):
            _prepare(plan, output)
        source = plan.reconstruct.get("source")
        if source and "{run}" not in str(source):
            # Missing texts are told before the training, not after it.
            next(iter(open_corpus(source)), None)
    failures = {}
    for name in chosen:
        try:
            with FileLock(output / RUNS / f"{folder_name(name)}.lock", timeout=0):
                row = _read_rows(output).get(name, {})
                if _is_finished(plan, name, row):
                    _write_card(plan, name, output, anew=False)
                    continue
                row = {"plan": plan.written[name], **_make_row(plan, name, Path(data), output)}
                with results:
                    rows = {**_read_rows(output), name: row}
                    # Those of systems that the plan no longer has come last.
                    order = dict.fromkeys(known for known in (*plan.systems, *rows) if known in rows)
                    with replacing_file(output / ROWS) as file:
                        json.dump({known: rows[known] for known in order}, file, indent=1)
                    write_tables(plan, output)
                _write_card(plan, name, output, anew=True)
        except Timeout:
            print(f"Another process is at {name!r}; it is left out here.", flush=True)
        # A RuntimeError is torch's, such as too little memory for decoding.
        except (OSError, ValueError, ImportError, RuntimeError) as error:
            failures[name] = str(error)
    with results:
        write_tables(plan, output)
    return failures


def _check_evaluation(plan: Plan, names: Sequence[str], data: str | Path) -> None:
    """Has what would end an evaluation, hours later, told at once."""
    load_tasks(plan.evaluate["tasks"], data, not plan.evaluate["any_size"])
    for kinds in {plan.systems[name].get("controls", plan.evaluate["controls"]) for name in names}:
        control_kinds(kinds)


def _prepare(plan: Plan, output: Path) -> None:
    """Makes what is not there."""
    told = output / RUNS / PREPARED
    made = _made_by(output)
    # As the plan has it: a file stays prepared wherever the folders lie.
    for step, written in zip(plan.prepare, _written_steps(plan), strict=True):
        path = Path(step["makes"])
        before = made.get(written["makes"], written["command"])
        if path.exists() and before != written["command"]:
            raise ValueError(
                f"{path} was made by another command, {before!r}. Remove it, or let the plan name another."
            )
        if not path.exists():
            _run(_words(step["command"]))
            if not path.exists():
                raise ValueError(f"{step['command']!r} did not make {path}.")
            made[written["makes"]] = written["command"]
            with replacing_file(told) as file:
                json.dump(made, file, indent=1)


def _made_by(output: Path) -> dict[str, str]:
    """The command that made each prepared file, both as the plan has them; none for a file that was there before."""
    path = output / RUNS / PREPARED
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _written_steps(plan: Plan) -> list[dict[str, str]]:
    return next(iter(plan.written.values()))["prepare"]


def _is_finished(plan: Plan, name: str, row: Mapping[str, Any]) -> bool:
    return bool(row.get("plan") == plan.written[name])


def _make_row(plan: Plan, name: str, data: Path, output: Path) -> dict[str, Any]:
    system, run = plan.systems[name], output / RUNS / folder_name(name)
    own = {part: _put_in(getattr(plan, part), {"{run}": str(run)}) for part in ("common", "evaluate", "reconstruct")}
    plan = replace(plan, **own)
    row: dict[str, Any] = {"versions": package_versions(), "commands": []}
    of_training = _of_training(plan.written[name]["system"])
    if "recipe" in system:
        made = _made_by(output)
        steps = zip(plan.prepare, _written_steps(plan), strict=True)
        row["commands"] += [step["command"] for step, written in steps if written["makes"] in made]
        row["prepared"] = of_training["prepared"] = {
            Path(step["makes"]).name: _digest(Path(step["makes"])) for step in plan.prepare
        }
        model = str(run / "model")
        settings = {**plan.common, **_of_training(system), "output_dir": str(run)}
        command = [*COMMAND, "pretrain", str(settings.pop("recipe"))]
        for key, value in settings.items():
            command += [f"--{key}", *(map(_as_text, value) if isinstance(value, list) else [_as_text(value)])]
    else:
        model, command = system["model"], _words(system.get("command", ""))
    if command:
        _train(command, run, of_training, Path(model))
        row["commands"].append(_as_typed(command))
    trained = saved_training_args(model) if Path(model).is_dir() else {}
    row["seed"] = trained.get("seed")
    kept = ("steps", "tokens", "minutes", "cpu_minutes", "share_of_matrix_rate", "validation_loss", "validation_bleu")
    row["training"] = training = {key: trained.get("results", {}).get(key) for key in kept}
    if training["minutes"] and training["tokens"]:
        # Of the whole training by the clock, whatever made the model.
        training["tokens_per_second"] = training["tokens"] / training["minutes"] / 60
    evaluated = model
    if plan.evaluate["expand"] and is_own_checkpoint(model) and check_checkpoint(model).freeze_word_embeddings:
        evaluated = str(run / EXPANDED)
        command = [
            *COMMAND,
            "expand",
            model,
            plan.evaluate["expand"],
            "--output",
            evaluated,
        ]
        _run(command)
        row["commands"].append(_as_typed(command))
    _run(_evaluation_command(plan, name, evaluated, data, output))
    results = Results.load(output / folder_name(name))
    row["sentences_per_second"] = results.model.get("sentences_per_second")
    row["averages"] = results.averages
    row["scores"] = {task: found["metrics"] for task, found in results.scores.items()}
    if plan.reconstruct and _says_again(model, trained):
        folder = output / folder_name(name) / "reconstruction"
        settings = {key: value for key, value in plan.reconstruct.items() if key != "source"}
        scores = score_checkpoint(
            model, plan.reconstruct["source"], ReconstructionSettings(**settings), output=folder, show_progress=False
        )
        row["reconstruction"] = {key: scores[key] for key in ("bleu", "exact_match", "accuracy", "sentences")}
    if (run / METRICS_FILE).is_file():
        shutil.copyfile(run / METRICS_FILE, output / folder_name(name) / METRICS_FILE)
    return row


def _write_card(plan: Plan, name: str, output: Path, anew: bool) -> None:
    """A model card for the system, or for the first of its seeds, unless its model is not here."""
    group = plan.groups.get(name, name)
    seeds = [other for other in plan.systems if plan.groups.get(other, other) == group]
    rows = {other: row for other, row in _read_rows(output).items() if other in seeds}
    name = seeds[0]
    run = output / RUNS / folder_name(name)
    model = run / EXPANDED if (run / EXPANDED).is_dir() else run / "model"
    if not plan.cards or "recipe" not in plan.systems[name] or name not in rows or not model.is_dir():
        return
    row = rows[name]
    cards = dict(plan.cards)
    folder, owner, title = cards.pop("folder"), cards.pop("owner", None), cards.pop("prefix", "") + folder_name(group)
    path = Path(folder) / f"{title}.md"
    if "corpus" in plan.systems[name]:
        # What the plan says of its texts is not of this system's.
        cards = {key: value for key, value in cards.items() if key not in ("data", "limits")}
    if anew or not path.exists():
        said = {f"reconstruction, {key}": value for key, value in row.get("reconstruction", {}).items()}
        if len(rows) > 1:
            # Of which this model is one, and not the best or the worst on purpose.
            for part, key in [("averages", key) for key in row["averages"]] + [("reconstruction", "bleu")]:
                of_all = [one[part][key] for one in rows.values() if key in one.get(part, {})]
                said[f"{key}, {len(of_all)} seeds"] = _number(of_all, 1)
        said["training, target tokens"] = row["training"].get("tokens")
        said["training, greedy BLEU of validation sentences"] = row["training"].get("validation_bleu")
        write_model_card(
            model, f"{owner}/{title}" if owner else str(model), title=title, path=path, more_figures=said,
            results=Results.load(output / folder_name(name)).to_dict(), command="\n".join(row["commands"]), **cards,
        )  # fmt: skip


def _digest(path: Path) -> str:
    """Hash of a file, which tells the rows that share it."""
    return hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()


def _as_typed(command: Sequence[str]) -> str:
    return shlex.join(["python" if part == sys.executable else part for part in command])


def _of_training(system: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in system.items() if key != "controls"}


def _train(command: Sequence[str], run: Path, settings: dict[str, Any], model: Path) -> None:
    """Runs the command if its model is not there.

    Raises:
        ValueError: the model was made, or is half made, with other settings or from other prepared files.
        ChildProcessError: the command failed, or was stopped before it had a model.
    """
    told = run / SYSTEM
    is_made = (model / "modules.json").is_file()
    if is_made or Checkpoints(run / CHECKPOINTS).latest():
        theirs = json.loads(told.read_text(encoding="utf-8")) if told.is_file() else settings
        changed = sorted(key for key in {*theirs, *settings} if theirs.get(key) != settings.get(key))
        if changed:
            raise ValueError(
                f"{run} holds a model of other settings ({', '.join(changed)}). Remove it, or give the system another "
                "name."
            )
    if is_made:
        return
    run.mkdir(parents=True, exist_ok=True)
    with replacing_file(told) as file:
        json.dump(settings, file, indent=1)
    _run(command)
    if not (model / "modules.json").is_file():
        raise ChildProcessError(f"{shlex.join(command)} ended without {model}; the same command may go on.")


def _evaluation_command(plan: Plan, name: str, model: str, data: Path, output: Path) -> list[str]:
    """In a process of its own, whose memory is free again afterwards."""
    options = {**plan.evaluate, "controls": plan.systems[name].get("controls", plan.evaluate["controls"])}
    command = [
        *COMMAND, "evaluate", model, "--data", str(data),
        "--tasks", options["tasks"], "--controls", options["controls"], "--seeds", str(options["seeds"]),
        "--output", str(output / folder_name(name)), "--cache", str(output / RUNS / "cache"),
    ]  # fmt: skip
    return [*command, "--any-size"] if options["any_size"] else command


def _says_again(model: str, trained: Mapping[str, Any]) -> bool:
    if not is_own_checkpoint(model):
        return False
    config = check_checkpoint(model)
    return config.is_autoregressive and config.has_latents and trained.get("objective") == "reconstruction"


def write_tables(plan: Plan, output: Path) -> None:
    """Writes table.md, report.md and systems.png of the finished rows; of a system with several seeds, the mean and
    the standard deviation of those that are finished."""
    rows = {name: row for name, row in _read_rows(output).items() if name in plan.systems}
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
        is_current = all(_is_finished(plan, name, rows[name]) for name in names)
        line = [markdown_text(group if is_current else f"{group} (older settings)")]
        line.append(_number([results[name].model["dimension"] for name in names], 0))
        for task in tasks:
            mains = {results[name].tasks[task]["main"] for name in names if task in results[name].tasks}
            values = [rows[name]["scores"].get(task, {}).get(main) for name in names for main in mains]
            line.append(_number(values, 1 if all(map(is_percentage, mains)) else 3))
        line += [_number([rows[name]["averages"].get(key) for name in names], 1) for key in averages]
        line += [
            _number([results[name].average_gains.get(key, {}).get("difference") for name in names], 1) for key in gains
        ]
        if len(sts) > 1:
            line.append(_number([_mean_of(rows[name]["scores"], sts) for name in names], 3))
        said = [rows[name].get("reconstruction", {}) for name in names]
        line += [
            _number([one.get("bleu") for one in said], 1),
            _number([one.get("exact_match") for one in said], 1, 100),
        ]
        training = [rows[name]["training"] for name in names]
        columns = ("tokens", "minutes", "cpu_minutes", "tokens_per_second")
        line += [_number([one.get(key) for one in training], 0) for key in columns]
        line.append(_number([rows[name].get("sentences_per_second") for name in names], 0))
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


def _number(values: Sequence[float | None], digits: int, scale: float = 1) -> str:
    """The mean, and the standard deviation of several; empty where nothing is known."""
    known = [scale * value for value in values if value is not None]
    if not known:
        return ""
    shown = f"{statistics.fmean(known):,.{digits}f}"
    return shown if len(known) == 1 else f"{shown} \u00b1 {statistics.stdev(known):,.{digits}f}"


def _read_rows(output: Path) -> dict[str, Any]:
    path = output / ROWS
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged ({error}). Bring it back, or remove it: models and finished tasks are kept."
        ) from error


def _words(command: str) -> list[str]:
    """A command, whose `python` is the one that runs this."""
    words = shlex.split(command)
    return [sys.executable, *words[1:]] if words[:1] == ["python"] else words


def _run(command: Sequence[str]) -> None:
    """Runs a command; who stops this process stops the command, and waits until it has saved what it needs to go on.

    Raises:
        ChildProcessError: it failed.
    """
    print("$ " + shlex.join(command), flush=True)
    process: subprocess.Popen[bytes] | None = None
    stopped: list[int] = []
    too_early: list[int] = []

    def stop(number: int, frame: Any) -> None:
        stopped.append(number)
        if process is None:
            too_early.append(number)
        # A terminal's Ctrl-C reaches the command by itself, and a second one ends it at once.
        elif number == signal.SIGTERM:
            process.terminate()

    in_main = threading.current_thread() is threading.main_thread()
    # Before the command starts, or who stops this process in between leaves the command behind.
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT) if in_main}
    try:
        process = subprocess.Popen(command)
        if too_early:
            process.terminate()
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if stopped:
        raise SystemExit("reproduce: stopped; the same command goes on from here")
    if code:
        raise ChildProcessError(f"{shlex.join(command)} ended with exit code {code}.")


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _put_in(value: Any, folders: Mapping[str, str]) -> Any:
    """`value` with the folders in the places of their names, at any depth."""
    if isinstance(value, str):
        for name, folder in folders.items():
            value = value.replace(name, folder)
        return value
    if isinstance(value, dict):
        quoted = {name: shlex.quote(folder) for name, folder in folders.items()}
        # A command is cut into its words later, and a folder may have a space in its name.
        return {key: _put_in(part, quoted if key == "command" else folders) for key, part in value.items()}
    return [_put_in(part, folders) for part in value] if isinstance(value, list) else value
