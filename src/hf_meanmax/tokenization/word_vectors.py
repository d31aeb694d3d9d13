"""Word vectors: trains them on a corpus or reads word2vec and GloVe files, and makes word tables of them."""

from __future__ import annotations

import codecs
import gzip
import json
import logging
import math
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from transformers import PreTrainedTokenizerFast

from hf_meanmax.extras import require
from hf_meanmax.fields import check_settings, count, option
from hf_meanmax.files import EncodingErrors, Json, differences, replacing_file
from hf_meanmax.hardware import usable_cores
from hf_meanmax.progress import progress_bar

from .tokenizers import SPECIAL_TOKENS

logger = logging.getLogger(__name__)

_GROWTH = 1 << 16  # rows
_BLOCK = 1 << 22  # bytes
# gensim ignores the words of a sentence beyond this number.
_MOST_WORDS = 10_000


@dataclass(frozen=True)
class WordVectors:
    """Words and their vectors, row by row.

    Args:
        words: V distinct words.
        vectors: `(V, e)` float32.
        counts: `(V,)` int64, frequency of each word, if known.
    """

    words: list[str]
    vectors: np.ndarray
    counts: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2 or len(self.words) != len(self.vectors):
            raise ValueError(f"{len(self.words)} words need a matrix of as many rows, got shape {self.vectors.shape}")

    def __len__(self) -> int:
        return len(self.words)

    @property
    def size(self) -> int:
        """Dimension e of the vectors."""
        return self.vectors.shape[1]

    @cached_property
    def index(self) -> dict[str, int]:
        """The row of each word."""
        return {word: row for row, word in enumerate(self.words)}

    def known(self, words: Collection[str]) -> list[str]:
        """Returns those of `words`, special tokens aside, that have a vector here.

        Raises:
            ValueError: none of them has a vector.
        """
        wanted = [word for word in words if word not in SPECIAL_TOKENS]
        known = [word for word in wanted if word in self.index]
        if not known:
            raise ValueError(f"None of {len(wanted):,} words is among the {len(self):,} words of the other vectors.")
        return known

    def join(self, other: WordVectors) -> WordVectors:
        """Concatenates to each vector the word's vector in `other`, or zeros if it has none. Both sides are scaled to a
        root mean square of 1 over the words that they have.

        Raises:
            ValueError: the two have no word in common.
        """
        known = other.known(self.words)
        found = other.vectors[[other.index[word] for word in known]]
        beside = np.zeros((len(self), other.size), dtype=np.float32)
        beside[[self.index[word] for word in known]] = found / np.sqrt(np.mean(np.square(found)))
        own = self.vectors / np.sqrt(np.mean(np.square(self.vectors)))
        return WordVectors(self.words, np.concatenate([own, beside], axis=1), self.counts)

    def save(self, path: str | os.PathLike, **details: object) -> None:
        """Writes one safetensors file atomically; `details` (JSON values) are stored in its header."""
        encoded = [word.encode("utf-8") for word in self.words]
        tensors: dict[str, np.ndarray] = {
            "vectors": np.ascontiguousarray(self.vectors, dtype=np.float32),
            "words": np.frombuffer(b"".join(encoded), dtype=np.uint8),
            "word_bytes": np.array([len(word) for word in encoded], dtype=np.int64),
        }
        if self.counts is not None:
            tensors["counts"] = np.asarray(self.counts, dtype=np.int64)
        with replacing_file(path, "wb") as file:
            save_file(tensors, file.name, metadata={"details": json.dumps(details, sort_keys=True)})

    @classmethod
    def load(cls, path: str | os.PathLike) -> WordVectors:
        """Reads a file written by `save`. Raises ValueError if it is damaged or of another kind."""
        return _load_saved(Path(path))[0]


