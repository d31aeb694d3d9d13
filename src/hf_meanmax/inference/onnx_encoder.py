"""Encodes texts with an exported encoder; needs only numpy, onnxruntime and tokenizers.

    python onnx/encoder.py texts.txt --output vectors.npy

A copy of this file lies beside each exported model. From Python: `OnnxEncoder("FOLDER/onnx").encode(["a text"])`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
from tokenizers import Tokenizer

MODEL, INT8_MODEL, TOKENIZER, SETTINGS = "model.onnx", "model_int8.onnx", "tokenizer.json", "encoder.json"

_MOST_THREADS = 1024
_TABLES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
# Texts that the command holds in memory, and the seconds between its progress lines.
_BLOCK, _SECONDS_BETWEEN_LINES = 16384, 10.0


class OnnxEncoder:
    """An exported encoder: gives the vectors of its checkpoint's `SentenceTransformer.encode`, without torch.

    Args:
        folder: the folder of the export.
        int8: use the quantised model.
        threads: number of batches encoded at once, each on one core (default: the number of cores). With another
            provider than the CPU, the threads of one operation.
        providers: execution providers of onnxruntime, for instance `["CUDAExecutionProvider"]` (default: the CPU).

    Attributes:
        settings: the content of the export's `encoder.json`.
        dimension: size of the vectors.
        max_tokens: number of tokens at which texts are cut; None if they are not.

    Raises:
        FileNotFoundError: the folder or one of its files is missing.
        ImportError: onnxruntime is not installed.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        int8: bool = False,
        threads: int | None = None,
        providers: Sequence[str] = ("CPUExecutionProvider",),
    ):
        # Imported here, since `export-onnx` imports this module before it checks for missing packages.
        import onnxruntime

        folder = Path(folder)
        for name in (SETTINGS, TOKENIZER, INT8_MODEL if int8 else MODEL):
            if not (folder / name).is_file():
                raise FileNotFoundError(f"{folder / name} is missing: the folder is no whole export.")
        self.settings = settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        self.dimension: int = settings["dimension"]
        self.prompt: str = settings.get("prompt", "")
        self.pad_token_id: int = settings["pad_token_id"]
        self.tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        # Whether "</s>" in a text is read as a special token must be as in the checkpoint.
        self.tokenizer.encode_special_tokens = settings["split_special_tokens"]
        self.tokenizer.no_padding()
        self.limit_length(settings["max_tokens"])
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if threads is not None and not 1 <= threads <= _MOST_THREADS:
            raise ValueError(f"threads is {threads}; it must be from 1 to {_MOST_THREADS}.")
        is_cpu = list(providers) == ["CPUExecutionProvider"]
        self.threads = (threads or _usable_cores()) if is_cpu else 1
        # For sentences, two threads per operation lose more time waiting than they gain; 0 is onnxruntime's default.
        options.intra_op_num_threads = 1 if is_cpu else threads or 0
        path = str(folder / (INT8_MODEL if int8 else MODEL))
        # On a CPU the fused sum and layer norm take several times as long as the two separate operators.
        left_out = ["SkipLayerNormFusion"] if is_cpu else []
        try:
            self.session = onnxruntime.InferenceSession(
                path, options, providers=list(providers), disabled_optimizers=left_out
            )
        except Exception as error:  # onnxruntime's errors have no common class
            raise ValueError(
                f"{path} cannot be loaded: damaged, or not for this onnxruntime ({' '.join(str(error).split())[:200]})."
            ) from error

    def limit_length(self, max_tokens: int | None) -> None:
        """Sets the number of tokens, including the end token, at which texts are cut; None cuts none."""
        self.max_tokens = max_tokens
        if max_tokens is None:
            self.tokenizer.no_truncation()
        else:
            self.tokenizer.enable_truncation(max_tokens)

    def encode(self, texts: str | Sequence[str], batch_size: int = 32) -> np.ndarray:
        """Vectors `(n, dimension)` float32 of n texts in their order, or `(dimension,)` of a single string.

        Texts of similar length are encoded together, so that there is little padding.

        Raises:
            ValueError: `batch_size` is less than 1.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; it must be 1 or more.")
        if isinstance(texts, str):
            row: np.ndarray = self.encode([texts])[0]
            return row
        return self.encode_ids(self.token_ids([self.prompt + text for text in texts]), batch_size)

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text, without a prompt."""
        # Tokenizers do not accept lone surrogates.
        read = [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in texts]
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(read)]

    def encode_ids(self, ids: Sequence[Sequence[int]], batch_size: int = 32) -> np.ndarray:
        """Vectors `(n, dimension)` float32 of n texts' token ids, in their order."""
        order = np.argsort([-len(row) for row in ids], kind="stable")
        vectors = np.empty((len(ids), self.dimension), dtype=np.float32)
        batches = [order[start : start + batch_size] for start in range(0, len(ids), batch_size)]
        tokens = ([ids[row] for row in rows] for rows in batches)
        threads = min(self.threads, len(batches))
        # For one text, starting a pool of threads would take a fifteenth of the time.
        with ThreadPoolExecutor(threads) if threads > 1 else nullcontext() as pool:
            found = map(self._encode_batch, tokens) if pool is None else pool.map(self._encode_batch, tokens)
            for rows, batch in zip(batches, found, strict=True):
                vectors[rows] = batch
        return vectors

    def _encode_batch(self, ids: Sequence[Sequence[int]]) -> np.ndarray:
        width = max(1, *map(len, ids))
        inputs = np.full((len(ids), width), self.pad_token_id, dtype=np.int64)
        mask = np.zeros((len(ids), width), dtype=np.int64)
        for place, row in enumerate(ids):
            inputs[place, : len(row)] = row
            mask[place, : len(row)] = 1
        (found,) = self.session.run(None, {"input_ids": inputs, "attention_mask": mask})
        vectors: np.ndarray = found[:, : self.dimension]
        return vectors


