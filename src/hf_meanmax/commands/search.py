"""Index the sentences of a corpus by their embeddings, and print the sentences nearest to a query.

hf-meanmax search index runs/books/model "books/*.txt.xz" --output books.index --index_type ivf-int8
hf-meanmax search query books.index "the old man sat by the fire" --k 5 --skip_identical
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hf_meanmax.data.corpus import CorpusLines, readable, unchanged_lines
from hf_meanmax.data.opening import TextOptions
from hf_meanmax.evaluation.markdown import markdown_table, markdown_text
from hf_meanmax.extras import require
from hf_meanmax.files import naming_failed_writes, replacing_file, sole_writer
from hf_meanmax.hardware import COMPUTE_DTYPES
from hf_meanmax.inference.compression import PCA, Compression
from hf_meanmax.inference.embedding_files import COMPRESSION, MANIFEST, count_rows, read_embeddings, read_manifest
from hf_meanmax.inference.encode import EncodeSettings, encode_corpus
from hf_meanmax.inference.encoder import (
    count_truncated,
    embedding_dimension,
    limited_length,
    load_encoder,
    report_truncated,
    report_unknown,
)
from hf_meanmax.inference.index import (
    MAX_C_INT,
    RESCORE,
    IndexSettings,
    build_index,
    check_index_output,
    make_index,
)
from hf_meanmax.inference.search import Neighbor, SentenceIndex
from hf_meanmax.metrics import counted
from hf_meanmax.processes import process_state

from .options import (
    CorpusOptions,
    EncoderOptions,
    count,
    option,
    positional,
    run_subverb,
    verb,
    written,
)

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@dataclass
class IndexOptions:
    """The options of `hf-meanmax search index`, besides those of corpus, encoder, encoding and index."""

    output: str = written("folder for the index", folder=True)
    overwrite: bool = option("replace an index of another text", False)
    recall_queries: int = option("rows that measure the recall; 0: do not", 1000, at_least=0)
    embeddings: str | None = written(
        "folder of the shards of `encode`: those of this text and model that are there are used, all are kept "
        "(default: beside the index, removed when it is made)", None, folder=True,
    )  # fmt: skip


@dataclass
class QueryOptions(TextOptions):
    """The options of `hf-meanmax search query`."""

    index: str = positional("folder of the index")
    queries: list[str] = positional("sentences", [], is_text=True)
    file: str | None = option("text file or table of queries, one a line", None)
    embeddings: str | None = option("vectors of the queries: a folder of `encode` or a file of a matrix", None)
    model: str | None = option("the model of the index, where it has moved", None)
    k: int = count("neighbours listed", 5)
    skip_identical: bool = option("leave out the query itself, and a sentence that is listed already", False)
    rescore: int = option(
        "where the index is compressed, encode this times k sentences anew for exact scores, if the model is loaded; "
        "0: do not", RESCORE, at_least=0,
    )  # fmt: skip
    nprobe: int | None = count("clusters to search, instead of the index's own number", None, MAX_C_INT)
    ef_search: int | None = count("breadth of the search, instead of the index's own", None, MAX_C_INT)
    json: bool = option("print JSON", False)
    markdown: bool = option("print a Markdown table", False)
    output: str | None = written("file to write instead of printing", None)
    batch_size: int = count("texts of one forward pass", 64)
    trust_remote_code: bool = option("run code that comes with the model", False)


@verb("search index", compute_dtype="auto")
def search_index(
    encoder: EncoderOptions,
    corpus_options: CorpusOptions,
    args: IndexOptions,
    settings: IndexSettings,
    encoding: EncodeSettings,
) -> None:
    """Encode a corpus and index its sentences."""
    require("faiss")
    corpus = corpus_options.open()
    output = Path(args.output)
    if not output.name.strip("."):
        raise ValueError(f"--output {args.output!r} has no name of its own, and is replaced as a whole; name a folder.")
    check_index_output(output, None if args.overwrite else corpus)
    embeddings = Path(args.embeddings) if args.embeddings else output.with_name(f".{output.name}.embeddings")
    if output.absolute() in (embeddings.absolute(), *embeddings.absolute().parents):
        raise ValueError(f"--embeddings {embeddings} lies in --output {output}, which is replaced; name another.")
    pca = None
    if args.embeddings and (embeddings / MANIFEST).is_file():
        encoding, pca = _found_encoding(embeddings, encoding)
    model, state = encoder.load()
    if state.num_processes > 1:
        raise ValueError("An index is made by one process; encode with several first, and give --embeddings FOLDER.")
    # Unsuitable settings fail here, before the corpus is encoded.
    dimension = encoding.check_dimension(embedding_dimension(model))
    make_index(sum(1 for _ in CorpusLines(corpus)), dimension, settings)
    with sole_writer(output, beside=True), naming_failed_writes(output, None if args.embeddings else embeddings):
        encode = partial(
            encode_corpus, model, corpus, embeddings, encoding, pca=pca, model_name=encoder.model,
            batch_size=encoder.batch_size,
        )  # fmt: skip
        try:
            encoded = encode()
        except FileExistsError:
            if args.embeddings or not (embeddings / MANIFEST).is_file():
                raise
            # Shards of a killed run can be resumed only with the same text, model and settings.
            shutil.rmtree(embeddings)
            encoded = encode()
        lines = unchanged_lines(corpus, encoded["input"])
        manifest = build_index([embeddings], output, settings, lines=lines, recall_queries=args.recall_queries)
        if not args.embeddings:
            shutil.rmtree(embeddings)
    recall = "".join(f", {name} {value}" for name, value in (manifest.recall or {}).items() if name != "queries")
    kind = "exact" if manifest.factory == "Flat" else manifest.factory
    print(f"{counted(manifest.rows, 'sentence')}, {kind}{recall}: {output}", file=sys.stderr)


def _found_encoding(embeddings: Path, asked: EncodeSettings) -> tuple[EncodeSettings, PCA | None]:
    """The settings that a folder of shards was encoded with, and the PCA given for it, if any."""
    found, usual = read_manifest(embeddings), asdict(EncodeSettings())
    there = found["settings"]
    for name, given in asdict(asked).items():
        if given not in (usual[name], there[name], "auto"):
            raise ValueError(
                f"{embeddings} was encoded with {name} {there[name]}, not {given}; leave --{name} out, or name another "
                "folder."
            )
    pca = Compression.load(embeddings / COMPRESSION).pca if found["given_pca"] else None
    settings = EncodeSettings(**there)
    changed = [f"{name} {value}" for name, value in asdict(settings).items() if value != usual[name]]
    if changed:
        print(f"{embeddings} is taken as it was encoded: {', '.join(changed)}.", file=sys.stderr)
    return settings, pca


@verb("search query")
def search_query(args: QueryOptions) -> None:
    """Print the sentences of an index that are nearest to queries."""
    if args.json and args.markdown:
        raise ValueError("--markdown and --json exclude each other.")
    given = [
        *(readable(query).strip() for query in args.queries),
        *(args.open_beside(args.file) if args.file else ()),
    ]
    queries = list(filter(None, given))
    if args.model and args.embeddings:
        raise ValueError("--model and --embeddings exclude each other: vectors of queries need no model.")
    if not queries and not args.embeddings:
        raise ValueError("No query: give sentences, --file or --embeddings.")
    if blank := len(given) - len(queries):
        print(f"{blank:,} of {len(given):,} queries {'is' if blank == 1 else 'are'} blank, left out.", file=sys.stderr)
    index = SentenceIndex(args.index, args.nprobe, args.ef_search)
    queries, found = _search(args, index, queries)
    score = "cosine" if index.settings.metric == "cosine" else "distance"
    if args.json:
        table = [
            {"query": query, "nearest": [{"row": n.row, score: round(n.score, 6), "text": n.text} for n in near]}
            for query, near in zip(queries, found, strict=True)
        ]
        text = json.dumps(table, indent=2, ensure_ascii=False)
    else:
        text = format_table(queries, found, args.markdown, score)
    with replacing_file(args.output) if args.output else nullcontext(sys.stdout) as file:
        print(text, file=file)
    if args.output:
        print(f"{len(queries):,} queries: {args.output}", file=sys.stderr)


def _load_model(args: QueryOptions, index: SentenceIndex) -> SentenceTransformer:
    """The model for the queries: `--model`, or else the model that made the index."""
    if index.encoded is None:
        raise ValueError(f"{args.index} was made of vectors alone; give --embeddings, the vectors of the queries.")
    name = args.model or index.encoded["model"]["name"]
    try:
        model = load_encoder(name, args.trust_remote_code, process_state().device)
    except (OSError, ValueError) as error:
        if args.model:
            raise
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"The model of {args.index} was at {name!r} and could not be loaded from there; name it with --model. "
            f"({reason})"
        ) from error
    index.check_model(model)
    return model


def _search(args: QueryOptions, index: SentenceIndex, queries: list[str]) -> tuple[list[str], list[list[Neighbor]]]:
    """The queries (file and row number where they have no text), and the nearest sentences of each."""
    model = None
    if args.embeddings:
        vectors = _query_vectors(index, Path(args.embeddings))
        if queries and len(queries) != len(vectors):
            raise ValueError(
                f"{len(queries)} queries (lines that are not blank), {len(vectors)} vectors in {args.embeddings}; give "
                "as many."
            )
    else:
        model = _load_model(args, index)
        model.to(COMPUTE_DTYPES[index.encoding.compute_dtype])
        vectors = index.embed(model, queries, args.batch_size)
        report_unknown(getattr(model, "tokenizer", None), queries, "the queries")
        with limited_length(model, index.encoding.max_length):
            report_truncated(count_truncated(model, queries), model)
    found = index.nearest(
        vectors,
        args.k,
        queries=queries or None,
        skip_identical=args.skip_identical,
        model=None if index.texts is None else model,
        rescore=args.rescore,
        batch_size=args.batch_size,
    )
    return queries or [f"{args.embeddings}, row {row}" for row in range(len(vectors))], found


def _query_vectors(index: SentenceIndex, source: Path) -> np.ndarray:
    _, dimension = count_rows([source])
    if source.is_dir() and index.encoded:
        encoded = read_manifest(source)
        if encoded["model"]["weights"] != index.encoded["model"]["weights"]:
            raise ValueError(f"{source} was encoded by another model than {index.folder}; they cannot be compared.")
        here, there = (
            {**manifest["settings"], "PCA": manifest["compression"].get("pca")} for manifest in (encoded, index.encoded)
        )
        for name in ("truncate_dim", "pca", "normalize", "max_length", "PCA"):
            if here[name] != there[name]:
                raise ValueError(
                    f"{source} was encoded with other settings than the vectors of {index.folder}: {name} is "
                    f"{here[name]}, not {there[name]}."
                )
    if dimension != index.dimension:
        raise ValueError(f"{source} holds vectors of {dimension} numbers; {index.folder} takes {index.dimension}.")
    return np.concatenate(list(read_embeddings([source], dequantize=True)))


def format_table(
    queries: Sequence[str], found: Sequence[Sequence[Neighbor]], markdown: bool = False, score: str = "cosine"
) -> str:
    """The nearest sentences of each query with their scores and rows, as text or as a Markdown table.

    Args:
        queries: the texts of the queries.
        found: the sentences found for each query, nearest first.
        markdown: whether to make a Markdown table, with the rank of each sentence.
        score: column title of the score in the Markdown table.
    """
    if markdown:
        rows = []
        for query, neighbors in zip(queries, found, strict=True):
            cells = [
                [str(rank), f"{n.score:.4f}", str(n.row), markdown_text(_text(n))]
                for rank, n in enumerate(neighbors, 1)
            ]
            first, *others = cells or [["", "", "", ""]]
            rows += [[markdown_text(query), *first], *(["", *row] for row in others)]
        return markdown_table(["query", "rank", score, "row", "sentence"], rows, "lrrrl")
    blocks = [
        "\n".join(
            [query, *([f"  {n.score:7.4f}  row {n.row}  {_text(n)}".rstrip() for n in neighbors] or ["  (none)"])]
        )
        for query, neighbors in zip(queries, found, strict=True)
    ]
    return "\n\n".join(blocks)


def _text(neighbor: Neighbor) -> str:
    """The sentence on one line; empty if the index stores no texts."""
    return " ".join((neighbor.text or "").splitlines())


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; `argv` is the command line by default."""
    return run_subverb("search", {"index": search_index, "query": search_query}, argv)
