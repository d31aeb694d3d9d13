"""The checkpoint folder: what loads it, what it holds, and what happens to damaged or half-written ones."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForPreTraining, AutoModelForSeq2SeqLM, AutoTokenizer

from hf_meanmax import (
    CompoundAttentionForTranslation,
    GatedMeanMaxAAEForReconstruction,
    RNNCNNForContextPrediction,
    files,
)
from hf_meanmax.checkpoint import folder as export
from hf_meanmax.checkpoint.card import write_model_card
from hf_meanmax.checkpoint.folder import (
    CHECKPOINT_FILES,
    check_checkpoint,
    load_checkpoint,
    load_target_tokenizer,
    save_checkpoint,
    weight_files,
)
from hf_meanmax.checkpoint.location import is_missing_folder
from hf_meanmax.files import recover_folder, replacing_file, replacing_folder
from hf_meanmax.inference.encoder import load_encoder
from hf_meanmax.tokenization import train_tokenizer
from tiny_model import TEXTS, WORDS, make_model, make_tokenizer, run_python


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(
        make_model(), make_tokenizer(), tmp_path_factory.mktemp("export") / "model", training_args={"seed": 3}
    )


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def pooled(model, tokenizer, texts=TEXTS) -> np.ndarray:
    with torch.no_grad():
        return model.encoder(**tokenizer(texts, padding=True, return_tensors="pt")).pooler_output.numpy()


FORMS = {
    "paper": {},
    "mean_first": {"mean_first": True},
    "mean": {"pooling": "mean"},
    "max": {"pooling": "max"},
    "gated": {"full_class": GatedMeanMaxAAEForReconstruction},
    "gated_rae": {
        "full_class": GatedMeanMaxAAEForReconstruction,
        "encoder_type": "bilstm",
        "pooling": "mean_max_last",
        "decoder_type": "lstm_gates",
        "mean_first": True,
    },
    "rae": {
        "full_class": GatedMeanMaxAAEForReconstruction,
        "encoder_type": "bilstm",
        "pooling": "last",
        "decoder_type": "lstm",
    },
    "cnn_lstm": {"encoder_type": "cnn", "pooling": "max", "decoder_type": "lstm"},
    "rnn_cnn": {"full_class": RNNCNNForContextPrediction, "decoder_channels": [12, 8], "num_context_words": 5},
    "cnn_cnn": {
        "full_class": RNNCNNForContextPrediction,
        "encoder_type": "hierarchical_cnn",
        "num_hidden_layers": 4,
        "pooling": "max",
        "decoder_channels": [12, 20, 8],
    },
    "inner_attention": {
        "full_class": CompoundAttentionForTranslation,
        "architecture": "attn-attn",
        "latent_heads": 3,
        "latent_size": 5,
    },
    "maxpool": {"full_class": CompoundAttentionForTranslation, "architecture": "maxpool", "latent_size": 7},
    "skip_thought": {
        "full_class": RNNCNNForContextPrediction,
        "encoder_type": "gru",
        "pooling": "last",
        "decoder_type": "gru",
        "predict_previous": True,
        "tie_word_embeddings": False,
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_one_folder_loads_everywhere(tmp_path, form):
    model, tokenizer = make_model(**FORMS[form]), make_tokenizer()
    expected = pooled(model, tokenizer)
    folder = save_checkpoint(model, tokenizer, tmp_path / "model")

    auto_class = AutoModelForPreTraining if model.config.model_type == "rnn_cnn" else AutoModelForSeq2SeqLM
    encoder, full = AutoModel.from_pretrained(folder), auto_class.from_pretrained(folder)
    assert type(load_checkpoint(folder)[0]) is type(full) is type(model)
    assert AutoTokenizer.from_pretrained(folder)(TEXTS).input_ids == tokenizer(TEXTS).input_ids
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    # An LSTM has another kernel where a gradient may be wanted.
    with torch.no_grad():
        assert np.array_equal(encoder(**inputs).pooler_output.numpy(), expected)
    assert all(torch.equal(a, b) for a, b in zip(full.parameters(), model.parameters(), strict=True))

    sentence_model = SentenceTransformer(str(folder), device="cpu")
    vectors = sentence_model.encode(TEXTS)
    assert sentence_model.get_embedding_dimension() == expected.shape[1] == vectors.shape[1]
    assert np.allclose(vectors, expected, atol=1e-6)
    assert np.isfinite(vectors).all()
    if not model.config.is_autoregressive:
        words, _ = model.predict_words(sentence_embedding=torch.from_numpy(vectors))
        assert torch.equal(words, model.predict_words(**inputs)[0])
        return
    said = model.generate(sentence_embedding=torch.from_numpy(vectors), max_new_tokens=8)
    assert torch.equal(said, model.generate(**inputs, max_new_tokens=8))


def test_rnn_cnn_has_the_mean_first(tmp_path):
    """[mean; max] of section 2, in every loader; a checkpoint without its previous decoder is not whole."""
    model, tokenizer = make_model(**FORMS["rnn_cnn"]), make_tokenizer()
    folder = save_checkpoint(model, tokenizer, tmp_path / "model")
    (vector,) = SentenceTransformer(str(folder), device="cpu").encode([TEXTS[0]], convert_to_tensor=True)
    states = model.encoder(**tokenizer([TEXTS[0]], return_tensors="pt")).last_hidden_state[0]
    torch.testing.assert_close(vector, torch.cat([states.mean(dim=0), states.amax(dim=0)]))

    folder = save_checkpoint(
        make_model(**{**FORMS["skip_thought"], "predict_previous": False}), tokenizer, tmp_path / "gru"
    )
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "predict_previous": True}))
    with pytest.raises(ValueError, match=r"tensors of RNNCNNForContextPrediction are missing, 'previous_decoder\."):
        check_checkpoint(folder)


@pytest.mark.parametrize("form", ["paper", "gated_rae", "rnn_cnn"])
@pytest.mark.parametrize("normalize", ["rows", "embedding"])
def test_normalised_exports(tmp_path, normalize, form):
    model, tokenizer = make_model(**FORMS[form]), make_tokenizer()
    raw = pooled(model, tokenizer)
    rows = raw.reshape(len(TEXTS), -1, 16) if normalize == "rows" else raw[:, None]
    expected = (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).reshape(len(TEXTS), -1)

    folder = save_checkpoint(model, tokenizer, tmp_path / "model", normalize=normalize)
    sentence_model = SentenceTransformer(str(folder), device="cpu")
    vectors = sentence_model.encode(TEXTS, batch_size=2)
    assert sentence_model.get_embedding_dimension() == raw.shape[1]
    assert np.allclose(vectors, expected, atol=1e-6)


def test_only_stock_modules_and_no_pickle(saved):
    types = [module["type"] for module in json.loads((saved / "modules.json").read_text())]
    assert all(kind.startswith("sentence_transformers.") for kind in types)
    assert [path.name for path in saved.rglob("*") if path.suffix in (".bin", ".pt", ".pkl", ".pth")] == []
    assert json.loads((saved / "training_args.json").read_text()) == {"seed": 3}
    assert all(any(Path(entry.name).match(p) for p in CHECKPOINT_FILES) for entry in saved.iterdir())


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("form", ["paper", "mean", "gated", "gated_rae", "cnn_lstm"])
def test_long_text_is_not_cut(tmp_path, form, positions):
    """Beyond the length of a learned table, and beyond the 512 tokens at which other models are cut."""
    long = " ".join(WORDS * 60) + " ran"
    settings = {"max_position_embeddings": 16, "position_embedding_type": positions}
    model, tokenizer = make_model(**settings, **FORMS[form]), make_tokenizer()
    folder = save_checkpoint(model, tokenizer, tmp_path / "model")
    encoder, read = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = [tokenizer.convert_tokens_to_ids(word) for word in [*WORDS * 60, "ran", "</s>"]]
    assert read(long, truncation=True).input_ids == ids
    with torch.no_grad():
        expected = encoder(input_ids=torch.tensor([ids])).pooler_output
        cut = encoder(input_ids=torch.tensor([ids[:512]])).pooler_output
    assert not torch.allclose(expected, cut, atol=1e-4)
    sentence_model = SentenceTransformer(str(folder), device="cpu")
    for texts in ([long], ["a dog ran", long]):
        assert np.allclose(sentence_model.encode(texts)[-1], expected[0], atol=1e-5)

    tokenizer.model_max_length = 5
    save_checkpoint(model, tokenizer, folder)
    assert SentenceTransformer(str(folder), device="cpu").max_seq_length == 5


def test_loads_without_the_package(saved, folder):
    """With trust_remote_code, in a process where hf_meanmax cannot be imported."""
    without = folder.with_name("without")
    save_checkpoint(make_model(), make_tokenizer(), without, remote_code=False)
    assert not list(without.glob("*.py"))
    assert "auto_map" not in json.loads((without / "config.json").read_text())

    model, tokenizer = make_model(), make_tokenizer()
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    np.save(folder.with_name("vectors.npy"), pooled(model, tokenizer))
    np.save(folder.with_name("tokens.npy"), model.generate(**inputs, max_new_tokens=8).numpy())
    rows, rae = folder.with_name("rows"), folder.with_name("rae")
    save_checkpoint(model, tokenizer, rows, normalize="rows")
    recurrent = make_model(**FORMS["gated_rae"])
    save_checkpoint(recurrent, tokenizer, rae)
    np.save(folder.with_name("rae.npy"), pooled(recurrent, tokenizer))
    again = folder.with_name("again")
    SentenceTransformer(str(saved), device="cpu").save(str(again))
    code = f"""
