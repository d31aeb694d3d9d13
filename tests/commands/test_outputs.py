"""What a verb writes takes the place of nothing that somebody may want, and of nothing that another process writes."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.commands.__main__ import main
from hf_meanmax.files import LOCK, sole_writer
from tiny_model import make_model, make_tokenizer, python_environment

SIZES = "--embedding_size 8 --hidden_size 16 --intermediate_size 16 --num_attention_heads 2".split()
TRAINING = [*SIZES, "--max_steps", "1", "--min_tokens", "1", "--sample_sentences", "0", "--log_steps", "1"]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with a model, two texts, labelled texts, vectors and an index."""
    folder = tmp_path_factory.mktemp("made")
    save_checkpoint(make_model(), make_tokenizer(), folder / "model")
    (folder / "text.txt").write_text("the cat sat\na dog ran\nthe red dog\n" * 10)
    (folder / "other.txt").write_text("a dog ran on\n" * 10)
    (folder / "labels.tsv").write_text("the cat\tx\nthe dog\ty\n" * 10)
    main(["encode", str(folder / "model"), str(folder / "text.txt"), "--output", str(folder / "vectors")])
    shutil.copyfile(folder / "vectors" / "shard-000000.npy", folder / "vectors.npy")
    main(["search", "index", str(folder / "model"), str(folder / "text.txt"), "--output", str(folder / "index")])
    return folder


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(words: str, folder: Path, capsys) -> tuple[object, str]:
    """Exit code or message, and the last line of stderr, of a command whose {} is a folder."""
    try:
        code: object = main([word.replace("{}", str(folder)) for word in words.split()])
    except SystemExit as error:
        code = error.code
    lines = capsys.readouterr().err.strip().splitlines()
    return code, lines[-1] if lines else ""


@pytest.mark.parametrize(
    "command",
    [
        "decode {}/model {}/vectors.npy --output {}/vectors.npy",
        "decode {}/model {}/vectors --output {}/vectors/manifest.json",
        "decode {}/model {}/vectors/shard-000000.npy --output {}/vectors/shard-000000.npy",
        "translate {}/model {}/text.txt --output {}/text.txt",
        "translate {}/model {}/text.txt --reference {}/other.txt --output {}/other.txt",
        "prepare {}/*.txt --output {}/text.txt",
        "questions {}/*.txt --output {}/text.txt",
        "vectors {}/text.txt --output {}/text.txt",
        "search query {}/index --file {}/text.txt --output {}/text.txt",
        "search query {}/index the --output {}/index/index.json",
        "reconstruct {}/model {}/text.txt --output {}/model",
        "search index {}/model {}/text.txt --output {}/model",
        "search index {}/model {}/text.txt --output {}/model/index",
        "encode {}/model {}/text.txt --output {}/model/vectors",
        "whiten {}/model {}/text.txt --output {}/model/whitened",
        "evaluate {}/model --output {}/model/scores",
        "reconstruct {}/model {}/text.txt --output {}/model/scores",
        "push {}/model me/it --results {}/vectors/manifest.json --card_only {}/vectors/manifest.json",
    ],
)
def test_nothing_that_is_read_is_written(made, capsys, command):
    before = snapshot(made)
    code, _ = run(command, made, capsys)
    assert str(code).startswith(f"hf-meanmax {' '.join(command.split()[: 2 if 'search' in command else 1])}: --")
    assert "is what would be read" in code or "a model. Name a folder outside it" in code
    assert "\n" not in code
    assert snapshot(made) == before


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            "encode {}/model {}/text.txt --output {}/v.npy",
            "file, but it names a folder. Take for",
        ),
        ("search index {}/model {}/text.txt --output {}/v.faiss", "file, but it names a folder. Take"),
    ],
)
def test_a_folder_is_not_named_as_a_file(made, capsys, command, said):
    code, _ = run(command, made, capsys)
    assert said in str(code)
    assert str(code).endswith(f"for instance {made}/v.")
    assert not list(made.glob("v.*"))


def test_a_link_to_an_input_is_the_input(made, tmp_path, capsys):
    (tmp_path / "link.txt").symlink_to(made / "text.txt")
    with pytest.raises(SystemExit, match="what would be read"):
        main(["prepare", str(made / "text.txt"), "--output", str(tmp_path / "link.txt")])


def test_what_lies_beside_the_inputs_is_written(made, capsys):
    """Figures and texts in the folder that they are of are common."""
    code, _ = run("decode {}/model {}/vectors --output {}/vectors/decoded.txt", made, capsys)
    assert code == 0
    assert len((made / "vectors" / "decoded.txt").read_text().splitlines()) == 30


def test_an_index_of_another_text_is_replaced_on_request_alone(made, tmp_path, capsys):
    shutil.copytree(made / "index", tmp_path / "index")
    before = snapshot(tmp_path)
    command = ["search", "index", str(made / "model"), str(made / "other.txt"), "--output", str(tmp_path / "index")]
    with pytest.raises(SystemExit, match=r"is an index of another text.*--overwrite"):
        main(command)
    assert snapshot(tmp_path) == before
    again = [*command[:3], str(made / "text.txt"), *command[4:]]
    assert main([*again, "--metric", "l2"]) == 0
    assert main([*command, "--overwrite"]) == 0
    assert json.loads((tmp_path / "index" / "index.json").read_text())["rows"] == 10
    (tmp_path / "index" / "index.json").write_text("[]")
    with pytest.raises(SystemExit, match=r"index.json is damaged: expected an object, found a list; build"):
        main(command)


