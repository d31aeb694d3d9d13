"""Runs that start from a checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig

from hf_meanmax import CompoundAttentionForTranslation, MeanMaxAAEForSequenceClassification
from hf_meanmax.checkpoint import location
from hf_meanmax.checkpoint.folder import check_checkpoint, load_checkpoint, save_checkpoint
from hf_meanmax.commands.pretrain import main
from hf_meanmax.inference.alignment import align
from hf_meanmax.inference.encoder import load_encoder
from hf_meanmax.tokenization.expansion import expand_vocabulary
from hf_meanmax.tokenization.word_vectors import WordVectors
from hf_meanmax.training.pretrain import pretrain
from hf_meanmax.training.recipes import parse_command_line
from tiny_model import WORDS, make_model, make_tokenizer
from training.conftest import sentences
from training.test_pretrain import OTHER_MODELS, same, weights

# Weights stay as they are.
STILL = {"max_steps": 1, "learning_rate": 0.0}


@pytest.fixture(scope="session")
def initial(tmp_path_factory) -> str:
    return str(save_checkpoint(make_model(), make_tokenizer(), tmp_path_factory.mktemp("initial") / "model"))


@pytest.mark.parametrize("parts", OTHER_MODELS.values(), ids=OTHER_MODELS)
def test_every_family_starts_from_its_weights(make_arguments, settings, parts):
    first = make_arguments("first", max_steps=2, **parts)
    pretrain(first)
    folder = Path(first.output_dir) / "model"
    second = make_arguments("second", initial_model=str(folder), **{**settings, "hidden_size": 4, **STILL})
    pretrain(second)
    assert same(weights(first.output_dir), weights(second.output_dir))
    configs = [(Path(args.output_dir) / "model/config.json").read_text() for args in (first, second)]
    assert configs[0] == configs[1]
    assert (Path(second.output_dir) / "model/tokenizer.json").read_text() == (folder / "tokenizer.json").read_text()


def test_it_goes_on_learning(make_arguments, initial):
    found = pretrain(make_arguments("more", initial_model=initial, max_steps=60))
    start = pretrain(make_arguments("start", initial_model=initial, **STILL))
    assert found["validation_loss"] < 0.7 * start["validation_loss"]


def test_dropout_is_the_runs(make_arguments, initial):
    args = make_arguments(initial_model=initial, embedding_dropout=0.3, hidden_size=4)
    config = args.build_config()
    assert (config.embedding_dropout, config.hidden_size) == (0.3, AutoConfig.from_pretrained(initial).hidden_size)


def test_heads_of_training_are_new_and_those_of_the_checkpoint_stay(make_arguments, initial):
    first = make_arguments("first", initial_model=initial, teacher=initial, **STILL)
    pretrain(first)
    second = make_arguments(
        "second", initial_model=f"{first.output_dir}/model", teacher=initial, **STILL, seed=3, contrastive="views",
        contrastive_size=4, word_drop=0.3,
    )  # fmt: skip
    pretrain(second)
    found = weights(second.output_dir)
    torch.testing.assert_close(found["teacher_head.weight"], weights(first.output_dir)["teacher_head.weight"])
    assert found["contrastive_head.weight"].shape[0] == 4
    other = make_arguments(
        "third", initial_model=f"{second.output_dir}/model", **STILL, contrastive="views", contrastive_size=6,
        word_drop=0.3,
    )  # fmt: skip
    pretrain(other)
    assert weights(other.output_dir)["contrastive_head.weight"].shape[0] == 6


def test_a_head_that_goes_and_an_output_that_is_frozen_are_said(make_arguments, initial, capsys):
    first = make_arguments("first", initial_model=initial, teacher=initial, **STILL)
    pretrain(first)
    capsys.readouterr()
    pretrain(make_arguments("second", initial_model=f"{first.output_dir}/model", freeze_encoder=True, **STILL))
    told = capsys.readouterr().out
    assert "has a teacher_head, which this run neither trains nor keeps" in told
    is_tied = load_checkpoint(initial)[0].config.tie_word_embeddings
    assert ("the output layer is the encoder's word table, which is frozen" in told) is is_tied


def test_an_aligned_decoder_goes_on_from_its_map(make_arguments, initial, tmp_path):
    model, tokenizer = load_checkpoint(initial)
    embedder = load_encoder(initial, device="cpu")
    aligned = align(embedder, "embedder", model, tokenizer, sentences(60, seed=5))
    folder = str(save_checkpoint(aligned.model, tokenizer, tmp_path / "aligned"))
    args = make_arguments(initial_model=folder, objective="embedding_inversion", embedder=initial, **STILL)
    pretrain(args)
    found = weights(args.output_dir)
    for name, weight in aligned.model.state_dict().items():
        if name in found:
            torch.testing.assert_close(found[name], weight)
    assert check_checkpoint(Path(args.output_dir) / "model").latent_names == aligned.model.config.latent_names


def test_a_decoder_of_another_embedder_is_said(make_arguments, initial, tmp_path, capsys):
    other = save_checkpoint(make_model(seed=1), make_tokenizer(), tmp_path / "other", normalize="embedding")
    decoding = {"objective": "embedding_inversion", "max_steps": 1}
    first = make_arguments("first", embedder=str(other), latent_length=2, **decoding)
    pretrain(first)
    assert "decodes the vectors of" not in capsys.readouterr().out
    folder = str(Path(first.output_dir) / "model")
    for embedder, is_another in ((str(other), False), (initial, True)):
        pretrain(make_arguments(f"second-{is_another}", embedder=embedder, initial_model=folder, **decoding))
        assert (f"{folder} decodes the vectors of 'other'" in capsys.readouterr().out) is is_another


def test_a_decoder_is_found_by_its_name(make_arguments, initial, monkeypatch):
    """As a repository on the Hub is."""
    decoding = {"objective": "embedding_inversion", "embedder": initial, "max_steps": 1}
    first = make_arguments("first", latent_length=2, **decoding)
    pretrain(first)
    folder = str(Path(first.output_dir) / "model")
    monkeypatch.setattr(location, "packaged_folder", lambda name: Path(folder) if name == "some/decoder" else None)
    pretrain(make_arguments("second", initial_model="some/decoder", **decoding))


def test_an_autoencoder_is_no_decoder_of_an_embedder(make_arguments, initial):
    with pytest.raises(
        ValueError, match=r"of the family 'mean_max_aae', and `objective` is 'embedding_inversion'.*align"
    ):
        make_arguments(initial_model=initial, objective="embedding_inversion", embedder=initial, **STILL)


def test_another_embedders_size_is_refused(make_arguments, initial, tmp_path, settings, monkeypatch):
    first = make_arguments("first", initial_model=initial, teacher=initial, **STILL)
    pretrain(first)
    narrow = save_checkpoint(make_model(hidden_size=8), make_tokenizer(), tmp_path / "narrow")
    # Before the hours that a teacher takes for a corpus.
    monkeypatch.setattr("hf_meanmax.training.pretrain.teacher_vectors", lambda *_, **__: pytest.fail("encoded"))
    with pytest.raises(ValueError, match=r"does not fit as `initial_model`: `teacher_head.weight` is to be \(16, 32\)"):
        pretrain(make_arguments("second", initial_model=f"{first.output_dir}/model", teacher=str(narrow), **STILL))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("hidden_size", 4),
        ("vocab_size", 99),
        ("tokenizer", "bpe"),
        ("word_vectors", "train"),
        ("family", "rnn_cnn"),
        ("lowercase", "false"),
    ],
)
def test_an_option_that_asks_for_another_model_is_refused(initial, option, value):
    with pytest.raises(ValueError, match=f"`{option}` is .*, which is for a new model; the run starts from"):
        parse_command_line(["--initial_model", initial, f"--{option}={value}"])


def test_an_option_that_asks_for_nothing_is_none(initial):
    words = ["--initial_model", initial, "--word_vectors=none", "--output_from_words=false"]
    assert parse_command_line(words).word_vectors == ""


def test_the_export_is_that_of_the_checkpoint(make_arguments, initial, tmp_path):
    """Its normalisation and prompts."""
    folder = save_checkpoint(*load_checkpoint(initial), tmp_path / "scaled", normalize="embedding")
    model = SentenceTransformer(str(folder), device="cpu")
    model.prompts, model.default_prompt_name = {"query": "the "}, "query"
    model.save_pretrained(str(tmp_path / "prompted"))
    shutil.copy(tmp_path / "prompted" / "config_sentence_transformers.json", folder)
    assert make_arguments(initial_model=str(folder), normalize="none").normalize == "none"
    args = make_arguments(initial_model=str(folder), **STILL)
    pretrain(args)
    found = SentenceTransformer(f"{args.output_dir}/model", device="cpu")
    assert found.default_prompt_name == "query"
    assert np.linalg.norm(found.encode("the cat")) == pytest.approx(1, abs=1e-5)


def test_a_recipe_gives_way_and_the_same_value_is_no_other_model(initial):
    size = AutoConfig.from_pretrained(initial).hidden_size
    words = ["mean-max-aae-small", "--corpus", "x", "--initial_model", initial, "--hidden_size", str(size)]
    args = parse_command_line(words)
    assert (args.model["hidden_size"], args.tokenizer, args.word_vectors) == (size, initial, "")


def test_what_a_checkpoint_is_not_for_is_said_of_the_checkpoint(make_arguments, initial, tmp_path):
    """Not of options that follow from it."""
    for given, message in (
        ({"initial_model": "static-en"}, "`initial_model` 'static-en' has no decoder: give `--objective none`"),
        (
            {"initial_model": initial, "objective": "none", "teacher": "x"},
            "has a decoder, and `objective` is 'none': give `--objective reconstruction`",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            make_arguments(**given)
    classifier = MeanMaxAAEForSequenceClassification(make_model().config)
    classifier = save_checkpoint(classifier, make_tokenizer(), tmp_path / "classifier")
    with pytest.raises(ValueError, match=r"`initial_model` is '.*classifier', a classifier, which has no decoder"):
        make_arguments(initial_model=str(classifier))
    words = len(make_tokenizer())
    translator = make_model(
        full_class=CompoundAttentionForTranslation, separate_vocabularies=True, input_vocab_size=words
    )
    folder = save_checkpoint(translator, make_tokenizer(), tmp_path / "translator", target_tokenizer=make_tokenizer())
    with pytest.raises(ValueError, match=r"translates between two vocabularies\. Use `--objective translation`"):
        make_arguments(initial_model=str(folder))
    vectors = WordVectors([*WORDS, "unheard"], np.random.default_rng(0).standard_normal((len(WORDS) + 1, 8)))
    model = make_model()
    expansion = expand_vocabulary(model, make_tokenizer(), vectors)
    expanded = save_checkpoint(model, expansion.tokenizer, tmp_path / "expanded")
    with pytest.raises(ValueError, match=r"was given words by `hf-meanmax expand`.*Start from the model"):
        make_arguments(initial_model=str(expanded))


def test_a_missing_checkpoint_is_an_error_of_one_line(tmp_path):
    with pytest.raises(SystemExit, match=r"^hf-meanmax pretrain: [^\n]*none[^\n]*$"):
        main(["--initial_model", str(tmp_path / "none"), "--corpus", "x.txt"])


def test_what_is_decoded_is_no_shorter_than_before(make_arguments, initial):
    longer = load_checkpoint(initial)
    longer[0].generation_config.max_new_tokens = 70
    folder = save_checkpoint(*longer, Path(initial).with_name("longer"))
    for name, bound in ((initial, 17), (str(folder), 70)):
        args = make_arguments(f"from_{bound}", initial_model=name, **STILL)
        pretrain(args)
        assert load_checkpoint(Path(args.output_dir) / "model")[0].generation_config.max_new_tokens == bound
