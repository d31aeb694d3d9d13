"""Options from dataclasses: HfArgumentParser with hints for misspelt names and errors on one line."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import glob
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NoReturn, get_args, get_origin

from transformers import HfArgumentParser

from hf_meanmax.checkpoint.folder import CHECKPOINT_FILES, SETTINGS_FILE, model_around
from hf_meanmax.fields import check_settings, expand_home
from hf_meanmax.files import is_owned
from hf_meanmax.inference.embedding_files import COMPRESSION, FORMATS, MANIFEST
from hf_meanmax.inference.index import INDEX_FILES
from hf_meanmax.modeling.suggestions import did_you_mean
from hf_meanmax.pretrained import check_hides_none

_METAVARS = {int: "INT", float: "FLOAT", str: "TEXT", bool: "BOOL"}

# The largest integer that the underlying libraries accept.
_MOST = 2**63 - 1

# Metadata keys that argparse does not take.
_OWN_METADATA = ("at_least", "at_most", "writes", "is_text")

# Option names of other libraries, each with the names here; the first that the verb has is suggested.
_ELSEWHERE = {
    "batch_size": ("batch_tokens",),
    "per_device_train_batch_size": ("batch_tokens", "batch_size"),
    "train_batch_size": ("batch_tokens", "batch_size"),
    "num_train_epochs": ("epochs",),
    "num_epochs": ("epochs",),
    "lr": ("learning_rate",),
    "model_name_or_path": ("initial_model", "checkpoint"),
    "train_file": ("corpus", "train"),
    "validation_file": ("validation",),
    "test_file": ("test",),
    "max_seq_length": ("max_tokens",),
    "lr_scheduler_type": ("lr_schedule",),
}

# Files of the folders that verbs read.
_PARTS = (*CHECKPOINT_FILES, MANIFEST, COMPRESSION, "shard-*", *INDEX_FILES, SETTINGS_FILE, "metrics.jsonl")
# Suffixes of vector and text files, which no folder may have.
_FILE_SUFFIXES = (*FORMATS.values(), ".faiss", ".txt")


class _ShortHelp(argparse.ArgumentDefaultsHelpFormatter):
    """Help with one spelling of each option, and without empty defaults."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        shown = copy.copy(action)
        shown.option_strings = [name for name in action.option_strings if "-" not in name.strip("-")]
        return super()._format_action_invocation(shown)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, "", []) else super()._get_help_string(action)


class OptionParser(HfArgumentParser):  # type: ignore[misc]
    """An `HfArgumentParser` for one verb.

    Options are spelt with underscores or hyphens, and never abbreviated. The help shows each one's type, choices and
    default, with underscores. A mistake ends the program with exit code 2 and one line.

    Args:
        verb: the verb, for the usage line.
        description: what it does, in a sentence.
        options: dataclasses whose fields are the options.
    """

    def __init__(self, verb: str, description: str, *options: type) -> None:
        every = [field for kind in options for field in dataclasses.fields(kind)]
        # Texts may follow options; a file or model there is more likely a second value of the option.
        self.text_options = {field.name for field in every if field.metadata.get("is_text")}
        super().__init__(
            list(options), prog=f"hf-meanmax {verb}", description=description, allow_abbrev=False,
            formatter_class=_ShortHelp,
        )  # fmt: skip

    @staticmethod
    def _parse_dataclass_field(parser: argparse.ArgumentParser, field: dataclasses.Field[Any]) -> None:
        before = len(parser._actions)
        # HfArgumentParser hands all metadata to argparse, and changes the type of the field.
        field = copy.copy(field)
        field.metadata = MappingProxyType({k: v for k, v in field.metadata.items() if k not in _OWN_METADATA})
        if field.metadata.get("positional"):
            _add_positional(parser, field)
        else:
            HfArgumentParser._parse_dataclass_field(parser, field)
        for action in parser._actions[before:]:
            if action.option_strings and action.option_strings[0].startswith("--no_"):
                action.help = f"turn --{field.name} off"
            if value_type(field.type) is int:
                action.type = whole_number
            if action.option_strings and action.metavar is None and action.choices is None and action.nargs != 0:
                action.metavar = _METAVARS.get(value_type(field.type), "VALUE")
            if action.required and action.option_strings:
                action.default = argparse.SUPPRESS  # the help would show None

    def error(self, message: str) -> NoReturn:
        """Ends the program with exit code 2 and one line."""
        print(f"{self.prog}: error: {message}", file=sys.stderr)
        raise SystemExit(2)

    def parse(self, argv: Sequence[str] | None = None) -> tuple[Any, ...]:
        """The options classes, filled from `argv` (default: the command line), in the order of the constructor.

        Raises:
            ValueError: an output folder has the suffix of a file, or the name of a packaged model.
            FileExistsError: an output would replace an input, or an output folder lies inside a model.
        """
        words = sys.argv[1:] if argv is None else list(argv)
        self._refuse_unknown(words)
        try:
            # argparse loses a `--` when it reads texts that follow options.
            read = (
                self.parse_known_intermixed_args if self.text_options and "--" not in words else self.parse_known_args
            )
            found, unread = read(words)
            self._refuse_unread([word for word in unread if word != "--"])
            values = {
                name: value if name in self.text_options else expand_home(value) for name, value in vars(found).items()
            }
            parsed: tuple[Any, ...] = self.parse_dict(values)
            for options in parsed:
                check_settings(options)
        except ValueError as error:
            self.error(str(error))
        _check_outputs(parsed)
        return parsed

    def _refuse_unread(self, words: Sequence[str], hint: str = "") -> None:
        if words:
            self.error(f"{words[0]!r} is not expected: it is no value of an option.{hint} See {self.prog} --help.")

    def _refuse_unknown(self, words: Sequence[str]) -> None:
        known = [name for action in self._actions for name in action.option_strings]
        # After a bare `--` there are no options, and argparse takes a word with a space for a text.
        for word in words[: words.index("--")] if "--" in words else words:
            name = word.partition("=")[0]
            if name.startswith("--") and " " not in name and name not in known:
                options = [f"--{option}" for option in _ELSEWHERE.get(name.strip("-").replace("-", "_"), ())]
                meant = [f" Here it is {option}." for option in options if option in known][:1]
                hint = "".join(meant) or did_you_mean(name, known, cutoff=0.5, quote="") or f" See {self.prog} --help."
                self.error(f"unknown option {name}.{hint}")