import sys
sys.modules["hf_meanmax"] = None
import numpy as np, torch
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer
from sentence_transformers import SentenceTransformer
folder, texts, trust = {str(saved)!r}, {TEXTS!r}, dict(trust_remote_code=True)
vectors, tokens = np.load({str(folder.with_name("vectors.npy"))!r}), np.load({str(folder.with_name("tokens.npy"))!r})
tokenizer = AutoTokenizer.from_pretrained(folder, **trust)
inputs = tokenizer(texts, padding=True, return_tensors="pt")
encoder = AutoModel.from_pretrained(folder, **trust)
assert np.allclose(encoder(**inputs).pooler_output.detach().numpy(), vectors, atol=1e-6)
model = AutoModelForSeq2SeqLM.from_pretrained(folder, **trust)
assert type(model).__module__.startswith("transformers_modules")
assert (model.generate(sentence_embedding=torch.from_numpy(vectors)).numpy() == tokens).all()
encoded = SentenceTransformer(folder, device="cpu", **trust).encode(texts)
assert np.allclose(encoded, vectors, atol=1e-6)
rows = SentenceTransformer({str(rows)!r}, device="cpu", **trust)
assert rows.get_embedding_dimension() == 32
assert np.allclose(np.linalg.norm(rows.encode(texts).reshape(len(texts), 2, -1), axis=-1), 1, atol=1e-5)
encoded = SentenceTransformer({str(rae)!r}, device="cpu", **trust).encode(texts)
assert np.allclose(encoded, np.load({str(folder.with_name("rae.npy"))!r}), atol=1e-6)
encoded = SentenceTransformer({str(again)!r}, device="cpu", **trust).encode(texts)
assert np.allclose(encoded, vectors, atol=1e-6)
try:
    SentenceTransformer(folder, device="cpu")
