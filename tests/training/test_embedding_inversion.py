"""Runs that learn to decode the vectors of an embedder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_meanmax.checkpoint.folder import check_checkpoint, load_checkpoint, save_checkpoint
from hf_meanmax.commands.pretrain import main as pretrain_command
from hf_meanmax.data import BatchPlan, TokenStore, VectorBatches
from hf_meanmax.inference import encode as encode_module
from hf_meanmax.inference.correction import embedder_of
from hf_meanmax.inference.encoder import load_encoder
from hf_meanmax.training.preparation import prepare
from hf_meanmax.training.pretrain import pretrain
from hf_meanmax.training.recipes import arguments_from_settings, parse_command_line
from hf_meanmax.training.teacher import teacher_vectors
from tiny_model import make_model, make_tokenizer
from training.test_pretrain import (
    check_that_a_kill_changes_nothing,
    records,
    same,
    weights,
)

LATENTS = {"latent_length": 2, "max_steps": 12}


@pytest.fixture(scope="session")
def embedder(tmp_path_factory) -> str:
    """A SentenceTransformer whose vectors have unit length and tell all that the tiny texts say."""
    tokenizer = make_tokenizer()
    return str(
        save_checkpoint(make_model(), tokenizer, tmp_path_factory.mktemp("e") / "embedder", normalize="embedding")
    )


@pytest.fixture
def make_inversion(make_arguments, embedder):
    def make(output: str = "run", **changes):
        given = {"objective": "embedding_inversion", "embedder": embedder, **LATENTS, **changes}
        return make_arguments(output, **{name: value for name, value in given.items() if value is not None})

    return make


def test_a_run_and_its_folder(make_inversion, embedder, texts):
    args = make_inversion(max_steps=60, eval_steps=20, softmax="sampled", num_negatives=5, embedding_noise=0.1)
    assert args.family == "embedding_decoder"
    summary = pretrain(args)
    losses = [record["loss"] for record in records(args.output_dir) if "loss" in record]
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    assert {"validation_accuracy", "validation_bleu", "validation_exact_match"} <= set(summary)
    assert len([record for record in records(args.output_dir) if "validation_accuracy" in record]) == 3
    folder = Path(args.output_dir) / "model"
    config = check_checkpoint(folder)
    assert (config.embedding_dim, config.normalize_embeddings) == (32, True)
    assert config.embedder["name"] == "embedder"
    assert json.loads((folder / "training_args.json").read_text())["embedder"] == "embedder"
    # The end's scores are those of its folder, from the vectors of the embedder.
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    held_out = (texts / "held-out.txt").read_text().splitlines()
    vectors = load_encoder(embedder, device="cpu").encode(held_out)
    batch = tokenizer(held_out, return_tensors="pt", padding=True)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    with torch.no_grad():
        loss = model(sentence_embedding=torch.from_numpy(vectors), labels=labels).loss
    assert loss.item() == pytest.approx(summary["validation_loss"], rel=1e-3)


def test_the_standardization_is_of_the_vectors(make_inversion, embedder, texts):
    args = make_inversion(max_steps=1)
    pretrain(args)
    model = AutoModelForSeq2SeqLM.from_pretrained(Path(args.output_dir) / "model")
    lines = list(filter(None, (texts / "train.txt").read_text().splitlines()))
    vectors = load_encoder(embedder, device="cpu").encode(lines)
    found = model.encoder.standardization
    np.testing.assert_allclose(found.mean.numpy(), vectors.mean(axis=0), atol=2e-3)
    np.testing.assert_allclose(found.scale.numpy(), vectors.std(axis=0), atol=2e-3)


def test_the_embedder_is_found_where_the_run_had_it(make_inversion, embedder, tmp_path, monkeypatch):
    """Though the checkpoint, which may go to the Hub, has the run's name alone."""
    shutil.copytree(embedder, tmp_path / "runs" / "x" / "model")
    monkeypatch.chdir(tmp_path)
    args = make_inversion("runs/decoder", max_steps=1, embedder="runs/x/model")
    pretrain(args)
    folder = Path(args.output_dir) / "model"
    assert not [path for path in folder.rglob("*.json") if "runs/x" in path.read_text()]
    model, _ = load_checkpoint(folder)
    assert model.config.embedder["name"] == "x"
    same_embedder = embedder_of(model, folder, device="cpu")
    np.testing.assert_array_equal(
        same_embedder.encode(["the cat"]), load_encoder(embedder, device="cpu").encode(["the cat"])
    )
    # Elsewhere it is not known where that was.
    moved = shutil.copytree(folder, tmp_path / "moved")
    with pytest.raises(ValueError, match=r"'x', could not be loaded.*`--embedder`"):
        embedder_of(model, moved, device="cpu")
    shutil.rmtree("runs/x/model")
    save_checkpoint(make_model(seed=1), make_tokenizer(), "runs/x/model", normalize="embedding")
    with pytest.raises(ValueError, match=r"^runs/x/model has other weights than 'x'"):
        embedder_of(model, folder, device="cpu")


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_a_killed_run_goes_on_to_the_last_bit(make_inversion, monkeypatch, noise):
    options = {
        "max_steps": 7, "checkpoint_steps": 2, "log_steps": 3, "gradient_accumulation_steps": 2,
        "embedding_noise": noise,
    }  # fmt: skip
    whole, killed = make_inversion("whole", **options), make_inversion("killed", **options)
    check_that_a_kill_changes_nothing(whole, killed, monkeypatch)


