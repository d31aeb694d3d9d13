"""Embeddings back to text: from every kind of file, streaming, and refused where nothing true could come back."""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from safetensors.torch import save_file

from hf_meanmax import CompoundAttentionForTranslation, RNNCNNForContextPrediction, hardware
from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.commands.decode import main
from hf_meanmax.data.corpus import Documents
from hf_meanmax.inference.decodable import refuse_scaled
from hf_meanmax.inference.decode import decode_embeddings, decode_sources, decode_vectors
from hf_meanmax.inference.embedding_files import read_embeddings
from hf_meanmax.inference.encode import EncodeSettings, encode_corpus
from hf_meanmax.inference.encoder import load_encoder
from hf_meanmax.inference.sources import SourceOptions, open_sources
from tiny_model import make_model, make_tokenizer, random_lines

LINES = random_lines(37)
BOUND = {"max_new_tokens": 8}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return save_checkpoint(make_model(), make_tokenizer(), tmp_path_factory.mktemp("decode") / "model")


@pytest.fixture(scope="module")
def said() -> list[str]:
    """What the model says of each line alone."""
    model, tokenizer = make_model(), make_tokenizer()
    tokens = [model.generate(**tokenizer([line], return_tensors="pt"), **BOUND)[0] for line in LINES]
    return tokenizer.batch_decode(tokens, skip_special_tokens=True)


@pytest.fixture(scope="module")
def encoded(checkpoint, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("decode") / "out"
    corpus = Documents([LINES])
    # A document ends with a boundary, which is a row of its own here.
    encode_corpus(load_encoder(str(checkpoint), device="cpu"), corpus, output, EncodeSettings(shard_size=10))
    return output


def vectors(encoded: Path) -> np.ndarray:
    return np.concatenate(list(read_embeddings([encoded])))[: len(LINES)]


def decoded(*sources, **kwargs) -> list[str]:
    return list(decode_embeddings(make_model(), make_tokenizer(), sources, **{**BOUND, **kwargs}))


def test_the_text_of_each_row(encoded, said):
    assert decoded(encoded, batch_size=4)[: len(LINES)] == said
    assert len(set(said)) > 5
    # One source may stand alone, and vectors may be lists.
    given = make_model(), make_tokenizer()
    assert list(decode_embeddings(*given, str(encoded), **BOUND))[: len(LINES)] == said
    assert decode_vectors(*given, vectors(encoded)[:3].tolist(), **BOUND) == said[:3]
    assert decode_vectors(*given, vectors(encoded)[0], **BOUND) == said[:1]
    assert decode_vectors(*given, [], **BOUND) == []
    with pytest.raises(ValueError, match="batch_size is 0; it must be 1 or more"):
        list(decode_embeddings(*given, encoded, batch_size=0))


def test_every_kind_of_file(encoded, said, tmp_path):
    rows = vectors(encoded)
    np.save(tmp_path / "a.npy", rows)
    np.save(tmp_path / "big-endian.npy", rows.astype(">f4"))
    np.save(tmp_path / "columns.npy", np.asfortranarray(rows))
    save_file(
        {"vectors": torch.from_numpy(rows).bfloat16(), "embeddings": torch.from_numpy(rows)}, tmp_path / "b.safetensors"
    )
    save_file({"only": torch.from_numpy(rows)}, tmp_path / "c.safetensors")
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), 32)
    variable = pa.array(rows.tolist(), type=pa.list_(pa.float64()))
    pa.parquet.write_table(pa.table({"id": list(range(37)), "z": fixed}), tmp_path / "d.parquet")
    pa.parquet.write_table(pa.table({"embeddings": variable, "z": fixed}), tmp_path / "e.parquet", row_group_size=5)
    for name in (
        "a.npy", "big-endian.npy", "columns.npy", "b.safetensors", "c.safetensors", "d.parquet", "e.parquet",
    ):  # fmt: skip
        assert decoded(tmp_path / name, batch_size=8) == said, name
    assert decoded(tmp_path / "a.npy", tmp_path / "e.parquet", vector_column=None) == said + said
    for name in "big-endian.npy", "columns.npy":
        (batch,) = read_embeddings([tmp_path / name])
        assert batch.dtype == np.float32
        assert batch.dtype.isnative
        assert batch.flags.c_contiguous
    files = [tmp_path / name for name in ("a.npy", "c.safetensors", "e.parquet")]
    whole = list(read_embeddings(files, 8))
    for start in (0, 5, 8, 36, 37, 40, 74, 80, 110, 111):
        found = list(read_embeddings(files, 8, start=start))
        np.testing.assert_array_equal(np.concatenate([rows[:0], *found]), np.concatenate(whole)[start:])
        # The same batches, but for the first.
        assert [len(batch) for batch in found[1:]] == [len(batch) for batch in whole][len(whole) - len(found) + 1 :]
    near = next(iter(read_embeddings([tmp_path / "b.safetensors"], vector_column="vectors")))
    assert near.dtype == np.float32


