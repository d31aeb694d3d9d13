"""What the models of the package give for sentences of our own: their vectors' numbers, and how far their cosines agree
with marks from 0 (unrelated) to 5 (the same)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import pearsonr
from sentence_transformers import SentenceTransformer
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import hf_meanmax

HERE = Path(__file__).parent
EXPECTED = json.loads((HERE / "probe.json").read_text(encoding="utf-8"))


def measured(name: str) -> dict:
    """The correlation with the marks, and the first numbers of some vectors."""
    rows = [line.split("\t") for line in (HERE / "probe.tsv").read_text(encoding="utf-8").splitlines()]
    model = SentenceTransformer(hf_meanmax.pretrained(name), device="cpu")
    left, right = (model.encode([row[side] for row in rows], normalize_embeddings=True) for side in (1, 2))
    correlation = pearsonr([float(row[0]) for row in rows], (left * right).sum(axis=1)).statistic
    return {"pearson": round(float(correlation), 4), "vectors": np.round(left[:3, :8].astype(float), 5).tolist()}


def test_every_model_has_its_figures():
    assert sorted(EXPECTED) == [model.name for model in hf_meanmax.pretrained()]


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_it_gives_what_it_gave(name):
    found = measured(name)
    assert found["pearson"] == pytest.approx(EXPECTED[name]["pearson"], abs=0.002)
    np.testing.assert_allclose(found["vectors"], EXPECTED[name]["vectors"], atol=1e-4)


def test_strings_end_a_text():
    folder = hf_meanmax.pretrained("mini-en")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSeq2SeqLM.from_pretrained(folder)
    text = tokenizer(["the children are playing in the park."], return_tensors="pt")
    ids = model.generate(**text, stop_strings=["playing"], tokenizer=tokenizer)
    assert tokenizer.batch_decode(ids, skip_special_tokens=True) == ["the children are playing"]


def test_a_bound_that_no_text_reaches_takes_no_memory():
    folder = hf_meanmax.pretrained("mini-en")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSeq2SeqLM.from_pretrained(folder)
    text = tokenizer(["the children are playing in the park.", "a dog ran."], padding=True, return_tensors="pt")
    assert model.generate(**text, max_new_tokens=10**11).tolist() == model.generate(**text, max_new_tokens=64).tolist()
