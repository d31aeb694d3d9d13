"""What the command lines share: options refused with the nearest known name, errors on one line."""

from __future__ import annotations

import argparse
import difflib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that takes no abbreviations and answers a misspelt option with the nearest known one."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(
            *args, allow_abbrev=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter, **kwargs
        )

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            known = [name for action in self._actions for name in action.option_strings]
            option = unknown[0].split("=")[0]
            nearest = difflib.get_close_matches(option, known, n=1, cutoff=0.5)
            hint = f"; did you mean {nearest[0]}?" if nearest else ""
            self.error(f"unknown argument {option!r}{hint} Known: {', '.join(known)}.")
        return parsed


@contextmanager
def one_line_errors(program: str) -> Iterator[None]:
    """Ends the program with exit code 1 and one line on stderr for errors that its user can cause."""
    try:
        yield
    except (OSError, ValueError, ImportError, json.JSONDecodeError) as error:
        raise SystemExit(f"{program}: {' '.join(str(error).split())}") from error


def positive_int(text: str) -> int:
    """The `type` of an option that takes a number of 1 or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not 1 or more")
    return number