def test_batches_and_beams_agree_with_generate(encoded, checkpoint):
    model, tokenizer = make_model(), make_tokenizer()
    tokens = model.generate(sentence_embedding=torch.from_numpy(vectors(encoded)), num_beams=3, **BOUND)
    assert decoded(encoded, num_beams=3)[: len(LINES)] == tokenizer.batch_decode(tokens, skip_special_tokens=True)


def test_it_streams(encoded):
    model, asked = make_model(), []
    original = model.generate
    model.generate = lambda **kwargs: asked.append(len(kwargs["sentence_embedding"])) or original(**kwargs)
    texts = decode_embeddings(model, make_tokenizer(), [encoded], batch_size=4, **BOUND)
    next(texts)
    assert asked == [4]


def test_a_model_with_rows_of_unit_length_reads_normalised_vectors(tmp_path):
    model, tokenizer = make_model(latent_normalization="rows"), make_tokenizer()
    encoder = load_encoder(str(save_checkpoint(model, tokenizer, tmp_path / "model")), device="cpu")
    texts = []
    for normalize in (False, True):
        settings = EncodeSettings(normalize=normalize)
        encode_corpus(encoder, Documents([LINES]), tmp_path / str(normalize), settings)
        texts.append(list(decode_embeddings(model, tokenizer, [tmp_path / str(normalize)], **BOUND)))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("normalize", ["rows", "embedding"])
def test_vectors_that_a_folder_normalises_are_refused(normalize, tmp_path):
    """Their manifest says nothing of it, and a file has none."""
    model, tokenizer = make_model(), make_tokenizer()
    folder = save_checkpoint(model, tokenizer, tmp_path / "model", normalize=normalize)
    encoder = load_encoder(str(folder), device="cpu")
    encode_corpus(encoder, Documents([LINES]), tmp_path / "vectors")
    np.save(tmp_path / "v.npy", encoder.encode(LINES[:1]))
    for source in ("vectors", "v.npy"):
        with pytest.raises(ValueError, match=r"of unit length, so they were normalised; this model decodes raw"):
            list(decode_embeddings(model, tokenizer, [tmp_path / source], **BOUND))


def test_normalised_vectors_among_zeros_are_refused():
    model, rows = make_model(), np.random.default_rng(0).standard_normal((30, 2 * make_model().config.hidden_size))
    refuse_scaled(rows, model.config)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[3] = 0
    with pytest.raises(ValueError, match="of unit length, so they were normalised"):
        refuse_scaled(rows, model.config)
    refuse_scaled(np.zeros((2, rows.shape[1])), model.config)


