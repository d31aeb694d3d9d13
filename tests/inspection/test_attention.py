"""The command that shows which words inner attention reads."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from hf_meanmax import StructuredSelfAttentionForReconstruction, StructuredSelfAttentionForSequenceClassification
from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.commands.inspect import inspect_pooling as main
from hf_meanmax.inspection.attention import read_texts, write_attention
from tiny_model import make_model, make_tokenizer

TEXTS = ["the cat sat", "a dog ran on the mat"]
HEADS = {"latent_heads": 3, "pooling_hidden_size": 6}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """A classifier and an autoencoder, both of three heads."""
    folder = tmp_path_factory.mktemp("attention")
    whole = make_model(full_class=StructuredSelfAttentionForReconstruction, initializer_range=2.0, **HEADS)
    torch.manual_seed(1)
    config = whole.config_class(**{**whole.config.to_diff_dict(), "id2label": {0: "bad", 1: "good"}})
    classifier = StructuredSelfAttentionForSequenceClassification(config)
    for name, model in (("classifier", classifier), ("autoencoder", whole)):
        save_checkpoint(model, make_tokenizer(), folder / name / "model")
    return [str(folder / name / "model") for name in ("classifier", "autoencoder")]


def test_weights_are_the_models_own(checkpoints):
    read = read_texts(checkpoints, TEXTS)
    names = ["classifier/model", "autoencoder/model"]
    for text, entry in zip(TEXTS, read, strict=True):
        assert list(entry.weights) == names
        assert list(entry.predictions) == names[:1]
        assert entry.predictions[names[0]].split(" (")[0] in ("bad", "good")
        assert entry.tokens == [*text.split(), "</s>"]
        for path, name in zip(checkpoints, names, strict=True):
            batch = AutoTokenizer.from_pretrained(path)([text], return_tensors="pt")
            wanted = AutoModel.from_pretrained(path)(**batch).pooling_attentions[0].detach()
            torch.testing.assert_close(torch.from_numpy(entry.weights[name]), wanted)


@pytest.mark.parametrize(
    ("labels", "problem", "said"),
    [
        ({0: "a", 1: "b", 2: "c"}, "multi_label_classification", "b (0.88), c (0.73)"),
        ({0: "a", 1: "b", 2: "c"}, "single_label_classification", "b (0.71)"),
        ({0: "a"}, None, "-1.00"),
        ({0: "a", 1: "b"}, "regression", "-1.00, 2.00"),
    ],
)
def test_what_a_classifier_predicts(labels, problem, said, tmp_path):
    config = make_model(full_class=StructuredSelfAttentionForReconstruction, **HEADS).config
    settings = {**config.to_diff_dict(), "id2label": labels, "problem_type": problem}
    classifier = StructuredSelfAttentionForSequenceClassification(type(config)(**settings))
    with torch.no_grad():
        output = [module for module in classifier.modules() if isinstance(module, torch.nn.Linear)][-1]
        output.weight.zero_()
        output.bias.copy_(torch.tensor([-1.0, 2.0, 1.0])[: len(labels)])
    save_checkpoint(classifier, make_tokenizer(), tmp_path / "classifier")
    (read,) = read_texts([str(tmp_path / "classifier")], TEXTS[:1])
    assert read.predictions == {"classifier": said}


def test_files(checkpoints, tmp_path):
    folder = tmp_path / "out"
    write_attention(read_texts(checkpoints, TEXTS), folder, most_figures=1)
    assert {path.name for path in folder.iterdir()} >= {"attention.json", "attention.html"}
    assert not (folder / "text-2.png").exists()
    content = json.loads((folder / "attention.json").read_text())
    assert [entry["tokens"][0] for entry in content] == ["the", "a"]
    (folder / "notes.txt").write_text("mine")
    write_attention(read_texts(checkpoints[:1], TEXTS[:1]), folder)
    assert (folder / "notes.txt").read_text() == "mine"


def test_command_line(checkpoints, tmp_path, capsys):
    (tmp_path / "more.txt").write_text("the old mat\n\nthe red cat\n")
    # A text may be longer than a file's name.
    long = " ".join([TEXTS[0]] * 40)
    main([checkpoints[0], long, "--color", "never"])
    assert capsys.readouterr().out.count(TEXTS[0].split()[0]) >= 40
    main([checkpoints[0], TEXTS[0], "--input", str(tmp_path / "more.txt"), "--limit", "1", "--color", "never"])
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2 * 5
    (tmp_path / "more.csv").write_text("said\nthe old mat\n")
    main([checkpoints[0], TEXTS[0], "--input", str(tmp_path / "more.csv"), "--text_column", "said", "--color", "never"])
    assert capsys.readouterr().out.splitlines() == said
    assert said[0].startswith(("classifier/model bad (", "classifier/model good ("))
    assert "head 1" in said[2]
    main([*checkpoints, TEXTS[0], "--output", str(tmp_path / "out"), "--color", "always"])
    assert "\x1b[" in capsys.readouterr().out
    assert (tmp_path / "out" / "attention.html").exists()


def test_refusals(checkpoints, tmp_path, capsys):
    mean_max = save_checkpoint(make_model(), make_tokenizer(), tmp_path / "mean-max")
    for arguments, reason in (
        ([checkpoints[0]], "no text to show"),
        ([str(mean_max), "the cat"], "`pooling` is 'mean_max'; only 'inner_attention'"),
        ([checkpoints[0], "static-en", "the cat"], "`pooling` is 'weighted_mean'; only"),
        ([str(tmp_path / "missing"), "the cat"], "No checkpoint folder"),
        ([checkpoints[0], str(tmp_path / "missing"), "the cat"], "There is no checkpoint '"),
    ):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert reason in str(caught.value), arguments
    other = make_tokenizer()
    other.add_tokens(["cat sat"])
    torch.manual_seed(0)
    model = make_model(full_class=StructuredSelfAttentionForReconstruction, vocab_size=20, **HEADS)
    path = save_checkpoint(model, other, tmp_path / "other")
    with pytest.raises(ValueError, match="other tokens than"):
        read_texts([checkpoints[0], path], TEXTS)
