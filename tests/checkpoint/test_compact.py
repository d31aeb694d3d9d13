"""Checkpoints whose matrices are stored in int8 or float16: near what they were, and loaded by all that loads them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

from hf_meanmax import (
    EmbeddingDecoderForGeneration,
    MeanMaxAAEForReconstruction,
    MeanMaxAAEModel,
    RNNCNNForContextPrediction,
)
from hf_meanmax.checkpoint.card import write_model_card
from hf_meanmax.checkpoint.compact import MOST_LOST, compact_checkpoint, quantize_rows, store_tensors
from hf_meanmax.checkpoint.folder import check_checkpoint, load_checkpoint, save_checkpoint
from hf_meanmax.commands.export import main
from hf_meanmax.modeling.storage import restore_rows, stored_names
from tiny_model import make_model, make_tokenizer, random_lines, run_python

TEXTS = random_lines(40, seed=1) + ["unheard words", "the"]
TABLE = "encoder.embeddings.word_embeddings.weight"
# As large as the vectors are needed for a mean of roundings.
SIZES = {"embedding_size": 64, "hidden_size": 64, "intermediate_size": 64, "initializer_range": 0.7}
SYSTEMS = {
    "mean_max": (MeanMaxAAEForReconstruction, {}),
    "tied": (MeanMaxAAEForReconstruction, {"tie_word_embeddings": True}),
    "frozen": (MeanMaxAAEForReconstruction, {"freeze_word_embeddings": True, "weighted_mean_row": True}),
    "static": (
        MeanMaxAAEForReconstruction, {"encoder_type": "none", "pooling": "weighted_mean", "decoder_type": "none"},
    ),
    "bilstm": (MeanMaxAAEForReconstruction, {"encoder_type": "bilstm"}),
    "rnn_cnn": (RNNCNNForContextPrediction, {"decoder_channels": [8, 64]}),
}  # fmt: skip


def saved(folder: Path, name: str = "mean_max") -> Path:
    full_class, settings = SYSTEMS[name]
    model = make_model(full_class=full_class, **{**SIZES, **settings})
    return save_checkpoint(model, make_tokenizer(), folder / "model", training_args={"seed": 3})


def encode(folder: Path) -> np.ndarray:
    return SentenceTransformer(str(folder), device="cpu").encode(TEXTS)


def test_the_index_of_shards_is_that_of_the_copy(tmp_path):
    folder = saved(tmp_path)
    load_checkpoint(folder)[0].save_pretrained(folder, max_shard_size="20KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    output = compact_checkpoint(folder, tmp_path / "int8", "int8")
    index = json.loads((output / "model.safetensors.index.json").read_text())
    shards = {path.name: load_file(path) for path in output.glob("model-*.safetensors")}
    assert len(shards) > 1
    assert index["weight_map"] == {name: shard for shard, tensors in shards.items() for name in tensors}
    assert index["metadata"]["total_size"] == sum(t.nbytes for tensors in shards.values() for t in tensors.values())
    assert np.isfinite(encode(output)).all()


def test_int8_stays_where_float16_is_asked_for(tmp_path):
    small = compact_checkpoint(saved(tmp_path), tmp_path / "int8", "int8")
    output = compact_checkpoint(small, tmp_path / "float16", "float16")
    assert (output / "model.safetensors").read_bytes() == (small / "model.safetensors").read_bytes()


@pytest.mark.parametrize("dtype", ["int8", "float16"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_the_loaded_model_gives_nearly_the_same_vectors(name, dtype, tmp_path):
    source = saved(tmp_path, name)
    output = compact_checkpoint(source, tmp_path / "small", dtype)
    before, after = encode(source), encode(output)
    is_given = before.any(axis=1)
    cosines = (before * after).sum(1) / (np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)).clip(1e-9)
    assert cosines[is_given].min() > 0.999
    assert not np.array_equal(before, after)
    assert type(AutoModel.from_pretrained(output)) is type(AutoModel.from_pretrained(source))
    assert check_checkpoint(output).to_diff_dict() == check_checkpoint(source).to_diff_dict()


@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_values_agree_within_the_rounding(dtype, tmp_path):
    source = saved(tmp_path)
    output = compact_checkpoint(source, tmp_path / "small", dtype)
    before = AutoModelForSeq2SeqLM.from_pretrained(source).state_dict()
    after = AutoModelForSeq2SeqLM.from_pretrained(output).state_dict()
    assert list(after) == list(before)
    for name, was in before.items():
        now = after[name]
        assert now.dtype == torch.float32
        if was.dim() == 1:
            assert torch.equal(now, was)
            continue
        # Half a step of int8, whose scale float16 rounds by 2^-11; or half a step of float16.
        step = was.abs().amax(dim=-1, keepdim=True) / (127 * 2 if dtype == "int8" else 2**11)
        assert ((now - was).abs() <= step * 1.15).all(), name
    assert not torch.equal(after[TABLE], before[TABLE])


def test_the_file_holds_what_it_says_and_is_a_quarter(tmp_path):
    source = saved(tmp_path)
    sizes = {"float32": (source / "model.safetensors").stat().st_size}
    for dtype in ("float16", "int8"):
        path = compact_checkpoint(source, tmp_path / dtype, dtype) / "model.safetensors"
        sizes[dtype] = path.stat().st_size
        with safe_open(path, framework="pt") as weights:
            kinds = {name: weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118
            assert weights.metadata() == {"format": "pt"}
        if dtype == "float16":
            assert kinds[TABLE] == "F16"
        else:
            assert (kinds[f"{TABLE}_int8"], kinds[f"{TABLE}_scale"], TABLE in kinds) == ("I8", "F16", False)
    assert sizes["float16"] < 0.6 * sizes["float32"]
    assert sizes["int8"] < 0.4 * sizes["float32"]


def test_rows_are_restored_to_half_a_step():
    matrix = torch.randn(50, 300) * torch.logspace(-2, 3, 50)[:, None]
    matrix[7] = 0
    steps, scales = quantize_rows(matrix)
    assert (steps.dtype, scales.dtype, tuple(scales.shape)) == (torch.int8, torch.float16, (50,))
    error = (restore_rows(steps, scales) - matrix).abs()
    assert (error <= matrix.abs().amax(dim=1, keepdim=True) / 127 * 0.57).all()
    assert torch.equal(restore_rows(steps, scales)[7], torch.zeros(300))


def test_what_int8_or_float16_cannot_hold_is_kept():
    tensors = {
        "table": torch.randn(20, 100),
        "map": torch.eye(100) + 0.01 * torch.randn(100, 100),  # int8 would round most of it to zeros
        "huge": torch.full((3, 3), 1e6),
        "small": torch.full((3, 3), 1e-7),
        "bias": torch.randn(100),
        "column": torch.randn(20, 1),
        "filters": torch.randn(4, 5, 3),
        "counts": torch.arange(6).reshape(2, 3),
    }
    steps, scales = quantize_rows(tensors["map"])
    assert (restore_rows(steps, scales) - tensors["map"]).norm() > MOST_LOST * tensors["map"].norm()
    stored = store_tensors(tensors, "int8")
    assert stored_names(list(stored)) == {"table": ("table_int8", "table_scale")} | {
        name: (name,) for name in tensors if name != "table"
    }
    halves = {name for name, tensor in stored.items() if tensor.dtype == torch.float16}
    assert halves == {"table_scale", "map", "column", "filters"}
    for name in ("huge", "small", "bias", "counts"):
        assert torch.equal(stored[name], tensors[name])


def test_another_type_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="'int4'; allowed: 'float16', 'int8'"):
        compact_checkpoint(saved(tmp_path), tmp_path / "new" / "small", "int4")
    assert not (tmp_path / "new").exists()


def test_it_trains_and_saves_float_weights(tmp_path):
    output = compact_checkpoint(saved(tmp_path), tmp_path / "small", "int8")
    model, tokenizer = load_checkpoint(output)
    batch = tokenizer(["the cat sat"], return_tensors="pt")
    model.train()(**batch, labels=batch["input_ids"]).loss.backward()
    assert model.encoder.embeddings.word_embeddings.weight.grad.abs().sum() > 0
    again = save_checkpoint(model, tokenizer, tmp_path / "again")
    weights = load_file(again / "model.safetensors")
    assert torch.equal(weights[TABLE], model.encoder.embeddings.word_embeddings.weight)
    classifier = AutoModelForSequenceClassification.from_pretrained(output, num_labels=2)
    assert torch.equal(classifier.encoder.embeddings.word_embeddings.weight, weights[TABLE])


def test_a_tied_output_reads_the_restored_table(tmp_path):
    model, _ = load_checkpoint(compact_checkpoint(saved(tmp_path, "tied"), tmp_path / "small", "int8"))
    assert model.lm_head.weight is model.encoder.embeddings.word_embeddings.weight


def test_another_precision_can_be_asked_for(tmp_path):
    output = compact_checkpoint(saved(tmp_path), tmp_path / "small", "int8")
    assert AutoModel.from_pretrained(output, dtype=torch.bfloat16).dtype == torch.bfloat16
    assert AutoModel.from_pretrained(output).dtype == torch.float32


def test_it_loads_where_the_package_is_not_installed(tmp_path):
    output = compact_checkpoint(saved(tmp_path), tmp_path / "small", "int8")
    expected = AutoModel.from_pretrained(output).embeddings.word_embeddings.weight.double().sum().item()
    code = f"""
