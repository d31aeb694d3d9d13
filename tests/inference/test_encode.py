"""Encoding a corpus to shards: right rows in the right order, resumed after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

from hf_meanmax import hardware
from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.commands.encode import main
from hf_meanmax.data.corpus import Documents, TextFile
from hf_meanmax.data.opening import open_corpus
from hf_meanmax.inference import embedding_files, encode
from hf_meanmax.inference import encoder as encoder_module
from hf_meanmax.inference.compression import PCA, Compression
from hf_meanmax.inference.embedding_files import (
    COMPRESSION,
    FORMATS,
    count_rows,
    read_embeddings,
    read_manifest,
    read_rows,
    shard_name,
)
from hf_meanmax.inference.encode import EncodeSettings, encode_corpus
from hf_meanmax.inference.encoder import count_tokens, encode_texts, limited_length, load_encoder
from hf_meanmax.inference.fingerprints import weights_fingerprint
from hf_meanmax.progress import progress_bar
from tiny_model import make_model, make_tokenizer, python_environment, random_lines

LINES = random_lines(230)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return save_checkpoint(make_model(), make_tokenizer(), tmp_path_factory.mktemp("encode") / "model")


@pytest.fixture(scope="module")
def model(checkpoint) -> SentenceTransformer:
    return load_encoder(str(checkpoint), device="cpu")


@pytest.fixture(scope="module")
def expected(model) -> np.ndarray:
    """Every line alone: no padding, no order."""
    return np.concatenate([model.encode([line]) for line in LINES])


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


def read(*sources: str | Path) -> np.ndarray:
    return np.concatenate(list(read_embeddings(sources)))


def shard_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("shard-*"))


def run(model, source, output, **settings):
    settings = EncodeSettings(**{"shard_size": 50, **settings})
    return encode_corpus(model, open_corpus(source), output, settings, batch_size=16, show_progress=False)


@pytest.mark.parametrize("format", FORMATS)
def test_a_line_is_a_row(model, expected, text, tmp_path, format):
    manifest = run(model, str(text), tmp_path / "out", format=format)
    assert manifest["shards"] == [50, 50, 50, 50, 30]
    assert manifest["rows"] == len(LINES)
    assert manifest == read_manifest(tmp_path / "out")
    assert "" in LINES
    assert np.allclose(read(tmp_path / "out"), expected, atol=1e-6)
    files = [tmp_path / "out" / shard_name(number, FORMATS[format]) for number in range(5)]
    assert np.array_equal(read(*files), read(tmp_path / "out"))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["manifest.json", *(f.name for f in files)]


def test_boundaries_between_files_are_no_rows(model, expected, text, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("the cat sat\r\n\r\nthe dog ran")
    manifest = run(model, [str(text), str(other), str(text)], tmp_path / "out")
    rows = read(tmp_path / "out")
    assert manifest["rows"] == len(rows) == 2 * len(LINES) + 3
    assert np.allclose(rows[len(LINES) : -len(LINES)], model.encode(["the cat sat", "", "the dog ran"]), atol=1e-6)
    assert np.allclose(rows[-len(LINES) :], expected, atol=1e-6)


def test_data_set_with_a_text_column(model, expected, tmp_path):
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"sentence": LINES})
    corpus = open_corpus(data, text_column="sentence")
    encode_corpus(model, corpus, tmp_path / "out", EncodeSettings(shard_size=100), show_progress=False)
    assert np.allclose(read(tmp_path / "out"), expected, atol=1e-6)


def test_number_formats(checkpoint, expected, text, tmp_path):
    run(load_encoder(str(checkpoint), device="cpu"), str(text), tmp_path / "half", dtype="float16")
    half = read(tmp_path / "half")
    assert half.dtype == np.float16
    assert np.allclose(half, expected, atol=1e-2)
    run(load_encoder(str(checkpoint), device="cpu"), str(text), tmp_path / "bf16", compute_dtype="bfloat16")
    assert read(tmp_path / "bf16").dtype == np.float32
    assert np.allclose(read(tmp_path / "bf16"), expected, atol=0.1)

    model = load_encoder(str(checkpoint), device="cpu")
    assert run(model, str(text), tmp_path / "short", truncate_dim=5)["dimension"] == 5
    assert np.allclose(read(tmp_path / "short"), expected[:, :5], atol=1e-6)
    run(model, str(text), tmp_path / "unit", normalize=True, format="parquet")
    assert np.allclose(read(tmp_path / "unit"), expected / np.linalg.norm(expected, axis=1)[:, None], atol=1e-6)
    with pytest.raises(ValueError, match="truncate_dim is 33, the model's vectors have 32"):
        run(model, str(text), tmp_path / "x", truncate_dim=33)


def test_principal_components(checkpoint, model, expected, text, tmp_path):
    settings = {"truncate_dim": 20, "pca": 6, "normalize": True}
    manifest = run(model, str(text), tmp_path / "out", **settings)
    assert manifest["dimension"] == 6
    pca = PCA.fit(expected[:, :20], 6)
    projected = pca.apply(expected[:, :20])
    units = projected / np.linalg.norm(projected, axis=1)[:, None]
    # A direction's sign is free.
    assert np.allclose(np.abs(read(tmp_path / "out")), np.abs(units), atol=1e-3)
    assert manifest["compression"]["explained_variance_ratio"] == pytest.approx(pca.explained_variance_ratio, abs=1e-4)
    kept = Compression.load(tmp_path / "out" / COMPRESSION)
    assert manifest["compression"]["pca"] == kept.pca.fingerprint()

    # The same projection for another text.
    other = tmp_path / "other.txt"
    other.write_text("\n".join(LINES[:20]) + "\n")
    arguments = ["--truncate-dim", "20", "--normalize", "--pca-file", str(tmp_path / "out" / COMPRESSION)]
    command = [str(checkpoint), str(other), "--output", str(tmp_path / "again"), *arguments]
    main(command)
    assert np.allclose(read(tmp_path / "again"), read(tmp_path / "out")[:20], atol=1e-5)
    assert read_manifest(tmp_path / "again")["given_pca"] == kept.pca.fingerprint()
    for options, said in (
        ([*arguments, "--pca", "5"], "holds a PCA of 6 components, 5 are asked for"),
        (arguments[2:], "The PCA goes from 20 to 6 numbers; this encoding needs one from 32 to 6"),
        ([*arguments[:3], "--pca", "6"], "other settings|another PCA"),
    ):
        with pytest.raises(SystemExit, match=said):
            main([*command[:4], *options])
    with pytest.raises(FileExistsError, match="holds an encoding of another PCA"):
        run(model, str(other), tmp_path / "again", shard_size=16384, **settings)
    few = tmp_path / "few.txt"
    few.write_text("\n".join(LINES[:4]) + "\n")
    with pytest.raises(ValueError, match="A PCA of 6 components needs as many rows, got 4"):
        run(model, str(few), tmp_path / "few", pca=6)
    # Nothing was encoded, so nothing is left and stands in the way of what the message asks for.
    assert not (tmp_path / "few").exists()
    assert run(model, str(few), tmp_path / "few", pca=3)["dimension"] == 3
    with pytest.raises(ValueError, match="pca is 21, the vectors that it would be fitted to have 20 numbers"):
        run(model, str(text), tmp_path / "x", truncate_dim=20, pca=21)
    with pytest.raises(ValueError, match="pca is 21, fitted on fit_rows = 20 rows"):
        EncodeSettings(pca=21, fit_rows=20)


@pytest.mark.parametrize("format", FORMATS)
def test_int8(model, expected, text, tmp_path, format):
    output = tmp_path / "out"
    run(model, str(text), output, dtype="int8", format=format, fit_rows=120)
    with pytest.raises(ValueError, match="encoded with --dtype int8; its numbers are steps of the ranges"):
        read(output)
    rows = np.concatenate(list(read_embeddings([output], 7, dequantize=True)))
    ranges = Compression.load(output / COMPRESSION).ranges
    step = (ranges[1] - ranges[0]) / 255
    inside = (expected >= ranges[0]) & (expected <= ranges[1])
    assert inside.mean() > 0.95
    assert (np.abs(rows - expected)[inside] <= np.broadcast_to(step, rows.shape)[inside] * 0.51 + 1e-6).all()
    assert count_rows([output]) == (230, 32)
    # Five files, with their headers.
    assert shard_bytes(output) < 230 * 32 * 4 / 1.9


def test_what_was_fitted_is_found_again(model, text, tmp_path, monkeypatch):
    settings = {"pca": 4, "dtype": "int8", "fit_rows": 100}
    whole, output = tmp_path / "whole", tmp_path / "out"
    run(model, str(text), whole, **settings)

    original = encode.write_shard

    def killed(path, embeddings):
        if path.name == shard_name(2, ".npy"):
            raise KeyboardInterrupt
        original(path, embeddings)

    monkeypatch.setattr(encode, "write_shard", killed)
    with pytest.raises(KeyboardInterrupt):
        run(model, str(text), output, **settings)
    monkeypatch.undo()
    assert (output / COMPRESSION).read_bytes() == (whole / COMPRESSION).read_bytes()
    before = (output / COMPRESSION).stat().st_mtime_ns
    run(model, str(text), output, **settings)
    assert (output / COMPRESSION).stat().st_mtime_ns == before
    for path in whole.iterdir():
        assert (output / path.name).read_bytes() == path.read_bytes(), path.name


def test_lines_are_drawn_from_the_whole_corpus():
    drawn = encode.draw_lines((str(number) for number in range(10_000)), 100)
    assert drawn == sorted(set(drawn), key=int)
    assert 4000 < np.mean([int(line) for line in drawn]) < 6000
    assert drawn == encode.draw_lines((str(number) for number in range(10_000)), 100)
    assert encode.draw_lines(["a", "b"], 100) == ["a", "b"]


@pytest.mark.parametrize("format", FORMATS)
def test_rows_are_counted(model, text, tmp_path, format):
    run(model, str(text), tmp_path / "out", format=format)
    file = tmp_path / "out" / shard_name(1, FORMATS[format])
    assert count_rows([file, file]) == (100, 32)


@pytest.mark.parametrize("array", [np.float32(1), np.ones(3, np.float32), np.ones((2, 3, 4), np.float32)])
def test_what_is_no_matrix_is_named(tmp_path, array):
    np.save(tmp_path / "vectors.npy", array)
    reads = (
        lambda: read_rows(tmp_path / "vectors.npy", np.array([0])),
        lambda: list(read_embeddings(tmp_path / "vectors.npy", start=1)),
        lambda: count_rows([tmp_path / "vectors.npy"]),
    )
    for read_one in reads:
        with pytest.raises(ValueError, match=r"vectors.npy: .* expected a matrix"):
            read_one()


def test_length_limit_is_counted(checkpoint, text, tmp_path, capsys):
    model = load_encoder(str(checkpoint), device="cpu")
    run(model, str(text), tmp_path / "out", max_length=6)
    long = sum(len(line.split()) > 5 for line in LINES)
    assert f"The limit of 6 tokens cut {long} texts" in capsys.readouterr().err
    cut = [" ".join(line.split()[:5]) for line in LINES]
    assert np.allclose(read(tmp_path / "out"), model.encode(cut), atol=1e-6)
    # As many after an interruption, whose shards are not encoded again.
    run(model, str(text), tmp_path / "parts", max_length=6, shard_size=3)
    (tmp_path / "parts" / "shard-000001.npy").unlink()
    manifest = tmp_path / "parts" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "complete": False}))
    capsys.readouterr()
    run(model, str(text), tmp_path / "parts", max_length=6, shard_size=3)
    assert f"The limit of 6 tokens cut {long} texts" in capsys.readouterr().err


def test_empty_texts_are_counted(model, text, tmp_path, capsys):
    encode_corpus(model, open_corpus(text), tmp_path / "out", EncodeSettings())
    empty = sum(not line.strip() for line in LINES)
    assert f"{empty} of {len(LINES)} texts are empty." in capsys.readouterr().err


def test_long_texts_share_a_batch_with_fewer(checkpoint, monkeypatch):
    model = load_encoder(str(checkpoint), device="cpu")
    texts = [
        "the cat",
        " ".join(["a dog"] * 128),
        "",
        " ".join(["red"] * 2100),
        " ".join(["mat ran"] * 127),
        "old " * 300,
    ]
    expected = np.concatenate([model.encode([text]) for text in texts])
    calls = []
    original = model.encode

    def encoded(texts, batch_size, **options):
        calls.append((len(texts), batch_size))
        return original(texts, batch_size=batch_size, **options)

    monkeypatch.setattr(model, "encode", encoded)
    # 2,101 tokens; 257 and 301; 255 with the end token, and less.
    assert np.allclose(encode_texts(model, texts, 16), expected, atol=1e-6)
    # A model of ours groups the texts of a call itself, so that calls hold four times as many.
    assert calls == [(1, 4), (2, 32), (3, 64)]
    calls.clear()
    assert np.allclose(encode_texts(model, texts, 1), expected, atol=1e-6)
    assert calls == [(1, 1), (2, 2), (3, 4)]
    calls.clear()
    assert encode_texts(model, texts[:1] * 3, 2).shape == (3, 32)
    assert len(encode_texts(model, [], 2)) == 0
    assert calls == [(3, 8), (0, 1)]
    calls.clear()
    model.max_seq_length = 300
    encode_texts(model, texts, 16)
    assert calls == [(3, 32), (3, 64)]


def test_finished_shards_are_kept(model, text, tmp_path, monkeypatch):
    output = tmp_path / "out"
    run(model, str(text), output)
    whole = read(output)
    shards = sorted(output.glob("shard-*"))
    shards[1].unlink()
    shards[3].write_bytes(shards[3].read_bytes()[:500])
    (output / ".shard-000001.npy.partial-1").write_bytes(b"half")
    (output / ".manifest.json.partial-1").write_bytes(b"half")
    (output / "manifest.json").write_text(json.dumps({**read_manifest(output), "complete": False}))
    with pytest.raises(ValueError, match="not finished; give its command again"):
        read(output)

    encoded = []
    original = model.encode
    monkeypatch.setattr(model, "encode", lambda texts, **kwargs: encoded.append(texts) or original(texts, **kwargs))
    run(model, str(text), output)
    assert encoded == [LINES[50:100], LINES[150:200]]
    assert np.array_equal(read(output), whole)
    assert not list(output.glob(".*"))


def test_another_input_or_model_is_refused(model, text, tmp_path):
    output = tmp_path / "out"
    run(model, str(text), output)
    whole = read(output)
    with pytest.raises(
        FileExistsError, match=r"other settings \(normalize: False there, True now\). Name another folder"
    ):
        run(model, str(text), output, normalize=True)
    other = save_checkpoint(make_model(seed=1), make_tokenizer(), tmp_path / "model")
    with pytest.raises(FileExistsError, match="another model"):
        run(load_encoder(str(other), device="cpu"), str(text), output)
    os.utime(text, (1, 1))
    with pytest.raises(FileExistsError, match="another text, or the same file changed since"):
        run(model, str(text), output)
    with pytest.raises(FileExistsError, match="holds no encoded corpus"):
        run(model, str(text), tmp_path)
    assert np.array_equal(read(output), whole)


def test_another_default_prompt_is_another_model(model, text, tmp_path, monkeypatch):
    """Not only other prompts: which of them is used."""
    monkeypatch.setattr(model, "prompts", {"query": "the "})
    monkeypatch.setattr(model, "default_prompt_name", "query")
    run(model, str(text), tmp_path / "out")
    monkeypatch.setattr(model, "default_prompt_name", None)
    with pytest.raises(FileExistsError, match="another model"):
        run(model, str(text), tmp_path / "out")


class Watched(Documents):
    """A corpus that notes how many of its lines are read while nothing has been encoded of them."""

    ahead = most = 0

    def fingerprint(self):
        return "watched"

    def __iter__(self):
        for line in super().__iter__():
            self.ahead += 1
            self.most = max(self.most, self.ahead)
            yield line


def test_the_bar_moves_within_a_shard(model, text, tmp_path, monkeypatch):
    bars, places = [], []

    def recording(**options):
        bar = progress_bar(**options)
        monkeypatch.setattr(bar, "update", lambda by: (type(bar).update(bar, by), places.append(bar.n)))
        bars.append(bar)
        return bar

    monkeypatch.setattr(encode, "progress_bar", recording)
    encode_corpus(model, open_corpus(text), tmp_path / "out", EncodeSettings(shard_size=100), batch_size=4)
    assert len(places) > 3 * 5  # of three shards, in calls of 16 texts
    assert places == sorted(places)
    assert places[-1] == bars[0].total == text.stat().st_size


def test_memory_holds_one_shard(model, tmp_path, monkeypatch):
    corpus = Watched([LINES[:200]])
    original = model.encode

    def encoded(texts, **kwargs):
        corpus.ahead -= len(texts)
        return original(texts, **kwargs)

    monkeypatch.setattr(model, "encode", encoded)
    encode_corpus(model, corpus, tmp_path / "out", EncodeSettings(shard_size=10), show_progress=False)
    assert corpus.most == 10


def test_bad_vectors_and_bad_text(checkpoint, text, tmp_path):
    model = load_encoder(str(checkpoint), device="cpu")
    with torch.no_grad():
        model[0].model.embeddings.word_embeddings.weight[13] = float("nan")  # "old"
    first = next(number for number, line in enumerate(LINES, start=1) if "old" in line)
    with pytest.raises(ValueError, match=rf"embedding of line {first} is not finite"):
        run(model, str(text), tmp_path / "out")
    assert not (tmp_path / "out").exists()

    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"the cat\n" * 60 + b"caf\xe9\n")
    model = load_encoder(str(checkpoint), device="cpu")
    with pytest.raises(UnicodeDecodeError, match=r"bad.txt, line 61.*--encoding_errors replace"):
        run(model, str(bad), tmp_path / "bad")
    corpus = TextFile(bad, encoding_errors="replace")
    settings = EncodeSettings(shard_size=50)
    assert encode_corpus(model, corpus, tmp_path / "replaced", settings, show_progress=False)["rows"] == 61


def test_empty_corpus(model, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    assert run(model, str(tmp_path / "empty.txt"), tmp_path / "out")["rows"] == 0
    assert list(read_embeddings([tmp_path / "out"])) == []
    with pytest.raises(ValueError, match="found no vector"):
        count_rows([tmp_path / "out"])
    with pytest.raises(ValueError, match="The corpus is empty; a PCA and the ranges"):
        run(model, str(tmp_path / "empty.txt"), tmp_path / "int8", dtype="int8")


def test_fingerprint_is_of_the_weights(model):
    assert weights_fingerprint(model) == weights_fingerprint(make_model().encoder)
    assert weights_fingerprint(model) != weights_fingerprint(make_model(seed=1).encoder)


def test_models_that_cannot_encode(checkpoint, tmp_path):
    with pytest.raises(FileNotFoundError, match="No checkpoint folder"):
        load_encoder(str(tmp_path / "none"))
    bare = tmp_path / "bare"
    make_model().save_pretrained(bare)
    make_tokenizer().save_pretrained(bare)
    assert load_encoder(str(bare)).get_embedding_dimension() == 32
    # As other tools or older versions save one.
    (bare / "modules.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"modules\.json is missing"):
        load_encoder(str(bare))
    (bare / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(FileNotFoundError, match=r"has no modules\.json"):
        load_encoder(str(bare))
    (bare / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"is no model's folder: it has neither config\.json nor modules\.json"):
        load_encoder(str(bare))


def test_any_sentence_transformer(tmp_path, text):
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    other = SentenceTransformer(modules=[StaticEmbedding(make_tokenizer().backend_tokenizer, embedding_dim=7)])
    other.save_pretrained(str(tmp_path / "static"))
    main([str(tmp_path / "static"), str(text), "--output", str(tmp_path / "out"), "--shard-size", "50"])
    assert np.allclose(read(tmp_path / "out"), other.encode(LINES), atol=1e-6)


class FirstFive(torch.nn.Module):
    """A module that shortens vectors and does not say so."""

    def forward(self, features, **kwargs):
        features["sentence_embedding"] = features["sentence_embedding"][:, :5]
        return features


def test_a_dimension_is_what_the_vectors_have(model, text, tmp_path, monkeypatch):
    short = SentenceTransformer(modules=[*model, FirstFive()], device="cpu")
    assert short.get_embedding_dimension() == 32
    assert run(short, str(text), tmp_path / "out")["dimension"] == 5
    monkeypatch.setattr(encode, "embed_texts", None)  # all shards are found whole
    assert run(short, str(text), tmp_path / "out")["rows"] == len(LINES)
    with pytest.raises(ValueError, match="truncate_dim is 6, the model's vectors have 5 numbers"):
        run(short, str(text), tmp_path / "cut", truncate_dim=6)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--bach-size", "3"], "unknown option --bach-size. Did you mean --batch-size?"),
        (["--batch", "3"], "unknown option --batch. Did you mean --batch"),
        (["--batch-size", "0"], "`batch_size` is 0; it must be 1 or more"),
        (["--format", "csv"], "invalid choice: 'csv'"),
        (["--dtype=int4"], "invalid choice: 'int4'"),
        (["--truncate", "3"], "unknown option --truncate. Did you mean --truncate_dim?"),
    ],
    ids=str,
)
def test_misspelt_options(capsys, option, said):
    with pytest.raises(SystemExit) as ended:
        main(["model", "text", "--output", "out", *option])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_errors_are_one_line(checkpoint, tmp_path):
    for command in (
        [str(tmp_path / "none"), __file__],
        [str(checkpoint), str(tmp_path / "none.txt")],
        [str(checkpoint), str(tmp_path)],
    ):
        with pytest.raises(SystemExit) as ended:
            main([*command, "--output", str(tmp_path / "out")])
        assert str(ended.value).startswith("hf-meanmax encode: ")
        assert "\n" not in str(ended.value)


def test_resumes_after_a_kill(checkpoint, tmp_path):
    """SIGKILL while shards are being written; the same command then keeps what is there and makes the rest."""
    lines = random_lines(10_000, seed=1)
    (tmp_path / "text.txt").write_text("\n".join(lines))
    output = tmp_path / "out"
    arguments = [str(checkpoint), str(tmp_path / "text.txt"), "--output", str(output), "--shard-size", "50"]
    arguments += ["--compute-dtype", "float32"]
    code = f"import sys, hf_meanmax.commands.encode as e; assert 'datasets' not in sys.modules; e.main({arguments!r})"
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(command, env=python_environment(), stderr=subprocess.PIPE, text=True)
    while len(list(output.glob("shard-*"))) < 5 and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode == -signal.SIGKILL, errors
    kept = {path: path.stat().st_mtime_ns for path in output.glob("shard-*")}
    assert 5 <= len(kept) < 200
    assert not read_manifest(output)["complete"]

    main(arguments)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert read_manifest(output)["shards"] == [50] * 200
    model = load_encoder(str(checkpoint), device="cpu")
    assert np.allclose(read(output), model.encode(lines, batch_size=256), atol=1e-5)


@pytest.mark.parametrize(("is_fast", "precision"), [(True, "bfloat16"), (False, "float32")])
def test_the_fast_precision_is_taken_and_on_record(
    checkpoint, expected, text, tmp_path, monkeypatch, is_fast, precision
):
    monkeypatch.setattr(hardware, "is_bf16_fast", lambda device: is_fast)
    main([str(checkpoint), str(text), "--output", str(tmp_path / "out")])
    assert read_manifest(tmp_path / "out")["settings"]["compute_dtype"] == precision
    error = np.linalg.norm(read(tmp_path / "out") - expected) / np.linalg.norm(expected)
    assert (error > 1e-5) == is_fast
    assert error < 0.02


def test_a_lower_precision_leaves_the_model_as_it_was(model, text, tmp_path):
    before = weights_fingerprint(model)
    settings = EncodeSettings(compute_dtype="bfloat16")
    for _ in range(2):
        encode_corpus(model, open_corpus(text), tmp_path / "out", settings, show_progress=False)
    assert weights_fingerprint(model) == before


def test_normalised_vectors_have_length_one_in_any_precision(model, text, tmp_path):
    settings = EncodeSettings(normalize=True, compute_dtype="bfloat16")
    own = load_encoder(str(model[0].auto_model.config._name_or_path), device="cpu")
    encode_corpus(own, open_corpus(text), tmp_path / "out", settings, show_progress=False)
    assert np.abs(np.linalg.norm(read(tmp_path / "out"), axis=1) - 1).max() < 1e-6


SMALL = {
    "vocab_size": 10, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
    "max_position_embeddings": 32,
}  # fmt: skip


def test_a_length_limit_beyond_the_positions_of_a_model(model):
    own = model.max_seq_length
    with limited_length(model, 100_000):
        assert model.max_seq_length == 100_000
    assert model.max_seq_length == own
    for other, most in ((BertModel(BertConfig(**SMALL)), 32), (RobertaModel(RobertaConfig(**SMALL)), 30)):
        other(torch.full((1, most), 5))
        foreign = FakeTransformer([SimpleNamespace(auto_model=other)])
        with limited_length(foreign, most):
            assert foreign.max_seq_length == most
        said = f"length limit is {most + 1} tokens, but the model has positions for {most}"
        with pytest.raises(ValueError, match=said), limited_length(foreign, most + 1):
            pass


def test_long_texts_are_counted_in_parts(model, monkeypatch):
    texts = ["the cat sat " * number for number in range(1, 8)]
    whole = count_tokens(model, texts)
    monkeypatch.setattr(encoder_module, "_COUNTED_TEXTS", 2)
    assert count_tokens(model, texts) == whole == [3 * number + 1 for number in range(1, 8)]


def test_a_length_limit_ends_with_its_encoding(model, text, tmp_path):
    for name, settings in (("before", None), ("cut", EncodeSettings(max_length=2)), ("after", None)):
        encode_corpus(model, open_corpus(text), tmp_path / name, settings, show_progress=False)
    assert np.array_equal(read(tmp_path / "after"), read(tmp_path / "before"))
    assert not np.allclose(read(tmp_path / "cut"), read(tmp_path / "before"))
    with pytest.raises(TypeError, match=r"corpus is a PosixPath; give what `hf_meanmax.data.open_corpus` makes"):
        encode_corpus(model, text, tmp_path / "path")


class FakeTransformer(list):
    """Modules with a length limit."""


def test_a_text_that_changes_meanwhile_is_refused(model, tmp_path, monkeypatch):
    path = tmp_path / "text.txt"
    path.write_text("a cat sat\n" * 6)

    def writing(place, embeddings):
        path.write_text("the dog ran on\n" * 6)
        return embedding_files.write_shard(place, embeddings)

    monkeypatch.setattr(encode, "write_shard", writing)
    with pytest.raises(ValueError, match="The text changed while it was read"):
        run(model, path, tmp_path / "out", shard_size=2)
    assert not read_manifest(tmp_path / "out")["complete"]


def test_a_pca_of_one_row_is_refused_and_binds_nobody(model, tmp_path):
    (tmp_path / "one.txt").write_text("a cat sat\n")
    (tmp_path / "two.txt").write_text("a cat sat\nthe dog ran\n")
    with pytest.raises(ValueError, match="A PCA needs 2 rows or more, got 1"):
        run(model, tmp_path / "one.txt", tmp_path / "out", pca=1)
    run(model, tmp_path / "two.txt", tmp_path / "out", pca=1)
