"""Tables (files with named columns) and data sets, read with the `datasets` package."""

from __future__ import annotations

import csv
import glob
import os
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hf_meanmax.files import Json
from hf_meanmax.modeling.suggestions import did_you_mean

from .corpus import COMPRESSED, Corpus, convert_remedy, decompressed, readable, text_digest

if TYPE_CHECKING:
    from datasets import Dataset
    from fsspec import AbstractFileSystem

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
# The verbosity of `datasets` and the warning filters are global to the process.
_TABLE_LOCK = threading.Lock()

_HEADER = "Its first line is read as column names; a file without them needs such a line first."
_SEPARATORS = "Commas separate columns, or semicolons or tabs if the first line has no comma."

TABLES = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}


class DatasetRows(Corpus):
    """A column of a `datasets` data set: a row is a sentence, an empty (or null) row ends a document.

    Args:
        dataset: the data set, or a stream of one.
        text_column: the column.
        name: its source (a file, or a name on the Hub), followed by values that identify the version.
    """

    def __init__(self, dataset: Dataset, text_column: str = "text", name: Sequence[object] | None = None):
        columns = dataset.column_names
        # `translation.en` is the English text in a column of dictionaries by language.
        self.column, self.part = text_column, ""
        if columns is not None and text_column not in columns:
            self.column, _, self.part = text_column.partition(".")
        self.source = str(name[0]) if name else "The data set"
        if columns is not None and self.column not in columns:
            raise missing_column(self.source, text_column, columns, "text_column")
        self.dataset = dataset
        self.text_column = text_column
        self.name: object = name
        self.size = len(dataset) if hasattr(dataset, "__len__") else None

    def __iter__(self) -> Iterator[str]:
        self.position = 0
        dataset = self.dataset if self.dataset.column_names is None else self.dataset.select_columns(self.column)
        for batch in _decoded(dataset.iter(batch_size=1024)):
            if self.column not in batch:
                raise missing_column(self.source, self.text_column, list(batch), "text_column")
            for row, text in enumerate(batch[self.column], start=self.position):
                if self.part and text is not None:
                    if not isinstance(text, dict) or self.part not in text:
                        parts = ", ".join(text) if isinstance(text, dict) else "none"
                        raise ValueError(
                            f"Row {row} of column {self.column!r} has no part {self.part!r}; choose one of {parts}."
                        )
                    text = text[self.part]
                if text is not None and not isinstance(text, str):
                    raise ValueError(
                        f"Row {row} of column {self.text_column!r} is {type(text).__name__}, not text; "
                        "name the column that holds the text."
                    )
                yield readable((text or "").strip())
            self.position += len(batch[self.column])

    def identity(self) -> object:
        if self.size is None and self.name is None:
            # A stream has no fingerprint, so its texts are hashed.
            self.name = text_digest(self)
        source = self.name if self.size is None else getattr(self.dataset, "_fingerprint", None)
        return ["dataset", source, self.size, self.text_column]


def _decoded(batches: Iterator[Json]) -> Iterator[Json]:
    try:
        yield from batches
    except UnicodeDecodeError as error:
        raise ValueError(f"A text of the table is not UTF-8 ({error.reason}). Convert the file.") from None


def missing_column(source: str, name: str, columns: Sequence[str], setting: str) -> ValueError:
    """The error for a source without the column `name`, which the option `setting` selects."""
    # A user who named another column knows the option already.
    how = f" with `--{setting}`" if name == setting.removesuffix("_column") else ""
    names = [f'"{column}"' if " " in column else column for column in columns]
    hint = did_you_mean(name, columns)
    if table_kind(source) == "csv":
        mark = next((mark for mark in (";|\t" if len(columns) == 1 else ";") if mark in "".join(columns)), "")
        if mark:
            hint = f" The separator may be {mark!r}. {_SEPARATORS} Put names that hold the separator in quotes."
        else:
            hint += f" {_HEADER}"
    return ValueError(f"{source} has no column {name!r}; choose one of {', '.join(names)}{how}.{hint}")


def table_kind(path: str | os.PathLike[str]) -> str:
    """The kind of a table, by its suffix, in the terms of `datasets`; empty for other files."""
    name = Path(path)
    is_packed = name.suffix.lower() in COMPRESSED
    return TABLES.get((Path(name.stem).suffix if is_packed else name.suffix).lower(), "")


def looks_local(name: str) -> bool:
    """Whether a name can only mean a file or folder, not a data set on the Hub."""
    path = Path(name)
    is_file = path.suffix.lower() in (".txt", ".tsv", *COMPRESSED, *TABLES)
    in_a_folder = path.parent != Path(".") and path.parent.is_dir()
    return name.startswith((".", "/", "~")) or is_file or in_a_folder or not _HUB_NAME.fullmatch(name)


