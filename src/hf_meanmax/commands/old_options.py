"""What the command lines share: options refused with the nearest known name, errors on one line, all cores."""

from __future__ import annotations

import argparse
import difflib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hf_meanmax.data.corpus import ENCODING_ERRORS, Corpus, open_corpus


def make_parser(program: str, description: str) -> argparse.ArgumentParser:
    """A parser that takes no abbreviations and shows defaults."""
    return argparse.ArgumentParser(
        prog=program,
        description=description,
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )


def parse_arguments(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses `argv` (default: the command line); a misspelt option ends the program with the nearest known name."""
    print_what_can_be_printed()
    words = sys.argv[1:] if argv is None else list(argv)
    known = [name for action in parser._actions for name in action.option_strings]
    # After a bare `--` there are no options, and argparse takes what holds a space for a text.
    for word in words[: words.index("--")] if "--" in words else words:
        option = word.split("=")[0]
        if option.startswith("--") and " " not in option and option not in known:
            nearest = difflib.get_close_matches(option, known, n=1, cutoff=0.5)
            hint = f"; did you mean {nearest[0]}?" if nearest else "."
            parser.error(f"unknown option {option}{hint} Known: {', '.join(known)}.")
    return parser.parse_args(words)


def print_what_can_be_printed() -> None:
    """Has letters that a terminal or file of another encoding cannot hold printed as escapes, not end the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def one_line_errors(program: str) -> Iterator[None]:
    """Ends the program with exit code 1 and one line on stderr for errors that its user can cause."""
    try:
        yield
    except (OSError, ValueError, ImportError) as error:
        raise SystemExit(f"{program}: {' '.join(str(error).split())}") from error


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


def positive_int(text: str) -> int:
    """The `type` of an option that takes a number of 1 or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not 1 or more")
    return number


def add_corpus_options(parser: argparse.ArgumentParser) -> None:
    """The positional `input` and the options of a command that reads a corpus."""
    parser.add_argument(
        "input", nargs="+", help="files or globs (text, perhaps .gz .xz .zst; .csv .jsonl .parquet), or one data set"
    )
    parser.add_argument("--encoding-errors", choices=ENCODING_ERRORS, default="strict", help="bytes that are not UTF-8")
    parser.add_argument("--text-column", default="text", help="column of a data set or table")
    parser.add_argument("--split", default="train", help="split of a data set")
    parser.add_argument("--config-name", help="configuration of a data set on the Hub")


def corpus_of(args: argparse.Namespace) -> Corpus:
    """The corpus that a command line names: files, or a data set with its options."""
    return open_corpus(
        args.input if len(args.input) > 1 else args.input[0],
        encoding_errors=args.encoding_errors,
        text_column=args.text_column,
        split=args.split,
        config_name=args.config_name,
    )


def use_all_cores(local_processes: int) -> None:
    """Gives each process its share of the cores, where `accelerate launch` left it with one thread.

    The launcher sets OMP_NUM_THREADS to 1 unless it is told otherwise, which would leave the other cores idle.
    """
    was_launched = "ACCELERATE_MIXED_PRECISION" in os.environ
    if was_launched and os.environ.get("OMP_NUM_THREADS") == "1":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        import torch

        torch.set_num_threads(max(1, cores // local_processes))
