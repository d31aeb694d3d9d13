"""The computations of the page's tabs, for any checkpoint and any SentenceTransformer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from hf_meanmax.checkpoint.folder import (
    check_checkpoint,
    is_classifier,
    is_encoder_alone,
    is_own_checkpoint,
    load_decoder,
)
from hf_meanmax.checkpoint.location import checkpoint_folder
from hf_meanmax.cosines import unit_rows
from hf_meanmax.data.corpus import readable
from hf_meanmax.inference.encoder import embedding_dimension, load_encoder
from hf_meanmax.inference.long_texts import default_prompt, split_tokens
from hf_meanmax.inspection.decoding import DecodingRecord, record_decoding, token_texts
from hf_meanmax.inspection.pooling import pooling_shares
from hf_meanmax.modeling.configuration_base import NO_LIMIT

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MOST_TEXTS, MOST_CHARACTERS, MOST_LINES, MOST_MEGABYTES = 12, 1000, 20_000, 5
MOST_NEW_TOKENS = 64
NO_DECODER = (
    "This model has no decoder: it gives vectors, and no text comes back from them. Start the demo with a checkpoint "
    "that has one: hf-meanmax demo MODEL."
)
NO_ROWS = "This model is none of hf_meanmax, so what its pooling reads is not known."


@dataclass(frozen=True)
class DecodedText:
    """A text decoded from a vector.

    Attributes:
        text: the text; it ends in "..." if it was cut.
        tokens: its tokens, including the end token if it was reached.
        probabilities: the probability of each token, given those before it.
    """

    text: str
    tokens: list[str]
    probabilities: list[float]


@dataclass(frozen=True)
class EncodedSentences:
    """Sentences and their vectors of unit length `(n, D)`; `seconds` is the time for encoding."""

    texts: list[str]
    vectors: np.ndarray
    seconds: float


@dataclass(frozen=True)
class SearchResult:
    """The nearest sentences of a corpus with their cosines, and the seconds of encoding the query and of the search."""

    neighbors: list[tuple[float, str]]
    encoding: float
    searching: float


def given_text(text: str | None, name: str) -> str:
    """A text from the page, joined into one line.

    Raises:
        ValueError: it is empty or too long.
    """
    text = readable(" ".join((text or "").split()))
    if not text:
        raise ValueError(f"{name} is empty; write a sentence.")
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"{name} has {len(text):,} characters; the page takes {MOST_CHARACTERS:,}.")
    return text


class DemoModel:
    """A model with the functions that the page needs.

    Args:
        name: a checkpoint folder, any SentenceTransformer's folder, or a name on the Hub.

    Raises:
        FileNotFoundError, ValueError: as [`~hf_meanmax.inference.encoder.load_encoder`].
    """

    def __init__(self, name: str, trust_remote_code: bool = False) -> None:
        path = checkpoint_folder(name)
        self.name = name
        self.embedder = load_encoder(str(path), trust_remote_code)
        self.model: PreTrainedModel | None = None
        self.encoder: PreTrainedModel | None = None
        if not is_own_checkpoint(path):
            return
        config = check_checkpoint(path, encoder_alone=True)
        if config.has_decoder and not is_classifier(config) and not is_encoder_alone(config):
            self.model, self.tokenizer, self.target_tokenizer = load_decoder(path, self.embedder.device)
            self.encoder = self.model.encoder
        else:
            self.encoder, self.tokenizer = self.embedder[0].auto_model, self.embedder.tokenizer

    @property
    def dimension(self) -> int:
        """Dimension of the vectors."""
        return embedding_dimension(self.embedder)

    def similarity(self, texts: Sequence[str]) -> np.ndarray:
        """Cosines `(n, n)` of texts.

        Raises:
            ValueError: there are too few or too many texts.
        """
        if not 2 <= len(texts) <= MOST_TEXTS:
            raise ValueError(f"Write 2 to {MOST_TEXTS} texts, one a line; got {len(texts)}.")
        vectors = unit_rows(self.embedder.encode([given_text(text, "A line") for text in texts]))
        return vectors @ vectors.T

    @torch.no_grad()
    def vectors(self, texts: Sequence[str]) -> np.ndarray:
        """The vectors `(n, D)` of texts for the decoder: the model's own output, without the scaling of an export.

        Raises:
            ValueError: the model has no decoder.
        """
        if self.model is None:
            raise ValueError(NO_DECODER)
        given = [default_prompt(self.embedder) + text for text in texts]
        limit = {"truncation": True, "max_length": most} if (most := self.embedder.max_seq_length) else {}
        batch = self.tokenizer(given, padding=True, return_tensors="pt", **limit).to(self.model.device)
        vectors: np.ndarray = self.model.encoder(**batch).pooler_output.float().cpu().numpy()
        return vectors

    @torch.no_grad()
    def decode(self, vectors: np.ndarray) -> list[DecodedText]:
        """The greedy text of each vector `(n, D)`; where the decoder is not autoregressive, the likeliest words.

        Raises:
            ValueError: the model has no decoder, or a vector cannot be decoded.
        """
        if self.model is None:
            raise ValueError(NO_DECODER)
        given = torch.from_numpy(np.asarray(vectors, dtype=np.float32))
        if not self.model.config.is_autoregressive:
            ids, log_probabilities = self.model.predict_words(sentence_embedding=given, top_k=1)
            return [
                self._decoded(row.tolist(), values.exp().tolist(), may_end=False)
                for row, values in zip(ids[..., 0], log_probabilities[..., 0], strict=True)
            ]
        output = self.model.generate(
            sentence_embedding=given, do_sample=False, num_beams=1, max_new_tokens=MOST_NEW_TOKENS,
            return_dict_in_generate=True, output_logits=True,
        )  # fmt: skip
        steps = torch.stack(output.logits, dim=1).float().softmax(dim=-1)
        ids = output.sequences[:, -steps.shape[1] :]
        chosen = steps.gather(2, ids[..., None])[..., 0]
        return [
            self._decoded(row.tolist(), values.tolist(), may_end=True) for row, values in zip(ids, chosen, strict=True)
        ]

    def _decoded(self, ids: list[int], probabilities: list[float], may_end: bool) -> DecodedText:
        end = self.target_tokenizer.eos_token_id
        length = ids.index(end) + 1 if end in ids else len(ids)
        text = self.target_tokenizer.decode(ids[:length], skip_special_tokens=True)
        if may_end and end not in ids:
            text += " ..."
        return DecodedText(text, token_texts(self.target_tokenizer, ids[:length]), probabilities[:length])

    def decode_text(
        self, text: str, noise: float, kept: float, seed: int
    ) -> tuple[np.ndarray, np.ndarray, DecodedText]:
        """The vector `(D,)` of a text, the changed vector, and the text decoded from it: `noise` (in standard
        deviations of the vector's numbers) is added, then all but the share `kept` of the largest numbers become 0.

        Raises:
            ValueError: the model has no decoder, or the text is empty or too long.
        """
        vector = self.vectors([given_text(text, "The text")])[0]
        draw = np.random.default_rng(seed)
        changed = vector + noise * vector.std() * draw.standard_normal(vector.shape).astype(np.float32)
        number = max(1, round(kept * len(vector)))
        changed[np.argsort(-np.abs(changed), kind="stable")[number:]] = 0
        return vector, changed, self.decode(changed[None])[0]

    def between(self, first: str, second: str, steps: int) -> list[tuple[float, np.ndarray, DecodedText]]:
        """The path between the vectors of two texts in `steps` points: the share of the second, the cosines to both,
        and the text decoded from the point.

        Raises:
            ValueError: the model has no decoder, or a text is empty or too long.
        """
        ends = self.vectors([given_text(first, "The first text"), given_text(second, "The second text")])
        shares = np.linspace(0, 1, max(2, int(steps)), dtype=np.float32)
        path = np.outer(1 - shares, ends[0]) + np.outer(shares, ends[1])
        cosines = unit_rows(path) @ unit_rows(ends).T
        return [(float(share), *rest) for share, *rest in zip(shares, cosines, self.decode(path), strict=True)]

    def embed(self, texts: Sequence[str]) -> EncodedSentences:
        """Encodes the sentences of a corpus."""
        start = time.perf_counter()
        vectors = unit_rows(self.embedder.encode(list(texts), batch_size=64, show_progress_bar=False))
        return EncodedSentences(list(texts), vectors, time.perf_counter() - start)

    @cached_property
    def own_corpus(self) -> EncodedSentences:
        """The sentences that come with the demo."""
        lines = files(__package__).joinpath("corpus.txt").read_text(encoding="utf-8").splitlines()
        return self.embed([line for line in lines if line])

    def read_corpus(self, path: str | None) -> EncodedSentences:
        """The sentences of a text file, one per line; without a file, those that come with the demo.

        Raises:
            ValueError: the file is too large, has no sentence or too many, or is not UTF-8.
        """
        if path is None:
            return self.own_corpus
        content = Path(path).read_bytes()
        if len(content) > MOST_MEGABYTES * 1e6:
            raise ValueError(f"The file has {len(content) / 1e6:.1f} MB; the page takes {MOST_MEGABYTES}.")
        try:
            lines = content.decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise ValueError(f"The file is not UTF-8 text (byte {error.start:,}); save it as UTF-8.") from None
        texts = [" ".join(line.split())[:MOST_CHARACTERS] for line in lines if line.strip()]
        if not texts:
            raise ValueError("The file has no sentence; give a text file with one a line.")
        if len(texts) > MOST_LINES:
            raise ValueError(f"The file has {len(texts):,} sentences; the page takes {MOST_LINES:,}.")
        return self.embed(texts)

    def search(self, corpus: EncodedSentences, query: str, count: int) -> SearchResult:
        """The sentences of a corpus that are nearest to a query by cosine, found exactly.

        Raises:
            ValueError: the query is empty or too long.
        """
        from sentence_transformers.util import semantic_search

        start = time.perf_counter()
        vector = unit_rows(self.embedder.encode([given_text(query, "The query")]))
        encoded = time.perf_counter()
        found = semantic_search(torch.from_numpy(vector), torch.from_numpy(corpus.vectors), top_k=int(count))[0]
        searched = time.perf_counter()
        neighbors = [(float(hit["score"]), corpus.texts[int(hit["corpus_id"])]) for hit in found]
        return SearchResult(neighbors, encoded - start, searched - encoded)

    def attention(self, text: str) -> tuple[list[str], dict[str, np.ndarray], DecodingRecord | None]:
        """The share of each token of a text in each latent row, and the decoder's attention over the rows (None if it
        has no such attention, or there is no decoder).

        Raises:
            ValueError: the model is none of this package, or the text is empty or too long.
        """
        if self.encoder is None:
            raise ValueError(NO_ROWS)
        most = (self.embedder.max_seq_length or NO_LIMIT) - 1  # room for the end token
        given = default_prompt(self.embedder) + given_text(text, "The text")
        text = "".join(split_tokens(self.tokenizer, given, most)[0])
        tokens, shares = pooling_shares(self.encoder, self.tokenizer, text)
        record = None
        if self.model is not None and self.model.config.is_autoregressive:
            try:
                record = record_decoding(self.model, self.tokenizer, text, self.target_tokenizer)
            except ValueError:  # a decoder that only reads the rows before its first word
                record = None
        return tokens, shares, record
