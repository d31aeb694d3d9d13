"""What the verbs of `hf-meanmax` share: options from dataclasses, hints for misspelt ones, errors on one line."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from hf_meanmax.data.corpus import Corpus, open_corpus
from hf_meanmax.option_parser import OptionParser as OptionParser
from hf_meanmax.option_parser import escape_unprintable as escape_unprintable


def option(help: str, default: Any = dataclasses.MISSING, **metadata: Any) -> Any:
    """A field of an options class: `--name`, with its help; without a default it is required."""
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata={"help": help, **metadata})
    return dataclasses.field(default=default, metadata={"help": help, **metadata})


def positional(help: str, default: Any = dataclasses.MISSING) -> Any:
    """A field of an options class that is given by its place, not its name; a list takes one value or more."""
    return option(help, default, positional=True)


def count(help: str, default: Any = dataclasses.MISSING) -> Any:
    """A field of an options class that takes a number of 1 or more."""
    return option(help, default, at_least=1)


def run_subverb(
    verb: str,
    subverbs: Mapping[str, Callable[[Sequence[str]], int | None]],
    argv: Sequence[str] | None,
) -> int:
    """Runs the function that the first word of `argv` (default: the command line) names; returns the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if words and words[0] in subverbs:
        return subverbs[words[0]](words[1:]) or 0
    usage = f"usage: hf-meanmax {verb} {{{','.join(subverbs)}}} [options]"
    if words and words[0] in ("-h", "--help"):
        print(f"{usage}\n\neach has its own --help")
        return 0
    given = f"unknown {words[0]!r}" if words else "a word is missing"
    print(f"{usage}\nhf-meanmax {verb}: error: {given}; choose from {', '.join(subverbs)}", file=sys.stderr)
    raise SystemExit(2)


@contextmanager
def one_line_errors(verb: str) -> Iterator[None]:
    """Ends the program with exit code 1 and one line on stderr for errors that its user can cause."""
    try:
        yield
    except (OSError, ValueError, ImportError) as error:
        raise SystemExit(f"hf-meanmax {verb}: {' '.join(str(error).split())}") from error


def named_folders(words: Sequence[str]) -> dict[str, str]:
    """Folders by name, from arguments `NAME=FOLDER` or `FOLDER`, whose name is then the folder's own.

    Raises:
        ValueError: two of them have the same name.
    """
    folders: dict[str, str] = {}
    for word in words:
        name, equals, folder = word.partition("=")
        folders[name if equals else os.path.basename(os.path.abspath(word))] = folder if equals else word
    if len(folders) < len(words):
        raise ValueError(f"The folders need different names, got {', '.join(words)}; give NAME=FOLDER.")
    return folders


@dataclass
class CorpusOptions:
    """The options of a verb that reads a corpus."""

    input: list[str] = positional(
        "text files or globs (.txt .gz .xz .zst), tables (.csv .jsonl .parquet), or one data set"
    )
    encoding_errors: Literal["strict", "replace", "ignore"] = option(
        "what to do with bytes that are not UTF-8", "strict"
    )
    text_column: str = option("column of a data set or table", "text")
    split: str = option("split of a data set", "train")
    config_name: str | None = option("configuration of a data set on the Hub", None)

    def open(self) -> Corpus:
        """The corpus that the options name.

        Raises:
            FileNotFoundError, ValueError: as [`~hf_meanmax.data.open_corpus`].
        """
        return open_corpus(
            self.input if len(self.input) > 1 else self.input[0],
            encoding_errors=self.encoding_errors,
            text_column=self.text_column,
            split=self.split,
            config_name=self.config_name,
        )
