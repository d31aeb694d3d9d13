"""Expanding a checkpoint from the command line: the new folder loads wherever the old one does."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForPreTraining, AutoModelForSeq2SeqLM, AutoTokenizer

from hf_meanmax import RNNCNNForContextPrediction
from hf_meanmax.checkpoint.card import write_model_card
from hf_meanmax.checkpoint.expand import expand_checkpoint
from hf_meanmax.checkpoint.folder import load_checkpoint, save_checkpoint, saved_training_args
from hf_meanmax.checkpoint.sentence_transformer import saved_normalization
from hf_meanmax.commands.expand import main
from hf_meanmax.tokenization import WordVectors
from tiny_model import SPECIALS, WORDS, make_model, make_tokenizer, run_python

# The models here are random, so no map can place their words.
pytestmark = pytest.mark.filterwarnings("ignore:The map says little")

NEW = ["zebra", "gnu"]
TEXT = "the zebra sat on a gnu"
CONTEXT = {"decoder_channels": [8, 12, 8], "num_context_words": 4}


@pytest.fixture
def vectors(tmp_path):
    rng = np.random.default_rng(0)
    # Of another dimension than the word table.
    path = tmp_path / "vectors.safetensors"
    WordVectors(WORDS + NEW, rng.standard_normal((len(WORDS + NEW), 5)).astype(np.float32)).save(path)
    return path


def make_checkpoint(folder, **options):
    if options.pop("context", False):
        model = make_model(full_class=RNNCNNForContextPrediction, **CONTEXT)
    else:
        model = make_model(**options.pop("model", {}))
    return save_checkpoint(model, make_tokenizer(), folder, **options)


def test_prompts_and_the_length_limit_stay(vectors, tmp_path):
    old = make_checkpoint(tmp_path / "old")
    prompts = {"prompts": {"query": "the "}, "default_prompt_name": "query", "similarity_fn_name": "dot"}
    for name, settings in (
        ("config_sentence_transformers.json", prompts),
        ("sentence_bert_config.json", {"max_seq_length": 3}),
    ):
        (old / name).write_text(json.dumps({**json.loads((old / name).read_text()), **settings}))
    expand_checkpoint(old, vectors, tmp_path / "new")
    new = SentenceTransformer(str(tmp_path / "new"), device="cpu")
    assert (new.prompts["query"], new.default_prompt_name, new.max_seq_length) == ("the ", "query", 3)
    assert new.similarity_fn_name == "dot"


@pytest.mark.parametrize("context", [False, True], ids=["mean-max", "rnn-cnn"])
@pytest.mark.parametrize("normalize", [None, "rows", "embedding"])
def test_an_expanded_checkpoint_loads_everywhere(context, normalize, vectors, tmp_path):
    old = make_checkpoint(
        tmp_path / "old", context=context, normalize=normalize, training_args={"objective": "next_words", "seed": 7}
    )
    expansion = expand_checkpoint(old, vectors, tmp_path / "new")
    folder = tmp_path / "new"
    size = len(SPECIALS + WORDS)
    assert expansion.added == 2
    assert saved_normalization(folder) == normalize
    args = saved_training_args(folder)
    assert (args["seed"], args["vocabulary_expansion"]["words_added"]) == (7, 2)
    assert args["vocabulary_expansion"]["map"]["words"] == len(WORDS)

    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(TEXT, return_tensors="pt")
    assert ids.input_ids[0, [1, 5]].tolist() == [size, size + 1]
    encoder = AutoModel.from_pretrained(folder).eval()
    whole = (AutoModelForPreTraining if context else AutoModelForSeq2SeqLM).from_pretrained(folder).eval()
    assert (whole.config.vocab_size, whole.config.input_vocab_size) == (size, size + 2)
    with torch.no_grad():
        latents = encoder(**ids).latents
        assert torch.equal(whole(**ids).latents, latents)
        embedding = encoder(**ids).pooler_output[0]
    if normalize == "rows":
        embedding = torch.nn.functional.normalize(latents, dim=-1).flatten()
    elif normalize:
        embedding = torch.nn.functional.normalize(embedding, dim=0)
    encoded = SentenceTransformer(str(folder), device="cpu").encode([TEXT], convert_to_tensor=True)[0]
    torch.testing.assert_close(encoded, embedding)
    if context:
        assert whole.predict_words(sentence_embedding=encoder(**ids).pooler_output)[0].max() < size
    else:
        assert whole.generate(sentence_embedding=encoder(**ids).pooler_output).max() < size

    # What was known is encoded, and decoded, as before.
    before, _ = load_checkpoint(old)
    known = tokenizer("the cat sat", return_tensors="pt")
    with torch.no_grad():
        assert torch.equal(before(**known).latents, whole(**known).latents)
        torch.testing.assert_close(before(**known).logits, whole(**known).logits)
    card = write_model_card(folder, "somebody/expanded").read_text(encoding="utf-8")
    assert "vocabulary_expansion.words_added" in card


@pytest.mark.parametrize("decoder", ["attention", "none"])
def test_a_weighted_mean_has_weights_for_the_new_words(decoder, vectors, tmp_path):
    old = make_checkpoint(tmp_path / "old", model={"weighted_mean_row": True, "decoder_type": decoder})
    expand_checkpoint(old, vectors, tmp_path / "new")
    tokenizer, encoder = AutoTokenizer.from_pretrained(tmp_path / "new"), AutoModel.from_pretrained(tmp_path / "new")
    row = encoder.eval()(**tokenizer(TEXT, return_tensors="pt")).latents[0, -1]
    known = tokenizer("the sat on a", return_tensors="pt")
    before = AutoModel.from_pretrained(old).eval()
    assert torch.equal(encoder(**known).latents, before(**known).latents)
    # Untrained weights are all the same, so this is the mean of the words, the new ones included.
    ids = tokenizer(TEXT).input_ids[:-1]
    words = encoder.embeddings.word_embeddings.weight[ids].mean(dim=0)
    torch.testing.assert_close(row, encoder.word_pooler.map(words))


def test_an_expanded_checkpoint_loads_with_the_code_it_carries(vectors, tmp_path):
    folder = tmp_path / "new"
    expand_checkpoint(make_checkpoint(tmp_path / "old", context=True), vectors, folder)
    code = (
        "import sys; from transformers import AutoModel, AutoTokenizer\n"
        f"model = AutoModel.from_pretrained({str(folder)!r}, trust_remote_code=True).eval()\n"
        f"tokenizer = AutoTokenizer.from_pretrained({str(folder)!r}, trust_remote_code=True)\n"
        f"print(model(**tokenizer({TEXT!r}, return_tensors='pt')).pooler_output.sum().item())\n"
    )
    result = run_python("-c", code, with_package=False, HF_HOME=str(tmp_path / "hub"))
    assert result.returncode == 0, result.stderr
    expected = AutoModel.from_pretrained(folder).eval()
    ids = AutoTokenizer.from_pretrained(folder)(TEXT, return_tensors="pt")
    assert float(result.stdout) == pytest.approx(expected(**ids).pooler_output.sum().item(), rel=1e-5)


def test_command_line(vectors, tmp_path, capsys):
    old = make_checkpoint(tmp_path / "old", context=True)
    texts = tmp_path / "texts.txt"
    texts.write_text(f"{TEXT}\n\nthe yak\n", encoding="utf-8")
    main([str(old), str(vectors), "--output", str(tmp_path / "new"), "--texts", str(texts)])
    told = capsys.readouterr().out
    assert "2 words added, 16 in all" in told
    assert "the map: 10 words in both; on 1 held-out" in told
    assert "unknown words before: 37.50% of 8" in told
    assert "unknown words after: 12.50% of 8" in told
    main([str(old), str(vectors), "--output", str(tmp_path / "less"), "--limit", str(len(WORDS) + 1)])
    assert "1 word added, 15 in all" in capsys.readouterr().out
    # An older expansion is replaced.
    main([str(old), str(vectors), "--output", str(tmp_path / "less")])
    assert "2 words added, 16 in all" in capsys.readouterr().out


def test_what_cannot_be_expanded_is_told_in_one_line(vectors, tmp_path):
    old, taken = make_checkpoint(tmp_path / "old"), make_checkpoint(tmp_path / "trained")
    before = {path.name: path.read_bytes() for path in old.iterdir() if path.is_file()}
    other = tmp_path / "other.safetensors"
    WordVectors(["zebra"], np.ones((1, 5), dtype=np.float32)).save(other)
    for words, message in (
        ([str(old), str(vectors), "--output", str(old)], "is what would be read"),
        ([str(tmp_path / "none"), str(vectors), "--output", str(tmp_path / "new")], "No checkpoint folder"),
        ([str(old), str(tmp_path / "none.txt"), "--output", str(tmp_path / "new")], "none.txt"),
        ([str(old), str(other), "--output", str(tmp_path / "new")], "none of the 1 words"),
        ([str(old), str(vectors), "--output", str(taken)], "something else than an expanded checkpoint"),
    ):
        with pytest.raises(SystemExit, match=f"^hf-meanmax expand: .*{message}"):
            main(words)
    assert not (tmp_path / "new").exists()
    assert {path.name: path.read_bytes() for path in old.iterdir() if path.is_file()} == before
    assert json.loads((old / "config.json").read_text())["input_vocab_size"] == len(SPECIALS + WORDS)
