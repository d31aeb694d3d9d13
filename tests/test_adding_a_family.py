"""A family is a configuration file, a modeling file, and one line in the list; all else finds it there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification, AutoTokenizer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from hf_meanmax.checkpoint.folder import check_checkpoint, load_checkpoint
from hf_meanmax.families import FAMILIES, Family, register
from hf_meanmax.inference.encoder import load_encoder
from hf_meanmax.inference.reconstruct import reconstruct
from hf_meanmax.training.pretrain import pretrain
from hf_meanmax.training.recipes import arguments_from_settings
from modeling.all_families import TESTS
from tiny_model import random_lines
from toy_family.configuration_toy import ToyConfig
from toy_family.modeling_toy import ToyForReconstruction, ToyForSequenceClassification, ToyModel


@pytest.fixture
def toy():
    register(Family(ToyConfig, ToyForReconstruction, ToyModel, ToyForSequenceClassification))
    yield
    del FAMILIES["toy"]
    del CONFIG_MAPPING._extra_content["toy"]
    for auto_class in (AutoModel, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification):
        del auto_class._model_mapping._extra_content[ToyConfig]


def test_every_family_goes_through_the_shared_tests():
    assert set(TESTS) == set(FAMILIES)
    for name, test in TESTS.items():
        family = FAMILIES[name]
        assert (test.family.model_class, test.family.full_class) == (family.encoder, family.full)


def test_a_new_family_is_trained_saved_and_loaded_everywhere(toy, tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(line for line in random_lines(300) if line.count(" ") > 1) + "\n")
    arguments = arguments_from_settings(
        {
            "family": "toy", "corpus": [str(tmp_path / "text.txt")], "validation_sentences": 20, "vocab_size": 40,
            "embedding_size": 8, "hidden_size": 16, "max_steps": 30, "batch_tokens": 400, "learning_rate": 0.02,
            "min_tokens": 1, "precision": "fp32", "cache_dir": str(tmp_path / "cache"),
            "output_dir": str(tmp_path / "run"),
        }
    )  # fmt: skip
    summary = pretrain(arguments)
    assert summary["steps"] == 30
    folder = tmp_path / "run" / "model"
    assert isinstance(check_checkpoint(folder), ToyConfig)
    assert isinstance(AutoConfig.from_pretrained(folder), ToyConfig)
    encoder = AutoModel.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert isinstance(encoder, ToyModel)
    assert isinstance(model, ToyForReconstruction)
    assert isinstance(AutoModelForSequenceClassification.from_pretrained(folder), ToyForSequenceClassification)
    assert isinstance(load_checkpoint(folder)[0], ToyForReconstruction)
    tokenizer, text = AutoTokenizer.from_pretrained(folder), "the cat sat on the mat"
    with torch.no_grad():
        expected = encoder(**tokenizer(text, return_tensors="pt")).pooler_output
    exported = SentenceTransformer(str(folder)).encode([text])
    np.testing.assert_allclose(exported, expected.numpy(), atol=1e-5)
    np.testing.assert_allclose(load_encoder(str(folder)).encode([text]), expected.numpy(), atol=1e-5)
    generated = model.generate(sentence_embedding=expected, max_new_tokens=16)
    (reconstruction,) = reconstruct(model, tokenizer, [text], max_new_tokens=16)
    assert tokenizer.decode(reconstruction) == tokenizer.decode(generated[0], skip_special_tokens=True)
