"""The command of the demo, and the page as a folder for a Space."""

from __future__ import annotations

import ast
import socket
from pathlib import Path

import pytest
import yaml
from transformers import AutoModelForSeq2SeqLM

import hf_meanmax
from checkpoint.loopback_hub import hub_and_token
from hf_meanmax import CompoundAttentionForTranslation, EmbeddingDecoderForGeneration
from hf_meanmax.checkpoint.card import CardDescription, write_model_card
from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.checkpoint.hub import HubError
from hf_meanmax.commands import demo as command
from hf_meanmax.commands.push import main as push_main
from hf_meanmax.demo import page
from hf_meanmax.demo import space as space_module
from hf_meanmax.demo.space import push_space, write_space
from tiny_model import make_model, make_tokenizer, run_python


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_checkpoint(make_model(), make_tokenizer(), tmp_path_factory.mktemp("demo") / "model"))


@pytest.fixture
def server(monkeypatch):
    with hub_and_token(monkeypatch) as running:
        yield running


def front_matter(folder: Path) -> dict[str, object]:
    return yaml.safe_load((folder / "README.md").read_text(encoding="utf-8").split("---\n")[1])


def test_a_space_has_the_page_and_the_model(model, tmp_path, capsys):
    folder = tmp_path / "space"
    command.main([model, "--space", str(folder)])
    assert f"hf-meanmax push {folder} USER/NAME --space" in capsys.readouterr().out
    assert {path.name for path in folder.iterdir()} == {"app.py", "requirements.txt", "README.md", "model"}
    front = front_matter(folder)
    assert (front["sdk"], front["app_file"]) == ("gradio", "app.py")
    assert "license" not in front, "the model has no card"
    assert (folder / "requirements.txt").read_text() == f"hf_meanmax[demo]=={hf_meanmax.__version__}\n"
    ast.parse((folder / "app.py").read_text())
    assert "launch('model'" in (folder / "app.py").read_text().replace('"', "'")
    AutoModelForSeq2SeqLM.from_pretrained(folder / "model")
    assert list((folder / "model").glob("*.py")) == []


def test_a_model_on_the_hub_is_named(tmp_path):
    folder = write_space("someone/some-model", tmp_path / "space")
    assert front_matter(folder)["models"] == ["someone/some-model"]
    assert 'launch("someone/some-model"' in (folder / "app.py").read_text()
    assert not (folder / "model").exists()


