"""Beam search as in transformers, except that a text leaves the batch as soon as its result is final."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

# transformers' score for a beam that does not exist.
_NO_BEAM = -1.0e9
# Words per block in `top_words`.
_BLOCK = 64


@dataclass(frozen=True)
class BeamSearch:
    """The settings of a search, as transformers names them.

    Attributes:
        num_beams: number of beams per text.
        num_return_sequences: number of ended beams returned per text.
        early_stopping: whether the search of a text stops at `num_beams` ended beams; otherwise it stops when no
            running beam is likely to become better than these.
        length_penalty: exponent of the length in the divisor of an ended beam's log probability.
        max_new_tokens: largest number of new tokens of any text.
        start_id: token that each text begins with.
        pad_id: token after the end of a text.
        end_ids: `(E,)` tokens that end a text.
    """

    num_beams: int
    num_return_sequences: int
    early_stopping: bool
    length_penalty: float
    max_new_tokens: int
    start_id: int
    pad_id: int
    end_ids: torch.Tensor

    @property
    def num_candidates(self) -> int:
        """Number of candidates at each step: enough beams go on even if every beam's end tokens are among them."""
        return max(2, 1 + len(self.end_ids)) * self.num_beams

    def run(
        self, model: nn.Module, latents: torch.Tensor, mask: torch.Tensor | None, bounds: torch.Tensor | None
    ) -> torch.Tensor:
        """Generates ids `(B * num_return_sequences, T)`, the best beam of a text first.

        They equal those of transformers except for ties: the order of beams with equal scores, and which of them is
        dropped, is arbitrary in both.

        Args:
            model: a model with an autoregressive decoder of at least `num_candidates` words.
            latents: Z `(B, L, d)`.
            mask: `(B, L)`, 0 for padding; None means no padding.
            bounds: `(B,)`, the largest number of new tokens of each text; None if all have `max_new_tokens`.
        """
        device, beams = latents.device, self.num_beams
        ended = _Ended(len(latents), beams, self.max_new_tokens, self.start_id, self.pad_id, device)
        texts = torch.arange(len(latents)).to(device)  # those still being searched
        # All beams of a text begin alike, so the first step needs only one.
        words = torch.full((len(latents), 1, 1), self.start_id, device=device)
        scores = torch.zeros(words.shape[:2], dtype=torch.float32, device=device)
        cache: Any = None
        for length in range(1, self.max_new_tokens + 1):
            width = words.shape[1]
            output: Any = model(
                encoder_outputs=BaseModelOutput(last_hidden_state=latents[texts].repeat_interleave(width, dim=0)),
                attention_mask=None if mask is None else mask[texts].repeat_interleave(width, dim=0),
                decoder_input_ids=words[:, :, -1].reshape(-1, 1),
                past_key_values=cache,
                use_cache=True,
            )
            cache = output.past_key_values
            likeliest, ids = top_words(output.logits[:, -1].to(device).float().log_softmax(dim=-1), self.num_candidates)
            summed = (likeliest.unflatten(0, (-1, width)) + scores[:, :, None]).flatten(1)
            candidates, places = summed.topk(self.num_candidates)
            parents = places // self.num_candidates
            grown = torch.cat((_rows(words, parents), ids.reshape(len(texts), -1).gather(1, places)[:, :, None]), dim=2)
            ends = torch.isin(grown[:, :, -1], self.end_ids) | (length == self.max_new_tokens)
            if bounds is not None:
                ends |= (bounds[texts] <= length)[:, None]
            divisor = length**self.length_penalty
            ended.add(texts, grown[:, :beams], candidates[:, :beams] / divisor, ends[:, :beams])
            scores, best = candidates.masked_fill(ends, _NO_BEAM).topk(beams)
            words, parents = _rows(grown, best), parents.gather(1, best)
            goes_on = ~ends.all(dim=1) & ended.can_improve(texts, scores[:, 0] / divisor, self.early_stopping)
            first_rows = width * torch.arange(len(texts), device=device)
            texts, words, scores = texts[goes_on], words[goes_on], scores[goes_on]
            if len(texts) == 0:
                break
            cache.reorder_cache((first_rows[:, None] + parents)[goes_on].flatten())
        return ended.best(self.num_return_sequences)


class _Ended:
    """The best ended beams of each text, best first. A free place has length 0, whatever its words are."""

    def __init__(self, texts: int, beams: int, bound: int, start_id: int, pad_id: int, device: torch.device) -> None:
        self.words = torch.full((texts, beams, bound + 1), pad_id, device=device)
        self.words[:, :, 0] = start_id
        self.lengths = torch.zeros((texts, beams), dtype=torch.long, device=device)
        self.scores = torch.full((texts, beams), _NO_BEAM, dtype=torch.float32, device=device)

    def add(self, texts: torch.Tensor, words: torch.Tensor, scores: torch.Tensor, ends: torch.Tensor) -> None:
        """Adds the ended ones among the `(n, beams)` beams of some texts if they are better than those held."""
        length = words.shape[2]
        merged = torch.cat((self.scores[texts], scores.masked_fill(~ends, _NO_BEAM)), dim=1)
        self.scores[texts], best = merged.topk(scores.shape[1])
        self.words[texts, :, :length] = _rows(torch.cat((self.words[texts, :, :length], words), dim=1), best)
        lengths = torch.cat((self.lengths[texts], torch.full_like(best, length - 1).masked_fill(~ends, 0)), dim=1)
        self.lengths[texts] = lengths.gather(1, best)

    def can_improve(self, texts: torch.Tensor, best: torch.Tensor, early_stopping: bool) -> torch.Tensor:
        """Whether running beams of some texts, with best scores `best` `(n,)`, may still be added: `(n,)`."""
        lacks = (self.lengths[texts] == 0).any(dim=1)
        return lacks if early_stopping else lacks | (best > self.scores[texts, -1])

    def best(self, number: int) -> torch.Tensor:
        """Ids of the best `number` beams of each text, `(texts * number, T)`."""
        longest = int(self.lengths[:, :number].max())
        return self.words[:, :number, : longest + 1].flatten(0, 1).contiguous()


def top_words(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`scores.topk(count)` of `(rows, V)` scores, searched only in the `count` blocks of words with the largest maxima.

    A word of another block is not among the best: the maxima of these `count` blocks are all better.
    """
    blocks = scores.shape[1] // _BLOCK
    if blocks <= 2 * count:
        plain = scores.topk(count)
        return plain.values, plain.indices
    whole = scores[:, : blocks * _BLOCK].unflatten(1, (blocks, _BLOCK))
    chosen = whole.amax(dim=2).topk(count).indices[:, :, None]
    ids = (chosen * _BLOCK + torch.arange(_BLOCK, device=scores.device)).flatten(1)
    rest = torch.arange(blocks * _BLOCK, scores.shape[1], device=scores.device).expand(len(scores), -1)
    ids = torch.cat((ids, rest), dim=1)
    best, places = scores.gather(1, ids).topk(count)
    return best, ids.gather(1, places)


def _rows(values: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """`(B, m, T)` rows of `(B, n, T)` at places `(B, m)`."""
    return values.take_along_dim(places[:, :, None], dim=1)
