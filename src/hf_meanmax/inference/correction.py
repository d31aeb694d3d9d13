"""Better texts from vectors: embeds candidates and keeps the one whose vector is nearest to the decoded one.

No further training is needed. With corrections, each round tries small edits of the best text so far
([`~hf_meanmax.inference.edits.propose_edits`][]), and keeps one that is nearer. A near vector does not make a text a
sentence, so the choice among the nearest edits also counts the decoder's log probability.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers.modeling_outputs import BaseModelOutput

from hf_meanmax.checkpoint.folder import require_reconstruction, settings_of_run
from hf_meanmax.checkpoint.location import checkpoint_folder
from hf_meanmax.checkpoint.sentence_transformer import saved_normalization
from hf_meanmax.cosines import unit_rows
from hf_meanmax.fields import check_least
from hf_meanmax.modeling.generation import MIN_TOKENS_FROM_EMBEDDING

from .blocks import in_blocks
from .edits import Tokens, log_likelihoods, propose_edits
from .embedder import load_embedder
from .encoder import embedding_dimension, encode_texts, load_encoder
from .fingerprints import model_fingerprints

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


# Candidates that are generated together; more are no faster.
_CANDIDATES_TOGETHER = 256

# A text with at least this cosine is not edited: its vector is the decoded one.
_EXACT_COSINE = 0.9999

# Edits of a text that the decoder scores, and the cosine that one unit of log probability is worth.
_WEIGHED_EDITS = 8
_LIKELIHOOD_WEIGHT = 0.003


@dataclass(frozen=True)
class ChosenText:
    """A text decoded from a vector.

    Args:
        text: the text, on one line.
        cosine: cosine of the text's embedding with the decoded vector.
        first_cosine: the same for the first candidate (with beams, the likeliest).
        ended: whether the text ended within the bound of its length; always true of an edited text.
        length: number of tokens of the longest candidate of its batch.
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
        model: the model that decodes.
        tokenizer: the tokenizer of the generated text.
        embedder: the embedder of the decoded vectors (see [`embedder_of`][]).
        num_candidates: number of candidates per vector: beams, or samples.
        num_corrections: number of rounds of edits of the best candidate.
        do_sample: draw candidates instead of searching beams.
        batch_size: texts that the embedder encodes together.
        num_edits: edits of each text in a round.
        seed: seed of the samples: `hf_meanmax.inference.decode.decode_sources` seeds torch with it plus the number of
            a batch's first row.

    Raises:
        TypeError: the model, tokenizer or embedder is of another kind.
        ValueError: a number is too small, or the embedder's vectors have another size than the model decodes.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    embedder: SentenceTransformer
    num_candidates: int = 8
    num_corrections: int = 0
    do_sample: bool = False
    batch_size: int = 64
    num_edits: int = 48
    seed: int = 0

    def __post_init__(self) -> None:
        check_least(self, num_candidates=1, num_corrections=0, batch_size=1, num_edits=1)
        parts = ((self.model, "generate"), (self.tokenizer, "batch_decode"), (self.embedder, "similarity"))
        if not all(hasattr(part, method) for part, method in parts):
            given = ", ".join(type(part).__name__ for part in (self.model, self.tokenizer, self.embedder))
            raise TypeError(f"Corrector takes a model, its tokenizer and a SentenceTransformer, not {given}.")
        config = self.model.config
        wanted = config.sentence_embedding_size if config.reads_text else config.embedding_dim
        if (size := embedding_dimension(self.embedder)) != wanted:
            raise ValueError(f"The embedder gives vectors of {size} numbers; the model decodes vectors of {wanted}.")

    def decode(self, vectors: np.ndarray, show_progress: bool = False, **generation: object) -> list[ChosenText]:
        """The text of each vector `(N, D)`.

        Args:
            vectors: raw vectors of the embedder; a single vector counts as one row.
            show_progress: show a progress bar.
            generation: arguments of `generate`, for instance `max_new_tokens` or, with `do_sample`, `top_p`.

        Raises:
            ValueError: the model cannot decode the vectors.
        """
        vectors = np.atleast_2d(vectors)
        if not vectors.size:
            return []
        together = max(1, _CANDIDATES_TOGETHER // self.num_candidates)
        blocks = in_blocks(vectors, together, desc="decode", unit="row", disable=not show_progress)
        return [decoded for block in blocks for decoded in self._decode(block, generation)]

    def _decode(self, vectors: np.ndarray, generation: dict[str, object]) -> list[ChosenText]:
        """[`decode`][] for vectors whose candidates are generated together."""
        # The vectors keep their dtype, which reveals quantised ones.
        with torch.no_grad():
            latents = self.model.latents_from_embedding(vectors)
        targets = unit_rows(np.asarray(vectors, dtype=np.float32))
        best, tokens = self._nearest(latents, targets, generation)
        if not self.num_corrections:
            return best
        likelihoods = log_likelihoods(self.model, latents, tokens)
        tried = [{text} for text in tokens]
        bound = self._bound(generation)
        for number in range(self.num_corrections):
            rows = [row for row, one in enumerate(best) if one.cosine < _EXACT_COSINE]
            if not rows:
                break
            edits = propose_edits(
                self.model, latents[rows], [tokens[row] for row in rows], self.num_edits,
                [tried[row] for row in rows], bound - 1, seed=number,
            )  # fmt: skip
            for row, edit, text, cosine, likelihood in self._nearer(rows, edits, targets, latents, best):
                gain = cosine - best[row].cosine + _LIKELIHOOD_WEIGHT * (likelihood - likelihoods[row])
                if gain > 0:
                    tokens[row], likelihoods[row] = edit, likelihood
                    best[row] = replace(best[row], text=text, cosine=cosine, ended=True)
        return best

    def _bound(self, generation: dict[str, Any]) -> int:
        """The largest number of tokens of a text, from the arguments of `generate`."""
        length = generation.get("max_length")
        own = getattr(generation.get("generation_config"), "max_new_tokens", None)
        given = generation.get("max_new_tokens") or (length and length - 1) or own
        return int(given or self.model.generation_config.max_new_tokens or MIN_TOKENS_FROM_EMBEDDING)

    def _nearest(
        self, latents: torch.Tensor, targets: np.ndarray, generation: dict[str, object]
    ) -> tuple[list[ChosenText], list[Tokens]]:
        """The candidate nearest to each target, and its tokens without special ones."""
        count = self.num_candidates
        search: dict[str, object] = {"do_sample": True} if self.do_sample else {"num_beams": count}
        tokens = self.model.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=latents),
            **{**search, **generation, "num_return_sequences": count},
        )
        texts, ended = read_tokens(self.tokenizer, tokens)
        vectors = self._embed(texts).reshape(len(latents), count, -1)
        cosines = np.einsum("nd,ncd->nc", targets, vectors)
        chosen = cosines.argmax(axis=1)
        rows = (np.arange(len(latents)) * count + chosen).tolist()
        length = tokens.shape[1] - 1
        best = [
            ChosenText(
                texts[row], float(cosines[number, chosen[number]]), float(cosines[number, 0]), ended[row], length
            )
            for number, row in enumerate(rows)
        ]
        specials = self.model.config.num_special_tokens
        return best, [tuple(token for token in tokens[row].tolist() if token >= specials) for row in rows]

    def _nearer(
        self,
        rows: list[int],
        edits: list[list[Tokens]],
        targets: np.ndarray,
        latents: torch.Tensor,
        best: list[ChosenText],
    ) -> list[tuple[int, Tokens, str, float, float]]:
        """Row, tokens, text, cosine and log probability of the edits that are nearer than their row's best text; only
        the nearest few of each row."""
        owners = np.repeat(rows, [len(of_row) for of_row in edits])
        flat = [edit for of_row in edits for edit in of_row]
        if not flat:
            return []
        texts, _ = read_tokens(self.tokenizer, flat)
        cosines = np.einsum("nd,nd->n", self._embed(texts), targets[owners])
        nearer: list[int] = []
        for row in rows:
            mine = np.flatnonzero((owners == row) & (cosines > best[row].cosine))
            nearer += mine[np.argsort(-cosines[mine], kind="stable")[:_WEIGHED_EDITS]].tolist()
        likelihoods = log_likelihoods(self.model, latents[owners[nearer]], [flat[place] for place in nearer])
        return [
            (int(owners[place]), flat[place], texts[place], float(cosines[place]), float(likelihood))
            for place, likelihood in zip(nearer, likelihoods, strict=True)
        ]

    def _embed(self, texts: list[str]) -> np.ndarray:
        """Unit-length vectors `(N, D)` of texts, computed in the precision of the decoder's weights."""
        # Many candidates are equal.
        unique, places = np.unique(texts, return_inverse=True)
        dtype = self.model.dtype
        with torch.autocast(self.embedder.device.type, dtype, enabled=dtype != torch.float32):
            vectors = encode_texts(self.embedder, unique.tolist(), self.batch_size)
        return unit_rows(np.asarray(vectors, np.float32))[places]


