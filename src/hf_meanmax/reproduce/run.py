"""Trains a list of systems one after the other, evaluates them alike, and writes one table.

    hf-meanmax reproduce books.yaml --data data --output results/books

The list is YAML. In every text `{data}` and `{output}` stand for folders, and `{run}` for the system's own folder
(except in `prepare` and `cards`):

    prepare:  # commands, each run once, before all systems
      - command: "hf-meanmax vectors {data}/books/*.txt --output {output}/vectors.safetensors"
        makes: "{output}/vectors.safetensors"
    common: {corpus: "{data}/books/*.txt", max_training_tokens: 10000000}
    systems:
      mean-max AAE: {recipe: mean-max-aae-small}  # and settings of `pretrain`, which override `common`
      mean AAE: {recipe: mean-max-aae-small, pooling: mean, seeds: [0, 1, 2]}  # three runs, one line of the table
      TSDAE: {command: "python tsdae.py {run}/model", model: "{run}/model"}  # any command that makes an encoder
      MiniLM: {model: sentence-transformers/all-MiniLM-L6-v2, controls: none}  # or an existing one; other controls
    evaluate: {tasks: ten, controls: all, seeds: 3, expand: "{output}/vectors.safetensors"}
    reconstruct: {source: "{data}/books/test.txt", limit: 2000}
    cards: {folder: model_cards, owner: me, data: "Fiction.", limits: "Old words."}  # a model card for each

A finished system is not run again, and an interrupted one resumes; failures are reported at the end, after the other
systems. Several processes may share one list: each skips the systems that others are working on."""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

from filelock import FileLock, Timeout
from transformers import AutoTokenizer

from hf_meanmax.checkpoint.card import CardDescription, write_model_card
from hf_meanmax.checkpoint.folder import (
    check_checkpoint,
    is_encoder_alone,
    is_own_checkpoint,
    learnt_objective,
    saved_training_args,
)
from hf_meanmax.evaluation.reconstruction import ReconstructionSettings, score_checkpoint
from hf_meanmax.evaluation.report import RESULTS, Results
from hf_meanmax.evaluation.runner import package_versions
from hf_meanmax.evaluation.suite import control_kinds, load_tasks
from hf_meanmax.families import FAMILIES
from hf_meanmax.files import Json, file_digest, read_json, write_json
from hf_meanmax.modeling.configuration_base import LatentConfig
from hf_meanmax.pretrained import packaged_folder
from hf_meanmax.tokenization.tokenizers import is_word_level
from hf_meanmax.training.checkpoints import CHECKPOINTS, METRICS_FILE, SYSTEM_FILE, Checkpoints
from hf_meanmax.training.recipes import SettingsParser, arguments_from_settings, family_of, read_recipe
from hf_meanmax.training.settings import PretrainArguments

from .plan import (
    COMMAND,
    EXPANDED,
    ROWS,
    RUNS,
    Plan,
    as_text,
    fill_in,
    folder_name,
    given_weights,
    is_finished,
    split_command,
)
from .tables import format_mean, read_rows, write_tables

PREPARED = "prepared.json"


def reproduce(plan: Plan, data: str | Path, output: str | Path, only: Sequence[str] = ()) -> dict[str, str]:
    """Trains and evaluates the systems that are not finished, and writes the table after each.

    Args:
        plan: the plan.
        data: the folder with `senteval/`.
        output: the folder to write to: a row per system in rows.json, table.md, systems.png (with matplotlib),
            report.md with all controls and the published rows, and each system's results.json and metrics.jsonl; runs
            and checkpoints are in its sub-folder `runs`.
        only: names of systems, with or without their seed (default: all).

    Returns:
        Error messages, by the name of the system.

    Raises:
        FileNotFoundError: the data of a task, the texts of `reconstruct` or the words of `expand` are missing.
        ValueError: an unknown name in `only`, an unknown task or control, a preparation that did not make its file, or
            whose file was made by another command.
        ChildProcessError: a preparation failed.
    """
    output = Path(output)
    for name in only:
        if name not in plan.groups and name not in plan.groups.values():
            raise ValueError(f"There is no system {name!r}; choose among {', '.join(map(repr, plan.systems))}.")
    chosen = [name for name, group in plan.groups.items() if not only or name in only or group in only]
    (output / RUNS).mkdir(parents=True, exist_ok=True)
    results = FileLock(output / RUNS / "results.lock")
    todo = [name for name in chosen if not is_finished(plan, name, _noted(name, output))]
    if todo:
        _check_evaluation(plan, todo, data)
        _check_training(plan, todo)
        with FileLock(output / RUNS / "prepare.lock"):
            _prepare(plan, output)
        _check_prepared(plan)
    failures = {}
    for name in chosen:
        try:
            with FileLock(output / RUNS / f"{folder_name(name)}.lock", timeout=0):
                if is_finished(plan, name, _noted(name, output)):
                    _write_card(plan, name, output, anew=False)
                    continue
                row = {"plan": plan.written[name], **_make_row(plan, name, Path(data), output)}
                with results:
                    _add_row(plan, name, row, output)
                _write_card(plan, name, output, anew=True)
        except Timeout:
            print(f"Another process is working on {name!r}; it is skipped here.", flush=True)
        # torch raises RuntimeError, for instance if memory is too small for decoding.
        except (OSError, ValueError, ImportError, RuntimeError) as error:
            failures[name] = str(error)
    with results:
        write_tables(plan, output)
    return failures


