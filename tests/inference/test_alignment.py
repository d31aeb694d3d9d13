"""A decoder of an embedder's vectors by a linear map to an autoencoder's Z."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize
from transformers import AutoModelForSeq2SeqLM

from hf_meanmax import (
    CompoundAttentionForTranslation,
    GatedMeanMaxAAEForReconstruction,
    MeanMaxAAEForReconstruction,
    RNNCNNForContextPrediction,
)
from hf_meanmax.checkpoint.folder import check_checkpoint, save_checkpoint
from hf_meanmax.commands.align import main
from hf_meanmax.inference.alignment import align, check_alignable, encode_rows, make_decoder
from hf_meanmax.inference.encoder import load_encoder
from hf_meanmax.modeling.layers import scale_rows
from tiny_model import make_model, make_tokenizer, random_lines

LINES = list(dict.fromkeys(line for line in random_lines(400) if line))
GATES = {"encoder_type": "bilstm", "pooling": "mean_max_last", "decoder_type": "lstm_gates"}
FORMS = {
    "mean_max": (MeanMaxAAEForReconstruction, {}),
    "mean_first": (MeanMaxAAEForReconstruction, {"mean_first": True, "tie_word_embeddings": True}),
    "unit_rows": (MeanMaxAAEForReconstruction, {"latent_normalization": "rows", "latent_scales": True}),
    "weighted": (MeanMaxAAEForReconstruction, {"weighted_mean_row": True, "latent_normalization": "rows"}),
    "frozen": (MeanMaxAAEForReconstruction, {"freeze_word_embeddings": True}),
    "learned": (
        MeanMaxAAEForReconstruction,
        {"position_embedding_type": "learned", "max_position_embeddings": 20},
    ),
    "gates": (GatedMeanMaxAAEForReconstruction, {}),
    "lstm_gates": (GatedMeanMaxAAEForReconstruction, {**GATES, "position_embedding_type": "none"}),
    "gru": (RNNCNNForContextPrediction, {"decoder_type": "gru"}),
    "two_vocabularies": (CompoundAttentionForTranslation, {"separate_vocabularies": True, "input_vocab_size": 20}),
    "frozen_source": (
        CompoundAttentionForTranslation,
        {"separate_vocabularies": True, "input_vocab_size": 20, "freeze_word_embeddings": True},
    ),
    "few_source_words": (
        CompoundAttentionForTranslation,
        {"separate_vocabularies": True, "vocab_size": 20, "input_vocab_size": 14},
    ),
    "expanded": (MeanMaxAAEForReconstruction, {"input_vocab_size": 30, "tie_word_embeddings": False}),
}


def make_autoencoder(form: str = "mean_max"):
    full_class, settings = FORMS[form]
    model = make_model(full_class=full_class, **settings)
    if model.encoder.latent_scales is not None:
        model.encoder.latent_scales.data.copy_(torch.tensor([0.5, 2.0]))
    return model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return save_checkpoint(make_autoencoder(), make_tokenizer(), tmp_path_factory.mktemp("a") / "autoencoder")


def rotated(folder: Path, normalize: bool = False) -> SentenceTransformer:
    """An embedder whose vectors are an autoencoder's, rotated: a linear map leads back."""
    model = load_encoder(str(folder), device="cpu")
    size = model.get_embedding_dimension()
    rotation = torch.linalg.qr(torch.randn(size, size, generator=torch.Generator().manual_seed(2)))[0]
    model.append(Dense(size, size, activation_function=None, init_weight=rotation, init_bias=torch.zeros(size)))
    if normalize:
        model.append(Normalize())
    return model


