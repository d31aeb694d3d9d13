"""Fine-tuning runs of a second, on transformers' Trainer and on that of sentence-transformers."""

from __future__ import annotations

import json
import logging
import random
import re
import shutil
from pathlib import Path

import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Value
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification, AutoTokenizer, pipeline

from hf_meanmax.checkpoint.card import write_model_card
from hf_meanmax.checkpoint.folder import check_checkpoint, load_checkpoint, save_checkpoint
from hf_meanmax.checkpoint.sentence_transformer import saved_normalization
from hf_meanmax.commands.finetune import main
from hf_meanmax.inference.encoder import load_encoder
from hf_meanmax.training.finetune import build_classifier, finetune, latest_checkpoint, read_sets
from hf_meanmax.training.finetune_settings import FinetuneArguments
from hf_meanmax.training.finetune_trainer import early_stopping
from hf_meanmax.training.recipes import arguments_from_settings
from tiny_model import WORDS, make_model, make_tokenizer, run_python

ROOT = Path(__file__).parents[2]

TINY = {
    "vocab_size": 60, "embedding_size": 12, "hidden_size": 16, "latent_heads": 3, "pooling_hidden_size": 8,
    "num_attention_heads": 2, "classifier_hidden_size": 12, "classifier_dropout": 0.1, "epochs": 6, "batch_size": 16,
    "learning_rate": 0.02, "precision": "fp32",
}  # fmt: skip


def write(path, rows) -> str:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def reviews(number: int, seed: int) -> list[tuple[str, str]]:
    """Words around one of two that tell the label."""
    draw = random.Random(seed)
    rows = []
    for _ in range(number):
        label = draw.choice(["old", "red"])
        words = [*draw.choices([word for word in WORDS if word not in ("old", "red")], k=5), label]
        draw.shuffle(words)
        rows.append((" ".join(words), label))
    return rows


def pairs(number: int, seed: int) -> list[tuple[str, str, str]]:
    """Whether the second text has the first one's word."""
    draw = random.Random(seed)
    rows = []
    for _ in range(number):
        first, second = draw.choice(["old", "red"]), draw.choice(["old", "red"])
        rows.append((f"the {first} cat", f"a {second} dog ran", "same" if first == second else "other"))
    return rows


@pytest.fixture
def sets(tmp_path):
    return {name: write(tmp_path / f"{name}.tsv", reviews(number, seed)) for seed, (name, number) in enumerate(
        [("train", 160), ("validation", 40), ("test", 40)]
    )}  # fmt: skip


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> str:
    """An unsupervised one."""
    return str(save_checkpoint(make_model(seed=5), make_tokenizer(), tmp_path_factory.mktemp("unsupervised") / "model"))


def run(settings, output_dir, **more):
    merged = {**settings, "output_dir": str(output_dir), "cache_dir": str(output_dir / "cache"), **more}
    return finetune(arguments_from_settings(merged, "", FinetuneArguments))


def test_from_random_weights(sets, tmp_path):
    """It learns, and the folder loads as classifier, as encoder and as SentenceTransformer."""
    results = run({**TINY, **sets, "max_tokens": 5}, tmp_path / "run")
    assert results["labels"] == ["old", "red"]
    assert results["examples"] == {"train": 160, "validation": 40, "test": 40}
    assert results["cut_texts"] == 240
    assert results["validation"]["accuracy"] > 0.75  # the word that tells stands last in a sixth of the texts
    folder = tmp_path / "run" / "model"
    assert json.loads((tmp_path / "run" / "results.json").read_text()) == results
    classify = pipeline("text-classification", model=str(folder), device="cpu")
    texts = [text for text, _ in reviews(40, seed=2)]
    said = [answer["label"] for answer in classify(texts)]
    assert set(said) == {"old", "red"}
    with pytest.raises(ValueError, match=r"`token_type_ids` mark a second text, and this \w+ reads one"):
        classify({"text": texts[0], "text_pair": texts[1]})
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    assert said == [model.config.id2label[i] for i in model(**batch).logits.argmax(-1).tolist()]
    wanted = AutoModel.from_pretrained(folder)(**batch).pooler_output.detach()
    vectors = SentenceTransformer(str(folder), device="cpu").encode(texts, convert_to_tensor=True)
    torch.testing.assert_close(vectors, wanted)
    # The penalty is reported beside the loss that holds it.
    assert {"loss", "attention_penalty"} <= set(results["epochs"][0])
    assert {"eval_loss", "eval_accuracy", "eval_attention_penalty"} <= set(results["epochs"][1])
    assert 0 < results["test"]["attention_penalty"] < 6


def test_in_bf16(sets, tmp_path):
    """What "auto" is on a CPU that is fast at it, too."""
    results = run({**TINY, **sets, "precision": "bf16"}, tmp_path / "run")
    assert results["test"]["accuracy"] > 0.8


