"""Positions, frozen tables and attention backends, whatever the family."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from hf_meanmax import GatedMeanMaxAAEConfig, MeanMaxAAEConfig, MeanMaxAAEForReconstruction
from hf_meanmax.modeling.embeddings import sinusoidal_positions
from modeling.family_tests import make_batch, text_of
from modeling.family_values import TINY
from modeling.test_mean_max_aae import MEAN_MAX_AAE


@pytest.mark.parametrize("encoder", ["bilstm", "lstm", "cnn"])
@pytest.mark.parametrize("decoder", ["lstm", "lstm_gates"])
def test_heads_need_not_divide_where_nothing_attends(encoder, decoder):
    settings = {**TINY, "num_attention_heads": 5, "encoder_type": encoder, "decoder_type": decoder}
    assert MeanMaxAAEForReconstruction(MeanMaxAAEConfig(**settings))(**make_batch()).loss.isfinite()


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
def test_positions_beyond_a_learned_table(padded, caplog):
    """A zero code, and one warning that counts the tokens."""
    settings = {**MEAN_MAX_AAE.tiny, "position_embedding_type": "learned", "max_position_embeddings": 4}
    model = MeanMaxAAEForReconstruction(MeanMaxAAEConfig(**settings)).eval()
    batch = make_batch([[5, 6, 7, 8, 9, 10, 3], [5, 6, 3] if padded else [11, 6, 7, 8, 9, 10, 3]])
    if not padded:
        del batch["attention_mask"]
    with caplog.at_level(logging.WARNING, logger="hf_meanmax"):
        for _ in range(2):
            model(**batch)
            model.generate(input_ids=batch["input_ids"], max_new_tokens=6)
    warnings = [record.getMessage() for record in caplog.records if "position" in record.getMessage()]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"{3 if padded else 6} token(s) of this batch stand beyond the 4 learned positions")

    embeddings = model.encoder.embeddings
    inputs = embeddings(batch["input_ids"], None, None)
    words = embeddings.embed_words(batch["input_ids"])
    assert torch.equal(inputs[:, 4:], words[:, 4:])
    torch.testing.assert_close(inputs[:, :4] - words[:, :4], embeddings.position_embeddings.weight.expand(2, 4, -1))


@pytest.mark.parametrize("config_class", [MeanMaxAAEConfig, GatedMeanMaxAAEConfig], ids=lambda c: c.model_type)
def test_generation_beyond_a_learned_table(config_class, caplog):
    """The decoder goes on with zero codes, with a cache as without one, and warns once."""
    settings = {**TINY, "position_embedding_type": "learned", "max_position_embeddings": 4}
    model = AutoModelForSeq2SeqLM.from_config(config_class(**settings)).eval().double()
    with torch.no_grad():
        model.lm_head.bias[3] = -1e4  # it never stops by itself
        model.lm_head.weight.mul_(10)
    batch = text_of(make_batch([[5, 6, 3], [7, 3], [9, 8, 3]]))
    with caplog.at_level(logging.WARNING, logger="hf_meanmax"):
        said = model.generate(**batch, max_new_tokens=30)
        again = model.generate(**batch, max_new_tokens=30, use_cache=False)
    warnings = [record.getMessage() for record in caplog.records if "position" in record.getMessage()]
    assert len(warnings) == 1
    assert warnings[0].startswith("3 token(s) of this batch stand beyond the 4 learned positions")
    assert said.shape == (3, 31)
    assert torch.equal(said, again)
    latents = model.encode_latents(**batch)
    logits = model(encoder_outputs=(latents,), decoder_input_ids=said[:, :-1]).logits
    assert torch.equal(logits.argmax(dim=-1), said[:, 1:])
    embeddings = model.encoder.embeddings
    far = embeddings(said[:, :1], None, torch.tensor([[29]]), 30)
    assert torch.equal(far, embeddings.embed_words(said[:, :1]))


@pytest.mark.parametrize("config_class", [MeanMaxAAEConfig, GatedMeanMaxAAEConfig], ids=lambda c: c.model_type)
def test_sinusoidal_positions_have_no_end(config_class):
    """2,000 tokens, where 512 are the default length of a learned table."""
    codes = sinusoidal_positions(2000, 12)
    for t in (0, 1, 511, 512, 1999):
        code = [(math.cos if i % 2 else math.sin)(t / 10000 ** ((i - i % 2) / 12)) for i in range(12)]
        torch.testing.assert_close(codes[t], torch.tensor(code))
    model = AutoModelForSeq2SeqLM.from_config(config_class(**TINY)).eval()
    embeddings = model.encoder.embeddings
    # As the decoder reads one word after 1,999 others.
    last = embeddings(torch.tensor([[5]]), None, torch.tensor([[1999]]), 2000) - embeddings.embed_words(
        torch.tensor([[5]])
    )
    torch.testing.assert_close(last[0, 0], codes[1999])

    long, short = torch.randint(4, 40, (1, 2000)), torch.tensor([[7, 5, 3]])
    batch = make_batch([long[0].tolist(), short[0].tolist()])
    with torch.no_grad():
        output = model(**batch)
        alone = model(input_ids=long, labels=long)
        near = model.encoder(input_ids=long[:, :512]).latents
    assert output.logits.isfinite().all()
    assert output.loss.isfinite()
    torch.testing.assert_close(output.latents[:1], alone.latents)
    torch.testing.assert_close(output.logits[:1], alone.logits)
    torch.testing.assert_close(output.latents[1:], model.encoder(input_ids=short).latents)
    assert (near - alone.latents).abs().max() > 1e-3  # what comes after them is read


def test_frozen_table_leaves_the_special_tokens_to_their_own(tmp_path):
    model = MeanMaxAAEForReconstruction(MeanMaxAAEConfig(**MEAN_MAX_AAE.tiny, freeze_word_embeddings=True))
    table = model.encoder.embeddings.word_embeddings.weight.clone()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    specials = model.encoder.embeddings.special_embeddings.weight.clone()
    model(**make_batch()).loss.backward()
    optimizer.step()
    assert torch.equal(model.encoder.embeddings.word_embeddings.weight, table)
    changed = (model.encoder.embeddings.special_embeddings.weight != specials).any(dim=-1)
    assert changed.tolist() == [False, True, True, True]  # <pad> stays zero


def test_flex_attention_agrees():
    """Masks and scores that it is given; the kernel is torch's own, so nothing is compiled."""
    model = MeanMaxAAEForReconstruction(MeanMaxAAEConfig(**MEAN_MAX_AAE.tiny | {"hidden_size": 64})).eval()
    batch = make_batch()
    # torch has no backward pass for it on the CPU
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        expected = model(**batch)
        model.set_attn_implementation("flex_attention")
        output = model(**batch)
    torch.testing.assert_close(output.latents, expected.latents, atol=1e-5, rtol=0)
    torch.testing.assert_close(output.loss, expected.loss, atol=1e-5, rtol=0)
