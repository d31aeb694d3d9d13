"""The tests that every family passes. A family states its classes and configurations; see `test_families.py`."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.generation import utils as generation_utils
from transformers.modeling_outputs import BaseModelOutput

from hf_meanmax.modeling.attention import MultiHeadAttention
from hf_meanmax.modeling.generation import WORDS_OF_A_STAGE
from training_loss import training_loss, training_model

PAD, UNK, START, END = 0, 1, 2, 3
IGNORE = -100
LENGTHS = {7: 3, 11: 12, 13: 15, 17: 24}
SENTENCES = [[7, 5, 9, 21, 4, 3], [6, 3], [8, 1, 8, 30, 3], [12, 13, 14, 15, 16, 17, 18, 3]]
NO_DROPOUT = {"embedding_dropout": 0.0, "hidden_dropout": 0.0, "attention_dropout": 0.0}
# What each part of a model records on request.
ATTENDING_ENCODERS = {"self_attention"}
SELF_ATTENDING_DECODERS = {"attention", "gates"}
LATENT_ATTENDING_DECODERS = {"attention", "lstm_attention"}
GATED_DECODERS = {"gates", "lstm_gates"}
DECODERS_WITH_CHANNELS = {"causal_cnn", "words_cnn", "words_rnn"}
# Tests of what is done with Z alone: a translator that attends over all hidden states has none.
NEED_LATENTS = {
    "test_sizes_of_the_embedding", "test_prompts_of_unlike_lengths", "test_cropped_cache_goes_on_from_the_shorter_text",
    "test_greedy_search_by_hand", "test_text_and_its_embedding_say_the_same",
    "test_vectors_that_are_no_embeddings_are_refused",
}  # fmt: skip


# Tests of what an encoder's first layer computes for each word alone.
NEED_ATTENTION = {"test_projections_by_word_change_nothing"}
# Tests of how a decoder is searched, which ask nothing of the encoder.
NEED_DECODERS = {
    "test_cache_changes_nothing", "test_cropped_cache_goes_on_from_the_shorter_text", "test_greedy_search_by_hand",
    "test_prompts_of_unlike_lengths", "test_rows_that_have_ended_leave_the_batch",
    "test_texts_whose_beams_have_ended_leave_the_batch",
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """What the shared tests need to know of a family.

    Args:
        config_class, model_class, full_class: its configuration, its encoder (None without a text encoder), its encoder
            with decoder.
        auto_full_class: the Auto class of `full_class`.
        tiny: settings of a tiny model, with sizes that let every variant differ.
        variants: further settings by name; the ablations of the paper are among them.
        other_values: for every field of the configuration, settings with a value that is not the default.
        bad_settings: settings that are refused, each with the words that the message must contain.
        compiled_variants: the variants whose training step is compiled; each takes seconds. Recurrent ones cannot be
            among them: torch.compile leaves `nn.LSTM` and the packing of its inputs to Python.
        saying: the variant of tests that need one decoder which says one word after the other; it has an output bias.
        free: settings that let each part be set alone, for a family that names combinations.
        end_bias: what is added to the end token's score where texts should end at different lengths.
        gets_no_gradient: why a trainable parameter rightly gets a zero gradient, or None.
        exemptions: names of tests that do not apply, each with the reason.
        searched: the variants of tests of how a decoder is searched; by default the first one of each decoder. A family
            whose decoders are those of others names some.
    """

    config_class: type
    model_class: type | None
    full_class: type
    auto_full_class: type
    tiny: dict[str, Any]
    variants: dict[str, dict[str, Any]]
    other_values: dict[str, dict[str, Any]]
    bad_settings: list[tuple[dict[str, Any], tuple[str, ...]]]
    compiled_variants: tuple[str, ...]
    saying: str = "paper"
    free: dict[str, Any] = field(default_factory=dict)
    end_bias: float = 4.0
    gets_no_gradient: Callable[[Any, str], str | None] = lambda config, name: None
    exemptions: dict[str, str] = field(default_factory=dict)
    searched: tuple[str, ...] = ()

    def config(self, variant: str) -> Any:
        return self.config_class(**{**self.tiny, **self.variants[variant]})

    def decoders(self) -> list[str]:
        """The variants whose decoders are searched."""
        if self.searched:
            return list(self.searched)
        first: dict[tuple[object, ...], str] = {}
        for name in self.variants:
            config = self.config(name)
            if config.has_decoder:
                key = (
                    config.decoder_type, config.decoder_context, config.num_decoder_layers, config.has_latents,
                    config.position_embedding_type, bool(config.state_rows), config.decoder_initial_state,
                )  # fmt: skip
                first.setdefault(key, name)
        return list(first.values())


def pad(sentences: list[list[int]], side: str = "right", extra: int = 0, fill: int = PAD) -> torch.Tensor:
    """(B, longest + extra) ids."""
    width = max(map(len, sentences)) + extra
    fills = [[fill] * (width - len(ids)) for ids in sentences]
    return torch.tensor([ids + f if side == "right" else f + ids for ids, f in zip(sentences, fills, strict=True)])


def make_batch(sentences: list[list[int]] = SENTENCES, side: str = "right", extra: int = 0) -> dict[str, torch.Tensor]:
    labels = pad(sentences, side, extra, IGNORE)
    return {
        "input_ids": pad(sentences, side, extra),
        "attention_mask": (labels != IGNORE).long(),
        "labels": labels,
    }


def text_of(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What the encoder reads: token ids with their mask, or vectors."""
    names = ("sentence_embedding",) if "sentence_embedding" in batch else ("input_ids", "attention_mask")
    return {name: batch[name] for name in names if name in batch}


def read_of(output) -> torch.Tensor:
    """What the decoder reads: Z, or the hidden states where there are no rows."""
    if output.get("encoder_last_hidden_state") is not None:
        return output.encoder_last_hidden_state
    return output.last_hidden_state if output.latents is None else output.latents


