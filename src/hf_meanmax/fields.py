"""Fields of settings classes, which are also command line options: default, help and bounds."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Iterable
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin, get_type_hints, overload

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = TypeVar("Value")


@overload
def option(help: str, **metadata: Any) -> Any: ...
@overload
def option(help: str, default: Value, **metadata: Any) -> Value: ...
def option(help: str, default: Any = dataclasses.MISSING, **metadata: Any) -> Any:
    """A dataclass field for the option `--name`, required if it has no default. `metadata` may have the bounds
    `at_least` and `at_most`, which [`check_settings`] checks."""
    metadata = {"help": help, **metadata}
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=lambda: copy.copy(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def count(help: str, default: Any = dataclasses.MISSING, at_most: int | None = None) -> Any:
    """An [`option`] whose value must be at least 1."""
    return option(help, default, at_least=1, at_most=at_most)


def check_settings(settings: DataclassInstance) -> None:
    """Checks the fields of a settings class that have bounds or a list of allowed values; None always passes.

    Raises:
        ValueError: a value is out of its bounds, not a whole number where one is required, or not in the list.
    """
    kinds = get_type_hints(type(settings))
    for field in dataclasses.fields(settings):
        value, kind = getattr(settings, field.name), kinds[field.name]
        if value is None:
            continue
        parts = (kind, *get_args(kind))
        allowed = [one for part in parts if get_origin(part) is Literal for one in get_args(part)]
        if allowed:
            check_choice(field.name, value, allowed)
        least, most = field.metadata.get("at_least"), field.metadata.get("at_most")
        if (least, most) != (None, None) and int in parts and not isinstance(value, Integral):
            raise ValueError(f"`{field.name}` is {value!r}; it must be a whole number.")
        if least is not None:
            check_least(settings, **{field.name: least})
        if most is not None and not value <= most:
            raise ValueError(f"`{field.name}` is {value:,}; it may be {most:,} at most.")


def expand_home(value: Any) -> Any:
    """Expands a leading `~/` of a string, or of the strings of a list, to the home folder. The shell expands it only at
    the beginning of a word, so not in `--output=~/mine` or in a recipe."""
    if isinstance(value, list):
        return [*map(expand_home, value)]
    return os.path.expanduser(value) if isinstance(value, str) and value.startswith("~/") else value


def check_choice(name: str, value: object, allowed: Iterable[object]) -> None:
    """Raises ValueError unless a setting has one of the allowed values."""
    choices = list(allowed)
    if value not in choices:
        raise ValueError(f"`{name}` is {value!r}; allowed: {', '.join(map(repr, choices))}.")


def check_least(settings: object, **least: float) -> None:
    """Raises ValueError if a setting is below its smallest allowed value."""
    for name, smallest in least.items():
        # `not >=`, since NaN must fail too.
        if not getattr(settings, name) >= smallest:
            raise ValueError(f"`{name}` is {getattr(settings, name)}; it must be {smallest} or more.")
