"""Better texts from vectors: candidates are embedded again, and the one whose vector is nearest is kept.

No further training is needed. With corrections, each round decodes the vector moved by what the best text so far
misses of it (target + target - embedding of the text), and again the nearest of all candidates is kept.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from hf_meanmax.checkpoint.folder import checkpoint_folder, saved_normalization
from hf_meanmax.progress import progress_bar

from .embedder import describe_embedder, load_embedder
from .encode import encode_texts, load_encoder, unit_rows

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


# Candidates of so many rows fit a processor's cache; more of them together take up to twice as long.
_CANDIDATES_TOGETHER = 128


@dataclass(frozen=True)
class Decoded:
    """A text decoded from a vector.

    Args:
        text: the text, on one line.
        cosine: of its own vector with the one that was decoded.
        first_cosine: the same of the likeliest candidate, before any choice.
        ended: whether it ended before the bound of its length.
        length: tokens of the longest candidate of its batch.
    """

    text: str
    cosine: float
    first_cosine: float
    ended: bool
    length: int


@dataclass(frozen=True)
class Corrector:
    """Decodes vectors and chooses among candidates by the cosine of their re-embedding.

    Args:
        model: what decodes.
        tokenizer: of what it says.
        embedder: whose vectors are decoded (see [`embedder_of`][]).
        num_candidates: candidates of each vector in each round: beams, or samples.
        num_corrections: rounds after the first.
        do_sample: draw candidates instead of searching beams.
        batch_size: texts that the embedder reads together.

    Raises:
        ValueError: a number is too small.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    embedder: SentenceTransformer
    num_candidates: int = 8
    num_corrections: int = 0
    do_sample: bool = False
    batch_size: int = 64

    def __post_init__(self) -> None:
        for name, least in (("num_candidates", 1), ("num_corrections", 0), ("batch_size", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be {least} or more.")

    def decode(self, vectors: np.ndarray, **generation: object) -> list[Decoded]:
        """The text of each vector `(N, D)`; see [`decode_all`][] for many.

        Args:
            vectors: raw vectors of the embedder.
            generation: arguments of `generate`, for instance `max_new_tokens` or, with `do_sample`, `top_p`.

        Raises:
            ValueError: the model cannot decode the vectors.
        """
        if not len(vectors):
            return []
        together = max(1, _CANDIDATES_TOGETHER // self.num_candidates)
        if len(vectors) > together:
            parts = (vectors[start : start + together] for start in range(0, len(vectors), together))
            return [decoded for part in parts for decoded in self.decode(part, **generation)]
        targets = unit_rows(np.asarray(vectors, dtype=np.float32))
        lengths = np.linalg.norm(np.asarray(vectors, dtype=np.float32), axis=1, keepdims=True)
        best, found = self._nearest(vectors, targets, generation)
        first = [candidate.first_cosine for candidate in best]
        for _ in range(self.num_corrections):
            moved = lengths * (2 * targets - found)
            others, other_vectors = self._nearest(moved, targets, generation)
            for row, other in enumerate(others):
                if other.cosine > best[row].cosine:
                    best[row], found[row] = other, other_vectors[row]
        return [
            Decoded(chosen.text, chosen.cosine, cosine, chosen.ended, chosen.length)
            for chosen, cosine in zip(best, first, strict=True)
        ]

    def decode_all(
        self, vectors: np.ndarray, batch_size: int = 64, show_progress: bool = False, **generation: object
    ) -> list[Decoded]:
        """As [`decode`][], `batch_size` vectors at a time, with a progress bar over the vectors."""
        decoded: list[Decoded] = []
        with progress_bar(total=len(vectors), desc="decode", unit="row", disable=not show_progress) as bar:
            for start in range(0, len(vectors), batch_size):
                decoded += self.decode(vectors[start : start + batch_size], **generation)
                bar.update(len(decoded) - bar.n)
        return decoded

    def _nearest(
        self, inputs: np.ndarray, targets: np.ndarray, generation: dict[str, object]
    ) -> tuple[list[Decoded], np.ndarray]:
        """Of the candidates for each input the one nearest to its target, and its vector `(N, D)` of unit length."""
        count = self.num_candidates
        search: dict[str, object] = {"do_sample": True} if self.do_sample else {"num_beams": count}
        tokens = self.model.generate(
            sentence_embedding=torch.from_numpy(np.ascontiguousarray(inputs, dtype=np.float32)),
            **{**search, **generation, "num_return_sequences": count},
        )
        texts, ended = read_tokens(self.tokenizer, tokens)
        # Many candidates are the same text.
        unique, places = np.unique(texts, return_inverse=True)
        vectors = unit_rows(np.asarray(encode_texts(self.embedder, unique.tolist(), self.batch_size), np.float32))
        cosines = np.einsum("nd,ncd->nc", targets, vectors[places].reshape(len(inputs), count, -1))
        chosen = cosines.argmax(axis=1)
        rows = np.arange(len(inputs)) * count + chosen
        length = tokens.shape[1] - 1
        best = [
            Decoded(texts[row], float(cosines[number, chosen[number]]), float(cosines[number, 0]), ended[row], length)
            for number, row in enumerate(rows)
        ]
        return best, vectors[places[rows]]


def read_tokens(tokenizer: PreTrainedTokenizerBase, tokens: torch.Tensor) -> tuple[list[str], list[bool]]:
    """The texts of generated ids `(B, T)`, each on one line, and whether each had ended."""
    texts = [" ".join(text.splitlines()) for text in tokenizer.batch_decode(tokens, skip_special_tokens=True)]
    return texts, (tokens == tokenizer.eos_token_id).any(dim=1).tolist()


def embedder_of(
    model: PreTrainedModel,
    folder: str | os.PathLike[str],
    name: str | None = None,
    device: torch.device | str | None = None,
    trust_remote_code: bool = False,
) -> SentenceTransformer:
    """The embedder whose vectors a model decodes, with its prompt: of an autoencoder its own encoder.

    Args:
        model: what decodes.
        folder: its checkpoint.
        name: where the embedder of an embedding decoder is; by default as its checkpoint calls it.
        device: where the embedder runs.
        trust_remote_code: run code that comes with it.

    Raises:
        FileNotFoundError, ValueError: no such embedder, another one than the checkpoint remembers, or an autoencoder
            whose folder scales each row, so that its vectors have another direction than those that it decodes.
    """
    if model.config.reads_text:
        if name is not None:
            raise ValueError(f"{folder} decodes its own vectors; leave the embedder ({name!r}) out.")
        path = checkpoint_folder(folder)
        if saved_normalization(path) == "rows" and not model.config.ignores_length:
            raise ValueError(
                f"{folder} was saved with `normalize` 'rows': its SentenceTransformer gives other vectors than it "
                "decodes, and candidates cannot be compared with these."
            )
        return load_encoder(os.fspath(folder), trust_remote_code, device)
    known = model.config.embedder or {}
    prompt = str(known.get("prompt") or "")
    if name is None:
        name = str(known.get("name") or "")
        if not name:
            raise ValueError(f"{folder} does not say whose vectors it decodes; name the embedder.")
        try:
            embedder = load_embedder(name, prompt, device, trust_remote_code)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{folder} calls its embedder {name!r}, which could not be loaded from there: give its folder, or its "
                f"name on the Hub, with `--embedder` (`embedder`). ({str(error).partition(chr(10))[0]})"
            ) from error
    else:
        embedder = load_embedder(name, prompt, device, trust_remote_code)
    if known.get("weights") not in (None, describe_embedder(embedder, name)["weights"]):
        raise ValueError(f"{name} has other weights than {known.get('name')!r}, whose vectors {folder} decodes.")
    return embedder
