"""Lets a trained model encode words beyond its vocabulary, with the vectors of a word2vec or GloVe file.

For a trained word table, least squares fits a linear map of the vectors into it; a frozen one takes them as they are.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

from hf_meanmax.files import EncodingErrors
from hf_meanmax.tokenization import Expansion, expand_vocabulary, load_word_vectors

from .folder import (
    is_own_checkpoint,
    load_checkpoint,
    load_target_tokenizer,
    require_text_encoder,
    save_checkpoint,
    saved_training_args,
)
from .location import checkpoint_folder
from .sentence_transformer import saved_normalization

# The key of `training_args.json` that records an expansion.
_EXPANSION = "vocabulary_expansion"


def expand_checkpoint(
    model: str | os.PathLike[str],
    vectors: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    limit: int | None = None,
    encoding_errors: EncodingErrors = "strict",
) -> Expansion:
    """Writes a checkpoint like `model` that encodes every word of a file of word vectors (see [`expand_vocabulary`]).

    The new folder loads wherever the old one does. It generates the same words as before; a tied output layer is saved
    on its own.

    Args:
        model: a checkpoint folder, or a repository on the Hub.
        vectors: a file that [`load_word_vectors`] reads.
        output: the new folder; not `model` itself.
        limit: read only the first `limit` vectors, usually those of the most frequent words.
        encoding_errors: how to handle words that are not UTF-8.

    Returns:
        The new tokenizer and, for a trained word table, the map's quality on held-out words.

    Raises:
        FileNotFoundError: there is no such checkpoint, or no such file.
        FileExistsError: `output` holds anything but an expanded checkpoint.
        ValueError: the vectors do not fit the model, or `output` is `model`.
    """
    folder = checkpoint_folder(model)
    if Path(output).resolve() == folder.resolve():
        raise ValueError(f"output is {str(output)!r}, the checkpoint itself; name another folder.")
    is_taken = Path(output).is_dir() and any(Path(output).iterdir())
    if is_taken and not (is_own_checkpoint(output) and _EXPANSION in saved_training_args(output)):
        raise FileExistsError(f"{output} holds something else than an expanded checkpoint; name another folder.")
    whole, tokenizer = load_checkpoint(folder)
    require_text_encoder(whole.config, str(model))
    words = load_word_vectors(vectors, limit=limit, encoding_errors=encoding_errors)
    expansion = expand_vocabulary(whole, tokenizer, words)
    record = {
        "words_added": expansion.added,
        "words_in_all": len(expansion.tokenizer),
        **({"map": asdict(expansion.quality)} if expansion.quality else {}),
    }
    save_checkpoint(
        whole,
        expansion.tokenizer,
        output,
        target_tokenizer=load_target_tokenizer(folder, whole.config, None),
        normalize=saved_normalization(folder),
        remote_code=bool(getattr(whole.config, "auto_map", None)),
        training_args={**saved_training_args(folder), _EXPANSION: record},
        like=folder,
    )
    return expansion
