"""The settings of a run and of its model's configuration, read from recipes (YAML) and command lines."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.resources
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import NoneType
from typing import NoReturn, get_args, get_type_hints

import yaml

from hf_meanmax.families import FAMILIES
from hf_meanmax.fields import check_choice
from hf_meanmax.files import Json
from hf_meanmax.modeling.configuration_base import LatentConfig
from hf_meanmax.modeling.configuration_embedding_decoder import EmbeddingDecoderConfig
from hf_meanmax.modeling.suggestions import did_you_mean
from hf_meanmax.pretrained import packaged_folder

from .finetune_settings import FinetuneArguments
from .model_settings import model_fields, refuse_new_model, refuse_new_tokenizer
from .option_parser import OptionParser
from .run_settings import Arguments, RunArguments, takes_list
from .settings import PretrainArguments

DEFAULT_RECIPE = "docstrings"


class SettingsParser(OptionParser):
    """Reads the settings of a run and the fields of its family's configuration as flat options.

    Args:
        arguments: the class of the run's settings.
        family: one of `FAMILIES`; by default that of `arguments`.

    Raises:
        ValueError: the family is unknown.
    """

    def __init__(self, arguments: type[RunArguments], family: object = None) -> None:
        family = family or arguments.__dataclass_fields__["family"].default
        check_choice("family", family, sorted(FAMILIES))
        config = FAMILIES[str(family)].config
        self.kinds: dict[str, object] = {**get_type_hints(arguments), **model_fields(config)}
        is_finetuning = issubclass(arguments, FinetuneArguments)
        verb, self.texts = ("finetune", "--train") if is_finetuning else ("pretrain", "--corpus")
        super().__init__(verb, "", arguments, _configuration_options(config))
        self.usage = f"{self.prog} [recipe] [--option value ...]"

    @staticmethod
    def _parse_dataclass_field(parser: argparse.ArgumentParser, field: dataclasses.Field[object]) -> None:
        if field.name in ("model", "recipe"):
            return
        before = len(parser._actions)
        OptionParser._parse_dataclass_field(parser, field)
        action, *negations = parser._actions[before:]
        for negation in negations:
            negation.help = argparse.SUPPRESS  # `--showcase false` does the same
        if bool in (field.type, *get_args(field.type)):
            action.nargs, action.const = "?", True
        if NoneType in get_args(field.type):
            action.type = _or_none(action.type if callable(action.type) else str, action.choices or ())
            action.choices = action.choices and [*action.choices, None]

    def error(self, message: str) -> NoReturn:
        """Raises ValueError instead of ending the program, since training is called from Python too."""
        raise ValueError(message)

    def read(self, words: Sequence[str]) -> Json:
        """The settings that a command line gives, converted to their types.

        Raises:
            ValueError: if an option is unknown, lacks its value, or has a bad one, or if one that takes a list is
                given twice.
        """
        self._refuse_unknown(words)
        for action in self._actions:
            # Scripts append options to commands, so the last single value wins; but a repeated list would lose values.
            if action.nargs == "+" and sum(word.partition("=")[0] in action.option_strings for word in words) > 1:
                name = action.option_strings[0]
                self.error(f"`{name}` is given twice. Give all values after one option: {name} first second.")
            action.default = argparse.SUPPRESS
        found, unread = self.parse_known_args(words)
        self._refuse_unread(unread, f" Texts are given with {self.texts}.")
        return {name: None if value == [None] else value for name, value in vars(found).items()}

    def read_dict(self, settings: Json) -> Json:
        """The same for a dictionary of flat settings, whose values may be strings.

        Raises:
            ValueError: if a name is unknown, or a value is bad.
        """
        words = []
        for name, value in settings.items():
            kind = self.kinds.get(name)
            if value == [] and NoneType in get_args(kind):
                value = None
            is_misplaced = isinstance(value, dict) or (isinstance(value, list) and not takes_list(kind))
            if kind is not None and (is_misplaced or (value is None and NoneType not in get_args(kind))):
                raise ValueError(f"`{name}` is {value!r}; it must be of type {getattr(kind, '__name__', kind)}.")
            words += [f"--{name}", *map(str, value)] if isinstance(value, list) else [f"--{name}={value}"]
        return self.read(words)


def list_recipes() -> list[str]:
    """Names of the packaged recipes."""
    folder = importlib.resources.files("hf_meanmax") / "recipes"
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def read_recipe(name: str) -> Json:
    """The flat settings of a packaged recipe or a YAML file, which override those of the recipe named as its `base`.

    Raises:
        FileNotFoundError: if there is neither a file nor a packaged recipe of that name, or of a base's name.
        ValueError: if a file does not hold a mapping, or is its own base.
    """
    settings: Json = {}
    read: list[str] = []
    base: object = name
    while base is not None:
        if not isinstance(base, str):
            raise ValueError(f"Recipe {read[-1]!r}: `base` is {base!r}; it must be one recipe's name, or a YAML file.")
        if base in read:
            raise ValueError(f"Recipe {name!r} is its own base: {' -> '.join([*read, base])}.")
        read.append(base)
        settings = {**_read_one(base), **settings}
        base = settings.pop("base", None)
    return settings


def _read_one(name: str) -> Json:
    path = Path(name)
    if path.is_file():
        text = path.read_text(encoding="utf-8")
    elif name in list_recipes():
        text = (importlib.resources.files("hf_meanmax") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
    else:
        is_model = (path / "config.json").is_file() or packaged_folder(name) is not None
        option = " A model is given as `--initial_model` (pretrain) or `--checkpoint` (finetune)."
        hint = option if is_model else did_you_mean(name, list_recipes())
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
    """Makes arguments from flat settings, sorted into the run's own and those of the family's configuration.

    Raises:
        ValueError: if a key is unknown (with the nearest known name) or a value is of the wrong kind.
    """
    family = family_of(settings)
    if family:
        settings = {**settings, "family": family}
    given = SettingsParser(arguments, family).read_dict(settings)
    run = {name: given.pop(name) for name in arguments.__dataclass_fields__ if name in given}
    return arguments(**run, model=given, recipe=recipe)


def parse_command_line(
    argv: Sequence[str],
    arguments: type[Arguments] = PretrainArguments,  # type: ignore[assignment]
) -> Arguments:
    """`[recipe] [--key value | --key=value | --flag ...]` -> arguments; pretraining without recipe and corpus takes the
    built-in default.

    Raises:
        ValueError: if an option is unknown, lacks its value, or has a bad one.
    """
    name, words = split_recipe(argv)
    _check_place_of_recipe(name, words)
    of_words = choice_of_family(words)
    # The default recipe does not fit an objective that has a family of its own.
    by_objective = family_of({"objective": of_words.get("objective")})
    has_own = any(word.startswith("--corpus") for word in words) or by_objective is not None
    if not name and arguments is PretrainArguments and not has_own:
        name = DEFAULT_RECIPE
    is_packaged = name in list_recipes() and not Path(name).is_file()
    if arguments is FinetuneArguments and is_packaged:
        raise ValueError(f"The recipe {name!r} is of `hf-meanmax pretrain`. Give options, or a YAML file of them.")
    settings = read_recipe(name) if name else {}
    given = SettingsParser(arguments, family_of({**settings, **of_words})).read(words)
    settings = {**settings, **given}
    if is_packaged and "corpus" not in settings:
        texts = "`--corpus` and `--target`" if settings.get("objective") == "translation" else "`--corpus 'my/*.txt'`"
        raise ValueError(f"The recipe {name!r} names no texts. Give {texts}.")
    if settings.get("initial_model"):
        refuse_new_model(settings["initial_model"], given)
    else:
        refuse_new_tokenizer(settings, given)
    read = arguments_from_settings(settings, Path(name).stem, arguments)
    read.refuse_without_effect(given)
    return read


def split_recipe(argv: Sequence[str]) -> tuple[str, list[str]]:
    """The recipe that a command line begins with, or an empty name, and the options after it."""
    has_recipe = bool(argv) and not argv[0].startswith("-")
    return (argv[0], list(argv[1:])) if has_recipe else ("", list(argv))


def _check_place_of_recipe(name: str, words: Sequence[str]) -> None:
    for before, word in zip([name, *words], words, strict=False):
        is_recipe = not word.startswith("-") and (word in list_recipes() or word.endswith((".yaml", ".yml")))
        if is_recipe and not before.startswith("--"):
            raise ValueError(
                f"The recipe {word!r} comes first, before all options, and there is one: {word} --option value ..."
            )


def family_of(settings: Json) -> str | None:
    """The family that settings name, or else the only one that has their objective; None stands for the default. The
    options of a command line depend on it."""
    by_objective = EmbeddingDecoderConfig.model_type if settings.get("objective") == "embedding_inversion" else None
    return settings.get("family") or by_objective


def choice_of_family(words: Sequence[str]) -> Json:
    """The values of `--family` and `--objective` on a command line, if given."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--family", "--objective"):
        parser.add_argument(name, nargs="?")
    return {name: value for name, value in vars(parser.parse_known_args(words)[0]).items() if value is not None}