def _noted(name: str, output: Path) -> Json:
    """The row of a system from an earlier call, if its results still exist."""
    return read_rows(output).get(name, {}) if (output / folder_name(name) / RESULTS).is_file() else {}


def _add_row(plan: Plan, name: str, row: Json, output: Path) -> None:
    rows = {**read_rows(output), name: row}
    # Rows of systems that the plan no longer has come last.
    order = dict.fromkeys(known for known in (*plan.systems, *rows) if known in rows)
    write_json(output / ROWS, {known: rows[known] for known in order})
    write_tables(plan, output)


def _check_evaluation(plan: Plan, names: Sequence[str], data: str | Path) -> None:
    """Checks early what would make an evaluation fail hours later."""
    load_tasks(plan.evaluate["tasks"], data, not plan.evaluate["any_size"])
    for kinds in {plan.systems[name].get("controls", plan.evaluate["controls"]) for name in names}:
        control_kinds(str(kinds))
    _reconstruction_settings(plan)


def _check_training(plan: Plan, names: Sequence[str]) -> None:
    """Checks names and types of the settings of all systems before the first is trained."""
    made = [step["makes"] for step in plan.prepare]
    for name in names:
        settings = {**plan.common, **_of_training(plan.systems[name])}
        if settings.get("recipe") in (None, *made):
            continue
        try:
            settings = {**read_recipe(str(settings.pop("recipe"))), **settings}
            family = family_of(settings)
            SettingsParser(PretrainArguments, family).read_dict(settings)
        except (FileNotFoundError, ValueError) as error:
            kind = FileNotFoundError if isinstance(error, FileNotFoundError) else ValueError
            raise kind(f"The system {name!r}: {error}") from error
        if family and FAMILIES[family].encoder is None:
            raise ValueError(
                f"The system {name!r} is of the family {family!r}, which has no text encoder to evaluate. Leave it out."
            )


def _check_prepared(plan: Plan) -> None:
    """Raises an error for missing texts and words before the training, not after it."""
    source, words = plan.reconstruct.get("source"), plan.evaluate["expand"]
    if source and "{run}" not in str(source):
        next(iter(_reconstruction_settings(plan).open_texts(source)), None)
    if words and "{run}" not in words and not Path(words).is_file():
        raise FileNotFoundError(f"`expand` of the plan names {words}, which is no file, and no step prepares it.")


def _reconstruction_settings(plan: Plan) -> ReconstructionSettings:
    return ReconstructionSettings(**{key: value for key, value in plan.reconstruct.items() if key != "source"})


def _prepare(plan: Plan, output: Path) -> None:
    """Runs the preparation steps whose files do not exist."""
    record = output / RUNS / PREPARED
    made = _made_by(output)
    # Steps are recorded with unfilled folders: a file stays prepared if the folders move.
    for step, written in zip(plan.prepare, _written_steps(plan), strict=True):
        path = Path(step["makes"])
        before = made.get(written["makes"], written["command"])
        if path.exists() and before is None:
            raise ValueError(
                f"{path} may be incomplete: the command that writes it was interrupted. Delete it and rerun."
            )
        if path.exists() and before != written["command"]:
            raise ValueError(
                f"{path} was made by another command, {before!r}. Remove it, or let the plan name another."
            )
        if path.is_dir():
            raise ValueError(f"{path} is a folder; `makes` of a step of `prepare` names a file.")
        if not path.exists():
            made[written["makes"]] = None
            write_json(record, made)
            try:
                _run(split_command(step["command"]))
            except BaseException:
                # A partial file would be taken for a complete one.
                if path.is_file():
                    path.unlink()
                raise
            if not path.exists():
                raise ValueError(f"{step['command']!r} did not make {path}.")
            made[written["makes"]] = written["command"]
            write_json(record, made)


def _made_by(output: Path) -> dict[str, str | None]:
    """The command that made each prepared file, both as written in the plan. A file that existed before has no entry,
    and an unfinished one has None."""
    path = output / RUNS / PREPARED
    return read_json(path) if path.is_file() else {}