from transformers import AutoModel
model = AutoModel.from_pretrained({str(output)!r}, trust_remote_code=True)
assert not type(model).__module__.startswith("hf_meanmax.")
print(model.embeddings.word_embeddings.weight.double().sum().item())
"""
    result = run_python("-c", code, with_package=False, HF_MODULES_CACHE=str(tmp_path / "modules"))
    assert result.returncode == 0, result.stderr
    assert float(result.stdout) == pytest.approx(expected)


def test_the_copy_is_whole(tmp_path):
    source = saved(tmp_path)
    write_model_card(source, "someone/model")
    (source / "notes.log").write_text("mine")
    (source / "onnx").mkdir()
    output = compact_checkpoint(source, tmp_path / "small", "int8")
    assert {path.name for path in source.iterdir()} - {path.name for path in output.iterdir()} == {"notes.log", "onnx"}
    write_model_card(output, "someone/model")
    cards = [
        [line for line in (f / "README.md").read_text().splitlines() if "parameters" in line] for f in (source, output)
    ]
    assert cards[0] == cards[1] != []
    bare = compact_checkpoint(source, tmp_path / "bare", "float16", remote_code=False)
    assert list(bare.glob("*.py")) == []
    assert "auto_map" not in json.loads((bare / "config.json").read_text())
    assert type(AutoModel.from_pretrained(bare)) is MeanMaxAAEModel


def test_a_decoder_of_vectors_has_a_copy_too(tmp_path):
    settings = {**SIZES, "embedding_dim": 48, "latent_length": 3}
    model = make_model(full_class=EmbeddingDecoderForGeneration, **settings)
    source = save_checkpoint(model, make_tokenizer(), tmp_path / "model")
    small = load_checkpoint(compact_checkpoint(source, tmp_path / "small", "int8"))[0]
    vectors = torch.randn(5, 48)
    with torch.no_grad():
        before, after = (one.encode_latents(sentence_embedding=vectors) for one in (model.eval(), small))
    assert torch.nn.functional.cosine_similarity(before.flatten(1), after.flatten(1)).min() > 0.99
    assert not torch.equal(before, after)


def test_a_lost_scale_is_a_missing_tensor(tmp_path):
    output = compact_checkpoint(saved(tmp_path), tmp_path / "small", "int8")
    weights = load_file(output / "model.safetensors")
    del weights[f"{TABLE}_scale"]
    save_file(weights, output / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=f"'{TABLE}' among them"):
        load_checkpoint(output)


def test_a_copy_replaces_nothing_of_others(tmp_path):
    source = saved(tmp_path)
    with pytest.raises(FileExistsError, match="is the checkpoint itself"):
        compact_checkpoint(source, source, "int8")
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text("{}")
    with pytest.raises(FileExistsError, match="no checkpoint of this package"):
        compact_checkpoint(source, other, "int8")


def test_the_command(tmp_path, capsys):
    source = saved(tmp_path)
    main([str(source), "--dtype", "int8", "--output", str(tmp_path / "small")])
    assert "weights of" in capsys.readouterr().out
    check_checkpoint(tmp_path / "small")
    for words, said in (
        (["--output", str(tmp_path / "none")], "The weights would not change: give --dtype int8 or float16"),
        (["--dtype", "int8", "--output", str(tmp_path / "small")], "is there already; name a new folder"),
    ):
        with pytest.raises(SystemExit, match=said):
            main([str(source), *words])
    assert not (tmp_path / "none").exists()


def test_a_student_in_its_teachers_space_can_be_small(tmp_path):
    model = make_model(**SIZES, teacher_size=32)
    source = save_checkpoint(model, make_tokenizer(), tmp_path / "model")
    main([str(source), "--space", "teacher", "--output", str(tmp_path / "large")])
    main([str(source), "--space", "teacher", "--dtype", "int8", "--output", str(tmp_path / "small")])
    large, small = encode(tmp_path / "large"), encode(tmp_path / "small")
    assert large.shape == (len(TEXTS), 32)
    assert (large * small).sum(axis=1).min() > 0.999
    assert (tmp_path / "small" / "model.safetensors").stat().st_size < (
        0.5 * (tmp_path / "large" / "model.safetensors").stat().st_size
    )


def test_onnx_reads_it(tmp_path):
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    from hf_meanmax.inference.onnx_encoder import OnnxEncoder
    from hf_meanmax.inference.onnx_export import export_onnx

    output = compact_checkpoint(saved(tmp_path), tmp_path / "small", "int8")
    export_onnx(output, int8=False)
    np.testing.assert_allclose(OnnxEncoder(output / "onnx").encode(TEXTS), encode(output), atol=2e-5)
    shutil.rmtree(output / "onnx")
