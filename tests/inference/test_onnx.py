"""Encoders as ONNX: what torch gives, for every kind of encoder, and without torch."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense

from hf_meanmax import CompoundAttentionForTranslation, MeanMaxAAEForReconstruction, RNNCNNForContextPrediction
from hf_meanmax.checkpoint.folder import load_checkpoint, save_checkpoint
from hf_meanmax.commands.export_onnx import main
from hf_meanmax.commands.whiten import main as whiten_command
from hf_meanmax.cosines import paired_cosines
from hf_meanmax.data.corpus import Documents
from hf_meanmax.inference.decode import decode_embeddings
from hf_meanmax.inference.encode import EncodeSettings, encode_corpus
from hf_meanmax.inference.encoder import load_encoder
from hf_meanmax.inference.whitening import whiten
from tiny_model import make_model, make_tokenizer, python_environment, random_lines

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
from hf_meanmax.inference import onnx_encoder, onnx_export
from hf_meanmax.inference.onnx_encoder import OnnxEncoder
from hf_meanmax.inference.onnx_export import export_onnx

TEXTS = random_lines(40, seed=1) + ["", "unheard words </s> cat", "the"]
SYSTEMS = {
    "mean_max": (MeanMaxAAEForReconstruction, {}, None),
    "released": (
        MeanMaxAAEForReconstruction,
        {
            "position_embedding_type": "learned", "freeze_word_embeddings": True, "projection_activation": "relu",
            "encoder_residual": True,
        },
        "rows",
    ),
    "bilstm": (MeanMaxAAEForReconstruction, {"encoder_type": "bilstm", "num_hidden_layers": 2}, None),
    "last_state": (
        MeanMaxAAEForReconstruction, {"encoder_type": "lstm", "pooling": "last", "decoder_type": "lstm"}, "embedding",
    ),
    "rnn_cnn": (RNNCNNForContextPrediction, {"decoder_channels": [8, 8]}, None),
    "hierarchical_cnn": (
        RNNCNNForContextPrediction,
        {"encoder_type": "hierarchical_cnn", "num_hidden_layers": 2, "pooling": "max", "decoder_channels": [8, 8]},
        None,
    ),
    "weighted": (
        MeanMaxAAEForReconstruction,
        {"weighted_mean_row": True, "latent_normalization": "rows", "latent_scales": True},
        None,
    ),
    "static": (
        MeanMaxAAEForReconstruction,
        {
            "encoder_type": "none", "pooling": "weighted_mean", "decoder_type": "none", "weighted_mean_hidden_size": 24,
        },
        None,
    ),
    "compound": (CompoundAttentionForTranslation, {"latent_heads": 3, "latent_size": 5}, None),
}  # fmt: skip


def save(name: str, folder) -> str:
    full_class, settings, normalize = SYSTEMS[name]
    model = make_model(full_class=full_class, initializer_range=0.7, **settings)
    if "weighted_mean_hidden_size" in settings:
        torch.nn.init.normal_(model.encoder.word_pooler.feed_forward.down.weight)
    return str(save_checkpoint(model, make_tokenizer(), folder / "model", normalize=normalize))


@pytest.fixture(scope="module")
def master(tmp_path_factory) -> str:
    """A checkpoint with its export, which takes seconds to make."""
    folder = save("mean_max", tmp_path_factory.mktemp("exported"))
    export_onnx(folder)
    return folder


@pytest.fixture
def exported(master, tmp_path) -> str:
    return str(shutil.copytree(master, tmp_path / "model"))


@pytest.mark.parametrize("name", SYSTEMS)
def test_vectors_are_those_of_torch(name, tmp_path):
    """Whatever the length, the batch and the normalisation; int8 is near."""
    folder = save(name, tmp_path)
    report = export_onnx(folder)
    wanted = SentenceTransformer(folder, device="cpu").encode(TEXTS)
    encoder = OnnxEncoder(f"{folder}/onnx")
    for batch_size in (1, 7, 64):
        np.testing.assert_allclose(encoder.encode(TEXTS, batch_size), wanted, atol=2e-5)
    np.testing.assert_allclose(encoder.encode(TEXTS[3]), wanted[3], atol=2e-5)
    assert encoder.encode([]).shape == (0, wanted.shape[1])
    near = OnnxEncoder(f"{folder}/onnx", int8=True, threads=1).encode(TEXTS, batch_size=7)
    side_by_side = OnnxEncoder(f"{folder}/onnx", int8=True, threads=3).encode(TEXTS, batch_size=7)
    np.testing.assert_array_equal(side_by_side, near)
    # A text without a word has no direction in a static model.
    near, wanted = near[wanted.any(axis=1)], wanted[wanted.any(axis=1)]
    cosines = (near * wanted).sum(1) / np.linalg.norm(near, axis=1) / np.linalg.norm(wanted, axis=1)
    assert cosines.min() > 0.98
    assert not np.array_equal(near, wanted)
    assert report["model.onnx"]["largest_difference"] < 2e-5
    assert report["model_int8.onnx"]["least_cosine"] > 0.98
    assert json.loads((tmp_path / "model" / "onnx" / "report.json").read_text()) == report


def test_an_export_as_a_sentence_transformer(tmp_path):
    """For every batch and number of threads what the checkpoint gives, with its prompts; int8 is near."""
    folder = Path(save("mean_max", tmp_path))
    prompts = {"prompts": {"query": "the old cat "}, "default_prompt_name": "query", "truncate_dim": 20}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    export_onnx(folder)
    model = SentenceTransformer(str(folder), device="cpu")
    settings = {"model_kwargs": {"threads": 3, "file_name": "model_int8.onnx"}, "trust_remote_code": True}
    for encoder in (
        load_encoder(str(folder / "onnx")),
        load_encoder(str(folder / "onnx" / "model_int8.onnx")),
        SentenceTransformer(str(folder / "onnx"), **settings),
    ):
        for options in ({"batch_size": 1}, {"batch_size": 64}, {"prompt": ""}):
            found, wanted = encoder.encode(TEXTS, **options), model.encode(TEXTS, **options)
            assert found.shape == wanted.shape == (len(TEXTS), encoder.get_embedding_dimension()) == (len(TEXTS), 20)
            if encoder[0].get_config_dict()["file_name"] == "model.onnx":
                np.testing.assert_allclose(found, wanted, atol=2e-5)
            assert paired_cosines(found, wanted).min() > 0.98
    assert encoder.max_seq_length is None
    encoder.max_seq_length = model.max_seq_length = 5
    # As when it is sent to another process.
    copied = copy.deepcopy(encoder)
    assert paired_cosines(copied.encode(TEXTS), model.encode(TEXTS)).min() > 0.98


def test_the_checkpoint_decodes_what_its_export_has_encoded(exported, tmp_path):
    """Quantised or not: the manifest names the weights that were exported."""
    folder, manifests = exported, []
    for name in ("model.onnx", "model_int8.onnx"):
        model = load_encoder(f"{folder}/onnx/{name}")
        settings = EncodeSettings(compute_dtype="auto")
        manifests.append(encode_corpus(model, Documents([TEXTS]), tmp_path / name, settings, show_progress=False))
        assert manifests[-1]["settings"]["compute_dtype"] == "float32"
        decoder, tokenizer = load_checkpoint(folder)
        texts = list(decode_embeddings(decoder, tokenizer, [tmp_path / name], max_new_tokens=4))
        assert len(texts) == len(TEXTS) + 1
    assert manifests[0]["model"]["weights"] == manifests[1]["model"]["weights"]
    assert manifests[0]["model"]["pipeline"] != manifests[1]["model"]["pipeline"]
    with pytest.raises(FileExistsError, match="an encoding of another model"):
        encode_corpus(model, Documents([TEXTS]), tmp_path / "model.onnx", show_progress=False)
    for other_type in ("bfloat16", "float16"):
        with pytest.raises(
            ValueError, match=f"compute_dtype is '{other_type}', but this model has no weights in torch"
        ):
            encode_corpus(model, Documents([TEXTS]), tmp_path / "half", EncodeSettings(compute_dtype=other_type))
    with pytest.raises(ValueError, match="was encoded by another model"):
        list(decode_embeddings(make_model(seed=1), tokenizer, [tmp_path / "model.onnx"], max_new_tokens=4))
    # A module after the export makes other vectors.
    whiten(model, TEXTS[:40], 4)
    encode_corpus(model, Documents([TEXTS]), tmp_path / "whitened", show_progress=False)
    with pytest.raises(ValueError, match="was encoded by another model"):
        list(decode_embeddings(decoder, tokenizer, [tmp_path / "whitened"], max_new_tokens=4))


def test_an_export_that_is_no_whole_sentence_transformer(exported, tmp_path):
    folder = exported
    (Path(folder) / "onnx" / "model_int8.onnx").write_bytes(b"cut")
    with pytest.raises(ValueError, match=r"model_int8\.onnx cannot be loaded: damaged, or not for this"):
        OnnxEncoder(f"{folder}/onnx", int8=True)
    (Path(folder) / "onnx" / "model_int8.onnx").unlink()
    settings = {"trust_remote_code": True, "device": "cpu"}
    with pytest.raises(
        ValueError, match=r"file_name is 'model_O3\.onnx'; an export has model\.onnx and model_int8\.onnx"
    ):
        SentenceTransformer(f"{folder}/onnx", model_kwargs={"file_name": "model_O3.onnx"}, **settings)
    with pytest.raises(FileNotFoundError, match=r"model_int8\.onnx is missing: the folder is no whole export"):
        SentenceTransformer(f"{folder}/onnx", model_kwargs={"file_name": "model_int8.onnx"}, **settings)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    with pytest.raises(SystemExit, match=r"onnx is an ONNX export, which cannot be saved again\. Give its checkpoint"):
        whiten_command(
            [f"{folder}/onnx", str(tmp_path / "texts.txt"), "--output", str(tmp_path / "w"), "--dimension", "4"]
        )
    with pytest.raises(NotImplementedError, match="copy its folder"):
        load_encoder(f"{folder}/onnx").save(str(tmp_path / "saved"))


def test_needs_neither_torch_nor_this_package(tmp_path):
    """The folder is enough, where torch, transformers and hf_meanmax cannot be imported."""
    folder = save("rnn_cnn", tmp_path)
    export_onnx(folder, tmp_path / "alone", int8=False)
    # A mark at the file's start and a form feed are no text and no line of their own.
    lines = [text.replace(" ", " \f ") for text in TEXTS]
    (tmp_path / "texts.txt").write_text("\ufeff" + "\n".join(lines) + "\n", encoding="utf-8")
    blocked = "sys.modules.update(dict.fromkeys(['torch', 'transformers', 'hf_meanmax']))"
    run = f"import sys, runpy; {blocked}; sys.argv = ['encoder.py', 'texts.txt', '--output', 'vectors']; "
    run += "runpy.run_path('alone/encoder.py', run_name='__main__')"
    result = subprocess.run(
        [sys.executable, "-c", run], cwd=tmp_path, capture_output=True, text=True, check=False,
        env=python_environment(with_package=False),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    # The file that was asked for, whatever its name ends in.
    assert "43 x 32: vectors\n" in result.stdout
    wanted = SentenceTransformer(folder, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(np.load(tmp_path / "vectors"), wanted, atol=2e-5)


def test_says_which_packages_it_needs(tmp_path, monkeypatch):
    """Without onnxruntime: one line from the command, and from the export's own encoder."""
    folder = save("rnn_cnn", tmp_path)
    for name in [name for name in sys.modules if name.startswith("onnxruntime.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    for run, told in (
        (
            lambda: main([folder]),
            r'^hf-meanmax export-onnx: .*onnxruntime. In a clone: pip install -c constraints.txt "\.\[onnx\]"$',
        ),
        (lambda: onnx_encoder.main(["texts.txt", "--output", "v"]), "^encoder: .*onnxruntime.*$"),
    ):
        with pytest.raises(SystemExit, match=told) as ended:
            run()
        assert "\n" not in str(ended.value)


def test_texts_are_cut_where_the_checkpoint_cuts_them(tmp_path):
    tokenizer = make_tokenizer()
    tokenizer.model_max_length = 4
    folder = save_checkpoint(make_model(), tokenizer, tmp_path / "model")
    export_onnx(folder, int8=False)
    wanted = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    encoder = OnnxEncoder(folder / "onnx")
    np.testing.assert_allclose(encoder.encode(TEXTS), wanted, atol=2e-5)
    # Half of a surrogate pair is read as everywhere in this package.
    np.testing.assert_array_equal(encoder.encode("the \ud800 cat"), encoder.encode("the \ufffd cat"))


def test_encoder_saved_by_sentence_transformers(tmp_path):
    """What its trainer leaves has no decoder, and its own length; other modules after the encoder are refused."""
    model = SentenceTransformer(save("released", tmp_path), device="cpu")
    model.max_seq_length = 5
    model.save_pretrained(str(tmp_path / "saved"))
    export_onnx(tmp_path / "saved", int8=False)
    np.testing.assert_allclose(OnnxEncoder(tmp_path / "saved" / "onnx").encode(TEXTS), model.encode(TEXTS), atol=2e-5)
    model.append(Dense(model.get_embedding_dimension(), 4))
    model.save_pretrained(str(tmp_path / "dense"))
    with pytest.raises(ValueError, match=r"Dense after its encoder; only the encoder and Normalize are exported"):
        export_onnx(tmp_path / "dense", int8=False)


@pytest.mark.parametrize("normalize", [None, "embedding"])
def test_the_default_prompt_and_the_numbers_that_are_kept(tmp_path, normalize):
    plain = str(save_checkpoint(make_model(), make_tokenizer(), tmp_path / "model", normalize=normalize))
    prompts = {"prompts": {"query": "the old cat "}, "default_prompt_name": "query"}
    model = SentenceTransformer(plain, device="cpu", truncate_dim=7, **prompts)
    model.save_pretrained(str(tmp_path / "saved"))
    export_onnx(tmp_path / "saved", int8=False)
    exported = OnnxEncoder(tmp_path / "saved" / "onnx")
    assert exported.encode(TEXTS).shape == (len(TEXTS), exported.dimension) == (len(TEXTS), 7)
    np.testing.assert_allclose(exported.encode(TEXTS), model.encode(TEXTS), atol=2e-5)


def test_an_export_that_is_wrong_is_not_written(exported, tmp_path, monkeypatch):
    folder = exported
    whole = json.loads((tmp_path / "model" / "onnx" / "report.json").read_text())
    copy = (tmp_path / "model" / "onnx" / onnx_encoder.MODEL).read_bytes()
    monkeypatch.setattr(onnx_export, "_write_model", lambda module, batch, path: path.write_bytes(copy))
    report = export_onnx(folder, int8=False)
    assert report == {onnx_encoder.MODEL: whole[onnx_encoder.MODEL]}
    true = onnx_export._encode
    for change in (3.0, np.nan):
        monkeypatch.setattr(onnx_export, "_encode", lambda *args, change=change: true(*args) + change)
        with pytest.raises(ValueError, match=r"model\.onnx is not what torch computes"):
            export_onnx(folder, int8=False)
    # Of int8 the direction counts.
    encode = OnnxEncoder.encode
    sign = iter((1, -1))
    monkeypatch.setattr(OnnxEncoder, "encode", lambda self, texts: next(sign) * encode(self, texts) / 10)
    monkeypatch.setattr(onnx_export, "_encode", lambda *args: true(*args) / 10)
    with pytest.raises(
        ValueError, match=r"model_int8\.onnx is not what torch computes: the least cosine is -.*`--no_int8`"
    ):
        export_onnx(folder)
    assert json.loads((tmp_path / "model" / "onnx" / "report.json").read_text()) == report


def test_a_block_of_texts_is_held_at_a_time(exported, tmp_path, monkeypatch, capsys):
    """The file has all rows, of blocks that end amid the texts, and of no text at all."""
    folder = exported
    encoder = OnnxEncoder(f"{folder}/onnx")
    monkeypatch.setattr(onnx_encoder, "_BLOCK", 10)
    monkeypatch.setattr(onnx_encoder, "_SECONDS_BETWEEN_LINES", 0.0)
    for texts in (TEXTS, TEXTS[:20], []):
        (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        onnx_encoder.main(
            [str(tmp_path / "texts.txt"), "--output", str(tmp_path / "v.npy"), "--model", f"{folder}/onnx"]
        )
        vectors = np.load(tmp_path / "v.npy", mmap_mode="r")
        assert vectors.shape == (len(texts), encoder.dimension)
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(vectors, encoder.encode(texts), atol=2e-5)
    told = capsys.readouterr()
    assert "10 texts\n20 texts\n" in told.err
    assert "20 x 32: " in told.out


def test_command_line_and_refusals(tmp_path, capsys):
    folder = save("mean_max", tmp_path)
    (tmp_path / "texts.txt").write_text("the cat\n\na dog\n")
    main([folder, "--no_int8", "--texts", str(tmp_path / "texts.txt")])
    told = capsys.readouterr().out
    assert "model.onnx: " in told
    assert f"written to {folder}/onnx" in told
    with pytest.raises(SystemExit, match="Give `--output FOLDER`"):
        main(["user/name"])
    assert not (tmp_path / "model" / "onnx" / "model_int8.onnx").exists()
    exported = str(tmp_path / "model" / "onnx")
    # A lone carriage return ends no line, as for the other readers of corpora.
    (tmp_path / "lines.txt").write_bytes(b"the cat\ra dog\r\n\nthe mat\n")
    onnx_encoder.main([str(tmp_path / "lines.txt"), "--output", str(tmp_path / "v.npy"), "--model", exported])
    assert np.load(tmp_path / "v.npy").shape[0] == 3
    with pytest.raises(SystemExit, match=r"^encoder: .*a\.CSV is a table\. Write its column of texts to a text file"):
        onnx_encoder.main([str(tmp_path / "a.CSV"), "--output", str(tmp_path / "t.npy"), "--model", exported])
    assert list(tmp_path.glob("*.partial")) == []
    with pytest.raises(FileNotFoundError, match=r"model_int8\.onnx is missing: the folder is no whole export"):
        OnnxEncoder(tmp_path / "model" / "onnx", int8=True)
    with pytest.raises(ValueError, match="batch_size is 0"):
        OnnxEncoder(tmp_path / "model" / "onnx").encode(["a"], batch_size=0)
    with pytest.raises(SystemExit, match="No such file or directory"):
        onnx_encoder.main(
            [str(tmp_path / "texts.txt"), "--output", str(tmp_path / "none" / "v.npy"), "--model", exported]
        )
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tokenizer.json").write_text("of another model")
    with pytest.raises(SystemExit, match=r"is no export, but has files that one would replace \(tokenizer.json\)"):
        main([folder, "--output", str(tmp_path / "other")])
    assert (tmp_path / "other" / "tokenizer.json").read_text() == "of another model"
    translator = make_model(full_class=CompoundAttentionForTranslation, architecture="attn")
    save_checkpoint(translator, make_tokenizer(), tmp_path / "translator")
    with pytest.raises(SystemExit, match="no fixed representation"):
        main([str(tmp_path / "translator")])