def test_pairs(tmp_path):
    train = write(tmp_path / "train.tsv", pairs(240, seed=0))
    test = write(tmp_path / "test.tsv", pairs(40, seed=1))
    settings = {**TINY, "train": train, "test": test, "epochs": 10, "initializer_range": 1.0, "classifier_dropout": 0.0}
    for combination in ("concatenation", "multiplicative"):
        folder = tmp_path / combination
        results = run(settings, folder, pair_combination=combination, attention_penalty=0.1)
        assert results["test"]["accuracy"] > 0.9
        # The pipeline of transformers reads pairs as they are, for the tokenizer knows what the model needs.
        classify = pipeline("text-classification", model=str(folder / "model"), device="cpu")
        said = classify([{"text": "the old cat", "text_pair": f"a {word} dog ran"} for word in ("old", "red")])
        assert [answer["label"] for answer in said] == ["same", "other"]
        assert SentenceTransformer(str(folder / "model"), device="cpu").encode(["the old cat"]).shape == (1, 48)
    for given, reason in (
        ({**settings}, "holds pairs, but `pair_combination` is None; use 'concatenation' or 'multiplicative'"),
        ({**settings, "test": write(tmp_path / "single.tsv", reviews(9, 0))}, "holds pairs and .* single texts"),
    ):
        with pytest.raises(ValueError, match=reason):
            run(given, tmp_path / "bad")


def test_regression(tmp_path):
    rows = [(text, "1.5" if label == "old" else "-0.5") for text, label in reviews(160, seed=0)]
    results = run({**TINY, "train": write(tmp_path / "train.tsv", rows), "problem": "regression"}, tmp_path / "run")
    assert results["validation"]["pearson"] > 0.8
    config = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run" / "model").config
    assert (config.num_labels, config.problem_type) == (1, "regression")


def test_numbers_that_are_all_alike_have_no_correlation(tmp_path):
    rows = [(text, "1.5" if label == "old" else "-0.5") for text, label in reviews(20, seed=0)]
    files = {
        "train": write(tmp_path / "train.tsv", rows),
        "validation": write(tmp_path / "validation.tsv", [(text, "2") for text, _ in rows[:4]]),
    }
    results = run({**TINY, **files, "problem": "regression", "epochs": 1}, tmp_path / "run")
    assert results["validation"]["pearson"] == 0


def test_from_a_checkpoint(sets, checkpoint, tmp_path):
    """What is kept of its weights, frozen or not; a classifier that was fine-tuned can be the start of another."""
    settings = {**sets, "checkpoint": checkpoint, "epochs": 1, "learning_rate": 1e-4, "batch_size": 32}
    learned = AutoModel.from_pretrained(checkpoint).state_dict()
    words = "embeddings.word_embeddings.weight"
    inner = next(name for name in learned if name.startswith("sequence_encoder") and learned[name].dim() == 2)
    for start, near_words, near_inner in (("encoder", 1, 1), ("word_embeddings", 1, 0), ("nothing", 0, 0)):
        run(settings, tmp_path / start, start=start)
        now = AutoModel.from_pretrained(tmp_path / start / "model").state_dict()
        for name, near in ((words, near_words), (inner, near_inner)):
            assert bool((now[name] - learned[name]).abs().max() < 0.05) == bool(near), (start, name)
    run(settings, tmp_path / "frozen", freeze_encoder=True, classifier_hidden_size=8)
    now = AutoModel.from_pretrained(tmp_path / "frozen" / "model").state_dict()
    assert all(torch.equal(value, learned[name]) for name, value in now.items())
    three = [(text, {"old": "1", "red": "2"}[label]) for text, label in reviews(60, seed=4)] + [("a mat", "10")] * 9
    other = {"train": write(tmp_path / "three.tsv", three), "validation": "", "test": ""}
    again = run({**settings, **other, "checkpoint": str(tmp_path / "frozen" / "model")}, tmp_path / "again")
    assert again["labels"] == ["1", "2", "10"]
    head = AutoModelForSequenceClassification.from_pretrained(tmp_path / "again" / "model").classifier.head
    assert (head.hidden.out_features, head.output.out_features) == (8, 3)


def test_a_weighted_mean_that_is_not_kept_starts_from_frequencies(sets, tmp_path):
    model = make_model(weighted_mean_row=True, freeze_word_weights=True)
    checkpoint = str(save_checkpoint(model, make_tokenizer(), tmp_path / "weighted"))
    settings = {**sets, "checkpoint": checkpoint, "epochs": 1}
    weights = {}
    for start in ("encoder", "word_embeddings", "nothing"):
        run(settings, tmp_path / start, start=start)
        now = AutoModel.from_pretrained(tmp_path / start / "model")
        weights[start] = now.word_pooler.log_weights.weight.detach()
    assert len(weights["encoder"].unique()) == 1
    assert len(weights["nothing"].unique()) > 2
    assert torch.equal(weights["nothing"], weights["word_embeddings"])