except (ValueError, OSError) as error:
    assert "trust_remote_code" in str(error), error
else:
    raise AssertionError("loaded without leave")
print("done")
"""
    result = run_python("-c", code, with_package=False)
    assert result.stdout.strip().endswith("done"), result.stderr[-3000:]


@pytest.mark.parametrize("architecture", ["attn", "trf"])
def test_a_translator_without_a_representation_says_so(tmp_path, architecture):
    """It loads as a translator; whoever wants vectors of it learns why there are none, and gets no mean of anything."""
    model = make_model(full_class=CompoundAttentionForTranslation, architecture=architecture)
    folder = save_checkpoint(model, make_tokenizer(), tmp_path / "model", training_args={"objective": "translation"})
    loaded, tokenizer = load_checkpoint(folder)
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    assert torch.equal(loaded.generate(**batch), model.generate(**batch))
    with pytest.raises(ValueError, match="no fixed representation"):
        SentenceTransformer(str(folder), device="cpu").encode(["the cat sat"])
    with pytest.raises(ValueError, match=r"model: `pooling` is 'none'.*no fixed representation"):
        load_encoder(str(folder))
    card = write_model_card(folder, "user/translator").read_text(encoding="utf-8")
    assert "it has no sentence\nembedding" in card
    assert "SentenceTransformer(" not in card
    assert "pipeline_tag: translation" in card


def test_two_tokenizers_are_one_checkpoint(tmp_path):
    """The target's stands in a folder of its own, is checked like the other, and goes with a push."""
    target = train_tokenizer(["der Hund und die Katze sitzen auf der Matte"], show_progress=False)
    settings = {"architecture": "attn-attn", "separate_vocabularies": True, "latent_size": 5}
    source = make_tokenizer()
    model = make_model(
        full_class=CompoundAttentionForTranslation, vocab_size=len(target), input_vocab_size=len(source), **settings
    )
    with pytest.raises(ValueError, match="target_tokenizer left out"):
        save_checkpoint(model, source, tmp_path / "model")
    with pytest.raises(ValueError, match=r"`separate_vocabularies` is False and target_tokenizer given"):
        save_checkpoint(make_model(), source, tmp_path / "model", target_tokenizer=target)
    folder = save_checkpoint(model, source, tmp_path / "model", target_tokenizer=target)
    loaded, tokenizer = load_checkpoint(folder)
    says = load_target_tokenizer(folder, loaded.config, tokenizer)
    assert says.get_vocab() == target.get_vocab()
    assert tokenizer.get_vocab() == source.get_vocab()
    assert load_target_tokenizer(folder, make_model().config, tokenizer) is tokenizer
    said = loaded.generate(**tokenizer(["the cat sat"], return_tensors="pt"), max_new_tokens=5)
    assert said.max() < len(target)
    says.batch_decode(said)
    card = write_model_card(folder, "user/two").read_text(encoding="utf-8")
    assert 'subfolder="target_tokenizer"' in card
    (folder / "target_tokenizer" / "tokenizer.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"target_tokenizer/tokenizer\.json is missing"):
        check_checkpoint(folder)


def test_saving_leaves_no_trace_in_the_model(tmp_path):
    model = make_model()
    save_checkpoint(model, make_tokenizer(), tmp_path / "model")
    assert type(model)._auto_class is None
    assert getattr(model.config, "auto_map", None) is None


@pytest.mark.parametrize("sizes", [("50GB", "2KB"), ("2KB", "50GB")])
def test_weights_in_one_file_and_in_several(tmp_path, sizes):
    """What is checked and counted is what transformers loads of two saves into one folder."""
    folder = save_checkpoint(make_model(), make_tokenizer(), tmp_path / "model")
    (folder / "model.safetensors").unlink()
    for seed, size in enumerate(sizes):
        make_model(seed=seed).save_pretrained(folder, max_shard_size=size)
    check_checkpoint(folder)
    loaded = load_checkpoint(folder)[0]
    names = {path.name for path in weight_files(folder)}
    stored = {name for path in weight_files(folder) for name in load_file(path)}
    assert ("model.safetensors" in names) == (folder / "model.safetensors").is_file()
    assert stored == {name for name, _ in loaded.named_parameters()}
    count = sum(parameter.numel() for parameter in loaded.parameters())
    assert f"| parameters | {count:,} |" in write_model_card(folder, "user/two").read_text(encoding="utf-8")
    (folder / "model.safetensors").unlink(missing_ok=True)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": null}')
    with pytest.raises(ValueError, match="`weight_map` names no file"):
        check_checkpoint(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": ["a"]}')
    with pytest.raises(ValueError, match=f"A file in {folder} is damaged: 'list'"):
        check_checkpoint(folder)


def test_old_checkpoint_survives_a_failed_save(folder, monkeypatch):
    before = snapshot(folder)
    with monkeypatch.context() as patch:

        def disk_full(*args, **kwargs):
            raise OSError(28, "No space left on device")

        patch.setattr(type(make_tokenizer()), "save_pretrained", disk_full)
        with pytest.raises(OSError, match="No space left"):
            save_checkpoint(make_model(seed=1), make_tokenizer(), folder)
    assert snapshot(folder) == before
    with pytest.raises(TypeError, match="JSON"):
        save_checkpoint(make_model(seed=1), make_tokenizer(), folder, training_args={"bad": object()})
    assert snapshot(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_new_save_replaces_the_checkpoint_and_keeps_the_rest(folder):
    (folder / "README.md").write_text("mine")
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "state").write_text("state")
    (folder / "2_Normalize").mkdir()
    model = make_model(seed=1)
    save_checkpoint(model, make_tokenizer(), folder)
    assert (folder / "README.md").read_text() == "mine"
    assert (folder / "checkpoints" / "state").read_text() == "state"
    assert not (folder / "2_Normalize").exists()
    assert not (folder / "training_args.json").exists()
    assert torch.equal(load_checkpoint(folder)[0].lm_head.weight, model.lm_head.weight)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_another_model_removes_the_models_that_were_exported_of_the_older_one(folder, monkeypatch, capsys):
    export = folder / "onnx"
    export.mkdir()
    (export / "model.onnx").write_text("of the older weights")
    (export / "vectors.npy").write_text("of the user")
    save_checkpoint(load_checkpoint(folder)[0], make_tokenizer(), folder)
    assert (export / "model.onnx").is_file(), "the weights are the same"
    with monkeypatch.context() as patch:
        patch.setattr(type(make_tokenizer()), "save_pretrained", lambda *args, **kwargs: (folder / "none").read_text())
        with pytest.raises(FileNotFoundError):
            save_checkpoint(make_model(seed=1), make_tokenizer(), folder)
    assert export.is_dir()
    assert "export-onnx" not in capsys.readouterr().err
    save_checkpoint(make_model(seed=1), make_tokenizer(), folder)
    assert [path.name for path in export.iterdir()] == ["vectors.npy"]
    assert f"`hf-meanmax export-onnx {folder}` makes new ones" in capsys.readouterr().err
    save_checkpoint(make_model(seed=2), make_tokenizer(), folder)
    assert "export-onnx" not in capsys.readouterr().err
    shorter = make_tokenizer()
    shorter.model_max_length = 5
    for model, tokenizer, normalize in (
        (make_model(seed=2), make_tokenizer(), "embedding"),
        (make_model(seed=2, latent_normalization="rows"), make_tokenizer(), None),
        (make_model(seed=2, latent_normalization="rows"), shorter, None),
    ):
        (export / "model.onnx").write_text("of the older model")
        save_checkpoint(model, tokenizer, folder, normalize=normalize)
        assert not (export / "model.onnx").exists()
        assert "export-onnx" in capsys.readouterr().err
    (export / "model.onnx").write_text("of this model")
    save_checkpoint(model, tokenizer, folder)
    assert (export / "model.onnx").is_file()


def test_an_onnx_folder_beside_no_checkpoint_is_kept(tmp_path):
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model.onnx").write_text("mine")
    save_checkpoint(make_model(), make_tokenizer(), tmp_path)
    assert (tmp_path / "onnx" / "model.onnx").read_text() == "mine"


@pytest.mark.parametrize("name", ["base.py", "config.json", "model.safetensors"])
def test_files_of_others_are_not_replaced(tmp_path, name):
    (tmp_path / name).write_text("{}")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=rf"no checkpoint of this package.*\({name}\); name another folder"):
        save_checkpoint(make_model(), make_tokenizer(), tmp_path)
    assert snapshot(tmp_path) == {name: b"{}", "notes.txt": b"mine"}


@pytest.mark.parametrize("moment", [0, 1, 2, 3])
def test_a_kill_between_the_renames_loses_nothing(tmp_path, monkeypatch, moment):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "weights").write_text("old")
    (folder / "log").write_text("log")
    renames = []
    rename = os.rename

    def killed(source, target):
        if len(renames) == moment:
            raise KeyboardInterrupt
        renames.append(target)
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "rename", killed)
        patch.setattr(files.shutil, "rmtree", lambda *args, **kwargs: None)
        try:
            with replacing_folder(folder, ["weights"]) as partial:
                (partial / "weights").write_text("new")
        except KeyboardInterrupt:
            pass
    recover_folder(folder, ["weights"])
    assert (folder / "log").read_text() == "log"
    assert (folder / "weights").read_text() == ("old" if moment < 2 else "new")
    with replacing_folder(folder, ["weights"]) as partial:
        (partial / "weights").write_text("newer")
    assert (folder / "weights").read_text() == "newer"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_replacing_file_is_all_or_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def crash():
        with replacing_file(path) as file:
            file.write("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        crash()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_refused_arguments(tmp_path):
    model, tokenizer = make_model(), make_tokenizer()
    with pytest.raises(ValueError, match="'row'"):
        save_checkpoint(model, tokenizer, tmp_path / "x", normalize="row")
    with pytest.raises(TypeError, match="MeanMaxAAEForReconstruction"):
        save_checkpoint(model.encoder, tokenizer, tmp_path / "x")
    with pytest.raises(TypeError, match="Linear"):
        save_checkpoint(torch.nn.Linear(1, 1), tokenizer, tmp_path / "x")
    with pytest.raises(ValueError, match="14 tokens, the model knows 10"):
        save_checkpoint(make_model(vocab_size=10), tokenizer, tmp_path / "x")
    backend = tokenizer.backend_tokenizer
    backend.post_processor = None
    with pytest.raises(ValueError, match="end token alone"):
        save_checkpoint(model, tokenizer, tmp_path / "x")
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="is a file"):
        save_checkpoint(model, make_tokenizer(), tmp_path / "file")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json", "modules.json", "sentence_bert_config.json"]
)
def test_missing_and_damaged_files_are_named(folder, name):
    path = folder / name
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=f"{name} is damaged or cut short: expected"):
        load_checkpoint(folder)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"{name} is missing"):
        load_checkpoint(folder)