def test_texts_that_had_not_ended_are_counted(checkpoint, encoded, capsys):
    """The bound is the checkpoint's own, and what it cuts is told once."""
    rows = torch.from_numpy(np.concatenate(list(read_embeddings([encoded]))))
    for options, settings in (
        ([], {"max_new_tokens": 8}),
        (["--max-length", "5"], {"max_new_tokens": 5}),
        (["--num-beams", "2"], {"max_new_tokens": 8, "num_beams": 2}),
    ):
        tokens = make_model().generate(sentence_embedding=rows, **settings)
        cut = int((tokens != 3).all(dim=1).sum())
        assert 0 < cut < len(rows)
        main([str(checkpoint), str(encoded), "--batch-size", "4", *options])
        error = capsys.readouterr().err
        assert error.count("Cut after") == 1
        assert f"Cut after {settings['max_new_tokens']} tokens, before their end: {cut} text" in error


def test_after_an_interruption_the_count_is_of_the_rest(encoded, capsys):
    sources = open_sources([str(encoded)], SourceOptions())
    start = sum(source.rows for source in sources) - 3
    assert len(list(decode_sources(make_model(), make_tokenizer(), sources, 4, start, max_new_tokens=5))) == 1
    assert " of the 3 decoded since the interruption." in capsys.readouterr().err


def test_paragraphs_come_back_whole(tmp_path, capsys):
    """A bound of more than 256 tokens goes with the checkpoint."""
    model = make_model()
    with torch.no_grad():
        model.lm_head.bias[:4] = -1e4  # it never stops by itself
    model.generation_config.max_new_tokens = 300
    folder = save_checkpoint(model, make_tokenizer(), tmp_path / "model")
    encode_corpus(load_encoder(str(folder), device="cpu"), Documents([["the cat " * 150]]), tmp_path / "out")
    capsys.readouterr()
    main([str(folder), str(tmp_path / "out")])
    captured = capsys.readouterr()
    assert [len(line.split()) for line in captured.out.splitlines()] == [300, 300]
    assert "Cut after 300 tokens, before their end: 2 texts." in captured.err


def test_vectors_that_cannot_be_decoded(encoded, checkpoint, tmp_path):
    rows = vectors(encoded)
    for name, array, reason in (
        ("short.npy", rows[:, :20], "short.npy holds vectors of 20 numbers; the model decodes 32"),
        ("nan.npy", np.where(np.arange(32) == 3, np.nan, rows), "Row 1: .*NaN"),
    ):
        np.save(tmp_path / name, array.astype(np.float32))
        with pytest.raises(ValueError, match=reason):
            decoded(tmp_path / name)

    corpus = Documents([LINES])
    for option, settings in (
        ("--normalize", {"normalize": True}),
        ("--truncate_dim", {"truncate_dim": 4}),
        ("--pca", {"pca": 4}),
        ("--dtype int8", {"dtype": "int8"}),
    ):
        output = tmp_path / option
        encode_corpus(load_encoder(str(checkpoint), device="cpu"), corpus, output, EncodeSettings(**settings))
        with pytest.raises(ValueError, match=f"was encoded with {option}; only raw vectors"):
            decoded(output)
    with pytest.raises(ValueError, match="was encoded by another model"):
        list(decode_embeddings(make_model(seed=1), make_tokenizer(), [encoded]))