def test_overwrite_removes_nothing_before_the_new_run_has_its_model(sets, tmp_path):
    settings = {**TINY, **sets, "epochs": 1}
    first = run(settings, tmp_path / "run")
    with pytest.raises(FileNotFoundError, match="missing"):
        run({**sets, "checkpoint": str(tmp_path / "missing"), "epochs": 1}, tmp_path / "run", overwrite=True)
    assert run(settings, tmp_path / "run") == first


def test_a_new_folder_may_hold_its_cache_and_be_overwritten(sets, tmp_path):
    settings = {**TINY, **sets, "epochs": 1, "overwrite": True}
    first = run(settings, tmp_path / "run")
    assert run(settings, tmp_path / "run")["test"] == first["test"]


def test_a_run_that_is_restarted_is_not_overwritten(sets, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    with pytest.raises(ValueError, match=r"`overwrite` with `--max_restarts` .* begin anew.*Remove runs/mine first"):
        arguments_from_settings({**sets, "output_dir": "runs/mine", "overwrite": True}, "", FinetuneArguments)
    arguments_from_settings({**sets, "output_dir": "runs/mine"}, "", FinetuneArguments)


def test_texts_that_were_trained_on_are_no_test(sets, tmp_path):
    """Under whatever name, and in whatever split of a data set that has none."""
    rows = [{"text": text, "label": label} for text, label in reviews(40, seed=0)]
    Dataset.from_list(rows).save_to_disk(str(tmp_path / "set"))
    (tmp_path / "copy.tsv").write_text((tmp_path / "train.tsv").read_text())
    for train, other in (("set", "set"), ("train.tsv", "copy.tsv"), ("train.tsv", "set/../train.tsv")):
        for kind in ("validation", "test"):
            settings = {**sets, "train": str(tmp_path / train), kind: str(tmp_path / other), "output_dir": "o"}
            args = arguments_from_settings(settings, "", FinetuneArguments)
            with pytest.raises(ValueError, match=rf"`{kind}` is .*{other}', whose texts are those of `train`"):
                read_sets(args)
    with pytest.raises(ValueError, match=r"`test` is a file, which has no split 'dev'\. Leave `test_split` out"):
        arguments_from_settings({**sets, "test_split": "dev"}, "", FinetuneArguments)
    whole = {**sets, "train": str(tmp_path / "set"), "train_split": "dev"}
    with pytest.raises(ValueError, match=r"`train` is a single data set, which has no split 'dev'"):
        arguments_from_settings(whole, "", FinetuneArguments)
    with pytest.raises(ValueError, match=r"`config_name` is 'en', and .*train\.tsv, .* is no data set on the Hub"):
        arguments_from_settings({**sets, "config_name": "en"}, "", FinetuneArguments)


def test_fewer_examples_and_a_held_out_share(sets, tmp_path):
    settings = {**TINY, "train": sets["train"], "epochs": 1}
    assert run(settings, tmp_path / "a")["examples"] == {"train": 144, "validation": 16, "test": 0}
    rows = [{"text": text, "label": ["old", "red"].index(label)} for text, label in reviews(40, seed=0)]
    features = Features({"text": Value("string"), "label": ClassLabel(names=["old", "red"])})
    left_out = [{"text": "the mat", "label": -1}] * 3 + [{"text": "", "label": 0}] * 2
    Dataset.from_list(rows + left_out, features=features).save_to_disk(str(tmp_path / "set"))
    told = run({**settings, "train": str(tmp_path / "set")}, tmp_path / "c")
    assert (told["examples"]["train"], told["unlabelled"], told["textless"]) == (36, 3, 2)
    few = run(settings, tmp_path / "b", max_examples=20)
    assert few["examples"] == {"train": 20, "validation": 16, "test": 0}
    assert "test" not in few


@pytest.mark.parametrize("how", ["behind a checkpoint", "amid a checkpoint"])
def test_an_interrupted_run_goes_on(sets, tmp_path, monkeypatch, how):
    """After a kill the same command ends where an uninterrupted run does; other settings are refused."""
    from transformers import Trainer

    settings = {**TINY, **sets, "epochs": 3}
    whole = run(settings, tmp_path / "whole")
    stop = Trainer._save_checkpoint

    def killed(self, *args, **kwargs):
        stop(self, *args, **kwargs)
        if self.state.epoch == 2:
            newest = max((tmp_path / "run" / "checkpoints").iterdir(), key=lambda path: int(path.name.split("-")[1]))
            if how == "amid a checkpoint":
                (newest / "trainer_state.json").unlink()
            raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "_save_checkpoint", killed)
    with pytest.raises(KeyboardInterrupt):
        run(settings, tmp_path / "run")
    monkeypatch.undo()
    # The epochs that were trained would be counted by another number of steps.
    record = tmp_path / "run" / "settings.json"
    before = record.read_text()
    record.write_text(before.replace('"processes": 1', '"processes": 2'))
    with pytest.raises(FileExistsError, match="processes: 2 there, 1 now"):
        run(settings, tmp_path / "run")
    # A setting that came with a later version had its default before it.
    record.write_text(before.replace('"processes": 1,', "").replace('"processes": 1', '"none": 1'))
    with pytest.raises(FileExistsError, match=r"learning_rate: 0\.02 there, 0\.01 now"):
        run(settings, tmp_path / "run", learning_rate=0.01)
    again = run(settings, tmp_path / "run")
    assert again["test"] == whole["test"]
    assert again["epochs"][-1]["eval_loss"] == whole["epochs"][-1]["eval_loss"]
    minutes = [entry["minutes"] for entry in again["epochs"]]
    assert minutes == sorted(minutes)
    assert minutes[-1] > 0
    assert again["minutes"] >= round(minutes[-1], 2)
    assert run(settings, tmp_path / "run", learning_rate=0.01, overwrite=True)["test"] != whole["test"]


