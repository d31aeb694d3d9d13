"""Checked embeddings of texts, from any sentence encoder or from files."""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from hf_meanmax.cosines import unit_rows
from hf_meanmax.evaluation.tasks import read_lines
from hf_meanmax.files import Json, json_digest, replacing_file
from hf_meanmax.inference.blocks import in_blocks
from hf_meanmax.inference.embedding_files import count_rows, read_embeddings, read_rows
from hf_meanmax.inference.encoder import count_truncated, encode_texts
from hf_meanmax.inference.fingerprints import pipeline_fingerprint, weights_fingerprint
from hf_meanmax.metrics import counted

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from transformers import PretrainedConfig

CACHE_BYTES = 1_500_000_000


class Embedder:
    """Wraps a sentence encoder: encodes each distinct text once, checks the vectors and caches them.

    Args:
        encoder: an object with `encode(list[str])` (a SentenceTransformer, for instance, an [`EmbeddingFile`][]), or a
            callable that takes a list of texts. It returns `(n, D)` numbers: an array, a torch tensor on any device and
            of any precision, or a list of n vectors.
        name: its name in tables and errors.
        key: fingerprint of the encoder, under which results are cached; default: `encoder_key`, which supports
            SentenceTransformers and objects with a `key`. Without one nothing is cached between runs.
        batch_size: passed to an `encode` that takes a `batch_size`; otherwise the number of texts per call of the
            encoder.
        show_progress: show a progress bar.
        unit_length: scale every vector to unit length, to compare encoders as they are used in search.
        cache_bytes: memory for cached embeddings; the least recently used are dropped first.

    Attributes:
        dimension: D, None before the first call.
        key: see above.
        keep: the texts to cache, None for all.
        encoded: number of texts that were encoded, since the start of an evaluation.
        truncated: number of these that a SentenceTransformer cut at its length limit.
        seconds: seconds spent encoding.
    """

    def __init__(
        self,
        encoder: object,
        name: str | None = None,
        key: str | None = None,
        batch_size: int = 64,
        show_progress: bool = True,
        unit_length: bool = False,
        cache_bytes: int = CACHE_BYTES,
    ):
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; it must be 1 or more.")
        self.encoder = encoder
        self.name = str(name or getattr(encoder, "name", None) or getattr(encoder, "__name__", type(encoder).__name__))
        self.unit_length = unit_length
        self._given_key = key
        self.key = self._find_key()
        self.batch_size = batch_size
        self.show_progress = show_progress
        self.cache_bytes = 0 if isinstance(encoder, EmbeddingFile) else cache_bytes
        self.dimension: int | None = None
        self.keep: set[str] | None = None
        self.encoded, self.truncated, self.seconds = 0, 0, 0.0
        self._encode, self._chunk = self._encode_function()
        self._kept: OrderedDict[str, np.ndarray] = OrderedDict()  # the least recently used first

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Embeds texts.

        Args:
            texts: n texts, which may repeat.

        Returns:
            `(n, D)` float32, finite; the caller may change it.

        Raises:
            ValueError: the encoder returned no matrix of numbers with a row per text, a number that is not finite, or
                another dimension than before. The message names the encoder and the first text concerned.
        """
        texts = list(texts)
        first: dict[str, int] = {}
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise ValueError(f"{self.name} was asked to embed text {index + 1}, {text!r}; expected a string.")
            first.setdefault(text, index)
        missing = [text for text in first if text not in self._kept]

        result = np.empty((len(texts), self.dimension or 0), dtype=np.float32)
        for text, index in first.items():
            if text in self._kept:
                result[index] = self._kept[text]
                self._kept.move_to_end(text)
        # Longest first: texts of similar length share a batch, and a lack of memory shows at once.
        order = sorted(missing, key=len, reverse=True)
        is_shown = self.show_progress and len(order) > self._chunk
        bar_options = {"desc": f"embed ({self.name})", "unit": " texts", "leave": False, "disable": not is_shown}
        for part in in_blocks(order, self._chunk, **bar_options):
            vectors = self._embed(part)
            # The dimension is only known from the first vectors.
            if vectors.shape[1] != result.shape[1]:
                result = np.empty((len(texts), vectors.shape[1]), dtype=np.float32)
            result[[first[text] for text in part]] = vectors
        for index, text in enumerate(texts):
            if first[text] != index:
                result[index] = result[first[text]]
        for text in missing:
            if self.keep is None or text in self.keep:
                self._kept[text] = result[first[text]].copy()
            if len(self._kept) * result[0].nbytes > self.cache_bytes:
                self._kept.popitem(last=False)
        return result

    def refresh(self) -> None:
        """Resets the counts, and clears the cache of a SentenceTransformer that may have changed, for instance by
        training."""
        self.encoded, self.truncated, self.seconds = 0, 0, 0.0
        if is_sentence_transformer(self.encoder):
            before, self.key = self.key, self._find_key()
            if self.key != before or self._given_key is not None:
                self.clear()

    def _find_key(self) -> str | None:
        key = self._given_key if self._given_key is not None else encoder_key(self.encoder)
        return f"{key}, unit length" if self.unit_length and key is not None else key

    def clear(self) -> None:
        """Clears the cache, and the choice of texts to cache."""
        self._kept.clear()
        self.keep = None
        self.dimension = None

    def _encode_function(self) -> tuple[Callable[[list[str]], object], int]:
        """The encoder as a function, and the number of texts per call."""
        encoder, size = self.encoder, self.batch_size
        if not hasattr(encoder, "encode"):
            if not callable(encoder):
                raise ValueError(
                    f"{encoder!r} is no encoder; expected an object with encode(list of texts), or a function of such "
                    "a list."
                )
            return encoder, size
        if isinstance(encoder, EmbeddingFile):
            return encoder.encode, 2**20  # each call may read whole files
        # An encoder that makes its own batches gets many texts per call, which is faster.
        if is_sentence_transformer(encoder):
            return partial(encode_texts, encoder, batch_size=size), 64 * size
        if _takes_batch_size(encoder.encode):
            return partial(encoder.encode, batch_size=size), 64 * size
        return encoder.encode, size

    def _embed(self, texts: list[str]) -> np.ndarray:
        start = time.perf_counter()
        vectors = self._checked(self._encode(list(texts)), texts)
        if not isinstance(self.encoder, EmbeddingFile):  # reading files does not count as encoding
            self.seconds += time.perf_counter() - start
            self.encoded += len(texts)
        if is_sentence_transformer(self.encoder):
            self.truncated += count_truncated(self.encoder, texts)
        return vectors

    def _checked(self, output: object, texts: list[str]) -> np.ndarray:
        given = f"{self.name} was given {counted(len(texts), 'text')}, the first {_shown(texts[0])}, and gave"
        array = _as_array(output, given)
        if array.ndim != 2:
            raise ValueError(f"{given} an array of shape {array.shape}; expected one row a text, ({len(texts)}, D).")
        if array.dtype.kind not in "fiu":
            raise ValueError(f"{given} an array of {array.dtype}; expected numbers.")
        if len(array) != len(texts):
            raise ValueError(f"{given} {len(array):,} rows; expected one a text.")
        if self.dimension is not None and array.shape[1] != self.dimension:
            raise ValueError(f"{given} vectors of {array.shape[1]:,} numbers; before, they had {self.dimension:,}.")
        if array.shape[1] == 0:
            raise ValueError(f"{given} vectors of dimension 0.")
        with np.errstate(over="ignore"):
            vectors = array.astype(np.float32, copy=False)
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            text = texts[int(np.argmin(finite))]
            raise ValueError(f"{self.name} gave a vector with NaN or infinity for the text {_shown(text)}.")
        self.dimension = vectors.shape[1]
        return unit_rows(vectors) if self.unit_length else vectors


class EmbeddingFile:
    """Saved embeddings as an encoder: row i is the vector of line i of a sentences file.

    Args:
        source: a .npy, .safetensors or .parquet file, or a folder of `encode`.
        sentences: the file written by `write_sentences`, from which the embeddings were made.

    Attributes:
        key: hash of texts and embeddings.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: the sentences are not as `write_sentences` wrote them, or there are not as many rows as lines.
    """

    def __init__(self, source: str | os.PathLike[str], sentences: str | os.PathLike[str]) -> None:
        self.name = Path(source).name
        self.sentences = Path(sentences)
        self._source = source
        texts = read_sentences(sentences)
        rows, _ = count_rows([source])
        if rows != len(texts):
            raise ValueError(
                f"{source} has {rows:,} embeddings, {sentences} has {len(texts):,} texts; give one embedding a text."
            )
        self._rows = {text: row for row, text in enumerate(texts)}
        digest = hashlib.blake2b(digest_size=16)
        for text in texts:
            digest.update(text.encode("utf-8", "surrogatepass") + b"\n")
        for part in read_embeddings([source], batch_size=8192, dequantize=True):
            digest.update(f"{part.dtype} {part.shape}".encode())
            digest.update(np.ascontiguousarray(part).data)
        self.key = f"embeddings-{digest.hexdigest()}"

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """The saved rows of texts, `(n, D)` float32.

        Raises:
            ValueError: a text is not in the sentences file.
        """
        missing = [text for text in texts if text not in self._rows]
        if missing:
            raise ValueError(
                f"{self.sentences} lacks {counted(len(missing), 'text')} of the tasks, the first {_shown(missing[0])}; "
                "write it anew (--write_sentences) with these tasks, and embed it again."
            )
        return read_rows(self._source, np.array([self._rows[text] for text in texts], dtype=np.int64))


def write_sentences(path: str | os.PathLike[str], texts: Iterable[str]) -> int:
    """Writes each distinct text once, one a line, sorted by code point, for an encoder that runs elsewhere.

    Returns:
        The number of lines.

    Raises:
        ValueError: a text holds a line break.
    """
    distinct = sorted(set(texts))
    for text in distinct:
        if "\n" in text or "\r" in text:
            raise ValueError(f"The text {_shown(text)} holds a line break and cannot be a line of {path}.")
    with replacing_file(path, "wb") as file:
        file.writelines(text.encode() + b"\n" for text in distinct)
    return len(distinct)


def read_sentences(path: str | os.PathLike[str]) -> list[str]:
    """The texts of a file written by [`write_sentences`], whose order is checked.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line is out of order or repeated.
    """
    texts = read_lines(Path(path))
    for number, (before, text) in enumerate(pairwise(texts), start=2):
        if text <= before:
            problem = "repeats the line before" if text == before else f"comes before line {number - 1} in the order"
            raise ValueError(
                f"{path}, line {number}: {_shown(text)} {problem}. The embeddings would belong to other texts; use "
                "the file as --write_sentences wrote it (sorted by code point, each text once)."
            )
    return texts


def encoder_key(encoder: object) -> str | None:
    """Fingerprint of an encoder: its own `key`, or a hash of a SentenceTransformer's weights and settings.

    None for any other encoder, and for one whose weights are not torch's.
    """
    key = getattr(encoder, "key", None)
    if isinstance(key, str) and key:
        return key
    if not is_sentence_transformer(encoder):
        return None
    if not encoder.state_dict() and not hasattr(encoder[0], "exported_weights"):
        # Backends other than torch do not expose their weights.
        return None
    # Two models of equal weights may still differ by their configuration (heads, activations).
    found = [getattr(module, "config", None) for module in encoder.modules()]
    configs = [config_settings(config) for config in found if hasattr(config, "to_dict")]
    settings = [configs, encoder.truncate_dim, encoder.default_prompt_name, pipeline_fingerprint(encoder)]
    return f"{weights_fingerprint(encoder)}-{json_digest(settings, size=8)}"


def config_settings(config: PretrainedConfig) -> Json:
    """The settings of a transformers configuration, without its path and the version that wrote it."""
    ignored = ("_name_or_path", "transformers_version", "auto_map")
    return {name: value for name, value in config.to_dict().items() if name not in ignored}


def is_sentence_transformer(encoder: object) -> TypeGuard[SentenceTransformer]:
    """Whether an object is a SentenceTransformer, without importing the package for that."""
    module = sys.modules.get("sentence_transformers")
    return module is not None and isinstance(encoder, module.SentenceTransformer)


def _takes_batch_size(encode: Callable[..., object]) -> bool:
    try:
        return "batch_size" in inspect.signature(encode).parameters
    except (TypeError, ValueError):
        return False


def _as_array(output: object, given: str) -> np.ndarray:
    try:
        if isinstance(output, (list, tuple)):
            return np.stack([_array(row) for row in output]) if output else np.zeros((0, 0), dtype=np.float32)
        return _array(output)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{given} something that is no matrix of numbers ({error}).") from None


def _array(output: object) -> np.ndarray:
    if hasattr(output, "detach") and hasattr(output, "cpu"):
        tensor = output.detach().cpu()
        # numpy has no bfloat16
        return np.asarray(tensor.float() if tensor.is_floating_point() else tensor)
    return np.asarray(output)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