def _load_saved(path: Path) -> tuple[WordVectors, Json]:
    try:
        with safe_open(path, framework="numpy") as file:
            details = json.loads((file.metadata() or {}).get("details", "{}"))
            vectors, text, lengths = (file.get_tensor(name) for name in ("vectors", "words", "word_bytes"))
            counts = file.get_tensor("counts") if "counts" in set(file.keys()) else None
    except SafetensorError as error:
        raise ValueError(f"{path}: not a file of word vectors that was saved here, or damaged ({error})") from error
    ends = np.cumsum(lengths)
    data = text.tobytes()
    words = [data[end - length : end].decode("utf-8") for end, length in zip(ends, lengths, strict=True)]
    return WordVectors(words, vectors, counts), details


@dataclass
class SkipGramSettings:
    """Settings of skip-gram training with negative sampling, as in gensim's `Word2Vec`.

    Raises:
        ValueError: a value out of its range.
    """

    size: int = count("dimension of the vectors", 300)
    epochs: int = count("passes over the corpus", 2)
    window: int = count("words on either side", 5)
    min_count: int = count("rarer words get no vector", 5)
    negative: int = count("words drawn as negatives for each context word", 5)
    sample: float = option("threshold above which frequent words are left out at random", 1e-3, at_least=0)
    learning_rate: float = option("initial learning rate", 0.025)
    seed: int = option("seed of the training", 1)
    deterministic: bool = option("one thread, so that the same command gives the same vectors", False)

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.learning_rate > 0:
            raise ValueError(f"`learning_rate` is {self.learning_rate}; it must be a positive number.")


def train_word_vectors(
    sentences: Iterable[list[str]],
    settings: SkipGramSettings | None = None,
    *,
    cache_path: str | os.PathLike[str] | None = None,
    corpus_key: str = "",
    show_progress: bool = True,
) -> WordVectors:
    """Skip-gram vectors with negative sampling (Mikolov et al. 2013), trained by gensim.

    Args:
        sentences: lists of words, for instance from `split_words`; read `epochs + 1` times, so not a generator.
        settings: settings of the training (default: `SkipGramSettings()`).
        cache_path: a file in which the vectors are cached. With other settings or another `corpus_key`, they are
            trained anew and the file is replaced.
        corpus_key: identifies the corpus and its split into words in the cache.
        show_progress: whether progress bars are drawn, one per pass.

    Returns:
        Vectors of the words that occur at least `min_count` times, the most frequent first.

    Raises:
        ImportError: gensim is not installed and nothing is cached.
        TypeError: `sentences` can be read only once.
        ValueError: no sentence, or no word that is frequent enough.
    """
    settings = settings or SkipGramSettings()
    # Without fields of a subclass, which affect only the sentences.
    identity = {item.name: getattr(settings, item.name) for item in fields(SkipGramSettings)} | {
        "corpus_key": corpus_key
    }
    path = None if cache_path is None else Path(cache_path)
    if path is not None and path.exists():
        vectors, details = _load_saved(path)
        if details == identity:
            logger.info("word vectors read from %s: %d words of %d dimensions", path, len(vectors), vectors.size)
            return vectors
        logger.warning("%s holds vectors of other settings (%s): training anew", path, differences(details, identity))
    if iter(sentences) is sentences:
        raise TypeError("sentences is an iterator that can be read once, training reads it several times: pass a list")
    model = _fit_word2vec(sentences, settings, show_progress)
    names = _learnt_words(model)
    counts = np.array([model.wv.get_vecattr(word, "count") for word in names], dtype=np.int64)
    vectors = WordVectors(names, np.asarray(model.wv[names], dtype=np.float32), counts)
    if path is not None:
        vectors.save(path, **identity)
    return vectors


def load_gensim() -> ModuleType:
    """Imports `gensim.models`, which trains skip-gram.

    Raises:
        ImportError: gensim is not installed.
    """
    return require("gensim.models", "vectors", "Training word vectors")