def _written_steps(plan: Plan) -> list[dict[str, str]]:
    return next(iter(plan.written.values()))["prepare"]


def _make_row(plan: Plan, name: str, data: Path, output: Path) -> Json:
    system, run = plan.systems[name], output / RUNS / folder_name(name)
    own = {part: fill_in(getattr(plan, part), {"{run}": str(run)}) for part in ("common", "evaluate", "reconstruct")}
    plan = replace(plan, **own)
    row: Json = {"versions": package_versions(), "commands": []}
    if weights := given_weights(system):
        row["weights"] = weights
    of_training = _of_training(plan.written[name]["system"])
    if "recipe" in system:
        made = _made_by(output)
        steps = zip(plan.prepare, _written_steps(plan), strict=True)
        row["commands"] += [step["command"] for step, written in steps if written["makes"] in made]
        row["prepared"] = of_training["prepared"] = {
            Path(step["makes"]).name: file_digest(Path(step["makes"]), size=8) for step in plan.prepare
        }
        model = str(run / "model")
        own = {**_of_training(system), "output_dir": str(run)}
        settings = {**plan.common, **own}
        recipe = str(settings.pop("recipe"))
        # Common settings may have no effect on this system.
        arguments: PretrainArguments = arguments_from_settings({**read_recipe(recipe), **settings})
        unread = arguments.without_effect()
        command = [*COMMAND, "pretrain", recipe]
        for key, value in settings.items():
            if key in unread and key not in own:
                continue
            values = (value or [None]) if isinstance(value, list) else [value]
            command += [f"--{key}", *map(as_text, values)]
    else:
        model, command = system["model"], split_command(system.get("command", ""))
        model = str(packaged_folder(model) or model)
    if command:
        _train(command, run, of_training, Path(model))
        row["commands"].append(_as_typed(command))
    trained = saved_training_args(model) if Path(model).is_dir() else {}
    row["seed"] = trained.get("seed")
    kept = ("steps", "tokens", "minutes", "cpu_minutes", "share_of_matrix_rate", "validation_loss", "validation_bleu")
    row["training"] = training = {key: trained.get("results", {}).get(key) for key in kept}
    if training["minutes"] and training["tokens"]:
        # Over the wall-clock time of the whole training.
        training["tokens_per_second"] = training["tokens"] / training["minutes"] / 60
    evaluated = model
    if plan.evaluate["expand"] and _can_expand(model, plan.evaluate["expand"]):
        evaluated = str(run / EXPANDED)
        command = [*COMMAND, "expand", model, plan.evaluate["expand"], "--output", evaluated]
        _run(command)
        row["commands"].append(_as_typed(command))
    _run(_evaluation_command(plan, name, evaluated, data, output))
    results = Results.load(output / folder_name(name))
    row["sentences_per_second"] = results.model.get("sentences_per_second")
    row["averages"] = results.averages
    row["scores"] = {task: found["metrics"] for task, found in results.scores.items()}
    if plan.reconstruct and _can_reconstruct(model, trained):
        folder = output / folder_name(name) / "reconstruction"
        how = _reconstruction_settings(plan)
        scores = score_checkpoint(model, plan.reconstruct["source"], how, output=folder, show_progress=False)
        row["reconstruction"] = {key: scores[key] for key in ("bleu", "exact_match", "accuracy", "sentences")}
    if (run / METRICS_FILE).is_file():
        shutil.copyfile(run / METRICS_FILE, output / folder_name(name) / METRICS_FILE)
    return row


def _write_card(plan: Plan, name: str, output: Path, anew: bool) -> None:
    """Writes a model card for the system, or for the first of its seeds, if its model is here."""
    group = plan.groups[name]
    seeds = [other for other in plan.systems if plan.groups[other] == group]
    known = read_rows(output)
    rows = {other: known[other] for other in seeds if other in known and is_finished(plan, other, known[other])}
    name = seeds[0]
    run = output / RUNS / folder_name(name)
    model = run / EXPANDED if plan.evaluate["expand"] and (run / EXPANDED).is_dir() else run / "model"
    if not plan.cards or "recipe" not in plan.systems[name] or name not in rows or not model.is_dir():
        return
    row = rows[name]
    cards = dict(plan.cards)
    folder, owner, title = cards.pop("folder"), cards.pop("owner", None), cards.pop("prefix", "") + folder_name(group)
    path = Path(folder) / f"{title}.md"
    if "corpus" in plan.systems[name]:
        # The plan's description of the texts does not apply to a system with its own corpus.
        cards = {key: value for key, value in cards.items() if key not in ("data", "limits")}
    if anew or not path.exists():
        figures = {f"reconstruction, {key}": value for key, value in row.get("reconstruction", {}).items()}
        if len(rows) > 1:
            # Means over all seeds: the model of the first seed is neither the best nor the worst by choice.
            for part, key in [("averages", key) for key in row["averages"]] + [("reconstruction", "bleu")]:
                of_all = [one[part][key] for one in rows.values() if key in one.get(part, {})]
                figures[f"{key}, {len(of_all)} seeds"] = format_mean(of_all, 1)
        figures["training, target tokens"] = row["training"].get("tokens")
        figures["training, greedy BLEU of validation sentences"] = row["training"].get("validation_bleu")
        write_model_card(
            model, f"{owner}/{title}" if owner else str(model),
            CardDescription(title=title, command="\n".join(row["commands"]), **cards), path=path, more_figures=figures,
            results=Results.load(output / folder_name(name)).to_dict(),
        )  # fmt: skip


