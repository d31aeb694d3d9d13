"""Parts of the beam search; whole searches are compared with those of transformers for every family."""

import pytest
import torch

from hf_meanmax.modeling.beam_search import top_words


@pytest.mark.parametrize("words", [40, 64 * 20, 64 * 20 + 7, 64 * 20 + 63])
def test_the_likeliest_words_are_those_of_topk(words):
    scores = torch.randn(5, words, generator=torch.Generator().manual_seed(words))
    # All of the best in one block, in the last words, and a row of few words that are possible at all.
    scores[0, 8:24] += 100
    scores[1, -9:] += 100
    scores[2, 3:] = -torch.inf
    best, ids = top_words(scores, 8)
    expected = scores.topk(8)
    assert torch.equal(best, expected.values)
    possible = best > -torch.inf
    assert torch.equal(ids[possible], expected.indices[possible])
    assert torch.equal(scores.gather(1, ids), best)
