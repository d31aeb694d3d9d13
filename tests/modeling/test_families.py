"""Every family through the tests of `family_tests.py`."""

from __future__ import annotations

import logging
import shutil

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from hf_meanmax import MeanMaxAAEConfig, MeanMaxAAEForReconstruction, MeanMaxAAEModel

pytest.register_assert_rewrite("modeling.family_tests")

from modeling.family_tests import Family, FamilyTests, make_batch, text_of  # noqa: E402


def without_gradient(config, name: str) -> str | None:
    if ".latent_attention." in name and not name.endswith(("value.weight", "value.bias")) and config.num_latents == 1:
        return "the weight of a single row is 1, whatever the query and the key"
    if name.endswith("key.bias") and config.projection_activation is None:
        return "the same number for all keys cancels in the softmax"
    return None


MEAN_MAX_AAE = Family(
    config_class=MeanMaxAAEConfig,
    model_class=MeanMaxAAEModel,
    full_class=MeanMaxAAEForReconstruction,
    auto_full_class=AutoModelForSeq2SeqLM,
    tiny={
        "vocab_size": 40,
        "embedding_size": 12,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
    },
    variants={
        "paper": {},
        "released": {
            "attention_bias": True,
            "projection_activation": "relu",
            "position_embedding_type": "learned",
            "max_position_embeddings": 34,
            "label_smoothing": 0.1,
            "layer_norm_eps": 1e-8,
            "mean_first": True,
            "freeze_word_embeddings": True,
        },
        "mean": {"pooling": "mean"},
        "max": {"pooling": "max", "attention_bias": True},
        "deep": {"num_hidden_layers": 2, "hidden_dropout": 0.1},
        "tied": {"tie_word_embeddings": True, "position_embedding_type": "none"},
    },
    other_values={
        "vocab_size": {"vocab_size": 40},
        "input_vocab_size": {"input_vocab_size": 30000},
        "embedding_size": {"embedding_size": 12},
        "hidden_size": {"hidden_size": 32},
        "intermediate_size": {"intermediate_size": 48},
        "num_hidden_layers": {"num_hidden_layers": 2},
        "num_attention_heads": {"num_attention_heads": 4},
        "attention_bias": {"attention_bias": True},
        "projection_activation": {"projection_activation": "relu"},
        "pooling": {"pooling": "max"},
        "mean_first": {"mean_first": True},
        "position_embedding_type": {"position_embedding_type": "learned"},
        "max_position_embeddings": {"max_position_embeddings": 34},
        "embedding_dropout": {"embedding_dropout": 0},
        "hidden_dropout": {"hidden_dropout": 0.25},
        "attention_dropout": {"attention_dropout": 0.125},
        "layer_norm_eps": {"layer_norm_eps": 1e-8},
        "label_smoothing": {"label_smoothing": 0.1},
        "freeze_word_embeddings": {"freeze_word_embeddings": True},
        "num_special_tokens": {"num_special_tokens": 6},
        "initializer_range": {"initializer_range": 0.02},
        "tie_word_embeddings": {"tie_word_embeddings": True},
        "use_cache": {"use_cache": False},
        "pad_token_id": {"pad_token_id": 3},
        "unk_token_id": {"unk_token_id": 2},
        "bos_token_id": {"bos_token_id": 1},
        "eos_token_id": {"eos_token_id": 1},
        "decoder_start_token_id": {"decoder_start_token_id": 3},
        "encoder_type": {"encoder_type": "self_attention"},
        "decoder_type": {"decoder_type": "attention"},
    },
    bad_settings=[
        ({"vocab_size": 0}, ("`vocab_size` is 0", "1 or more")),
        ({"embedding_size": -2}, ("`embedding_size` is -2", "1 or more")),
        ({"hidden_size": 0}, ("`hidden_size` is 0", "1 or more")),
        ({"num_hidden_layers": 0}, ("`num_hidden_layers` is 0", "1 or more")),
        ({"max_position_embeddings": 0}, ("`max_position_embeddings` is 0", "1 or more")),
        ({"intermediate_size": 0}, ("`intermediate_size` is 0", "1 or more")),
        ({"num_special_tokens": 0}, ("`num_special_tokens` is 0", "1 or more")),
        ({"num_special_tokens": 41}, ("`num_special_tokens` is 41", "`vocab_size` 40")),
        ({"input_vocab_size": 39}, ("`input_vocab_size` is 39", "`vocab_size` 40", "Leave it out or make it larger")),
        (
            {"input_vocab_size": 50, "tie_word_embeddings": True},
            ("`tie_word_embeddings`", "is 50", "`vocab_size` 40", "Leave `input_vocab_size` out"),
        ),
        (
            {"pad_token_id": 30, "freeze_word_embeddings": True},
            ("`pad_token_id` is 30", "below `num_special_tokens`, which is 4"),
        ),
        ({"pad_token_id": -1}, ("`pad_token_id` is -1", "0..39")),
        ({"eos_token_id": 40}, ("`eos_token_id` is 40", "0..39")),
        ({"decoder_start_token_id": 99}, ("`decoder_start_token_id` is 99", "0..39")),
        ({"embedding_dropout": 1.0}, ("`embedding_dropout` is 1.0", "at least 0 and less than 1")),
        ({"hidden_dropout": -0.1}, ("`hidden_dropout` is -0.1", "at least 0 and less than 1")),
        ({"attention_dropout": 2}, ("`attention_dropout` is 2", "at least 0 and less than 1")),
        ({"label_smoothing": float("nan")}, ("`label_smoothing` is nan", "at least 0 and less than 1")),
        ({"layer_norm_eps": 0.0}, ("`layer_norm_eps` is 0.0", "positive number")),
        ({"initializer_range": float("inf")}, ("`initializer_range` is inf", "positive number")),
        ({"embedding_size": 13}, ("`embedding_size` is 13", "even number", 'position_embedding_type="learned"')),
        ({"num_attention_heads": 5}, ("`num_attention_heads` is 5", "`hidden_size` 32", "must divide")),
        ({"num_attention_heads": 0}, ("`num_attention_heads` is 0", "must divide")),
        ({"pooling": "median"}, ("pooling", "median", "mean_max")),
        ({"position_embedding_type": "rotary"}, ("position_embedding_type", "rotary", "sinusoidal")),
        ({"projection_activation": "gelu"}, ("projection_activation", "gelu", "relu")),
        ({"encoder_type": "lstm"}, ("encoder_type", "lstm", "self_attention")),
        ({"vocab_size": "40"}, ("vocab_size", "expected int", "'40'")),
    ],
    compiled_variants=("paper", "released"),
    gets_no_gradient=without_gradient,
)


