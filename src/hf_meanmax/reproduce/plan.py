"""Plans: lists of systems, read from YAML."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from hf_meanmax.checkpoint.folder import weight_files
from hf_meanmax.evaluation.reconstruction import ReconstructionSettings
from hf_meanmax.files import Json
from hf_meanmax.modeling.suggestions import did_you_mean
from hf_meanmax.training.recipes import read_recipe

ROWS, TABLE, FIGURE, RUNS, EXPANDED = "rows.json", "table.md", "systems.png", "runs", "expanded"
# Runs the command line in a new process of this environment.
COMMAND = (sys.executable, "-m", "hf_meanmax.commands")
_PLANS = Path(__file__).parent / "plans"
_PARTS = {"prepare": list, "common": dict, "systems": dict, "evaluate": dict, "reconstruct": dict, "cards": dict}
# Settings of a system that is not trained here.
_OF_MODELS = {"model", "command", "controls"}
_CARDS = {"folder", "owner", "prefix", "data", "limits", "language", "license"}
_EVALUATE = {"tasks": "ten", "controls": "all", "seeds": 3, "any_size": False, "expand": ""}


@dataclass
class Plan:
    """Systems to train and evaluate.

    Attributes:
        systems: by name, settings of pretraining with `recipe`, or `command` and `model`; several `seeds` give one
            system each. Any system may have its own `controls`.
        groups: by system, its name in the table; systems with the same name are averaged.
        common: settings of every pretraining.
        prepare: steps with `command` and `makes`, for files that all systems need.
        evaluate: `tasks`, `controls`, `seeds` and `any_size` as for `hf-meanmax evaluate`; and `expand`, a file of word
            vectors whose words are first added to the models with frozen word vectors.
        reconstruct: `source` and the fields of [`ReconstructionSettings`]; if empty, nothing is decoded.
        cards: the `folder` of the model cards of systems trained here (the first of several seeds); the `owner` of
            their repositories on the Hub (without one, usage names the folders of the runs); a `prefix` of their names;
            and fields of [`~hf_meanmax.checkpoint.card.CardDescription`], with `data` and `limits` only for systems
            without a `corpus` of their own. If empty, no card is written.
        written: by system, the parts of the plan that its row depends on, with unfilled folders: they may move.
    """

    systems: dict[str, Json]
    common: Json = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)
    prepare: list[dict[str, str]] = field(default_factory=list)
    evaluate: Json = field(default_factory=lambda: dict(_EVALUATE))
    reconstruct: Json = field(default_factory=dict)
    cards: dict[str, str] = field(default_factory=dict)
    written: dict[str, Json] = field(default_factory=dict)


def list_plans() -> list[str]:
    """Names of the packaged plans."""
    return sorted(path.stem for path in _PLANS.glob("*.yaml"))


def _load(path: Path) -> Json:
    """The parts of a plan file, with their types checked."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(content, dict) or not content.get("systems"):
        raise ValueError(f"{path}: expected `systems:` with one system or more.")
    for name in content:
        _check_known(name, _PARTS, "part", "", path)
    for name, part in content.items():
        # A part may be named and left empty.
        if part is not None and not isinstance(part, _PARTS[name]):
            shape = "`- ` items" if _PARTS[name] is list else "`name: value` lines"
            raise ValueError(f"{path}: `{name}` is {part!r}; it takes {shape}.")
    return content


def _check_known(name: object, known: Collection[str], what: str, where: str, path: Path) -> None:
    if name not in known:
        hint = did_you_mean(str(name), known)
        raise ValueError(f"{path}: unknown {what} {name!r}{where}.{hint} Known: {', '.join(sorted(known))}.")


def _check_words(settings: Json, where: str, path: Path) -> None:
    for name, value in settings.items():
        if not isinstance(value, str):
            raise ValueError(
                f"{path}: `{name}` {where} is {value!r}; it must be text. Put it in quotes if YAML reads it as "
                "something else."
            )


def _checked_command(command: str, where: str, path: Path) -> list[str]:
    try:
        return split_command(command)
    except ValueError as error:
        raise ValueError(f"{path}: the `command` {where} is {command!r}: {error}.") from error


def _check_parts(content: Json, path: Path) -> None:
    """Checks all parts but the systems, fills in defaults of `evaluate`, and drops empty settings of `cards`."""
    reconstruct = {"source", *(setting.name for setting in fields(ReconstructionSettings))}
    known = {"evaluate": set(_EVALUATE), "reconstruct": reconstruct, "cards": _CARDS}
    for part, names in known.items():
        for name in content.get(part, {}):
            _check_known(name, names, "setting", f" of `{part}`", path)
    for step in content.get("prepare", []):
        if not isinstance(step, dict) or set(step) != {"command", "makes"}:
            raise ValueError(f"{path}: a step of `prepare` has `command` and `makes`, not {step!r}.")
        _check_words(step, "of a step of `prepare`", path)
        if not _checked_command(step["command"], "of a step of `prepare`", path):
            raise ValueError(f"{path}: the `command` of a step of `prepare` is empty.")
    for part, needed, what in (
        ("reconstruct", "source", "the texts to reconstruct"),
        ("cards", "folder", "where to write them"),
    ):
        if content.get(part) and content[part].get(needed) is None:
            raise ValueError(f"{path}: `{part}` needs `{needed}`, {what}.")
    source = content.get("reconstruct", {}).get("source", "")
    if not all(isinstance(name, str) for name in (source if isinstance(source, list) else [source])):
        raise ValueError(f"{path}: `source` of `reconstruct` is {source!r}; it must be text, or a list of texts.")
    # A setting may be named and left empty.
    content["cards"] = {name: value for name, value in content.get("cards", {}).items() if value is not None}
    _check_words(content["cards"], "of `cards`", path)
    content["evaluate"] = {**_EVALUATE, **content.get("evaluate", {})}
    for name, default in _EVALUATE.items():
        if type(content["evaluate"][name]) is not type(default):
            example = "MR,CR" if name == "tasks" else repr(default)
            raise ValueError(
                f"{path}: `{name}` of `evaluate` is {content['evaluate'][name]!r}; give one like {example}."
            )
    if content["evaluate"]["seeds"] < 1:
        raise ValueError(f"{path}: `seeds` of `evaluate` is {content['evaluate']['seeds']}; it must be 1 or more.")