def test_settings_of_the_wrong_type_are_damage(folder):
    (folder / "sentence_bert_config.json").write_text('{"modality_config": {"text": null}}')
    with pytest.raises(ValueError, match=f"A file in {folder} is damaged"):
        check_checkpoint(folder)


@pytest.mark.parametrize("vocabulary", ["words", 7, [], {}, {"vocab": True}, {"vocab": "words"}, {"vocab": {}}])
def test_a_tokenizer_without_words_is_named(folder, vocabulary):
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model": vocabulary}))
    with pytest.raises(ValueError, match=r"tokenizer\.json: 0 tokens, expected 1 to"):
        check_checkpoint(folder)


def test_wrong_checkpoints_are_explained(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="No checkpoint folder"):
        load_checkpoint(tmp_path / "nothing")
    config_file = folder / "config.json"
    config = json.loads(config_file.read_text())

    def with_config(**changes):
        config_file.write_text(json.dumps({**config, **changes}))

    for other in ([], {}, ["mean_max_aae"], None, 3):
        with_config(model_type=other)
        assert not export.is_own_checkpoint(folder)
        with pytest.raises(ValueError, match=r"config\.json: model_type is"):
            check_checkpoint(folder)
    with_config(model_type="bert")
    families = "'mean_max_aae', 'gated_mean_max_aae', 'rnn_cnn'"
    with pytest.raises(ValueError, match=rf"config\.json: model_type is 'bert'.*expected one of {families}"):
        check_checkpoint(folder)
    for names in ([{}], "MeanMaxAAEModel", {"a": 1}):
        with_config(architectures=names)
        with pytest.raises(ValueError, match=r"config\.json: `architectures` is .*expected a list"):
            check_checkpoint(folder)
    with_config(hidden_size=-1)
    with pytest.raises(ValueError, match=r"config\.json.*hidden_size"):
        check_checkpoint(folder)
    with_config(hidden_size=32)
    with pytest.raises(ValueError, match=r"model\.safetensors: '.*' is \(.*\), expected"):
        check_checkpoint(folder)
    with_config(num_hidden_layers=2)
    with pytest.raises(ValueError, match=r"model\.safetensors: \d+ of \d+ tensors .* missing"):
        check_checkpoint(folder)
    with_config()
    assert check_checkpoint(folder).hidden_size == 16
    folder.rename(folder.with_name(".model.old"))
    with pytest.raises(FileNotFoundError, match="A save was interrupted: rename"):
        check_checkpoint(folder)