def test_a_finished_run_stays_as_it_is(sets, tmp_path, monkeypatch):
    """The same command trains no more; other examples under the same names are another run."""
    from transformers import Trainer

    settings = {**TINY, **sets, "epochs": 1}
    first = run(settings, tmp_path / "run")
    monkeypatch.setattr(Trainer, "train", lambda *args, **kwargs: pytest.fail("trained again"))
    assert run(settings, tmp_path / "run") == first
    monkeypatch.undo()
    exchanged = [(text, "red" if label == "old" else "old") for text, label in reviews(160, seed=0)]
    write(tmp_path / "train.tsv", exchanged)
    with pytest.raises(FileExistsError, match=r"examples: '[0-9a-f]{24}' there.*--overwrite to start anew"):
        run(settings, tmp_path / "run")
    assert run(settings, tmp_path / "run", overwrite=True)["test"] != first["test"]


def test_a_finished_run_of_a_checkpoint_that_was_trained_on_is_another_run(sets, tmp_path):
    path = save_checkpoint(make_model(seed=5), make_tokenizer(), tmp_path / "start")
    settings = {**sets, "checkpoint": str(path), "epochs": 1}
    first = run(settings, tmp_path / "run")
    assert run(settings, tmp_path / "run") == first
    save_checkpoint(make_model(seed=6), make_tokenizer(), path)
    with pytest.raises(FileExistsError, match=r"checkpoint_files: '[0-9a-f]{24}' there"):
        run(settings, tmp_path / "run")
    assert run(settings, tmp_path / "run", overwrite=True)["test"] != first["test"]
    assert json.loads((tmp_path / "run" / "settings.json").read_text())["processes"] == 1


def test_what_a_checkpoint_says_of_its_vectors_stays(sets, tmp_path):
    encoder = save_checkpoint(make_model(seed=5), make_tokenizer(), tmp_path / "start", normalize="rows")
    settings = encoder / "config_sentence_transformers.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "prompts": {"query": "find: "}}))
    run({**sets, "checkpoint": str(encoder), "epochs": 1}, tmp_path / "run")
    tuned = SentenceTransformer(str(tmp_path / "run" / "model"), device="cpu")
    assert tuned.prompts["query"] == "find: "
    assert saved_normalization(tmp_path / "run" / "model") == "rows"


def test_a_new_head_is_not_reported_as_missing(sets, checkpoint, caplog):
    logging.getLogger("transformers").propagate = True
    args = arguments_from_settings({"checkpoint": checkpoint, **sets, "output_dir": "o"}, "", FinetuneArguments)
    train, _, _, labels = read_sets(args)
    build_classifier(args, train, labels)
    assert not caplog.records


def test_the_head_of_a_classifier_of_other_labels_is_made_anew(sets, checkpoint, tmp_path):
    run({"checkpoint": checkpoint, **sets, "epochs": 1}, tmp_path / "first")
    path = tmp_path / "first" / "model"
    learnt = AutoModelForSequenceClassification.from_pretrained(path).classifier.state_dict()
    for names, is_kept in ((("old", "red"), True), (("cold", "warm"), False)):
        rows = [(text, names[label == "red"]) for text, label in reviews(40, seed=0)]
        settings = {"checkpoint": str(path), "train": write(tmp_path / "rows.tsv", rows), "output_dir": "o"}
        args = arguments_from_settings(settings, "", FinetuneArguments)
        train, _, _, labels = read_sets(args)
        head = build_classifier(args, train, labels)[0].classifier.state_dict()
        same = [torch.equal(head[name], learnt[name]) for name in learnt if name.endswith("weight")]
        assert all(same) if is_kept else not any(same)


