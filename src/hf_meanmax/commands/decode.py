"""Decode embeddings back to text, one line per row.

hf-meanmax decode runs/docstrings/model embeddings --output decoded.txt --num_beams 4
hf-meanmax decode runs/embedding-decoder/model lancedb:folder/table --key_column id --output decoded.txt
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace

from hf_meanmax.checkpoint.folder import load_decoder
from hf_meanmax.files import Json, json_digest, replacing_file
from hf_meanmax.hardware import COMPUTE_DTYPES, compute_dtype
from hf_meanmax.inference.continued_file import ContinuedFile, continued_file, is_file_name
from hf_meanmax.inference.correction import embedder_of
from hf_meanmax.inference.decode import DecodedBatch, DecodingSettings, decode_sources, key_of_row
from hf_meanmax.inference.fingerprints import model_fingerprints, tokenizer_text, weights_fingerprint
from hf_meanmax.inference.sources import SourceOptions, VectorSource, open_sources
from hf_meanmax.metrics import counted
from hf_meanmax.pretrained import DECODER_SOURCES
from hf_meanmax.progress import progress_bar

from .options import option, positional, verb, written


@dataclass
class DecodeOptions(SourceOptions):
    """The options of `hf-meanmax decode`."""

    model: str = positional(f"the checkpoint that made the embeddings ({DECODER_SOURCES})")
    input: list[str] = positional(
        "folders of `encode`, .npy, .safetensors and .parquet files, faiss indexes (.faiss), lancedb:folder/table, or "
        "postgresql://user@host/database"
    )
    output: str | None = written("text file; by default the text goes to standard output", None)
    write_keys: bool = option("begin each line with the row's key (or number) and a tab", False)
    do_sample: bool = option("draw the candidates of --rerank instead of searching beams", False)
    seed: int = option("seed of --do_sample", 0)
    embedder: str | None = option("where the embedder is, for --rerank; by default where the model's run had it", None)
    trust_remote_code: bool = option("run code that comes with the embedder", False)


@verb("decode", compute_dtype="auto")
def main(args: DecodeOptions, decoding: DecodingSettings) -> None:
    """Decode embeddings back to text, one line per row."""
    if args.write_keys and len(args.input) > 1:
        raise ValueError(f"`write_keys` is for one input, not {len(args.input)}, which may have the same keys.")
    if decoding.rerank is None and (args.do_sample or args.embedder):
        raise ValueError("`do_sample` and `embedder` go with `rerank`. Give it, for instance 8.")
    sources = open_sources(args.input, args)
    model, _, tokenizer = load_decoder(args.model)
    if not model.config.is_autoregressive:
        raise ValueError(f"{args.model} predicts words and generates no text. `hf-meanmax demo` shows them.")
    decoding = replace(decoding, compute_dtype=compute_dtype(decoding.compute_dtype, model.device))
    embedder = None
    if decoding.rerank is not None:
        embedder = embedder_of(model, args.model, args.embedder, model.device, args.trust_remote_code)
    corrector = decoding.corrector(model, tokenizer, embedder, args.do_sample, args.seed)

    def decode(start: int = 0) -> Iterator[DecodedBatch]:
        dtype = COMPUTE_DTYPES[decoding.compute_dtype]
        return decode_sources(
            model, tokenizer, sources, decoding.batch_size, start, corrector=corrector, dtype=dtype,
            **decoding.generation(),
        )  # fmt: skip

    if args.output is None or not is_file_name(args.output):
        with replacing_file(args.output) if args.output else nullcontext(sys.stdout) as file:
            for batch in decode():
                print(*_lines(batch, args.write_keys), sep="\n", file=file)
        return
    models = {"weights": weights_fingerprint(model), "tokenizer": json_digest(tokenizer_text(tokenizer))}
    if embedder is not None:
        models["embedder"] = json_digest(model_fingerprints(embedder))
    with continued_file(args.output, {**models, **_made_from(args, decoding, sources)}) as output:
        start, total = _first_row(output, sources), sum(source.rows for source in sources)
        with progress_bar(total=total, initial=start, unit="row", desc="decode") as bar:
            for batch in decode(start):
                output.append(_lines(batch, args.write_keys), batch.keys[-1])
                bar.update(len(batch.texts))
    print(f"{counted(total, 'text')}: {args.output}", file=sys.stderr)


def _lines(batch: DecodedBatch, write_keys: bool) -> list[str]:
    if not write_keys:
        return batch.texts
    keys = [" ".join(str(key).split()) for key in batch.keys]
    return [f"{key}\t{text}" for key, text in zip(keys, batch.texts, strict=True)]


def _made_from(args: DecodeOptions, decoding: DecodingSettings, sources: Sequence[VectorSource]) -> Json:
    """The sources and options that determine the output, besides the models."""
    free = {"model", "embedder", "input", "output", "trust_remote_code"}
    free |= set() if args.do_sample else {"batch_size", "seed"}
    options = {name: value for name, value in {**asdict(args), **asdict(decoding)}.items() if name not in free}
    return {"sources": [[_place(source), source.version] for source in sources], **options}


def _place(source: VectorSource) -> str:
    """The name of a source; for a file or folder its real path, which does not depend on the working directory."""
    return os.path.realpath(source.name) if os.path.exists(source.name) else source.name


def _first_row(output: ContinuedFile, sources: Sequence[VectorSource]) -> int:
    """The row to resume from: after the finished ones, or 0 if the rows have changed."""
    if output.rows and key_of_row(sources, output.rows - 1) != output.last_key:
        print("The rows have changed since this was begun; it starts over.", file=sys.stderr)
        output.start_over()
    return output.rows