def read_plan(path: str | Path, data: str | Path, output: str | Path) -> Plan:
    """Reads a plan, from a file or a packaged one by its name, and fills in the folders.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not a plan: an unknown part, no system, a system without `recipe` or `model`, or `seeds` of a
            system without `recipe`.
    """
    path = Path(path)
    if not path.is_file() and str(path) in list_plans():
        path = _PLANS / f"{path}.yaml"
    if not path.is_file():
        raise FileNotFoundError(f"No such file: {str(path)!r}; plans of the package: {', '.join(list_plans())}.")
    content = _load(path)
    folders = {"{data}": str(Path(data)), "{output}": str(Path(output))}
    as_written = {name: part for name, part in content.items() if part is not None}
    content = fill_in(as_written, folders)
    _check_parts(content, path)
    made = {step["makes"] for step in content.get("prepare", [])}
    systems: dict[str, Json] = {}
    groups, written = {}, {}
    parts = {"prepare": as_written.get("prepare", []), "reconstruct": as_written.get("reconstruct", {})}
    parts["evaluate"] = {**_EVALUATE, **as_written.get("evaluate", {})}
    for name, system in content["systems"].items():
        if not isinstance(system, dict) or ("recipe" in system) == ("model" in system):
            raise ValueError(f"{path}: the system {name!r} needs either `recipe` or `model` (and perhaps `command`).")
        if "model" in system:
            for setting in set(system) - {"seeds"}:
                _check_known(setting, _OF_MODELS, "setting", f" of the system {name!r}", path)
        _check_words({key: system[key] for key in _OF_MODELS if key in system}, f"of the system {name!r}", path)
        _checked_command(system.get("command", ""), f"of the system {name!r}", path)
        for one, settings in _with_seeds(str(name), system, path).items():
            systems[one] = fill_in(settings, {"{run}": str(Path(output) / RUNS / folder_name(one))})
            groups[one] = str(name)
        common = as_written.get("common", {}) if "recipe" in system else {}
        for one, settings in _with_seeds(str(name), as_written["systems"][name], path).items():
            written[one] = {"system": {**common, **settings}, **parts}
            recipe = str(systems[one].get("recipe", ""))
            if Path(recipe).is_file() and recipe not in made:
                # The content of a recipe file may change under the same name.
                written[one]["system"]["recipe_settings"] = read_recipe(recipe)
    places = [folder_name(name) for name in systems]
    for name in systems:
        if places.count(folder_name(name)) > 1:
            raise ValueError(f"{path}: the system {name!r} would share its folder with another; rename it.")
    return Plan(**{**content, "systems": systems, "groups": groups, "written": written})


def _with_seeds(name: str, system: Json, path: Path) -> dict[str, Json]:
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
    """A system's name as a folder name."""
    return "-".join("".join(letter if letter.isalnum() else " " for letter in name.lower()).split())


def is_finished(plan: Plan, name: str, row: Json) -> bool:
    """Whether a row was made with the system's current plan and its folder's current weights."""
    is_as_before = row.get("weights") in (None, given_weights(plan.systems[name]))
    return is_as_before and bool(row.get("plan") == plan.written[name])


def given_weights(system: Json) -> list[list[object]] | None:
    """Names, sizes and times of the weight files of a system that is an existing folder; None for other systems."""
    folder = Path(system.get("model", ""))
    if "command" in system or "recipe" in system or not (folder / "config.json").is_file():
        return None
    found = [(path, path.stat()) for path in weight_files(folder) if path.is_file()]
    return [[path.name, stat.st_size, stat.st_mtime_ns] for path, stat in found]


def split_command(command: str) -> list[str]:
    """Splits a command into words; `python` and `hf-meanmax` become those of this environment."""
    words = shlex.split(command)
    own = {"python": (sys.executable,), "hf-meanmax": COMMAND}
    return [*own[words[0]], *words[1:]] if words and words[0] in own else words


def as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def fill_in(value: Any, folders: Mapping[str, str]) -> Any:
    """`value` with folders in place of `{data}`, `{output}` or `{run}`, at any depth."""
    if isinstance(value, str):
        for name, folder in folders.items():
            value = value.replace(name, folder)
        return value
    if isinstance(value, dict):
        quoted = {name: shlex.quote(folder) for name, folder in folders.items()}
        # A command is split into words later, and a folder's name may contain a space.
        return {key: fill_in(part, quoted if key == "command" else folders) for key, part in value.items()}
    return [fill_in(part, folders) for part in value] if isinstance(value, list) else value