def test_a_folder_of_another_kind_of_run_is_refused(sets, checkpoint, tmp_path):
    """The decoder of a pretrained model is not lost to a fine-tuning in its place, nor the other way."""
    from hf_meanmax.training.checkpoints import claim_folder

    folder = tmp_path / "run"
    claim_folder(folder, {"corpus": ["my.txt"]})
    shutil.copytree(checkpoint, folder / "model")
    with pytest.raises(FileExistsError, match="holds a pretraining run"):
        run({**TINY, **sets}, folder)
    with pytest.raises(ValueError, match="lies in `output_dir`"):
        run({**sets, "checkpoint": str(folder / "model")}, folder)
    other = tmp_path / "other"
    claim_folder(other, {"train": "train.tsv"})
    # What a tracker or a save that was cut short leaves there is no run.
    (other / "checkpoints" / "runs").mkdir(parents=True)
    (other / "checkpoints" / ".step-3.partial").mkdir()
    claim_folder(other, {"train": "train.tsv", "batch_size": 4})
    (other / "checkpoints" / "checkpoint-3").mkdir()
    with pytest.raises(FileExistsError, match="holds a fine-tuning run"):
        claim_folder(other, {"corpus": ["my.txt"]})
    # An option that gives the default is as good as none.
    given = {"train": "train.tsv", "batch_size": 4, "model": {"hidden_size": 600}}
    claim_folder(other, {**given, "seed": 0}, defaults={"seed": 0, "model": {"hidden_size": 600}})
    (other / "settings.json").write_text(json.dumps({**given, "seed": 0}))
    claim_folder(other, {**given, "model": {}}, defaults={"seed": 0, "model": {"hidden_size": 600}})
    with pytest.raises(FileExistsError, match="seed: 0 there"):
        claim_folder(other, {**given, "model": {}}, defaults={"seed": 1, "model": {"hidden_size": 600}})


def test_a_folder_of_another_name_is_no_checkpoint(tmp_path):
    for name in ("checkpoint-best", "checkpoint-9", "checkpoint-10"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "trainer_state.json").write_text("{}")
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoint-10"


def test_a_rare_label_may_be_held_out_whole(tmp_path):
    """Labels are those of all examples, not of the few that are drawn or left."""
    rows = [*reviews(40, seed=0), ("the cat", "rare")]
    told = run({**TINY, "train": write(tmp_path / "all.tsv", rows), "epochs": 1}, tmp_path / "run", max_examples=4)
    assert told["labels"] == ["old", "rare", "red"]


def test_words_of_a_classifier_and_words_anew(sets, checkpoint, tmp_path):
    """Word vectors alone come from a classifier of other labels as well; random words learn even if the checkpoint's
    were frozen."""
    three = [(text, draw) for (text, _), draw in zip(reviews(60, seed=0), ["a", "b", "c"] * 20, strict=True)]
    run({"checkpoint": checkpoint, "train": write(tmp_path / "three.tsv", three), "epochs": 1}, tmp_path / "first")
    run(
        {"checkpoint": str(tmp_path / "first" / "model"), **sets, "epochs": 1, "start": "word_embeddings"},
        tmp_path / "b",
    )
    frozen = make_model(freeze_word_embeddings=True)
    path = str(save_checkpoint(frozen, make_tokenizer(), tmp_path / "frozen"))
    for start, learns in (("nothing", True), ("encoder", False)):
        args = arguments_from_settings(
            {**sets, "checkpoint": path, "start": start, "output_dir": str(tmp_path / "x")}, "", FinetuneArguments
        )
        train, _, _, labels = read_sets(args)
        model, _ = build_classifier(args, train, labels)
        assert model.get_input_embeddings().weight.requires_grad is learns


def test_other_families(sets, tmp_path):
    for family, more in (
        ("mean_max_aae", {}),
        ("rnn_cnn", {"decoder_channels": [8, 12]}),
        ("compound_attention", {"latent_size": 6}),
    ):
        sizes = {name: value for name, value in TINY.items() if name not in ("latent_heads", "pooling_hidden_size")}
        quiet = {"embedding_dropout": 0.0, "attention_dropout": 0.0, "learning_rate": 0.005}
        results = run({**sizes, **sets, **more, **quiet, "family": family, "epochs": 12}, tmp_path / family)
        assert results["test"]["accuracy"] > 0.7, family


def test_word_vectors_start_the_table(sets, tmp_path):
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("".join(f"{word} " + " ".join(["0.5"] * 12) + "\n" for word in WORDS))
    settings = {**TINY, **sets, "word_vectors": str(vectors), "word_vector_scale": 0, "epochs": 1}
    run(settings, tmp_path / "run", learning_rate=1e-6)
    folder = tmp_path / "run" / "model"
    table = AutoModel.from_pretrained(folder).get_input_embeddings().weight
    word = AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids("cat")
    torch.testing.assert_close(table[word], torch.full((12,), 0.5), atol=1e-3, rtol=0)