def _configuration_options(config: type[LatentConfig]) -> type:
    """A dataclass of the configuration's fields, each with its default and help text."""
    meanings = _meanings(LatentConfig) | _meanings(config)
    defaults = config()
    fields = []
    for name, kind in model_fields(config).items():
        default = getattr(defaults, name)
        metadata = {"help": meanings[name]}
        if isinstance(default, list):
            item = dataclasses.field(default_factory=functools.partial(list, default), metadata=metadata)
        else:
            item = dataclasses.field(default=default, metadata=metadata)
        # HfArgumentParser cannot choose between the types of `float | int`.
        fields.append((name, {float | int: float, float | int | None: float | None}.get(kind, kind), item))
    group = {"_argument_group_name": f"the model ({config.model_type})"}
    return dataclasses.make_dataclass("Configuration", fields, namespace=group)


def _meanings(config: type[LatentConfig]) -> dict[str, str]:
    """The first sentence of each field's description in a configuration's docstring."""
    text = inspect.getdoc(config) or ""
    found = re.findall(r"(?m)^    (\w+) \([^\n]*\):\n((?:        [^\n]*\n?)+)", text)
    return {name: " ".join(meaning.split()).split(". ")[0].rstrip(".").replace("%", "%%") for name, meaning in found}


def _or_none(kind: Callable[[str], object], choices: Iterable[object]) -> Callable[[str], object]:
    """A converter that reads `none` and `null` as None, unless they are among the choices."""

    @functools.wraps(kind, updated=())
    def read(text: str) -> object:
        return None if text.lower() in ("none", "null") and text not in choices else kind(text)

    return read
