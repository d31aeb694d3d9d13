"""Small edits of decoded texts, tried where a text's vector is not yet the decoded one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from hf_meanmax.modeling.losses import IGNORE_INDEX

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Tokens = tuple[int, ...]

# Words tried at each position, and the share of the edits that move words instead.
_WORDS_OF_A_PLACE = 12
_SHARE_OF_MOVES = 0.25
_LONGEST_MOVE = 4

# Positions whose scores over the vocabulary are in memory at once.
_PLACES_TOGETHER = 1024


@torch.no_grad()
def propose_edits(
    model: PreTrainedModel,
    latents: torch.Tensor,
    texts: list[Tokens],
    count: int,
    tried: list[set[Tokens]],
    longest: int,
    seed: int = 0,
) -> list[list[Tokens]]:
    """Proposes edits of each text that were not tried yet, and adds them to `tried`.

    A quarter of them move up to four words, drawn at random. For the others one forward pass of the decoder over each
    text gives the likeliest words at each position, given the vector and the words before: such a word replaces the
    text's own or is inserted before it, or a word is deleted. The edits with the largest gain come first, by the log
    probability of the new word minus that of the old one.

    Args:
        model: the decoder.
        latents: Z `(B, L, latent_width)` of the decoded vectors.
        texts: token ids of the B texts, without special ones.
        count: largest number of edits per text.
        tried: for each of the B, texts that are not proposed again.
        longest: largest number of tokens of an edited text.
        seed: seed of the moves.
    """
    specials = model.config.num_special_tokens
    proposed: list[list[Tokens]] = []
    for part, scores, labels in _scored(model, latents, texts):
        best, words = scores[..., specials:].topk(min(_WORDS_OF_A_PLACE, scores.shape[-1] - specials), dim=-1)
        # Scores of the text's own word at each position, and of the next word there, for deletions.
        own, after = (_of_words(scores, ids).tolist() for ids in (labels, labels.roll(-1, dims=1)))
        for row, text in enumerate(part):
            known = tried[len(proposed)]
            moves = _moves(text, int(_SHARE_OF_MOVES * count), np.random.default_rng(seed))
            likelier = _changes(text, best[row].tolist(), (words[row] + specials).tolist(), own[row], after[row])
            new: list[Tokens] = []
            for edit in (*moves, *likelier):
                if len(new) == count:
                    break
                if edit not in known and len(edit) <= longest:
                    new.append(edit)
                    known.add(edit)
            proposed.append(new)
    return proposed


@torch.no_grad()
def log_likelihoods(model: PreTrainedModel, latents: torch.Tensor, texts: list[Tokens]) -> np.ndarray:
    """The log probability `(B,)` of each text and its end token, given Z `(B, L, latent_width)`.

    Args:
        model, latents, texts: as [`propose_edits`][] takes them.
    """
    found = [np.empty(0, np.float32)]
    for _, scores, labels in _scored(model, latents, texts):
        likelihoods = _of_words(scores, labels).masked_fill(labels == IGNORE_INDEX, 0).sum(dim=1)
        found.append(likelihoods.cpu().numpy())
    return np.concatenate(found)


def _scored(
    model: PreTrainedModel, latents: torch.Tensor, texts: list[Tokens]
) -> Iterator[tuple[list[Tokens], torch.Tensor, torch.Tensor]]:
    """Yields batches of texts, the decoder's log probabilities `(B, T, V)` for them, and their targets `(B, T)`."""
    together = max(1, _PLACES_TOGETHER // (max(map(len, texts), default=0) + 1))
    for start in range(0, len(texts), together):
        part, read = texts[start : start + together], latents[start : start + together]
        rows = [torch.tensor([*text, model.config.eos_token_id]) for text in part]
        labels = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORE_INDEX).to(read.device)
        inputs = model.prepare_decoder_input_ids_from_labels(labels)
        logits = model(encoder_outputs=(read,), decoder_input_ids=inputs, use_cache=False).logits
        yield part, logits.float().log_softmax(dim=-1), labels


def _of_words(scores: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """The scores `(B, T)` of the words with these ids `(B, T)`."""
    return scores.gather(-1, ids.clamp(min=0)[..., None])[..., 0]


def _changes(
    text: Tokens, best: list[list[float]], words: list[list[int]], own: list[float], after: list[float]
) -> Iterator[Tokens]:
    """Yields texts with one word replaced, inserted or deleted, the largest gain first.

    Args:
        best: log probabilities of the likeliest `words` at each position, including the end.
        own: log probabilities of the text's own word at each position; `after` those of the next word there.
    """
    gains: list[tuple[float, int, int, int | None]] = []
    for place in range(len(text) + 1):
        # At the end there is no word to replace.
        for taken in (1, 0) if place < len(text) else (0,):
            gains += [
                (score - own[place], place, taken, word)
                for score, word in zip(best[place], words[place], strict=True)
                if text[place : place + 1] != (word,)
            ]
        if place < len(text) > 1:
            gains.append((after[place] - own[place], place, 1, None))
    for _, place, taken, word in sorted(gains, key=lambda gain: -gain[0]):
        yield (*text[:place], *(() if word is None else (word,)), *text[place + taken :])


def _moves(text: Tokens, count: int, generator: np.random.Generator) -> Iterator[Tokens]:
    """Yields `count` texts with a run of words moved elsewhere."""
    for _ in range(count if len(text) > 1 else 0):
        length = int(generator.integers(1, min(_LONGEST_MOVE, len(text) - 1) + 1))
        start = int(generator.integers(0, len(text) - length + 1))
        rest = text[:start] + text[start + length :]
        place = int(generator.integers(0, len(rest) + 1))
        yield rest[:place] + text[start : start + length] + rest[place:]
