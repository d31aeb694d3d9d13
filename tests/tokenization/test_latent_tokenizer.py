"""Batches of LatentTokenizer are those of transformers' own tokenizer."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hf_meanmax.modeling.configuration_base import NO_LIMIT
from hf_meanmax.tokenization import train_tokenizer
from hf_meanmax.tokenization.latent_tokenizer import LatentTokenizer

TEXTS = ["the dog runs", "", "a cat sees the big dog", "the"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(TEXTS, show_progress=False).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "settings",
    [
        {"padding": True},
        {"padding": "max_length", "max_length": 12},
        {"padding": True, "truncation": "longest_first", "max_length": 3},
        {"padding": True, "pad_to_multiple_of": 8, "padding_side": "left"},
        {"padding": True, "return_token_type_ids": True, "return_special_tokens_mask": True, "return_length": True},
        {"padding": True, "return_offsets_mapping": True, "return_attention_mask": False},
        {"padding": True, "truncation": True, "max_length": 3, "return_overflowing_tokens": True},
    ],
)
@pytest.mark.parametrize("given", [TEXTS, TEXTS[:1], [""]])
def test_batches_are_those_of_the_plain_tokenizer(folder, settings, given):
    found = AutoTokenizer.from_pretrained(folder)
    plain = PreTrainedTokenizerFast.from_pretrained(folder)
    assert (type(found), type(plain)) == (LatentTokenizer, PreTrainedTokenizerFast)
    ours, theirs = (each(given, return_tensors="pt", **settings) for each in (found, plain))
    assert ours.keys() == theirs.keys()
    for name in theirs:
        assert (ours[name].dtype, ours[name].shape) == (theirs[name].dtype, theirs[name].shape)
        assert torch.equal(ours[name], theirs[name])
    assert ours.word_ids(0) == theirs.word_ids(0)


def test_what_is_no_batch_of_tensors_is_as_before(folder):
    found, plain = LatentTokenizer.from_pretrained(folder), PreTrainedTokenizerFast.from_pretrained(folder)
    assert found(TEXTS) == plain(TEXTS)
    assert found(text_target=TEXTS) == plain(text_target=TEXTS)
    pairs = {"text": TEXTS, "text_pair": TEXTS[::-1], "padding": True, "return_tensors": "pt"}
    pairs["return_token_type_ids"] = True
    assert torch.equal(found(**pairs).input_ids, plain(**pairs).input_ids)
    assert torch.equal(found("the dog", return_tensors="pt").input_ids, plain("the dog", return_tensors="pt").input_ids)
    words = {"text": ["the", "dog"], "is_split_into_words": True, "return_tensors": "pt"}
    assert torch.equal(found(**words).input_ids, plain(**words).input_ids)
    with pytest.raises(ValueError, match="'padding=True'"):
        found(TEXTS, return_tensors="pt")


def test_a_pair_needs_token_type_ids(folder):
    found = LatentTokenizer.from_pretrained(folder)
    for pair in ({"text": "the dog", "text_pair": "a cat"}, {"text": [["the dog", "a cat"]], "return_tensors": "pt"}):
        with pytest.raises(ValueError, match="a pair of texts"):
            found(**pair)
    found.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    assert found("the dog", "a cat").token_type_ids == [0, 0, 0, 1, 1, 1]


def test_a_lone_surrogate_is_named(folder):
    found = LatentTokenizer.from_pretrained(folder)
    for given, position in ((["the dog", "a \ud83d cat"], 1), ("a \ud83d cat", 0)):
        with pytest.raises(ValueError, match=rf"Text {position} has '\\ud83d' at character 2"):
            found(given)
    with pytest.raises(ValueError, match="text input must be"):
        found([1])


@pytest.mark.parametrize("limit", [NO_LIMIT, None])
def test_without_a_limit_nothing_is_padded_to_it(folder, limit):
    found = LatentTokenizer.from_pretrained(folder)
    if limit:
        found.model_max_length = limit
    for given in (None, NO_LIMIT):
        padded = found(["the dog", "a"], padding="max_length", truncation=True, max_length=given)
        assert padded == found(["the dog", "a"])
    assert found.pad({"input_ids": [[2, 3], [3]]}, padding="max_length").input_ids == [[2, 3], [3]]
    found.model_max_length = 4
    assert [len(row) for row in found(["the dog", "a"], padding="max_length").input_ids] == [4, 4]


def test_without_this_package_the_plain_tokenizer_is_loaded(folder):
    code = (
        "import sys, transformers; tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1]); "
        "assert 'hf_meanmax' not in sys.modules; print(type(tokenizer).__name__, tokenizer('the dog').input_ids)"
    )
    run = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    ids = LatentTokenizer.from_pretrained(folder)("the dog").input_ids
    assert run.stdout.split(maxsplit=1) == [PreTrainedTokenizerFast.__name__, f"{ids}\n"]
