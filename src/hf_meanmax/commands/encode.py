"""Encode text files or a data set to sharded embeddings, one row per line.

hf-meanmax encode runs/docstrings/model corpus.txt --output embeddings
accelerate launch scripts/encode.py runs/docstrings/model "corpus/*.txt.xz" --output embeddings

Rerun the same command to resume an interrupted run.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from hf_meanmax.inference.compression import load_pca
from hf_meanmax.inference.encode import EncodeSettings, encode_corpus
from hf_meanmax.processes import end_processes, main_process_first, process_state

from .options import CorpusOptions, EncoderOptions, option, verb, written


@dataclass
class EncodeOptions:
    """The options of `hf-meanmax encode`, besides those of encoder, corpus and encoding."""

    output: str = written("folder for the shards", folder=True)
    pca_file: str | None = option("take the PCA of another encoding (its compression.safetensors)", None)


@verb("encode", compute_dtype="auto")
def main(encoder: EncoderOptions, corpus_options: CorpusOptions, args: EncodeOptions, settings: EncodeSettings) -> None:
    """Encode text files or a data set to sharded embeddings, one row per line."""
    with main_process_first(process_state()):
        pca = None if args.pca_file is None else load_pca(args.pca_file, settings.pca)
        corpus = corpus_options.open()
        model, state = encoder.load()
    if pca is not None:
        settings = replace(settings, pca=len(pca.components))
    manifest = encode_corpus(
        model,
        corpus,
        args.output,
        settings,
        pca=pca,
        model_name=encoder.model,
        batch_size=encoder.batch_size,
        state=state,
    )
    if state.is_main_process:
        shape = f"{manifest['rows']:,} rows of {manifest['dimension']}"
        if not manifest["rows"]:
            corpus_options.warn_of_no_line()
        count = len(manifest["shards"])
        print(f"{shape} in {count} {'shard' if count == 1 else 'shards'}: {args.output}", file=sys.stderr)
    end_processes()