def test_words_start_as_in_pretraining(sets, tmp_path):
    """Weights from the words' frequencies, special tokens as large as the words; a static model's folder will do."""
    static = make_model(encoder_type="none", pooling="weighted_mean", decoder_type="none")
    folder = save_checkpoint(static, make_tokenizer(), tmp_path / "static")
    settings = {
        **TINY, **sets, "family": "mean_max_aae", "word_vectors": str(folder), "word_vector_scale": 0,
        "embedding_size": static.config.embedding_size, "freeze_word_embeddings": True, "weighted_mean_row": True,
        "cache_dir": str(tmp_path / "cache"), "output_dir": str(tmp_path / "run"),
    }  # fmt: skip
    settings = {name: value for name, value in settings.items() if name not in ("latent_heads", "pooling_hidden_size")}
    args = arguments_from_settings(settings, "", FinetuneArguments)
    train, *_, labels = read_sets(args)
    encoder = build_classifier(args, train, labels)[0].encoder
    pooler, special = encoder.word_pooler, encoder.config.num_special_tokens
    assert pooler.frequencies[special:].sum().item() == pytest.approx(1)
    wanted = (1e-3 / (1e-3 + pooler.frequencies)).log()
    torch.testing.assert_close(pooler.log_weights.weight[:, 0], wanted)
    words, own = encoder.embeddings.word_embeddings.weight[special:], encoder.embeddings.special_embeddings.weight[1:]
    assert own.square().mean().item() == pytest.approx(words.square().mean().item(), rel=1e-4)


