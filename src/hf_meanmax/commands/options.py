"""Shared parts of the verbs of `hf-meanmax`: options from dataclasses, hints for misspelt ones, one-line errors."""

from __future__ import annotations

import dataclasses
import functools
import io
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import torch
from huggingface_hub.utils.tqdm import enable_progress_bars
from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

from hf_meanmax.data.corpus import Corpus
from hf_meanmax.data.opening import TextOptions, open_corpus
from hf_meanmax.fields import count as count
from hf_meanmax.fields import option as option
from hf_meanmax.files import run_name
from hf_meanmax.hardware import use_all_cores
from hf_meanmax.inference.encoder import load_encoder
from hf_meanmax.pretrained import ENCODER_SOURCES
from hf_meanmax.processes import PeerEndedError, errors_once, process_state, tells
from hf_meanmax.training.option_parser import OptionParser as OptionParser

if TYPE_CHECKING:
    from accelerate import PartialState
    from sentence_transformers import SentenceTransformer


def positional(help: str, default: Any = dataclasses.MISSING, is_text: bool = False) -> Any:
    """A positional argument, as a field of an options class. A list takes one value or more; if `is_text`, its values
    may also follow options."""
    return option(help, default, positional=True, is_text=is_text)


def written(help: str, default: Any = dataclasses.MISSING, folder: bool = False) -> Any:
    """The name of an output, as a field of an options class. An output must not replace an input, and a `folder` must
    not lie inside a model."""
    return option(help, default, writes="folder" if folder else "file")


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
        width = max(map(len, subverbs))
        lines = (f"  {name:{width}}  {str(run.__doc__).splitlines()[0]}" for name, run in subverbs.items())
        print("\n".join([usage, "", *lines, "", "each has its own --help"]))
        return 0
    given = f"unknown {words[0]!r}" if words else "a word is missing"
    print(f"{usage}\nhf-meanmax {verb}: error: {given}; choose from {', '.join(subverbs)}", file=sys.stderr)
    raise SystemExit(2)