class TestMeanMaxAAE(FamilyTests):
    family = MEAN_MAX_AAE

    def test_rows_of_the_embedding(self):
        """Max then mean, the paper's order, or the released code's, which changes the flat vector but not the words."""
        batch = make_batch()
        paper, released = self.full(), self.full(mean_first=True)
        real = batch["attention_mask"].bool().unsqueeze(-1)
        output = paper.encoder(**text_of(batch))
        states = output.last_hidden_state
        torch.testing.assert_close(output.latents[:, 0], states.masked_fill(~real, -1e9).amax(dim=1))
        torch.testing.assert_close(output.latents[:, 1], (states * real).sum(dim=1) / real.sum(dim=1))
        swapped = released(**batch)
        torch.testing.assert_close(swapped.latents, output.latents.flip(1))
        torch.testing.assert_close(swapped.loss, paper(**batch).loss)

    def test_swapped_rows_are_refused(self):
        model = self.full()
        latents = model.encoder(**text_of(make_batch())).latents
        with pytest.raises(ValueError, match="max row lies below its mean row"):
            model.generate(sentence_embedding=latents.flip(1))
        # One foreign vector is found among many good ones.
        many = latents.repeat(500, 1, 1)
        many[77] = many[77].flip(0)
        with pytest.raises(ValueError, match="max row lies below its mean row"):
            model.generate(sentence_embedding=many)

    def test_normalised_rows(self):
        encoder = self.full().encoder
        rows = encoder.normalized_rows(**text_of(make_batch())).view(-1, 2, 32)
        torch.testing.assert_close(rows.norm(dim=-1), torch.ones(4, 2))
        torch.testing.assert_close(
            rows, torch.nn.functional.normalize(encoder(**text_of(make_batch())).latents, dim=-1)
        )


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


@pytest.mark.skipif(shutil.which("g++") is None, reason="flex attention on the CPU needs g++")
def test_flex_attention_agrees():
    model = MeanMaxAAEForReconstruction(MeanMaxAAEConfig(**MEAN_MAX_AAE.tiny | {"hidden_size": 64})).eval()
    batch = make_batch()
    with torch.no_grad():  # torch has no backward pass for it on the CPU
        expected = model(**batch)
        model.set_attn_implementation("flex_attention")
        output = model(**batch)
    torch.testing.assert_close(output.latents, expected.latents, atol=1e-5, rtol=0)
    torch.testing.assert_close(output.loss, expected.loss, atol=1e-5, rtol=0)
