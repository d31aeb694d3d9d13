"""The token store: a corpus tokenised once into memory-mapped arrays.

A store is a folder of raw little-endian arrays and `store.json`. It is written under a temporary name and renamed
when it is complete, so a folder that opens is a complete store. An incomplete store also records its progress, from
which a killed build resumes.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import warnings
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from hf_meanmax.fields import check_choice
from hf_meanmax.files import Json, bytes_digest, json_digest, naming_failed_writes, replacing_folder, write_json
from hf_meanmax.metrics import counted
from hf_meanmax.progress import progress_bar
from hf_meanmax.tokenization.tokenizers import bare_backend, check_end_token

from .corpus import CHARACTERS_AT_ONCE, Corpus

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FORMAT_VERSION = 1
_LINES_PER_CHUNK = 8192
_CHUNKS_PER_RECORD = 64
_PROGRESS = "progress.json"
_BLOCK = 1 << 24
_HASHED = 1 << 22  # tokens


@dataclass(frozen=True)
class SentenceFilter:
    """Which sentences of a corpus enter a token store. Lengths are in tokens without the final `</s>`.

    Zhang, Wu, Li and Li 2018 keep sentences of 4-32 tokens: `SentenceFilter(4, 32, "drop")`; their released code also
    drops the unknown words: `drop_unknown_words=True`.

    Args:
        min_tokens: shorter sentences are dropped.
        max_tokens: longer sentences are dropped or truncated; None for no limit.
        beyond_max: "drop" or "truncate" (cut to the first `max_tokens` tokens, counted in the report).
        max_unknown_rate: sentences with a larger share of `<unk>` tokens are dropped; 1.0 keeps all.
        drop_unknown_words: remove `<unk>` tokens from the sentences before their length is checked.

    Raises:
        ValueError: a value out of its range.
    """

    min_tokens: int = 1
    max_tokens: int | None = None
    beyond_max: Literal["drop", "truncate"] = "truncate"
    max_unknown_rate: float = 1.0
    drop_unknown_words: bool = False

    def __post_init__(self) -> None:
        if self.min_tokens < 1:
            raise ValueError(f"min_tokens is {self.min_tokens}; it must be at least 1.")
        if self.max_tokens is not None and self.max_tokens < self.min_tokens:
            raise ValueError(f"max_tokens is {self.max_tokens}; it must be at least min_tokens = {self.min_tokens}.")
        check_choice("beyond_max", self.beyond_max, ("drop", "truncate"))
        if not 0.0 <= self.max_unknown_rate <= 1.0:
            raise ValueError(f"max_unknown_rate is {self.max_unknown_rate}; it must lie between 0 and 1.")


@dataclass
class StoreReport:
    """Counts of kept and dropped lines of a corpus.

    `lines` counts the lines that are not blank; `lines = kept + empty + unknown + too_short + too_long`. `truncated`
    sentences are among the kept; `unknown_tokens` and `tokens` count stored tokens (`tokens` with the `</s>`).
    """

    lines: int = 0
    kept: int = 0
    empty: int = 0
    unknown: int = 0
    too_short: int = 0
    too_long: int = 0
    truncated: int = 0
    dropped_unknown_words: int = 0
    unknown_tokens: int = 0
    tokens: int = 0
    documents: int = 0

    def add(self, part: StoreReport) -> None:
        """Adds the counts of another report."""
        for column in fields(StoreReport):
            setattr(self, column.name, getattr(self, column.name) + getattr(part, column.name))

    def dropped(self) -> str:
        return (
            f"{self.lines:,} lines read; dropped: {self.empty:,} without a token, "
            f"{self.unknown:,} by max_unknown_rate, {self.too_short:,} by min_tokens, {self.too_long:,} by max_tokens"
        )

    def __str__(self) -> str:
        unknown = self.unknown_tokens + self.dropped_unknown_words
        # Share of all words of the kept sentences, dropped words included.
        share = unknown / max(1, self.tokens - self.kept + self.dropped_unknown_words)
        return (
            f"{counted(self.kept, 'sentence')}, {self.tokens:,} tokens, {counted(self.documents, 'document')} "
            f"({self.dropped()}; truncated: {self.truncated:,}; unknown words: {unknown:,}, {share:.1%})"
        )


class Ragged(NamedTuple):
    """Rows of unequal length: all ids one after the other, and the length of each row."""

    ids: np.ndarray
    lengths: np.ndarray

    @property
    def starts(self) -> np.ndarray:
        """Index in `ids` of the first id of each row."""
        starts: np.ndarray = np.cumsum(self.lengths) - self.lengths
        return starts

    @property
    def places(self) -> np.ndarray:
        """Position of each id in its row."""
        return np.arange(len(self.ids)) - np.repeat(self.starts, self.lengths)


class TokenStore:
    """Tokenised sentences in memory-mapped arrays; `store[i]` is sentence i with its final `</s>`.

    Attributes:
        lengths: int32 (sentences,), tokens of each sentence, `</s>` included.
        document_starts: int64 (documents,), index of the first stored sentence of each document.
        positions: int32 (sentences,), position of each sentence among all lines of its document: between neighbours
            whose positions differ by one, no line was dropped.
        token_counts: int64 (vocabulary size,), frequency of each id in the store.
        report: the `StoreReport` of the build.
        fingerprint: hash of corpus, tokenizer and filter.
        checksums: CRC-32 of each array's bytes, by name.
    """

    def __init__(self, folder: Path, meta: Json, arrays: dict[str, np.ndarray]):
        self.folder = folder
        self.fingerprint: str = meta["fingerprint"]
        self.checksums: dict[str, int] = {name: entry["crc32"] for name, entry in meta["arrays"].items()}
        self.eos_token_id: int = meta["eos_token_id"]
        self.pad_token_id: int = meta["pad_token_id"]
        self.report = StoreReport(**meta["report"])
        self.tokens = arrays["tokens"]
        self.offsets = arrays["offsets"]
        self.document_starts = arrays["document_starts"]
        self.positions = arrays["positions"]
        self.token_counts = np.array(arrays["token_counts"])
        self.lengths = np.diff(self.offsets).astype(np.int32)

    @classmethod
    def open(cls, folder: str | os.PathLike[str], verify: bool = True) -> TokenStore:
        """Opens a store for reading.

        Args:
            folder: a folder written by `build_token_store`.
            verify: check checksums (about a second per gigabyte); sizes are always checked.

        Raises:
            FileNotFoundError: the folder has no store.
            ValueError: the store has another format version, or is damaged.
        """
        folder = Path(folder)
        meta_path = folder / "store.json"
        if not meta_path.is_file():
            raise FileNotFoundError(f"{folder} is no token store: it has no store.json.")
        try:
            meta = json.loads(meta_path.read_text(encoding="utf-8"))
            version = meta["format_version"]
            if version == FORMAT_VERSION:
                arrays = {name: _open_array(folder, name, entry, verify) for name, entry in meta["arrays"].items()}
                return cls(folder, meta, arrays)
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{meta_path} is damaged ({error!r}). {_REMEDY}") from error
        raise ValueError(f"{folder} has store format {version}; this version reads {FORMAT_VERSION}. {_REMEDY}")

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> np.ndarray:
        index = range(len(self))[index]
        return np.array(self.tokens[self.offsets[index] : self.offsets[index + 1]])

    def rows(self, indices: np.ndarray) -> Ragged:
        """The sentences with the given indices, ids as int64."""
        lengths = self.lengths[indices].astype(np.int64)
        starts = self.offsets[indices]
        if len(lengths) and lengths.min() == lengths.max():
            places = (starts[:, None] + np.arange(lengths[0])).ravel()
        else:
            row_starts = np.cumsum(lengths) - lengths
            places = np.arange(lengths.sum()) + np.repeat(starts - row_starts, lengths)
        return Ragged(self.tokens[places].astype(np.int64), lengths)


def count_shared(store: TokenStore, other: TokenStore) -> int:
    """Counts the sentences of `other` that are also in `store`, token by token."""
    weights = np.random.default_rng(0).integers(-(2**63), 2**63, other.lengths.max(), dtype=np.int64)

    def hashes(one: TokenStore, length: int) -> Iterator[np.ndarray]:
        places, step = np.flatnonzero(one.lengths == length), max(1, _HASHED // length)
        for start in range(0, len(places), step):
            # The weighted sum is a hash, since integers wrap around.
            yield one.rows(places[start : start + step]).ids.reshape(-1, length) @ weights[:length]

    count = 0
    for length in np.unique(other.lengths):
        wanted = np.concatenate([*hashes(other, length)])
        is_shared = np.zeros(len(wanted), bool)
        for found in hashes(store, length):
            is_shared |= np.isin(wanted, found)
        count += int(is_shared.sum())
    return count


_REMEDY = "Delete the folder; the next run builds it anew."


def _open_array(folder: Path, name: str, entry: Json, verify: bool) -> np.ndarray:
    path = folder / f"{name}.bin"
    expected = entry["length"] * np.dtype(entry["dtype"]).itemsize
    found = path.stat().st_size if path.is_file() else None
    if found != expected:
        state = "is missing" if found is None else f"has {found:,} bytes"
        raise ValueError(f"The token store is damaged: {path} {state}, expected {expected:,} bytes. {_REMEDY}")
    array = np.memmap(path, dtype=entry["dtype"], mode="r", shape=(entry["length"],))
    if array.dtype.kind not in "iu":
        raise TypeError(f"`{name}` is of type {array.dtype}")
    if verify:
        checksum = 0
        data = array.data.cast("B")
        for start in range(0, len(data), _BLOCK):
            checksum = zlib.crc32(data[start : start + _BLOCK], checksum)
        if checksum != entry["crc32"]:
            raise ValueError(f"The token store is damaged: the checksum of {path} does not match. {_REMEDY}")
    return array


class ArrayWriter:
    """Appends chunks to one raw array of a store that holds `length` numbers with checksum `crc32` already."""

    def __init__(self, folder: Path, name: str, dtype: npt.DTypeLike, length: int = 0, crc32: int = 0):
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.file = open(folder / f"{name}.bin", "r+b" if length else "wb")
        self.length = length
        self.crc32 = crc32
        self.file.seek(self.file.truncate(length * self.dtype.itemsize))

    def append(self, values: np.ndarray) -> None:
        if not len(values):
            return
        data = np.ascontiguousarray(values, dtype=self.dtype).data.cast("B")
        self.file.write(data)
        self.crc32 = zlib.crc32(data, self.crc32)
        self.length += len(values)

    def record(self) -> Json:
        """Flushes the array to disk and returns its entry for `store.json`."""
        self.file.flush()
        os.fsync(self.file.fileno())
        return {"dtype": self.dtype.str, "length": self.length, "crc32": self.crc32}

    def close(self) -> Json:
        entry = self.record()
        self.file.close()
        return entry


@dataclass
class _Progress:
    """Progress of an incomplete store: how much of the corpus its arrays hold."""

    fingerprint: str
    chunks: int = 0
    last_document: int = -1
    report: StoreReport = field(default_factory=StoreReport)
    arrays: dict[str, Json] = field(default_factory=dict)

    @classmethod
    def begin(cls, folder: Path, fingerprint: str) -> _Progress:
        """Reads the progress of a build in `folder`; empties the folder if it is damaged or of another store."""
        try:
            read = json.loads((folder / _PROGRESS).read_text(encoding="utf-8"))
            found = cls(**{**read, "report": StoreReport(**read["report"])})
            bytes_of = {name: e["length"] * np.dtype(e["dtype"]).itemsize for name, e in found.arrays.items()}
            whole = all((folder / f"{name}.bin").stat().st_size >= size for name, size in bytes_of.items())
            if whole and found.fingerprint == fingerprint:
                return found
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return cls(fingerprint)


class _Chunk(NamedTuple):
    """Lines that are not blank, the running number of their document, and their position in it."""

    lines: list[str]
    documents: np.ndarray
    positions: np.ndarray


def _chunks(corpus: Corpus) -> Iterator[_Chunk]:
    lines: list[str] = []
    documents: list[int] = []
    positions: list[int] = []
    document, position, size = 0, 0, 0
    for line in corpus:
        if not line:
            document, position = document + 1, 0
            continue
        lines.append(line)
        documents.append(document)
        positions.append(position)
        position += 1
        size += len(line)
        # A single line may be as long as a book.
        if len(lines) == _LINES_PER_CHUNK or size >= CHARACTERS_AT_ONCE:
            yield _Chunk(lines, np.array(documents), np.array(positions))
            lines, documents, positions, size = [], [], [], 0
    if lines:
        yield _Chunk(lines, np.array(documents), np.array(positions))


def apply_filter(
    rows: Ragged, unk_token_id: int | None, rule: SentenceFilter
) -> tuple[Ragged, np.ndarray, StoreReport]:
    """Filters tokenised sentences (without `</s>`).

    Returns:
        The kept rows, their indices, and the report of this chunk (`documents` and `tokens` are still 0).
    """
    ids, lengths = rows
    report = StoreReport(lines=len(lengths))
    row_of = np.repeat(np.arange(len(lengths)), lengths)
    unknown = ids == (-1 if unk_token_id is None else unk_token_id)
    unknown_counts = np.bincount(row_of[unknown], minlength=len(lengths))

    empty = lengths == 0
    too_unknown = ~empty & (unknown_counts > rule.max_unknown_rate * lengths)
    alive = ~empty & ~too_unknown
    if rule.drop_unknown_words:
        ids, row_of = ids[~unknown], row_of[~unknown]
        lengths = lengths - unknown_counts
    too_short = alive & (lengths < rule.min_tokens)
    beyond = alive & (lengths > (np.inf if rule.max_tokens is None else rule.max_tokens))
    dropped_long = beyond & (rule.beyond_max == "drop")
    kept = alive & ~too_short & ~dropped_long
    if rule.drop_unknown_words:
        report.dropped_unknown_words = int(unknown_counts[kept].sum())

    new_lengths = np.where(beyond, rule.max_tokens or 0, lengths)
    selected = kept[row_of] & (Ragged(ids, lengths).places < new_lengths[row_of])
    report.empty, report.unknown = int(empty.sum()), int(too_unknown.sum())
    report.too_short, report.too_long = int(too_short.sum()), int(dropped_long.sum())
    report.truncated = int((beyond & kept).sum())
    report.kept = int(kept.sum())
    return Ragged(ids[selected], new_lengths[kept]), np.flatnonzero(kept), report


def append_token(rows: Ragged, token_id: int) -> Ragged:
    """The rows, each with `token_id` after its last token."""
    lengths = rows.lengths + 1
    ids = np.full(int(lengths.sum()), token_id, dtype=rows.ids.dtype)
    inner = np.ones(len(ids), dtype=bool)
    inner[np.cumsum(lengths) - 1] = False
    ids[inner] = rows.ids
    return Ragged(ids, lengths)


class TokenEncoder:
    """The tokenizer's Rust part without padding, truncation and special tokens.

    Its own threads use every core and release the interpreter lock, so no more parallelism is needed than a Python
    thread that turns ids into arrays while the next chunk is encoded.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        if getattr(tokenizer, "backend_tokenizer", None) is None:
            raise TypeError(
                f"A token store needs a fast tokenizer (PreTrainedTokenizerFast); got {type(tokenizer).__name__}."
            )
        for name in ("eos_token_id", "pad_token_id"):
            if getattr(tokenizer, name) is None:
                raise ValueError(f"The tokenizer has no {name}; the token store needs it.")
        check_end_token(tokenizer)
        self.tokenizer = bare_backend(tokenizer)
        self.eos_token_id: int = tokenizer.eos_token_id
        self.pad_token_id: int = tokenizer.pad_token_id
        self.unk_token_id: int | None = tokenizer.unk_token_id
        self.vocab_size: int = len(tokenizer)

    def fingerprint(self) -> str:
        # `to_str` lacks two settings: how special tokens in a text are read, and the ids that transformers uses.
        ids = self.eos_token_id, self.pad_token_id, self.unk_token_id
        return json_digest([self.tokenizer.to_str(), self.tokenizer.encode_special_tokens, ids])

    def __call__(self, lines: list[str]) -> Ragged:
        rows = [encoding.ids for encoding in self.tokenizer.encode_batch_fast(lines, add_special_tokens=False)]
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        ids = np.fromiter(itertools.chain.from_iterable(rows), np.int64, int(lengths.sum()))
        return Ragged(ids, lengths)


