"""Model cards, and pushing to and loading from a Hub on the loopback interface."""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path
from unittest import mock

import huggingface_hub
import numpy as np
import pytest
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense

from checkpoint.loopback_hub import Repository, hub_and_token
from hf_meanmax import RNNCNNForContextPrediction
from hf_meanmax.checkpoint import card as card_module
from hf_meanmax.checkpoint.card import CardDescription, write_model_card
from hf_meanmax.checkpoint.folder import load_checkpoint, save_checkpoint
from hf_meanmax.checkpoint.hub import HubError, push
from hf_meanmax.commands.push import main
from tiny_model import TEXTS, make_model, make_tokenizer, run_python

ARGS = {"corpus": ["/some/where/corpus.txt"], "learning_rate": 0.0002, "output_dir": "/some/where", "seed": 7}


@pytest.fixture
def folder(tmp_path) -> Path:
    return save_checkpoint(make_model(), make_tokenizer(), tmp_path / "model", training_args=ARGS)


@pytest.fixture
def server(monkeypatch):
    with hub_and_token(monkeypatch) as running:
        yield running


def test_save_pretrained_uploads_the_sentence_transformer(monkeypatch, tmp_path):
    """transformers uploads before its end, from a folder of an earlier save as well."""
    uploads = []

    def upload(self, working_dir, repo_id, files_timestamps, **options):
        uploads.append(set(os.listdir(working_dir)) - set(files_timestamps))

    hub = mock.Mock()
    hub.create_repo.return_value.repo_id = "user/tiny"
    monkeypatch.setattr(transformers.modeling_utils, "hf_api", lambda: hub)
    monkeypatch.setattr(transformers.modeling_utils, "create_and_tag_model_card", mock.Mock())
    monkeypatch.setattr(transformers.PreTrainedModel, "_upload_modified_files", upload)
    for _ in range(2):
        make_model().save_pretrained(tmp_path, push_to_hub=True, repo_id="user/tiny")
    files = {"modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"}
    assert files | {"model.safetensors"} <= uploads[0]
    assert files <= uploads[1]


