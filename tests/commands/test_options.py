"""What the verbs share: options from dataclasses, hints, errors on one line."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch
from huggingface_hub.utils import are_progress_bars_disabled

from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.commands.options import OptionParser, command_line, count, named_folders, option, positional
from hf_meanmax.inference.encoder import load_encoder
from hf_meanmax.training.settings import PretrainArguments
from tiny_model import make_model, make_tokenizer, python_environment, run_python


@dataclass
class Options:
    texts: list[str] = positional("texts", is_text=True)
    batch_size: int = count("texts a batch", 1)
    number: int | None = option("a number", None)


def parse(words):
    return OptionParser("verb", "Does things.", Options).parse(words)[0]


def test_hyphens_and_underscores_are_one():
    assert parse(["a", "--batch-size", "3"]).batch_size == 3
    assert parse(["a", "--batch_size", "3"]).batch_size == 3


def test_misspelt_options_name_the_nearest(capsys):
    with pytest.raises(SystemExit):
        parse(["a", "--bach-size", "3"])
    assert "Did you mean --batch-size" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse(["a", "--batch_size", "0"])
    assert "`batch_size` is 0; it must be 1 or more" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse(["a", "--batch_size", "many"])
    assert "invalid int value: 'many'" in capsys.readouterr().err
    assert parse(["a", "--batch_size", "2e4"]).batch_size == 20_000


def test_texts_may_stand_behind_options(capsys):
    assert parse(["a", "--number", "2", "b", "--batch_size", "3"]).texts == ["a", "b"]

    @dataclass
    class Files:
        models: list[str] = positional("models")
        tasks: str = option("names", "all")

    for words, left in ((["m", "--tasks", "A", "B"], "B"), (["m", "--tasks", "A", "--", "-b"], "-b")):
        with pytest.raises(SystemExit):
            OptionParser("verb", "Does things.", Files).parse(words)
        assert f"'{left}' is not expected: it is no value of an option. See hf-meanmax verb" in capsys.readouterr().err


def test_help_shows_types_and_defaults(capsys):
    with pytest.raises(SystemExit):
        parse(["--help"])
    shown = capsys.readouterr().out
    assert "--batch_size INT" in shown
    assert "(default: 1)" in shown


def test_errors_of_a_user_are_one_line():
    with pytest.raises(SystemExit, match=r"^hf-meanmax verb: first second$"), command_line("verb"):
        raise ValueError("first\n  second")


def test_weights_are_loaded_without_bars_in_a_verb_alone(tmp_path, capsys):
    folder = save_checkpoint(make_model(), make_tokenizer(), tmp_path / "model")
    capsys.readouterr()
    with command_line("verb"):
        load_encoder(str(folder))
        save_checkpoint(make_model(), make_tokenizer(), tmp_path / "copy")
        assert not are_progress_bars_disabled()
    assert capsys.readouterr().err == ""
    load_encoder(str(folder))
    assert "Loading weights" in capsys.readouterr().err


def test_a_warning_of_data_is_one_line():
    code = """
import warnings
from hf_meanmax.commands.options import command_line
with command_line("verb"):
    warnings.warn("two\\nlines")
    warnings.warn("of code", FutureWarning)
"""
    first, *others = run_python("-c", code).stderr.splitlines()
    assert first == "warning: two lines"
    assert "FutureWarning: of code" in others[0]


def test_texts_may_begin_with_dashes():
    spoken = "-- said he, and went"
    assert parse([spoken, "--number", "2"]).texts == [spoken]
    assert parse(["--number", "2", "--", "--said", "-"]).texts == ["--said", "-"]


def test_a_folder_with_an_equals_sign_in_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=0.1").mkdir()
    assert named_folders(["lr=0.1", "b=runs/c"]) == {"lr=0.1": "lr=0.1", "b": "runs/c"}


def test_checkpoints_have_the_names_of_their_runs():
    assert named_folders(["runs/a/model", "runs/b/model"]) == {"a": "runs/a/model", "b": "runs/b/model"}


def test_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))

    @dataclass
    class Options:
        names: list[str] = positional("names")
        output: str = option("where", "")
        text: str = option("a text", "", is_text=True)

    (read,) = OptionParser("x", "", Options).parse(["~/a", "b~/c", "--output=~/out", "--text=~/words"])
    assert read == Options([f"{tmp_path}/a", "b~/c"], f"{tmp_path}/out", "~/words")
    assert PretrainArguments(output_dir="~/run").output_dir == f"{tmp_path}/run"


def test_too_little_memory_is_told_in_a_line(capsys):
    for error in (MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")):
        with pytest.raises(SystemExit) as ended, command_line("encode"):
            raise error
        assert ended.value.code == 1
        assert capsys.readouterr().err.startswith("hf-meanmax encode: out of memory; take a smaller batch.")


def test_texts_in_pipes_are_utf_8_whatever_the_locale():
    code = "from hf_meanmax.commands.options import _escape_unprintable as e; e(); print('\\u4f60')"
    ascii_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert run_python("-c", code, **ascii_locale).stdout == "\u4f60\n"
    assert run_python("-c", code, **ascii_locale, PYTHONIOENCODING="ascii").stdout == "\\u4f60\n"


PRINTS_ON = """
from hf_meanmax.commands.options import command_line
with command_line("decode"):
    for number in range(100_000):
        print(number)
"""


def test_a_reader_that_ends_early_ends_the_verb_in_silence():
    """As `head` does."""
    process = subprocess.Popen(
        [sys.executable, "-c", PRINTS_ON], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=python_environment(),
    )  # fmt: skip
    assert process.stdout.readline() == "0\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 1


def test_a_pipe_that_breaks_elsewhere_is_told():
    with pytest.raises(SystemExit, match="hf-meanmax decode: a worker ended"), command_line("decode"):
        raise BrokenPipeError("a worker ended")