def build_token_store(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | os.PathLike[str],
    filters: SentenceFilter | None = None,
    show_progress: bool = True,
) -> TokenStore:
    """Tokenises a corpus into `folder`, or opens its store if corpus, tokenizer and filter are unchanged.

    The corpus is read once, in constant memory. One warning reports the number of lines that were truncated to
    `filters.max_tokens`.

    Args:
        corpus: see `open_corpus`.
        tokenizer: a fast tokenizer that appends `</s>` and nothing else.
        folder: the folder of this store. A store of other input is replaced, any other non-empty folder is refused.
        filters: which sentences to keep.
        show_progress: show a progress bar.

    Raises:
        ValueError: no sentence passes the filters (the message has their counts), or the tokenizer lacks `</s>`.
        FileExistsError: `folder` is not empty and no token store.
    """
    folder = Path(folder)
    rule = filters or SentenceFilter()
    encoder = TokenEncoder(tokenizer)
    key = json.dumps([FORMAT_VERSION, corpus.fingerprint(), encoder.fingerprint(), asdict(rule)])
    fingerprint = bytes_digest(key.encode())
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / "store.json").is_file():
            raise FileExistsError(f"{folder} exists and is no token store; name another folder, or remove it.")
        try:
            store = TokenStore.open(folder)
        except ValueError as error:
            warnings.warn(f"The token store is built anew. {error}", stacklevel=2)
        else:
            if store.fingerprint == fingerprint:
                return store
    report = _build(corpus, encoder, rule, folder, fingerprint, show_progress)
    if report.truncated:
        warnings.warn(
            f"{report.truncated:,} of {report.kept:,} sentences were longer than {rule.max_tokens} tokens "
            "and were truncated.",
            stacklevel=2,
        )
    return TokenStore.open(folder, verify=False)


