"""Encoding on several processes: the files of one process, and one line when a process fails."""

from __future__ import annotations

import contextlib
import importlib.metadata
import multiprocessing
import os
import re
import resource
import signal
import socket
import traceback
from pathlib import Path

import pytest

from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.commands.encode import main
from hf_meanmax.inference import encode
from hf_meanmax.inference.embedding_files import read_manifest, shard_name
from hf_meanmax.inference.encoder import load_encoder
from tiny_model import make_model, make_tokenizer, random_lines, run_python

LINES = random_lines(230)
SCRIPT = Path(__file__).parents[2] / "scripts" / "encode.py"
OPTIONS = ["--shard-size", "50", "--batch-size", "16", "--compute-dtype", "float32"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> str:
    return str(save_checkpoint(make_model(), make_tokenizer(), tmp_path_factory.mktemp("processes") / "model"))


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def two_cores():
    """One thread for each of two processes, as this one has: the last bits depend on their number."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[:2])
    yield
    os.sched_setaffinity(0, cores)


@pytest.mark.skipif(not SCRIPT.is_file(), reason="the scripts are in the repository alone")
@pytest.mark.usefixtures("two_cores")
def test_two_processes_write_the_files_of_one(checkpoint, text, tmp_path):
    # What is compressed is fitted by one process and found by both.
    arguments = [checkpoint, str(text), *OPTIONS, "--pca", "20", "--dtype", "int8", "--output"]
    main([*arguments, str(tmp_path / "one")])
    launch = ["-m", "accelerate.commands.accelerate_cli", "launch", "--multi_gpu", "--num_processes", "2", str(SCRIPT)]
    result = run_python(*launch, *arguments, str(tmp_path / "two"), ACCELERATE_USE_CPU="true")
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stderr.count("230 rows of 20 in 5 shards") == 1
    assert files(tmp_path / "two") == files(tmp_path / "one")


def run_machine(rank: int, port: int, arguments: list[str], hook, errors: Path) -> None:
    """One of two processes that no launcher watches over, as on machines of their own."""
    from accelerate import PartialState

    os.environ.update(
        RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port), ACCELERATE_USE_CPU="true",
    )  # fmt: skip
    PartialState._reset_state()
    if rank == 1:
        hook()
    with open(errors, "w", buffering=1) as file, contextlib.redirect_stderr(file):
        try:
            main(arguments)
        except SystemExit as ended:
            print(ended.code, file=file)
            os._exit(1)
        except BaseException:
            traceback.print_exc(file=file)
            os._exit(1)
    os._exit(0)


@pytest.fixture
def run_machines(checkpoint, tmp_path):
    """Runs the command on two machines, the second of which may have something else; their exit codes and stderr."""
    load_encoder(checkpoint, device="cpu")  # imports what each of them would import anew
    context = multiprocessing.get_context("fork")

    def run(first: list[str], second: list[str] | None = None, hook=lambda: None) -> tuple[list[int], list[str]]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        errors = [tmp_path / f"errors-{rank}.txt" for rank in range(2)]
        machines = [
            context.Process(target=run_machine, args=(rank, port, arguments, hook, errors[rank]))
            for rank, arguments in enumerate([first, second or first])
        ]
        for machine in machines:
            machine.start()
        for machine in machines:
            machine.join(60)
        hanging = [machine for machine in machines if machine.is_alive()]
        for machine in hanging:
            machine.kill()
        assert not hanging, "a process waits for ever"
        return [machine.exitcode for machine in machines], [path.read_text() for path in errors]

    return run


def said(errors: str) -> list[str]:
    """The lines about an error."""
    assert "Traceback" not in errors
    return [line for line in errors.splitlines() if line.startswith("hf-meanmax")]


def fill_the_disk() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))


def test_a_full_disk_on_one_machine_ends_both_and_the_same_command_resumes(checkpoint, text, tmp_path, run_machines):
    output = tmp_path / "out"
    arguments = [checkpoint, str(text), *OPTIONS, "--output", str(output)]
    codes, errors = run_machines(arguments, hook=fill_the_disk)
    assert codes == [1, 1]
    assert said(errors[1]) == []
    (line,) = said(errors[0])
    assert "process 1 on " in line
    assert f"{output / shard_name(1, '.npy')} could not be written: No space left on device" in line
    assert sorted(path.name for path in output.glob("shard-*")) == [shard_name(n, ".npy") for n in (0, 2, 4)]
    assert not read_manifest(output)["complete"]

    before = {path: path.stat().st_mtime_ns for path in output.glob("shard-*")}
    codes, errors = run_machines(arguments)
    assert codes == [0, 0], errors
    assert {path: path.stat().st_mtime_ns for path in before} == before
    main([checkpoint, str(text), *OPTIONS, "--output", str(tmp_path / "one")])
    assert files(output) == files(tmp_path / "one")


def test_a_killed_process_leaves_nobody_waiting(checkpoint, text, tmp_path, run_machines, monkeypatch):
    def kill(*args: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    codes, errors = run_machines(
        [checkpoint, str(text), *OPTIONS, "--output", str(tmp_path / "out")],
        hook=lambda: monkeypatch.setattr(encode, "write_shard", kill),
    )
    assert codes == [1, -signal.SIGKILL]
    assert said(errors[0]) == []


def test_a_text_that_none_can_read_is_named_once(checkpoint, tmp_path, run_machines):
    bad = tmp_path / "bad.txt"
    # Beyond the lines that the first process looks at before.
    bad.write_bytes(b"the cat\n" * 3000 + b"caf\xe9\n")
    arguments = [checkpoint, str(bad), *OPTIONS, "--shard-size", "500", "--output", str(tmp_path / "out")]
    codes, errors = run_machines(arguments)
    assert codes == [1, 1]
    (line,) = [line for text in errors for line in said(text)]
    assert "bad.txt, line 3001" in line


@pytest.mark.parametrize(
    ("differs", "expected"),
    [
        ("text", r"Process 1 on \S+ has another text \(path, size or time of change\) than process 0 on \S+ \("),
        ("model", r"Process 1 on \S+ has another model than process 0"),
        ("settings", r"another dtype than process 0 on \S+ \(float16 there, float32 here\)\. It must be the same"),
        ("version", r"another version of transformers than process 0 on \S+ \(0\.0 there, \d"),
        (
            "output",
            r"lacks 2 of the shards that other machines have written, shard-000001\.npy for instance; name a folder",
        ),
        ("no model", r"here/model"),
    ],
)
def test_machines_that_disagree_are_named_once(
    checkpoint, text, tmp_path, run_machines, monkeypatch, differs, expected
):
    first = [checkpoint, str(text), *OPTIONS, "--output", str(tmp_path / "out")]
    second, hook = list(first), lambda: None
    if differs == "text":
        second[1] = str(tmp_path / "other.txt")
        Path(second[1]).write_text("the cat\n")
    elif differs == "model":
        second[0] = str(save_checkpoint(make_model(seed=1), make_tokenizer(), tmp_path / "model"))
    elif differs == "settings":
        second += ["--dtype", "float16"]
    elif differs == "version":
        version = importlib.metadata.version
        other = lambda name: "0.0" if name == "transformers" else version(name)  # noqa: E731
        hook = lambda: monkeypatch.setattr(importlib.metadata, "version", other)  # noqa: E731
    elif differs == "output":
        second[-1] = str(tmp_path / "elsewhere")
        Path(second[-1]).mkdir()
    else:
        first[0] = second[0] = str(tmp_path / "here" / "model")
    codes, errors = run_machines(first, second, hook)
    (line,) = said(errors[0])
    assert re.search(expected, line), line
    assert said(errors[1]) == []
    assert codes == [1, 1]
    assert (tmp_path / "out").exists() == (differs == "output")
