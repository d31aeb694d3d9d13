"""Whole runs of a second: what they write, that they learn, and that interruptions change nothing."""

from __future__ import annotations

import copy
import errno
import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForPreTraining, AutoModelForSeq2SeqLM, AutoTokenizer

from hf_meanmax.commands.pretrain import main
from hf_meanmax.data import MicroBatches
from hf_meanmax.evaluation import reconstruct, score_reconstructions
from hf_meanmax.modeling.conditional_decoding import LatentForConditionalDecoding
from hf_meanmax.tokenization.word_vectors import WordVectors
from hf_meanmax.training import checkpoints as checkpoints_module
from hf_meanmax.training import pretrain as module
from hf_meanmax.training.pretrain import Run, pretrain
from hf_meanmax.training.schedule import Schedule
from hf_meanmax.training.validation import Validation
from tiny_model import make_model, python_environment, run_python

ROOT = Path(__file__).resolve().parents[2]
HARD = {
    "embedding_dropout": 0.2,
    "attention_dropout": 0.1,
    "word_drop": 0.2,
    "word_swap": 0.2,
    "softmax": "sampled",
    "num_negatives": 5,
    "gradient_accumulation_steps": 2,
    "lr_schedule": "cosine",
    "warmup_steps": 3,
    "batch_tokens": 80,
}


GATED_RAE = {
    "family": "gated_mean_max_aae",
    "encoder_type": "bilstm",
    "pooling": "mean_max_last",
    "decoder_type": "lstm_gates",
    "position_embedding_type": "none",
    "initializer_range": 0.7,
}
NOISE = {"word_drop": 0.1, "word_swap": 0.1}
OTHER_MODELS = {
    "gated": {"family": "gated_mean_max_aae", "initializer_range": 0.7},
    "gated_rae": GATED_RAE,
    "lstm_sdae": {"encoder_type": "lstm", "pooling": "last", "decoder_type": "lstm", **NOISE},
    "cnn_lstm": {"encoder_type": "cnn", "pooling": "max", "decoder_type": "lstm", **NOISE},
    "structured": {"family": "structured_self_attention", "latent_heads": 3, "pooling_hidden_size": 8},
}
RNN_CNN = {"family": "rnn_cnn", "objective": "next_words", "decoder_channels": [12, 16, 8], "num_context_words": 9}
GRU = {**RNN_CNN, "decoder_type": "gru"}
CONTEXT_MODELS = {
    "rnn_cnn": {**RNN_CNN, "softmax": "sampled", "num_negatives": 30, **NOISE},
    "gru_own": {**GRU, "decoder_inputs": "own"},
    "gru_random": {**GRU, "decoder_inputs": "random"},
    "skip_thought": {
        "family": "rnn_cnn",
        "objective": "neighbours",
        "encoder_type": "gru",
        "pooling": "last",
        "decoder_type": "gru",
        "predict_previous": True,
        "tie_word_embeddings": False,
    },
    "mean_max_aae": {"objective": "next_words", "num_context_words": 9, "gradient_accumulation_steps": 2},
}