def labelled(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What the models themselves take of a batch."""
    return {name: batch[name] for name in (*text_of(batch), "attention_mask", "labels") if name in batch}


def attends(config) -> bool:
    """Whether a part has multi-head attention, which has more than one backend."""
    return (
        config.encoder_type in ATTENDING_ENCODERS
        or config.decoder_type in SELF_ATTENDING_DECODERS | LATENT_ATTENDING_DECODERS
    )


def attention_backends(config) -> tuple[str, ...]:
    return ("sdpa", "eager") if attends(config) else ("sdpa",)


def words_loss(config, output) -> torch.Tensor:
    """The loss of the words alone, without that of the pooling's heads."""
    penalty = output.losses.get("attention_penalty")
    return output.loss if penalty is None else output.loss - config.attention_penalty * penalty


def close(actual, expected, atol=1e-9):
    torch.testing.assert_close(actual, expected, atol=atol, rtol=0)


class WarningRecorder(logging.Handler):
    """Warnings of a library that keeps its records from the root logger."""

    def __init__(self, name: str):
        super().__init__(logging.WARNING)
        self.logger, self.messages = logging.getLogger(name), []

    def emit(self, record):
        self.messages.append(record.getMessage())

    def __enter__(self):
        self.logger.addHandler(self)
        return self.messages

    def __exit__(self, *_):
        self.logger.removeHandler(self)


class FamilyTests:
    """Subclass it as `Test...` with the attribute `family`."""

    family: Family

    def pytest_generate_tests(self, metafunc):
        family = metafunc.cls.family
        if "variant" in metafunc.fixturenames:
            variants = list(family.variants)
            configs = {name: family.config(name) for name in variants}
            if metafunc.function.__name__ in NEED_LATENTS:
                variants = [name for name in variants if configs[name].has_latents]
            if metafunc.function.__name__ in NEED_ATTENTION:
                variants = [name for name in variants if configs[name].encoder_type == "self_attention"]
            if metafunc.function.__name__ in NEED_DECODERS:
                variants = [name for name in family.decoders() if name in variants]
            if "attention" in metafunc.fixturenames:
                # The backends differ where a part attends.
                pairs = [(name, backend) for name in variants for backend in attention_backends(configs[name])]
                metafunc.parametrize(("variant", "attention"), pairs)
            else:
                metafunc.parametrize("variant", variants)
        if "compiled" in metafunc.fixturenames:
            metafunc.parametrize("compiled", family.compiled_variants)
        if "bad" in metafunc.fixturenames:
            ids = ["-".join(settings) for settings, _ in family.bad_settings]
            metafunc.parametrize("bad", family.bad_settings, ids=ids)

    @pytest.fixture(autouse=True)
    def exempt(self, request):
        reason = self.family.exemptions.get(request.function.__name__)
        if reason is not None:
            pytest.skip(reason)

    def config(self, variant: str | None = None, **settings):
        return self.family.config_class(**{**self.family.tiny, **self.family.variants.get(variant, {}), **settings})

    def full(self, variant: str | None = None, dtype=torch.float32, **settings):
        """A full model in evaluation mode whose words depend on Z; norms and biases are not the identity."""
        torch.manual_seed(0)
        model = self.family.full_class(self.config(variant, **settings))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() == 1:
                    parameter.add_(0.2 * torch.randn_like(parameter))
                elif "embeddings" in name:
                    parameter.mul_(10)  # so that the tokens of a sentence differ by more than rounding
                elif name.startswith(("lm_head", "output_projection")):
                    parameter.copy_(torch.randn_like(parameter))
        return model.to(dtype).eval()

    def saying(self, variant: str | None = None, dtype=torch.float32, **settings):
        """A full model that says one word after the other."""
        model = self.full(variant or self.family.saying, dtype, **settings)
        if not model.config.is_autoregressive:
            pytest.skip(
                f"{model.config.decoder_type} predicts all words at once, so that there is nothing to go on from"
            )
        return model

    def say(self, model, max_new_tokens: int = 6, **source):
        """What the model says of a text or of embeddings: one word after the other, or the likeliest at each place."""
        if model.config.is_autoregressive:
            return model.generate(**source, max_new_tokens=max_new_tokens)
        return model.predict_words(**source, top_k=3)[0]

    def make_batch(self, sentences=SENTENCES, side: str = "right", extra: int = 0) -> dict[str, torch.Tensor]:
        """What the model reads, its mask and its labels."""
        return make_batch(sentences, side, extra)

    def batch(self, config, sentences=SENTENCES, side: str = "right", extra: int = 0) -> dict[str, torch.Tensor]:
        """As [`make_batch`], with targets for every decoder that there is.

        Words that are predicted all at once stand at places, which padding on the left would move.
        """
        batch = self.make_batch(sentences, side, extra)
        if not config.is_autoregressive:
            batch["labels"] = pad(sentences, "right", extra, IGNORE)
        if config.predict_previous:
            batch["previous_targets"] = pad([ids[-2::-1] + ids[-1:] for ids in sentences], side, extra, IGNORE)
        if config.context_channels is not None:
            batch["context_targets"] = pad([ids[::-1] for ids in sentences], "right", extra, IGNORE)
        return batch

    # Loading and saving

    def auto_classes(self) -> tuple[type, ...]:
        """What loads the family's models: with the decoder, and the text encoder alone where there is one."""
        encoder = () if self.family.model_class is None else (AutoModel,)
        return (self.family.auto_full_class, *encoder)

    def test_every_loader_gives_the_saved_model(self, variant, tmp_path):
        model = self.full(variant)
        model.save_pretrained(tmp_path)
        files = {path.name for path in tmp_path.iterdir()}
        generation = {"generation_config.json"} if model.config.is_autoregressive else set()
        stock = {"modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"}
        assert files == {"config.json", "model.safetensors"} | generation | (
            stock if model.config.reads_text else set()
        )
        batch = self.make_batch()
        expected = model(**batch)
        for loader in (self.family.full_class, self.family.auto_full_class):
            loaded = loader.from_pretrained(tmp_path)
            assert type(loaded) is self.family.full_class
            assert not loaded.training
            output = loaded(**batch)
            assert torch.equal(output.logits, expected.logits)
            assert torch.equal(output.loss, expected.loss)
        # A family without a text encoder has none to load.
        for loader in (self.family.model_class, AutoModel) if self.family.model_class else ():
            encoder = loader.from_pretrained(tmp_path)
            assert type(encoder) is self.family.model_class
            assert torch.equal(read_of(encoder(**text_of(batch))), read_of(expected))

    def test_encoder_alone_is_saved_and_loaded(self, tmp_path):
        encoder = self.full().encoder
        encoder.save_pretrained(tmp_path)
        loaded = AutoModel.from_pretrained(tmp_path)
        assert torch.equal(loaded(**text_of(self.make_batch())).latents, encoder(**text_of(self.make_batch())).latents)

    def test_loading_is_silent(self, variant, tmp_path):
        self.full(variant).save_pretrained(tmp_path)
        with WarningRecorder("transformers") as messages:
            for loader in self.auto_classes():
                loader.from_pretrained(tmp_path)
        assert messages == []

    def test_missing_weights_are_initialised(self, variant, tmp_path):
        self.full(variant).save_pretrained(tmp_path)
        saved = {name: value.clone() for name, value in load_file(tmp_path / "model.safetensors").items()}
        keep = "encoder.embeddings.word_embeddings.weight"
        save_file({keep: saved[keep]}, tmp_path / "model.safetensors", {"format": "pt"})
        # torch then fills new memory with NaN, so that nothing uninitialised goes unseen.
        torch.use_deterministic_algorithms(True)
        try:
            model, *encoders = (loader.from_pretrained(tmp_path) for loader in self.auto_classes())
        finally:
            torch.use_deterministic_algorithms(False)
        for loaded in (model, *encoders):
            for name, value in [*loaded.named_parameters(), *loaded.named_buffers()]:
                assert value.isfinite().all(), name
                assert not value.is_meta, name
        assert torch.equal(model.encoder.get_input_embeddings().weight, saved[keep])
        fresh = dict(self.family.full_class(self.config(variant)).named_parameters())
        for name, value in model.named_parameters():
            if name != keep and value.numel() > 64:
                assert value.std().item() == pytest.approx(fresh[name].std().item(), rel=0.3), name

    def test_loaded_rows_survive_a_missing_neighbour(self, tmp_path):
        model = self.full(**self.family.free, position_embedding_type="learned", tie_word_embeddings=False)
        with torch.no_grad():
            model.encoder.embeddings.word_embeddings.weight[PAD] = 7.0
        model.save_pretrained(tmp_path)
        saved = {name: value.clone() for name, value in load_file(tmp_path / "model.safetensors").items()}
        missing = "encoder.embeddings.position_embeddings.weight"
        save_file({k: v for k, v in saved.items() if k != missing}, tmp_path / "model.safetensors", {"format": "pt"})
        loaded = self.family.full_class.from_pretrained(tmp_path)
        for name, value in loaded.state_dict().items():
            assert name == missing or torch.equal(value, saved[name]), name

    def test_special_tokens_start_as_large_as_given_words(self):
        for factor in (0.01, 1.0, 5.0):
            model = self.full(freeze_word_embeddings=True)
            embeddings = model.encoder.embeddings
            drawn = embeddings.special_embeddings.weight.detach().clone()
            given = factor * torch.randn(
                embeddings.word_embeddings.weight.shape, generator=torch.Generator().manual_seed(0)
            )
            embeddings.start_from(given)
            assert torch.equal(embeddings.word_embeddings.weight, given)
            count, pad = model.config.num_special_tokens, model.config.pad_token_id
            specials = embeddings.special_embeddings.weight.detach()
            sizes = (
                specials[[row for row in range(count) if row != pad]].square().mean().sqrt(),
                given[count:].square().mean().sqrt(),
            )
            torch.testing.assert_close(*sizes)
            assert specials[pad].abs().max() == 0
            torch.testing.assert_close(specials / specials.norm(), drawn / drawn.norm())

    def test_frozen_table_stays_frozen(self, tmp_path):
        model = self.full(freeze_word_embeddings=True)
        model.save_pretrained(tmp_path)
        for loader in self.auto_classes():
            loaded = loader.from_pretrained(tmp_path)
            frozen = [name for name, parameter in loaded.named_parameters() if not parameter.requires_grad]
            assert [name.split(".")[-2:] for name in frozen] == [["word_embeddings", "weight"]]

    def test_a_frozen_encoder_has_no_dropout(self, tmp_path):
        self.full().save_pretrained(tmp_path)
        for loader in self.auto_classes():
            model = loader.from_pretrained(tmp_path).train()
            model.freeze_encoder()
            for mode in (True, False, True):
                assert not any(module.training for module in model.base_model.modules())
                model.train(mode)
            parts = {module for module in model.modules() if module not in set(model.base_model.modules())}
            assert all(module.training for module in parts)
            assert not any(parameter.requires_grad for parameter in model.base_model.parameters())

    def test_tied_output_is_the_word_table(self, tmp_path):
        model = self.full(tie_word_embeddings=True)
        assert model.lm_head.weight is model.encoder.embeddings.word_embeddings.weight
        model.save_pretrained(tmp_path)
        assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
        loaded = self.family.full_class.from_pretrained(tmp_path)
        assert loaded.lm_head.weight is loaded.encoder.embeddings.word_embeddings.weight

    def test_expanded_input_vocabulary(self, tmp_path):
        """Words after `vocab_size` can be read but not said."""
        vocab_size = self.config().vocab_size
        model = self.saying(input_vocab_size=vocab_size + 9, tie_word_embeddings=False)
        model.save_pretrained(tmp_path)
        loaded = self.family.auto_full_class.from_pretrained(tmp_path)
        ids = torch.tensor([[5, vocab_size + 8, END]])
        output = loaded(input_ids=ids)
        assert output.logits.shape == (1, 3, vocab_size)
        close(output.latents, model(input_ids=ids).latents, atol=1e-6)
        assert loaded.generate(input_ids=ids, max_new_tokens=5).max() < vocab_size
        with pytest.raises(ValueError, match="added to the encoder alone"):
            loaded(input_ids=ids, labels=ids)
        with pytest.raises(ValueError, match="expanded vocabulary"):
            loaded.resize_token_embeddings(vocab_size + 20)

    @pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
    def test_resized_vocabulary_is_saved_and_loaded(self, tied, tmp_path):
        model = self.full(tie_word_embeddings=tied)
        size = model.config.vocab_size + 5
        model.resize_token_embeddings(size, mean_resizing=False)
        assert model(**self.make_batch()).logits.shape[-1] == size
        model.save_pretrained(tmp_path)
        loaded = self.family.auto_full_class.from_pretrained(tmp_path)
        assert (loaded.config.vocab_size, loaded.config.input_vocab_size) == (size, size)
        assert torch.equal(loaded(**self.make_batch()).logits, model(**self.make_batch()).logits)

    # Configuration

    def test_configuration_round_trip(self, tmp_path):
        """Every own field keeps a value that is not the default."""
        own = {item.name for item in dataclasses.fields(self.family.config_class)} - FIELDS_OF_TRANSFORMERS
        own -= set(self.family.config_class.fixed_fields)
        assert own == set(self.family.other_values), "other_values must name every field of the configuration"
        default = self.family.config_class()
        for name, settings in self.family.other_values.items():
            config = self.family.config_class(**settings)
            assert getattr(config, name) == settings[name]
            assert settings[name] != getattr(default, name), f"{name} has its default in other_values"
            config.save_pretrained(tmp_path)
            for loaded in (AutoConfig.from_pretrained(tmp_path), copy.deepcopy(config)):
                assert type(loaded) is self.family.config_class
                for other in own:
                    assert getattr(loaded, other) == getattr(config, other), (name, other)

    def test_bad_settings_are_refused(self, bad):
        settings, words = bad
        with pytest.raises(Exception) as caught:
            self.config(**settings)
        assert not isinstance(caught.value, AssertionError)
        for word in words:
            assert word in str(caught.value)

    def test_bad_settings_of_a_checkpoint_are_refused(self, tmp_path):
        self.config().save_pretrained(tmp_path)
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "label_smoothing": 1.5}))
        with pytest.raises(Exception, match=r"`label_smoothing` is 1\.5"):
            AutoConfig.from_pretrained(tmp_path)
        # transformers assigns fields that are given to a loader one by one.
        self.full().save_pretrained(tmp_path)
        with pytest.raises(ValueError, match=r"^`label_smoothing` is 2\.0"):
            self.family.full_class.from_pretrained(tmp_path, label_smoothing=2.0)

    def test_unknown_setting_names_the_nearest(self):
        with pytest.raises(TypeError, match=r"no setting named `hiden_size`\. Did you mean `hidden_size`"):
            self.config(hiden_size=3)
        with pytest.raises(TypeError, match=r"no setting named `xyzzy`\. Known: "):
            self.config(xyzzy=3)

    def test_sizes_of_the_embedding(self, variant):
        config = self.config(variant)
        output = self.full(variant).encoder(**text_of(self.make_batch()))
        rows, width = len(config.pooling_rows), config.latent_width
        assert config.num_latents == rows
        assert config.sentence_embedding_size == config.projection_dim == rows * width
        assert output.latents.shape == (len(SENTENCES), rows, width)
        assert torch.equal(output.pooler_output, output.latents.flatten(1))
        states_width = config.embedding_size if config.is_static else config.hidden_size
        assert output.last_hidden_state.shape == (len(SENTENCES), 8, states_width)
        assert output.to_tuple()[0] is output.last_hidden_state

    # Padding and batches

    def test_padding_changes_nothing(self, variant, attention):
        """Padded on either side, with or without spare columns, in a batch or alone: the same numbers."""
        model = self.full(variant, torch.float64)
        assert attends(model.config) == any(isinstance(module, MultiHeadAttention) for module in model.modules())
        model.set_attn_implementation(attention)
        alone, trained = [], []
        for ids in SENTENCES:
            batch = self.batch(model.config, [ids])
            del batch["attention_mask"]
            alone.append(model(**labelled(batch)))
            trained.append(training_loss(model, batch))
        states = []
        if model.config.reads_text:
            states = [model.encoder(input_ids=torch.tensor([ids])).last_hidden_state[0] for ids in SENTENCES]
        targets = torch.tensor([len(ids) for ids in SENTENCES], dtype=torch.float64)
        losses = torch.stack([words_loss(model.config, output) for output in trained])
        loss = (losses * targets).sum() / targets.sum()
        penalty = None
        if model.config.attention_penalty:
            penalty = torch.stack([output.losses["attention_penalty"] for output in trained]).mean()
        for side in ("right", "left"):
            for extra in (0, 3):
                batch = self.batch(model.config, side=side, extra=extra)
                real, said = batch["attention_mask"] == 1, batch["labels"] != IGNORE
                output = model(**labelled(batch))
                for softmax in ("full", "chunked"):
                    given = training_loss(model, batch, softmax=softmax)
                    close(words_loss(model.config, given), loss)
                    if penalty is not None:
                        close(given.losses["attention_penalty"], penalty)
                        close(output.attention_penalty, penalty)
                hidden = model.encoder(**text_of(batch)).last_hidden_state
                if states and not model.config.separate_vocabularies:
                    # The labels come from the input, or every place has a prediction.
                    close(model(**text_of(batch)).logits[:, : said.shape[1]][said], output.logits[said])
                for row in range(len(SENTENCES)):
                    if output.latents is not None:
                        close(output.latents[row], alone[row].latents[0])
                    close(output.logits[row, said[row]], alone[row].logits[0])
                    if states:
                        close(hidden[row, real[row]], states[row])

    @pytest.mark.parametrize("side", ["right", "left"])
    def test_texts_of_a_batch_are_encoded_by_length(self, variant, side):
        """`forward_by_length` without gradients, where texts of like length share a forward pass: each text's numbers
        alone."""
        model = self.full(variant, torch.float64).encoder
        if not model.config.has_latents or not model.config.reads_text:
            return
        sentences = [SENTENCES[row % 4] * (1 + 3 * (row % 3)) for row in range(12)]
        batch = text_of(make_batch(sentences, side, extra=1))
        batch["attention_mask"][5] = 0
        passes = []
        hook = model.register_forward_hook(lambda *called: passes.append(len(called[2].pooler_output)))
        with torch.inference_mode():
            embeddings = model.forward_by_length(**batch).pooler_output
            assert (len(passes) > 1) != model.config.is_static
            assert sum(passes) == len(sentences)
            assert embeddings[5].abs().max() == 0
            for row, ids in enumerate(sentences):
                if row != 5:
                    close(embeddings[row], model.forward_by_length(torch.tensor([ids])).pooler_output[0])
            # A loss that embeds twice, the first time without gradients, draws the same dropout.
            passes.clear()
            model.train().forward_by_length(**batch)
            assert passes == [len(sentences)]
            model.eval()
        hook.remove()
        with_gradients = model.forward_by_length(**batch).pooler_output
        close(with_gradients, embeddings)
        assert with_gradients.requires_grad

    def test_gradients_do_not_depend_on_padding(self, variant):
        model = self.full(variant, torch.float64)
        sums = []
        for batches in (
            [self.batch(model.config, [ids]) for ids in SENTENCES],
            [self.batch(model.config, side="left", extra=2)],
            [self.batch(model.config, side="right", extra=1)],
        ):
            model.zero_grad()
            for batch in batches:
                batch["num_sentences_in_batch"] = torch.tensor(4)
                training_loss(model, batch, num_items_in_batch=10).loss.backward()
            sums.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        for other in sums[1:]:
            for a, b in zip(sums[0], other, strict=True):
                close(a, b)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_projections_by_word_change_nothing(self, variant, dtype):
        """What `inference_mode` computes once per word, against the same texts under `no_grad`."""
        model = self.full(variant, dtype).encoder
        text = text_of(self.make_batch(extra=2))
        for name, weight in [("", None), *model.named_parameters()]:
            if weight is not None:
                # A change of any weight must be seen.
                with torch.no_grad():
                    weight.mul_(1.1)
                    model.cache_word_projections()
            for mask in (text["attention_mask"], None):
                with torch.no_grad():
                    expected = model(input_ids=text["input_ids"], attention_mask=mask)
                with torch.inference_mode():
                    found = model(input_ids=text["input_ids"], attention_mask=mask)
                real = ... if mask is None else mask.bool()
                error = (found.last_hidden_state - expected.last_hidden_state)[real].double().norm()
                limit = {torch.float64: 1e-12, torch.bfloat16: 0.1}[dtype]
                assert error <= limit * expected.last_hidden_state[real].double().norm(), f"after a change of {name!r}"
        assert model.word_projections.table is not None
        # As adapters are merged: no version tells.
        model.sequence_encoder.layers[0].attention.query.weight.data.mul_(1.3)
        with torch.no_grad():
            expected = model(**text).last_hidden_state
        with torch.inference_mode():
            error = (model(**text).last_hidden_state - expected)[text["attention_mask"].bool()].double().norm()
        assert error <= limit * expected.double().norm()
        with torch.inference_mode():
            recorded = model(**text, output_hidden_states=True).hidden_states
        assert recorded[0].shape[-1] == model.config.embedding_size
        with torch.inference_mode():
            model.word_projections.table.rows.fill_(torch.nan)
        left = text_of(self.make_batch(side="left"))
        for dtype in (torch.float32, torch.bfloat16):
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
                assert model(**text).last_hidden_state.isfinite().all()
        with torch.inference_mode():
            assert model(**left).last_hidden_state.isfinite().all()
            assert copy.deepcopy(model)(**text).last_hidden_state.isfinite().all()
            assert model(**text).last_hidden_state.isnan().any()

    def test_mask_types(self):
        model = self.full()
        batch = self.make_batch()
        expected = model(**batch)
        for dtype in (torch.bool, torch.int32, torch.float32):
            output = model(**{**batch, "attention_mask": batch["attention_mask"].to(dtype)})
            assert torch.equal(output.logits, expected.logits)

    def test_word_vectors_in_place_of_ids(self):
        model = self.full()
        batch = self.make_batch()
        vectors = model.encoder.embeddings.embed_words(batch["input_ids"])
        output = model.encoder(inputs_embeds=vectors, attention_mask=batch["attention_mask"])
        assert torch.equal(output.latents, model.encoder(**text_of(batch)).latents)
        for arguments in ({}, {"input_ids": batch["input_ids"], "inputs_embeds": vectors}):
            with pytest.raises(ValueError, match="exactly one of `input_ids` and `inputs_embeds`"):
                model.encoder(**arguments)

    def test_nothing_to_say_is_refused(self):
        model = self.saying()
        outputs = BaseModelOutput(last_hidden_state=model.encoder(**text_of(self.make_batch())).latents)
        with pytest.raises(ValueError, match="`labels`, `decoder_input_ids` or `input_ids`"):
            model(encoder_outputs=outputs)
        with pytest.raises(ValueError, match="`candidate_ids` and `candidate_log_prob`"):
            training_loss(model, {**self.make_batch(), "candidate_ids": torch.arange(4)}, softmax="sampled")

    def test_empty_input_is_finite(self, variant, attention):
        model = self.full(variant)
        model.set_attn_implementation(attention)
        embeddings = []
        for tokens in ([[END]], [[UNK, UNK, END]], [[UNK], [END]], [[PAD, PAD, PAD]], [[5, 6, END]]):
            ids = torch.tensor(tokens)
            for mask in (torch.ones_like(ids), torch.zeros_like(ids)):
                text = {"input_ids": ids, "attention_mask": mask}
                encoded = model.encoder(**text)
                assert read_of(encoded).isfinite().all()
                if not mask.any() and encoded.latents is not None:
                    assert encoded.latents.abs().max() == 0
                output = model(**text, labels=ids.masked_fill(mask == 0, IGNORE))
                assert output.loss.isfinite()
                assert output.logits.isfinite().all()
                assert self.say(model, 3, **text).shape[0] == len(ids)
                model.zero_grad()
                output.loss.backward()
                assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
                embeddings.append(encoded.pooler_output)
        if model.config.has_latents:
            vectors = torch.cat(embeddings)
            assert self.say(model, 3, sentence_embedding=vectors).shape[0] == len(vectors) == 12

    def test_row_without_tokens_leaves_the_others_alone(self):
        model = self.full(dtype=torch.float64)
        batch = self.make_batch([SENTENCES[0], SENTENCES[1]])
        expected = model(**batch)
        for name, value in (("attention_mask", 0), ("labels", IGNORE)):
            batch[name][1] = value
        output = model(**batch)
        close(output.logits[0], expected.logits[0])
        assert output.logits.isfinite().all()

    # Gradients and precision

    def test_every_parameter_learns(self, variant):
        """Non-zero finite gradients, also under dropout; a frozen table gets none."""
        model = self.full(variant, torch.float64).train()
        training_loss(model, self.batch(model.config)).loss.backward()
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                assert parameter.grad is None, name
                continue
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            reason = self.family.gets_no_gradient(model.config, name)
            # Gradients that cancel exactly on paper leave rounding errors behind.
            largest = parameter.grad.abs().max()
            assert largest < 1e-12 if reason else largest > 1e-7, (name, reason)

    def test_gradient_checkpointing_changes_nothing(self, variant):
        gradients = []
        for checkpointing in (False, True):
            model = self.full(variant, torch.float64, **self.no_dropout()).train()
            if checkpointing:
                model.gradient_checkpointing_enable()
                assert model.is_gradient_checkpointing
            training_loss(model, self.batch(model.config)).loss.backward()
            gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
        assert gradients[0].keys() == gradients[1].keys()
        for name, expected in gradients[0].items():
            close(gradients[1][name], expected)

    def no_dropout(self) -> dict[str, float]:
        names = {item.name for item in dataclasses.fields(self.family.config_class)}
        return {name: rate for name, rate in NO_DROPOUT.items() if name in names}

    def test_losses_of_the_model_agree(self, variant):
        """All logits, chunks, and a sampled softmax over the whole vocabulary; label smoothing included."""
        model = self.full(variant, torch.float64, **self.no_dropout()).train()
        batch = self.batch(model.config)
        everything = {
            "candidate_ids": torch.arange(model.config.vocab_size),
            "candidate_log_prob": torch.zeros(model.config.vocab_size, dtype=torch.float64),
        }
        for extra in ({}, {"num_items_in_batch": torch.tensor(33)}):
            expected = training_loss(model, batch, **extra)
            chunked = training_loss(model, batch, **extra, softmax="chunked")
            sampled = training_loss(model, {**batch, **everything}, **extra, softmax="sampled")
            close(chunked.loss, expected.loss)
            close(sampled.loss, expected.loss)
            if batch.keys() == labelled(batch).keys():
                close(model(**batch, **extra).loss, expected.loss)

    def test_hidden_dropout_reaches_every_network(self, variant):
        model = self.full(variant, torch.float64, **{**self.no_dropout(), "hidden_dropout": 0.5})
        batch = self.batch(model.config)
        parts = [model.decoder]
        if model.config.reads_text and model.config.encoder_type != "none":
            parts.append(model.encoder)
        for part in parts:
            part.train()
            first, second = (training_loss(model, batch).loss for _ in range(2))
            assert first != second
            part.eval()
        assert training_loss(model, batch).loss == training_loss(model, batch).loss

    @pytest.mark.parametrize("side", ["left", "right"])
    def test_inputs_that_a_collator_made(self, side):
        """Without their mask, as transformers' collator hands them on."""
        model = self.saying(dtype=torch.float64)
        batch = self.make_batch(side=side, extra=2)
        words = model.prepare_decoder_input_ids_from_labels(batch["labels"])
        close(model(**batch, decoder_input_ids=words).loss, model(**batch).loss)

    @pytest.mark.parametrize("side", ["left", "right"])
    def test_a_target_that_does_not_count_hides_no_word(self, side):
        model = self.saying(dtype=torch.float64)
        batch = self.make_batch(side=side, extra=2)
        row = int(batch["attention_mask"].sum(dim=1).argmax())
        labels = batch["labels"].clone()
        place = int((labels[row] != IGNORE).nonzero()[1])
        labels[row, place] = IGNORE
        words = model.prepare_decoder_input_ids_from_labels(labels)
        is_word = batch["attention_mask"][row].bool()
        alone = {name: value[row : row + 1] for name, value in text_of(batch).items()}
        if "input_ids" in alone:
            alone = {"input_ids": alone["input_ids"][:, is_word]}
        expected = model(**alone, labels=labels[row : row + 1, is_word]).logits
        for given in ({}, {"decoder_input_ids": words}):
            logits = model(**{**batch, "labels": labels}, **given).logits[row : row + 1]
            close(logits[:, is_word], expected)

    def test_trainer_of_transformers(self, tmp_path):
        """It evaluates, and keeps the best checkpoint."""
        from transformers import Trainer, TrainingArguments

        model = self.full(**self.no_dropout())
        batch = labelled(self.batch(model.config))
        rows = [{name: values[row] for name, values in batch.items()} for row in range(len(SENTENCES))]
        arguments = TrainingArguments(
            str(tmp_path), per_device_train_batch_size=2, gradient_accumulation_steps=2, num_train_epochs=1,
            eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True, use_cpu=True, report_to=[],
            disable_tqdm=True, learning_rate=1e-3,
        )  # fmt: skip
        trainer = Trainer(
            model, arguments, train_dataset=rows, eval_dataset=rows,
            compute_metrics=lambda said: {"words": said.predictions.shape[-1], "rows": len(said.predictions)},
        )  # fmt: skip
        before = trainer.evaluate()
        with torch.no_grad():
            assert before["eval_loss"] == pytest.approx(model(**batch).loss.item(), rel=1e-4)
        assert (before["eval_rows"], before["eval_words"]) == (len(SENTENCES), model.config.vocab_size)
        trainer.train()
        assert trainer.evaluate()["eval_loss"] < before["eval_loss"]

    @pytest.mark.parametrize("how", ["autocast", "weights"])
    def test_bfloat16_is_close(self, variant, how):
        model = self.full(variant)
        batch = labelled(self.batch(model.config))
        expected = model(**batch)
        if how == "weights":
            model = model.to(torch.bfloat16)
        with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
            output = model(**batch)
            chunked = training_loss(model, batch, softmax="chunked").loss
            model(**batch).loss.backward()
            said = self.say(model, 4, **text_of(batch))
        real = batch["attention_mask"].unsqueeze(-1) if output.latents is None else 1
        got_all, wanted_all = (read_of(given).float() * real for given in (output, expected))
        for got, wanted in zip(got_all.flatten(1), wanted_all.flatten(1), strict=True):
            # Rounding errors of hidden states are not averaged by a pooling.
            assert torch.cosine_similarity(got, wanted, dim=0) > (0.998 if output.latents is None else 0.999)
        assert output.loss.dtype == chunked.dtype == torch.float32
        assert output.loss.item() == pytest.approx(expected.loss.item(), rel=0.03)
        assert chunked.item() == pytest.approx(expected.loss.item(), rel=0.03)
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
        if model.config.is_autoregressive:
            assert torch.equal(said[:, 0], torch.full((4,), START))
        else:
            assert said.shape == (4, model.config.num_context_words, 3)

    def test_training_step_compiles_in_one_graph(self, compiled):
        """torch.compile finds nothing that it must leave to Python; the sampled softmax is part of the step."""
        model = self.full(compiled, **self.no_dropout()).train()
        vocab_size = model.config.vocab_size
        batch = {
            **self.batch(model.config),
            "candidate_ids": torch.arange(vocab_size),
            "candidate_log_prob": torch.zeros(vocab_size),
        }
        step = training_model(model, batch, softmax="sampled")
        expected = step(**batch).loss
        torch._dynamo.reset()
        loss = torch.compile(step, backend="eager", fullgraph=True, dynamic=True)(**batch).loss
        loss.backward()
        torch.testing.assert_close(loss, expected, atol=1e-6, rtol=1e-6)

    def test_teacher_embeddings_are_a_term_of_the_loss(self, tmp_path):
        """alpha ||W u + b - t||^2, in the mean over sentences that have a t, for every family."""
        model = self.full(dtype=torch.float64, teacher_size=5)
        batch = self.batch(model.config)
        plain, latents = training_loss(model, batch), model(**labelled(batch)).latents
        wanted = torch.randn(len(SENTENCES), 5, dtype=torch.float64)
        batch["teacher_embeddings"] = wanted
        output = training_loss(model, batch, teacher_weight=3.0)
        head = model.teacher_head
        mapped = latents.flatten(1) @ head.weight.T + head.bias
        close(output.losses["teacher_loss"], (mapped - wanted).square().sum(dim=1).mean())
        close(output.loss, plain.loss + 3 * output.losses["teacher_loss"])
        close(output.losses["decoding"], plain.losses["decoding"])
        output.loss.backward()
        assert head.weight.grad.abs().max() > 1e-7
        assert model.encoder.embeddings.word_embeddings.weight.grad.abs().max() > 1e-7
        # A row that has none counts nowhere, and parts of a batch add up to the whole.
        wanted[1] = float("nan")
        some = training_loss(model, batch).losses["teacher_loss"]
        close(some, (mapped - wanted).square().sum(dim=1)[[0, 2, 3]].mean())
        parts = []
        for rows in (slice(0, 2), slice(2, 4)):
            part = {name: tensor[rows] for name, tensor in batch.items()}
            part["num_sentences_in_batch"] = torch.tensor(3)
            parts.append(training_loss(model, part).losses["teacher_loss"])
        close(sum(parts), some)
        model.save_pretrained(tmp_path)
        assert torch.equal(self.family.auto_full_class.from_pretrained(tmp_path).teacher_head.weight, head.weight)
        with WarningRecorder("transformers") as messages:
            AutoModel.from_pretrained(tmp_path)
        assert messages == []
        with pytest.raises(ValueError, match="without `teacher_size` they are compared as they are"):
            training_loss(self.full(), {**self.make_batch(), "teacher_embeddings": wanted})

    def test_a_weighted_mean_of_the_words_is_one_more_row(self, tmp_path):
        """The decoder reads it, it is trained, and it is saved, for every family."""
        plain = self.full()
        model = self.full(weighted_mean_row=True, latent_normalization="rows")
        batch = self.make_batch()
        counts = torch.arange(model.config.input_vocab_size)
        model.encoder.word_pooler.start_from_frequencies(counts)
        assert model.config.pooling_rows == (*plain.config.pooling_rows, "weighted_mean")
        output = model.encoder(**text_of(batch))
        close(output.latents.norm(dim=-1), torch.ones(output.latents.shape[:2]), atol=1e-6)
        training_loss(model, self.batch(model.config)).loss.backward()
        assert model.encoder.word_pooler.log_weights.weight.grad.to_dense().abs().max() > 0
        model.save_pretrained(tmp_path)
        with WarningRecorder("transformers") as messages:
            loaded = AutoModel.from_pretrained(tmp_path)
        assert messages == []
        assert torch.equal(loaded(**text_of(batch)).pooler_output, output.pooler_output)
        assert torch.equal(loaded.word_pooler.frequencies, model.encoder.word_pooler.frequencies)

    # Attention

    def test_attention_backends_agree(self, variant):
        model = self.full(variant, torch.float64)
        batch = labelled(self.batch(model.config, side="left"))
        expected = model(**batch)
        model.set_attn_implementation("eager")
        close(model(**batch).logits[batch["labels"] != IGNORE], expected.logits[batch["labels"] != IGNORE])
        close(model(**batch).loss, expected.loss)
        said = self.say(model, **text_of(batch))
        model.set_attn_implementation("sdpa")
        assert torch.equal(self.say(model, **text_of(batch)), said)

    def test_recorded_states_and_attentions(self, variant):
        model = self.full(variant)
        model.set_attn_implementation("eager")
        config, batch = model.config, self.make_batch(side="left", extra=2)
        mask = batch["attention_mask"].bool()
        B, N = mask.shape
        rows = config.num_latents if config.has_latents else N
        layers, heads, width = config.num_hidden_layers, config.num_attention_heads, config.hidden_size
        recorded = {"output_attentions": True, "output_hidden_states": True, "output_latent_gates": True}
        encoded = model.encoder(**text_of(batch), **recorded)
        decoded = model(**batch, **recorded)

        # A few parts have layers of other widths, or another number of them.
        encoder_widths, decoder_widths = layers * [width], layers * [width]
        decoder_start = (B, N, config.embedding_size)
        if config.encoder_type == "hierarchical_cnn":
            encoder_widths = [*(layers - 1) * [width // layers], width]
        if config.is_static:
            encoder_widths = [config.embedding_size]
        if config.decoder_type in DECODERS_WITH_CHANNELS:
            decoder_widths = [config.decoder_channels[-1]]
        if not config.is_autoregressive:
            decoder_start = (B, rows, config.latent_width)
        if config.reads_text:
            shapes = [tuple(state.shape) for state in encoded.hidden_states]
            assert shapes == [(B, N, config.embedding_size)] + [(B, N, size) for size in encoder_widths]
            assert torch.equal(encoded.hidden_states[-1], encoded.last_hidden_state)
        shapes = [tuple(state.shape) for state in decoded.decoder_hidden_states]
        places = N if config.is_autoregressive else config.num_context_words
        assert shapes == [decoder_start] + [(B, places, size) for size in decoder_widths]
        gated = len(config.gated_rows)
        one_head = config.decoder_type == "conditional_gru"
        attends = (
            config.decoder_context == "attention" if one_head else config.decoder_type in LATENT_ATTENDING_DECODERS
        )
        for tensors, recording, shape in (
            (encoded.attentions or (), config.encoder_type in ATTENDING_ENCODERS, (B, heads, N, N)),
            (decoded.decoder_attentions, config.decoder_type in SELF_ATTENDING_DECODERS, (B, heads, N, N)),
            (decoded.cross_attentions, attends, (B, 1 if one_head else heads, N, rows)),
            (decoded.latent_gates, config.decoder_type in GATED_DECODERS, (B, N, gated, width)),
        ):
            assert [tuple(tensor.shape) for tensor in tensors] == (layers * [shape] if recording else [])

        def of_tokens(weights):
            """(queries of real tokens, heads, keys) with the mask of their keys."""
            return weights.transpose(1, 2)[mask], mask.unsqueeze(1).expand(B, N, N)[mask].unsqueeze(1)

        for weights in (*(encoded.attentions or ()), *decoded.decoder_attentions):
            real, keys = of_tokens(weights)
            close(real.sum(dim=-1), torch.ones(real.shape[:-1]), atol=1e-5)
            assert real.masked_select(~keys).abs().max() == 0
        for weights in decoded.decoder_attentions:
            assert weights.transpose(1, 2)[mask].shape[-1] == N
            future = torch.ones(N, N, dtype=torch.bool).triu(1)
            assert (weights * future)[mask.unsqueeze(1).expand(B, heads, N)].abs().max() == 0
        for weights in decoded.cross_attentions:
            close(weights.sum(dim=-1), torch.ones(weights.shape[:3]), atol=1e-5)
            if not config.has_latents:
                assert weights.masked_select(~mask[:, None, None]).abs().max() == 0
        if config.pooling == "inner_attention":
            weights = encoded.pooling_attentions
            close(weights.sum(dim=-1), torch.ones(B, rows), atol=1e-5)
            assert weights.masked_select(~mask.unsqueeze(1)).abs().max() == 0
        else:
            assert encoded.pooling_attentions is None
        for gates in decoded.latent_gates:
            assert gates[mask].min() > 0
            assert gates[mask].max() < 1
            assert gates[mask].std() > 0.01

    # Generation

    def test_cache_changes_nothing(self, variant):
        model = self.saying(variant, torch.float64)
        text = text_of(self.make_batch())
        caches = ({}, {"use_cache": False}, {"cache_implementation": "static"})
        for strategy in ({}, {"num_beams": 3}, {"do_sample": True}):
            said = []
            for cache in caches:
                torch.manual_seed(3)
                said.append(model.generate(**text, **strategy, **cache, max_new_tokens=7))
            assert said[0].shape[1] > 3
            assert all(torch.equal(said[0], other) for other in said[1:]), strategy
        assert len({tuple(row) for row in said[0].tolist()}) > 1  # what is said depends on Z

    def test_prompts_of_unlike_lengths(self, variant):
        """Sentences that go on from given words, padded on the left, go on as each of them does alone."""
        model = self.saying(variant, torch.float64)
        latents = model.encoder(**text_of(self.make_batch())).latents
        prompts = [[START, 7], [START], [START, 9, 21, 4], [START, 12, 5]]
        batch = {
            "decoder_input_ids": pad(prompts, "left"),
            "decoder_attention_mask": (pad(prompts, "left", fill=IGNORE) != IGNORE).long(),
        }
        given = {"encoder_outputs": BaseModelOutput(last_hidden_state=latents), **batch}
        together = model(**given).logits
        cached = model(**given, past_key_values=DynamicCache(config=model.config), use_cache=True).logits
        close(cached[batch["decoder_attention_mask"] == 1], together[batch["decoder_attention_mask"] == 1])
        for use_cache in (None, False):
            words = torch.tensor(4 * [[START, 7, 9]])
            outputs = BaseModelOutput(last_hidden_state=latents)
            past = model(encoder_outputs=outputs, decoder_input_ids=words[:, :2], use_cache=True).past_key_values
            step = model(
                encoder_outputs=outputs, decoder_input_ids=words[:, 2:], past_key_values=past, use_cache=use_cache
            )
            close(step.logits, model(encoder_outputs=outputs, decoder_input_ids=words).logits[:, 2:])
        for cache in ({}, {"use_cache": False}, {"cache_implementation": "static"}):
            outputs = BaseModelOutput(last_hidden_state=latents)
            said = model.generate(encoder_outputs=outputs, **batch, **cache, max_new_tokens=6)
            for row, prompt in enumerate(prompts):
                own = {"decoder_input_ids": torch.tensor([prompt])}
                outputs = BaseModelOutput(last_hidden_state=latents[row : row + 1])
                close(together[row, -len(prompt) :], model(encoder_outputs=outputs, **own).logits[0])
                alone = model.generate(encoder_outputs=outputs, **own, max_new_tokens=6)[0].tolist()
                words = said[row, 4 - len(prompt) :].tolist()
                assert words[: len(alone)] == alone
                assert set(words[len(alone) :]) <= {PAD}

    def test_cropped_cache_goes_on_from_the_shorter_text(self, variant):
        model = self.saying(variant, torch.float64)
        outputs = BaseModelOutput(last_hidden_state=model.encoder(**text_of(self.make_batch())).latents)
        words = torch.tensor([[START, 7, 9, 21], [START, 5, 5, 8], [START, 13, 4, 30], [START, 6, 20, 11]])

        def step(cache, columns):
            given = {"encoder_outputs": outputs, "decoder_input_ids": words[:, columns]}
            return model(**given, past_key_values=cache, use_cache=True).logits

        assert model.config.get_text_config(decoder=True).num_hidden_layers == len(
            model.decoder.sequence_decoder.layers
        )
        cache = EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))
        whole = step(cache, [0, 1, 2, 3])
        for kept in (2, 3, 1):
            cache.crop(kept - cache.get_seq_length())
            assert cache.get_seq_length() == kept
            close(step(cache, [3, 0]), step(None, [*range(kept), 3, 0])[:, kept:])
            cache.crop(-2)
            step(cache, [*range(kept, 4)])
        close(whole, step(None, [0, 1, 2, 3]))

    def test_greedy_search_by_hand(self, variant):
        model = self.saying(variant, torch.float64)
        batch = self.make_batch()
        latents = model.encoder(**text_of(batch)).latents
        said = model.generate(**text_of(batch), max_new_tokens=7)
        for row in range(len(SENTENCES)):
            words = [START]
            while len(words) < 8 and words[-1] != END:
                outputs = BaseModelOutput(last_hidden_state=latents[row : row + 1])
                logits = model(encoder_outputs=outputs, decoder_input_ids=torch.tensor([words])).logits
                words.append(logits[0, -1].argmax().item())
            expected = words + (said.shape[1] - len(words)) * [PAD]
            assert said[row].tolist() == expected

    def test_a_prompt_is_kept_and_an_end_can_be_taken_away(self):
        model = self.saying(dtype=torch.float64)
        text = {name: value[:1] for name, value in text_of(self.make_batch()).items()}
        begun = torch.tensor([[START, 7, END, 9]])
        for strategy in ({}, {"num_beams": 2}):
            said = model.generate(**text, decoder_input_ids=begun, max_new_tokens=3, **strategy)
            assert said[:, :4].tolist() == begun.tolist()
            assert said[0, 4] != PAD
        with torch.no_grad():
            model.lm_head.bias[END] += 1e4
        assert model.generate(**text, max_new_tokens=4).tolist() == [[START, END]]
        for strategy in ({}, {"num_beams": 2}):
            assert model.generate(**text, max_new_tokens=4, eos_token_id=None, **strategy).tolist() == [
                [START, *4 * [END]]
            ]

    def test_a_bound_of_no_words_is_refused(self, variant):
        model = self.saying(variant, torch.float32)
        for bound in (0, -3):
            with pytest.raises(ValueError, match="max_new_tokens"):
                model.generate(**text_of(self.make_batch()), max_new_tokens=bound)

    def test_guidance_away_from_a_text_is_refused(self):
        model, text = self.saying(), text_of(self.make_batch())
        for asked in ({"guidance_scale": 1.5}, {"negative_prompt_ids": torch.tensor([[5]])}):
            with pytest.raises(ValueError, match="leave `guidance_scale` and `negative_prompt_ids` out"):
                model.generate(**text, **asked)
        with torch.no_grad():
            assert torch.equal(model.generate(**text, guidance_scale=1.0), model.generate(**text))

    def test_what_the_encoder_gives_is_decoded(self, variant):
        """As it is: of rows and hidden states the decoder takes what it reads."""
        model = self.full(variant, torch.float64)
        batch = labelled(self.batch(model.config, side="left"))
        text = text_of(batch)
        encoded = model.get_encoder()(**text)
        close(model(encoder_outputs=encoded, **batch).loss, model(**batch).loss)
        if model.config.is_autoregressive:
            beams = {"num_beams": 2, "max_new_tokens": 6}
            mask = {} if model.config.has_latents else {"attention_mask": text["attention_mask"]}
            assert torch.equal(
                model.generate(encoder_outputs=encoded, **mask, **beams), model.generate(**text, **beams)
            )
        if model.config.has_latents:
            states = BaseModelOutput(last_hidden_state=torch.randn(4, 11, model.config.hidden_size).double())
            with pytest.raises(ValueError, match=r"begin with a tensor of shape \(4, 11, \d+\); this decoder reads Z"):
                model(encoder_outputs=states, labels=batch["labels"])
            # Hidden states of as many tokens as there are rows are no Z, though they may have its shape.
            with pytest.raises(ValueError, match="Give what `get_encoder\\(\\)` returns with `return_dict=True`"):
                model(encoder_outputs=encoded.to_tuple(), labels=batch["labels"])

    def test_embeddings_are_scored_as_their_text_is(self, variant):
        model = self.full(variant, torch.float64)
        batch = labelled(self.batch(model.config))
        if not model.config.has_latents:
            pytest.skip("there is no vector to decode")
        vectors, whole = model.encoder(**text_of(batch)).pooler_output, model(**batch)
        # Padding on either side is told by the labels alone.
        for labels in (batch["labels"], labelled(self.batch(model.config, side="left"))["labels"]):
            if model.config.is_autoregressive or labels is batch["labels"]:
                # Attention over a text has a penalty, which vectors do not.
                penalty = whole.attention_penalty if whole.attention_penalty is not None else 0
                expected = whole.loss - model.config.attention_penalty * penalty
                close(model(sentence_embedding=vectors, labels=labels).loss, expected)
        assert "sentence_embedding" in inspect.signature(model.forward).parameters
        if model.config.reads_text:
            with pytest.raises(ValueError, match="Give one of a text, `encoder_outputs` and `sentence_embedding`"):
                model(**text_of(batch), sentence_embedding=vectors)
            with pytest.raises(ValueError, match=r"`attention_mask` is \(4, 2\); the text has \(4, \d+\) tokens"):
                model(batch["input_ids"], attention_mask=batch["attention_mask"][:, :2])
            words = model.encoder.embeddings.word_embeddings.num_embeddings
            with pytest.raises(
                IndexError, match=rf"Token ids, .*, are 5 to {words}; .* words 0 to {words - 1}\. .*resize_tok"
            ):
                model.encoder(torch.tensor([[5, words]]))

    def test_padding_without_a_mask_is_told(self, variant):
        model = self.full(variant)
        if not model.config.reads_text:
            pytest.skip("it reads no text")
        batch = self.batch(model.config)
        assert (batch["attention_mask"] == 0).any()
        with mock.patch("transformers.modeling_utils.logger.warning_once") as warned:
            model.eval().encoder(**text_of(batch))
            model.encoder(batch["input_ids"][:1, :2])
            model.train().encoder(batch["input_ids"])
            assert not warned.called
            model.eval().encoder(batch["input_ids"])
            assert "`attention_mask`" in warned.call_args.args[0]

    def test_words_of_the_decoder_are_checked(self, variant):
        model = self.full(variant)
        batch = labelled(self.batch(model.config))
        labels = batch.pop("labels")
        length = labels.shape[1]
        words = labels.clamp(min=0)
        wrong = (
            ({"labels": labels.tolist()}, r"`labels` must be integers \(4, T\) for an input of 4 texts, got list"),
            ({"labels": labels[0]}, rf"`labels` must be .*, got int64 \({length},\)"),
            ({"labels": labels[:2]}, rf"`labels` must be .*, got int64 \(2, {length}\)"),
            ({"labels": labels.float()}, rf"`labels` must be .*, got float32 \(4, {length}\)"),
            ({"decoder_input_ids": words[:1]}, rf"`decoder_input_ids` must be integers .*, got int64 \(1, {length}\)"),
            (
                {"labels": labels, "decoder_attention_mask": words[0] > 0},
                rf"`decoder_attention_mask` must be \(4, T\) .*, got bool \({length},\)",
            ),
            ({"decoder_inputs_embeds": words}, r"`decoder_inputs_embeds` must be \(4, T, embedding_size\)"),
            ({"labels": labels, "decoder_input_ids": words[:, 1:]}, rf"`labels` are \(4, {length}\), .* \(4, "),
        )
        for given, message in wrong:
            with pytest.raises(ValueError, match=message):
                model(**batch, **given)

    def test_text_and_its_embedding_say_the_same(self, variant):
        model = self.saying(variant)
        text = text_of(self.make_batch(side="left"))
        embedding = model.encoder(**text).pooler_output
        rows = (model.config.num_latents, model.config.latent_width)
        sources = (
            text,
            {"sentence_embedding": embedding},
            {"inputs": text["input_ids"], "attention_mask": text["attention_mask"]},
        )
        # Each is the vector by the time that a strategy begins.
        array = embedding.numpy(force=True)
        column = np.empty(len(array), dtype=object)
        column[:] = list(array)
        forms = (
            embedding.view(-1, *rows),
            array,
            list(embedding),
            list(array[:, ::-1].copy()[:, ::-1]),
            column,
            embedding.double(),
        )
        of_forms = tuple({"sentence_embedding": form} for form in forms)
        for strategy in ({}, {"num_beams": 2, "num_return_sequences": 2}, {"do_sample": True, "top_k": 5}):
            said = []
            for source in sources if strategy else sources + of_forms:
                torch.manual_seed(3)
                said.append(model.generate(**source, **strategy, max_new_tokens=6))
            assert all(torch.equal(said[0], other) for other in said[1:]), strategy
        single = model.generate(sentence_embedding=embedding[0], max_new_tokens=6)
        greedy = model.generate(**text, max_new_tokens=6)
        assert single.shape[0] == 1
        assert single[0].tolist() == greedy[0, : single.shape[1]].tolist()

    def test_interpolated_embeddings_are_decoded(self):
        model = self.saying()
        a, b = model.encoder(**text_of(self.make_batch())).pooler_output[:2].detach()
        mixtures = torch.stack([(1 - t) * a + t * b for t in np.linspace(0, 1, 5).tolist()])
        said = model.generate(sentence_embedding=mixtures, max_new_tokens=6)
        ends = model.generate(sentence_embedding=torch.stack([a, b]), max_new_tokens=6)
        width = ends.shape[1]
        assert torch.equal(said[[0, -1], :width], ends)

    def test_length_bounds(self):
        """A bound of the caller's wins; without one, a text has one of its own, a vector the model's."""
        model = self.saying()
        with torch.no_grad():
            model.lm_head.bias[END] = -1e4  # it never stops by itself
        text = text_of(self.make_batch())
        assert model.generation_config.max_new_tokens == 256
        for bounds, width in (
            ({}, 17),
            ({"max_new_tokens": None}, 17),
            ({"generation_config": self.generation(num_beams=2)}, 17),
            ({"generation_config": self.generation(max_new_tokens=30)}, 31),
            ({"max_new_tokens": 30}, 31),
            ({"max_new_tokens": 5}, 6),
            ({"max_length": 5}, 5),
            ({"max_length": 9, "decoder_input_ids": torch.full((len(SENTENCES), 3), 5)}, 9),
            ({"max_length": 9, "decoder_input_ids": torch.tensor(len(SENTENCES) * [[START, 5, 6]])}, 9),
            ({"max_length": 9, "max_new_tokens": 5}, 6),
            ({"generation_config": self.generation(max_length=5)}, 5),
            ({"generation_config": self.generation(max_new_tokens=5)}, 6),
            ({"generation_config": self.generation(max_new_tokens=5), "max_length": 5}, 5),
        ):
            assert model.generate(**text, **bounds).shape == (len(SENTENCES), width), bounds
        model.generation_config.max_new_tokens = 25
        encoded = {"encoder_outputs": BaseModelOutput(last_hidden_state=model.encoder(**text).latents)}
        vectors = {"sentence_embedding": model.encoder(**text).pooler_output}
        for source, bounds, width in (
            (text, {}, 17),
            (vectors, {}, 26),
            (vectors, {"max_new_tokens": None}, 26),
            (vectors, {"max_new_tokens": 30}, 31),
            (vectors, {"max_length": 30}, 30),
            (encoded, {}, 26),
        ):
            assert model.generate(**source, **bounds).shape == (len(SENTENCES), width), bounds
        # As where a folder has no generation_config.json.
        model.generation_config.max_new_tokens = None
        assert model.generate(**vectors).shape == (len(SENTENCES), 257)
        empty = {"input_ids": torch.tensor([[END]]), "attention_mask": torch.tensor([[0]])}
        assert model.generate(**empty).shape == (1, 17)
        model.generation_config.max_length = 5
        for source in (text, vectors, encoded):
            assert model.generate(**source).shape == (len(SENTENCES), 5)
        assert model.generate(**text, max_new_tokens=8).shape == (len(SENTENCES), 9)

    def test_no_text_ends_before_the_least_that_is_asked_for(self):
        model = self.saying()
        if not model.config.reads_text:
            pytest.skip("a vector's text has the model's own bound")
        with torch.no_grad():
            model.lm_head.bias[END] += 1e4  # it stops at once
        text = text_of(self.make_batch())
        for least, width in (({"min_new_tokens": 30}, 31), ({"min_length": 30}, 30), ({"min_new_tokens": 3}, 5)):
            for strategy in ({}, {"num_beams": 2}):
                assert model.generate(**text, **least, **strategy).shape == (len(SENTENCES), width), (least, strategy)

    def test_defaults_that_transformers_fills_in_change_nothing(self):
        """Its Seq2SeqTrainer writes them, a bound of 20 tokens among them, after its first batch."""
        model = self.saying(dtype=torch.float64)
        with torch.no_grad():
            model.lm_head.bias[END] = -1e4  # it never stops by itself
        text = text_of(self.make_batch([[4 + i % 30 for i in range(29)] + [END], [5, 6, END]]))
        vectors = {"sentence_embedding": model.encoder(**text).pooler_output, "max_new_tokens": 24}
        calls = [{**text, **more} for more in ({}, {"num_beams": 2}, {"num_beams": 2, "early_stopping": False})]
        if self.config().has_latents:
            calls.append(vectors)
        before = [model.generate(**call) for call in calls]
        assert before[0].shape[1] == (46 if model.config.reads_text else 257)
        filled = model.generation_config
        filled.update(**filled._get_default_generation_params(), defaults_only=True)
        assert filled.max_length == 20
        for call, expected in zip(calls, before, strict=True):
            assert torch.equal(model.generate(**call), expected), call
        assert model.generation_config is filled
        assert filled.max_length == 20

    @pytest.mark.parametrize("ends", [True, False], ids=["ends", "endless"])
    def test_a_text_is_decoded_as_alone(self, ends):
        """Whatever longer texts share its batch, each ends by itself or at its own bound, and padding follows."""
        model = self.saying(dtype=torch.float64)
        with torch.no_grad():
            model.lm_head.bias[END] += self.family.end_bias if ends else -1e4
            model.lm_head.bias[PAD] = -1e4
        sentences = [[4 + (number * i) % 30 for i in range(length - 1)] + [END] for number, length in LENGTHS.items()]
        lengths = {"left": set(), "right": set()}
        for strategy in (
            {},
            {"num_beams": 3},
            {"num_beams": 3, "num_return_sequences": 2, "early_stopping": True, "length_penalty": 2.0},
            {"num_beams": 2, "early_stopping": "never", "use_cache": False},
            {"do_sample": True, "num_return_sequences": 3},
        ):
            alone = []
            if "do_sample" not in strategy:
                alone = [model.generate(input_ids=torch.tensor([sentence]), **strategy) for sentence in sentences]
            for side in ("left", "right"):
                text = text_of(self.make_batch(sentences, side=side))
                said = model.generate(**text, **strategy, return_dict_in_generate=True).sequences
                if not strategy:
                    assert torch.equal(model.generate(**text), said)
                rows = strategy.get("num_return_sequences", 1)
                for number, sentence in enumerate(sentences):
                    own = said[number * rows : (number + 1) * rows]
                    bound = max(16, math.ceil(1.5 * len(sentence)))
                    for row in own[:, 1:].tolist():
                        length = row.index(END) + 1 if END in row else bound
                        assert length <= bound
                        assert PAD not in row[:length]
                        assert set(row[length:]) <= {PAD}, strategy
                        lengths[side].add(length)
                    if alone:
                        assert torch.equal(own[:, : alone[number].shape[1]], alone[number]), (strategy, side)
        for found in lengths.values():
            assert found == {16, 18, 23, 36} if not ends else len(found) > 4

    @pytest.mark.parametrize("cache", [{}, {"use_cache": False}], ids=["cache", "no_cache"])
    def test_rows_that_have_ended_leave_the_batch(self, variant, cache):
        """The ids are those of the loop of transformers, which computes all rows until the last one ends."""
        model = self.saying(variant, torch.float64)
        text, bound = text_of(self.make_batch(side="left")), {"max_new_tokens": 2 * WORDS_OF_A_STAGE + 3}
        said = model.generate(**text, **bound, **cache, return_dict_in_generate=True).sequences
        end = [word for word in said[1, 1:4].tolist() if word != PAD][-1]
        whole = model.generate(**text, **bound, **cache, eos_token_id=end, return_dict_in_generate=True).sequences
        read = []
        model.decoder.register_forward_hook(lambda module, args, output: read.append(len(output.last_hidden_state)))
        assert torch.equal(model.generate(**text, **bound, **cache, eos_token_id=end), whole)
        stages = [length - length % WORDS_OF_A_STAGE for length in range(whole.shape[1] - 1)]
        assert read == [sum(end not in row[1 : stage + 1] for row in whole.tolist()) for stage in stages]
        assert end in whole[1, 1:4]

    def test_texts_whose_beams_have_ended_leave_the_batch(self, variant):
        """The ids are those of the search of transformers, which computes all texts until the last one ends."""
        model = self.saying(variant, torch.float64)
        text, read = text_of(self.make_batch(side="left")), []
        for strategy in (
            {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 2.0, "max_new_tokens": 9},
            {"num_beams": 2, "early_stopping": False, "length_penalty": -1.0},
        ):
            said = model.generate(**text, **strategy, return_dict_in_generate=True).sequences
            ends = list(dict.fromkeys(word for word in said[:, 1:6].T.flatten().tolist() if word != PAD))[-2:] or [END]
            hook = model.decoder.register_forward_hook(lambda module, args, output: read.append(len(output[0])))
            whole = model.generate(**text, **strategy, eos_token_id=ends, return_dict_in_generate=True).sequences
            theirs = sum(read)
            read.clear()
            assert torch.equal(model.generate(**text, **strategy, eos_token_id=ends), whole)
            hook.remove()
            assert 0 < sum(read) < theirs
            read.clear()

    def test_generation_in_bf16(self, variant):
        """Where a machine is fast at it, vectors are decoded in it: logits near those of float32, and ids."""
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            pytest.skip("this processor has no bf16, so that nothing is decoded in it")
        model = self.saying(variant)
        if not model.config.has_latents:
            pytest.skip("there is no vector to decode")
        latents = model.encoder(**text_of(self.make_batch())).latents
        words = torch.tensor(len(SENTENCES) * [[START, 7, 9, 21]])
        logits = {}
        for dtype in (torch.float32, torch.bfloat16):
            model.to(dtype)
            read = BaseModelOutput(last_hidden_state=latents.to(dtype))
            logits[dtype] = model(encoder_outputs=read, decoder_input_ids=words).logits.float()
        assert model.generate(encoder_outputs=read, max_new_tokens=6).shape[0] == len(SENTENCES)
        error = (logits[torch.bfloat16] - logits[torch.float32]).norm() / logits[torch.float32].norm()
        assert 0 < error < 0.05

    def test_starts_are_the_callers(self, variant):
        """One a text, and those of words that are given; `max_length` counts them once."""
        model = self.saying(variant, torch.float64)
        text = text_of(self.make_batch(side="left"))
        number = len(SENTENCES)
        common = model.generate(**text, max_new_tokens=12)
        assert torch.equal(model.generate(**text, max_new_tokens=12, decoder_start_token_id=[START] * number), common)
        begun = {"decoder_input_ids": torch.tensor([[5, 6]] * number), "decoder_start_token_id": 5}
        for num_beams in (1, 2):
            said = model.generate(**text, **begun, max_length=9, eos_token_id=None, num_beams=num_beams)
            assert said.shape == (number, 9)

    def test_no_word_on_the_cache_is_the_models_own(self, variant):
        model = self.saying(variant)
        text = text_of(self.make_batch())
        for settings in ({}, {"num_beams": 2, "no_repeat_ngram_size": 4}):
            said = model.generate(**text, **settings, max_new_tokens=8)
            assert torch.equal(model.generate(**text, **settings, max_new_tokens=8, use_cache=None), said)

    def test_a_generation_config_says_what_settings_by_name_say(self, variant):
        model = self.saying(variant)
        text = text_of(self.make_batch())
        with mock.patch.object(generation_utils.logger, "warning_once") as warned:
            for settings in ({}, {"num_beams": 3}, {"max_new_tokens": 5}, {"max_length": 7, "repetition_penalty": 1.5}):
                said = model.generate(**text, generation_config=self.generation(**settings))
                assert torch.equal(said, model.generate(**text, **settings)), settings
            said = model.generate(**text, generation_config=self.generation(max_new_tokens=5, num_beams=3), num_beams=1)
            assert torch.equal(said, model.generate(**text, max_new_tokens=5))
            endless = {"eos_token_id": None, "max_new_tokens": 9}
            said = model.generate(**text, **endless, generation_config=self.generation())
            assert torch.equal(said, model.generate(**text, **endless))
        warned.assert_not_called()

    def generation(self, **settings):
        from transformers import GenerationConfig

        return GenerationConfig(**settings, decoder_start_token_id=START, eos_token_id=END, pad_token_id=PAD)

    def test_without_a_representation_there_is_no_vector(self, variant):
        """Asked for one, the model says why it has none."""
        model = self.full(variant)
        if model.config.has_latents:
            return
        encoded = model.encoder(**text_of(self.make_batch()))
        assert (encoded.latents, encoded.pooler_output, model(**self.make_batch()).latents) == (None, None, None)
        assert model.config.sentence_embedding_size == 0
        for ask in (
            lambda: model.generate(sentence_embedding=torch.randn(1, 64)),
            lambda: model.encoder.normalized_rows(**text_of(self.make_batch())),
            lambda: model.encoder.forward_by_length(**text_of(self.make_batch())),
        ):
            with pytest.raises(ValueError, match="no fixed representation"):
                ask()

    def test_generation_takes_one_source(self):
        model = self.saying()
        text = text_of(self.make_batch())
        embedding = model.encoder(**text).pooler_output
        with pytest.raises(ValueError, match="got 2 inputs"):
            model.generate(**text, sentence_embedding=embedding)
        with pytest.raises(ValueError, match="got 2 inputs"):
            model.generate(text["input_ids"], input_ids=text["input_ids"])
        with pytest.raises(ValueError, match="got 0 inputs"):
            model.generate()
        with pytest.raises(ValueError, match=r"got 0 inputs.* Did you mean `sentence_embedding`"):
            model.generate(max_new_tokens=4, sentence_embeddings=embedding)
        for given in (embedding, text["input_ids"][0], text["input_ids"][:, :0]):
            with pytest.raises(
                ValueError, match=r"`input_ids` must be integers \(B, N\), one or more a text, got (float32|int64) \("
            ):
                model.generate(given)

    def test_vectors_that_are_no_embeddings_are_refused(self, variant):
        """Each message says what was expected. One bad vector among good ones is enough."""
        model = self.full(variant)
        latents = model.encoder(**text_of(self.make_batch())).latents.detach()
        embedding = latents.flatten(1)
        size = embedding.shape[1]
        broken = embedding.clone()
        broken[2, 3] = float("nan")
        refused = [
            (embedding[:, : size // 2 + 1], "truncated vector, or one of another model"),
            (embedding[0, : size - 1], "truncated vector, or one of another model"),
            (torch.cat([embedding, embedding], dim=-1), "truncated vector, or one of another model"),
            (latents.transpose(1, 2)[:, :, :1], "truncated vector, or one of another model"),
            (broken, "NaN or infinite"),
            (embedding * float("inf"), "NaN or infinite"),
            ((embedding * 10).to(torch.int8), "of type int8 are quantised"),
            ("a dog runs.", "is text"),
            (["a dog runs."], "is text"),
            ([embedding[0], embedding[1, 1:]], "are no batch"),
            ([embedding[0].numpy(), None], "are no batch"),
        ]
        for vectors, reason in refused:
            with pytest.raises(ValueError, match=reason) as caught:
                self.say(model, sentence_embedding=vectors)
            rows, width = model.config.num_latents, model.config.latent_width
            assert f"a raw vector of {size} numbers ({rows} rows of {width})" in str(caught.value)


# What every configuration of transformers has; not the families' to test.
FIELDS_OF_TRANSFORMERS = {
    "architectures", "chunk_size_feed_forward", "dtype", "id2label", "is_encoder_decoder", "label2id",
    "output_hidden_states", "problem_type", "return_dict", "transformers_version",
}  # fmt: skip