def _fit_word2vec(sentences: Iterable[list[str]], settings: SkipGramSettings, show_progress: bool) -> Any:
    gensim = load_gensim()
    # With several threads the result depends on their timing.
    threads = 1 if settings.deterministic else usable_cores()
    model = gensim.Word2Vec(
        vector_size=settings.size, window=settings.window, min_count=settings.min_count, negative=settings.negative,
        sample=settings.sample, alpha=settings.learning_rate, seed=settings.seed % 2**32, workers=threads, sg=1,
        epochs=settings.epochs,
    )  # fmt: skip
    passes = _CountedPasses(sentences, settings.epochs, show_progress)
    model.build_vocab(passes)
    if not model.corpus_count:
        raise ValueError("the corpus is empty: no sentence to learn word vectors from")
    if not _learnt_words(model):
        raise ValueError(
            f"no word of the {model.corpus_count} sentences occurs {settings.min_count} times, and only such words get "
            "vectors. Give more text, or a smaller `min_count` of `hf-meanmax vectors`."
        )
    model.train(passes, total_examples=model.corpus_count, epochs=settings.epochs)
    return model


def _learnt_words(model: Any) -> list[str]:
    """The words of a gensim model, without the token that stands for rare ones."""
    return [word for word in model.wv.index_to_key if word not in SPECIAL_TOKENS]


class _CountedPasses:
    """The sentences, with a progress bar for each pass: first one that counts words, then one per epoch."""

    def __init__(self, sentences: Iterable[list[str]], epochs: int, show_progress: bool):
        self.sentences, self.epochs, self.show_progress = sentences, epochs, show_progress
        self.number = 0
        self.total: int | None = None

    def __iter__(self) -> Iterator[list[str]]:
        title = f"word vectors, epoch {self.number}/{self.epochs}" if self.number else "word vectors, counting"
        self.number += 1
        count = 0
        for sentence in progress_bar(
            self.sentences, desc=title, total=self.total, unit=" sentences", disable=not self.show_progress
        ):
            count += 1
            # gensim would ignore the rest of a longer sentence.
            for start in range(0, len(sentence), _MOST_WORDS):
                yield sentence[start : start + _MOST_WORDS]
        self.total = count


