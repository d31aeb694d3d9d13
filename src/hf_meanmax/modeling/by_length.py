"""Batches of texts that are encoded in groups of like length, so that little of them is padding."""

from bisect import bisect_right
from collections.abc import Callable, Iterable

import torch
from transformers.modeling_outputs import ModelOutput

from .layers import has_padding_first, tokens_first


# Lengths differ from batch to batch: compiled, each of these would be another program.
@torch.compiler.disable(recursive=False)
def encode_by_length(
    encoder: Callable[..., ModelOutput],
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    group_sizes: Callable[[list[int]], Iterable[int]],
) -> torch.Tensor:
    """The `latents` `(B, L, latent_width)` of texts of any lengths, in their order.

    Args:
        encoder: an encoder model.
        input_ids: `(B, N)`.
        attention_mask: `(B, N)`, 1 for tokens and 0 for padding on either side.
        group_sizes: from the lengths, the longest first, to the sizes of the groups. An empty group is encoded as the
            longest text, and left away.
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
    """The sizes of groups of texts, the longest first, in which few tokens are padding. Those of several texts have
    `most_tokens` at most, padding included."""
    sizes: list[int] = []
    start = 0
    while start < len(lengths):
        width = lengths[start]
        # A group costs as much as about sixty tokens.
        end = bisect_right(lengths, 2 - 0.85 * width, lo=start, key=lambda length: -length)
        most = end - start if most_tokens is None else max(1, most_tokens // max(width, 1))
        sizes.append(min(end - start, most))
        start += sizes[-1]
    return sizes
