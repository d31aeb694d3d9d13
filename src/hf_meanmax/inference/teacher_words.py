"""Word vectors from trained models: a SentenceTransformer's vectors of single words and of the pieces of its
vocabulary, or the words of a static model."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from hf_meanmax.checkpoint.folder import load_checkpoint
from hf_meanmax.data.sentences import IDEOGRAPHS
from hf_meanmax.modeling.layers import unit_rows
from hf_meanmax.tokenization import WordVectors

from .blocks import in_blocks
from .compression import PCA, check_finite
from .embedder import embed
from .encoder import encode_texts

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from tokenizers import Tokenizer

_IS_IDEOGRAPH_INSIDE = re.compile(f"##[{IDEOGRAPHS}]")
_BLOCK = 2048
_BATCH = 256


def teacher_words(
    teacher: SentenceTransformer,
    words: WordVectors,
    components: int | None = None,
    with_pieces: bool = False,
    show_progress: bool = True,
) -> WordVectors:
    """A teacher's vectors of words, each encoded as a text of its own; centred over the words and scaled to a root
    mean square of 1.

    Args:
        teacher: any SentenceTransformer.
        words: the words, the most frequent first, with their counts; their vectors are not used.
        components: number of leading principal components to keep (default: all dimensions, not rotated).
        with_pieces: append, with a count of 1, the pieces of the teacher's WordPiece vocabulary that are not in the
            list, and characters of the words that neither has; the teacher may strip the accents of these before it
            encodes them.
        show_progress: show a progress bar.

    Raises:
        ValueError: the teacher gave a vector that is not finite, has no WordPiece vocabulary for `with_pieces`, or its
            vectors have fewer numbers than `components`.
    """
    names, counts = list(words.words), words.counts
    bar_options = {"desc": "teacher's words", "unit": " words", "disable": not show_progress}
    vectors = embed(teacher, names, _BATCH, show_progress, "words")
    if with_pieces:
        pieces = wordpieces(teacher, set(names))
        ids = in_blocks(list(pieces.values()), _BLOCK, **bar_options)
        vectors = np.concatenate([vectors, *(_piece_vectors(teacher, block) for block in ids)])
        names += pieces
        known, characters = set(names), sorted(set("".join(words.words)))
        missing = [name for one in characters for name in (one, f"##{one}") if name not in known]
        if missing:
            vectors = np.concatenate([vectors, encode_texts(teacher, [name[-1] for name in missing], _BATCH)])
            names += missing
        added = np.ones(len(names) - len(words), dtype=np.int64)
        counts = None if counts is None else np.concatenate([counts, added])
    check_finite(vectors)
    if components is None:
        vectors = vectors - vectors[: len(words)].mean(axis=0)
    else:
        vectors = PCA.fit(vectors[: len(words)], components).apply(vectors)
    vectors /= np.sqrt(np.mean(np.square(vectors)))
    return WordVectors(names, vectors.astype(np.float32), counts)


def static_words(folder: str | os.PathLike[str], size: int | None = None) -> WordVectors:
    """The words of a trained static model with their vectors after its map, in the order of its vocabulary.

    Args:
        folder: a checkpoint folder whose embedding is a weighted mean of word vectors (`pooling="weighted_mean"`).
        size: size of the vectors (default: the model's); a smaller one keeps the leading singular directions.

    Raises:
        FileNotFoundError, ValueError: no whole checkpoint, a model that is not static, or one with vectors smaller
            than `size`.
    """
    model, tokenizer = load_checkpoint(folder)
    if model.config.pooling != "weighted_mean":
        raise ValueError(
            f"{folder} is no static model: its pooling is {model.config.pooling!r}. Give one that was trained with "
            "`encoder_type` 'none' and `pooling` 'weighted_mean', or a file of word vectors."
        )
    special = set(tokenizer.all_special_ids)
    ids = [number for number in range(model.config.input_vocab_size) if number not in special]
    with torch.inference_mode():
        pooler = model.encoder.word_pooler
        vectors = pooler.map(model.encoder.embeddings.word_embeddings.weight[ids]).float()
        # A feed-forward layer over the map changes the lengths, so they are restored.
        vectors = unit_rows(pooler.feed_forward(vectors)) * vectors.norm(dim=1, keepdim=True)
        size = size or vectors.shape[1]
        if vectors.shape[1] < size:
            raise ValueError(
                f"The words of {folder} have {vectors.shape[1]} numbers, {size} are asked for. Set `--embedding_size "
                f"{vectors.shape[1]}` or less."
            )
        if vectors.shape[1] > size:
            vectors = vectors @ torch.linalg.svd(vectors, full_matrices=False).Vh[:size].T
        vectors /= vectors.square().mean().sqrt()
    return WordVectors(tokenizer.convert_ids_to_tokens(ids), vectors.numpy())


def wordpieces(teacher: SentenceTransformer, known: set[str]) -> dict[str, int]:
    """The ids, by name, of the pieces of a teacher's WordPiece vocabulary that are not among the known words.

    Special tokens and unused entries are left out.

    Raises:
        ValueError: the teacher's tokenizer is of another kind.
    """
    backend: Tokenizer | None = getattr(getattr(teacher, "tokenizer", None), "backend_tokenizer", None)
    if backend is None or type(backend.model).__name__ != "WordPiece":
        kind = "no tokenizer of its own" if backend is None else f"a {type(backend.model).__name__} tokenizer"
        raise ValueError(
            f"Only a WordPiece vocabulary can be joined to whole words, and this teacher has {kind}. Leave the pieces "
            "out."
        )
    special = set(teacher.tokenizer.all_special_tokens)
    vocabulary = backend.get_vocab(with_added_tokens=False)
    # BERT takes each Chinese character for a word and never saw its form inside a word, so the word's id is used.
    return {
        piece: vocabulary.get(piece[2:], number) if _IS_IDEOGRAPH_INSIDE.fullmatch(piece) else number
        for piece, number in sorted(vocabulary.items(), key=lambda item: item[1])
        if piece not in known and piece not in special and not piece.startswith("[unused")
    }


@torch.inference_mode()
def _piece_vectors(teacher: SentenceTransformer, ids: list[int]) -> npt.NDArray[np.float32]:
    """The vectors of single tokens, each between the special tokens that surround a text."""
    text = teacher.tokenizer("a", return_special_tokens_mask=True)
    is_special = text["special_tokens_mask"]
    first, last = is_special.index(0), len(is_special) - is_special[::-1].index(0)
    around = text["input_ids"]
    rows = torch.tensor([[*around[:first], number, *around[last:]] for number in ids])
    features = {"input_ids": rows, "attention_mask": torch.ones_like(rows)}
    features = {name: tensor.to(teacher.device) for name, tensor in features.items()}
    vectors: npt.NDArray[np.float32] = teacher(features)["sentence_embedding"].float().cpu().numpy()
    return vectors
