"""Opens corpora by name: files, globs, tables, data sets."""

from __future__ import annotations

import glob
import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hf_meanmax.fields import option
from hf_meanmax.files import EncodingErrors

from .corpus import Chain, Corpus, Documents, TextFile, version_at
from .tables import (
    TABLES,
    DatasetRows,
    choose_split,
    has_no_splits,
    load_from_disk,
    load_from_hub,
    load_table,
    looks_local,
    table_kind,
)

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


def open_corpus(
    source: object,
    encoding_errors: str = "strict",
    text_column: str = "text",
    split: str = "train",
    config_name: str | None = None,
) -> Corpus:
    """Opens text files or a data set as a `Corpus`.

    Args:
        source: a path or glob of text files (any suffix, perhaps with .gz, .xz, .zst or .bz2) or of .csv, .json,
            .jsonl or .parquet tables with named columns, the folder of a data set written by `save_to_disk`, the name
            of a data set on the Hub (streamed; a `Path` is never one), a loaded data set, a `Corpus`, or a list. Files
            may also be addresses (`hf://datasets/USER/NAME/*.txt.gz`, `s3://`, `https://`, ...), which are streamed.
        encoding_errors: what to do with bytes that are not UTF-8: "strict" (an error), "replace" or "ignore".
        text_column: the column of a data set or table that holds the text.
        split: the split of a data set.
        config_name: the configuration of a data set on the Hub.

    Raises:
        FileNotFoundError: no such file, no match of a glob, no such data set.
        ValueError: unknown split, column or `encoding_errors`, a column name for a text file, an empty list, a damaged
            table, a folder that is no data set, or an address of an unknown protocol.
        ImportError: the package that reads addresses of this protocol is not installed.
        OSError: an address cannot be opened.
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
        options = (encoding_errors, text_column, split, config_name)
        return Chain([open_corpus(item, *options) for item in source])
    if not isinstance(source, str):
        if not hasattr(source, "column_names"):
            raise TypeError(f"A corpus is a path, a data set or a list of these; got {type(source).__name__}.")
        if isinstance(source, dict):
            source = choose_split(source, split, "the data set")
        return DatasetRows(source, text_column)

    def open_file(path: str | Path, filesystem: AbstractFileSystem | None = None) -> Corpus:
        _refuse_parts(f"{path} is a file", split, config_name)
        return _open_file(path, encoding_errors, text_column, filesystem)

    if is_address(source):
        filesystem, paths = _find_at(source)
        return Chain([open_file(path, filesystem) for path in paths])
    path = Path(source).expanduser()
    if path.is_file():
        return open_file(path)
    if path.is_dir():
        dataset = load_from_disk(path, split)
        _refuse_parts(f"{path} is a saved data set", split if has_no_splits(path) else "train", config_name)
        return DatasetRows(dataset, text_column, [str(path)])
    if path.exists():
        raise ValueError(f"{path} is a pipe or a device, and a corpus is read more than once. Write it to a file.")
    if glob.has_magic(source):
        files = sorted(file for file in glob.glob(str(path), recursive=True) if os.path.isfile(file))
        if not files:
            raise FileNotFoundError(f"No file matches {source!r}.")
        return Chain([open_file(Path(file)) for file in files])
    if looks_local(source):
        raise FileNotFoundError(f"No such file, folder or data set: {source!r}.")
    dataset, commit = load_from_hub(source, split, config_name)
    return DatasetRows(dataset, text_column, name=[source, config_name, split, repr(dataset.info), commit])


def _refuse_parts(what: str, split: str, config_name: str | None) -> None:
    if split != "train" or config_name is not None:
        name, given = ("split", split) if split != "train" else ("config_name", config_name)
        raise ValueError(f"{what}, which has no {name} {given!r}; leave --{name} out.")


@dataclass(kw_only=True)
class TextOptions:
    """How texts are read from the lines of a file or a column of a table."""

    encoding_errors: EncodingErrors = option("what to do with bytes that are not UTF-8", "strict")
    text_column: str = option("column of the texts, in a table or a data set", "text")

    def open_texts(self, source: object) -> Corpus:
        """Opens the texts of `source` with [`open_corpus`], which has the kinds of sources and the errors."""
        return open_corpus(source, self.encoding_errors, self.text_column)

    def open_beside(self, name: str) -> Corpus:
        """Opens another file or glob; a table is read from the column of the texts."""
        column = self.text_column if table_kind(name) else "text"
        return open_corpus(name if is_address(name) else Path(name).expanduser(), self.encoding_errors, column)


def is_address(name: str) -> bool:
    """Whether a name is an address of a remote file, such as `s3://bucket/file.txt`."""
    return "://" in name


def _find_at(address: str) -> tuple[AbstractFileSystem, list[str]]:
    """The file system of an address, and the paths in it that match the address or its glob."""
    from fsspec import available_protocols
    from fsspec.core import url_to_fs

    protocol = re.split("://|::", address)[0]
    if protocol not in available_protocols():
        raise ValueError(f"{address!r} begins with {protocol!r}; choose one of {', '.join(available_protocols())}.")
    paths, is_folder = [], False
    try:
        filesystem, path = url_to_fs(address)
        is_pattern = "*" in path
        if not is_pattern:
            try:
                # One request shows both whether the path exists and whether it is a folder.
                is_folder, paths = filesystem.info(path)["type"] == "directory", [path]
            except FileNotFoundError:
                # In a web address a question mark begins a query.
                is_pattern = glob.has_magic(path) and "http" not in address.partition("://")[0]
        if is_pattern:
            found = filesystem.glob(path, detail=True)
            paths = sorted(name for name, info in found.items() if info["type"] != "directory")
    except FileNotFoundError:
        pass
    except ImportError as error:
        raise ImportError(f"{address!r} cannot be read: {error}.") from error
    except OSError:
        raise
    except Exception as error:
        # Each package raises errors of its own.
        raise OSError(f"{address!r} could not be opened ({type(error).__name__}: {error}).") from error
    if is_folder:
        raise ValueError(f"{address!r} is a folder; give a glob such as {address.rstrip('/')}/*.txt.")
    if not paths:
        raise FileNotFoundError(f"There is no file at {address!r}.")
    return filesystem, paths


def _open_file(
    path: str | Path,
    encoding_errors: str,
    text_column: str,
    filesystem: AbstractFileSystem | None,
) -> Corpus:
    if table_kind(path):
        table = load_table(path, encoding_errors, filesystem)
        if table is None:
            return Documents([])
        name = [str(path)]
        if filesystem is not None:
            name = [filesystem.unstrip_protocol(path), *version_at(filesystem, str(path))]
        return DatasetRows(table, text_column, name)
    if text_column != "text":
        raise ValueError(
            f"{path} is read as lines of text, which have no column {text_column!r}. Columns are those of "
            f"{', '.join(TABLES)} files and of data sets; write one of these, or leave the column out."
        )
    if Path(path).suffix.lower() == ".tsv":
        warnings.warn(
            f"{path} is read as lines of text, with the tabs in them. Columns are those of {', '.join(TABLES)} files.",
            stacklevel=2,
        )
    return TextFile(path, encoding_errors, filesystem)
