"""Beam search as transformers defines it, in which texts leave the batch when nothing can change them any more."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

# What transformers scores a beam with that there is not.
_NO_BEAM = -1.0e9
# The likeliest words are looked for among the likeliest blocks of so many.
_BLOCK = 64


@dataclass(frozen=True)
class BeamSearch:
    """The settings of a search, as transformers names them.

    Attributes:
        num_beams: beams of a text.
        num_return_sequences: of these, how many are returned.
        early_stopping: whether a text ends with as many ended beams as there are beams; otherwise it ends when no beam
            is likely to become better than these.
        length_penalty: power of the length that the log probability of an ended beam is divided by.
        max_new_tokens: where the longest text ends.
        start_id: what each text begins with.
        pad_id: what stands behind its end.
        end_ids: `(E,)`, each of which ends a text.
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
        """Words that are weighed at each step: even if all that may end a beam are among them, enough go on."""
        return max(2, 1 + len(self.end_ids)) * self.num_beams

    def run(
        self, model: nn.Module, latents: torch.Tensor, mask: torch.Tensor | None, bounds: torch.Tensor | None
    ) -> torch.Tensor:
        """Ids `(B * num_return_sequences, T)`, those of a text best first.

        They are those of transformers, but where scores are equal: which of two such beams comes first, or is dropped,
        is as it happens in both.

        Args:
            model: a model with an autoregressive decoder of at least `num_candidates` words.
            latents: Z `(B, L, d)`.
            mask: `(B, L)`, 0 for padding; None means no padding.
            bounds: `(B,)`, the most new tokens of each text, if it has a bound of its own.
        """
        device, beams = latents.device, self.num_beams
        ended = _Ended(len(latents), beams, self.max_new_tokens, self.start_id, self.pad_id, device)
        texts = torch.arange(len(latents)).to(device)  # that are still searched
        # All beams of a text begin alike, so at first there is one.
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
    """The best ended beams of each text, best first. A place that is still free has length 0, whatever its words."""

    def __init__(self, texts: int, beams: int, bound: int, start_id: int, pad_id: int, device: torch.device) -> None:
        self.words = torch.full((texts, beams, bound + 1), pad_id, device=device)
        self.words[:, :, 0] = start_id
        self.lengths = torch.zeros((texts, beams), dtype=torch.long, device=device)
        self.scores = torch.full((texts, beams), _NO_BEAM, dtype=torch.float32, device=device)

    def add(self, texts: torch.Tensor, words: torch.Tensor, scores: torch.Tensor, ends: torch.Tensor) -> None:
        """Takes those of `(n, beams)` beams of some texts that end, where they are better."""
        length = words.shape[2]
        merged = torch.cat((self.scores[texts], scores.masked_fill(~ends, _NO_BEAM)), dim=1)
        self.scores[texts], best = merged.topk(scores.shape[1])
        self.words[texts, :, :length] = _rows(torch.cat((self.words[texts, :, :length], words), dim=1), best)
        lengths = torch.cat((self.lengths[texts], torch.full_like(best, length - 1).masked_fill(~ends, 0)), dim=1)
        self.lengths[texts] = lengths.gather(1, best)

    def can_improve(self, texts: torch.Tensor, best: torch.Tensor, early_stopping: bool) -> torch.Tensor:
        """`(n,)`: whether more beams of some texts may be taken, the likeliest of which has the score `best` `(n,)`."""
        lacks = (self.lengths[texts] == 0).any(dim=1)
        return lacks if early_stopping else lacks | (best > self.scores[texts, -1])

    def best(self, number: int) -> torch.Tensor:
        """The best so many of each text, one behind the other: `(texts * number, T)`."""
        longest = int(self.lengths[:, :number].max())
        return self.words[:, :number, : longest + 1].flatten(0, 1).contiguous()


def top_words(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`scores.topk(count)` of `(rows, V)` scores, without sorting all of them.

    Each of the best words is the best of its block, or another of that block is better: so the blocks whose best words
    are the best hold them all.
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
