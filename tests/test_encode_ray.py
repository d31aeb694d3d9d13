"""The example that encodes parquet files with Ray Data: every row once, whatever is killed, and bad input in a line."""

from __future__ import annotations

import _socket
import importlib.util
import multiprocessing
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.inference.embedding_files import read_embeddings
from hf_meanmax.inference.encoder import encode_texts, load_encoder
from tiny_model import make_model, make_tokenizer, python_environment, random_lines

SCRIPT = Path(__file__).parents[1] / "examples" / "encode_ray.py"
FILES = {"day=1/a.parquet": 6000, "day=1/b.parquet": 4000, "day=2/a.parquet": 5000, "none.parquet": 0}
pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="the example is in the repository alone")
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason='Ray is not installed: pip install -c constraints.txt ".[ray]"',
)


@pytest.fixture(scope="module")
def example():
    specification = importlib.util.spec_from_file_location("encode_ray", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> str:
    return str(save_checkpoint(make_model(), make_tokenizer(), tmp_path_factory.mktemp("ray") / "model"))


@pytest.fixture
def lake(tmp_path) -> Path:
    """Files in folders of their own, with a column beside the text and a text that is missing."""
    for seed, (name, rows) in enumerate(FILES.items()):
        texts: list[str | None] = [*random_lines(rows, seed=seed)]
        texts[7:8] = [None] * (rows > 7)
        path = tmp_path / "lake" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        columns = {"id": pa.array(range(rows), pa.int64()), "words": pa.array(texts, pa.string())}
        pq.write_table(pa.table(columns), path)
    return tmp_path / "lake"


def check_complete(example, checkpoint: str, lake: Path, output: Path) -> None:
    """Each file has the rows of its input in their order, and the vectors of their texts to the last bit."""
    model = load_encoder(checkpoint, device="cpu")
    files = {str(path.relative_to(output)) for path in output.rglob("*") if path.is_file()}
    assert files == {*FILES, example.MADE_BY}
    for name, rows in FILES.items():
        given, found = pq.read_table(lake / name), pq.read_table(output / name)
        assert found.num_rows == rows
        assert found.select(["id", "words"]).equals(given)
        texts = [text or "" for text in given["words"].to_pylist()]
        vectors = list(read_embeddings([output / name]))
        if rows:
            assert np.array_equal(np.concatenate(vectors), encode_texts(model, texts, 64)), name


def encode_with_ray(example, arguments: list[str], log: Path) -> None:
    """Runs the command on two workers, in a process that is forked: nothing is imported anew but by the workers."""
    sys.stdout = sys.stderr = open(log, "w", buffering=1, encoding="utf-8")
    options = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}
    os.environ.update(python_environment(**options))
    # Ray learns the machine's address from a UDP socket that sends nothing, which the guard of the tests refuses.
    socket.socket.connect = _socket.socket.connect
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000)
    try:
        example.main(arguments)
    finally:
        ray.shutdown()


@needs_ray
def test_a_worker_that_is_killed_costs_no_row_and_doubles_none(example, checkpoint, lake, tmp_path):
    load_encoder(checkpoint, device="cpu")  # imported before the fork
    output, log = tmp_path / "vectors", tmp_path / "log.txt"
    arguments = [checkpoint, str(lake), str(output), "--column", "words", "--actors", "2"]
    process = multiprocessing.get_context("fork").Process(target=encode_with_ray, args=(example, arguments, log))
    process.start()
    # A file that is being written has the number of its process in its name.
    while not (partial := list(output.rglob(".*.parquet.partial-*"))) and process.is_alive():
        time.sleep(0.002)
    assert partial, log.read_text()
    os.kill(int(partial[0].name.rpartition("-")[2]), signal.SIGKILL)
    process.join(240)
    printed = log.read_text()
    assert process.exitcode == 0, printed[-3000:]
    assert "15,000 texts in 4 files, 0 longer than the model reads" in printed
    assert list(output.rglob(".*")) == []
    check_complete(example, checkpoint, lake, output)


@pytest.fixture
def run(example, checkpoint, lake, tmp_path, monkeypatch, capsys):
    """The command up to where Ray would begin: what it prints, or what it ends with."""
    monkeypatch.setattr(example, "require", lambda *names: None)

    def run(model: str = checkpoint, output: str | Path = tmp_path / "vectors", column: str = "words") -> str:
        try:
            example.main([model, str(lake), str(output), "--column", column])
        except SystemExit as ended:
            return ended.code
        return capsys.readouterr().out

    return run


@pytest.fixture
def encode_here(example, checkpoint, lake, tmp_path):
    """Encodes in this process what the actors would encode; returns what they would say."""

    def encode(output: Path = tmp_path / "vectors", column: str = "words") -> list[dict[str, object]]:
        actor = example.Encoder(checkpoint, column)
        return [actor(row) for row in example.files_to_encode(lake, output, column)]

    return encode