def test_pushed_checkpoint_loads_from_the_hub(server, folder, tmp_path):
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "state.json").write_text("{}")
    (folder / "log.txt").write_text("log")
    url = push(folder, "user/tiny", private=True)
    assert url.startswith(f"{server.endpoint}/user/tiny/commit/")
    repository = server.repositories["user/tiny"]
    assert repository.private
    pushed = repository.branches["main"]
    assert {"model.safetensors", "modules.json", "sentence_bert_config.json", "README.md", "base.py"} <= set(pushed)
    assert not {"checkpoints/state.json", "log.txt"} & set(pushed)
    assert pushed["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    blocks = re.findall(r"```python\n(.*?)```", pushed["README.md"].decode(), flags=re.DOTALL)
    assert len(blocks) == 2

    model, tokenizer = make_model(), make_tokenizer()
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    np.save(tmp_path / "tokens.npy", model.generate(**inputs, max_new_tokens=8).numpy())
    np.save(tmp_path / "vectors.npy", model.encoder(**inputs).pooler_output.detach().numpy())
    checks = f"""
import numpy as np, torch
tokens, wanted = np.load({str(tmp_path / "tokens.npy")!r}), np.load({str(tmp_path / "vectors.npy")!r})
vectors = model.encode({TEXTS!r})
assert np.allclose(vectors, wanted, atol=1e-6)
inputs = tokenizer({TEXTS!r}, padding=True, return_tensors="pt")
assert np.allclose(encoder(**inputs).pooler_output.detach().numpy(), wanted, atol=1e-6)
assert (autoencoder.generate(sentence_embedding=torch.from_numpy(vectors)).numpy() == tokens).all()
print("done")
"""
    code = "import sys; sys.modules['hf_meanmax'] = None\n" + "\n".join(blocks) + checks
    result = run_python(
        "-c",
        code,
        with_package=False,
        HF_ENDPOINT=server.endpoint,
        HF_TOKEN="hf_dummy",
        HF_HUB_DISABLE_XET="1",
        HF_HOME=str(tmp_path / "home"),
    )
    assert result.stdout.strip().endswith("done"), result.stderr[-3000:]


@pytest.mark.parametrize("call", ["create", "preupload", "lfs", "commit"])
def test_retry_after_an_error(server, folder, call):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    server.failures[call] = [400]
    with pytest.raises(HubError, match=r"user/tiny was not pushed: the Hub answered 400; try again"):
        push(folder, "user/tiny")
    assert {path: path.read_bytes() for path in before} == before
    assert "model.safetensors" not in server.repositories.get("user/tiny", Repository()).branches["main"]
    push(folder, "user/tiny")
    assert "model.safetensors" in server.repositories["user/tiny"].branches["main"]


def test_modules_after_the_encoder_are_pushed(server, folder, tmp_path):
    """And a folder whose SentenceTransformer part sentence-transformers wrote, without a limit, has a card."""
    model = SentenceTransformer(str(folder), device="cpu")
    model.append(Dense(model.get_embedding_dimension(), 4))
    whole = load_checkpoint(folder)[0]
    model.save_pretrained(str(tmp_path / "own"))
    whole.save_pretrained(tmp_path / "own")
    push(tmp_path / "own", "user/own")
    content = server.repositories["user/own"].branches["main"]
    assert {"1_Dense/config.json", "1_Dense/model.safetensors", "README.md"} <= set(content)
    settings = tmp_path / "own" / "sentence_bert_config.json"
    for missing in ("max_seq_length", "modality_config"):
        settings.write_text(json.dumps({**json.loads(settings.read_text()), missing: None}))
        assert "no limit" in write_model_card(tmp_path / "own", "user/own").read_text()


@pytest.mark.parametrize("args", [{"results": [1]}, {"corpus": 3}])
def test_no_card_is_written_of_damaged_training_args(folder, args):
    (folder / "training_args.json").write_text(json.dumps(args))
    with pytest.raises(ValueError, match=f"A file in {folder} is damaged"):
        write_model_card(folder, "user/tiny")
    assert not (folder / "README.md").exists()


def test_a_card_that_is_missing_leaves_no_copy(server, folder, tmp_path):
    (folder / "README.md").write_text("mine")
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match="missing"):
            push(folder, "user/tiny", card=tmp_path / "missing.md")
    assert [path.name for path in folder.glob("README*")] == ["README.md"]
    assert (folder / "README.md").read_text() == "mine"