@pytest.mark.parametrize("what", ["a model", "inside a model", "a file", "a model of another", "other settings"])
def test_a_run_begins_in_no_folder_of_something_else(made, tmp_path, capsys, what):
    folder = tmp_path / "run"
    if what in ("a model", "inside a model"):
        shutil.copytree(made / "model", folder)
    else:
        (folder / "model").mkdir(parents=True)
        name = {"a file": "mine.txt", "a model of another": "model/weights.bin", "other settings": "settings.json"}
        (folder / name[what]).write_text("{}")
    before = snapshot(tmp_path)
    place = folder / "run" if what == "inside a model" else folder
    for words in (
        f"pretrain --corpus {made}/text.txt --cache_dir {tmp_path}/c --overwrite",
        f"finetune --checkpoint {made}/model --train {made}/labels.tsv",
    ):
        code, _ = run(f"{words} --output_dir {place}", made, capsys)
        assert code.startswith(f"hf-meanmax {words.split()[0]}: ")
        assert str(folder) in code
    assert snapshot(tmp_path) == before


def test_a_log_may_be_in_the_folder_of_a_run_before_it(made, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "train.log").write_text("begins")
    words = f"pretrain --corpus {made}/text.txt --cache_dir {tmp_path}/c --output_dir {tmp_path}/run"
    assert run(" ".join([words, *TRAINING]), made, capsys)[0] == 0


COMMANDS = {
    "pretrain": ("pretrain --corpus {}/text.txt --output_dir OUT --cache_dir OUT.cache", False),
    "finetune": ("finetune --checkpoint {}/model --train {}/labels.tsv --output_dir OUT --epochs 1", False),
    "encode": ("encode {}/model {}/text.txt --output OUT", False),
    "index": ("search index {}/model {}/text.txt --output OUT", True),
    "evaluate": ("evaluate {}/model --tasks synonymy --data {} --output OUT --cache OUT.cache", False),
}


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "evaluate"])
def test_a_second_writer_is_told_of_the_first(made, tmp_path, capsys, name):
    words, beside = COMMANDS[name]
    words = words.replace("OUT", str(tmp_path / "out")) + (" " + " ".join(TRAINING) if name == "pretrain" else "")
    with sole_writer(tmp_path / "out", beside):
        before = snapshot(tmp_path)
        code, said = run(words, made, capsys)
        said = said if code == 1 else str(code)
        assert f"{tmp_path / 'out'} is being written by process {os.getpid()} on " in said
        assert snapshot(tmp_path) == before
    assert list(tmp_path.iterdir()) == []
    assert run(words, made, capsys)[0] == 0
    assert not list(tmp_path.rglob(f"*{LOCK}")) or name == "pretrain"
    assert not (tmp_path / "out" / LOCK).exists()


def test_a_killed_writer_keeps_nobody(tmp_path):
    code = (
        "import sys, time; from hf_meanmax.files import sole_writer\n"
        f"with sole_writer({str(tmp_path / 'out')!r}):\n    print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=python_environment())
    try:
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(BlockingIOError, match=f"process {process.pid} on "), sole_writer(tmp_path / "out"):
            pytest.fail("two writers")
    finally:
        process.kill()
        process.wait()
    with sole_writer(tmp_path / "out"):
        assert (tmp_path / "out" / LOCK).is_file()
    assert not (tmp_path / "out" / LOCK).exists()


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_all_files_of_a_result_follow_the_umask(made, tmp_path, capsys, mask):
    before = os.umask(mask)
    try:
        words = f"pretrain --corpus {made}/text.txt --cache_dir {tmp_path}/c --output_dir {tmp_path}/run "
        assert run(words + " ".join(TRAINING), made, capsys)[0] == 0
        for command in (
            "export {}/model --dtype int8 --output OUT/small",
            "whiten {}/model {}/text.txt --dimension 2 --output OUT/whitened",
            "vectors {}/text.txt --size 4 --output OUT/words.safetensors",
            "encode {}/model {}/text.txt --format safetensors --pca 2 --output OUT/vectors",
            "finetune --checkpoint {}/model --train {}/labels.tsv --epochs 1 --output_dir OUT/tuned",
        ):
            if "vectors" in command.split()[0]:
                pytest.importorskip("gensim")
            assert run(command.replace("OUT", str(tmp_path)), made, capsys)[0] == 0
    finally:
        os.umask(before)
    wrong = {
        str(path.relative_to(tmp_path)): oct(stat.S_IMODE(path.stat().st_mode))
        for path in tmp_path.rglob("*")
        # Locks of the cache are the library's.
        if path.is_file() and stat.S_IMODE(path.stat().st_mode) != 0o666 & ~mask and path.suffix != ".lock"
    }
    assert not wrong
    assert np.load(made / "vectors.npy").shape == (30, 32)
