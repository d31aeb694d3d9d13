"""Encode the text of many parquet files with Ray Data, on the cores of one machine or of a cluster.

    python examples/encode_ray.py runs/mine/model lake/texts lake/vectors --column text --actors 2

An output file has the name and the columns of its input, and `embeddings`. Ray Data hands each free actor a file, and
the file of a killed one again. Rerun the same command to resume: an output file is whole or not there. On a cluster
(`ray start`) all machines see the folders. Needs `pip install -c constraints.txt ".[ray]"`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hf_meanmax.extras import require
from hf_meanmax.files import LOCK, read_json, replacing_file, sole_writer
from hf_meanmax.inference.embedding_files import EMBEDDINGS
from hf_meanmax.inference.encoder import count_truncated, embedding_dimension, encode_texts, load_encoder
from hf_meanmax.inference.fingerprints import model_fingerprints
from hf_meanmax.progress import progress_bar

MADE_BY = "encoding.json"  # in the output folder: the model and the column
ROWS = 16384  # held in memory at a time
SOURCE = b"hf_meanmax.source"  # in the metadata of an output file: which version of its input it is of


class Encoder:
    """An actor: it loads the model once, and encodes file after file."""

    def __init__(self, model: str, column: str):
        self.model, self.column = load_encoder(model), column

    def __call__(self, row: dict[str, str]) -> dict[str, object]:
        """Encodes one file; says how many texts it had and how many were cut, or what is wrong with it."""
        try:
            return self.encode(row["source"], Path(row["target"])) | {"error": ""}
        except (OSError, ValueError, RuntimeError, pa.ArrowException) as error:  # The other files go on.
            return {"texts": 0, "cut": 0, "error": f"{row['source']}: {error}"}

    def encode(self, source: str, target: Path) -> dict[str, object]:
        target.parent.mkdir(parents=True, exist_ok=True)
        kind = pa.list_(pa.float32(), embedding_dimension(self.model))
        texts, cut, version = 0, 0, version_of(Path(source))
        with pq.ParquetFile(source) as table, replacing_file(target, "wb") as file:
            schema = table.schema_arrow.append(pa.field(EMBEDDINGS, kind))
            schema = schema.with_metadata({**(schema.metadata or {}), SOURCE: version})
            with pq.ParquetWriter(file, schema) as writer:
                for batch in table.iter_batches(ROWS):
                    lines = [text or "" for text in batch[self.column].to_pylist()]
                    vectors = encode_texts(self.model, lines, batch_size=64).astype(np.float32, copy=False)
                    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), type=kind)
                    writer.write_batch(pa.record_batch([*batch.columns, column], schema=schema))
                    texts, cut = texts + len(lines), cut + count_truncated(self.model, lines)
            if version_of(Path(source)) != version:
                raise ValueError("it changed while it was encoded; the same command encodes it anew")
        return {"texts": texts, "cut": cut}


def version_of(path: Path) -> bytes:
    """Size and time of a file, which change with it."""
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns}".encode()


def is_encoded(path: Path, target: Path) -> bool:
    """Whether an output file is of this version of its input."""
    try:
        return (pq.read_schema(target).metadata or {}).get(SOURCE) == version_of(path)
    except (OSError, ValueError):  # not there, or damaged
        return False


def files_to_encode(source: Path, output: Path, column: str) -> list[dict[str, str]]:
    """The input files that have no output file yet, or one of another version; each must have a column of text."""
    paths = sorted(source.rglob("*.parquet"))
    if not paths:
        raise FileNotFoundError(f"There is no .parquet file in {source}.")
    if output.resolve().is_relative_to(source.resolve()):
        raise ValueError(f"{output} lies in {source}, whose files are read; name another folder.")
    rows = []
    for path in paths:
        target = output / path.relative_to(source)
        if is_encoded(path, target):
            continue
        try:
            schema = pq.read_schema(path)
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} is damaged, or no parquet file: {error}") from error
        if column not in schema.names or EMBEDDINGS in schema.names:
            names = ", ".join(schema.names)
            raise ValueError(f"{path} needs a column {column!r}, and none {EMBEDDINGS!r}; its columns are {names}.")
        if not (pa.types.is_string(kind := schema.field(column).type) or pa.types.is_large_string(kind)):
            raise ValueError(f"{path}: column {column!r} holds {kind}, not text.")
        rows.append({"source": str(path.resolve()), "target": str(target.resolve())})
    return rows


def claim(output: Path, made_by: dict[str, str]) -> None:
    """Notes in a new folder what its files are made by, or checks that it is the same."""
    path = output / MADE_BY
    if {entry.name for entry in output.iterdir()} <= {LOCK}:
        with replacing_file(path) as file:
            json.dump(made_by, file, indent=2)
    elif not path.is_file() or read_json(path) != made_by:
        raise FileExistsError(f"{output} holds vectors of another model or column, or other files; name another.")


def encode_folder(model: str, source: Path, output: Path, column: str, actors: int, gpus: float) -> str:
    """Encodes the files of a folder; returns what was done."""
    data = require("ray.data", "ray")
    rows = files_to_encode(source, output, column)
    made_by = {**model_fingerprints(load_encoder(model, device="cpu")), "column": column}
    with sole_writer(output):
        claim(output, made_by)
        if not rows:
            return f"all files of {source} are encoded"
        data.DataContext.get_current().enable_progress_bars = False  # in favour of ours
        name = str(Path(model).resolve()) if Path(model).exists() else model
        pool = data.ActorPoolStrategy(size=min(actors, len(rows)), max_tasks_in_flight_per_actor=1)
        files = data.from_items(rows, override_num_blocks=len(rows))  # a block a file
        files = files.map(Encoder, fn_constructor_args=(name, column), compute=pool, num_gpus=gpus)
        try:
            done = list(progress_bar(files.iter_rows(), desc="files", total=len(rows)))
        finally:
            for left in output.rglob(".*.parquet.partial-*"):  # of actors that were killed
                left.unlink(missing_ok=True)
    if errors := [row["error"] for row in done if row["error"]]:
        raise ValueError(f"{len(errors):,} of {len(rows):,} files could not be encoded: {'; '.join(errors)}")
    texts, cut = (sum(row[name] for row in done) for name in ("texts", "cut"))
    return f"{texts:,} texts in {len(rows):,} files, {cut:,} longer than the model reads"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Encode the text of many parquet files with Ray Data.")
    parser.add_argument("model", help="a checkpoint folder, or any SentenceTransformer")
    parser.add_argument("source", type=Path, help="folder of .parquet files, also in folders of its own")
    parser.add_argument("output", type=Path, help="folder for the same files with vectors")
    parser.add_argument("--column", default="text", help="column of text (default: text)")
    parser.add_argument("--actors", type=int, default=1, help="models that encode at the same time (default: 1)")
    parser.add_argument("--gpus", type=float, default=0, help="GPUs of an actor (default: 0)")
    try:
        print(encode_folder(**vars(parser.parse_args(argv))))
    except (ImportError, OSError, ValueError) as error:
        sys.exit(f"encode_ray.py: {' '.join(str(error).split())}")


if __name__ == "__main__":
    main()
