"""Groups of texts of like length."""

import random
from types import SimpleNamespace

import torch

from hf_meanmax.modeling.by_length import encode_by_length, sizes_of_like_length


def test_groups_hold_like_lengths_and_few_tokens():
    draw = random.Random(3)
    for rows in (1, 2, 64, 1000):
        lengths = sorted((int(draw.lognormvariate(3, 0.7)) for _ in range(rows)), reverse=True)
        sizes = sizes_of_like_length(lengths, 2048)
        assert sum(sizes) == rows
        assert min(sizes) > 0
        padded, start = 0, 0
        for size in sizes:
            group = lengths[start : start + size]
            assert group[-1] >= 0.85 * group[0] - 2
            assert size == 1 or size * group[0] <= 2048
            padded, start = padded + size * group[0], start + size
        assert rows < 1000 or padded < 1.1 * sum(lengths)


def test_few_texts_of_like_length_are_one_group():
    assert sizes_of_like_length([9, 9, 8, 7]) == [4]
    assert sizes_of_like_length([3000, 2999, 0, 0], 2048) == [1, 1, 2]
    assert sizes_of_like_length([3000, 2999, 0, 0]) == [2, 2]
    assert sizes_of_like_length([]) == []


def test_rows_come_back_in_their_order():
    lengths = torch.tensor([3, 0, 7, 1, 7])
    places = torch.arange(8)
    mask = (places >= 8 - lengths[:, None]).long()
    ids = (torch.arange(5)[:, None] * 10 + places) * mask
    seen = []

    def encoder(input_ids, attention_mask):
        seen.append(tuple(input_ids.shape))
        assert input_ids.shape == attention_mask.shape
        sums = torch.stack([(input_ids * attention_mask).sum(dim=1), attention_mask.sum(dim=1)], dim=1)
        return SimpleNamespace(latents=sums)

    found = encode_by_length(encoder, ids, mask, lambda lengths: [2, 0, 3])
    assert torch.equal(found, torch.stack([ids.sum(dim=1), lengths], dim=1))
    # An empty group is the longest text, left away.
    assert seen == [(2, 7), (1, 7), (3, 3)]
