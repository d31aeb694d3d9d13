"""Translations of a corpus, one line a line."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from hf_meanmax.data.corpus import Corpus, CorpusLines

from .reconstruct import reconstruct

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_LINES = 2048


def translate_corpus(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    target_tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    *,
    batch_size: int = 64,
    num_beams: int = 1,
) -> Iterator[str]:
    """The translation of each line, in order and in constant memory; a blank line stays blank.

    Args:
        model: a translator.
        tokenizer, target_tokenizer: of the source and of the target.
        corpus: the texts, whole; none is cut.
        batch_size: texts translated together; fewer of long ones.
        num_beams: beams of the search; 1 is greedy.
    """
    lines = iter(CorpusLines(corpus))
    while block := list(islice(lines, _LINES)):
        texts = [line for line in block if line]
        generated = reconstruct(model, tokenizer, texts, batch_size, num_beams=num_beams)
        translations = iter(target_tokenizer.batch_decode(generated, skip_special_tokens=True))
        for line in block:
            yield " ".join(next(translations).splitlines()) if line else ""