def test_noise_changes_the_run(make_inversion):
    runs = [make_inversion(name, embedding_noise=noise) for name, noise in (("a", 0.0), ("b", 0.3))]
    for args in runs:
        pretrain(args)
    assert not same(*(weights(args.output_dir) for args in runs))


def test_a_teacher_and_an_embedder_share_their_vectors(make_inversion, make_arguments, embedder, monkeypatch, tmp_path):
    cache = {"cache_dir": str(tmp_path / "cache")}
    encoder = load_encoder(embedder, device="cpu")
    args = make_arguments("student", teacher=embedder, **cache)
    teacher_vectors(args, prepare(args, False).sources["train"], encoder, show_progress=False)
    monkeypatch.setattr(encode_module, "embed_texts", None)  # what is there is not computed again
    args = make_inversion("decoder", **cache)
    teacher_vectors(args, prepare(args, False).sources["train"], encoder, show_progress=False)


def make_store(tmp_path) -> tuple[TokenStore, np.ndarray]:
    from hf_meanmax.data import Documents, SentenceFilter, build_token_store
    from tiny_model import random_lines

    lines = [line for line in random_lines(30) if line]
    store = build_token_store(Documents([lines]), make_tokenizer(), tmp_path / "store", SentenceFilter(), False)
    return store, np.random.default_rng(0).normal(size=(len(store), 4)).astype(np.float32)


def test_batches_have_each_sentence_with_its_vector(tmp_path):
    store, vectors = make_store(tmp_path)
    plan = BatchPlan(store.lengths, 40, seed=1)
    seen = []
    for rows, batch in VectorBatches(store, plan, vectors).sequential():
        assert "input_ids" not in batch
        np.testing.assert_array_equal(batch["sentence_embedding"].numpy(), vectors[rows])
        for row, labels in zip(rows, batch["labels"], strict=True):
            assert labels[labels >= 0].tolist() == store.rows(np.array([row])).ids.tolist()
        seen += rows.tolist()
    assert sorted(seen) == list(range(len(store)))
    with pytest.raises(ValueError, match="There are 3 vectors for"):
        VectorBatches(store, plan, vectors[:3])