def test_classifiers_have_no_decoder(sets, checkpoint, tmp_path):
    run({**sets, "checkpoint": checkpoint, "epochs": 1}, tmp_path / "run")
    folder = tmp_path / "run" / "model"
    check_checkpoint(folder)
    with pytest.raises(ValueError, match="MeanMaxAAEForSequenceClassification, which has no decoder"):
        load_checkpoint(folder)
    card = write_model_card(folder, "me/classifier").read_text()
    assert "pipeline_tag: text-classification" in card
    assert "which kind of text it is: `old`, `red`." in card
    assert "AutoModelForSequenceClassification.from_pretrained" in card
    assert "generate(" not in card
    classifier = AutoModelForSequenceClassification.from_pretrained(folder)
    classifier.config.problem_type = "multi_label_classification"
    classifier.config.save_pretrained(folder)
    card = write_model_card(folder, "me/classifier").read_text()
    assert "logits.sigmoid()" in card
    assert "softmax" not in card
    classifier.config.problem_type = "regression"
    classifier.config.save_pretrained(folder)
    card = write_model_card(folder, "me/regression").read_text()
    assert "predicts a number for a text" in card
    assert "print(classifier(**batch).logits.squeeze(-1))" in card
    assert "softmax" not in card
    assert "`old`" not in card


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"train": ""}, "`train` is missing"),
        ({"start": "nothing"}, "`start` is 'nothing', which needs a checkpoint"),
        (
            {"checkpoint": "x", "hidden_size": 9, "family": "mean_max_aae"},
            "`hidden_size` is 9, .*the checkpoint fixes it",
        ),
        ({"checkpoint": "x", "tokenizer": "bpe"}, "`tokenizer` is 'bpe', but `checkpoint` has words and"),
        ({"checkpoint": "x", "word_vector_scale": 0.1}, "`word_vector_scale` is 0.1, but `checkpoint` has words and"),
        ({"checkpoint": "x", "word_vectors": "train"}, "`word_vectors` and `checkpoint` exclude each other"),
        ({"epochs": 0}, "`epochs` is 0.0; give a positive number"),
        ({"seed": 2**32}, "`seed` is 4,294,967,296; it may be 4,294,967,295 at most"),
        ({"batch_size": 0}, "`batch_size` is 0; it must be 1 or more"),
        ({"max_grad_norm": -1}, r"`max_grad_norm` is -1\.0; it must be 0 or more"),
        ({"learning_rate": "nan"}, "`learning_rate` is nan; it must be a finite number"),
        ({"problem": "ranking"}, "--problem: invalid choice: 'ranking'"),
        ({"lerning_rate": 1}, "unknown option --lerning_rate. Did you mean --learning_rate"),
        ({"per_device_train_batch_size": 8}, r"Here it is --batch_size\."),
        ({"hidden_size": 33, "num_attention_heads": 3}, "`hidden_size` is 33; the two directions"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_done(settings, reason):
    with pytest.raises(ValueError, match=reason):
        arguments_from_settings({"train": "train.tsv", **settings}, "", FinetuneArguments)


def test_impossible_settings_of_a_checkpoint_are_refused_before_training(sets, checkpoint, tmp_path):
    for given, reason in (
        ({"attention_penalty": 1.0}, r"`attention_penalty` is 1\.0 and `pooling` 'mean_max'"),
        ({"classifier_dropout": 1.0}, r"`classifier_dropout` is 1\.0"),
        ({"family": "gated_mean_max_aae"}, "`family` is 'gated_mean_max_aae', and .* is of the family 'mean_max_aae'"),
    ):
        with pytest.raises(ValueError, match=reason):
            run({**sets, "checkpoint": checkpoint, **given}, tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_checkpoint_below_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine" / "model").mkdir(parents=True)
    given = {"train": "train.tsv", "checkpoint": "runs/mine/model"}
    assert arguments_from_settings(given, "", FinetuneArguments).output_dir == str(Path("runs", "finetune"))


def test_bad_labels_are_refused(sets, tmp_path):
    settings = {**TINY, **sets}
    other = write(tmp_path / "other.tsv", [("the cat", "blue")])
    one = write(tmp_path / "one.tsv", [("the cat", "red")] * 30)
    two = write(tmp_path / "two.tsv", [("the cat", "red"), ("the dog", "old")])
    scores = write(tmp_path / "scores.tsv", [("the cat", f"{number / 10}") for number in range(30)])
    swapped = write(tmp_path / "swapped.tsv", [row[::-1] for row in reviews(30, seed=0)])
    for given, reason in (
        ({"test": other}, r"other.tsv: the label 'blue' does not occur in the training examples \(old, red\)\."),
        ({"validation": other}, r"other.tsv: the label 'blue' does not occur in the training examples \(old, red\)\."),
        ({"train": one}, "All examples have the label 'red'; a classifier needs two"),
        ({"problem": "regression"}, "train.tsv: the label '(old|red)' is no number"),
        ({"train": other}, "All examples have the label 'blue'; a classifier needs two"),
        ({"train": two}, "1 example.s. to train on beside 1 held out for validation, expected 2"),
        (
            {"train": scores},
            "the labels of 30 examples are 30 numbers such as '0.0', .* `--problem regression`",
        ),
        (
            {"train": swapped},
            "swapped.tsv: the labels of 30 examples are 30 texts such as .* text and label swapped",
        ),
        ({"test": sets["train"]}, "`test` is '.*train.tsv', whose texts are those of `train`"),
        (
            {"validation": sets["train"]},
            "`validation` is '.*train.tsv', whose texts are those of `train`: .*a tenth is held out",
        ),
    ):
        given = {**settings, **given}
        if given["train"] in (other, two, scores, swapped):
            del given["validation"]
        with pytest.raises(ValueError, match=reason):
            run(given, tmp_path / "run")
    # Before anything is made of the texts.
    assert not (tmp_path / "run").exists()


def test_classes_are_told_and_doubtful_ones_warned_of(tmp_path, capsys):
    rows = [("words of a review", "how many"), *reviews(30, seed=0), ("the cat", "Red"), ("a dog", "\uff32ed")]
    args = arguments_from_settings({"train": write(tmp_path / "a.tsv", rows)}, "", FinetuneArguments)
    with pytest.warns(UserWarning, match="differ only|single example") as warned:
        read_sets(args, show_classes=True)
    counts = {label: [row[-1] for row in rows].count(label) for label in ("old", "red")}
    first, second = sorted(counts, key=counts.get, reverse=True)
    shown = f"5 classes: {first} {counts[first]}, {second} {counts[second]}, how many 1, Red 1, \uff32ed 1\n"
    assert capsys.readouterr().err == shown
    alike, single = (str(warning.message) for warning in warned)
    assert "a.tsv: the labels 'red', 'Red', '\uff32ed' differ only in case, blanks or the form of their ch" in alike
    assert "classes with a single example: 3, such as 'how many' with the text 'words of a review'" in single
    write(tmp_path / "a.tsv", [(f"text {number}", f"class {number % 12}") for number in range(48)])
    read_sets(args, show_classes=True)
    assert capsys.readouterr().err.endswith("class 9 4, ...\n")
    read_sets(args)
    assert not capsys.readouterr().err


def test_command_line(sets, tmp_path, capsys):
    options = [f"--{name}={value}" for name, value in {**TINY, **sets, "epochs": 2}.items()]
    folders = [f"--output_dir={tmp_path / 'run'}", f"--cache_dir={tmp_path / 'cache'}"]
    assert main([*options, *folders]) == 0
    said, shown = capsys.readouterr()
    assert said.splitlines()[-1] == f"saved to {tmp_path / 'run' / 'model'}"
    bars = [line for line in re.split(r"[\r\n]", shown) if "%" in line]
    assert {line.partition(":")[0] for line in bars} == {"train", "evaluate"}
    assert "test: " in said
    assert "2 classes: " in shown
    assert "parameters of the classifier" in said
    with pytest.raises(SystemExit, match=r"^hf-meanmax finetune: No such file or data set"):
        main(["--train", str(tmp_path / "missing.tsv")])
    assert main(["--help"]) == 0
    assert "--max_examples" in capsys.readouterr().out


def test_sentence_transformers_trainer(checkpoint, tmp_path, caplog):
    """The encoder learns by a loss of sentence-transformers, is saved and loaded."""
    draw = random.Random(0)
    rows = [
        (f"the {word} {thing}", f"a {word} {thing} sat") for word in ("old", "red") for thing in ("cat", "dog", "mat")
    ]
    draw.shuffle(rows)
    data = Dataset.from_dict({"anchor": [a for a, _ in rows] * 8, "positive": [b for _, b in rows] * 8})
    model = SentenceTransformer(checkpoint, device="cpu")
    loss = MultipleNegativesRankingLoss(model)
    before = model.encode([a for a, _ in rows], convert_to_tensor=True)
    options = SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path / "run"), max_steps=20, per_device_train_batch_size=6, learning_rate=0.01, use_cpu=True,
        report_to=[], save_strategy="no", logging_steps=5, disable_tqdm=True, batch_sampler="no_duplicates",
    )  # fmt: skip
    trainer = SentenceTransformerTrainer(model, options, train_dataset=data, loss=loss)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < 0.95 * losses[0]
    after = model.encode([a for a, _ in rows], convert_to_tensor=True)
    assert not torch.allclose(before, after)
    model.save_pretrained(str(tmp_path / "saved"))
    again = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    torch.testing.assert_close(again.encode([a for a, _ in rows], convert_to_tensor=True), after)
    # The tools take it, whole texts and all, and what needs a decoder says so.
    loaded = load_encoder(str(tmp_path / "saved"), device="cpu")
    long = [" ".join(WORDS * 60)]
    assert loaded.max_seq_length == model.max_seq_length
    torch.testing.assert_close(loaded.encode(long, convert_to_tensor=True), model.encode(long, convert_to_tensor=True))
    with pytest.raises(ValueError, match=r"saved holds an encoder alone .*can encode but not decode"):
        load_checkpoint(tmp_path / "saved")
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    try:
        # Of a decoder with another layer some weights are there.
        AutoModelForSeq2SeqLM.from_pretrained(checkpoint, num_hidden_layers=2)
        assert "no decoder" not in caplog.text
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "saved")
    finally:
        logger.removeHandler(caplog.handler)
    assert "The checkpoint holds no decoder" in caplog.text
    # Put back into the whole model, it has the decoder again.
    whole = AutoModelForSeq2SeqLM.from_pretrained(checkpoint)
    whole.get_encoder().load_state_dict(model[0].auto_model.state_dict())
    whole.save_pretrained(tmp_path / "whole")
    model.tokenizer.save_pretrained(tmp_path / "whole")
    both = SentenceTransformer(str(tmp_path / "whole"), device="cpu")
    torch.testing.assert_close(both.encode([a for a, _ in rows], convert_to_tensor=True), after)
    assert load_checkpoint(tmp_path / "whole")[0].generate(sentence_embedding=after).shape[0] == len(rows)