@pytest.mark.parametrize("form", FORMS)
def test_the_decoder_reads_z_as_the_autoencoders_does(form):
    """With Z given, it says what the autoencoder says."""
    model = make_autoencoder(form)
    embedder = {"name": "x", "normalized": False, "dimension": 5}
    decoder = make_decoder(model, embedder, 5)
    config = decoder.config
    assert config.pooling_rows == model.config.pooling_rows
    assert (config.vocab_size, config.embedding_dim) == (model.config.vocab_size, 5)
    batch = make_tokenizer()(LINES[:6], return_tensors="pt", padding=True)
    latents = model.encode_latents(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    given = {"encoder_outputs": (latents,), "labels": labels}
    torch.testing.assert_close(decoder(**given).logits, model(**given).logits)
    scaled = scale_rows(3 * latents, config, decoder.encoder.latent_scales)
    assert torch.equal(scaled, model.encoder.scale_rows(3 * latents))
    mapped = decoder.encode_latents(sentence_embedding=torch.randn(3, 5))
    if config.latent_normalization == "rows":
        torch.testing.assert_close(mapped, model.encoder.scale_rows(mapped))


@pytest.mark.parametrize("form", ["mean_max", "unit_rows"])
def test_a_linear_image_of_z_is_decoded_as_z_is(form, tmp_path):
    model, tokenizer = make_autoencoder(form), make_tokenizer()
    folder = save_checkpoint(model, tokenizer, tmp_path / "model")
    embedder = rotated(folder)
    found = align(embedder, "rotated", model, tokenizer, LINES)
    assert found.report["pairs"] + found.report["held_out"] == len(LINES)
    assert found.report["cosine"] > 0.999
    assert found.report["explained_variance"] > 0.99
    assert found.report["strength"] == 1e-5  # nothing but rounding to smooth
    rows = encode_rows(model, tokenizer, found.validation)
    with torch.no_grad():
        mapped = found.model.encode_latents(sentence_embedding=torch.from_numpy(found.vectors)).flatten(1).numpy()
    np.testing.assert_allclose(mapped, rows, atol=0.05 * np.abs(rows).max())
    expected = model.generate(sentence_embedding=rows, max_new_tokens=8)
    decoded = found.model.generate(sentence_embedding=found.vectors, max_new_tokens=8)
    width = min(expected.shape[1], decoded.shape[1])
    assert (expected[:, :width] == decoded[:, :width]).float().mean() > 0.9


def test_what_the_rows_are_is_what_the_decoder_reads():
    model, tokenizer = make_autoencoder("unit_rows"), make_tokenizer()
    rows = encode_rows(model, tokenizer, LINES[:7])
    for text, row in zip(LINES[:7], rows, strict=True):
        with torch.no_grad():
            expected = model.encoder(**tokenizer(text, return_tensors="pt")).latents.flatten()
        np.testing.assert_allclose(row, expected.numpy(), atol=1e-6)


def test_noise_asks_for_regularisation(checkpoint, capsys):
    model, tokenizer = make_autoencoder(), make_tokenizer()

    class Noisy:
        def __init__(self, scale):
            self.embedder = load_encoder(str(checkpoint), device="cpu")
            self.scale = scale
            self.draws = np.random.default_rng(0)

        def __getattr__(self, name):
            return getattr(self.embedder, name)

        def __call__(self, features):
            return self.embedder(features)

        def __getitem__(self, index):
            return self.embedder[index]

        def __iter__(self):
            return iter(self.embedder)

        def encode(self, texts, **kwargs):
            vectors = self.embedder.encode(texts, **kwargs)
            return vectors + self.draws.normal(scale=self.scale, size=vectors.shape).astype(np.float32)

    found = align(Noisy(2.0), "noisy", model, tokenizer, LINES[:60])
    assert found.report["strength"] > 1e-5
    align(Noisy(1e4), "noise", model, tokenizer, LINES[:60], show_progress=True)
    assert "warning: the strongest regularisation tried (10) fits held-out texts best" in capsys.readouterr().err


def test_the_command_writes_a_checkpoint(checkpoint, tmp_path, capsys):
    rotated(checkpoint, normalize=True).save_pretrained(str(tmp_path / "embedder"))
    (tmp_path / "text.txt").write_text("\n".join(LINES) + "\n")
    (tmp_path / "held-out.txt").write_text("\n".join(random_lines(30, seed=5)) + "\n")
    options = ["--embedder", str(tmp_path / "embedder"), "--to", str(checkpoint), "--output", str(tmp_path / "out")]
    main([str(tmp_path / "text.txt"), *options, "--limit", "200", "--validation", str(tmp_path / "held-out.txt")])
    printed = capsys.readouterr()
    report = json.loads(printed.out.splitlines()[-1])
    assert f"warning: {report['pairs']} pairs give a bad map; give 3,000 or more" in printed.err
    # These vectors are a linear map of each other.
    assert "the strongest regularisation" not in printed.err
    assert report["pairs"] == len(set(LINES[:200]) - set(random_lines(30, seed=5)))
    assert {"validation_bleu", "validation_exact_match", "cosine"} <= set(report)
    config = check_checkpoint(tmp_path / "out")
    assert config.embedder["name"] == "embedder"
    assert config.normalize_embeddings
    saved = json.loads((tmp_path / "out" / "training_args.json").read_text())
    assert saved["results"] == report
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    vectors = SentenceTransformer(str(tmp_path / "embedder"), device="cpu").encode(LINES[:5])
    assert len(model.generate(sentence_embedding=vectors, max_new_tokens=5)) == 5


def test_what_is_held_out_is_not_fitted(checkpoint):
    embedder = load_encoder(str(checkpoint), device="cpu")
    distinct = len(set(LINES[:40]))
    found = align(embedder, "x", make_autoencoder(), make_tokenizer(), 3 * LINES[:40])
    assert found.report["pairs"] + found.report["held_out"] == distinct
    found = align(embedder, "x", make_autoencoder(), make_tokenizer(), LINES[:40], LINES[5:9])
    assert found.report["pairs"] == len(set(LINES[:40]) - set(LINES[5:9]))


def test_what_cannot_be_aligned(checkpoint, tmp_path):
    (tmp_path / "text.txt").write_text("the cat\n\n")
    (tmp_path / "same.txt").write_text("the cat\n" * 12)
    (tmp_path / "long.txt").write_text("".join(f"the cat {number}\n" for number in range(12)))
    (tmp_path / "empty.txt").write_text("")
    options = ["--embedder", str(checkpoint), "--output", str(tmp_path / "out")]
    with pytest.raises(ValueError, match=r"9 different texts beside 1 that is held out are too few; give 11 or more\."):
        align(load_encoder(str(checkpoint)), "x", make_autoencoder(), make_tokenizer(), sorted(set(LINES))[:10])
    for text in ("text.txt", "same.txt", "empty.txt"):
        with pytest.raises(
            SystemExit, match=r"hf-meanmax align: .*([01] different texts are too few; give 10 or|empty)"
        ):
            main([str(tmp_path / text), *options, "--to", str(checkpoint)])
    with pytest.raises(SystemExit, match="hf-meanmax align: No checkpoint folder"):
        main([str(tmp_path / "long.txt"), *options, "--to", "./none"])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    with pytest.raises(SystemExit, match=r"hf-meanmax align: .*name a new folder"):
        # Before the model, which is not there, is looked for.
        main([str(tmp_path / "long.txt"), *options[:2], "--to", "./none", "--output", str(tmp_path / "mine")])
    for model, reason in (
        (make_model(full_class=CompoundAttentionForTranslation, architecture="attn"), "no fixed representation"),
        (make_model(decoder_type="none"), "gives vectors alone"),
        (make_model(full_class=RNNCNNForContextPrediction), "not autoregressive"),
        (make_decoder(make_autoencoder(), {"name": "x", "normalized": True}, 4), "decodes the vectors of x"),
    ):
        with pytest.raises(ValueError, match=reason):
            check_alignable(model)
    with pytest.raises(ValueError, match="more than the 4,096 tokens that a model reads at once, and a map is fitted"):
        align(
            load_encoder(checkpoint, device="cpu"),
            "x",
            make_model(),
            make_tokenizer(),
            ["the cat " * n for n in range(3000, 3020)],
        )
    assert not (tmp_path / "out").exists()
