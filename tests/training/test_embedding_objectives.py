"""Runs that learn embeddings from neighbours, from views and from a teacher, with a decoder and without one."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.commands.export import main as export
from hf_meanmax.commands.pretrain import main as pretrain_command
from hf_meanmax.cosines import paired_cosines
from hf_meanmax.evaluation.neighbors import shared_neighbors
from hf_meanmax.files import write_json
from hf_meanmax.inference import encode as encode_module
from hf_meanmax.inference.embedder import load_embedder
from hf_meanmax.inference.embedding_files import MANIFEST, read_manifest
from hf_meanmax.inference.encoder import load_encoder
from hf_meanmax.inference.fingerprints import weights_fingerprint
from hf_meanmax.training import teacher as teacher_module
from hf_meanmax.training.cache import cache_lock
from hf_meanmax.training.preparation import prepare
from hf_meanmax.training.pretrain import pretrain
from hf_meanmax.training.teacher import TeacherVectors, teacher_vectors, text_hash
from tiny_model import make_model, make_tokenizer, random_lines
from training.test_pretrain import (
    Killed,
    check_that_a_kill_changes_nothing,
    records,
)

ROWS = {"weighted_mean_row": True, "latent_normalization": "rows", "latent_scales": True}
STATIC = {"encoder_type": "none", "pooling": "weighted_mean", "latent_size": 8}


@pytest.fixture(scope="session")
def teacher(tmp_path_factory) -> str:
    return str(save_checkpoint(make_model(), make_tokenizer(), tmp_path_factory.mktemp("teacher") / "model"))


def curve(args, name: str) -> list[float]:
    return [record[name] for record in records(args.output_dir) if name in record]


def test_neighbours_without_a_decoder(make_arguments, capsys):
    args = make_arguments(objective="none", contrastive="neighbours", **STATIC, max_steps=24, eval_steps=12)
    summary = pretrain(args)
    assert re.search(
        r"\n[\d,]+ of these sentences are encoded; 0 are context alone, by `min_tokens` ", capsys.readouterr().out
    )
    losses = curve(args, "loss")
    assert losses[-1] < losses[0]
    assert len(curve(args, "validation_loss")) == 2
    assert "validation_accuracy" not in summary
    folder = Path(args.output_dir) / "model"
    vectors = SentenceTransformer(str(folder), device="cpu").encode(["the cat saw a book", "zzz", ""])
    assert vectors.shape == (3, 8)
    assert np.isfinite(vectors).all()
    assert vectors[0].any()
    with pytest.raises(ValueError, match="gives vectors alone"):
        AutoModelForSeq2SeqLM.from_pretrained(folder).generate(sentence_embedding=vectors)


def test_all_terms_together_are_logged_and_decode_what_is_published(make_arguments, teacher):
    args = make_arguments(
        **ROWS, teacher=teacher, similarity_weight=0.5, contrastive="both", word_drop=0.2, span_drop=0.2, max_steps=40,
    )  # fmt: skip
    pretrain(args)
    for name in ("decoding", "teacher_loss", "similarity_loss", "neighbour_loss", "view_loss"):
        assert len(curve(args, name)) == 40
    for name in ("loss", "decoding", "teacher_loss", "similarity_loss"):
        losses = curve(args, name)
        assert np.mean(losses[-5:]) < np.mean(losses[:5]), name
    folder = Path(args.output_dir) / "model"
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    texts = ["the cat saw a book in town", "my friend found some bread at night"]
    published = SentenceTransformer(str(folder), device="cpu").encode(texts, normalize_embeddings=True)
    words = model.generate(sentence_embedding=published)
    again = model.generate(**tokenizer(texts, return_tensors="pt", padding=True), max_new_tokens=words.shape[1] - 1)
    assert words[:, : again.shape[1]].tolist() == again.tolist()


def test_a_killed_run_goes_on_to_the_last_bit(make_arguments, teacher, monkeypatch):
    options = {
        **ROWS, "objective": "none", "teacher": teacher, "contrastive": "both", "word_drop": 0.2, "max_steps": 7,
        "checkpoint_steps": 2, "log_steps": 3, "gradient_accumulation_steps": 2,
    }  # fmt: skip
    whole, killed = make_arguments("whole", **options), make_arguments("killed", **options)
    check_that_a_kill_changes_nothing(whole, killed, monkeypatch)


def test_held_out_losses_are_reported_one_by_one(make_arguments, teacher, capsys):
    terms = {"teacher_loss": 1.0, "similarity_loss": 0.5, "view_loss": 2.0}
    weights = {"similarity_weight": 0.5, "contrastive_weight": 2.0, "contrastive": "views", "word_drop": 0.2}
    summary = pretrain(make_arguments(**ROWS, **weights, objective="none", teacher=teacher, max_steps=2))
    found = {name: summary[f"validation_{name}"] for name in terms}
    assert summary["validation_loss"] == pytest.approx(
        sum(weight * found[name] for name, weight in terms.items()), rel=1e-4
    )
    said = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
    assert f"held-out: loss {summary['validation_loss']:.3f}, {said}" in capsys.readouterr().out


def test_sentences_that_are_context_alone_are_counted(make_arguments, tmp_path, capsys):
    corpus = tmp_path / "lines.txt"
    long = " ".join(["the cat saw a book"] * 4)
    corpus.write_text(f"the cat saw a book\nthe dog saw some bread\n{long}\n\n" * 60)
    changes = {"corpus": [str(corpus)], "max_tokens": 10, "max_steps": 2}
    pretrain(make_arguments(objective="none", contrastive="neighbours", **STATIC, **changes))
    said = "warning: 120 of these sentences are encoded; 60 are context alone, by `min_tokens` 4 and `max_tokens` 10"
    assert said in capsys.readouterr().out.splitlines()
    corpus.write_text("the cat saw a book\nthe dog saw some bread\n\n" * 20 + "the dog saw a book\n\n" * 60)
    pretrain(make_arguments("alone", objective="none", contrastive="neighbours", **STATIC, **changes))
    assert "; 80 have no neighbour, and are left out\n" in capsys.readouterr().out


def test_a_teacher_replaced_in_place_is_another_run(make_arguments, tmp_path, monkeypatch):
    where = tmp_path / "teacher"
    save_checkpoint(make_model(), make_tokenizer(), where)
    settings = {**ROWS, "objective": "none", "teacher": str(where)}
    pretrain(make_arguments(**settings, max_steps=3))
    assert pretrain(make_arguments(**settings, max_steps=4))["steps"] == 4
    other = make_model()
    with torch.no_grad():
        next(other.encoder.parameters()).add_(0.1)
    save_checkpoint(other, make_tokenizer(), where)
    with monkeypatch.context() as patch:
        # It shows before hours of the new teacher's work.
        patch.setattr("hf_meanmax.training.pretrain.teacher_vectors", None)
        with pytest.raises(FileExistsError, match=r"learnt from another teacher or embedder.*--overwrite"):
            pretrain(make_arguments(**settings, max_steps=5))
    assert pretrain(make_arguments(**settings, max_steps=2, overwrite=True))["steps"] == 2


def test_killed_teacher_vectors_are_continued_and_belong_to_their_texts(make_arguments, teacher, monkeypatch, tmp_path):
    args = make_arguments(teacher=teacher, cache_dir=str(tmp_path / "cache"))
    texts, encoder = prepare(args, show_progress=False).sources["train"], load_encoder(teacher, device="cpu")
    small = encode_module.EncodeSettings(dtype="float16", shard_size=64)
    monkeypatch.setattr("hf_meanmax.training.teacher._SETTINGS", small)
    calls = []
    true = encode_module.embed_texts

    def dying(*arguments, **options):
        if len(calls) == 2:
            raise Killed
        calls.append(1)
        return true(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(encode_module, "embed_texts", dying)
        with pytest.raises(Killed):
            teacher_vectors(args, texts, encoder, show_progress=False)
    vectors = teacher_vectors(args, texts, encoder, show_progress=False)
    assert len(calls) == 2 < len(vectors.files)
    rows = np.arange(len(vectors))
    np.testing.assert_allclose(vectors[rows], encoder.encode(list(texts)), rtol=2e-3, atol=2e-3)
    prompted = make_arguments(teacher=teacher, cache_dir=args.cache_dir, teacher_prompt="a red ")
    # However few files may be open at once.
    monkeypatch.setattr("hf_meanmax.training.teacher.most_open_files", lambda: 2)
    few = TeacherVectors(list(dict.fromkeys(file.parent for file in vectors.files)), vectors.places)
    assert np.array_equal(few[rows[::-1]], vectors[rows[::-1]])
    assert few._open.cache_info().currsize == 1
    other = teacher_vectors(prompted, texts, load_embedder(teacher, "a red ", "cpu"), show_progress=False)
    assert not np.allclose(other[rows], vectors[rows])


def test_of_a_grown_corpus_only_new_texts_are_encoded(make_arguments, teacher, monkeypatch, tmp_path, capsys):
    """Whatever run had the others, in whatever order, and once each; a part that is gone is computed again."""
    lines = list(filter(None, random_lines(60, seed=5)))
    (tmp_path / "first.txt").write_text("\n".join([*lines[:40], *lines[:3]]) + "\n")
    (tmp_path / "grown.txt").write_text("\n".join(lines[::-1]) + "\n")
    encoded: list[str] = []
    true = encode_module.embed_texts

    def counting(model, texts, *arguments, **options):
        encoded.extend(texts)
        return true(model, texts, *arguments, **options)

    monkeypatch.setattr(encode_module, "embed_texts", counting)
    settings = {"teacher": teacher, "cache_dir": str(tmp_path / "cache"), "min_tokens": 1, "max_unknown_rate": 1.0}
    encoder = load_encoder(teacher, device="cpu")

    def vectors_of(corpus: str, **changes: Any) -> TeacherVectors:
        encoded.clear()
        args = make_arguments(**{**settings, "corpus": [str(tmp_path / corpus)], **changes})
        texts = prepare(args, show_progress=False).sources["train"]
        found = teacher_vectors(args, texts, encoder, show_progress=True)
        wanted = encoder.encode(list(texts))
        np.testing.assert_allclose(found[np.arange(len(found))], wanted, rtol=2e-3, atol=2e-3)
        assert len(found) == len(wanted)
        return found

    vectors_of("first.txt", min_tokens=4)
    assert len(encoded) == len(set(encoded)) < 40
    long = set(encoded)
    first = vectors_of("first.txt")
    assert set(encoded) == set(lines[:40]) - long
    grown = vectors_of("grown.txt")
    assert sorted(encoded) == sorted(set(lines) - set(lines[:40]))
    told = capsys.readouterr().err
    assert f"{len(encoded):,} of {len(set(lines)):,} texts have no vector yet" in told
    assert set(first.files) < set(grown.files)
    vectors_of("grown.txt")
    assert not encoded
    for damage in (
        Path.unlink,
        lambda file: shutil.rmtree(file.parent),
        lambda file: file.write_bytes(file.read_bytes()[:-1]),
        lambda file: (file.parent / "manifest.json").unlink(),
        lambda file: file.parent.with_suffix(".npy").write_bytes(b""),
        # As a kill leaves what was being computed again.
        lambda file: (
            write_json(file.parent / MANIFEST, {**read_manifest(file.parent), "complete": False}) or file.unlink()
        ),
    ):
        damage(vectors_of("first.txt").files[0])
        vectors_of("first.txt")
        assert set(encoded) <= set(lines[:40])
        vectors_of("first.txt")
        assert not encoded


def test_vectors_of_a_killed_run_serve_another_corpus(make_arguments, teacher, monkeypatch, tmp_path):
    """All of its finished shards, but not those of a run that still computes."""
    lines = list(dict.fromkeys(filter(None, random_lines(60, seed=7))))
    for name, some in (("all.txt", lines), ("fewer.txt", lines[:30])):
        (tmp_path / name).write_text("\n".join(some) + "\n")
    small = encode_module.EncodeSettings(dtype="float16", shard_size=8)
    monkeypatch.setattr("hf_meanmax.training.teacher._SETTINGS", small)
    settings = {"teacher": teacher, "cache_dir": str(tmp_path / "cache"), "min_tokens": 1, "max_unknown_rate": 1.0}
    encoder, true, encoded = load_encoder(teacher, device="cpu"), encode_module.embed_texts, []

    def vectors_of(corpus: str) -> TeacherVectors:
        args = make_arguments(**settings, corpus=[str(tmp_path / corpus)])
        return teacher_vectors(args, prepare(args, show_progress=False).sources["train"], encoder, show_progress=False)

    def encode(model, texts, *arguments, **options):
        if len(encoded) == 16 and limit:
            raise Killed
        encoded.extend(texts)
        return true(model, texts, *arguments, **options)

    monkeypatch.setattr(encode_module, "embed_texts", encode)
    limit = True
    with pytest.raises(Killed):
        vectors_of("all.txt")
    limit = False
    (hashes,) = (path for path in (tmp_path / "cache" / "teachers").glob("*/*.npy"))
    with cache_lock(hashes.with_suffix("")):
        teacher_module._close_interrupted(hashes.parent)
    assert not read_manifest(hashes.with_suffix(""))["complete"]
    encoded.clear()
    found = vectors_of("fewer.txt")
    assert encoded == lines[16:30]
    np.testing.assert_allclose(found[np.arange(30)], encoder.encode(lines[:30]), rtol=2e-3, atol=2e-3)
    encoded.clear()
    found = vectors_of("all.txt")
    assert encoded == lines[30:]
    np.testing.assert_allclose(found[np.arange(len(lines))], encoder.encode(lines), rtol=2e-3, atol=2e-3)
    # Another run that goes on with a part, between the listing and the reading of its shards.
    listed = teacher_module._parts_with

    def shorter(*arguments):
        parts, has_vector = listed(*arguments)
        return {part: np.append(hashes, np.uint64(0)) for part, hashes in parts.items()}, has_vector

    monkeypatch.setattr(teacher_module, "_parts_with", shorter)
    with pytest.raises(ValueError, match="Another run has changed the vectors"):
        vectors_of("all.txt")


def test_a_text_that_changes_while_its_vectors_are_computed_leaves_none(make_arguments, teacher, monkeypatch, tmp_path):
    lines = [line for line in random_lines(60, seed=6) if len(line.split()) > 3]
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(lines) + "\n")
    args = make_arguments(teacher=teacher, cache_dir=str(tmp_path / "cache"), corpus=[str(path)])
    texts, encoder = prepare(args, show_progress=False).sources["train"], load_encoder(teacher, device="cpu")
    true = text_hash

    def edited(text: str) -> int:
        path.write_text("\n".join(lines[::-1]) + "\n")
        return true(text)

    monkeypatch.setattr(teacher_module, "text_hash", edited)
    with pytest.raises(ValueError, match="The text changed while it was read"):
        teacher_vectors(args, texts, encoder, show_progress=False)
    monkeypatch.undo()
    assert list((tmp_path / "cache" / "teachers").rglob("manifest.json")) == []
    path.write_text("\n".join(lines) + "\n")
    hashes = teacher_module._text_hashes(tmp_path, texts, False)
    monkeypatch.setattr(teacher_module, "_text_hashes", lambda *_: hashes)
    for changed in (lines[::-1], lines[:-1], [*lines, lines[0]]):
        path.write_text("\n".join(changed) + "\n")
        with pytest.raises(ValueError, match="The text changed while it was read"):
            teacher_vectors(args, texts, encoder, show_progress=False)


def test_a_run_in_bf16_has_its_teacher_compute_in_bf16(make_arguments, teacher, tmp_path):
    args = make_arguments(teacher=teacher, cache_dir=str(tmp_path / "cache"))
    texts, encoder = prepare(args, show_progress=False).sources["train"], load_encoder(teacher, device="cpu")
    plain = teacher_vectors(args, texts, encoder, show_progress=False)
    args.precision = "bf16"
    weights = weights_fingerprint(encoder)
    rounded = teacher_vectors(args, texts, encoder, show_progress=False)
    assert weights_fingerprint(encoder) == weights
    assert rounded.files[0].parent != plain.files[0].parent
    both = [vectors[np.arange(len(vectors))] for vectors in (plain, rounded)]
    assert not np.array_equal(*both)
    norms = [np.linalg.norm(vectors, axis=1) for vectors in both]
    np.testing.assert_allclose((both[0] * both[1]).sum(axis=1) / (norms[0] * norms[1]), 1, atol=1e-3)


def test_an_index_of_the_teacher_answers_its_student(make_arguments, teacher, tmp_path):
    args = make_arguments(**ROWS, objective="none", teacher=teacher, max_steps=60, learning_rate=0.02)
    pretrain(args)
    model = str(Path(args.output_dir) / "model")
    assert not export([model, "--space", "teacher", "--output", str(tmp_path / "space")])
    student, embedder = (SentenceTransformer(name, device="cpu") for name in (str(tmp_path / "space"), teacher))
    texts = ["the cat saw the red house", "a dog found a book", "the old man forgot some bread"]
    ours, theirs = student.encode(texts), embedder.encode(texts)
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1, rtol=1e-5)
    cosines = (ours * theirs).sum(axis=1) / np.linalg.norm(theirs, axis=1)
    assert cosines.min() > 0.8
    with pytest.raises(SystemExit, match="is there already; name a new folder"):
        export([model, "--output", str(tmp_path / "space")])
    assert list((tmp_path / "space").glob("*.py"))
    settings = Path(model) / "config_sentence_transformers.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "truncate_dim": 4}))
    export([model, "--space", "teacher", "--output", str(tmp_path / "bare"), "--no_remote_code"])
    assert not list((tmp_path / "bare").glob("*.py"))
    assert "auto_map" not in (tmp_path / "bare" / "config.json").read_text()
    np.testing.assert_allclose(SentenceTransformer(str(tmp_path / "bare"), device="cpu").encode(texts), ours, atol=1e-6)
    plain = make_model(teacher_size=5)
    scaled = str(save_checkpoint(plain, make_tokenizer(), tmp_path / "scaled", normalize="embedding"))
    with pytest.raises(SystemExit, match="reads the raw vector"):
        export([scaled, "--space", "teacher", "--output", str(tmp_path / "other")])
    with pytest.raises(SystemExit, match="has no map to a teacher's space"):
        export([teacher, "--space", "teacher", "--output", str(tmp_path / "other")])


@pytest.mark.parametrize("objective", ["none", "reconstruction"])
def test_a_run_ends_with_how_near_it_has_come_to_its_teacher(make_arguments, teacher, tmp_path, objective, capsys):
    args = make_arguments(**ROWS, objective=objective, teacher=teacher, max_steps=30, learning_rate=0.02)
    summary = pretrain(args)
    model = str(Path(args.output_dir) / "model")
    export([model, "--space", "teacher", "--output", str(tmp_path / "space")])
    texts = prepare(args, show_progress=False).validation_texts
    own, mapped, wanted = (
        SentenceTransformer(name, device="cpu").encode(texts) for name in (model, str(tmp_path / "space"), teacher)
    )
    cosine = float(paired_cosines(mapped, wanted).mean())
    assert summary["validation_teacher_cosine"] == pytest.approx(cosine, abs=1e-3)
    shares = shared_neighbors(own, wanted), shared_neighbors(mapped, wanted)
    # The teacher's vectors are kept in float16, which may change the order of equally near texts.
    assert summary["validation_teacher_neighbors"] == pytest.approx(shares[0], abs=0.03)
    assert summary["validation_teacher_space_neighbors"] == pytest.approx(shares[1], abs=0.03)
    assert (
        f"\nof the teacher's ten nearest held-out texts: {summary['validation_teacher_neighbors']:.0%} by the "
        f"embedding, {summary['validation_teacher_space_neighbors']:.0%} in the teacher's space, where the mean cosine "
        f"with the teacher's vectors is {summary['validation_teacher_cosine']:.3f}\n"
    ) in capsys.readouterr().out


def test_without_a_map_the_embedding_is_the_teachers(make_arguments, teacher):
    args = make_arguments(**{**STATIC, "latent_size": 32}, objective="none", teacher=teacher, teacher_head=False)
    summary = pretrain(args)
    assert summary["validation_teacher_neighbors"] == summary["validation_teacher_space_neighbors"]
    assert AutoModelForSeq2SeqLM.from_pretrained(Path(args.output_dir) / "model").teacher_head is None
    losses = curve(args, "loss")
    assert losses[-1] < losses[0]


def test_sizes_that_are_not_set_are_the_teachers(make_arguments, teacher):
    args = make_arguments(
        encoder_type="none", pooling="weighted_mean", objective="none", teacher=teacher, teacher_head=False,
        word_vectors="teacher", max_steps=1,
    )  # fmt: skip
    del args.model["embedding_size"]
    pretrain(args)
    config = AutoConfig.from_pretrained(Path(args.output_dir) / "model")
    assert (config.embedding_size, config.latent_size) == (32, 32)


def test_another_teacher_in_the_same_place_gives_other_words(make_arguments, tmp_path):
    where = tmp_path / "teacher"
    options = {**STATIC, "latent_size": 32, "objective": "none", "teacher": str(where), "word_vectors": "teacher"}
    tables = []
    for seed in (0, 1, 0):
        shutil.rmtree(where, ignore_errors=True)
        save_checkpoint(make_model(seed), make_tokenizer(), where)
        args = make_arguments(
            **options, freeze_word_embeddings=True, max_steps=1, overwrite=True, cache_dir=str(tmp_path / "cache")
        )
        del args.model["embedding_size"]
        pretrain(args)
        model = AutoModel.from_pretrained(Path(args.output_dir) / "model")
        tables.append(model.get_input_embeddings().weight.detach())
    assert not torch.equal(tables[0], tables[1])
    assert torch.equal(tables[0], tables[2])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "none"}, "neither a `teacher` nor `contrastive`"),
        ({"decoder_type": "none"}, "`decoder_type` 'none'.*Leave `decoder_type` out"),
        ({"contrastive": "views"}, "two views of a sentence are the same"),
        (
            {
                "encoder_type": "bigru",
                "pooling": "mean_max",
                "contrastive": "views",
                "objective": "none",
                "attention_dropout": 0.1,
            },
            "two views of a sentence are the same",
        ),
        (
            {
                **STATIC,
                "objective": "none",
                "contrastive": "views",
                "word_drop": 0.5,
                "position_embedding_type": "learned",
                "max_position_embeddings": 50,
            },
            "a mean of the words has no places",
        ),
        ({"contrastive": "views", "objective": "next_sentence"}, "which works with `objective`"),
        ({"similarity_weight": 1.0}, "`similarity_weight` is 1.0 without a `teacher`"),
        ({"teacher_prompt": "query: "}, "`teacher_prompt` is 'query: ' without a `teacher`"),
        ({"temperature": 0.0}, "`temperature` is 0.0"),
        ({"adam_epsilon": 0.0}, "`adam_epsilon` is 0.0; it must be a positive number"),
        ({"span_drop": 1.0}, "`span_drop` is 1.0"),
        ({"teacher_loss": "manhattan"}, "teacher_loss.*'manhattan'.*'cosine', 'squared', 'contrast'"),
        ({**STATIC, "objective": "none", "contrastive": "views", "embedding_dropout": 0.5}, "A static model has no"),
        ({**STATIC, "objective": "none", "contrastive": "views", "word_swap": 0.5}, "A static model has no"),
        ({"contrastive_row_weight": 1.0}, "`contrastive_row_weight` is 1.0, with `contrastive` 'none' and 2 row"),
        ({"contrastive": "neighbours", "contrastive_weight": 0.0}, "`contrastive_weight` 0. Use `--contrastive none`"),
        ({"contrastive_size": 4}, "nothing would train that map"),
        ({"teacher": "a/model", "teacher_weight": 0.0}, "nothing would be learnt from it"),
        ({"teacher": "a/model", "word_vectors": "teacher", "teacher_weight": 0.0, "objective": "none"}, "neither a"),
        ({"objective": "none", "contrastive": "neighbours", "freeze_encoder": True}, "nothing would be trained"),
        (
            {"objective": "translation", "target": ["a.txt"], "teacher": "a/model", "word_vectors": "teacher"},
            "is not for the objective 'translation'",
        ),
    ],
)
def test_settings_that_do_not_fit(make_arguments, changes, message):
    with pytest.raises(ValueError, match=message):
        make_arguments(**changes)


def test_hidden_dropout_makes_two_views(make_arguments):
    assert make_arguments(contrastive="views", hidden_dropout=0.1).has_views


@pytest.mark.parametrize("softmax", ["full", "sampled"])
@pytest.mark.parametrize("lazy", [False, True])
def test_without_a_decoder_no_word_is_sampled(make_arguments, teacher, softmax, lazy):
    """A recipe with a sampled softmax takes `--objective none`, and lazy Adam needs none."""
    pretrain(make_arguments(objective="none", teacher=teacher, softmax=softmax, lazy_adam=lazy))


def test_views_that_differ_by_dropout_alone_differ_in_evaluations(make_arguments):
    """Two equal views would have the loss of sentences that are found at once."""
    found = {}
    for rate in (0.0, 0.3):
        args = make_arguments(
            f"dropout-{rate}", objective="none", contrastive="views", embedding_dropout=rate or 1e-9, learning_rate=0.0,
            max_steps=2, eval_steps=1,
        )  # fmt: skip
        found[rate] = pretrain(args)["validation_loss"]
        # The numbers are drawn anew for each evaluation, and the same.
        assert curve(args, "validation_loss") == [found[rate]] * 2
    assert found[0.3] > found[0.0] + 0.01


def test_of_a_teacher_the_cosines_alone(make_arguments, teacher):
    args = make_arguments(
        **{**STATIC, "latent_size": 32}, objective="none", teacher=teacher, teacher_weight=0.0, similarity_weight=1.0
    )
    summary = pretrain(args)
    # It may be as wide as the teacher's, and is in another space.
    assert "validation_teacher_neighbors" in summary
    assert "validation_teacher_cosine" not in summary
    # Nothing would train the map.
    assert AutoModelForSeq2SeqLM.from_pretrained(Path(args.output_dir) / "model").teacher_head is None
    losses = curve(args, "loss")
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("changes", [{"teacher_head": False}, {"word_vectors": "WORDS"}])
def test_sizes_that_do_not_fit_show_before_the_teacher_reads_the_corpus(
    make_arguments, teacher, changes, monkeypatch, tmp_path
):
    words = tmp_path / "words.txt"
    words.write_text("the 1 2 3\ncat 4 5 6\n")
    changes = {name: str(words) if value == "WORDS" else value for name, value in changes.items()}
    monkeypatch.setattr("hf_meanmax.training.pretrain.teacher_vectors", lambda *args, **options: pytest.fail("reads"))
    with pytest.raises(ValueError, match=r"`--latent_size`|`embedding_size` is 8; leave it out"):
        pretrain(make_arguments(**STATIC, objective="none", teacher=teacher, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--contrastive=neighbours", "--corpus=CORPUS"], "has a neighbour"),
        (["--teacher=no/such/model"], "no/such/model"),
        (["--teacher_head=false"], "The embedding has 32 numbers and the teacher's vectors"),
        (["--tokenizer=wordpiece"], "Make a file with `hf-meanmax vectors --teacher MODEL --pieces`"),
    ],
)
def test_mistakes_are_one_line(settings, changes, message, teacher, tmp_path, capsys):
    options = {**settings, "output_dir": str(tmp_path / "run")}
    if changes[0].startswith("--teacher_head"):
        other = make_model(hidden_size=12)
        options["teacher"] = str(save_checkpoint(other, make_tokenizer(), tmp_path / "other"))
    apart = tmp_path / "apart.txt"
    apart.write_text("the cat saw a book in town\n\n" * 40)
    if "--corpus=CORPUS" in changes:
        options["corpus"], changes = str(apart), changes[:1]
    words = [f"--{key}={value[0] if isinstance(value, list) else value}" for key, value in options.items()]
    with pytest.raises(SystemExit, match=re.escape(message)):
        pretrain_command(words + changes)
    assert "Traceback" not in capsys.readouterr().err