def test_final_scores_are_no_reason_to_warn_ofearly_stopping(sets, tmp_path, caplog):
    """Trainer's callback looks for its metric in every evaluation."""
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    try:
        results = run({**TINY, **sets, "epochs": 2, "early_stopping_patience": 1}, tmp_path / "run")
    finally:
        logger.removeHandler(caplog.handler)
    assert {"validation", "test"} <= results.keys()
    assert "early stopping" not in caplog.text


def test_a_loss_that_is_no_number_ends_the_run(sets, tmp_path):
    with pytest.raises(FloatingPointError, match=r"`loss` is (nan|inf) after epoch 1.00. Lower --learning_rate"):
        run({**TINY, **sets, "learning_rate": 1e38, "max_grad_norm": 0}, tmp_path / "run")
    assert not (tmp_path / "run" / "model").exists()


def test_early_stopping_counts_on_after_a_kill(tmp_path):
    told = {"EarlyStoppingCallback": {"args": {}, "attributes": {"early_stopping_patience_counter": 2}}}
    for saved, counted in ((told, 2), ({}, 0)):
        (tmp_path / "trainer_state.json").write_text(json.dumps({"stateful_callbacks": saved}))
        assert early_stopping(3, tmp_path).early_stopping_patience_counter == counted
    assert early_stopping(3, None).early_stopping_patience_counter == 0


def test_two_processes_train_one_classifier(tmp_path):
    write(tmp_path / "train.tsv", reviews(40, 0))
    command = ["-m", "torch.distributed.run", "--nproc_per_node=2", str(ROOT / "scripts" / "finetune.py")]
    options = [f"--train={tmp_path / 'train.tsv'}", f"--output_dir={tmp_path / 'run'}"]
    words = [f"--{name}={value}" for name, value in {**TINY, "epochs": 1}.items()]
    result = run_python(*command, *options, *words, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.count("parameters of the classifier") == 1
    assert check_checkpoint(tmp_path / "run" / "model").num_labels == 2
