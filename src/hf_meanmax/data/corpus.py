"""Corpora: text files and documents in memory, read as lines of sentences.

Iterating over a corpus yields one stripped sentence at a time; an empty string ends a document.
"""

from __future__ import annotations

import bz2
import codecs
import hashlib
import io
import lzma
import os
import re
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast, get_args

from hf_meanmax.extras import require
from hf_meanmax.fields import check_choice
from hf_meanmax.files import EncodingErrors, json_digest

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem
    from transformers import PreTrainedTokenizerBase

COMPRESSED = (".gz", ".xz", ".zst", ".bz2")
_PACKED = {
    b"\x1f\x8b": ".gz",
    b"\xfd7zXZ\x00": ".xz",
    b"\x28\xb5\x2f\xfd": ".zst",
    b"BZh": ".bz2",
    b"PK\x03\x04": "zip",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"%PDF-1.": "PDF",
    b"%PDF-2.": "PDF",
    b"\xd0\xcf\x11\xe0": "Word or Excel",
}
# Document formats that are zip archives, by suffix.
_DOCUMENTS = {".docx": "Word", ".xlsx": "Excel", ".pptx": "PowerPoint", ".odt": "OpenDocument", ".ods": "OpenDocument"}
CHARACTERS_AT_ONCE = 1 << 22


# Regular expressions of tokenizers fail on a word of some million letters.
_LONGEST_WORD = 100_000
_WORD = re.compile(r"\S+")


def readable(text: str) -> str:
    """Makes a text readable by every tokenizer: lone surrogates, which UTF-8 cannot encode, become U+FFFD, and a word
    of more than 100,000 characters is split."""
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


CHANGED = "The text changed while it was read, so its lines no longer match their vectors. Start again."


class Corpus:
    """Lines of text with document boundaries; can be read any number of times.

    `size` and `position` drive progress bars: both count `unit`s (compressed bytes of files, rows of data sets);
    `size` is None if it is unknown. `source` is the name of the file or data set for messages, if it has one.
    """

    unit = "row"
    size: int | None = None
    position: int = 0
    source: str = ""

    def __iter__(self) -> Iterator[str]:
        raise NotImplementedError

    @property
    def parts(self) -> list[Corpus]:
        """The files or data sets that are read one after the other."""
        return [self]

    def identity(self) -> object:
        """JSON-serialisable description that changes when the text may have changed."""
        raise NotImplementedError

    def fingerprint(self) -> str:
        """Hash of `identity()`; a token store built from this corpus is reused while the hash stays the same."""
        return json_digest(self.identity())

    def check_unchanged(self, fingerprint: str) -> None:
        """Raises ValueError if the corpus no longer has this fingerprint; to be called after reading it."""
        if self.fingerprint() != fingerprint:
            raise ValueError(CHANGED)