def _check_outputs(parsed: Sequence[Any]) -> None:
    """Refuses outputs that are an input, a part of one or inside a model, and output folders with a file's suffix."""
    values = [(field, getattr(options, field.name)) for options in parsed for field in dataclasses.fields(options)]
    outputs = [(field, Path(value)) for field, value in values if "writes" in field.metadata and value]
    inputs = [value for field, value in values if "writes" not in field.metadata]
    for field, path in outputs:
        if field.metadata["writes"] == "folder" and path.suffix in _FILE_SUFFIXES and not path.is_dir():
            raise ValueError(
                f"--{field.name} {path} is the name of a file, but it names a folder. Take for instance "
                f"{path.with_suffix('')}."
            )
        check_hides_none(path, f"--{field.name}")
        model = model_around(path.absolute().parent) if field.metadata["writes"] == "folder" else None
        if model is not None:
            raise FileExistsError(f"--{field.name} {path} lies in {model}, a model. Name a folder outside it.")
        for read in _existing(inputs) if path.exists() else ():
            is_part = path.is_file() and read.is_dir() and path.resolve().parent == read.resolve()
            if path.samefile(read) or (is_part and is_owned(path.name, _PARTS)):
                where = "" if path.samefile(read) else f" in {read}"
                raise FileExistsError(f"--{field.name} {path} is what would be read{where}. Name another place.")


def _existing(values: Sequence[object]) -> Iterator[Path]:
    """The existing files and folders among values of options: single names, lists and globs."""
    names = [item for value in values for item in (value if isinstance(value, list) else [value])]
    for name in (name for name in names if isinstance(name, str) and name and "\0" not in name):
        if os.path.exists(name):
            yield Path(name)
        elif glob.has_magic(name):
            yield from map(Path, glob.iglob(name, recursive=True))


def _add_positional(parser: argparse.ArgumentParser, field: dataclasses.Field[Any]) -> None:
    is_list = get_origin(field.type) is list
    has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    nargs = ("*" if has_default else "+") if is_list else ("?" if has_default else None)
    default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
    parser.add_argument(
        field.name,
        nargs=nargs,
        type=value_type(field.type),
        default=default if has_default else None,
        help=field.metadata["help"],
    )


def whole_number(text: str) -> int:
    """`text` as an integer, which may be written as `2e4`.

    Raises:
        argparse.ArgumentTypeError: it is not an integer, or too large.
    """
    try:
        number = int(text) if text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        number = float("nan")
    if isinstance(number, float) and not number.is_integer():
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}")
    number = int(number)
    if number > _MOST:
        raise argparse.ArgumentTypeError(f"{number} is not {_MOST} or less")
    return number


def value_type(kind: Any) -> Any:
    """The type of one value: int for `list[int]` and `int | None`."""
    inner = [part for part in get_args(kind) if part is not type(None)]
    if get_origin(kind) is Literal or not inner:
        return kind
    return value_type(inner[0])