def test_existing_repository(server, folder):
    push(folder, "user/tiny")
    save_checkpoint(make_model(seed=1), make_tokenizer(), folder, normalize="rows")
    with pytest.raises(HubError, match=r"exists and holds .* files; give exist_ok"):
        push(folder, "user/tiny")
    # What others keep there stays, code of theirs too.
    server.repositories["user/tiny"].branches["main"]["app/encoder.py"] = b"mine"
    server.repositories["user/tiny"].branches["main"]["demo.py"] = b"mine"
    push(folder, "user/tiny", exist_ok=True)
    assert {"app/encoder.py", "demo.py"} <= set(server.repositories["user/tiny"].branches["main"])
    content = server.repositories["user/tiny"].branches["main"]
    assert content["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    assert "training_args.json" not in content

    push(folder, "user/tiny", revision="other", exist_ok=True)
    assert set(server.repositories["user/tiny"].branches) == {"main", "other"}


def test_permissions(server, folder, monkeypatch):
    server.readers.add("hf_reader")
    with pytest.raises(HubError, match="may not write there"):
        push(folder, "user/tiny", token="hf_reader")
    with pytest.raises(HubError, match="does not accept the token"):
        push(folder, "user/tiny", token="hf_wrong")
    with pytest.raises(ValueError, match="is 'tiny'; give its owner too, USER/tiny"):
        push(folder, "tiny")
    with pytest.raises(ValueError, match="user/ti ny"):
        push(folder, "user/ti ny")
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(HubError, match="no token"):
        push(folder, "user/tiny")
    assert server.repositories == {}
    push(folder, "user/tiny", token="hf_dummy")


def test_unreachable_hub(folder, monkeypatch, capsys):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
    monkeypatch.setenv("HF_TOKEN", "hf_dummy")
    with pytest.raises(HubError, match=f"no connection to {endpoint}"):
        push(folder, "user/tiny")
    with pytest.raises(SystemExit) as ended:
        main([str(folder), "user/tiny"])
    assert str(ended.value).startswith("hf-meanmax push: user/tiny was not pushed")
    assert "\n" not in str(ended.value)
    assert not (folder / "README.md").is_file()


def test_what_is_to_be_private_goes_to_no_public_repository(server, folder):
    server.repositories["user/public"] = Repository()
    with pytest.raises(HubError, match="is public; make it private"):
        push(folder, "user/public", private=True)
    assert set(server.repositories["user/public"].branches.get("main", {})) <= {".gitattributes"}


def test_a_card_tells_no_path(tmp_path):
    told = {"train": "/some/where/train.tsv", "test": "/some/where/test.tsv", "checkpoint": "/some/where/model"}
    told |= {"teacher": "/some/where/teacher", "seed": 7}
    folder = save_checkpoint(make_model(), make_tokenizer(), tmp_path / "model", training_args=told)
    text = write_model_card(folder, "user/tiny").read_text()
    assert "Texts of `train.tsv`." in text
    assert "/some/where" not in text
    with pytest.raises(ValueError, match="expected a dict, got a list"):
        write_model_card(folder, "user/tiny", results=[1])
    scored = {"checkpoint": "/some/where/model", "source": ["/some/where/c.txt"], "batch_size": 64}
    scored["scores"] = {"bleu": 43.21, "by_length": [{"length": "1-5", "bleu": 50.0}]}
    text = write_model_card(folder, "user/tiny", results=scored).read_text()
    assert "| bleu | 43.21 |" in text
    assert "/some/where" not in text
    assert "batch_size" not in text
    assert "by_length" not in text


def test_broken_checkpoint_is_not_pushed(server, folder):
    (folder / "modules.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"modules\.json is missing"):
        push(folder, "user/tiny")
    assert server.calls == []


def test_command_line(server, folder, tmp_path, capsys):
    card = tmp_path / "cards" / "tiny.md"
    (tmp_path / "results.json").write_text('{"reconstruction": {"bleu": 43.21}}')
    main([str(folder), "user/tiny", "--card-only", str(card), "--results", str(tmp_path / "results.json")])
    output = capsys.readouterr()
    assert output.out.strip() == str(card)
    assert "says language en and licence apache-2.0; --language and --license would change that" in output.err
    assert "| reconstruction.bleu | 43.21 |" in card.read_text()
    assert server.repositories == {}

    with pytest.raises(SystemExit, match="--data: for a generated card, not for --card"):
        main([str(folder), "user/tiny", "--card", str(card), "--data", "Letters."])
    (folder / "README.md").write_text("written by hand")
    with mock.patch.object(huggingface_hub.HfApi, "whoami") as asked:
        main([str(folder), "user/tiny", "--card", str(card)])
    asked.assert_called_once()
    assert (folder / "README.md.1").read_text() == "written by hand"
    (folder / "README.md.1").unlink()
    assert server.repositories["user/tiny"].branches["main"]["README.md"] == card.read_bytes()
    # The folder's own card does as well.
    main([str(folder), "user/same", "--card", str(folder / "README.md")])
    assert server.repositories["user/same"].branches["main"]["README.md"] == card.read_bytes()
    capsys.readouterr()
    main([str(folder), "user/other"])
    assert "is pushed as it is, though it does not name user/other" in capsys.readouterr().err
    main([str(folder), "user/third", "--data", "Letters."])
    main([str(folder), "user/third", "--data", "Figures.", "--exist-ok"])
    assert "README.md.2" in capsys.readouterr().err
    assert (folder / "README.md.1").read_bytes() == card.read_bytes()
    assert "Letters." in (folder / "README.md.2").read_text()
    sent = server.repositories["user/third"].branches["main"]
    assert {name for name in sent if name.startswith("README")} == {"README.md"}
    assert b"Figures." in sent["README.md"]
    with pytest.raises(SystemExit) as ended:
        main([str(folder), "user/other"])
    assert "--exist_ok" in str(ended.value)
    with pytest.raises(SystemExit):
        main([str(folder), "user/other", "--privat"])
    assert "Did you mean --private?" in capsys.readouterr().err


@pytest.mark.parametrize("decoder", ["words_cnn", "gru"])
def test_card_of_a_context_model_promises_no_text(tmp_path, decoder):
    """Its code runs, and nothing says that the text comes back."""
    model = make_model(
        full_class=RNNCNNForContextPrediction, decoder_type=decoder, decoder_channels=[12, 8], num_context_words=5
    )
    objective = "next_words" if decoder == "words_cnn" else "next_sentence"
    folder = save_checkpoint(
        model, make_tokenizer(), tmp_path / "m", remote_code=False, training_args={**ARGS, "objective": objective}
    )
    text = write_model_card(folder, str(folder)).read_text(encoding="utf-8")
    assert "autoencoder" not in text
    assert "reconstruct" not in text
    assert "back to the text" not in text
    assert "comes back" not in text
    assert "does not give the text back" in text
    assert "AutoModelForSeq2SeqLM" not in text
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 2
    found = {}
    exec(blocks[1], found)
    assert type(found["predictor"]) is RNNCNNForContextPrediction
    tokens = found["tokens"]
    assert tokens.shape == (2, 5) if decoder == "words_cnn" else len(tokens) == 2


def test_card_of_a_model_without_a_decoder(tmp_path):
    """Its code runs, and nothing speaks of decoding."""
    model = make_model(
        encoder_type="none", pooling="weighted_mean", decoder_type="none", weighted_mean_hidden_size=1024
    )
    args = {**ARGS, "objective": "none", "teacher": "somebody/model", "contrastive": "neighbours"}
    folder = save_checkpoint(model, make_tokenizer(), tmp_path / "m", remote_code=False, training_args=args)
    text = write_model_card(folder, str(folder)).read_text(encoding="utf-8")
    row = "a weighted mean of the word vectors with a feed-forward layer of 1,024 units over it"
    assert f"1 latent vector of\n16 numbers ({row}; 16 in all)" in text
    learnt = "by predicting the vectors of a teacher and picking the next sentence out of others"
    assert f"{learnt}; it has no\ndecoder." in text
    for word in ("autoencoder", "by reconstruction", "AutoModelForSeq2SeqLM", "decoded", "said | 14"):
        assert word not in text.partition("## Figures")[0]
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 2
    found = {}
    exec(blocks[1], found)
    assert found["embedding"].shape == (2, 16)


@pytest.mark.parametrize("normalize", [None, "embedding"])
def test_card_of_rows_of_unit_length_tells_that_a_scaled_vector_decodes(tmp_path, normalize):
    model = make_model(weighted_mean_row=True, latent_normalization="rows")
    folder = save_checkpoint(model, make_tokenizer(), tmp_path / "m", normalize=normalize)
    text = write_model_card(folder, "user/tiny").read_text(encoding="utf-8")
    assert f"| parameters | {sum(p.numel() for p in model.parameters()):,} |" in text
    assert "the maximum over the tokens, the mean over the tokens, a weighted mean of the word vectors" in text
    assert "can be rescaled, for example to unit length" in text
    assert "normalised" not in text


def test_card_tells_of_what_is_learnt_besides(tmp_path):
    told = {}
    for name, more in (("alone", {}), ("both", {"context_weight": 0.1, "teacher": "somebody/model"})):
        folder = save_checkpoint(make_model(), make_tokenizer(), tmp_path / name, training_args={**ARGS, **more})
        told[name] = write_model_card(
            folder, "user/tiny", CardDescription(command="python train.py", limits="Old words.")
        ).read_text()
    assert "by reconstruction alone." in told["alone"]
    others = "predicting the words that follow and predicting the vectors of a teacher"
    assert f"by reconstruction and by {others}." in told["both"]
    assert "Trained with\n\n```bash\npython train.py\n```\n\n## Model" in told["alone"]
    assert told["alone"].rstrip().endswith("the biases of its training data.\n- Old words.")


@pytest.mark.parametrize("normalize", [None, "rows", "embedding"])
def test_card_tells_what_one_needs(tmp_path, normalize):
    model = make_model(seed=1)
    folder = save_checkpoint(
        model, make_tokenizer(), tmp_path / "m", normalize=normalize, remote_code=False, training_args=ARGS
    )
    text = write_model_card(folder, "user/tiny").read_text(encoding="utf-8")
    card = huggingface_hub.ModelCard(text)
    assert card.data.library_name == "sentence-transformers"
    assert card.data.pipeline_tag == "sentence-similarity"
    assert card.data.license == "apache-2.0"
    assert "mean_max_aae" in card.data.tags
    assert "`corpus.txt`" in text
    assert "/some/where" not in text
    assert "| `seed` | 7 |" in text
    assert f"| parameters | {sum(p.numel() for p in model.parameters()):,} |" in text
    assert "not anonymous" in text
    assert text.count("import hf_meanmax\n") == 2
    assert "trust_remote_code" not in text
    assert {"autoencoder"} <= set(card.data.tags)
    assert "its decoder turns them back to the text" in text
    assert "AutoModelForSeq2SeqLM" in text
    assert "predict" not in text
    unit = {None: "gives the raw vector", "rows": "latent rows have unit length", "embedding": "of unit length"}
    assert unit[normalize] in text
    assert "{{" not in text
    assert "{%" not in text
    assert text.isascii()


def evaluation(**scores: dict[str, float]) -> dict:
    """The content of a results.json, as far as a card reads it."""
    return {
        "format_version": 1,
        "model": {"name": "tiny"},
        "tasks": {task: {"main": next(iter(metrics))} for task, metrics in scores.items()},
        "scores": {task: {"metrics": metrics} for task, metrics in scores.items()},
        "gains": {"MR": {"control": "echo_state_network", "difference": 1.25, "low": 0.5, "high": 2.0}},
        "averages": {"macro_8": 80.5},
        "average_gains": {"macro_8": {"control": "bag", "difference": -0.3, "low": -0.6, "high": 0.1}},
    }


SCORES = evaluation(
    MR={"accuracy": 78.66, "dev_accuracy": 79.0},
    MRPC={"accuracy": 75.5, "f1": 82.6},
    STSB={"pearson": 0.7, "spearman": 0.69},
)


def test_model_index_is_read_back_by_huggingface_hub(server, folder):
    write_model_card(folder, "user/tiny", results=SCORES)
    card = huggingface_hub.ModelCard.load(folder / "README.md")
    found = {(entry.dataset_name, entry.metric_type): entry for entry in card.data.eval_results}
    assert {key: entry.metric_value for key, entry in found.items()} == {
        ("SentEval MR", "accuracy"): 78.66,
        ("SentEval MRPC", "accuracy"): 75.5,
        ("SentEval MRPC", "f1"): 82.6,
        ("SentEval STSB", "pearsonr"): 0.7,
        ("SentEval STSB", "spearmanr"): 0.69,
    }
    assert found["SentEval MR", "accuracy"].task_type == "text-classification"
    assert found["SentEval STSB", "pearsonr"].task_type == "sentence-similarity"
    assert card.data.model_name == "tiny"
    index = card.data.to_dict()["model-index"]
    assert [entry["dataset"]["config"] for entry in index[0]["results"]] == ["MR", "MRPC", "STSB"]
    assert "| MR.accuracy | 78.7 |" in card.text
    assert "| MR.gain over the control echo state network | +1.2 [+0.5, +2.0] |" in card.text
    assert "| STSB.pearson | 0.700 |" in card.text
    assert "| macro_8 | 80.5 |" in card.text
    assert "| macro_8, gain over the control bag | -0.3 [-0.6, +0.1] |" in card.text


def test_scores_that_are_no_number_are_left_out_of_the_card(folder):
    results = evaluation(MR={"accuracy": 78.66}, STSB={"pearson": None})
    results["averages"]["macro_8"] = results["gains"]["MR"]["difference"] = None
    write_model_card(folder, "user/tiny", results=results)
    text = (folder / "README.md").read_text()
    assert "| MR.accuracy | 78.7 |" in text
    assert not any(word in text for word in ("STSB", "macro_8", "gain over"))


def test_a_card_is_kept_only_where_another_takes_its_place(server, folder, tmp_path, capsys):
    write_model_card(folder, "user/tiny")
    (tmp_path / "bad.json").write_text("[1]")
    with pytest.raises(SystemExit, match="expected an object, found a list"):
        main([str(folder), "user/tiny", "--results", str(tmp_path / "bad.json")])
    for _ in range(2):
        main([str(folder), "user/tiny", "--data", "Sentences.", "--exist_ok"])
    assert sorted(path.name for path in folder.glob("README.md*")) == ["README.md", "README.md.1"]
    assert capsys.readouterr().err.count("is kept as") == 1


def test_model_index_changes_no_text_and_no_entry_of_others(folder):
    card = folder / "README.md"
    text = "\n# Mine\r\n\nWritten by hand, ünïcode. \n---\nno metadata: {{ x }}\n"
    other = """model-index:
- name: given
  results:
  - task: {type: reconstruction}
    dataset: {type: books, name: Books}
    metrics: [{type: bleu, value: 43.2}]
  - task: {type: text-classification}
    dataset: {type: senteval, name: SentEval CR, config: CR, split: test}
    metrics: [{type: accuracy, value: 1.0}]
"""
    card.write_bytes(f"---\nlicense: mit\nmine: [1, 2]\n{other}language: en\n---\n{text}".encode())
    assert card_module.write_model_index(folder, SCORES) == card
    assert card.read_bytes().decode().endswith(text)
    data = huggingface_hub.ModelCard.load(card).data
    assert (data.license, data.language, data["mine"], data.model_name) == ("mit", "en", [1, 2], "given")
    assert [entry.dataset_name for entry in data.eval_results] == [
        "Books", "SentEval MR", "SentEval MRPC", "SentEval MRPC", "SentEval STSB", "SentEval STSB"
    ]  # fmt: skip
    before = card.read_bytes()
    card_module.write_model_index(folder, SCORES)
    assert card.read_bytes() == before


def test_model_index_survives_a_push_and_a_new_card(server, folder):
    card_module.write_model_index(folder, SCORES)
    text = (folder / "README.md").read_text()
    # What the evaluation calls the model, and usage that runs before it is pushed.
    assert f"# {SCORES['model']['name']}\n" in text
    assert f'("{folder}"' in text
    push(folder, "user/tiny")
    pushed = server.repositories["user/tiny"].branches["main"]["README.md"].decode()
    assert pushed == text
    write_model_card(folder, "user/other", CardDescription(data="Sentences.", language="zh, en"))
    data = huggingface_hub.ModelCard.load(folder / "README.md").data
    assert len(data.eval_results) == 5
    assert data.language == ["zh", "en"]
    main([str(folder), "user/tiny", "--data", "Other sentences.", "--exist-ok"])
    pushed = server.repositories["user/tiny"].branches["main"]["README.md"].decode()
    assert "Other sentences." in pushed
    assert len(huggingface_hub.ModelCard(pushed).data.eval_results) == 5


def test_model_index_of_what_is_no_evaluation(folder, tmp_path):
    with pytest.raises(ValueError, match=r"results\.json of `evaluate`"):
        card_module.write_model_index(folder, {"bleu": 3})
    with pytest.raises(FileNotFoundError, match=r"has no README.md"):
        card_module.write_model_index(tmp_path, SCORES)
    (folder / "README.md").write_text("---\na: [1\n---\ntext")
    with pytest.raises(ValueError, match=r"README.md: the metadata at its start cannot be read"):
        card_module.write_model_index(folder, SCORES)
    assert (folder / "README.md").read_text() == "---\na: [1\n---\ntext"
