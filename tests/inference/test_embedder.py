"""What a decoder remembers of an embedder, and which vectors it refuses by it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling
from transformers import AutoModel, AutoModelForSeq2SeqLM

from hf_meanmax import EmbeddingDecoderForGeneration
from hf_meanmax.checkpoint.card import write_model_card
from hf_meanmax.checkpoint.expand import expand_checkpoint
from hf_meanmax.checkpoint.folder import check_checkpoint, load_checkpoint, save_checkpoint
from hf_meanmax.commands.decode import main as decode
from hf_meanmax.commands.encode import main as encode
from hf_meanmax.data.corpus import Documents
from hf_meanmax.inference.embedder import describe_embedder, fit_standardization, load_embedder
from hf_meanmax.inference.encode import EncodeSettings, encode_corpus
from hf_meanmax.inference.encoder import load_encoder
from hf_meanmax.inference.onnx_export import export_onnx
from hf_meanmax.modeling.layers import Standardization
from tiny_model import make_model, make_tokenizer, random_lines

LINES = [line for line in random_lines(40) if line]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory) -> Path:
    """A SentenceTransformer whose vectors have unit length."""
    model = make_model()
    return save_checkpoint(model, make_tokenizer(), tmp_path_factory.mktemp("e") / "embedder", normalize="embedding")


def make_decoder(embedder: Path, folder: Path, prompt: str = "", **changes: object) -> Path:
    described = describe_embedder(load_embedder(str(embedder), prompt, "cpu"), str(embedder))
    settings = {"embedding_dim": described["dimension"], "embedder": described, "normalize_embeddings": True, **changes}
    model = make_model(full_class=EmbeddingDecoderForGeneration, latent_length=3, **settings)
    return save_checkpoint(model, make_tokenizer(), folder)


@pytest.fixture(scope="module")
def decoder(embedder, tmp_path_factory) -> Path:
    return make_decoder(embedder, tmp_path_factory.mktemp("d") / "decoder")


def encoded(embedder: Path, output: Path, prompt: str = "", **settings: object) -> Path:
    corpus = Documents([LINES])
    encode_corpus(load_embedder(str(embedder), prompt, "cpu"), corpus, output, EncodeSettings(**settings))
    return output


def test_what_is_remembered(embedder):
    described = describe_embedder(load_embedder(str(embedder), "query: ", "cpu"), str(embedder))
    assert described["name"] == "embedder"
    assert described["prompt"] == "query: "
    assert described["normalized"] is True
    assert described["dimension"] == 32
    plain = describe_embedder(load_embedder(str(embedder), device="cpu"), str(embedder))
    assert plain["prompt"] is None
    assert plain["weights"] == described["weights"]
    assert plain["pipeline"] != described["pipeline"]


class Tokens(torch.nn.Module):
    """A first module that knows one text."""

    def preprocess(self, texts, **kwargs):
        return {"token_embeddings": torch.ones(1, 2, 32), "attention_mask": torch.ones(1, 2)}

    def forward(self, features, **kwargs):
        return features


def test_the_pooling_of_stock_modules_is_remembered():
    for mode, name in (("mean", "mean"), (("cls", "max"), "cls+max")):
        stock = SentenceTransformer(modules=[Tokens(), Pooling(32, pooling_mode=mode)], device="cpu")
        described = describe_embedder(stock, "some/embedder")
        assert (described["pooling"], described["normalized"]) == (name, False)
        assert described["name"] == "some/embedder"
    # Of modules after a Normalize the length is another.
    for modules, normalized in (([Normalize()], True), ([Normalize(), Dense(32, 16)], False)):
        stock = SentenceTransformer(modules=[Tokens(), Pooling(32), *modules], device="cpu")
        assert describe_embedder(stock, "some/embedder")["normalized"] is normalized


def test_a_prompt_is_put_before_each_text(embedder):
    with_prompt = load_embedder(str(embedder), "the cat ", "cpu").encode(["sat"])
    np.testing.assert_allclose(
        with_prompt, load_encoder(str(embedder), device="cpu").encode(["the cat sat"]), atol=1e-6
    )


def test_the_folder_has_a_decoder_and_no_encoder(decoder, capsys, tmp_path):
    assert not (decoder / "modules.json").exists()
    assert not (decoder / "sentence_bert_config.json").exists()
    assert check_checkpoint(decoder).embedder["name"] == "embedder"
    assert isinstance(load_checkpoint(decoder)[0], EmbeddingDecoderForGeneration)
    assert isinstance(AutoModelForSeq2SeqLM.from_pretrained(decoder), EmbeddingDecoderForGeneration)
    with pytest.raises(ValueError, match="EmbeddingDecoderConfig"):
        AutoModel.from_pretrained(decoder)
    reason = "decodes the vectors of embedder and has no text encoder"
    for refused in (
        lambda: load_encoder(str(decoder)),
        lambda: export_onnx(decoder, tmp_path / "onnx"),
        lambda: expand_checkpoint(decoder, "none.txt", tmp_path / "expanded"),
        lambda: save_checkpoint(load_checkpoint(decoder)[0], make_tokenizer(), tmp_path / "x", normalize="rows"),
    ):
        with pytest.raises(ValueError, match=reason):
            refused()
    (tmp_path / "text.txt").write_text("the cat\n")
    with pytest.raises(SystemExit, match=f"hf-meanmax encode: .*{reason}"):
        encode([str(decoder), str(tmp_path / "text.txt"), "--output", str(tmp_path / "out")])


def test_the_card_names_the_embedder(decoder, tmp_path):
    card = write_model_card(decoder, "me/decoder", path=tmp_path / "README.md").read_text()
    assert "turns the vectors of embedder, of 32 numbers, back to text" in card
    assert 'SentenceTransformer("embedder")' in card
    assert "AutoModel.from_pretrained" not in card
    assert "Privacy" in card
    assert "prompt=" not in card


def test_the_card_gives_the_prompt(embedder, tmp_path):
    folder = make_decoder(embedder, tmp_path / "decoder", 'a "query": ')
    card = write_model_card(folder, "me/decoder", path=tmp_path / "README.md").read_text()
    line = next(line for line in card.splitlines() if line.startswith("vectors = embedder.encode("))
    assert eval(line.split("prompt=")[1].removesuffix(")")) == 'a "query": '


def test_vectors_of_files_and_folders_are_decoded(embedder, decoder, tmp_path, capsys):
    folder = encoded(embedder, tmp_path / "vectors")
    vectors = load_encoder(str(embedder), device="cpu").encode(LINES)
    np.save(tmp_path / "vectors.npy", vectors)
    np.save(tmp_path / "long.npy", 7 * vectors)
    texts = []
    for source, says in (("vectors", False), ("vectors.npy", False), ("long.npy", True)):
        decode([str(decoder), str(tmp_path / source)])
        captured = capsys.readouterr()
        assert captured.err.count("are scaled to it") == says
        texts.append(captured.out.splitlines()[: len(LINES)])
    assert texts[0] == texts[1] == texts[2]
    assert len(set(texts[0])) > 3
    with torch.no_grad():
        tokens = load_checkpoint(decoder)[0].generate(sentence_embedding=vectors)
    assert texts[0] == make_tokenizer().batch_decode(tokens, skip_special_tokens=True)
    assert folder.is_dir()


def test_vectors_of_another_embedder_are_refused(embedder, decoder, tmp_path, capsys):
    other = save_checkpoint(make_model(seed=1), make_tokenizer(), tmp_path / "other", normalize="embedding")
    for place, reason in (
        (encoded(other, tmp_path / "a"), "was encoded by another model .*this one decodes the vectors of 'embedder'"),
        (encoded(embedder, tmp_path / "b", truncate_dim=20), "--truncate_dim"),
        (encoded(embedder, tmp_path / "c", dtype="int8"), "--dtype int8"),
    ):
        with pytest.raises(SystemExit, match=f"hf-meanmax decode: .*{reason}"):
            decode([str(decoder), str(place)])
    capsys.readouterr()
    decode([str(decoder), str(encoded(embedder, tmp_path / "d", prompt="the cat "))])
    assert "with other settings of the embedder (prompt, length limit)" in capsys.readouterr().err


def test_normalised_vectors_of_an_embedder_whose_lengths_count(tmp_path):
    raw = save_checkpoint(make_model(), make_tokenizer(), tmp_path / "raw")
    decoder = make_decoder(raw, tmp_path / "decoder", normalize_embeddings=False)
    decode([str(decoder), str(encoded(raw, tmp_path / "a"))])
    with pytest.raises(SystemExit, match="--normalize; only raw vectors"):
        decode([str(decoder), str(encoded(raw, tmp_path / "b", normalize=True))])


def test_bad_vectors_get_one_line(embedder, decoder, tmp_path, capsys):
    rows = np.random.default_rng(0).normal(size=(4, 32)).astype(np.float32)
    broken = rows.copy()
    broken[2, 5] = np.nan
    for name, array, reason in (
        ("nan", broken, "Row 3: .*NaN"),
        ("narrow", rows[:, :20], "holds vectors of 20 numbers; the model decodes 32"),
        ("integers", (10 * rows).astype(np.int64), "expected a matrix of floating-point numbers"),
        ("flat", rows[0], "expected a matrix"),
        ("long", rows.astype(np.longdouble), "expected a matrix of floating-point numbers"),
    ):
        np.save(tmp_path / f"{name}.npy", array)
        with pytest.raises(SystemExit, match=reason):
            decode([str(decoder), str(tmp_path / f"{name}.npy")])
    (tmp_path / "empty.npy").write_bytes(b"")
    with pytest.raises(SystemExit, match=r"empty\.npy: no embeddings can be read"):
        decode([str(decoder), str(tmp_path / "empty.npy")])
    np.save(tmp_path / "none.npy", rows[:0])
    np.save(tmp_path / "zeros.npy", 0 * rows)
    assert "not of unit length" not in capsys.readouterr().err
    decode([str(decoder), str(tmp_path / "none.npy")])
    said = capsys.readouterr()
    assert said.out == ""
    assert "none.npy does not say which model made its vectors" in said.err
    decode([str(decoder), str(tmp_path / "zeros.npy")])
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_the_embedder_is_saved_as_json(decoder):
    saved = json.loads((decoder / "config.json").read_text())
    assert set(saved["embedder"]) == {
        "name", "revision", "weights", "pipeline", "prompt", "pooling", "normalized", "dimension",
    }  # fmt: skip


def test_a_number_that_never_varies_keeps_its_scale():
    rows = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    rows[:, 1] = 0.5
    module = Standardization(3)
    fit_standardization(module, rows, normalize=False)
    np.testing.assert_allclose(module.mean.numpy(), rows.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(module.scale.numpy(), [rows[:, 0].std(), 1, rows[:, 2].std()], atol=1e-5)
    assert module(torch.from_numpy(rows)).isfinite().all()
