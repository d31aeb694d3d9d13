"""Runs on pairs of sentences, and runs with a teacher."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_meanmax.checkpoint.folder import load_checkpoint, load_target_tokenizer, save_checkpoint
from hf_meanmax.commands.pretrain import main
from hf_meanmax.inference.encoder import load_encoder
from hf_meanmax.training import preparation
from hf_meanmax.training.preparation import open_pairs, prepare
from hf_meanmax.training.pretrain import pretrain
from hf_meanmax.training.teacher import teacher_vectors
from tiny_model import WORDS, make_model, make_tokenizer
from training.test_pretrain import Killed, comparable, interrupt, kill, records, same, weights

ENGLISH = ["one", "two", "three", "four", "five", "six", "seven"]
GERMAN = ["Eins", "Zwei", "Drei", "Vier", "Fünf", "Sechs", "Sieben"]
TINY = {
    "family": "compound_attention", "objective": "translation", "architecture": "attn-attn", "latent_heads": 4,
    "latent_size": 16, "hidden_size": 32, "embedding_size": 16, "vocab_size": 60, "lowercase": False, "min_tokens": 1,
    "batch_tokens": 256, "learning_rate": 0.02, "max_steps": 240, "log_steps": 10, "long_lines": "truncate",
    "initializer_range": 0.3,
}  # fmt: skip


@pytest.fixture(scope="session")
def pairs(tmp_path_factory) -> Path:
    """Numbers in two languages, in the same order; a folder with train.en, train.de, val.en, val.de."""
    folder = tmp_path_factory.mktemp("pairs")
    draw = random.Random(0)
    for name, number in (("train", 400), ("val", 40)):
        lines = [[draw.randrange(7) for _ in range(draw.randint(1, 5))] for _ in range(number)]
        for language, words in (("en", ENGLISH), ("de", GERMAN)):
            text = "".join(" ".join(words[i] for i in line) + "\n" for line in lines)
            (folder / f"{name}.{language}").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def options(pairs):
    return {
        **TINY,
        "corpus": [str(pairs / "train.en")], "target": [str(pairs / "train.de")],
        "validation": [str(pairs / "val.en")], "validation_target": [str(pairs / "val.de")],
    }  # fmt: skip


@pytest.fixture(scope="session")
def teacher(tmp_path_factory) -> str:
    return str(save_checkpoint(make_model(), make_tokenizer(), tmp_path_factory.mktemp("teacher") / "model"))


@pytest.mark.parametrize(("architecture", "least"), [("attn-attn", 60), ("final-ctx", 30), ("attn", 60)])
def test_it_learns_to_translate(make_arguments, options, architecture, least, capsys):
    representation = {} if architecture == "attn" else {"latent_size": 64}
    heads = {"latent_heads": 4, "latent_size": 16} if architecture == "attn-attn" else {}
    options = {k: v for k, v in options.items() if not k.startswith("latent")}
    args = make_arguments(**{**options, **representation, **heads, "architecture": architecture, "eval_steps": 100})
    summary = pretrain(args)
    assert summary["validation_bleu"] > least
    assert "BLEU of greedy translations" in capsys.readouterr().out
    assert any("validation_bleu" in record and "stopped_by" not in record for record in records(args.output_dir))
    folder = Path(args.output_dir) / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    translator = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    said = translator.generate(**tokenizer(["two five one"], return_tensors="pt"))
    assert set(tokenizer.decode(said[0], skip_special_tokens=True).split()) <= set(GERMAN)


def test_two_tokenizers(make_arguments, options, pairs):
    args = make_arguments(
        **{**options, "target_tokenizer": "word", "source_vocab_size": 30, "tie_word_embeddings": True}
    )
    summary = pretrain(args)
    # Of 0 before the training; sums in another order move it by some points.
    assert summary["validation_bleu"] > 40
    folder = Path(args.output_dir) / "model"
    model, source = load_checkpoint(folder)
    target = load_target_tokenizer(folder, model.config, source)
    assert set(ENGLISH) < set(source.get_vocab())
    assert set(GERMAN) < set(target.get_vocab())
    assert not set(GERMAN) & set(source.get_vocab())
    assert (model.config.vocab_size, model.config.input_vocab_size) == (len(target), len(source))
    vectors = SentenceTransformer(str(folder), device="cpu").encode(["two five"], convert_to_tensor=True)
    said = model.generate(sentence_embedding=vectors)
    assert set(target.decode(said[0], skip_special_tokens=True).split()) <= set(GERMAN)


@pytest.mark.parametrize("name", ["wordpiece", "no-folder"])
def test_a_target_tokenizer_that_is_none(make_arguments, options, name):
    with pytest.raises((ValueError, FileNotFoundError), match=f"`target_tokenizer` is '{name}'"):
        pretrain(make_arguments(**{**options, "target_tokenizer": name}))


def test_a_tokenizer_from_elsewhere_has_the_special_tokens_of_the_model(make_arguments, options, tmp_path):
    """Otherwise the export would fail after the last step, or the translations would not end."""
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(tmp_path / "ours")
    tokenizer.eos_token = WORDS[0]
    tokenizer.save_pretrained(tmp_path / "other")
    tokenizer.bos_token = None
    tokenizer.save_pretrained(tmp_path / "none")
    settings = {**options, "tokenizer": str(tmp_path / "ours")}
    for target, reason in (
        ("other", "and the source's tokenizer"), ("none", "has no bos_token. Give a tokenizer with"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=reason):
            pretrain(make_arguments(**{**settings, "target_tokenizer": str(tmp_path / target)}))
    words = {
        "tokenizer": str(tmp_path / "other"),
        "corpus": options["corpus"],
        "max_steps": 1,
        "weighted_mean_row": True,
    }
    with pytest.raises(ValueError, match="`num_special_tokens`"):
        pretrain(make_arguments(**words))


def test_a_translation_may_have_many_more_tokens_than_its_source(make_arguments, options):
    args = make_arguments(
        **{**options, "target_tokenizer": "char", "source_vocab_size": 30, "max_steps": 2, "max_target_tokens": 60}
    )
    pretrain(args)
    folder = Path(args.output_dir) / "model"
    model, source = load_checkpoint(folder)
    inputs = source(["one two"], return_tensors="pt")
    with torch.no_grad():
        model.lm_head.bias = torch.nn.Parameter(torch.zeros(model.config.vocab_size))
        model.lm_head.bias[9] = 1e4  # a letter again and again
    assert model.generate(**inputs).shape[1] > 20


def test_pairs_are_held_out_together(make_arguments, options):
    args = make_arguments(**{**options, "validation": None, "validation_target": None})
    train, held_out = (list(side) for side in open_pairs(args))
    translation = dict(zip(ENGLISH, GERMAN, strict=True))
    for source, target in (*train, *held_out):
        assert [translation[word] for word in source.split()] == target.split()
    assert len(train) + len(held_out) == 400
    assert 20 <= len(held_out) <= 220
    prepared = prepare(args, show_progress=False)
    assert prepared.references == [target for _, target in held_out]
    assert len(prepared.train) == len(prepared.train_target) == len(train)


def test_pairs_that_are_too_long_or_trained_on_are_not_held_out(make_arguments, options, pairs, monkeypatch):
    monkeypatch.setattr(preparation, "MOST_TOKENS", 4)
    prepared = prepare(make_arguments(**options), show_progress=False)
    assert max(len(text.split()) for text in prepared.validation_texts) == 3
    # Loss and BLEU are of the same pairs.
    assert len(prepared.validation_texts) == len(prepared.references) == len(prepared.validation)
    same = {"validation": options["corpus"], "validation_target": options["target"]}
    with pytest.raises(ValueError, match="is among the texts of `corpus`"):
        open_pairs(make_arguments(**{**options, **same}))
    more = {"corpus": pairs / "val.en", "target": pairs / "val.de"}
    several = {name: [*options[name], str(path)] for name, path in more.items()}
    with pytest.raises(ValueError, match="is among the texts of `corpus`"):
        open_pairs(make_arguments(**{**options, **several}))


def test_long_sides_are_cut_or_left_out_with_their_pair(make_arguments, options):
    cut = prepare(make_arguments(**{**options, "max_target_tokens": 2}), show_progress=False)
    assert cut.train_target.lengths.max() == 3
    assert cut.train_target.report.truncated > 0
    assert len(cut.train) == len(cut.train_target) == 400
    dropped = prepare(make_arguments(**{**options, "max_target_tokens": 2, "long_lines": "drop"}), show_progress=False)
    assert len(dropped.train_target) < len(dropped.train) == 400


def test_a_teacher_is_learnt_from(make_arguments, options, teacher):
    """Its loss falls, to less than that of the control, whose vectors are those of other sentences."""
    last = {}
    for name, shuffled in (("true", False), ("shuffled", True)):
        args = make_arguments(
            name, **options, teacher=teacher, teacher_loss="squared", teacher_weight=0.5, teacher_shuffled=shuffled,
            softmax="sampled", num_negatives=20,
        )  # fmt: skip
        pretrain(args)
        curve = [record["teacher_loss"] for record in records(args.output_dir) if "teacher_loss" in record]
        assert len(curve) == 24
        last[name] = curve[-1]
        assert curve[-1] < curve[0]
    assert last["true"] < 0.7 * last["shuffled"]
    model = AutoModelForSeq2SeqLM.from_pretrained(Path(args.output_dir) / "model")
    assert model.config.teacher_size == 32


def test_any_family_can_have_a_teacher(make_arguments, teacher):
    args = make_arguments(teacher=teacher, teacher_weight=1.0)
    pretrain(args)
    assert all("teacher_loss" in record for record in records(args.output_dir) if "loss" in record)


def test_teacher_vectors_are_those_of_the_sentences(make_arguments, options, teacher, monkeypatch):
    args = make_arguments(**options, teacher=teacher)
    prepared = prepare(args, show_progress=False)
    texts, encoder = prepared.sources["train"], load_encoder(teacher, device="cpu")
    rows = np.arange(len(prepared.train))
    vectors = teacher_vectors(args, texts, encoder, show_progress=False)[rows]
    assert [prepared.tokenizer(text).input_ids for text in texts] == [prepared.train[row].tolist() for row in rows]
    expected = SentenceTransformer(teacher, device="cpu").encode(list(texts))
    np.testing.assert_allclose(vectors, expected, rtol=1e-3, atol=1e-3)
    monkeypatch.setattr("hf_meanmax.inference.encode.encode_texts", lambda *_: pytest.fail("computed twice"))
    assert np.array_equal(teacher_vectors(args, texts, encoder, show_progress=False)[rows], vectors)
    args.teacher_shuffled = True
    shuffled = teacher_vectors(args, texts, encoder, show_progress=False)[rows]
    assert not np.array_equal(shuffled, vectors)
    assert np.array_equal(np.sort(shuffled[:, 0]), np.sort(vectors[:, 0]))


def test_a_killed_run_with_a_teacher_goes_on_to_the_last_bit(make_arguments, options, teacher, monkeypatch):
    options = {**options, "max_steps": 7, "checkpoint_steps": 2, "log_steps": 3, "gradient_accumulation_steps": 2}
    whole = make_arguments("whole", **options, teacher=teacher)
    killed = make_arguments("killed", **options, teacher=teacher)
    pretrain(whole)
    for moment in (3, 5):
        with monkeypatch.context() as patch:
            interrupt(patch, moment, kill)
            with pytest.raises(Killed):
                pretrain(killed)
    pretrain(killed)
    assert comparable(killed.output_dir) == comparable(whole.output_dir)
    assert same(weights(killed.output_dir), weights(whole.output_dir))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": None}, "needs the translations: either `target`"),
        ({"target_column": "de"}, "needs the translations: either `target`"),
        ({"validation_target": None}, "go together"),
        ({"target": None, "target_column": "de", "validation": None}, "give both, or neither"),
        ({"source_vocab_size": 9}, "Give `target_tokenizer`"),
        ({"objective": "reconstruction"}, "`target` is .* Use `--objective translation`"),
        ({"max_target_tokens": 0}, "`max_target_tokens` is 0"),
        ({"architecture": "attn", "teacher": "x", "latent_heads": 1, "latent_size": None}, "no embedding to map"),
    ],
)
def test_settings_that_do_not_fit(make_arguments, options, changes, message):
    with pytest.raises(ValueError, match=message):
        make_arguments(**{**options, **changes})


def test_a_teacher_without_vectors_is_one_line(make_arguments, options, tmp_path):
    from hf_meanmax import CompoundAttentionForTranslation

    model = make_model(full_class=CompoundAttentionForTranslation, architecture="attn")
    folder = save_checkpoint(model, make_tokenizer(), tmp_path / "attn")
    words = [f"--{key}={value}" for key, value in options.items() if not isinstance(value, list)]
    words += [f"--{key}={value[0]}" for key, value in options.items() if isinstance(value, list)]
    words += [f"--teacher={folder}", f"--output_dir={tmp_path / 'run'}", f"--cache_dir={tmp_path / 'cache'}"]
    with pytest.raises(SystemExit, match="no fixed representation"):
        main(words)
