"""Encoding a batch of texts in groups of similar length, to reduce padding."""

from bisect import bisect_right
from collections.abc import Callable, Iterable

import torch
from transformers.modeling_outputs import ModelOutput

from .layers import has_padding_first, tokens_first


# Not compiled: group sizes and lengths differ from batch to batch, and each would need another program.
@torch.compiler.disable(recursive=False)
def encode_by_length(
    encoder: Callable[..., ModelOutput],
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    group_sizes: Callable[[list[int]], Iterable[int]],
) -> torch.Tensor:
    """The `latents` `(B, L, latent_width)` of texts of any lengths, in the order of the batch.

    Args:
        encoder: an encoder model.
        input_ids: `(B, N)`.
        attention_mask: `(B, N)`, 1 for tokens and 0 for padding on either side.
        group_sizes: maps the lengths, in descending order, to the sizes of the groups. For an empty group the longest
            text is encoded and its latents are dropped.
    """
    is_token = attention_mask.bool()
    if has_padding_first(is_token):
        places = tokens_first(is_token)
        input_ids, attention_mask = input_ids.gather(1, places), attention_mask.gather(1, places)
    lengths, order = is_token.sum(dim=1).sort(descending=True, stable=True)
    counts = lengths.tolist()
    latents, start = [], 0
    for size in group_sizes(counts):
        rows = order[start : start + size] if size else order[:1]
        width = max(counts[start if size else 0], 1)
        output = encoder(input_ids=input_ids[rows, :width], attention_mask=attention_mask[rows, :width])
        latents.append(output.latents[:size])
        start += size
    return torch.cat(latents)[order.argsort()]


def sizes_of_like_length(lengths: list[int], most_tokens: int | None = None) -> list[int]:
    """The sizes of groups with little padding, for lengths in descending order. A group of several texts has at most
    `most_tokens` tokens, padding included."""
    sizes: list[int] = []
    start = 0
    while start < len(lengths):
        width = lengths[start]
        # The overhead of a group is that of about sixty tokens.
        end = bisect_right(lengths, 2 - 0.85 * width, lo=start, key=lambda length: -length)
        most = end - start if most_tokens is None else max(1, most_tokens // max(width, 1))
        sizes.append(min(end - start, most))
        start += sizes[-1]
    return sizes