@pytest.mark.parametrize("noise", [None, np.full(4, 0.5, dtype=np.float32)])
def test_processes_divide_the_same_vectors(tmp_path, noise):
    store, vectors = make_store(tmp_path)
    plan = BatchPlan(store.lengths, 40, seed=1)
    alone = VectorBatches(store, plan, vectors, noise)
    halves = [VectorBatches(store, plan, vectors, noise, rank=rank, world_size=2) for rank in range(2)]
    for (_, whole, _), *parts in zip(alone.iterate(0), *(half.iterate(0) for half in halves), strict=True):
        for micro, batch in enumerate(whole):
            expected = batch["sentence_embedding"]
            for rank in range(2):
                found = parts[rank][1][micro]
                rows = expected[rank::2]
                if len(rows):
                    assert torch.equal(found["sentence_embedding"], rows)
                else:
                    assert (found["labels"] == -100).all()
                    assert not found["sentence_embedding"].any()


def test_noise_is_drawn_anew_and_has_its_scale(tmp_path):
    store, vectors = make_store(tmp_path)
    scale = np.array([0.0, 0.1, 1.0, 2.0], dtype=np.float32)
    plan = BatchPlan(store.lengths, 10**6, seed=1)

    def drawn(epoch):
        ((_, (batch,), _),) = VectorBatches(store, plan, vectors, scale).iterate(epoch)
        # In the order of the sentences, by the number that has no noise.
        found = batch["sentence_embedding"].numpy()
        return found[np.argsort(found[:, 0])] - vectors[np.argsort(vectors[:, 0])]

    first, second = drawn(0), drawn(1)
    assert not first[:, 0].any()
    np.testing.assert_allclose(np.concatenate([first, second])[:, 1:].std(axis=0), scale[1:], rtol=0.4)
    assert not np.allclose(first[:, 2], second[:, 2])
    np.testing.assert_array_equal(first, drawn(0))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"embedder": ""}, "needs an `embedder`"),
        (
            {"family": "mean_max_aae", "latent_length": None},
            "the objective of the family 'embedding_decoder'",
        ),
        (
            {"objective": "reconstruction", "family": "embedding_decoder"},
            "`objective` is 'reconstruction' and `family`",
        ),
        ({"word_drop": 0.1}, "`word_drop` is 0.1, which is of a text encoder"),
        ({"teacher": "some/teacher"}, "`teacher` is 'some/teacher'"),
        ({"normalize": "rows"}, "`normalize` is 'rows', but nothing is encoded"),
        ({"embedding_noise": -1.0}, "`embedding_noise` is -1.0; it must be 0 or more"),
        ({"pooling": "mean"}, "pooling"),
        ({"embedding_dim": 5}, "embedding_dim"),
    ],
)
def test_settings_that_do_not_fit(make_inversion, changes, words):
    with pytest.raises(ValueError, match=words):
        make_inversion(**changes)


def test_an_embedder_needs_the_objective(make_arguments, embedder):
    for name, value in (("embedder", embedder), ("embedder_prompt", "query: "), ("embedding_noise", 0.1)):
        with pytest.raises(ValueError, match=f"`{name}` is .*embedding_inversion"):
            make_arguments(**{name: value})


def test_the_objective_names_the_family(embedder):
    options = ["--objective", "embedding_inversion", "--embedder", embedder, "--corpus", "a.txt"]
    args = parse_command_line([*options, "--latent_length", "3"])
    assert args.family == "embedding_decoder"
    assert args.build_config().latent_length == 3
    args = arguments_from_settings({"objective": "embedding_inversion", "embedder": embedder})
    assert args.family == "embedding_decoder"


def test_the_command_says_what_is_wrong_in_a_line(texts, tmp_path):
    options = ["--corpus", str(texts / "train.txt"), "--cache_dir", str(tmp_path), "--output_dir", str(tmp_path / "o")]
    with pytest.raises(SystemExit, match=r"^hf-meanmax pretrain: No checkpoint folder 'no-such-embedder'\. The"):
        pretrain_command(["--objective", "embedding_inversion", "--embedder", "./no-such-embedder", *options])