def load_table(
    path: str | Path, encoding_errors: str = "strict", filesystem: AbstractFileSystem | None = None
) -> Dataset | None:
    """Loads a table as a data set; None if it has no row. All columns of a .csv are text.

    Args:
        path: the file.
        encoding_errors: what to do with bytes of a .csv that are not UTF-8.
        filesystem: the fsspec file system of a remote file, which is then streamed.

    Raises:
        ValueError: the file is damaged, or cannot be read.
    """
    kind = table_kind(path)
    options: dict[str, Any] = {}
    address = str(path) if filesystem is None else filesystem.unstrip_protocol(path)
    with _TABLE_LOCK, warnings.catch_warnings(), _errors_of(address):
        from datasets import Features, Value, load_dataset

        # pandas would drop values beyond the named columns.
        warnings.filterwarnings("error", "Length of header or names does not match")
        with open(path, "rb") if filesystem is None else filesystem.open(path, "rb") as raw:
            if kind == "csv":
                # Words such as "None" are texts, not missing values, and the first column is no index.
                options = {"keep_default_na": False, "encoding_errors": encoding_errors, "index_col": False}
                columns, is_empty = _start_of_csv(raw, address, options)
                options["features"] = Features({name: Value("string") for name in columns})
                # In a table of one column blank lines are rows.
                options["skip_blank_lines"] = len(columns) > 1
            else:
                is_empty = _has_no_row(raw, address)
        if is_empty:
            return None
        if filesystem is not None:
            table = load_dataset(kind, data_files=address, split="train", streaming=True, **options)
            # So that errors in its first rows are raised here.
            next(iter(table), None)
            return table
        # `datasets` reads a path as a glob, hence `escape`, and takes a file with the name and time of a cached one for
        # the same, hence the size in the configuration's name.
        options["name"] = f"of-{Path(path).stat().st_size}-bytes"
        return load_dataset(kind, data_files=glob.escape(str(path)), split="train", **options)


def _start_of_csv(raw: IO[bytes], name: str, options: dict[str, Any]) -> tuple[list[str], bool]:
    """The columns of a .csv and whether it has no row; adds its separator to pandas' `options`."""
    import pandas as pd  # type: ignore[import-untyped]

    content = decompressed(raw, name)
    header = next((line for line in content.peek().splitlines() if line.strip()), b"")
    unquoted = re.sub(rb'"[^"]*"', b"", header)
    options["sep"] = next((mark for mark in ",;\t" if mark.encode() in unquoted), ",")
    names = next(csv.reader([header.decode("utf-8-sig", "replace")], delimiter=options["sep"]), [])
    # pandas would rename the second one.
    if twice := [column for column in dict.fromkeys(names) if column and names.count(column) > 1]:
        raise ValueError(f"two columns have the name {twice[0]!r}. Rename one of them. {_HEADER}")
    try:
        rows = pd.read_csv(content, nrows=1, dtype=str, **options)
    except pd.errors.EmptyDataError:
        return [], True
    return list(rows.columns), rows.empty


def _has_no_row(raw: IO[bytes], name: str) -> bool:
    """Whether a .json, .jsonl or .parquet has no row, for which the errors of `datasets` are unclear; False for a
    damaged file, which is refused when it is read."""
    try:
        if table_kind(name) == "parquet":
            import pyarrow.parquet  # type: ignore[import-untyped]

            return bool(pyarrow.parquet.read_metadata(raw).num_rows == 0)
        content = b""
        for line in decompressed(raw, name):
            content += b"".join(line.split())
            if len(content) > 2:
                return False
        return content in (b"", b"[]")
    except (EOFError, OSError, ValueError):
        return False


@contextmanager
def _errors_of(address: str) -> Iterator[None]:
    """Turns errors of `datasets` and pandas about a table into one line."""
    from datasets.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)  # it logs what it also raises
    try:
        yield
    except ImportError:
        raise
    except Exception as error:
        # Errors of many types; most have the reason in their cause.
        cause = error.__cause__ or error
        reason = str(cause).strip()
        if isinstance(cause, UnicodeDecodeError) and table_kind(address) == "csv":
            reason = f"it is not UTF-8 ({cause.reason}). {convert_remedy(cause.object)}."
        elif type(cause).__name__ == "EmptyDataError":  # of pandas
            reason = "it has no line of column names, or begins with a blank line, which is to be removed"
        elif isinstance(cause, Warning):
            reason = "its first row has more values than its header has names"
        if type(cause).__name__ in ("ParserError", "ParserWarning"):  # of pandas
            reason += (
                f". {_SEPARATORS} Put texts that hold the separator in quotes, and remove it at the ends of lines."
            )
        raise ValueError(f"{address} cannot be read as a table: {reason}") from error
    finally:
        logging.set_verbosity(verbosity)


def load_from_disk(path: Path, split: str) -> Dataset:
    """Loads a split of a data set that `save_to_disk` wrote.

    Raises:
        ValueError: the folder holds no data set, or the split does not exist.
    """
    if not has_no_splits(path) and not (path / "dataset_dict.json").is_file():
        raise ValueError(
            f"{path} is a folder but no data set written by save_to_disk; "
            f"for text files give a glob such as {path}/*.txt."
        )
    import datasets

    loaded = datasets.load_from_disk(str(path))
    return choose_split(loaded, split, str(path)) if isinstance(loaded, dict) else loaded


def has_no_splits(path: Path) -> bool:
    """Whether a folder is a single data set that `save_to_disk` wrote, and not several splits."""
    return (path / "dataset_info.json").is_file()


def load_from_hub(name: str, split: str, config_name: str | None) -> tuple[Dataset, str | None]:
    """A streamed data set of the Hub, and its commit.

    Raises:
        FileNotFoundError: it cannot be opened.
    """
    from datasets import load_dataset_builder

    try:
        builder = load_dataset_builder(name, config_name)
        return builder.as_streaming_dataset(split=split), builder.hash
    except (OSError, RuntimeError) as error:  # RuntimeError: the repository is a script
        raise FileNotFoundError(
            f"{name!r} is no file here, and no data set of this name could be opened on the Hub "
            f"({type(error).__name__}: {error})."
        ) from error


def choose_split(loaded: dict[str, Dataset], split: str, name: str) -> Dataset:
    """Returns one split of a data set.

    Raises:
        ValueError: there is no such split.
    """
    if split not in loaded:
        raise ValueError(f"{name} has no split {split!r}; choose one of {', '.join(map(str, loaded))}.")
    return loaded[split]
