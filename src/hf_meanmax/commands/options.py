"""What the verbs of `hf-meanmax` share: options from dataclasses, hints for misspelt ones, errors on one line."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import difflib
import functools
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from transformers import HfArgumentParser

from hf_meanmax.data.corpus import Corpus, open_corpus
from hf_meanmax.hardware import use_all_cores
from hf_meanmax.inference.encode import load_encoder, process_state

if TYPE_CHECKING:
    from accelerate import PartialState
    from sentence_transformers import SentenceTransformer

_METAVARS = {int: "INT", float: "FLOAT", str: "TEXT", bool: "BOOL"}


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


class OptionParser(HfArgumentParser):
    """An `HfArgumentParser` for one verb.

    Options are spelt with underscores or hyphens, and never abbreviated. The help shows each one's type, choices and
    default. A mistake ends the program with exit code 2 and one line.

    Args:
        verb: the verb, for the usage line.
        description: what it does, in a sentence.
        options: dataclasses whose fields are the options.
    """

    def __init__(self, verb: str, description: str, *options: type) -> None:
        super().__init__(list(options), prog=f"hf-meanmax {verb}", description=description, allow_abbrev=False)

    @staticmethod
    def _parse_dataclass_field(parser: argparse.ArgumentParser, field: dataclasses.Field[Any]) -> None:
        before = len(parser._actions)
        least = field.metadata.get("at_least")
        # HfArgumentParser hands all metadata to argparse, and changes the type of the field.
        field = copy.copy(field)
        field.metadata = MappingProxyType({k: v for k, v in field.metadata.items() if k != "at_least"})
        if field.metadata.get("positional"):
            _add_positional(parser, field)
        else:
            HfArgumentParser._parse_dataclass_field(parser, field)
        for action in parser._actions[before:]:
            if least is not None:
                action.type = functools.partial(_number_of, least)
            if action.option_strings and action.metavar is None and action.choices is None and action.nargs != 0:
                action.metavar = _METAVARS.get(_value_type(field.type), "VALUE")
            if action.required and action.option_strings:
                action.default = argparse.SUPPRESS  # the help would show None

    def error(self, message: str) -> NoReturn:
        """Ends the program with exit code 2 and one line."""
        print(f"{self.prog}: error: {message}", file=sys.stderr)
        raise SystemExit(2)

    def parse(self, argv: Sequence[str] | None = None) -> tuple[Any, ...]:
        """The options classes, filled from `argv` (default: the command line), in the order of the constructor.

        Raises:
            ValueError: what an options class says of its values.
        """
        escape_unprintable()
        words = sys.argv[1:] if argv is None else list(argv)
        self._refuse_unknown(words)
        return self.parse_args_into_dataclasses(args=words, look_for_args_file=False)

    def _refuse_unknown(self, words: Sequence[str]) -> None:
        known = [name for action in self._actions for name in action.option_strings]
        # After a bare `--` there are no options, and argparse takes what holds a space for a text.
        for word in words[: words.index("--")] if "--" in words else words:
            name = word.partition("=")[0]
            if name.startswith("--") and " " not in name and name not in known:
                nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
                hint = f"did you mean {nearest[0]}?" if nearest else f"see {self.prog} --help"
                self.error(f"unknown option {name}; {hint}")


def _add_positional(parser: argparse.ArgumentParser, field: dataclasses.Field[Any]) -> None:
    is_list = get_origin(field.type) is list
    has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    nargs = ("*" if has_default else "+") if is_list else ("?" if has_default else None)
    default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
    parser.add_argument(
        field.name,
        nargs=nargs,
        type=_value_type(field.type),
        default=default if has_default else None,
        help=field.metadata["help"],
    )


def _number_of(least: int, text: str) -> int:
    number = int(text)
    if number < least:
        raise argparse.ArgumentTypeError(f"{number} is not {least} or more")
    return number


def _value_type(kind: Any) -> Any:
    """The type of one value: of `list[int]` and `int | None` it is int."""
    inner = [part for part in get_args(kind) if part is not type(None)]
    if get_origin(kind) is Literal or not inner:
        return kind
    return _value_type(inner[0])


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


def escape_unprintable() -> None:
    """Has letters that a terminal or file of another encoding cannot hold printed as escapes, not end the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def one_line_errors(verb: str) -> Iterator[None]:
    """Ends the program with exit code 1 and one line on stderr for errors that its user can cause."""
    try:
        yield
    except (OSError, ValueError, ImportError) as error:
        raise SystemExit(f"hf-meanmax {verb}: {' '.join(str(error).split())}") from error


def verb(name: str, **defaults: object) -> Callable[[Callable[..., None]], Callable[[Sequence[str] | None], None]]:
    """Makes a function of options classes one of a command line (default: the program's), with errors on one line.

    The classes are the types of its arguments; its docstring is the verb's description.

    Args:
        name: the verb, for usage and errors.
        defaults: of options, in place of those of their classes.
    """

    def decorate(run: Callable[..., None]) -> Callable[[Sequence[str] | None], None]:
        @functools.wraps(run)
        def main(argv: Sequence[str] | None = None) -> None:
            classes = [kind for argument, kind in get_type_hints(run).items() if argument != "return"]
            with one_line_errors(name):
                parser = OptionParser(name, run.__doc__ or "", *classes)
                parser.set_defaults(**defaults)
                run(*parser.parse(argv))

        return main

    return decorate


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
class EncoderOptions:
    """The options of a verb that encodes texts."""

    model: str = positional("a checkpoint folder, or any SentenceTransformer (a folder, or a name on the Hub)")
    batch_size: int = count("texts of one forward pass; fewer of long ones", 64)
    trust_remote_code: bool = option("run code that comes with the model", False)

    def load(self) -> tuple[SentenceTransformer, PartialState]:
        """The SentenceTransformer on this process's device, and the state of the processes.

        Raises:
            FileNotFoundError, ValueError: as [`~hf_meanmax.inference.encode.load_encoder`].
        """
        state = process_state()
        if state.device.type == "cpu":
            use_all_cores(int(os.environ.get("LOCAL_WORLD_SIZE", state.num_processes)))
        return load_encoder(self.model, self.trust_remote_code, state.device), state


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
