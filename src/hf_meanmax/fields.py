"""Fields of settings classes, each of which is an option of the command line too: default, help and bounds."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, TypeVar, overload

Value = TypeVar("Value")


@overload
def option(help: str, **metadata: Any) -> Any: ...
@overload
def option(help: str, default: Value, **metadata: Any) -> Value: ...
def option(help: str, default: Any = dataclasses.MISSING, **metadata: Any) -> Any:
    """A field that is the option `--name`, with its help; without a default it is required."""
    metadata = {"help": help, **metadata}
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=lambda: copy.copy(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def count(help: str, default: Any = dataclasses.MISSING, at_most: int | None = None) -> Any:
    """An option that takes a number of 1 or more."""
    return option(help, default, at_least=1, at_most=at_most)


def check_least(settings: object, **least: float) -> None:
    """Checks that settings are as large as they must be.

    Raises:
        ValueError: one is smaller.
    """
    for name, smallest in least.items():
        # NaN is no less than anything.
        if not getattr(settings, name) >= smallest:
            raise ValueError(f"`{name}` is {getattr(settings, name)}; it must be {smallest} or more.")
