"""Model cards, and pushing to and loading from a Hub on the loopback interface."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest

from hf_meanmax import hub
from hf_meanmax.export import save_checkpoint
from hf_meanmax.hub import HubError, push, write_model_card
from hub.loopback_hub import LoopbackHub, Repository
from tiny_model import TEXTS, make_model, make_tokenizer, run_python

ARGS = {"corpus": ["/some/where/corpus.txt"], "learning_rate": 0.0002, "output_dir": "/some/where", "seed": 7}


@pytest.fixture
def folder(tmp_path) -> Path:
    return save_checkpoint(make_model(), make_tokenizer(), tmp_path / "model", training_args=ARGS)


@pytest.fixture
def server(monkeypatch):
    with LoopbackHub() as running:
        # The environment is read at import, long before this port was known.
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", running.endpoint)
        monkeypatch.setenv("HF_TOKEN", "hf_dummy")
        yield running


def test_pushed_checkpoint_loads_from_the_hub(server, folder, tmp_path):
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "state.json").write_text("{}")
    (folder / "log.txt").write_text("log")
    url = push(folder, "user/tiny", private=True)
    assert url.startswith(f"{server.endpoint}/user/tiny/commit/")
    repository = server.repositories["user/tiny"]
    assert repository.private
    pushed = repository.branches["main"]
    assert {"model.safetensors", "modules.json", "1_Pooling/config.json", "README.md", "base.py"} <= set(pushed)
    assert not {"checkpoints/state.json", "log.txt"} & set(pushed)
    assert pushed["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    blocks = re.findall(r"```python\n(.*?)```", pushed["README.md"].decode(), flags=re.DOTALL)
    assert len(blocks) == 2

    model, tokenizer = make_model(), make_tokenizer()
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    np.save(tmp_path / "tokens.npy", model.generate(**inputs).numpy())
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


def test_existing_repository(server, folder):
    push(folder, "user/tiny")
    save_checkpoint(make_model(seed=1), make_tokenizer(), folder, normalize="rows")
    with pytest.raises(HubError, match=r"exists and holds .* files; give exist_ok"):
        push(folder, "user/tiny")
    push(folder, "user/tiny", exist_ok=True)
    content = server.repositories["user/tiny"].branches["main"]
    assert content["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    assert "1_Pooling/config.json" not in content
    assert "training_args.json" not in content

    push(folder, "user/tiny", revision="other", exist_ok=True)
    assert set(server.repositories["user/tiny"].branches) == {"main", "other"}


def test_permissions(server, folder, monkeypatch):
    server.readers.add("hf_reader")
    with pytest.raises(HubError, match="may not write there"):
        push(folder, "user/tiny", token="hf_reader")
    with pytest.raises(HubError, match="does not accept the token"):
        push(folder, "user/tiny", token="hf_wrong")
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
        hub.main([str(folder), "user/tiny"])
    assert str(ended.value).startswith("push_to_hub: user/tiny was not pushed")
    assert "\n" not in str(ended.value)
    assert (folder / "README.md").is_file()


def test_broken_checkpoint_is_not_pushed(server, folder):
    (folder / "modules.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"modules\.json is missing"):
        push(folder, "user/tiny")
    assert server.calls == []


def test_command_line(server, folder, tmp_path, capsys):
    card = tmp_path / "cards" / "tiny.md"
    (tmp_path / "results.json").write_text('{"reconstruction": {"bleu": 43.21}}')
    hub.main([str(folder), "user/tiny", "--card-only", str(card), "--results", str(tmp_path / "results.json")])
    assert capsys.readouterr().out.strip() == str(card)
    assert "| reconstruction.bleu | 43.21 |" in card.read_text()
    assert server.repositories == {}

    hub.main([str(folder), "user/tiny", "--card", str(card)])
    assert server.repositories["user/tiny"].branches["main"]["README.md"] == card.read_bytes()
    hub.main([str(folder), "user/other"])
    assert "is pushed as it is" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        hub.main([str(folder), "user/other"])
    assert "--exist-ok" in str(ended.value)
    with pytest.raises(SystemExit):
        hub.main([str(folder), "user/other", "--privat"])
    assert "did you mean --private?" in capsys.readouterr().err


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
    unit = {None: "gives the raw vector", "rows": "latent rows have unit length", "embedding": "of unit length"}
    assert unit[normalize] in text
    assert "{{" not in text
    assert "{%" not in text
    assert text.isascii()
