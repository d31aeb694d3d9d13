"""Which corpus a name means: files, a glob, a table, a data set."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path

from .corpus import COMPRESSED, Chain, Corpus, Documents, TextFile
from .tables import (
    TABLES,
    DatasetRows,
    choose_split,
    is_empty_table,
    load_from_disk,
    load_from_hub,
    load_table,
    table_kind,
)

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def open_corpus(
    source: object,
    encoding_errors: str = "strict",
    text_column: str = "text",
    split: str = "train",
    config_name: str | None = None,
    rows_are_documents: bool = False,
) -> Corpus:
    """Open text files or a data set as a `Corpus`.

    Args:
        source: a path or glob of text files (any suffix, perhaps with .gz, .xz, .zst or .bz2) or of .csv, .json,
            .jsonl or .parquet tables with named columns, the folder of a data set written by `save_to_disk`, the name
            of a data set on the Hub (streamed; a `Path` is never one), a loaded data set, a `Corpus`, or a list.
        encoding_errors: what to do with bytes that are not UTF-8: "strict" (an error), "replace" or "ignore".
        text_column: the column of a data set or table that holds the text.
        split: the split of a data set.
        config_name: the configuration of a data set on the Hub.
        rows_are_documents: whether every row of a data set is a document of its own.

    Raises:
        FileNotFoundError: no such file, no match of a glob, no such data set.
        ValueError: unknown split, column or `encoding_errors`, a column of a text file, an empty list, a damaged table,
            or a folder that is no data set.
    """
    if isinstance(source, Corpus):
        return source
    if isinstance(source, os.PathLike):
        if not os.path.exists(source) and not glob.has_magic(os.fspath(source)):
            raise FileNotFoundError(f"No such file: {os.fspath(source)!r}.")
        source = os.fspath(source)
    if isinstance(source, (list, tuple)):
        if not source:
            raise ValueError("The corpus is an empty list; name at least one file or data set.")
        options = (encoding_errors, text_column, split, config_name, rows_are_documents)
        return Chain([open_corpus(item, *options) for item in source])
    if not isinstance(source, str):
        if not hasattr(source, "column_names"):
            raise TypeError(f"A corpus is a path, a data set or a list of these; got {type(source).__name__}.")
        if isinstance(source, dict):
            source = choose_split(source, split, "the data set")
        return DatasetRows(source, text_column, rows_are_documents, name=repr(getattr(source, "info", None)))

    def open_file(path: Path) -> Corpus:
        if split != "train" or config_name is not None:
            name, given = ("split", split) if split != "train" else ("config_name", config_name)
            raise ValueError(f"{path} is a file, which has no {name} {given!r}; leave --{name} out.")
        return _open_file(path, encoding_errors, text_column, rows_are_documents)

    path = Path(source).expanduser()
    if path.is_file():
        return open_file(path)
    if path.is_dir():
        return DatasetRows(load_from_disk(path, split), text_column, rows_are_documents)
    if glob.has_magic(source):
        files = sorted(file for file in glob.glob(str(path), recursive=True) if os.path.isfile(file))
        if not files:
            raise FileNotFoundError(f"No file matches {source!r}.")
        return Chain([open_file(Path(file)) for file in files])
    looks_local = source.startswith((".", "/", "~")) or path.suffix.lower() in (".txt", ".tsv", *COMPRESSED, *TABLES)
    in_a_folder = path.parent != Path(".") and path.parent.is_dir()
    if looks_local or in_a_folder or not _HUB_NAME.fullmatch(source):
        raise FileNotFoundError(f"No such file, folder or data set: {source!r}.")
    dataset = load_from_hub(source, split, config_name)
    return DatasetRows(dataset, text_column, rows_are_documents, name=[source, config_name, split, repr(dataset.info)])


def _open_file(path: Path, encoding_errors: str, text_column: str, rows_are_documents: bool) -> Corpus:
    if table_kind(path) and is_empty_table(path):
        return Documents([])
    if table_kind(path):
        return DatasetRows(load_table(path, encoding_errors), text_column, rows_are_documents)
    if text_column != "text":
        raise ValueError(
            f"{path} is read as lines of text, which have no column {text_column!r}. Columns are those of "
            f"{', '.join(TABLES)} files and of data sets; write one of these, or leave the column out."
        )
    return TextFile(path, encoding_errors)