class TextFile(Corpus):
    """One UTF-8 text file, plain or compressed (.gz, .xz, .zst, .bz2).

    A line is a sentence, a blank line ends a document.

    Args:
        path: path of the file.
        encoding_errors: what to do with bytes that are not UTF-8: "strict" (an error), "replace" or "ignore".
        filesystem: the fsspec file system of `path` (default: local files).
        is_table: whether lines hold tab-separated columns, so that tabs at the ends of a line are kept.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: an unknown `encoding_errors`.
    """

    unit = "B"

    def __init__(
        self,
        path: str | os.PathLike[str],
        encoding_errors: str = "strict",
        filesystem: AbstractFileSystem | None = None,
        is_table: bool = False,
    ):
        check_choice("encoding_errors", encoding_errors, get_args(EncodingErrors))
        self.path = os.fspath(path)
        self.encoding_errors = encoding_errors
        self.filesystem = filesystem
        self.is_table = is_table
        self.source = self.path if filesystem is None else filesystem.unstrip_protocol(self.path)
        self.size = os.stat(self.path).st_size if filesystem is None else filesystem.size(self.path)

    def __iter__(self) -> Iterator[str]:
        self.position = 0
        with self._open() as raw:
            try:
                # utf-8-sig: a byte-order mark is no part of the first sentence. Only a line feed ends a line, as in
                # `wc -l`.
                text = io.TextIOWrapper(
                    decompressed(raw, self.source), encoding="utf-8-sig", errors=self.encoding_errors, newline="\n"
                )
                is_looked_at = False
                for number, line in enumerate(text):
                    # A UTF-16 byte-order mark may have been decoded to U+FFFD.
                    if not is_looked_at and (content := line.strip("\ufffd\r\n")):
                        is_looked_at = True
                        if 3 * content.count("\0") > len(content):
                            raise ValueError(
                                f"{self.source} holds NUL characters, as UTF-16 does. Convert it: iconv -f UTF-16 -t "
                                "UTF-8."
                            )
                    if number % 1024 == 0:
                        self.position = raw.tell()
                    if number == 0 and not line.endswith("\n") and (returns := line.strip().count("\r")):
                        warnings.warn(
                            f"{self.source} has no line feed, but carriage returns ({returns:,}), and is read as one "
                            "line. If they end its lines, convert it: tr '\\r' '\\n'.",
                            stacklevel=2,
                        )
                    yield readable(line.strip(" \r\n") if self.is_table else line.strip())
            except UnicodeDecodeError as error:
                raise self._located(error) from None
            except EOFError as error:
                raise ValueError(f"{self.source}: the compressed file is damaged or cut short ({error}).") from error
            except (OSError, ValueError, ImportError):
                raise
            except Exception as error:
                # Packages that read over a network raise errors of their own.
                if self.filesystem is None:
                    raise
                raise OSError(f"{self.source} could not be read ({type(error).__name__}: {error}).") from error
        self.position = self.size or 0

    def identity(self) -> object:
        if self.filesystem is not None:
            return ["file", self.source, *version_at(self.filesystem, self.path), self.encoding_errors]
        status = os.stat(self.path)
        return ["file", str(Path(self.path).resolve()), status.st_size, status.st_mtime_ns, self.encoding_errors]

    def _open(self) -> IO[bytes]:
        if self.filesystem is None:
            return open(self.path, "rb")
        opened: IO[bytes] = self.filesystem.open(self.path, "rb")
        return opened

    def _located(self, error: UnicodeDecodeError) -> UnicodeDecodeError:
        """The same error with file, line and remedy; a second pass over the bytes finds the line."""
        place = self.source
        with self._open() as raw:
            for number, line in enumerate(decompressed(raw, self.source), start=1):
                try:
                    line.decode("utf-8")
                except UnicodeDecodeError as found:
                    error, place = found, f"{self.source}, line {number}"
                    break
        reason = f"{error.reason} in {place}: the file is not UTF-8. {convert_remedy(error.object)}"
        return UnicodeDecodeError(error.encoding, error.object, error.start, error.end, reason)


def convert_remedy(content: bytes) -> str:
    """Advice for an error message about text that is not UTF-8."""
    if content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "It seems to be UTF-16. Convert it: iconv -f UTF-16 -t UTF-8"
    if 3 * content.decode("utf-8", "replace").count("\ufffd") > len(content):
        return "Convert it from its own encoding, as iconv -f GB18030 -t UTF-8 (Chinese) or WINDOWS-1251 (Cyrillic)"
    return (
        "Convert it from its own encoding, as iconv -f WINDOWS-1252 -t UTF-8 (western Europe) or WINDOWS-1250 "
        "(central), or go on with --encoding_errors replace"
    )


