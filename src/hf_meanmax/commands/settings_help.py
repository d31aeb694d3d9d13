"""The help of the verbs that train: the settings of a run, and the fields of its family's configuration."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import re
from types import NoneType
from typing import Any, get_args, get_type_hints

from hf_meanmax.families import FAMILIES
from hf_meanmax.modeling.configuration_base import LatentConfig
from hf_meanmax.training.recipes import model_fields
from hf_meanmax.training.settings import RunArguments

from .options import OptionParser


def settings_help(verb: str, arguments: type[RunArguments]) -> str:
    """Type, choices, default and meaning of every option, those of the configuration with the default family's
    defaults."""
    names = [item.name for item in dataclasses.fields(arguments) if item.metadata.get("help") and item.name != "model"]
    hints = get_type_hints(arguments)
    own = dataclasses.make_dataclass(
        "Settings",
        [(f.name, hints[f.name], copy.copy(f)) for f in dataclasses.fields(arguments) if f.name in names],
    )
    family = next(item.default for item in dataclasses.fields(arguments) if item.name == "family")
    config = FAMILIES[str(family)].config
    meanings = _meanings(LatentConfig) | _meanings(config)
    defaults = config()
    fields = [
        (name, _one_type(kind), dataclasses.field(default=getattr(defaults, name), metadata={"help": meanings[name]}))
        for name, kind in model_fields(config).items()
        if not isinstance(getattr(defaults, name), list)
    ]
    parser = OptionParser(verb, "", own, dataclasses.make_dataclass("Configuration", fields))
    for action in [action for action in parser._actions if action.option_strings[:1] == [f"--no_{action.dest}"]]:
        parser._optionals._remove_action(action)  # `--output_bias false` says it
    parser.usage = f"hf-meanmax {verb} [recipe] [--option value ...]"
    return parser.format_help()


def _one_type(kind: Any) -> Any:
    """`float | int` is read as float; None stays."""
    inner = [part for part in get_args(kind) if part is not NoneType]
    if int in inner and float in inner:
        return float | None if NoneType in get_args(kind) else float
    return kind


def _meanings(config: type[LatentConfig]) -> dict[str, str]:
    """The first sentence of what the documentation of a configuration says of each field."""
    text = inspect.getdoc(config) or ""
    found = re.findall(r"(?m)^    (\w+) \([^\n]*\):\n((?:        [^\n]*\n?)+)", text)
    return {name: " ".join(meaning.split()).split(". ")[0].rstrip(".").replace("%", "%%") for name, meaning in found}