def test_a_mistyped_name_is_no_model_on_the_hub(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No model 'minien'.*Did you mean 'mini-en'"):
        write_space("minien", tmp_path / "space")


def test_a_packaged_model_goes_along(tmp_path):
    folder = write_space("mini-en", tmp_path / "space")
    front = front_matter(folder)
    assert "models" not in front
    assert front["license"] == "apache-2.0"
    assert (folder / "model" / "config.json").is_file()


def test_the_licence_is_that_of_the_models_card(tmp_path):
    source = save_checkpoint(make_model(), make_tokenizer(), tmp_path / "model")
    write_model_card(source, "user/model", CardDescription(license="mit"))
    assert front_matter(write_space(str(source), tmp_path / "space"))["license"] == "mit"


def test_a_decoder_alone_has_no_space(tmp_path):
    model = make_model(full_class=EmbeddingDecoderForGeneration, embedding_dim=6)
    folder = save_checkpoint(model, make_tokenizer(), tmp_path / "decoder")
    with pytest.raises(ValueError, match="decoder"):
        write_space(str(folder), tmp_path / "space")
    assert not (tmp_path / "space").exists()


def test_a_model_without_vectors_of_texts_has_no_space(tmp_path):
    model = make_model(full_class=CompoundAttentionForTranslation, architecture="attn")
    folder = save_checkpoint(model, make_tokenizer(), tmp_path / "translator")
    with pytest.raises(ValueError, match="no fixed representation"):
        push_space(str(folder), "user/page")


def test_what_was_changed_by_hand_is_kept(model, tmp_path, capsys):
    folder = write_space(model, tmp_path / "space")
    (folder / "requirements.txt").write_text("hf_meanmax[demo] @ git+https://example.org/mine\n")
    write_space(model, folder)
    assert (folder / "requirements.txt.1").read_text() == "hf_meanmax[demo] @ git+https://example.org/mine\n"
    assert (folder / "requirements.txt").read_text() == f"hf_meanmax[demo]=={hf_meanmax.__version__}\n"
    assert "the former requirements.txt is kept as" in capsys.readouterr().err
    assert not (folder / "app.py.1").exists()


def test_an_older_space_is_replaced_and_nothing_else(model, tmp_path):
    folder = write_space("someone/some-model", tmp_path / "space")
    (folder / ".git").mkdir()
    write_space(model, folder)
    assert (folder / "model").is_dir()
    assert (folder / ".git").is_dir()
    other = tmp_path / "other"
    other.mkdir()
    (other / "app.py").write_text("mine")
    with pytest.raises(FileExistsError, match="name a new folder"):
        write_space(model, other)
    with pytest.raises(FileNotFoundError, match="No checkpoint folder"):
        write_space(str(tmp_path / "none"), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_space_is_pushed(server, model, tmp_path, capsys):
    push_main([model, "user/page", "--space", "--private"])
    url = capsys.readouterr().err.split()[-1]
    assert url.startswith(f"{server.endpoint}/spaces/user/page/commit/")
    assert set(server.repositories) == {"spaces/user/page"}
    repository = server.repositories["spaces/user/page"]
    assert (repository.private, repository.sdk) == (True, "gradio")
    pushed = repository.branches["main"]
    written = write_space(model, tmp_path / "space", "page")
    files = {path.relative_to(written).as_posix(): path.read_bytes() for path in written.rglob("*") if path.is_file()}
    assert {name: pushed[name] for name in pushed if name != ".gitattributes"} == files

    with pytest.raises(SystemExit, match=r"exists and holds .* \(--exist_ok\)"):
        push_main([model, "user/page", "--space"])
    # A model that the Hub has takes the place of the copy; what others keep there stays.
    pushed["notes.md"] = b"mine"
    push_main(["someone/some-model", "user/page", "--space", "--exist-ok"])
    pushed = repository.branches["main"]
    assert set(pushed) == {".gitattributes", "README.md", "app.py", "requirements.txt", "notes.md"}


def test_a_written_space_is_pushed_as_it_is(server, tmp_path):
    folder = write_space("someone/some-model", tmp_path / "space")
    (folder / "README.md").write_text("---\nsdk: gradio\n---\nby hand")
    (folder / "notes.txt").write_text("mine")
    push_space(str(folder), "user/page")
    pushed = server.repositories["spaces/user/page"].branches["main"]
    assert pushed["README.md"].endswith(b"by hand")
    assert "notes.txt" not in pushed


def test_a_space_that_cannot_be_pushed_is_not_written(server, model, tmp_path, monkeypatch):
    monkeypatch.setattr(space_module, "write_space", lambda *_: pytest.fail("written before the token was looked at"))
    with pytest.raises(HubError, match="does not accept the token"):
        push_space(model, "user/page", token="hf_wrong")
    with pytest.raises(ValueError, match="give its owner too"):
        push_space(model, "page")
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(HubError, match="no token"):
        push_space(model, "user/page")
    with pytest.raises(FileNotFoundError, match="No checkpoint folder"):
        push_space(str(tmp_path / "none"), "user/page")
    assert server.repositories == {}


def test_a_space_can_be_pushed_again_after_an_error(server, model):
    server.failures["commit"] = [400]
    with pytest.raises(HubError, match="the Hub answered 400; try again"):
        push_space(model, "user/page")
    push_space(model, "user/page")
    assert "app.py" in server.repositories["spaces/user/page"].branches["main"]


def test_a_space_takes_no_card_of_a_model(model):
    with pytest.raises(SystemExit, match="--data: for the card of a model, not for --space"):
        push_main([model, "user/page", "--space", "--data", "Letters."])


def test_what_is_of_a_served_page_alone_is_refused(model, tmp_path):
    for words in (["--host", "0.0.0.0"], ["--port", "7999"], ["--trust_remote_code"]):
        with pytest.raises(SystemExit, match=f"{words[0]} cannot be used with --space"):
            command.main([model, "--space", str(tmp_path / "space"), *words])
    assert not (tmp_path / "space").exists()


def test_the_app_of_a_space_starts_the_page(model, tmp_path):
    write_space(model, tmp_path / "space")
    code = (tmp_path / "space" / "app.py").read_text()
    called = []
    exec(code.replace("from hf_meanmax.demo.page import launch", ""), {"launch": lambda *a, **k: called.append((a, k))})
    assert called == [(("model",), {"host": "0.0.0.0", "port": 7860})]


def test_the_command_listens_at_this_machine_alone(model, monkeypatch):
    called = []
    monkeypatch.setattr(command, "launch", lambda *args: called.append(args))
    command.main([model])
    command.main([model, "--host", "0.0.0.0", "--port", "7999"])
    assert called == [(model, "127.0.0.1", None, False), (model, "0.0.0.0", 7999, False)]


def test_without_a_model_it_takes_that_of_the_package(monkeypatch):
    shown = []
    monkeypatch.setattr(command, "launch", lambda model, *_: shown.append(model))
    command.main([])
    assert shown == [hf_meanmax.pretrained("mini-en")]


def test_bad_models_are_told_on_one_line(tmp_path):
    pytest.importorskip("gradio", reason="the demo needs gradio")
    with pytest.raises(SystemExit, match="No checkpoint folder"):
        command.main([str(tmp_path / "none")])


def test_a_place_that_cannot_be_listened_at_is_told_on_one_line(model):
    pytest.importorskip("gradio", reason="the demo needs gradio")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(
            SystemExit, match=rf"127\.0\.0\.1, port {port}, cannot be listened at \(Address already in use\)"
        ):
            command.main([model, "--port", str(port)])
    with pytest.raises(SystemExit, match=r"demo: 999\.1\.1\.1 cannot be listened at"):
        command.main([model, "--host", "999.1.1.1"])


def test_without_gradio_it_says_what_to_install(model):
    code = f"""
import sys
sys.modules["gradio"] = None
from hf_meanmax.commands.demo import main
main([{model!r}])
"""
    result = run_python("-c", code)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert 'The demo needs gradio. In a clone: pip install -c constraints.txt ".[demo]"' in result.stderr


def test_the_page_sends_nothing_home(monkeypatch):
    pytest.importorskip("gradio", reason="the demo needs gradio")
    monkeypatch.delenv("GRADIO_ANALYTICS_ENABLED", raising=False)
    import os

    page.load_gradio()
    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
    settings = page.launch_settings()
    assert settings["share"] is False
    assert settings["theme"]._stylesheets == []
    assert settings["max_file_size"] == "5mb"
