"""Encode text files or a data set to sharded embeddings, one row a line.

hf-meanmax encode runs/docstrings/model corpus.txt --output embeddings
accelerate launch scripts/encode.py runs/docstrings/model "corpus/*.txt.xz" --output embeddings

Rerun the same command to resume an interrupted run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

from hf_meanmax.hardware import use_all_cores
from hf_meanmax.inference.compression import load_pca
from hf_meanmax.inference.encode import EncodeSettings, encode_corpus, fast_dtype, load_encoder, process_state

from .options import CorpusOptions, OptionParser, count, one_line_errors, option, positional


@dataclass
class EncodeOptions:
    """The options of `hf-meanmax encode`, beside those of the corpus."""

    model: str = positional("a checkpoint folder, or any SentenceTransformer (a folder, or a name on the Hub)")
    output: str = option("folder for the shards")
    format: Literal["npy", "safetensors", "parquet"] = option("file format of the shards", "npy")
    shard_size: int = count("rows of a shard, held in memory", 16384)
    batch_size: int = count("texts of one forward pass; fewer of long ones", 64)
    dtype: Literal["float32", "float16", "int8"] = option("numbers in the shards (int8 cannot be decoded)", "float32")
    compute_dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "numbers in the model (auto: bfloat16 where the device multiplies it faster)", "auto"
    )
    normalize: bool = option("scale vectors to unit length (they cannot be decoded then)", False)
    truncate_dim: int | None = count("keep the first so many numbers (they cannot be decoded then)", None)
    pca: int | None = count("keep so many principal components (they cannot be decoded then)", None)
    pca_file: str | None = option("take the PCA of another encoding (its compression.safetensors)", None)
    fit_rows: int = count("lines that the PCA and the ranges of int8 are fitted on", 16384)
    max_length: int | None = count("cut texts at so many tokens", None)
    trust_remote_code: bool = option("run code that comes with the model", False)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command; `argv` is the command line by default."""
    description = "Encode text files or a data set to sharded embeddings, one row a line."
    with one_line_errors("encode"):
        args, corpus_options = OptionParser("encode", description, EncodeOptions, CorpusOptions).parse(argv)
        state = process_state()
        if state.device.type == "cpu":
            use_all_cores(int(os.environ.get("LOCAL_WORLD_SIZE", state.num_processes)))
        pca = None if args.pca_file is None else load_pca(args.pca_file, args.pca)
        args.pca = args.pca if pca is None else len(pca.components)
        args.compute_dtype = fast_dtype(args.compute_dtype, state.device)
        settings = EncodeSettings(**{field.name: getattr(args, field.name) for field in fields(EncodeSettings)})
        corpus = corpus_options.open()
        model = load_encoder(args.model, args.trust_remote_code, state.device)
        manifest = encode_corpus(
            model,
            corpus,
            args.output,
            settings,
            pca=pca,
            model_name=args.model,
            batch_size=args.batch_size,
            state=state,
        )
        if state.is_main_process:
            shape = f"{manifest['rows']:,} rows of {manifest['dimension']}"
            print(f"{shape} in {len(manifest['shards'])} shards: {args.output}", file=sys.stderr)
        state.destroy_process_group()
