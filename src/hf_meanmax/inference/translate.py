"""Translations of a corpus, line by line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from hf_meanmax.checkpoint.folder import (
    check_checkpoint,
    learnt_objective,
    require_text_encoder,
    saved_training_args,
)
from hf_meanmax.checkpoint.location import checkpoint_folder
from hf_meanmax.data.corpus import Corpus, CorpusLines

from .reconstruct import reconstruct

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Batches per block; lines are sorted by length within a block, and translations are written after each block.
_BATCHES = 8


def check_translator(folder: str | os.PathLike[str]) -> None:
    """Checks that a checkpoint was trained to translate, as far as it records its objective.

    Raises:
        ValueError: it was trained for another objective, or lacks a text encoder or an autoregressive decoder.
        FileNotFoundError: see [`~hf_meanmax.checkpoint.folder.check_checkpoint`].
    """
    path = checkpoint_folder(folder)
    config = check_checkpoint(path)
    require_text_encoder(config, str(folder))
    objective = learnt_objective(config, saved_training_args(path))
    if objective != "translation" or not config.is_autoregressive:
        trained = f"was trained with the objective {objective!r}" if objective != "translation" else "decodes no text"
        raise ValueError(f"{folder} is no translator: it {trained}. Train one with `--objective translation`.")


def translate_corpus(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    target_tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    *,
    batch_size: int = 64,
    num_beams: int = 1,
    first_line: int = 0,
) -> Iterator[str]:
    """The translation of each line, in order and in constant memory; a blank line stays blank.

    Args:
        model: a translator.
        tokenizer, target_tokenizer: the tokenizers of source and target.
        corpus: the texts; none is cut.
        batch_size: texts translated together; fewer if they are long.
        num_beams: beams of the search; 1 is greedy.
        first_line: number of lines to skip.
    """
    lines = islice(CorpusLines(corpus), first_line, None)
    while block := list(islice(lines, _BATCHES * batch_size)):
        texts = [line for line in block if line]
        generated = reconstruct(
            model, tokenizer, texts, batch_size, target_tokenizer=target_tokenizer, num_beams=num_beams
        )
        translations = iter(target_tokenizer.batch_decode(generated, skip_special_tokens=True))
        for line in block:
            yield " ".join(next(translations).splitlines()) if line else ""