def _build(
    corpus: Corpus, encoder: TokenEncoder, rule: SentenceFilter, folder: Path, fingerprint: str, show_progress: bool
) -> StoreReport:
    """Builds a store beside `folder`, or resumes its build, and moves it there when it is complete."""
    growing = folder.with_name(f".{folder.name}.growing")
    with naming_failed_writes(folder, growing):
        progress = _Progress.begin(growing, fingerprint)
        try:
            arrays = _write_arrays(corpus, encoder, rule, growing, progress, show_progress)
        except BaseException as error:
            # After an error in the text the user will change the text, so this progress is of no use.
            if not progress.chunks or isinstance(error, ValueError):
                shutil.rmtree(growing, ignore_errors=True)
            raise
        meta = {
            "format_version": FORMAT_VERSION,
            "fingerprint": fingerprint,
            "eos_token_id": encoder.eos_token_id,
            "pad_token_id": encoder.pad_token_id,
            "filter": asdict(rule),
            "report": asdict(progress.report),
            "arrays": arrays,
        }
        with replacing_folder(folder, owned=["*"]) as partial:
            for name in arrays:
                os.replace(growing / f"{name}.bin", partial / f"{name}.bin")
            (partial / "store.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
        shutil.rmtree(growing, ignore_errors=True)
    return progress.report


def _write_arrays(
    corpus: Corpus, encoder: TokenEncoder, rule: SentenceFilter, folder: Path, progress: _Progress, show_progress: bool
) -> dict[str, Json]:
    """Writes the arrays, resuming from `progress`; returns their entries for `store.json`."""
    tokens_type = np.uint16 if encoder.vocab_size <= 1 << 16 else np.int32
    types = {"tokens": tokens_type, "offsets": np.int64, "document_starts": np.int64, "positions": np.int32}
    written = {name: {key: entry[key] for key in ("length", "crc32")} for name, entry in progress.arrays.items()}
    writers = {name: ArrayWriter(folder, name, dtype, **written.get(name, {})) for name, dtype in types.items()}
    report = progress.report
    token_counts = _token_counts(folder / "tokens.bin", tokens_type, report.tokens, encoder.vocab_size)
    if not progress.chunks:
        writers["offsets"].append(np.zeros(1, np.int64))
    with progress_bar(
        total=corpus.size, unit=corpus.unit, unit_scale=True, desc="tokenise", disable=not show_progress
    ) as bar:
        for number, (chunk, rows) in enumerate(encoded_chunks(corpus, encoder, progress.chunks), progress.chunks + 1):
            rows, kept, part = apply_filter(rows, encoder.unk_token_id, rule)
            rows = append_token(rows, encoder.eos_token_id)
            documents = chunk.documents[kept]
            is_start = np.diff(documents, prepend=progress.last_document) != 0
            progress.last_document = int(documents[-1]) if len(documents) else progress.last_document
            writers["document_starts"].append(report.kept + np.flatnonzero(is_start))
            writers["positions"].append(chunk.positions[kept])
            writers["offsets"].append(report.tokens + np.cumsum(rows.lengths))
            writers["tokens"].append(rows.ids)
            token_counts += np.bincount(rows.ids, minlength=len(token_counts))
            part.tokens, part.documents = len(rows.ids), int(is_start.sum())
            report.add(part)
            if number % _CHUNKS_PER_RECORD == 0:
                progress.chunks = number
                progress.arrays = {name: writer.record() for name, writer in writers.items()}
                write_json(folder / _PROGRESS, asdict(progress), indent=None)
            bar.set_postfix(sentences=report.kept, tokens=report.tokens, refresh=False)
            bar.update(corpus.position - bar.n)
        # Held-out text after the last line has been read, too.
        bar.update(max(0, (corpus.size or 0) - bar.n))
    if encoder.unk_token_id is not None:
        report.unknown_tokens = int(token_counts[encoder.unk_token_id])
    writers["token_counts"] = ArrayWriter(folder, "token_counts", np.int64)
    writers["token_counts"].append(token_counts)
    arrays = {name: writer.close() for name, writer in writers.items()}
    if report.kept == 0:
        reason = "The corpus is empty" if report.lines == 0 else "No sentence of the corpus is left after the filters"
        remedy = " Widen these limits." if report.lines else ""
        if 2 * report.too_long > report.lines:
            remedy += " Lines of several sentences are cut by `hf-meanmax prepare`."
        raise ValueError(f"{reason} ({report.dropped()}).{remedy}")
    return arrays


def _token_counts(path: Path, dtype: npt.DTypeLike, tokens: int, vocab_size: int) -> npt.NDArray[np.int64]:
    """Frequency of each id among the first `tokens` ids of a file."""
    counts = np.zeros(vocab_size, np.int64)
    with open(path, "rb") as file:
        for start in range(0, tokens, _BLOCK):
            ids = np.fromfile(file, np.dtype(dtype).newbyteorder("<"), min(_BLOCK, tokens - start))
            counts += np.bincount(ids, minlength=vocab_size)
    return counts


def encoded_chunks(corpus: Corpus, encoder: TokenEncoder, start: int = 0) -> Iterator[tuple[_Chunk, Ragged]]:
    """Yields chunks from the `start`-th on with their ids, in order, a few encoded ahead in two threads."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        waiting: deque[tuple[_Chunk, Future[Ragged]]] = deque()
        for chunk in itertools.islice(_chunks(corpus), start, None):
            waiting.append((chunk, pool.submit(encoder, chunk.lines)))
            if len(waiting) > 3:
                chunk, future = waiting.popleft()
                yield chunk, future.result()
        while waiting:
            chunk, future = waiting.popleft()
            yield chunk, future.result()
