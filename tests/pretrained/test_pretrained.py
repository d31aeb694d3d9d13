"""The models that come with the package: where they are, and what is told of them."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

import hf_meanmax
from hf_meanmax.checkpoint.card import CardDescription, write_model_card
from hf_meanmax.checkpoint.compact import compact_checkpoint
from hf_meanmax.checkpoint.folder import check_checkpoint, save_checkpoint
from hf_meanmax.checkpoint.location import checkpoint_folder
from hf_meanmax.inference.encoder import load_encoder
from hf_meanmax.tokenization.tokenizers import train_tokenizer
from tiny_model import TEXTS, make_model, make_tokenizer

module = sys.modules["hf_meanmax.pretrained"]

INDEX = """\
model-index:
- name: mini
  results:
  - task: {type: sts}
    dataset: {name: STS12, type: sts}
    metrics: [{type: pearsonr, name: Pearson, value: 0.75}]
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two models in place of those of the package, one of them with a card."""
    root = tmp_path / "pretrained"
    tokenizer = make_tokenizer()
    for name, settings in {
        "mini": {},
        "static": {"encoder_type": "none", "pooling": "weighted_mean", "decoder_type": "none"},
    }.items():
        folder = save_checkpoint(make_model(**settings), tokenizer, tmp_path / name)
        compact_checkpoint(folder, root / name, "int8", remote_code=False)
    write_model_card(root / "mini", "someone/mini", CardDescription(license="mit"))
    (root / "__pycache__").mkdir()
    monkeypatch.setattr(module, "_FOLDER", root)
    return root


def test_a_name_gives_the_folder_that_every_loader_takes(models):
    folder = hf_meanmax.pretrained("mini")
    assert folder == str(models / "mini")
    assert type(AutoModel.from_pretrained(folder)) is hf_meanmax.MeanMaxAAEModel
    assert type(AutoModelForSeq2SeqLM.from_pretrained(folder)) is hf_meanmax.MeanMaxAAEForReconstruction
    assert np.isfinite(SentenceTransformer(folder, device="cpu").encode(TEXTS)).all()


def test_the_help_names_the_models_and_which_of_them_decode():
    for model in hf_meanmax.pretrained():
        decodes = json.loads((Path(model.folder) / "config.json").read_text())["decoder_type"] != "none"
        assert re.search(rf"\b{model.name}\b", module.ENCODER_SOURCES)
        assert bool(re.search(rf"\b{model.name}\b", module.DECODER_SOURCES)) is decodes


@pytest.mark.parametrize("load", [load_encoder, checkpoint_folder])
@pytest.mark.parametrize(("name", "hint"), [("mimi", r" Did you mean 'mini'\?"), ("user/none", "")])
def test_an_unknown_name_is_told_with_those_that_there_are(models, monkeypatch, load, name, hint):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        FileNotFoundError,
        match=rf"^No model '{name}': .* the Hub \(.*[^.]\)\. The package has mini and static\.{hint}$",
    ):
        load(name)


def test_where_a_folder_is_asked_for_the_name_is_told_as_what_it_is(models):
    with pytest.raises(FileNotFoundError, match=r"give its folder, which hf_meanmax.pretrained\('mini'\)"):
        check_checkpoint("mini")


def test_commands_take_the_name(models, tmp_path, monkeypatch):
    assert checkpoint_folder("mini") == models / "mini"
    assert load_encoder("mini", device="cpu").encode(TEXTS).shape == (len(TEXTS), 32)
    # What lies here under this name goes before.
    monkeypatch.chdir(tmp_path)
    assert checkpoint_folder("mini") == Path("mini")


def test_the_list_is_read_from_the_folders(models):
    path = models / "mini" / "README.md"
    card = path.read_text(encoding="utf-8")
    assert card.startswith("---\n")
    path.write_text(card.replace("---\n", f"---\n{INDEX}", 1), encoding="utf-8")
    mini, static = hf_meanmax.pretrained()
    assert (mini.name, mini.folder, mini.license) == ("mini", str(models / "mini"), "mit")
    assert mini.scores == {"STS12, Pearson": 0.75}
    size = sum(path.stat().st_size for path in (models / "mini").rglob("*") if path.is_file())
    assert mini.megabytes == round(size / 1e6, 1)
    assert (static.name, static.license, static.scores) == ("static", "unknown", {})


def test_an_unknown_name_is_refused_with_those_that_exist(models):
    with pytest.raises(ValueError, match=r"'tiny' comes with hf_meanmax, which has 'mini', 'static'\."):
        hf_meanmax.pretrained("tiny")
    with pytest.raises(ValueError, match="__pycache__"):
        hf_meanmax.pretrained("__pycache__")


def test_what_comes_with_the_package_is_whole():
    """Whatever models are there have a card with a licence, and no code."""
    for model in hf_meanmax.pretrained():
        assert (Path(model.folder) / "README.md").is_file()
        assert model.license != "unknown"
        assert list(Path(model.folder).rglob("*.py")) == []
        AutoModel.from_pretrained(model.folder)
    assert sum(model.megabytes for model in hf_meanmax.pretrained()) <= 25


def test_what_comes_with_the_package_cuts_words_as_it_does():
    """A tokenizer keeps the rules of the day on which it was made."""
    words = train_tokenizer(["the cat"], lowercase=True, show_progress=False).backend_tokenizer
    for model in hf_meanmax.pretrained():
        backend = AutoTokenizer.from_pretrained(model.folder).backend_tokenizer
        for part in ("normalizer", "pre_tokenizer", "decoder"):
            assert getattr(backend, part).__getstate__() == getattr(words, part).__getstate__(), (model.name, part)
        assert backend.encode("co\u00adoperation\u200b is \ufeffhere").tokens[:3] == ["cooperation", "is", "here"]


def test_it_needs_no_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    spec = importlib.util.spec_from_file_location("pretrained_alone", module.__file__)
    alone = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "pretrained_alone", alone)
    spec.loader.exec_module(alone)
    assert [model.name for model in alone.pretrained()] == [model.name for model in hf_meanmax.pretrained()]