def test_finished_files_are_kept(example, checkpoint, lake, tmp_path, encode_here, run):
    output = tmp_path / "vectors"
    output.mkdir()
    example.claim(output, {**example.model_fingerprints(load_encoder(checkpoint)), "column": "words"})
    assert sum(row["texts"] for row in encode_here()) == sum(FILES.values())
    check_complete(example, checkpoint, lake, output)
    assert f"all files of {lake} are encoded" in run()
    # One that is missing is encoded, one that is damaged, and one whose text is another, also an older one.
    (output / "day=1/a.parquet").write_bytes(b"PAR1")
    (output / "day=1/b.parquet").unlink()
    os.utime(lake / "day=2/a.parquet", (1, 1))
    assert [row["texts"] for row in encode_here()] == [6000, 4000, 5000]
    check_complete(example, checkpoint, lake, output)


def test_a_file_that_is_damaged_inside_leaves_no_output_and_stops_no_other(lake, tmp_path, encode_here):
    path = lake / "day=1/b.parquet"
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 200] = bytes(200)
    path.write_bytes(data)
    results = encode_here()
    assert [bool(row["error"]) for row in results] == [False, True, False, False]
    assert str(path) in results[1]["error"]
    assert sorted(path.name for path in (tmp_path / "vectors").rglob("*") if path.is_file()) == [
        "a.parquet", "a.parquet", "none.parquet"
    ]  # fmt: skip


def test_a_file_that_changes_meanwhile_is_not_taken_for_encoded(example, lake, tmp_path, encode_here, monkeypatch):
    path, encode_texts = lake / "day=1/a.parquet", example.encode_texts

    def replaced(*arguments, **options):
        os.utime(path, (1, 1))
        return encode_texts(*arguments, **options)

    monkeypatch.setattr(example, "encode_texts", replaced)
    results = encode_here()
    assert [row["error"] for row in results if row["error"]] == [
        f"{path}: it changed while it was encoded; the same command encodes it anew"
    ]
    assert not (tmp_path / "vectors/day=1/a.parquet").exists()
    monkeypatch.undo()
    assert [row["texts"] for row in encode_here()] == [6000]


def test_long_texts_are_counted(example, checkpoint, tmp_path):
    pq.write_table(pa.table({"words": ["the cat", "the old dog ran"]}), tmp_path / "in.parquet")
    actor = example.Encoder(checkpoint, "words")
    actor.model.max_seq_length = 4
    row = {"source": str(tmp_path / "in.parquet"), "target": str(tmp_path / "out.parquet")}
    assert actor(row) == {"texts": 2, "cut": 1, "error": ""}


def test_ray_is_not_installed(example, lake, tmp_path, monkeypatch):
    for name in ("ray", "ray.data"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SystemExit, match=r'^encode_ray.py: This needs ray\. In a clone: pip install .* "\.\[ray\]"'):
        example.main(["model", str(lake), str(tmp_path / "vectors")])
    assert not (tmp_path / "vectors").exists()


def test_bad_input_is_told_in_a_line_and_nothing_is_written(example, lake, tmp_path, run):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=f"There is no .parquet file in {tmp_path}/empty"):
        example.files_to_encode(tmp_path / "empty", tmp_path / "vectors", "words")
    columns = "needs a column 'text', and none 'embeddings'; its columns are id, words."
    assert run(column="text") == f"encode_ray.py: {lake}/day=1/a.parquet {columns}"
    assert "column 'id' holds int64, not text." in run(column="id")
    assert f"lies in {lake}, whose files are read" in run(output=lake / "vectors")
    assert "here/model" in run(model=str(tmp_path / "here" / "model"))
    whole = (lake / "day=2/a.parquet").read_bytes()
    (lake / "day=2/a.parquet").write_bytes(whole[:3000])
    assert re.fullmatch(f"encode_ray.py: {lake}/day=2/a.parquet is damaged, or no parquet file: .+", run())
    assert not (tmp_path / "vectors").exists()


def test_a_folder_of_another_model_is_refused(lake, tmp_path, run, encode_here, example, checkpoint):
    output = tmp_path / "vectors"
    other = str(save_checkpoint(make_model(seed=1), make_tokenizer(), tmp_path / "model"))
    output.mkdir()
    example.claim(output, {**example.model_fingerprints(load_encoder(checkpoint)), "column": "words"})
    encode_here()
    before = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    refused = f"encode_ray.py: {output} holds vectors of another model or column, or other files; name another."
    assert run(model=other) == refused
    assert {path: path.read_bytes() for path in output.rglob("*") if path.is_file()} == before
    (output / example.MADE_BY).unlink()
    assert run() == refused