def load_word_vectors(
    path: str | os.PathLike,
    vocabulary: Collection[str] | None = None,
    limit: int | None = None,
    encoding_errors: EncodingErrors = "strict",
    show_progress: bool = True,
) -> WordVectors:
    """Reads word vectors: word2vec text or `.bin`, GloVe text (no header), each also `.gz`, or our `.safetensors`.

    Unlike gensim's reader, it skips unwanted words while reading, so it needs memory only for the kept rows.

    Args:
        path: The file; its name ends in `.bin`, `.bin.gz` or `.safetensors`, everything else is text.
        vocabulary: Words to keep, best a set or a dict (default: all).
        limit: Number of rows to read from the start of the file, usually the most frequent words (default: all).
        encoding_errors: Handling of words that are not UTF-8, as in `bytes.decode`.
        show_progress: Whether a progress bar (bytes of the file) is drawn.

    Returns:
        The kept words in the order of the file. A repeated word has its first vector.

    Raises:
        FileNotFoundError: There is no such file.
        IsADirectoryError: It is a folder.
        ValueError: A malformed line (the message has file, line and expected format), a truncated file, a NaN or
            infinite value, or no word left.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder. Give a file of word vectors.")
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}, it must be 1 or more")
    if vocabulary is not None and not isinstance(vocabulary, (set, frozenset, dict)):
        vocabulary = frozenset(vocabulary)
    if path.suffix == ".safetensors":
        return _restrict(path, WordVectors.load(path), vocabulary, limit)
    is_binary = path.name.endswith((".bin", ".bin.gz"))
    rows = _Rows(path, vocabulary, limit, encoding_errors)
    with (
        open(path, "rb") as raw,
        progress_bar(
            total=path.stat().st_size, desc=path.name, unit="B", unit_scale=True, disable=not show_progress
        ) as progress,
    ):
        file: IO[bytes] = gzip.open(raw) if path.suffix == ".gz" else raw  # type: ignore[assignment]
        try:
            (_read_binary if is_binary else _read_text)(file, rows, lambda: progress.update(raw.tell() - progress.n))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path}: damaged or truncated gzip file ({error})") from error
        progress.update(progress.total - progress.n)
    return rows.finish()


def _restrict(path: Path, vectors: WordVectors, vocabulary: Collection[str] | None, limit: int | None) -> WordVectors:
    keep = [row for row, word in enumerate(vectors.words[:limit]) if vocabulary is None or word in vocabulary]
    if not keep:
        raise ValueError(f"{path}: none of its {len(vectors)} words is in the vocabulary")
    counts = None if vectors.counts is None else vectors.counts[keep]
    return WordVectors([vectors.words[row] for row in keep], vectors.vectors[keep], counts)


class _Rows:
    """The rows kept while reading a file; the matrix grows in place, so that it is never held twice."""

    def __init__(
        self,
        path: Path,
        vocabulary: Collection[str] | None,
        limit: int | None,
        encoding_errors: str,
    ):
        self.path, self.vocabulary, self.limit = path, vocabulary, limit
        self.encoding_errors = encoding_errors
        self.words: dict[str, int] = {}
        self.read = 0
        self.size = 0
        self.matrix = np.empty((0, 0), dtype=np.float32)

    def start(self, size: int) -> None:
        if size < 1:
            raise ValueError(
                f"{self.path}, line 1: expected a word and its numbers with blanks between them. Give text of word2vec "
                "or GloVe, `.bin`, `.gz` of these, or `.safetensors`."
            )
        self.size = size
        self.matrix = np.empty((0, size), dtype=np.float32)

    @property
    def full(self) -> bool:
        return self.limit is not None and self.read >= self.limit

    def wanted(self, word: bytes, place: int) -> str | None:
        """The decoded word if its row is to be kept, else None. `place` is the line, or the row of a binary file."""
        self.read += 1
        try:
            text = word.decode("utf-8", self.encoding_errors)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{self.path}, line {place}: a word that is not UTF-8 ({word[:40]!r}); "
                'encoding_errors="replace" reads on'
            ) from error
        if text in self.words or (self.vocabulary is not None and text not in self.vocabulary):
            return None
        return text

    def add(self, word: str, values: np.ndarray, place: int) -> None:
        # The sum is finite only if all values are; float32 values cannot overflow a double.
        if not math.isfinite(values.sum(dtype=np.float64)):
            raise ValueError(f"{self.path}, line {place}: {word!r} has a NaN or infinite value")
        row = len(self.words)
        if row == len(self.matrix):
            # realloc moves the pages of a large block instead of copying them
            self.matrix.resize((row + min(_GROWTH, max(1024, row)), self.size), refcheck=False)
        self.matrix[row] = values
        self.words[word] = row

    def finish(self) -> WordVectors:
        if not self.words:
            if not self.read:
                raise ValueError(f"{self.path}: no word vector in the file")
            raise ValueError(f"{self.path}: none of the {self.read} words read is in the vocabulary")
        self.matrix.resize((len(self.words), self.size), refcheck=False)
        return WordVectors(list(self.words), self.matrix)


def _read_text(file: IO[bytes], rows: _Rows, advance: Callable[[], object]) -> None:
    count = None
    for number, line in enumerate(file, start=1):
        if not rows.size:
            line = line.removeprefix(codecs.BOM_UTF8)
            if not line.strip():
                continue
            fields = line.split()
            if len(fields) == 2 and fields[0].isdigit() and fields[1].isdigit():
                count = int(fields[0])
                rows.start(int(fields[1]))
                continue
            rows.start(len(fields) - 1)
        if number % 4096 == 0:
            advance()
        if rows.full:
            return
        _read_line(line, number, rows)
    if count is not None and rows.read != count:
        raise ValueError(
            f"{rows.path}: {rows.read} rows, its first line promises {count}; the file is truncated or damaged"
        )


def _read_line(line: bytes, number: int, rows: _Rows) -> None:
    word, _, rest = line.partition(b" ")
    if rows.vocabulary is not None and rest.count(b" ") == rows.size - 1:
        # Most lines of a large file are skipped here without parsing.
        if word.decode("utf-8", "replace") not in rows.vocabulary:
            rows.read += 1
            return
    fields = line.split()
    if not fields:
        return
    if len(fields) <= rows.size:
        raise ValueError(
            f"{rows.path}, line {number}: expected a word and {rows.size} numbers, found {len(fields)} fields"
        )
    # Some published files have words with spaces, so the numbers are counted from the right.
    text = rows.wanted(b" ".join(fields[: -rows.size]), number)
    if text is None:
        return
    try:
        values = np.array(fields[-rows.size :], dtype=np.float32)
    except ValueError as error:
        raise ValueError(f"{rows.path}, line {number}: expected a word and {rows.size} numbers ({error})") from error
    rows.add(text, values, number)


def _read_binary(file: IO[bytes], rows: _Rows, advance: Callable[[], object]) -> None:
    header = file.readline(1000)
    fields = header.split()
    if len(fields) != 2 or not (fields[0].isdigit() and fields[1].isdigit()):
        raise ValueError(
            f"{rows.path}, line 1: expected the number of words and of dimensions, found {header[:40]!r}; "
            "a text file must not be named .bin"
        )
    count, size = map(int, fields)
    rows.start(size)
    width = 4 * size
    buffer, position = b"", 0
    for row in range(count):
        if rows.full:
            return
        space = buffer.find(b" ", position)
        while space < 0 or len(buffer) < space + 1 + width:
            more = file.read(max(_BLOCK, width))
            if not more:
                raise ValueError(f"{rows.path}: ends after {row} of {count} rows; the file is truncated or damaged")
            buffer, position = buffer[position:] + more, 0
            advance()
            space = buffer.find(b" ", position)
        # Some writers end a row with a line break, which then precedes the next word.
        text = rows.wanted(buffer[position:space].lstrip(b"\n"), row + 2)
        if text is not None:
            rows.add(text, np.frombuffer(buffer, dtype="<f4", count=size, offset=space + 1), row + 2)
        position = space + 1 + width


def embedding_matrix(
    tokenizer: PreTrainedTokenizerFast, vectors: WordVectors, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Makes the word table of a tokenizer's vocabulary.

    Args:
        tokenizer: Its V ids must be 0 to V - 1.
        vectors: Vectors of dimension e; words outside the vocabulary are ignored.
        seed: Seed of the rows of words without a vector: normal, scaled to the mean norm of the vectors found.

    Returns:
        The table `(V, e)` float32 and a mask `(V,)` of the words with a vector. The row of the padding token is zero.

    Raises:
        ValueError: No word of the vocabulary has a vector.
    """
    vocabulary = tokenizer.get_vocab()
    found = np.zeros(len(tokenizer), dtype=bool)
    matrix = np.zeros((len(tokenizer), vectors.size), dtype=np.float32)
    special = set(tokenizer.all_special_ids)
    for word, token_id in vocabulary.items():
        row = vectors.index.get(word)
        if row is not None and token_id not in special:
            matrix[token_id] = vectors.vectors[row]
            found[token_id] = True
    if not found.any():
        raise ValueError(
            f"none of the tokenizer's {len(tokenizer)} words is among the {len(vectors)} words with vectors; "
            "were they made for another language, another spelling (case), or a tokenizer of word pieces?"
        )
    norm = float(np.linalg.norm(matrix[found], axis=1).mean())
    missing = np.flatnonzero(~found)
    random = np.random.default_rng(seed).standard_normal((len(missing), vectors.size)).astype(np.float32)
    matrix[missing] = random * (norm / math.sqrt(vectors.size))
    if tokenizer.pad_token_id is not None:
        matrix[tokenizer.pad_token_id] = 0.0
    words = len(tokenizer) - len(special)
    logger.info("%d of %d words have a vector, %d start at random", found.sum(), words, words - found.sum())
    return matrix, found