def _usable_cores() -> int:
    # As in `hf_meanmax.hardware`, which this standalone file cannot import.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; see `--help`."""
    parser = argparse.ArgumentParser(description="Encode the lines of a text file with an exported encoder.")
    parser.add_argument("texts", help="UTF-8 file, one text a line")
    parser.add_argument("--output", required=True, help=".npy file for the vectors")
    parser.add_argument("--model", default=Path(__file__).parent, help="folder of the export")
    parser.add_argument("--int8", action="store_true", help="use the quantised model")
    parser.add_argument("--batch-size", type=int, default=32, help="texts encoded together")
    args = parser.parse_args(argv)
    try:
        if os.path.exists(args.output) and os.path.samefile(args.texts, args.output):
            raise FileExistsError(f"--output {args.output} is what would be read. Name another place.")
        if Path(args.texts).suffix.lower() in _TABLES:
            raise ValueError(f"{args.texts} is a table. Write its column of texts to a text file, one text a line.")
        encoder = OnnxEncoder(args.model, int8=args.int8)
        partial = f"{args.output}.partial-{os.getpid()}"
        # Only a line feed ends a text, not a form feed or a lone carriage return.
        with open(args.texts, encoding="utf-8-sig", newline="\n") as texts:
            try:
                with open(partial, "wb") as file:
                    rows = _write_vectors(file, encoder, texts, args.batch_size)
                os.replace(partial, args.output)
            finally:
                Path(partial).unlink(missing_ok=True)
    except (ImportError, OSError, ValueError) as error:
        sys.exit(f"encoder: {error}")
    print(f"{rows:,} x {encoder.dimension:,}: {args.output}")


def _write_vectors(file: BinaryIO, encoder: OnnxEncoder, texts: Iterable[str], batch_size: int) -> int:
    """Writes the vectors of texts as a .npy file, with one block in memory at a time; returns their number."""
    header = {"descr": "<f4", "fortran_order": False, "shape": (0, encoder.dimension)}
    np.lib.format.write_array_header_1_0(file, header)
    texts, rows, last_line = iter(texts), 0, time.monotonic()
    while block := [text.strip() for text in islice(texts, _BLOCK)]:
        file.write(encoder.encode(block, batch_size).astype("<f4", copy=False).tobytes())
        rows += len(block)
        if time.monotonic() - last_line > _SECONDS_BETWEEN_LINES:
            last_line = time.monotonic()
            print(f"{rows:,} texts", file=sys.stderr)
    # numpy leaves room in the header for the final number of rows.
    file.seek(0)
    np.lib.format.write_array_header_1_0(file, {**header, "shape": (rows, encoder.dimension)})
    return rows


if __name__ == "__main__":
    main()
