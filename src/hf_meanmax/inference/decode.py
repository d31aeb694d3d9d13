"""Decodes embeddings back to text, one line per row.

Needs the model that made the embeddings, or a decoder of its vectors (`embedding_decoder`), and raw embeddings:
truncated, quantised or PCA-projected vectors cannot be decoded, and normalised ones only if the model ignores the
length of a vector.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hf_meanmax.fields import check_settings, count, option
from hf_meanmax.files import Json
from hf_meanmax.hardware import ComputeDtype, in_dtype
from hf_meanmax.metrics import counted

from .blocks import in_blocks
from .correction import Corrector, read_tokens
from .decodable import check_sources, has_unit_length, refuse_scaled
from .reconstruct import without_special
from .sources import SourceOptions, VectorBatch, VectorSource, open_sources

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# More beams do not help and exhaust the memory.
MOST_BEAMS = 1000


@dataclass
class DecodingSettings:
    """The settings of decoding.

    Raises:
        ValueError: corrections without candidates, beams together with candidates, or an unknown `compute_dtype`.
    """

    num_beams: int = count("beams of the search; 1 is greedy", 1, at_most=MOST_BEAMS)
    rerank: int | None = count(
        "candidates of each vector; the one whose embedding is nearest to it is kept", None, at_most=MOST_BEAMS
    )
    num_corrections: int = option("rounds that try edits of the text of --rerank, and keep nearer ones", 0, at_least=0)
    max_length: int | None = count("most tokens of a text; by default the model's bound", None)
    batch_size: int = count("texts or vectors of one forward pass", 64)
    compute_dtype: ComputeDtype = option(
        "numbers in decoder and --rerank (auto: bfloat16 where the device multiplies it faster)", "float32"
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.rerank is None and self.num_corrections:
            raise ValueError("`num_corrections` needs `rerank`; give it, for instance 8.")
        if self.rerank is not None and self.num_beams > 1:
            raise ValueError("`rerank` has beams of its own; leave `num_beams` out.")

    def generation(self) -> Json:
        """The arguments of `generate`."""
        return {"max_new_tokens": self.max_length, **({} if self.rerank else {"num_beams": self.num_beams})}

    def corrector(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        embedder: SentenceTransformer | None,
        do_sample: bool = False,
        seed: int = 0,
    ) -> Corrector | None:
        """The [`Corrector`] that chooses among the candidates of `rerank`; None without `rerank` or embedder."""
        if self.rerank is None or embedder is None:
            return None
        return Corrector(
            model, tokenizer, embedder, self.rerank, self.num_corrections, do_sample, self.batch_size, seed=seed
        )


@dataclass(frozen=True)
class DecodedBatch:
    """The texts of some rows of a source, each on one line, and the keys of the rows."""

    keys: list[Any]
    texts: list[str]


def decode_embeddings(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str] | VectorSource],
    *,
    batch_size: int = 64,
    vector_column: str | None = None,
    corrector: Corrector | None = None,
    dtype: torch.dtype | None = None,
    **generation: object,
) -> Iterator[str]:
    """The text of each embedding, in order and in constant memory. A line break in a text becomes a space.

    An embedding does not store the length of its text. Decoding stops at the model's own bound: 1.5 times its longest
    training text and at least 16 tokens, or 256 if no training run has set one. The number of texts that are cut there
    is reported at the end.

    Args:
        model: an autoencoder, or a decoder of another embedder's vectors.
        tokenizer: the tokenizer of the generated text.
        sources: files, folders of `encode`, faiss indexes or tables (see `hf_meanmax.inference.sources`). For arrays
            see `decode_vectors`.
        batch_size: embeddings decoded at a time.
        vector_column: the tensor or column that holds the embeddings.
        corrector: chooses among candidates; by default the likeliest text is taken.
        dtype: the dtype to cast the model to, after its weights were checked against the embeddings.
        generation: arguments of `generate`, for instance `num_beams` and `max_new_tokens`.

    Raises:
        ValueError: the vectors are not raw embeddings of this model, as far as can be checked; the message names the
            rows of a batch that cannot be decoded.
        FileNotFoundError: a file is missing.
    """
    if isinstance(sources, (str, os.PathLike)):
        sources = [sources]
    options = SourceOptions(vector_column=vector_column)
    opened = [source if isinstance(source, VectorSource) else open_sources([source], options)[0] for source in sources]
    for batch in decode_sources(model, tokenizer, opened, batch_size, 0, corrector, dtype, **generation):
        yield from batch.texts


def decode_sources(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[VectorSource],
    batch_size: int = 64,
    start: int = 0,
    corrector: Corrector | None = None,
    dtype: torch.dtype | None = None,
    **generation: object,
) -> Iterator[DecodedBatch]:
    """[`decode_embeddings`] in batches with the keys of the rows; skips the first `start` rows of all sources."""
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; it must be 1 or more.")
    check_sources(sources, model)
    if dtype is not None:
        model = in_dtype(model, dtype)
        corrector = None if corrector is None else replace(corrector, model=model)
    row, cut, longest = start, 0, 0
    expects_unit_length = getattr(model.config, "normalize_embeddings", False)
    for read in _batches_from(sources, batch_size, start):
        batch = read.vectors
        refuse_scaled(batch, model.config)
        if expects_unit_length and np.isfinite(batch).all() and not has_unit_length(batch):
            print("Vectors that are not of unit length, as the embedder's are, are scaled to it.", file=sys.stderr)
            expects_unit_length = False
        try:
            with _seeded(corrector, row):
                texts, lengths, ended = _decode_batch(model, tokenizer, batch, corrector, generation)
        except ValueError as error:
            finite = np.isfinite(batch).all(axis=1)
            rows = f"Rows {row + 1:,}-{row + len(batch):,}" if finite.all() else f"Row {row + 1 + finite.argmin():,}"
            raise ValueError(f"{rows}: {error}") from error
        yield DecodedBatch(read.keys, texts)
        row += len(batch)
        cut += ended.count(False)
        longest = max(longest, *lengths)
    if cut:
        continued = f" of the {row - start:,} decoded since the interruption" if start else ""
        print(f"Cut after {longest:,} tokens, before their end: {counted(cut, 'text')}{continued}.", file=sys.stderr)


@contextmanager
def _seeded(corrector: Corrector | None, row: int) -> Iterator[None]:
    """Seeds sampling by the batch's first row, so that results do not depend on other batches; restores torch's RNG."""
    if corrector is None or not corrector.do_sample:
        yield
        return
    with torch.random.fork_rng():
        torch.manual_seed(corrector.seed + row)
        yield


def _batches_from(sources: Sequence[VectorSource], batch_size: int, start: int) -> Iterator[VectorBatch]:
    for source in sources:
        if start and start >= source.rows:
            start -= source.rows
            continue
        yield from source.batches(batch_size, start)
        start = 0


def key_of_row(sources: Sequence[VectorSource], row: int) -> str | None:
    """The key of a row, counted through all sources; None if there is no such row."""
    for source in sources:
        if row < source.rows:
            return str(source.key(row))
        row -= source.rows
    return None


def _decode_batch(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    batch: np.ndarray,
    corrector: Corrector | None,
    generation: dict[str, object],
) -> tuple[list[str], list[int], list[bool]]:
    """The texts of a batch, their lengths in tokens, and whether each has ended."""
    if corrector is not None:
        found = corrector.decode(batch, show_progress=False, **generation)
        return [one.text for one in found], [one.length for one in found], [one.ended for one in found]
    tokens = model.generate(sentence_embedding=torch.from_numpy(batch), **generation)
    texts, ended = read_tokens(tokenizer, tokens)
    return texts, len(texts) * [tokens.shape[1] - 1], ended


def decode_vectors(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    vectors: np.ndarray,
    batch_size: int = 64,
    corrector: Corrector | None = None,
    progress: str | None = None,
    **generation: object,
) -> list[str]:
    """The text of each vector `(N, D)`, on one line, in order.

    Args:
        model, tokenizer, corrector, generation: see [`decode_embeddings`].
        vectors: raw vectors of the model's embedder; a single vector counts as one row.
        batch_size: vectors decoded together.
        progress: label of a progress bar; None shows none.

    Raises:
        ValueError: the model cannot decode the vectors.
    """
    vectors = np.atleast_2d(np.asarray(vectors))
    if not vectors.size:
        return []
    blocks = in_blocks(vectors, batch_size, desc=progress, unit="row", disable=progress is None, leave=False)
    return [text for block in blocks for text in _decode_batch(model, tokenizer, block, corrector, generation)[0]]


def generate_ids(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    vectors: np.ndarray,
    batch_size: int = 256,
    show_progress: bool = False,
    **generation: object,
) -> list[list[int]]:
    """The generated token ids of each vector, without special tokens, in order.

    Args:
        model: a model that decodes the vectors.
        tokenizer: the tokenizer of the generated text.
        vectors: `(N, D)`.
        batch_size: vectors decoded together.
        show_progress: show a progress bar.
        generation: arguments of `generate`, which by default is greedy.
    """
    blocks = in_blocks(vectors, batch_size, desc="decode", unit="row", disable=not show_progress, leave=False)
    tokens = (model.generate(sentence_embedding=torch.from_numpy(block), **generation) for block in blocks)
    return without_special(tokenizer, [row for block in tokens for row in block.tolist()])
