"""Recipes (YAML) and command lines, sorted into the settings of a run and the fields of its configuration."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.resources
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import yaml
from transformers.configuration_utils import PreTrainedConfig

from hf_meanmax.families import FAMILIES
from hf_meanmax.files import Json
from hf_meanmax.modeling.configuration_base import LatentConfig

from .settings import Arguments, PretrainArguments, takes_list

DEFAULT_RECIPE = "docstrings"


def list_recipes() -> list[str]:
    """Names of the packaged recipes."""
    folder = importlib.resources.files("hf_meanmax") / "recipes"
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def read_recipe(name: str) -> Json:
    """The flat settings of a packaged recipe, or of a YAML file.

    Raises:
        FileNotFoundError: if there is neither a file nor a packaged recipe of that name.
        ValueError: if the file does not hold a mapping.
    """
    path = Path(name)
    if path.is_file():
        text = path.read_text(encoding="utf-8")
    elif name in list_recipes():
        text = (importlib.resources.files("hf_meanmax") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
    else:
        nearest = difflib.get_close_matches(name, list_recipes(), n=1)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        raise FileNotFoundError(
            f"No recipe file {name!r} and no packaged recipe of that name.{hint} Packaged: {', '.join(list_recipes())}."
        )
    try:
        settings = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"Recipe {name!r} is not valid YAML: {error}") from error
    if not isinstance(settings, dict):
        raise ValueError(f"Recipe {name!r} must hold `key: value` lines, not a {type(settings).__name__}.")
    return settings


def arguments_from_settings(
    settings: Json,
    recipe: str = "",
    arguments: type[Arguments] = PretrainArguments,  # type: ignore[assignment]
) -> Arguments:
    """Sorts flat settings into the run's own and those of the family's configuration.

    Raises:
        ValueError: if a key is unknown (with the nearest known name) or a value is of the wrong kind.
    """
    run_types = get_type_hints(arguments)
    run_fields = {item.name: item for item in dataclasses.fields(arguments)}
    family = settings.get("family", run_fields["family"].default)
    if family not in list(FAMILIES):
        raise ValueError(f"`family` is {family!r}; allowed: {', '.join(sorted(FAMILIES))}.")
    run_names = [name for name in run_fields if name not in ("model", "recipe")]
    config_types = model_fields(FAMILIES[family].config)
    run: Json = {}
    model: Json = {}
    for key, value in settings.items():
        if key in run_names:
            run[key] = _convert(key, value, run_types[key])
        elif key in config_types:
            model[key] = _convert(key, value, config_types[key])
        else:
            known = sorted([*run_names, *config_types])
            nearest = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
            hint = f" Did you mean `{nearest[0]}`?" if nearest else ""
            raise ValueError(f"Unknown setting `{key}`.{hint} Known: {', '.join(known)}.")
    return arguments(**run, model=model, recipe=recipe)


def parse_command_line(argv: list[str]) -> PretrainArguments:
    """`[recipe] [--key value | --key=value | --flag ...]` -> arguments; without recipe and corpus the built-in default.

    Raises:
        ValueError: if an option is unknown, lacks its value, or has a bad one.
    """
    name, options = read_options(argv)
    if not name and "corpus" not in options:
        name = DEFAULT_RECIPE
    return arguments_from_settings({**(read_recipe(name) if name else {}), **options}, Path(name).stem)


def read_options(argv: list[str]) -> tuple[str, Json]:
    """The recipe of a command line, if there is one, and its options by name, as strings and lists of strings.

    Raises:
        ValueError: if there are two recipes, or an option that takes a list is given twice.
    """
    positional: list[str] = []
    options: Json = {}
    index = 0
    while index < len(argv):
        word = argv[index]
        index += 1
        if not word.startswith("--"):
            positional.append(word)
            continue
        key, equals, value = word[2:].partition("=")
        key = key.replace("-", "_")
        values = [value] if equals else []
        while not equals and index < len(argv) and not argv[index].startswith("--"):
            values.append(argv[index])
            index += 1
        # Of a single value the last one counts, as scripts that add to a command expect; of a list some would be lost.
        if key in options and takes_list(get_type_hints(PretrainArguments).get(key)):
            raise ValueError(f"`--{key}` is given twice. Several values stand after one: --{key} first second.")
        options[key] = values if len(values) > 1 else (values[0] if values else True)
    if len(positional) > 1:
        raise ValueError(
            f"Give one recipe, not {len(positional)}: {', '.join(positional)}. Settings are `--key value`."
        )
    return (positional[0] if positional else ""), options


def model_fields(config: type[LatentConfig]) -> Json:
    """Names and types of the configuration fields that a run may set; ids and input sizes follow from the tokenizer."""
    inherited = set(PreTrainedConfig.__dataclass_fields__)
    derived = {"input_vocab_size", "separate_vocabularies", "teacher_size", "is_encoder_decoder"}
    derived.add("decoder_start_token_id")
    ids = {"pad_token_id", "unk_token_id", "bos_token_id", "eos_token_id"}
    return {f.name: f.type for f in dataclasses.fields(config) if f.name not in inherited | derived | ids}


def _convert(key: str, value: Any, kind: Any) -> Any:
    """`value`, perhaps a string of the command line, as the annotated type of the field."""
    options = get_args(kind) if get_args(kind) and getattr(kind, "__origin__", None) is not list else (kind,)
    if getattr(kind, "__origin__", None) is Literal:
        if value not in options:
            raise ValueError(f"`{key}` is {value!r}; allowed: {', '.join(map(repr, options))}.")
        return value
    if any(getattr(option, "__origin__", None) is Literal and value in get_args(option) for option in options):
        return value
    if isinstance(value, str) and value.lower() in ("none", "null") and type(None) in options:
        return None
    for option in options:
        converted = _convert_plain(value, option)
        if converted is not None:
            return converted
    if value is None and type(None) in options:
        return None
    for option in options:
        if getattr(option, "__origin__", None) is Literal:
            raise ValueError(f"`{key}` is {value!r}; allowed: {', '.join(map(repr, get_args(option)))}.")
    names = " or ".join(getattr(o, "__name__", str(o)) for o in options if o is not type(None))
    raise ValueError(f"`{key}` is {value!r}; it must be of type {names}.")


def _convert_plain(value: Any, kind: Any) -> Any:
    origin = getattr(kind, "__origin__", None)
    if origin is Literal:
        return value if value in get_args(kind) else None
    if kind is bool:
        if isinstance(value, bool):
            return value
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(str(value).lower())
    if origin is list:
        items = value if isinstance(value, list) else [value]
        (item_kind,) = get_args(kind)
        if item_kind is str:
            return items if all(isinstance(item, str) for item in items) else None
        converted = [_convert_plain(item, item_kind) for item in items]
        return None if None in converted else converted
    if isinstance(value, bool) or value is None or isinstance(value, list | dict):
        return None
    if kind in (int, float):
        try:
            number = float(value)
        except (TypeError, ValueError):
            return None
        if kind is int:
            return int(number) if number.is_integer() else None
        return number
    return str(value) if kind is str else None
