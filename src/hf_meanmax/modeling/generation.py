"""How long a decoding may become: each text has a bound of its own, whatever else stands in its batch."""

from collections.abc import Iterable
from typing import Any

import torch
from transformers import StoppingCriteria

# The least that may be said of a text, however short, and of an embedding, whose text's length is not known.
LEAST_OF_TEXT, LEAST_OF_EMBEDDING = 16, 256


def decoding_bound(tokens: Any) -> Any:
    """The most tokens that are said of a text of `tokens` tokens, `</s>` counted in both: 1.5 times as many, rounded up
    (Zhang, Wu, Li and Zhang, section 5.2).

    Args:
        tokens: a number, or a tensor of them.
    """
    return (3 * tokens + 1) // 2


def text_bounds(text: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """The bound `(B,)` of each text, given as ids `(B, N)` or vectors `(B, N, e)`; no mask means no padding."""
    mask = torch.ones(text.shape[:2], device=text.device) if attention_mask is None else attention_mask
    return decoding_bound((mask != 0).sum(dim=1)).clamp(min=LEAST_OF_TEXT)


class TextLengthCriteria(StoppingCriteria):
    """Ends the decoding of text b after `bounds[b]` new tokens, so that it does not depend on the rest of its batch.

    Args:
        bounds: `(B,)`, each 1 or more. The beams or samples of a text are rows that follow each other.
    """

    def __init__(self, bounds: torch.Tensor) -> None:
        self.bounds = bounds
        self.prompt: int | None = None

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        rows, length = input_ids.shape
        if self.prompt is None:
            # Whether to end is asked for the first time when the first token has been said.
            self.prompt = length - 1
        return self.reached(rows, length - self.prompt)

    def reached(self, rows: int, said: int | torch.Tensor) -> torch.Tensor:
        """Whether so many new tokens reach the bound of each row: `(rows,)`, or `(rows, T)` for a tensor `(T,)`."""
        bounds = self.bounds.repeat_interleave(rows // len(self.bounds))
        return bounds <= said if isinstance(said, int) else bounds[:, None] <= said


def pad_ended(sequences: torch.Tensor, criteria: TextLengthCriteria | None, *settings: Any) -> None:
    """Puts padding behind the end token of each row of `(rows, T)` ids, and behind its bound, in place.

    transformers leaves no other tokens there, but its beam search puts the end token where the padding token is 0.

    Args:
        sequences: what was generated.
        criteria: the bounds, if there were any.
        settings: dicts and configurations; the first that has a `pad_token_id` or an `eos_token_id` tells it.
    """
    pad_id, end_ids = _setting("pad_token_id", settings), _setting("eos_token_id", settings)
    if pad_id is None:
        return
    is_end = torch.isin(sequences, torch.as_tensor([] if end_ids is None else end_ids, device=sequences.device))
    is_end[:, 0] = False  # some decoders start with it
    behind = is_end.cumsum(dim=1) > is_end
    if criteria is not None:
        columns = torch.arange(sequences.shape[1], device=sequences.device)
        behind |= criteria.reached(len(sequences), columns - (criteria.prompt or 0))
    sequences.masked_fill_(behind, pad_id)


def _setting(name: str, sources: Iterable[Any]) -> Any:
    found = (source.get(name) if isinstance(source, dict) else getattr(source, name, None) for source in sources)
    return next((value for value in found if value is not None), None)
