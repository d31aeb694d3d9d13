"""What a decoder is fed in training."""

from __future__ import annotations

import pytest
import torch

from hf_meanmax import CompoundAttentionForTranslation
from hf_meanmax.objectives.decoder_inputs import own_inputs
from tiny_model import make_model


def test_padding_of_the_source_changes_no_draw():
    model = make_model(full_class=CompoundAttentionForTranslation, architecture="attn").eval()
    with torch.no_grad():
        model.encoder.get_input_embeddings().weight.mul_(20)
    text, labels = torch.tensor([[5, 6, 7, 3]]), torch.full((1, 12), 5)
    drawn = []
    for padding in (0, 5):
        torch.manual_seed(0)
        ids = torch.nn.functional.pad(text, (0, padding))
        drawn.append(own_inputs(model, labels, input_ids=ids, attention_mask=(ids != 0).long()))
    assert torch.equal(*drawn)


def test_a_decoder_without_memory_draws_nothing():
    model = make_model().train()
    model.gradient_checkpointing_enable()
    text, labels = torch.tensor([[5, 6, 7, 3]]), torch.full((1, 4), 5)
    with pytest.raises(ValueError, match="under gradient checkpointing"):
        own_inputs(model, labels, input_ids=text)
    model.gradient_checkpointing_disable()
    assert own_inputs(model, labels, input_ids=text).shape == (1, 4)