def decompressed(raw: IO[bytes], name: str) -> Any:
    """A reader of an open file's bytes, decompressed if its name has the suffix of a compressed file.

    Raises:
        ValueError: it is compressed but its name lacks the suffix, or it has another binary format.
    """
    if suffix_of(name) in COMPRESSED:
        return io.BufferedReader(_Decompressed(raw, name), buffer_size=1 << 20)
    # Files opened by fsspec have no `peek`, and over HTTP cannot be rewound.
    reader = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, raw), 1 << 20)
    start = reader.peek(8)[:8]
    for magic, kind in _PACKED.items():
        # "BZh" may begin a text, but not with the constant that follows in a .bz2 file.
        if start.startswith(magic) and (kind != ".bz2" or start[4:8] == b"1AY&"):
            kind = _DOCUMENTS.get(suffix_of(name), kind) if kind == "zip" else kind
            remedy = f"Name it so that it ends in {kind}." if kind in COMPRESSED else "Unpack it."
            if kind not in (*COMPRESSED, "zip", "7z"):
                remedy = "Save its text as .txt, or its table as .csv."
            raise ValueError(f"{name} is no text: its first bytes are those of a {kind.strip('.')} file. {remedy}")
    return reader


def suffix_of(name: str) -> str:
    """The last suffix of a file's name or address, in lower case."""
    return Path(name).suffix.lower()


def _decompressor(name: str) -> tuple[Callable[[], Any], type[Exception]]:
    """A factory of decompressors for one frame of a file, and the type of their errors."""
    suffix = suffix_of(name)
    if suffix == ".gz":
        return partial(zlib.decompressobj, wbits=31), zlib.error
    if suffix == ".xz":
        return lzma.LZMADecompressor, lzma.LZMAError
    if suffix == ".bz2":
        return bz2.BZ2Decompressor, OSError
    zstandard = require("zstandard", "zstd", f"{name} is compressed and")
    return zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj, zstandard.ZstdError


class _Decompressed(io.RawIOBase):
    """Decompressed bytes of a file of one or more frames.

    The libraries' own readers disagree about truncated files and about bytes after the last frame. Here truncation is
    an error, and only NUL bytes, as padding, may follow the last frame.
    """

    def __init__(self, raw: IO[bytes], name: str):
        self._raw = raw
        self._make, self._error = _decompressor(name)
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


def text_digest(texts: Corpus) -> str:
    """A hash of the lines of a corpus."""
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


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
        return ["documents", text_digest(self)]


class Chain(Corpus):
    """Several corpora one after the other, with a document boundary between them.

    A glob and the list of its files are the same corpus.
    """

    boundary = True

    def __init__(self, parts: Sequence[Corpus]):
        self._parts = [inner for part in parts for inner in part.parts]
        self.unit = self.parts[0].unit
        sizes = [part.size for part in self.parts]
        self.size = None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def parts(self) -> list[Corpus]:
        return self._parts

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
    """The lines of a corpus, blank lines included, without the boundaries that [`Chain`] adds between files."""

    boundary = False

    def __init__(self, corpus: Corpus):
        super().__init__([corpus])

    def shards(self, size: int) -> Iterator[list[str]]:
        """Yields the lines in lists of `size`."""
        lines = iter(self)
        while shard := list(islice(lines, size)):
            yield shard


def unchanged_lines(corpus: Corpus, fingerprint: str) -> Iterator[str]:
    """Yields the lines of [`CorpusLines`][]; after the last one raises ValueError if the corpus no longer has this
    fingerprint."""
    yield from CorpusLines(corpus)
    corpus.check_unchanged(fingerprint)


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


def version_at(filesystem: AbstractFileSystem, path: str) -> list[str]:
    """Identifies the version of a file at an address: fsspec's key (for HTTP only the address) and the server's
    metadata of the content."""
    info = filesystem.info(path)
    said = (info.get(name) for name in ("size", "ETag", "Content-MD5", "Digest", "Last-Modified"))
    return [filesystem.ukey(path), *map(str, said)]


def by_size(lines: Iterable[str], number: int) -> Iterator[list[str]]:
    """Lists of `number` lines, or of fewer if they are long, so that a list stays at some megabytes."""
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