def test_tied_checkpoint_is_whole(tmp_path):
    folder = save_checkpoint(make_model(tie_word_embeddings=True), make_tokenizer(), tmp_path / "model")
    assert check_checkpoint(folder).tie_word_embeddings
    loaded, _ = load_checkpoint(folder)
    assert loaded.lm_head.weight is loaded.encoder.embeddings.word_embeddings.weight


def test_own_checkpoints_are_recognised(folder, tmp_path):
    assert export.is_own_checkpoint(folder)
    assert not export.is_own_checkpoint(tmp_path)
    (folder / "config.json").write_text('{"model_type": "bert"}')
    assert not export.is_own_checkpoint(folder)
    (folder / "config.json").write_text("// a comment\n{}")
    # Damaged or another's: it is told to whoever loads it, and replaced by nobody.
    assert export.is_own_checkpoint(folder)
    with pytest.raises(FileExistsError, match="is no checkpoint of this package, but has files"):
        save_checkpoint(make_model(), make_tokenizer(), folder)
    assert is_missing_folder(tmp_path / "none")
    assert is_missing_folder("./none")
    assert not is_missing_folder("user/name")


def test_the_folder_of_a_run_leads_to_its_model(tmp_path):
    model = save_checkpoint(make_model(), make_tokenizer(), tmp_path / "run" / "model")
    for load in (load_checkpoint, load_encoder):
        with pytest.raises(FileNotFoundError, match=re.escape(f"Did you mean {model}?")):
            load(tmp_path / "run")
