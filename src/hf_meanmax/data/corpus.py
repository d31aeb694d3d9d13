"""Corpora: text files, `datasets` data sets and in-memory documents, all read as lines of sentences.

Iterating over a corpus yields one stripped sentence at a time; an empty string ends a document.
"""

from __future__ import annotations

import bz2
import glob
import hashlib
import io
import json
import lzma
import os
import re
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

ENCODING_ERRORS = ("strict", "replace", "ignore")
COMPRESSED = (".gz", ".xz", ".zst", ".bz2")
TABLES = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
_PACKED = {
    b"\x1f\x8b": ".gz",
    b"\xfd7zXZ\x00": ".xz",
    b"\x28\xb5\x2f\xfd": ".zst",
    b"BZh": ".bz2",
    b"PK\x03\x04": "zip",
    b"7z\xbc\xaf\x27\x1c": "7z",
}
CHARACTERS_AT_ONCE = 1 << 22
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


# Regular expressions of tokenizers give up on a word of some million letters; no word has so many.
_LONGEST_WORD = 100_000
_WORD = re.compile(r"\S+")


def readable(text: str) -> str:
    """A text that every tokenizer can read: each half of a surrogate pair that stands alone, which no UTF-8 has, is
    U+FFFD, and a word of more than 100,000 characters is torn."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            warnings.warn("Lone surrogates in a text are read as U+FFFD.", stacklevel=3)
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return _WORD.sub(_torn, text) if len(text) > _LONGEST_WORD else text


def _torn(word: re.Match[str]) -> str:
    found = word.group()
    return " ".join(found[start : start + _LONGEST_WORD] for start in range(0, len(found), _LONGEST_WORD))


class Corpus:
    """Lines of text with document boundaries; can be read any number of times.

    `size` and `position` drive progress bars: both count `unit`s (compressed bytes of files, rows of data sets);
    `size` is None where it is unknown.
    """

    unit = "row"
    size: int | None = None
    position: int = 0

    def __iter__(self) -> Iterator[str]:
        raise NotImplementedError

    def identity(self) -> object:
        """JSON-able description that changes when the text may have changed."""
        raise NotImplementedError

    def fingerprint(self) -> str:
        """Hash of `identity()`; a token store made from this corpus is reused while it stays the same."""
        return hashlib.blake2b(json.dumps(self.identity(), sort_keys=True).encode(), digest_size=16).hexdigest()


class TextFile(Corpus):
    """One UTF-8 text file, plain or compressed (.gz, .xz, .zst, .bz2).

    A line is a sentence, a blank line ends a document.
    """

    unit = "B"

    def __init__(self, path: str | os.PathLike[str], encoding_errors: str = "strict"):
        if encoding_errors not in ENCODING_ERRORS:
            raise ValueError(f"encoding_errors is {encoding_errors!r}; choose one of {', '.join(ENCODING_ERRORS)}.")
        self.path = Path(path)
        self.encoding_errors = encoding_errors
        self.size = self.path.stat().st_size

    def __iter__(self) -> Iterator[str]:
        self.position = 0
        with open(self.path, "rb") as raw:
            try:
                # utf-8-sig: a byte-order mark is no part of the first sentence. A lone carriage return ends no line, as
                # for those who count the lines of a file.
                text = io.TextIOWrapper(
                    _decompressed(raw, self.path), encoding="utf-8-sig", errors=self.encoding_errors, newline="\n"
                )
                for number, line in enumerate(text):
                    if number == 0 and 3 * line.count("\0") > len(line) and self.encoding_errors == "strict":
                        raise ValueError(f"{self.path} holds NUL characters, as UTF-16 does. Convert it to UTF-8.")
                    if number % 1024 == 0:
                        self.position = raw.tell()
                    yield readable(line.strip())
            except UnicodeDecodeError as error:
                raise self._located(error) from None
            except EOFError as error:
                raise ValueError(f"{self.path}: the compressed file is damaged or cut short ({error}).") from error
        self.position = self.size or 0

    def identity(self) -> object:
        status = self.path.stat()
        return ["file", str(self.path.resolve()), status.st_size, status.st_mtime_ns, self.encoding_errors]

    def _located(self, error: UnicodeDecodeError) -> UnicodeDecodeError:
        """The same error with the file, the line and the remedy; found by a second pass over the bytes."""
        place = str(self.path)
        with open(self.path, "rb") as raw:
            for number, line in enumerate(_decompressed(raw, self.path), start=1):
                try:
                    line.decode("utf-8")
                except UnicodeDecodeError as found:
                    error, place = found, f"{self.path}, line {number}"
                    break
        reason = (
            f"{error.reason} in {place}: the file is not UTF-8. Convert it, or go on with --encoding-errors replace"
        )
        return UnicodeDecodeError(error.encoding, error.object, error.start, error.end, reason)


def _decompressed(raw: IO[bytes], path: Path) -> Any:
    if path.suffix.lower() in COMPRESSED:
        return io.BufferedReader(_Decompressed(raw, path), buffer_size=1 << 20)
    start = raw.read(8)
    raw.seek(0)
    for magic, kind in _PACKED.items():
        # "BZh" may begin a text, the digit and the constant after it do not.
        if start.startswith(magic) and (kind != ".bz2" or start[4:8] == b"1AY&"):
            remedy = f"Name it so that it ends in {kind}." if kind in COMPRESSED else "Unpack it."
            raise ValueError(f"{path} is no text: its first bytes are those of a {kind.strip('.')} file. {remedy}")
    return raw


def _decompressor(path: Path) -> tuple[Callable[[], Any], type[Exception]]:
    """What makes a decompressor of one frame of a file, and its error."""
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return partial(zlib.decompressobj, wbits=31), zlib.error
    if suffix == ".xz":
        return lzma.LZMADecompressor, lzma.LZMAError
    if suffix == ".bz2":
        return bz2.BZ2Decompressor, OSError
    try:
        import zstandard
    except ImportError:
        raise ImportError(f'{path}: .zst files need zstandard: pip install "hf_meanmax[zstd]"') from None
    return zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj, zstandard.ZstdError


class _Decompressed(io.RawIOBase):
    """Decompressed bytes of a file of one frame or several.

    The libraries' own readers differ in what they make of a file that is cut short, and of what follows the last frame:
    here NUL bytes, which pad files, may, and nothing else.
    """

    def __init__(self, raw: IO[bytes], path: Path):
        self._raw = raw
        self._make, self._error = _decompressor(path)
        self._frame: Any = None
        self._compressed = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            data = self._compressed or self._raw.read(1 << 14)
            if self._frame is None:
                self._compressed = b""
                padding, data = data, data.lstrip(b"\0")
                if padding and not data:
                    continue
            if not data:
                if self._frame is not None:
                    raise EOFError("the last frame is not complete")
                return 0
            self._frame = self._frame or self._make()
            try:
                self._ready = memoryview(self._frame.decompress(data))
            except self._error as error:
                raise EOFError(str(error)) from error
            self._compressed = b""
            if self._frame.eof:
                self._compressed, self._frame = self._frame.unused_data, None
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size


class DatasetRows(Corpus):
    """A column of a `datasets` data set: a row is a sentence, an empty (or null) row ends a document.

    With `rows_are_documents` every row is a document of its own and its lines are the sentences.
    """

    def __init__(
        self, dataset: Dataset, text_column: str = "text", rows_are_documents: bool = False, name: object = None
    ):
        columns = dataset.column_names
        # `translation.en` is the English of a column that holds a text in each language.
        self.column, self.part = text_column, ""
        if columns is not None and text_column not in columns:
            self.column, _, self.part = text_column.partition(".")
        if columns is not None and self.column not in columns:
            raise ValueError(f"The data set has no column {text_column!r}; choose one of {', '.join(columns)}.")
        self.dataset = dataset
        self.text_column = text_column
        self.rows_are_documents = rows_are_documents
        self.name = name
        self.size = len(dataset) if hasattr(dataset, "__len__") else None

    def __iter__(self) -> Iterator[str]:
        self.position = 0
        dataset = self.dataset if self.dataset.column_names is None else self.dataset.select_columns(self.column)
        for batch in dataset.iter(batch_size=1024):
            for row, text in enumerate(batch[self.column], start=self.position):
                if self.part and isinstance(text, dict):
                    text = text.get(self.part)
                if text is not None and not isinstance(text, str):
                    raise ValueError(
                        f"Row {row} of column {self.text_column!r} is {type(text).__name__}, not text; "
                        "name the column that holds the text."
                    )
                if self.rows_are_documents:
                    yield from (readable(line.strip()) for line in (text or "").split("\n"))
                    yield ""
                else:
                    yield readable((text or "").strip())
            self.position += len(batch[self.column])

    def identity(self) -> object:
        source = self.name if self.size is None else getattr(self.dataset, "_fingerprint", self.name)
        return ["dataset", source, self.size, self.text_column, self.rows_are_documents]


class Documents(Corpus):
    """Documents in memory, each a list of sentences."""

    def __init__(self, documents: Sequence[Sequence[str]]):
        if isinstance(documents, str) or any(isinstance(document, str) for document in documents):
            raise TypeError("Documents takes a list of documents, each a list of sentences; got a bare string.")
        self.documents = documents
        self.size = len(documents)

    def __iter__(self) -> Iterator[str]:
        self.position = 0
        for document in self.documents:
            yield from (readable(sentence.strip()) for sentence in document)
            yield ""
            self.position += 1

    def identity(self) -> object:
        digest = hashlib.blake2b(digest_size=16)
        for line in self:
            digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
        return ["documents", digest.hexdigest()]


class Chain(Corpus):
    """Several corpora one after the other, with a document boundary between them.

    A glob and the list of its files are the same corpus.
    """

    boundary = True

    def __init__(self, parts: Sequence[Corpus]):
        self.parts: list[Corpus] = []
        for part in parts:
            self.parts += part.parts if isinstance(part, Chain) else [part]
        self.unit = self.parts[0].unit
        sizes = [part.size for part in self.parts]
        self.size = None if None in sizes else sum(size for size in sizes if size is not None)

    def __iter__(self) -> Iterator[str]:
        done = 0
        for part in self.parts:
            for line in part:
                self.position = done + part.position
                yield line
            done += part.position
            if self.boundary:
                yield ""
        self.position = done

    def identity(self) -> object:
        identities = [part.identity() for part in self.parts]
        return identities[0] if len(identities) == 1 else ["chain", *identities]


class CorpusLines(Chain):
    """The lines of a corpus, for what answers line by line. Boundaries between files are no lines, blank lines are."""

    boundary = False

    def __init__(self, corpus: Corpus):
        super().__init__([corpus])

    def shards(self, size: int) -> Iterator[list[str]]:
        """The lines, so many at a time."""
        lines = iter(self)
        while shard := list(islice(lines, size)):
            yield shard


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
            source = _choose_split(source, split, "the data set")
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


def table_kind(path: Path) -> str:
    """The kind of a file with named columns, by its suffix, as `datasets` calls it; empty for other files."""
    is_packed = path.suffix.lower() in COMPRESSED
    return TABLES.get((Path(path.stem).suffix if is_packed else path.suffix).lower(), "")


def is_empty_table(path: Path) -> bool:
    """Whether a file of named columns has no row, which `datasets` refuses in many words."""
    if table_kind(path) == "parquet":
        import pyarrow.parquet  # type: ignore[import-untyped]

        try:
            return pyarrow.parquet.read_metadata(path).num_rows == 0
        except (OSError, ValueError):
            return False  # Damaged, which is said when it is read.
    most = 1 if table_kind(path) == "csv" else 0
    try:
        with open(path, "rb") as raw:
            filled = islice((line for line in _decompressed(raw, path) if line.strip()), most + 1)
            return sum(1 for line in filled if line.strip() != b"[]") <= most
    except (EOFError, OSError, ValueError):
        return False


def load_table(path: Path, encoding_errors: str = "strict") -> Dataset:
    """A file with named columns as a data set.

    Raises:
        ValueError: the file is damaged.
    """
    if is_empty_table(path):
        raise ValueError(f"{path}: empty, expected rows under named columns.")
    # Words such as "None" are texts, not missing values.
    options = {"keep_default_na": False, "encoding_errors": encoding_errors} if table_kind(path) == "csv" else {}
    try:
        return datasets_package().load_dataset(table_kind(path), data_files=str(path), split="train", **options)
    except ImportError:
        raise
    except Exception as error:
        # Of many kinds, most of which name what went wrong in their cause.
        raise ValueError(f"{path} cannot be read as a table: {error.__cause__ or error}") from error


def load_from_disk(path: Path, split: str) -> Dataset:
    if not (path / "dataset_info.json").is_file() and not (path / "dataset_dict.json").is_file():
        raise ValueError(
            f"{path} is a folder but no data set written by save_to_disk; "
            f"for text files give a glob such as {path}/*.txt."
        )
    loaded = datasets_package().load_from_disk(str(path))
    return _choose_split(loaded, split, str(path)) if isinstance(loaded, dict) else loaded


def load_from_hub(name: str, split: str, config_name: str | None) -> Dataset:
    try:
        return datasets_package().load_dataset(name, config_name, split=split, streaming=True)
    except OSError as error:
        raise FileNotFoundError(
            f"{name!r} is no file here, and no data set of this name could be opened on the Hub "
            f"({type(error).__name__}: {error})."
        ) from error


def _choose_split(loaded: dict[str, Dataset], split: str, name: str) -> Dataset:
    if split not in loaded:
        raise ValueError(f"{name} has no split {split!r}; choose one of {', '.join(map(str, loaded))}.")
    return loaded[split]


def datasets_package() -> ModuleType:
    try:
        import datasets
    except ImportError:
        raise ImportError('Reading a data set needs the datasets package: pip install "datasets"') from None
    return datasets


def pick_sentences(
    corpus: Iterable[str], tokenizer: PreTrainedTokenizerBase, number: int, min_tokens: int, max_tokens: int
) -> list[str]:
    """The first `number` sentences of `min_tokens` to `max_tokens` tokens, `</s>` not counted."""
    picked: list[str] = []
    for batch in by_size(filter(None, corpus), 1000):
        for text, ids in zip(batch, tokenizer(batch, add_special_tokens=False)["input_ids"], strict=True):
            if min_tokens <= len(ids) <= max_tokens:
                picked.append(text)
        if len(picked) >= number:
            break
    return picked[:number]


def by_size(lines: Iterable[str], number: int) -> Iterator[list[str]]:
    """Lists of `number` lines, shorter where lines are long, so that a list takes some megabytes whatever they are."""
    found: list[str] = []
    size = 0
    for line in lines:
        found.append(line)
        size += len(line)
        if len(found) == number or size >= CHARACTERS_AT_ONCE:
            yield found
            found, size = [], 0
    if found:
        yield found