def test_files_that_hold_no_embeddings(encoded, tmp_path):
    np.save(tmp_path / "words.npy", np.array(["a", "b"]))
    np.save(tmp_path / "object.npy", np.array([{}, 1], dtype=object), allow_pickle=True)
    (tmp_path / "cut.npy").write_bytes((encoded / "shard-000000.npy").read_bytes()[:300])
    save_file({"a": torch.zeros(2, 2), "b": torch.zeros(2, 2)}, tmp_path / "two.safetensors")
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "two.safetensors").read_bytes()[:60])
    pa.parquet.write_table(pa.table({"id": [1, 2]}), tmp_path / "id.parquet")
    pa.parquet.write_table(pa.table({"z": [[1.0], [1.0, 2.0]]}), tmp_path / "ragged.parquet")
    for name, reason in (
        ("words.npy", "expected a matrix of floating-point numbers"),
        ("object.npy", "Python objects"),
        ("cut.npy", ""),
        ("two.safetensors", "no tensor 'embeddings'; name one of a, b"),
        ("cut.safetensors", ""),
        ("id.parquet", "no list column"),
        ("ragged.parquet", "not vectors of one size"),
    ):
        with pytest.raises(ValueError, match=f"{name}: no embeddings can be read from it.*{reason}"):
            list(read_embeddings([tmp_path / name]))
    with pytest.raises(FileNotFoundError, match="No such file or folder"):
        list(read_embeddings([tmp_path / "none.npy"]))
    (tmp_path / "text.txt").write_text("")
    with pytest.raises(ValueError, match=r"read from \.npy, \.safetensors, \.parquet"):
        list(read_embeddings([tmp_path / "text.txt"]))
    with pytest.raises(ValueError, match="holds no encoded corpus"):
        list(read_embeddings([tmp_path]))
    (tmp_path / "manifest.json").write_text(json.dumps({"format_version": 99}))
    with pytest.raises(ValueError, match="has format 99, expected 2"):
        list(read_embeddings([tmp_path]))


def test_command_line(checkpoint, encoded, said, tmp_path, capsys, monkeypatch):
    command = [str(checkpoint), str(encoded), "--max-length", "8", "--batch-size", "16"]
    main([*command, "--output", str(tmp_path / "said.txt")])
    assert (tmp_path / "said.txt").read_text().splitlines()[: len(LINES)] == said
    capsys.readouterr()
    main(command)
    assert capsys.readouterr().out.splitlines()[: len(LINES)] == said

    np.save(tmp_path / "bad.npy", np.concatenate([vectors(encoded), np.zeros((1, 32), np.float32) + np.nan]))
    with pytest.raises(SystemExit) as ended:
        main([str(checkpoint), str(tmp_path / "bad.npy"), "--batch-size", "10", "--output", str(tmp_path / "x")])
    assert str(ended.value).startswith("hf-meanmax decode: Row 38: ")
    assert not (tmp_path / "x").exists()

    def unreachable(name, **options):
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(SystemExit) as ended:
        main(["user/none", str(encoded)])
    assert str(ended.value).startswith("hf-meanmax decode: No model 'user/none'")
    with pytest.raises(SystemExit):
        main([*command, "--num-beam", "2"])
    assert "Did you mean --num-beams?" in capsys.readouterr().err


@pytest.mark.parametrize(("is_fast", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_the_fast_precision_is_taken(checkpoint, encoded, tmp_path, monkeypatch, is_fast, dtype):
    """And vectors of the model in float32 are known as its own."""
    monkeypatch.setattr(hardware, "is_bf16_fast", lambda device: is_fast)
    main([str(checkpoint), str(encoded), "--max_length", "8", "--output", str(tmp_path / "said.txt")])
    assert (tmp_path / "said.txt").read_text().splitlines() == decoded(encoded, dtype=dtype)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ({"decoder_type": "none"}, "has no decoder: it gives vectors alone.* pretrain embedding-decoder"),
        ({"full_class": RNNCNNForContextPrediction}, r"predicts words and generates no text\."),
        ({"full_class": CompoundAttentionForTranslation, "architecture": "attn"}, "decodes no vectors: `pooling` is"),
    ],
)
def test_a_model_that_decodes_no_vectors_is_told_before_they_are_read(tmp_path, made, reason):
    save_checkpoint(make_model(**made), make_tokenizer(), tmp_path / "model")
    np.save(tmp_path / "vectors.npy", np.ones((2, 3), dtype=np.float32))
    with pytest.raises(SystemExit, match=reason):
        main([str(tmp_path / "model"), str(tmp_path / "vectors.npy")])