def _as_typed(command: Sequence[str]) -> str:
    return shlex.join(["python" if part == sys.executable else part for part in command])


def _of_training(system: Json) -> Json:
    return {key: value for key, value in system.items() if key != "controls"}


def _train(command: Sequence[str], run: Path, settings: Json, model: Path) -> None:
    """Runs the command if its model does not exist.

    Raises:
        ValueError: the finished or unfinished model was made with other settings or from other prepared files.
        ChildProcessError: the command failed, or ended without a model.
    """
    record = run / SYSTEM_FILE
    is_made = (model / "modules.json").is_file()
    if is_made or Checkpoints(run / CHECKPOINTS).latest():
        theirs = read_json(record) if record.is_file() else settings
        changed = sorted(key for key in {*theirs, *settings} if theirs.get(key) != settings.get(key))
        if changed:
            raise ValueError(
                f"{run} holds a model of other settings ({', '.join(changed)}). Remove it, or give the system another "
                "name."
            )
    if is_made:
        return
    write_json(record, settings)
    _run(command)
    if not (model / "modules.json").is_file():
        raise ChildProcessError(
            f"{shlex.join(command)} ended without a SentenceTransformer in {model} (modules.json), which is what is "
            "evaluated."
        )


def _evaluation_command(plan: Plan, name: str, model: str, data: Path, output: Path) -> list[str]:
    """The command that evaluates a model, as a separate process to free its memory afterwards."""
    options = {**plan.evaluate, "controls": plan.systems[name].get("controls", plan.evaluate["controls"])}
    command = [
        *COMMAND, "evaluate", model, "--data", str(data),
        "--tasks", options["tasks"], "--controls", options["controls"], "--seeds", str(options["seeds"]),
        "--output", str(output / folder_name(name)), "--cache", str(output / RUNS / "cache"),
    ]  # fmt: skip
    return [*command, "--any-size"] if options["any_size"] else command


def _can_expand(model: str, words: str) -> bool:
    """Whether a file's words can be added to a model: its word vectors are frozen and from a file of this name."""
    config = _whole_config(model)
    if config is None or not config.freeze_word_embeddings:
        return False
    learnt_from = saved_training_args(model).get("word_vectors") or ""
    fits = is_word_level(AutoTokenizer.from_pretrained(model)) and Path(learnt_from).name == Path(words).name
    if not fits:
        print(f"{model} is evaluated with the words that it has: they are not those of {words}.", flush=True)
    return fits


def _whole_config(model: str) -> LatentConfig | None:
    """The config of a checkpoint folder of this package; None for an encoder alone and for other models."""
    config = check_checkpoint(model, encoder_alone=True) if is_own_checkpoint(model) else None
    return None if config is None or is_encoder_alone(config) else config


def _can_reconstruct(model: str, trained: Json) -> bool:
    config = _whole_config(model)
    if config is None or not config.is_autoregressive or not config.has_latents:
        return False
    return learnt_objective(config, trained) == "reconstruction"


def _run(command: Sequence[str]) -> None:
    """Runs a command. Stopping this process also stops the command, after it has saved what it needs to resume.

    Raises:
        ChildProcessError: it failed.
    """
    print("$ " + shlex.join(command), flush=True)
    process: subprocess.Popen[bytes] | None = None
    stopped: list[int] = []
    too_early: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.append(number)
        if process is None:
            too_early.append(number)
        # A terminal's Ctrl-C reaches the command by itself, and a second one ends it at once.
        elif number == signal.SIGTERM:
            process.terminate()

    in_main = threading.current_thread() is threading.main_thread()
    # Set before the command starts, or a signal in between would leave the command running.
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
        print("reproduce: stopped; the same command goes on from here", file=sys.stderr)
        raise SystemExit(128 + stopped[0])
    if code:
        raise ChildProcessError(f"{shlex.join(command)} ended with exit code {code}.")