def read_tokens(
    tokenizer: PreTrainedTokenizerBase, tokens: torch.Tensor | list[Tokens]
) -> tuple[list[str], list[bool]]:
    """The texts of generated ids, `(B, T)` or B rows of any length, each on one line, and whether each has ended."""
    rows = tokens.tolist() if isinstance(tokens, torch.Tensor) else [list(row) for row in tokens]
    texts = [" ".join(text.splitlines()) for text in tokenizer.batch_decode(rows, skip_special_tokens=True)]
    return texts, [tokenizer.eos_token_id in row for row in rows]


def gives_other_vectors(model: PreTrainedModel, folder: str | os.PathLike[str]) -> bool:
    """Whether an autoencoder's SentenceTransformer gives vectors of another direction than the decoder expects."""
    return not model.config.ignores_length and saved_normalization(checkpoint_folder(folder)) == "rows"


def embedder_of(
    model: PreTrainedModel,
    folder: str | os.PathLike[str],
    name: str | None = None,
    device: torch.device | str | None = None,
    trust_remote_code: bool = False,
) -> SentenceTransformer:
    """Loads the embedder whose vectors a model decodes, with its prompt; for an autoencoder, its own encoder.

    Args:
        model: the model that decodes.
        folder: its checkpoint.
        name: folder or name of an embedding decoder's embedder (default: as in the settings of the training run, or
            else as in the checkpoint).
        device: the device of the embedder.
        trust_remote_code: run code that comes with the embedder.

    Raises:
        FileNotFoundError, ValueError: no such embedder, another one than the checkpoint records, a model that reads
            text and does not reconstruct it, or an autoencoder saved with `normalize` "rows", whose vectors have
            another direction than those that it decodes.
    """
    if model.config.reads_text:
        if name is not None:
            raise ValueError(f"{folder} decodes its own vectors; leave the embedder ({name!r}) out.")
        require_reconstruction(folder)
        if gives_other_vectors(model, folder):
            raise ValueError(
                f"{folder} was saved with `normalize` 'rows': its SentenceTransformer gives other vectors than it "
                "decodes, and candidates cannot be compared with these."
            )
        return load_encoder(os.fspath(folder), trust_remote_code, device)
    known = model.config.embedder or {}
    prompt = str(known.get("prompt") or "")
    # Of an embedder's folder the checkpoint records only the last part of the path.
    chosen = name or str(settings_of_run(folder).get("embedder") or known.get("name") or "")
    if not chosen:
        raise ValueError(f"{folder} does not say whose vectors it decodes; name the embedder.")
    try:
        embedder = load_embedder(chosen, prompt, device, trust_remote_code)
    except (OSError, ValueError) as error:
        if name:
            raise
        raise ValueError(
            f"The embedder of {folder}, {chosen!r}, could not be loaded: give its folder, or its name on the Hub, "
            f"with `--embedder` (`embedder`). ({str(error).partition(chr(10))[0]})"
        ) from error
    if known.get("weights") not in (None, model_fingerprints(embedder)["weights"]):
        raise ValueError(
            f"{chosen} has other weights than {known.get('name')!r}, whose vectors {folder} decodes: give the embedder "
            "that it was trained on, with `--embedder` (`embedder`)."
        )
    return embedder