def records(folder: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


def losses(folder: str | Path) -> dict[int, float]:
    """The loss of each logged step; fails if one is logged twice."""
    found = [(record["step"], record["loss"]) for record in records(folder) if "loss" in record]
    assert len(found) == len(dict(found)), "a step is logged twice"
    return dict(found)


def weights(folder: str | Path) -> dict[str, torch.Tensor]:
    return load_file(Path(folder) / "model" / "model.safetensors")


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def built(args) -> Run:
    """A run ready for its first step."""
    run = Run(args)
    run._claim_folder()
    run.prepared = module.prepare(args, show_progress=False)
    run._build()
    return run


class Killed(BaseException):
    """Stands for a kill: nothing may catch it."""


def interrupt(monkeypatch, at_step: int, what) -> None:
    """Calls `what()` before the optimizer step that makes `at_step` + 1."""
    original = Run._step

    def step(self, *args):
        if self.state["step"] == at_step:
            what()
        return original(self, *args)

    monkeypatch.setattr(Run, "_step", step)


def kill() -> None:
    raise Killed


@pytest.mark.parametrize("softmax", ["full", "chunked", "sampled"])
def test_a_whole_run(make_arguments, softmax, capsys):
    args = make_arguments(
        softmax=softmax,
        num_negatives=10,
        eval_steps=4,
        sample_sentences=2,
        checkpoint_steps=3,
        showcase=softmax == "full",
    )
    summary = pretrain(args)
    run, model_folder = Path(args.output_dir), Path(args.output_dir) / "model"

    assert (summary["steps"], summary["stopped_by"]) == (8, "steps")
    assert summary["tokens_per_second"] > 0
    assert 0 < summary["share_of_matrix_rate"] < 1
    assert summary["peak_memory_bytes"] > 1e7
    assert 0 <= summary["validation_exact_match"] <= 1
    found = records(run)
    assert [record["step"] for record in found if "loss" in record] == list(range(1, 9))
    assert [record["step"] for record in found if "validation_loss" in record] == [4, 8]
    assert found[-1] == {"step": 8, **json.loads(json.dumps(summary))}
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert names[-2:] == ["step-00000006", "step-00000008"]

    model = AutoModelForSeq2SeqLM.from_pretrained(model_folder).eval()
    encoder = AutoModel.from_pretrained(model_folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    texts = ["the cat saw a book in town", "a dog"]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        embedding = encoder(**batch).pooler_output
        said = model.generate(sentence_embedding=embedding, max_new_tokens=5)
    encoded = SentenceTransformer(str(model_folder), device="cpu").encode(texts, convert_to_tensor=True)
    torch.testing.assert_close(encoded, embedding)
    assert torch.equal(model.generate(**batch, max_new_tokens=5), said)

    told = json.loads((model_folder / "training_args.json").read_text())
    shared = args.to_share()
    assert {key: told[key] for key in shared} == shared
    # The settings as they were given, but for the paths of this machine.
    changed = {key for key, value in args.to_dict().items() if value != shared[key]}
    assert changed == {"corpus", "validation", "output_dir", "cache_dir"}
    assert str(run.parent) not in json.dumps(told)
    assert told["results"] == json.loads(json.dumps(summary))
    suffixes = {path.suffix for path in run.rglob("*") if path.is_file()}
    assert suffixes <= {".json", ".jsonl", ".safetensors", ".py"}

    output = capsys.readouterr().out
    assert re.search(r"step 4: validation loss \d", output)
    assert output.count(" -> ") >= 2
    assert "8 steps" in output
    assert f"saved to {model_folder}" in output
    assert ("to use it:" in output) == args.showcase


def test_it_learns_to_reconstruct(make_arguments):
    args = make_arguments(max_steps=400, hidden_size=32, intermediate_size=32, embedding_size=16, log_steps=20)
    summary = pretrain(args)
    curve = losses(args.output_dir)
    assert curve[20] > 1.5
    assert curve[400] < 0.1
    assert summary["validation_accuracy"] > 0.99
    assert summary["validation_exact_match"] > 0.9
    model = AutoModelForSeq2SeqLM.from_pretrained(Path(args.output_dir) / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(Path(args.output_dir) / "model")
    text = "her sister painted the green door near the mill"
    assert score_reconstructions(tokenizer, [text], reconstruct(model, tokenizer, [text])).exact_match == 1


@pytest.mark.parametrize("name", OTHER_MODELS)
def test_other_families_and_parts_learn(make_arguments, name):
    """A short run of each: the loss falls, and the folder encodes and decodes as the model does."""
    args = make_arguments(max_steps=40, log_steps=10, softmax="sampled", num_negatives=30, **OTHER_MODELS[name])
    pretrain(args)
    curve = losses(args.output_dir)
    assert curve[40] < 0.8 * curve[10]
    folder = Path(args.output_dir) / "model"
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = ["the cat saw a book in town", "a dog", ""]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    encoded = SentenceTransformer(str(folder), device="cpu").encode(texts, convert_to_tensor=True)
    torch.testing.assert_close(encoded, model.encoder(**batch).pooler_output)
    said = model.generate(sentence_embedding=encoded, max_new_tokens=9)
    assert torch.equal(said, model.generate(**batch, max_new_tokens=9))


@pytest.fixture
def counted(texts, tmp_path) -> dict[str, Any]:
    """Documents whose sentences tell what follows them: the numbers in their order, from one at random on."""
    numbers = "one two three four five six seven eight nine ten".split()
    documents = [
        "\n".join(f"{numbers[(start + i) % 10]} {numbers[(start + i + 1) % 10]}" for i in range(0, 12, 2))
        for start in range(60)
    ]
    (tmp_path / "counted.txt").write_text("\n\n".join(documents) + "\n")
    (tmp_path / "held-out.txt").write_text("\n\n".join(documents[:12]) + "\n")
    files = {"corpus": [str(tmp_path / "counted.txt")], "validation": [str(tmp_path / "held-out.txt")]}
    return {**files, "min_tokens": 1, "max_tokens": 8, "batch_tokens": 240, "max_steps": 30, "log_steps": 10}


@pytest.mark.parametrize("name", CONTEXT_MODELS)
def test_objectives_of_context_learn(make_arguments, counted, name, capsys):
    """The loss falls, and the folder holds an encoder whose vectors are the model's."""
    args = make_arguments(**counted, **CONTEXT_MODELS[name])
    summary = pretrain(args)
    curve = losses(args.output_dir)
    assert curve[30] < 0.9 * curve[10]
    assert 0 < summary["validation_accuracy"] <= 1
    assert "validation_bleu" not in summary
    assert " -> " not in capsys.readouterr().out
    folder = Path(args.output_dir) / "model"
    auto_class = AutoModelForSeq2SeqLM if name == "mean_max_aae" else AutoModelForPreTraining
    model = auto_class.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    lines = ["one two", "seven eight", ""]
    batch = tokenizer(lines, padding=True, return_tensors="pt")
    expected = AutoModel.from_pretrained(folder)(**batch).pooler_output
    encoded = SentenceTransformer(str(folder), device="cpu").encode(lines, convert_to_tensor=True)
    torch.testing.assert_close(encoded, expected)
    torch.testing.assert_close(model.encode_latents(**batch).flatten(1), expected)
    if model.config.is_autoregressive:
        assert model.generate(sentence_embedding=encoded, max_new_tokens=4).shape[0] == 3
    else:
        ids, _ = model.predict_words(sentence_embedding=encoded, top_k=1)
        assert ids.shape == (3, 9, 1)


def test_next_words_are_learnt(make_arguments, counted):
    """What follows is said at its place; the last sentence of a document has nothing to say."""
    args = make_arguments(**{**counted, **RNN_CNN, "max_steps": 150})
    run = built(args)
    assert len(run.batches.sentences) == 60 * 5
    summary = pretrain(make_arguments("again", **{**counted, **RNN_CNN, "max_steps": 150}))
    assert summary["validation_accuracy"] > 0.9
    folder = Path(args.output_dir).with_name("again") / "model"
    model, tokenizer = AutoModelForPreTraining.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    ids, _ = model.predict_words(**tokenizer(["three four"], return_tensors="pt"), top_k=1)
    assert tokenizer.decode(ids[0, :8, 0]) == "five six seven eight nine ten one two"


def test_a_frozen_output_layer_is_told(make_arguments, counted, capsys):
    for name, tied, biased in (("tied", True, False), ("own", False, False), ("biased", True, True)):
        layer = {"freeze_word_embeddings": True, "tie_word_embeddings": tied, "output_bias": biased}
        built(make_arguments(name, **{**counted, **RNN_CNN, **layer}))
        told = "the output layer is the frozen word table" in capsys.readouterr().out
        assert told == (tied and not biased)


def test_sentences_are_learnt_with_the_words_after_them(make_arguments, counted):
    """Both losses fall, the held-out sentences are scored alone, and the finished model says its text."""
    context = {"context_channels": [24, 16], "num_context_words": 9, "context_weight": 0.5}
    args = make_arguments(**{**counted, **context, "softmax": "sampled", "num_negatives": 30, "max_steps": 150})
    summary = pretrain(args)
    logged = [record for record in records(args.output_dir) if "context_loss" in record]
    assert logged[-1]["context_loss"] < 0.5 * logged[0]["context_loss"]
    assert summary["validation_accuracy"] > 0.9
    model = AutoModelForSeq2SeqLM.from_pretrained(Path(args.output_dir) / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(Path(args.output_dir) / "model")
    said = model.generate(**tokenizer(["three four"], return_tensors="pt"))
    assert tokenizer.decode(said[0], skip_special_tokens=True) == "three four"


@pytest.mark.parametrize("how", ["own", "random"])
def test_what_the_decoder_is_fed(make_arguments, counted, how):
    """Behind the start symbol its own draws, such as one forward pass over them gives, or any word; not the targets."""
    from hf_meanmax.objectives.decoder_inputs import feed_decoder, own_inputs, random_inputs

    run = built(make_arguments(**{**counted, **GRU, "decoder_inputs": how}))
    _, (batch, *_), _ = next(run.batches.iterate(0))
    fed = feed_decoder(run.model, batch, how)
    assert {name: fed[name] is batch[name] for name in batch} == dict.fromkeys(batch, True)
    words, labels = fed["decoder_input_ids"], batch["labels"]
    assert words.shape == labels.shape
    assert (words[:, 0] == 2).all()
    inner = words[:, 1:][labels[:, 1:] != -100]
    assert (words[:, 1:][labels[:, :-1] == -100] == 0).all()
    assert (inner != batch["labels"][:, :-1][labels[:, 1:] != -100]).float().mean() > 0.3
    if how == "random":
        assert inner.min() >= 4
        assert len(inner.unique()) > 5
        torch.manual_seed(1)
        first = random_inputs(run.model, labels)
        assert not torch.equal(first, random_inputs(run.model, labels))
        return
    # With scores that leave no choice, a draw is the likeliest word of what was said before it.
    run.model.eval()
    with torch.no_grad():
        run.model.encoder.get_input_embeddings().weight.mul_(300)
    full = {name: batch[name] for name in ("input_ids", "attention_mask") if name in batch}
    labels = torch.full((len(labels), 7), 5)
    said = own_inputs(run.model, labels, **full)
    logits = run.model(**full, decoder_input_ids=said).logits
    is_sure = logits.softmax(dim=-1).amax(dim=-1)[:, :-1] > 1 - 1e-6
    assert is_sure.float().mean() > 0.5
    assert torch.equal(logits.argmax(dim=-1)[:, :-1][is_sure], said[:, 1:][is_sure])
    assert own_inputs(run.model, labels[:, :1], **full).tolist() == [[2]] * len(labels)


def test_draws_follow_the_scores():
    """Each word as often as its probability says, from the first to the last, and an impossible one never."""
    from hf_meanmax.objectives.decoder_inputs import draw

    torch.manual_seed(0)
    scores = torch.tensor([[2.0, 0.0, -1e9, 1.0, -1.0], [-1e9, -1e9, 0.0, -1e9, 0.0]])
    drawn = torch.stack([draw(scores)[:, 0] for _ in range(4000)])
    for row, expected in enumerate(scores.softmax(dim=-1)):
        shares = torch.bincount(drawn[:, row], minlength=5) / len(drawn)
        assert shares[expected < 1e-6].sum() == 0
        assert (shares - expected).abs().max() < 0.03


def test_a_context_run_goes_on_where_it_stopped(make_arguments, counted, monkeypatch):
    """Killed between checkpoints, and its draws repeat too."""
    options = {**counted, **GRU, "decoder_inputs": "own", "max_steps": 7, "log_steps": 1}
    whole = make_arguments("whole", **options)
    pretrain(whole)
    args = make_arguments("killed", **options)
    with monkeypatch.context() as patch:
        interrupt(patch, 5, kill)
        with pytest.raises(Killed):
            pretrain(args)
    pretrain(args)
    assert losses(args.output_dir) == losses(whole.output_dir)
    assert same(weights(args.output_dir), weights(whole.output_dir))


def test_held_out_texts_without_a_context_are_found_at_the_start(make_arguments, counted, tmp_path):
    (tmp_path / "single.txt").write_text("one two\n\nthree four\n")
    args = make_arguments(**{**counted, **RNN_CNN, "validation": [str(tmp_path / "single.txt")]})
    with pytest.raises(ValueError, match="No sentence of 1 to 8 tokens has a neighbour"):
        pretrain(args)
    assert not (Path(args.output_dir) / "metrics.jsonl").exists()


def test_texts_without_a_context_are_found_before_words_are_trained(make_arguments, counted, monkeypatch, tmp_path):
    (tmp_path / "apart.txt").write_text("one two\n\nthree four\n\n" * 40)
    monkeypatch.setattr("hf_meanmax.training.pretrain.prepare_word_vectors", lambda *args: pytest.fail("trains words"))
    args = make_arguments(**{**counted, **RNN_CNN, "corpus": [str(tmp_path / "apart.txt")]})
    with pytest.raises(ValueError, match="No sentence of 1 to 8 tokens has a neighbour"):
        pretrain(args)


def test_the_longest_text_bounds_what_a_vector_says(make_arguments, tmp_path):
    """1.5 times its 201 tokens, with the end token, or 16; what was left out for its length does not count."""
    lines = ["the cat saw a book in town " * 28 + "a red dog ran", "the cat saw a book in town " * 40, "a dog ran home"]
    (tmp_path / "long.txt").write_text("\n".join(lines * 3))
    for most, bound in ((250, 302), (8, 16)):
        run = {"max_tokens": most, "batch_tokens": 512, "max_steps": 1}
        args = make_arguments(f"run-{most}", corpus=[str(tmp_path / "long.txt")], **run)
        pretrain(args)
        model = AutoModelForSeq2SeqLM.from_pretrained(Path(args.output_dir) / "model")
        assert model.generation_config.max_new_tokens == bound


@pytest.mark.parametrize("softmax", ["full", "chunked"])
def test_gradient_of_a_step_is_that_of_one_batch(make_arguments, monkeypatch, softmax):
    """Micro batches of unlike numbers of targets: the loss is the mean over all targets, not over micro batches."""
    run = built(make_arguments(gradient_accumulation_steps=3, batch_tokens=61, softmax=softmax, max_grad_norm=0))
    _, micro_batches, num_targets = next(run.batches.iterate(0))
    sizes = [int((batch["labels"] != -100).sum()) for batch in micro_batches]
    assert len(set(sizes)) > 1
    assert sum(sizes) == num_targets

    reference = copy.deepcopy(run.model).double()
    total = 0.0
    for batch in micro_batches:
        for row in range(len(batch["labels"])):
            ids = batch["labels"][row][batch["labels"][row] != -100][None]
            logits = reference(input_ids=ids, labels=ids).logits
            total = total + torch.nn.functional.cross_entropy(logits[0], ids[0], reduction="sum") / num_targets
    total.backward()

    gradients = []
    (optimizer,), trained = run.optimization.optimizers, run.optimization.trained
    monkeypatch.setattr(optimizer, "step", lambda: gradients.extend(p.grad.to_dense() for p in trained))
    (loss,) = run._step(micro_batches, num_targets)
    torch.testing.assert_close(loss.double(), total, atol=1e-5, rtol=1e-5)
    for ours, theirs in zip(gradients, reference.parameters(), strict=True):
        torch.testing.assert_close(ours.double(), theirs.grad.to_dense(), atol=1e-6, rtol=1e-4)


SPARSE = {
    "untied": {"softmax": "sampled", "num_negatives": 5},
    "tied": {"softmax": "sampled", "num_negatives": 5, "tie_word_embeddings": True},
    "full": {"tie_word_embeddings": True},
    "chunked": {"softmax": "chunked"},
    "rnn_cnn": {**RNN_CNN, "softmax": "sampled", "num_negatives": 5},
}


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_gradients_are_the_dense_ones(make_arguments, counted, monkeypatch, name):
    options = {**(counted if name == "rnn_cnn" else {}), **SPARSE[name], "gradient_accumulation_steps": 2}
    found = {}
    for sparse in (False, True):
        if not sparse:
            monkeypatch.setattr(LatentForConditionalDecoding, "make_gradients_sparse", lambda self: None)
        run = built(make_arguments(f"sparse-{sparse}", max_grad_norm=0.5, **options))
        monkeypatch.undo()

        def keep(run=run, sparse=sparse):
            found[sparse] = [parameter.grad.clone() for parameter in run.optimization.trained]

        monkeypatch.setattr(run.optimization.optimizers[0], "step", keep)
        _, micro_batches, num_targets = next(run.batches.iterate(0))
        run._step(micro_batches, num_targets)
    number = {"untied": 2, "full": 0}.get(name, 1)
    assert sum(gradient.is_sparse for gradient in found[True]) == number
    assert not any(gradient.is_sparse for gradient in found[False])
    for ours, theirs in zip(found[True], found[False], strict=True):
        torch.testing.assert_close(ours.to_dense(), theirs, atol=1e-6, rtol=1e-5)


OPTIMIZERS = {
    "lazy-adam": {"lazy_adam": True},
    "muon": {"optimizer": "muon", "muon_interval": 3},
    "muon-lazy-adam": {"optimizer": "muon", "lazy_adam": True},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_learn_and_go_on_after_a_kill(make_arguments, monkeypatch, name):
    options = {"softmax": "sampled", "num_negatives": 5, "checkpoint_steps": 2, **OPTIMIZERS[name]}
    whole, killed = (make_arguments(name, max_steps=30, **options) for name in ("whole", "killed"))
    pretrain(whole)
    told = losses(whole.output_dir)
    assert np.mean([told[step] for step in range(26, 31)]) < 0.8 * np.mean([told[step] for step in range(1, 6)])
    with monkeypatch.context() as patch:
        interrupt(patch, 5, kill)
        with pytest.raises(Killed):
            pretrain(killed)
    pretrain(killed)
    assert same(weights(killed.output_dir), weights(whole.output_dir))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"softmax": "full"}, "'sampled', not 'full'"),
        ({"weight_decay": 0.1}, "`weight_decay`"),
        ({"compile": True}, "`compile`"),
        ({"adam_beta1": 0.95, "adam_beta2": 0.9}, "0.95 and 0.9 are given"),
    ],
)
def test_lazy_adam_says_what_it_does_not_go_with(make_arguments, settings, told):
    with pytest.raises(ValueError, match=told):
        make_arguments(**{"softmax": "sampled", "lazy_adam": True, **settings})


def test_penalty_is_a_mean_over_the_sentences_of_a_step(make_arguments, monkeypatch):
    """Micro batches of unlike numbers of sentences; the penalty is logged beside the loss that holds it."""
    structured = {**OTHER_MODELS["structured"], "attention_penalty": 0.3}
    run = built(make_arguments(gradient_accumulation_steps=3, batch_tokens=75, **structured))
    _, micro_batches, num_targets = next(run.batches.iterate(0))
    assert len({len(batch["labels"]) for batch in micro_batches}) > 1
    penalties, words = [], 0.0
    with torch.no_grad():
        for batch in micro_batches:
            del batch["num_sentences_in_batch"]
            for row in range(len(batch["labels"])):
                ids = batch["labels"][row][batch["labels"][row] != -100][None]
                output = run.model(input_ids=ids, labels=ids)
                penalties.append(output.attention_penalty)
                words += (output.loss - 0.3 * output.attention_penalty) * ids.numel() / num_targets
    _, micro_batches, num_targets = next(run.batches.iterate(0))
    monkeypatch.setattr(run.optimization.optimizers[0], "step", lambda: None)
    loss, penalty = run._step(micro_batches, num_targets)
    torch.testing.assert_close(penalty, torch.stack(penalties).mean(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(loss, words + 0.3 * penalty, atol=1e-5, rtol=1e-5)
    args = make_arguments(max_steps=3, **structured)
    pretrain(args)
    assert all(0 < record["attention_penalty"] < 9 for record in records(args.output_dir) if "loss" in record)


def test_gradients_are_clipped(make_arguments, monkeypatch):
    run = built(make_arguments(max_grad_norm=0.01))
    _, micro_batches, num_targets = next(run.batches.iterate(0))
    norms = []
    (optimizer,), trained = run.optimization.optimizers, run.optimization.trained
    monkeypatch.setattr(
        optimizer, "step", lambda: norms.append(torch.stack([p.grad.norm() for p in trained]).norm().item())
    )
    run._step(micro_batches, num_targets)
    assert norms[0] == pytest.approx(0.01, rel=1e-3)


def test_full_and_chunked_softmax_train_alike(make_arguments):
    curves = []
    for softmax in ("full", "chunked"):
        args = make_arguments(softmax, softmax=softmax, max_steps=5)
        pretrain(args)
        curves.append(losses(args.output_dir))
    assert curves[0] == pytest.approx(curves[1], abs=1e-5)


def test_schedules(make_arguments):
    def factors(total=10, **options):
        schedule = Schedule(make_arguments(max_steps=total, **options), total)
        return [schedule.factor(step, 0.0, 0) for step in range(total + 1)]

    assert factors() == [1.0] * 11
    assert factors(16, warmup_steps=4)[:6] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert factors(lr_schedule="linear") == pytest.approx([1 - step / 10 for step in range(11)])
    assert factors(20, lr_schedule="linear", warmup_steps=5)[4:8] == pytest.approx([1, 1, 14 / 15, 13 / 15])
    cosine = [0.5 + 0.5 * math.cos(math.pi * step / 10) for step in range(11)]
    assert factors(lr_schedule="cosine") == pytest.approx(cosine)
    # A run warms up for a quarter of its steps, its time or its tokens at most.
    expected = [0.25, 0.5, 0.75, 1, *(1 - step / 12 for step in range(13))]
    assert factors(16, lr_schedule="linear", warmup_steps=300) == pytest.approx(expected)
    warm = Schedule(make_arguments(max_steps=100, max_minutes=1, lr_schedule="linear", warmup_steps=25), 100)
    assert [warm.factor(step, seconds, 0) for step, seconds in ((0, 0.0), (3, 7.5), (5, 15.0), (9, 30.0))] == [
        1 / 25, 0.5, 0.75, 0.5,
    ]  # fmt: skip
    schedule = Schedule(make_arguments(max_steps=10, max_minutes=1, lr_schedule="linear"), 10)
    assert schedule.factor(0, 45.0, 0) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("limits", "state", "expected"),
    [
        ({}, (200, 12.0, 9000), 24_200),
        ({"max_minutes": 3}, (0, 0.0, 0), 24_200),
        ({"max_minutes": 3}, (200, 18.0, 9000), 2000),
        ({"max_training_tokens": 90_000}, (200, 18.0, 9000), 2000),
        ({"max_minutes": 3, "max_training_tokens": 45_000}, (200, 18.0, 9000), 1000),
        ({"max_minutes": 3}, (200, 181.0, 9000), 200),
        ({"max_minutes": 600}, (200, 18.0, 9000), 24_200),
    ],
)
def test_a_progress_bar_counts_to_what_ends_the_run(make_arguments, limits, state, expected):
    """Steps, seconds and tokens so far, and the steps that the limits leave at this pace."""
    assert Schedule(make_arguments(**limits), 24_200).expected_steps(*state) == expected


def test_the_learning_rate_is_the_schedule_s(make_arguments):
    args = make_arguments(max_steps=6, warmup_steps=2, lr_schedule="linear", learning_rate=0.004)
    pretrain(args)
    rates = [record["learning_rate"] for record in records(args.output_dir) if "loss" in record]
    assert rates == pytest.approx([0.002, 0.004, 0.004, 0.003, 0.002, 0.001])


def test_epochs_say_how_long(make_arguments):
    args = make_arguments(max_steps=0, epochs=1.5)
    run = built(args)
    assert run.total_steps == math.ceil(1.5 * run.steps_per_epoch)
    # The plan goes over the end of an epoch, and starts in the middle of one.
    run.state["step"] = run.steps_per_epoch - 1
    steps = run._steps()
    assert [next(steps)[:2] for _ in range(3)] == [(0, run.steps_per_epoch - 1), (1, 0), (1, 1)]
    steps.close()


def test_noise_is_in_the_input_alone(make_arguments):
    run = built(make_arguments(word_drop=0.3, word_swap=0.3))
    _, (batch, *_), _ = next(run.batches.iterate(0))
    clean = built(make_arguments("clean"))
    _, (expected, *_), _ = next(clean.batches.iterate(0))
    assert torch.equal(batch["labels"], expected["labels"])
    assert batch["input_ids"].shape != expected["input_ids"].shape or not torch.equal(
        batch["input_ids"], expected["input_ids"]
    )


def test_frozen_encoder(make_arguments):
    args = make_arguments(freeze_encoder=True, max_steps=3, embedding_dropout=0.5)
    model = built(args).model
    assert model.training
    assert not model.encoder.training
    start = copy.deepcopy(model.state_dict())
    pretrain(args)
    end = weights(args.output_dir)
    assert all(torch.equal(end[name], start[name]) for name in end if name.startswith("encoder."))
    assert all(not torch.equal(end[name], start[name]) for name in ("lm_head.weight", "lm_head.bias"))
    (checkpoint,) = Path(args.output_dir).glob("checkpoints/*")
    assert not any(name.startswith("encoder.") for name in load_file(checkpoint / "optimizer.safetensors"))


def test_frozen_word_vectors(make_arguments, tmp_path):
    (tmp_path / "vectors.txt").write_text("cat 1 2 3 4 5 6 7 8\nhouse 8 7 6 5 4 3 2 1\n")
    source = {"word_vectors": str(tmp_path / "vectors.txt"), "word_vector_scale": 0.0}
    args = make_arguments(freeze_word_embeddings=True, max_steps=3, **source)
    before = built(args).model.get_input_embeddings().weight.clone()
    pretrain(args)
    model = AutoModelForSeq2SeqLM.from_pretrained(Path(args.output_dir) / "model")
    table = model.get_input_embeddings().weight
    vocabulary = AutoTokenizer.from_pretrained(Path(args.output_dir) / "model").get_vocab()
    assert table[vocabulary["cat"]].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert torch.equal(table, before)
    assert not table.requires_grad


@pytest.mark.parametrize("freeze", [False, True])
def test_unknown_words_that_training_leaves_out_are_neutral(make_arguments, freeze):
    args = make_arguments(drop_unknown_words=True, freeze_word_embeddings=freeze, max_steps=2)
    embeddings = built(args).model.encoder.embeddings
    unknown = embeddings.embed_words(torch.tensor([embeddings.config.unk_token_id]))[0]
    words = embeddings.word_embeddings.weight[embeddings.config.num_special_tokens :]
    torch.testing.assert_close(unknown, words.mean(dim=0))
    pretrain(args)
    trained = AutoModel.from_pretrained(Path(args.output_dir) / "model").embeddings
    assert torch.equal(trained.embed_words(torch.tensor([embeddings.config.unk_token_id]))[0], unknown)


def test_output_layer_starts_from_how_frequent_words_are(make_arguments):
    """With nothing else in its scores it says each word as often as the corpus does; a word never seen counts once."""
    run = built(make_arguments())
    counts = np.maximum(run.prepared.output_store.token_counts, 1)
    assert len(set(counts.tolist())) > 3
    torch.testing.assert_close(
        run.model.lm_head.bias.detach().softmax(dim=0), torch.tensor(counts / counts.sum(), dtype=torch.float32)
    )
    assert not built(make_arguments(frequency_bias=False)).model.lm_head.bias.any()
    assert built(make_arguments(output_bias=False)).model.lm_head.bias is None
    with pytest.raises(ValueError, match=r"token_counts has shape \(3,\), expected \(\d+,\)"):
        run.model.start_from_frequencies(torch.ones(3))
    model = make_model(output_bias=False)
    with pytest.raises(ValueError, match="no bias to start from frequencies"):
        model.start_from_frequencies(torch.ones(model.config.vocab_size))


@pytest.mark.parametrize("width", [40, 24])
def test_output_layer_starts_from_the_word_vectors(width):
    """Its rows keep the cosines of the words where it is as wide, and nearly where it is not; words without a vector
    keep theirs."""
    model = make_model(hidden_size=width, embedding_size=32, num_attention_heads=4, vocab_size=50)
    words = model.get_input_embeddings().weight
    with torch.no_grad():
        words[7] = 0
    before = model.lm_head.weight.detach().clone()
    model.start_output_from_words()
    rows, others = model.lm_head.weight.detach(), [row for row in range(1, 50) if row != 7]
    assert torch.equal(rows[7], before[7])
    torch.testing.assert_close(rows[others].norm(dim=1), torch.full((48,), 0.7))
    cosines = [torch.nn.functional.normalize(x[others].detach(), dim=1) for x in (rows, words)]
    found, wanted = (x @ x.T for x in cosines)
    if width >= 32:
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
    else:
        assert torch.corrcoef(torch.stack([found.flatten(), wanted.flatten()]))[0, 1] > 0.7
    tied = make_model(tie_word_embeddings=True)
    with pytest.raises(ValueError, match="tied to the word table"):
        tied.start_output_from_words()


def test_word_vectors_start_the_output_layer_where_it_is_asked_for(make_arguments, tmp_path):
    words = sorted(set(built(make_arguments()).prepared.tokenizer.get_vocab()))
    rows = np.random.default_rng(0).normal(size=(len(words), 16)).astype(np.float32)
    WordVectors(words, rows).save(tmp_path / "words.safetensors")
    options = {"word_vectors": str(tmp_path / "words.safetensors"), "embedding_size": 16}
    for asked in (False, True):
        lengths = built(make_arguments(output_from_words=asked, **options)).model.lm_head.weight.norm(dim=1)
        assert bool(torch.isclose(lengths, torch.tensor(0.7)).float().mean() > 0.9) is asked
    assert built(make_arguments(output_from_words=True)).model.lm_head.weight.norm(dim=1).std() > 0.01


# Ending


def scripted(monkeypatch, accuracies: list[float]) -> None:
    """Evaluations that give these accuracies, the last one for ever."""
    rest = iter(accuracies)
    original = Validation.evaluate

    def evaluate(self):
        scores = original(self)
        return scores | {"validation_accuracy": next(rest, accuracies[-1])}

    monkeypatch.setattr(Validation, "evaluate", evaluate)


def test_early_stopping_exports_the_best(make_arguments, monkeypatch, capsys):
    args = make_arguments(max_steps=30, eval_steps=2, checkpoint_steps=7, early_stopping_patience=3, keep_checkpoints=1)
    scripted(monkeypatch, [0.1, 0.3, 0.5, 0.4, 0.5, 0.2, 0.9])
    summary = pretrain(args)
    # Best at the third evaluation, step 6; no better one at 8, 10 and 12.
    assert (summary["steps"], summary["stopped_by"]) == (12, "no better accuracy")
    told = capsys.readouterr().out
    assert "exporting the best checkpoint, step 6" in told
    assert "ended by --early_stopping_patience after 12 of 30 steps\n" in told
    folder = Path(args.output_dir)
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step-00000006", "step-00000012"]
    best = load_file(folder / "checkpoints" / "step-00000006" / "model.safetensors")
    assert same(weights(folder), best)
    # The same command again finds the run at its end.
    summary = pretrain(args)
    assert (summary["steps"], summary["stopped_by"]) == (12, "no better accuracy")
    assert same(weights(folder), best)
    assert len(losses(folder)) == 12


def test_early_stopping_may_be_asked_for_later(make_arguments, monkeypatch):
    """The best weights of before were not saved, so they do not count."""
    scripted(monkeypatch, [0.9, 0.1, 0.2, 0.3, 0.2])
    args = make_arguments(max_steps=5, eval_steps=3, checkpoint_steps=10)
    pretrain(args)
    summary = pretrain(make_arguments(max_steps=12, eval_steps=3, checkpoint_steps=10, early_stopping_patience=2))
    assert summary["steps"] == 12
    best = Path(args.output_dir) / "checkpoints" / "step-00000009"
    assert same(weights(args.output_dir), load_file(best / "model.safetensors"))


def test_time_limit(make_arguments, capsys):
    args = make_arguments(max_steps=1000, max_minutes=1e-6)
    summary = pretrain(args)
    assert (summary["steps"], summary["stopped_by"]) == (1, "time")
    assert "ended by --max_minutes after 1 of 1,000 steps\n" in capsys.readouterr().out
    # The time is up; more of it goes on from where the run was.
    assert pretrain(args)["steps"] == 1
    capsys.readouterr()
    summary = pretrain(make_arguments(max_steps=3, max_minutes=5))
    assert "ended by" not in capsys.readouterr().out
    assert (summary["steps"], summary["stopped_by"]) == (3, "steps")
    assert sorted(losses(args.output_dir)) == [1, 2, 3]


def test_token_limit(make_arguments):
    """The step that reaches it is the last; the learning rate falls with the tokens."""
    args = make_arguments(max_steps=1000, max_training_tokens=500, lr_schedule="linear", learning_rate=0.01)
    summary = pretrain(args)
    assert summary["stopped_by"] == "tokens"
    seen = [record for record in records(args.output_dir) if "loss" in record]
    assert seen[-2]["tokens"] < 500 <= seen[-1]["tokens"] == summary["tokens"]
    for before, record in itertools.pairwise(seen):
        assert record["learning_rate"] == pytest.approx(0.01 * (1 - before["tokens"] / 500))


def assert_saved_weights_are_finite(folder: str | Path) -> None:
    saved = list((Path(folder) / "checkpoints").iterdir())
    assert saved
    for path in saved:
        for name, tensor in load_file(path / "model.safetensors").items():
            assert tensor.isfinite().all(), (path, name)


def test_a_loss_that_is_no_number_stops_the_run(make_arguments):
    args = make_arguments(max_steps=30, checkpoint_steps=1, keep_checkpoints=50, learning_rate=1e20)
    message = (
        r"The loss is (nan|inf) at step (\d+) \(epoch 0\)\. Sentences of the batch \(indices in .*\): "
        r"([\d ]+)( \.\.\.)?\. Last good checkpoint: .*step-\d{8}\. Lower --learning_rate"
    )
    with pytest.raises(FloatingPointError, match=message) as caught:
        pretrain(args)
    assert_saved_weights_are_finite(args.output_dir)
    assert not (Path(args.output_dir) / "model").exists()
    _, step, rows, _ = re.search(message, str(caught.value)).groups()
    expected = np.concatenate(built(args).batches.plan.epoch(0).rows(int(step) - 1))
    assert rows.split() == list(map(str, expected[:20]))


def test_the_sentences_of_such_a_loss_are_named_by_their_place_in_the_store(make_arguments):
    """Which an objective that leaves some out numbers otherwise."""
    args = make_arguments(
        max_steps=30, checkpoint_steps=50, learning_rate=1e20, objective="next_words", min_tokens=7, max_tokens=8
    )
    with pytest.raises(FloatingPointError, match="The loss is") as caught:
        pretrain(args)
    rows = list(map(int, re.search(r"\): ([\d ]+)", str(caught.value))[1].split()))
    lengths = built(args).prepared.train.lengths[rows]
    assert set(lengths.tolist()) <= {8, 9}, "seven or eight tokens and </s>"


def test_a_sample_that_a_stream_cannot_hold_does_not_end_the_run(settings, tmp_path):
    lines = Path(settings["corpus"][0]).read_text(encoding="utf-8").split("\n")
    path = tmp_path / "other.txt"
    path.write_text("\n".join(f"\u0142\u00f3d\u017a {line}" for line in lines if line), encoding="utf-8")
    held_out = shutil.copy(path, tmp_path / "held-out.txt")
    changes = {"corpus": path, "validation": held_out, "max_steps": 2, "eval_steps": 1, "output_dir": tmp_path / "run"}
    plain = {key: value[0] if isinstance(value, list) else value for key, value in {**settings, **changes}.items()}
    options = [f"--{key}={value}" for key, value in plain.items()]
    result = run_python("-m", "hf_meanmax.commands", "pretrain", *options, PYTHONIOENCODING="ascii")
    assert result.returncode == 0, result.stderr[-2000:]
    assert "\\u0142" in result.stdout


def test_a_gradient_that_is_no_number_reaches_no_checkpoint(make_arguments, monkeypatch):
    """The loss of that step is finite still; the next one would show it, too late."""
    args = make_arguments(max_steps=30, checkpoint_steps=1)
    original = Run._step

    def step(self, *batch):
        if self.state["step"] == 3:
            self.model.lm_head.weight.register_hook(lambda gradient: gradient * float("nan"))
        return original(self, *batch)

    monkeypatch.setattr(Run, "_step", step)
    with pytest.raises(FloatingPointError, match=r"After step 4 .*Last good checkpoint: .*step-00000003"):
        pretrain(args)
    assert_saved_weights_are_finite(args.output_dir)


# Interruptions


@pytest.fixture
def uninterrupted(make_arguments):
    """(settings, folder) of a run with dropout, noise, sampling and accumulation."""
    options = {**HARD, "max_steps": 14, "checkpoint_steps": 4, "eval_steps": 5, "log_steps": 3}
    args = make_arguments("whole", **options)
    pretrain(args)
    return options, Path(args.output_dir)


def comparable(folder: str | Path) -> list[dict[str, Any]]:
    """All records without what depends on the machine's speed."""
    speed = {"tokens_per_second", "minutes", "cpu_minutes", "flops_per_token", "matrix_rate_flops"}
    speed |= {"share_of_matrix_rate", "peak_memory_bytes"}
    return [{key: value for key, value in record.items() if key not in speed} for record in records(folder)]


def check_that_a_kill_changes_nothing(whole: Any, killed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trains twice, the second time with a kill at step 3 and the same command again: logs and weights are equal."""
    pretrain(whole)
    with monkeypatch.context() as patch:
        interrupt(patch, 3, kill)
        with pytest.raises(Killed):
            pretrain(killed)
    pretrain(killed)
    assert comparable(killed.output_dir) == comparable(whole.output_dir)
    assert same(weights(killed.output_dir), weights(whole.output_dir))


def test_the_clocks_of_all_starts_are_added(make_arguments):
    run = built(make_arguments(**HARD))
    run.state.update(seconds=100.0, cpu_seconds=70.0)
    take_time = run._start_clocks()
    sum(range(100_000))
    take_time()
    assert 100 < run.state["seconds"] < 130
    assert 70 < run.state["cpu_seconds"] < 100


def test_a_killed_run_goes_on_to_the_last_bit(make_arguments, monkeypatch, uninterrupted):
    options, whole = uninterrupted
    args = make_arguments("killed", **options)
    for moment in (2, 7, 8, 13):
        with monkeypatch.context() as patch:
            interrupt(patch, moment, kill)
            with pytest.raises(Killed):
                pretrain(args)
    with monkeypatch.context() as patch:  # after the last step, before the summary is complete
        patch.setattr("hf_meanmax.training.pretrain.format_summary", lambda summary: kill())
        with pytest.raises(Killed):
            pretrain(args)
    with open(Path(args.output_dir) / "metrics.jsonl", "a") as file:
        file.write('{"step": 14, "lo')  # half a line
    pretrain(args)
    assert comparable(args.output_dir) == comparable(whole)
    assert same(weights(args.output_dir), weights(whole))


def test_a_killed_recurrent_run_goes_on_to_the_last_bit(make_arguments, monkeypatch):
    options = {**HARD, **GATED_RAE, "max_steps": 5, "checkpoint_steps": 2, "log_steps": 1}
    whole, killed = make_arguments("whole", **options), make_arguments("killed", **options)
    check_that_a_kill_changes_nothing(whole, killed, monkeypatch)


def test_sigterm_saves_and_the_same_command_goes_on(make_arguments, monkeypatch, uninterrupted, capsys):
    """Stopped between two log lines and two checkpoints: the mean of the next line still covers all of its steps."""
    options, whole = uninterrupted
    args = make_arguments("terminated", **options)
    for moment, number in ((5, signal.SIGTERM), (10, signal.SIGINT)):
        with monkeypatch.context() as patch:
            interrupt(patch, moment, lambda number=number: os.kill(os.getpid(), number))
            assert pretrain(args) == {"step": moment + 1, "terminated_by": number}
        assert f"terminated at step {moment + 1}; the same command resumes" in capsys.readouterr().out
        assert (Path(args.output_dir) / "checkpoints" / f"step-{moment + 1:08d}").is_dir()
        assert not (Path(args.output_dir) / "model").exists()
    pretrain(args)
    assert losses(args.output_dir) == losses(whole)
    assert same(weights(args.output_dir), weights(whole))
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert "this run had ended" not in capsys.readouterr().out
    pretrain(args)
    assert "this run had ended; it goes on where the limit" in capsys.readouterr().out


def test_checkpoints_come_by_the_clock_too(make_arguments, capsys):
    args = make_arguments(max_steps=4, checkpoint_steps=100, checkpoint_minutes=1e-9, keep_checkpoints=9, log_steps=1)
    pretrain(args)
    folder = Path(args.output_dir) / "checkpoints"
    # The time that a checkpoint takes does not count.
    assert [path.name for path in sorted(folder.iterdir())] == [f"step-{step:08d}" for step in (2, 4)]
    assert "no checkpoint had been saved" not in capsys.readouterr().out
    shutil.rmtree(folder)
    pretrain(args)
    assert "no checkpoint had been saved; training starts anew" in capsys.readouterr().out


def test_sigterm_of_a_process(make_arguments, settings):
    """In a process of its own: the exit code of a program that the signal ended, and the run here goes on from it."""
    args = make_arguments("process", max_steps=100_000)
    options = {**settings, "max_steps": 100_000, "output_dir": args.output_dir}
    words = [f"--{key}={value[0] if isinstance(value, list) else value}" for key, value in options.items()]
    command = [sys.executable, "-m", "hf_meanmax.commands", "pretrain", *words]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, env=python_environment(), stdout=pipe, stderr=pipe, text=True)
    metrics = Path(args.output_dir) / "metrics.jsonl"
    while process.poll() is None and not (metrics.is_file() and metrics.read_text().count("\n") >= 5):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, errors[-3000:]
    stopped_at = int(re.search(r"terminated at step (\d+)", output)[1])

    args = make_arguments("process", max_steps=stopped_at + 2)
    pretrain(args)
    whole = make_arguments("whole", max_steps=stopped_at + 2)
    pretrain(whole)
    assert losses(args.output_dir) == losses(whole.output_dir)


def test_sigkill_of_a_real_process(tmp_path):
    """All losses are compared bit for bit. A process of two is killed in test_elastic.py."""
    script = str(ROOT / "benchmarks" / "kill_resume.py")
    number = ["--processes", "1", "--kills", "2", "--fork", "--folder", str(tmp_path)]
    settings = ["--max_steps", "40", "--precision", "fp32", "--embedding_dropout", "0", "--attention_dropout", "0"]
    result = run_python(script, *number, *settings, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr[-3000:]
    assert result.stdout.count("all 40 losses and the final weights are identical to the last bit") == 1


def test_the_steps_after_the_last_log_line_are_logged_at_the_end(make_arguments):
    every, few = make_arguments("every", max_steps=3, log_steps=1), make_arguments("few", max_steps=3, log_steps=2)
    for args in (every, few):
        pretrain(args)
    first, second, third = losses(every.output_dir).values()
    assert losses(few.output_dir) == {2: pytest.approx((first + second) / 2), 3: third}


def test_a_finished_run_has_the_same_summary_when_called_again(make_arguments):
    args = make_arguments(max_steps=3)
    first = pretrain(args)
    logged = losses(args.output_dir)
    again = pretrain(args)
    assert first["tokens_per_second"] > 0
    assert first["flops_per_token"] > 0
    passing = ("peak_memory_bytes", "minutes", "cpu_minutes")
    assert {k: v for k, v in again.items() if k not in passing} == {k: v for k, v in first.items() if k not in passing}
    assert losses(args.output_dir) == logged
    assert again.keys() == first.keys()


def test_changed_settings_are_refused(make_arguments):
    pretrain(make_arguments(max_steps=2))
    metrics = Path(make_arguments().output_dir) / "metrics.jsonl"
    before = metrics.read_bytes()
    with pytest.raises(FileExistsError, match=r"holds a run with other settings .seed: 0 there, 3 now.*--overwrite"):
        pretrain(make_arguments(seed=3))
    with pytest.raises(FileExistsError, match=r"\(model\.hidden_size: 16 there, 32 now\)"):
        pretrain(make_arguments(hidden_size=32))
    assert metrics.read_bytes() == before
    # Settings that came with a later version had their defaults before it.
    record = metrics.parent / "settings.json"
    written = record.read_text()
    known = json.loads(written)
    assert {known.pop("lazy_adam"), known["model"].pop("encoder_residual", False)} == {False}
    record.write_text(json.dumps(known))
    pretrain(make_arguments(max_steps=2, encoder_residual=False))
    with pytest.raises(FileExistsError, match=r"\(model\.encoder_residual: False there, True now\)"):
        pretrain(make_arguments(max_steps=2, encoder_residual=True))
    record.write_text(written)
    # How long it goes on and what it shows may change.
    assert pretrain(make_arguments(max_steps=4, log_steps=2, keep_checkpoints=1, checkpoint_steps=3))["steps"] == 4
    (metrics.parent / "notes.txt").write_text("mine")
    # What is missing shows before the old run is removed.
    with pytest.raises(FileNotFoundError, match=r"none\.txt"):
        pretrain(make_arguments(max_steps=2, seed=3, overwrite=True, corpus=["none.txt"]))
    assert (metrics.parent / "model" / "config.json").is_file()
    assert pretrain(make_arguments(max_steps=2, seed=3, overwrite=True))["steps"] == 2
    assert sorted(losses(metrics.parent)) == [1, 2]
    assert (metrics.parent / "notes.txt").read_text() == "mine"


def test_a_run_that_failed_early_binds_nobody(make_arguments, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt(patch, 2, kill)
        with pytest.raises(Killed):
            pretrain(make_arguments())
    pretrain(make_arguments(seed=3, max_steps=3))
    pretrain(make_arguments("clean", seed=3, max_steps=3))
    assert losses(make_arguments().output_dir) == losses(make_arguments("clean").output_dir)


def test_disk_full_at_a_checkpoint(make_arguments, monkeypatch):
    args = make_arguments(max_steps=6, checkpoint_steps=2)
    original = checkpoints_module.save_file

    def save_file(tensors, path):
        if "00000004" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        original(tensors, path)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints_module, "save_file", save_file)
        with pytest.raises(
            OSError, match=r"step-00000004 could not be written: No space left.*What was there before is untouched"
        ):
            pretrain(args)
    assert [path.name for path in (Path(args.output_dir) / "checkpoints").iterdir()] == ["step-00000002"]
    assert pretrain(args)["steps"] == 6
    assert sorted(losses(args.output_dir)) == [1, 2, 3, 4, 5, 6]


def test_trackers(make_arguments):
    pytest.importorskip("tensorboard")
    args = make_arguments(report_to=" tensorboard ", max_steps=2)
    pretrain(args)
    assert list(Path(args.output_dir).rglob("events.out.tfevents.*"))


def test_command_line(make_arguments, texts, tmp_path, capsys):
    assert main(["--help"]) == 0
    output = capsys.readouterr().out
    assert "accelerate launch scripts/pretrain.py" in output
    assert "packaged recipes: contrastive-small, contrastive-static, docstrings, embedding-decoder," in output
    assert "--learning_rate" in output
    assert main(["embedding-decoder", "--help"]) == 0
    output = capsys.readouterr().out
    assert "--latent_length" in output
    assert "(default: 8)" in output
    for words, said in (
        (["--seeed", "1"], "unknown option --seeed. Did you mean --seed?"),
        (["no-recipe"], "No recipe file 'no-recipe'"),
        (["mini-en"], "A model is given as `--initial_model` (pretrain)"),
        (["--corpus", str(tmp_path / "none.txt")], "none.txt"),
        (["--corpus", str(texts / "train.txt"), "--num_attention_heads", "7"], "`num_attention_heads` is 7"),
    ):
        with pytest.raises(SystemExit, match=f"^hf-meanmax pretrain: .*{re.escape(said)}"):
            main([*words, "--output_dir", str(tmp_path / "out"), "--cache_dir", str(tmp_path / "cache")])


def test_other_texts_are_another_run(make_arguments, texts, tmp_path):
    """The names of the files are the same, and so is the size of the vocabulary."""
    corpus = tmp_path / "mine.txt"
    lines = (texts / "train.txt").read_text()
    corpus.write_text(lines)
    pretrain(make_arguments(corpus=[str(corpus)], max_steps=4))
    os.utime(corpus, (1, 1))
    assert pretrain(make_arguments(corpus=[str(corpus)], max_steps=5))["steps"] == 5
    corpus.write_text(lines + "the mill by the sea saw some bread\n" * 40)
    with pytest.raises(FileExistsError, match=r"learnt from other texts or with another tokenizer.*--overwrite"):
        pretrain(make_arguments(corpus=[str(corpus)], max_steps=6))
    # Another vocabulary does not fit the weights, which is not what to complain of.
    corpus.write_text(lines + "".join(f"the quince{'x' * i} and some bread\n" * 3 for i in range(40)))
    with pytest.raises(FileExistsError, match=r"learnt from other texts or with another tokenizer.*--overwrite"):
        pretrain(make_arguments(corpus=[str(corpus)], max_steps=6))
    assert pretrain(make_arguments(corpus=[str(corpus)], max_steps=2, overwrite=True))["steps"] == 2


@pytest.mark.parametrize("validation", ["", "empty.txt"])
def test_a_corpus_too_short_to_hold_out_from(make_arguments, tmp_path, validation):
    (tmp_path / "short.txt").write_text("the cat sat on the mat\nthe dog ran\n" * 4)
    (tmp_path / "empty.txt").write_text("\n")
    given = {"validation": str(tmp_path / validation)} if validation else {"validation": []}
    reason = "`validation` .* holds no text" if validation else "the corpus is too short"
    with pytest.raises(ValueError, match=f"No text is held out for validation: {reason}"):
        pretrain(make_arguments(corpus=[str(tmp_path / "short.txt")], **GRU, **given))


def test_the_showcase_decodes_where_the_vectors_are_normalised(make_arguments, capsys):
    pretrain(make_arguments(normalize="rows", showcase=True, max_steps=2))
    assert "to use it:" in capsys.readouterr().out


def test_the_showcase_is_of_any_family_that_reconstructs(make_arguments, capsys):
    pretrain(make_arguments(**{**GRU, "objective": "reconstruction"}, showcase=True, max_steps=2))
    assert "to use it:" in capsys.readouterr().out


def test_waiting_for_batches_counts_as_training(make_arguments, monkeypatch):
    iterate = MicroBatches.iterate

    def slow(self, *args):
        for step in iterate(self, *args):
            time.sleep(0.05)
            yield step

    monkeypatch.setattr(MicroBatches, "iterate", slow)
    summary = pretrain(make_arguments())
    assert summary["tokens"] / summary["tokens_per_second"] > 8 * 0.05


def test_held_out_loss_is_of_the_words_alone(make_arguments, monkeypatch):
    """Not of the penalty, whose share would hang on how many batches there are."""
    settings = {"family": "structured_self_attention", "latent_heads": 3, "max_steps": 1, "learning_rate": 1e-9}
    losses = [pretrain(make_arguments(f"run-{weight}", attention_penalty=weight, **settings)) for weight in (0.0, 5.0)]
    assert losses[0]["validation_loss"] == pytest.approx(losses[1]["validation_loss"], abs=1e-5)