@contextmanager
def command_line(verb: str, *others: type[Exception]) -> Iterator[None]:
    """Shows errors and warnings of a verb on one line each, and progress bars only of this package and of downloads.

    An error that a user can cause ends the program with exit code 1; of several processes only one prints it.

    Args:
        verb: its name, for the error line.
        others: errors that a user can cause, besides OSError, ValueError and ImportError.
    """
    _escape_unprintable()
    kinds: tuple[type[Exception], ...] = (OSError, ValueError, ImportError, *others)
    try:
        with _weights_without_bars(), _warnings_without_places():
            yield
    except KeyboardInterrupt:
        print(f"\nhf-meanmax {verb}: interrupted; nothing that was finished is lost.", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None
    except (MemoryError, torch.OutOfMemoryError) as error:
        if tells(error):
            text = f"out of memory; take a smaller batch. {' '.join(str(error).split())[:200]}"
            print(f"hf-meanmax {verb}: {text.rstrip()}", file=sys.stderr)
        raise SystemExit(1) from error
    except kinds as error:
        if isinstance(error, BrokenPipeError) and _output_is_closed():
            raise SystemExit(1) from None
        text = f"hf-meanmax {verb}: {' '.join(str(error).split())}"
        raise SystemExit(text if tells(error) else 1) from error
    except PeerEndedError:
        raise SystemExit(1) from None


def _escape_unprintable() -> None:
    """Prints characters that a terminal cannot encode as escapes instead of failing; files and pipes get UTF-8."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.isatty() and "PYTHONIOENCODING" not in os.environ:
        sys.stdout.reconfigure(encoding="utf-8")


def _output_is_closed() -> bool:
    """Whether the reader of the output, such as `head`, has ended; then the rest of the output is dropped."""
    try:
        output = sys.stdout.fileno()
    except OSError:  # of a notebook
        return False
    poll = select.poll()
    poll.register(output, 0)
    is_closed = any(event & select.POLLERR for _, event in poll.poll(0))
    if is_closed:
        # Python would flush the output again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    return is_closed


@contextmanager
def _warnings_without_places() -> Iterator[None]:
    """Prints a UserWarning as one line, without the line of code that issued it."""
    usual = warnings.formatwarning

    def in_a_line(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        if not issubclass(category, UserWarning):
            return usual(message, category, filename, lineno, line)
        return f"warning: {' '.join(str(message).split())}\n"

    warnings.formatwarning = in_a_line
    try:
        yield
    finally:
        warnings.formatwarning = usual


@contextmanager
def _weights_without_bars() -> Iterator[None]:
    """Hides transformers' progress bars of loading and writing weights."""
    if not is_progress_bar_enabled():
        yield
        return
    with warnings.catch_warnings():
        # The Hub warns if HF_HUB_DISABLE_PROGRESS_BARS overrides this.
        warnings.simplefilter("ignore", UserWarning)
        disable_progress_bar()
        enable_progress_bars()  # the Hub's, which transformers disables too
    try:
        yield
    finally:
        enable_progress_bar()


def verb(name: str, **defaults: object) -> Callable[[Callable[..., None]], Callable[[Sequence[str] | None], None]]:
    """Makes a function of options classes a function of a command line (default: `sys.argv`), with one-line errors.

    The classes are the types of its arguments; its docstring is the verb's description.

    Args:
        name: the verb, for usage and errors.
        defaults: defaults of options that replace those of their classes.
    """

    def decorate(run: Callable[..., None]) -> Callable[[Sequence[str] | None], None]:
        @functools.wraps(run)
        def main(argv: Sequence[str] | None = None) -> None:
            classes = [kind for argument, kind in get_type_hints(run).items() if argument != "return"]
            with command_line(name):
                parser = OptionParser(name, run.__doc__ or "", *classes)
                parser.set_defaults(**defaults)
                with errors_once():
                    parsed = parser.parse(argv)
                run(*parsed)

        return main

    return decorate


def named_folders(words: Sequence[str]) -> dict[str, str]:
    """Folders by name, from arguments `NAME=FOLDER`, or `FOLDER` with its [`run_name`] as the name.

    Raises:
        ValueError: two of them have the same name.
    """
    folders: dict[str, str] = {}
    for word in words:
        name, equals, folder = ("", "", "") if os.path.exists(word) else word.partition("=")
        folders[name if equals else run_name(Path(os.path.abspath(word)))] = folder if equals else word
    if len(folders) < len(words):
        raise ValueError(f"The folders need different names, got {', '.join(words)}; give NAME=FOLDER.")
    return folders


@dataclass
class EncoderOptions:
    """The options of a verb that encodes texts."""

    model: str = positional(f"a checkpoint, or any SentenceTransformer ({ENCODER_SOURCES})")
    batch_size: int = count(
        "texts of one forward pass: fewer where they are long, four times as many where texts of like length are "
        "encoded together",
        64,
    )
    trust_remote_code: bool = option("run code that comes with the model", False)

    def __post_init__(self) -> None:
        # Checked before the texts are opened, whose error would mislead if model and texts are swapped.
        if os.path.isfile(self.model) and not self.model.endswith(".onnx"):
            raise ValueError(
                f"{self.model!r} is a file here, no model. The model comes first, then the texts; a model of that name "
                "elsewhere is hidden by the file."
            )

    def load(self) -> tuple[SentenceTransformer, PartialState]:
        """The SentenceTransformer on this process's device, and the state of the processes.

        Raises:
            FileNotFoundError, ValueError: as [`~hf_meanmax.inference.encoder.load_encoder`].
        """
        state = process_state()
        if state.device.type == "cpu":
            use_all_cores(state.num_processes)
        return load_encoder(self.model, self.trust_remote_code, state.device), state


CORPUS_SOURCES = (
    "text files or globs (.txt .gz .xz .zst .bz2), tables (.csv .jsonl .parquet), addresses (hf:// s3://), one data set"
)


@dataclass
class CorpusOptions(TextOptions):
    """The options of a verb that reads a corpus."""

    input: list[str] = positional(CORPUS_SOURCES)
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

    def warn_of_no_line(self) -> None:
        """Warns on stderr that the corpus has no lines."""
        print(f"warning: there is no line in {', '.join(self.input)}", file=sys.stderr)
