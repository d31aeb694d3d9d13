"""Index the sentences of a corpus by their embeddings, and print the nearest sentences of a query.

hf-meanmax search index runs/books/model "books/*.txt.xz" --output books.index --index_type ivf-int8
hf-meanmax search query books.index "the old man sat by the fire" --k 5 --skip_identical
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

import numpy as np

from hf_meanmax.data.corpus import Corpus, CorpusLines, open_corpus
from hf_meanmax.evaluation.markdown import markdown_table, markdown_text
from hf_meanmax.extras import require
from hf_meanmax.files import replacing_file
from hf_meanmax.hardware import use_all_cores
from hf_meanmax.inference.compression import Compression, require_pca
from hf_meanmax.inference.embedding_files import COMPRESSION, MANIFEST, count_rows, read_embeddings, read_manifest
from hf_meanmax.inference.encode import (
    COMPUTE_DTYPES,
    EncodeSettings,
    count_truncated,
    encode_corpus,
    fast_dtype,
    load_encoder,
    process_state,
    report_truncated,
)
from hf_meanmax.inference.index_plan import IndexSettings, format_size, plan_index
from hf_meanmax.inference.recall import RESCORE
from hf_meanmax.inference.search import Neighbor, SentenceIndex, build_index, check_index_output, check_memory

from .options import CorpusOptions, OptionParser, count, one_line_errors, option, positional, run_subverb


@dataclass
class IndexOptions:
    """The options of `hf-meanmax search index`, beside those of the corpus."""

    model: str = positional("a checkpoint folder, or any SentenceTransformer (a folder, or a name on the Hub)")
    output: str = option("folder for the index")
    index_type: Literal["exact", "int8", "hnsw", "hnsw-int8", "ivf-int8", "ivfpq"] = option(
        "kind of the index: all vectors as they are; a byte a number; a graph; a graph of int8 vectors; clusters of "
        "int8 vectors; clusters of product-quantised vectors",
        "exact",
    )
    metric: Literal["cosine", "l2"] = option("what near means", "cosine")
    truncate_dim: int | None = count("keep the first so many numbers", None)
    pca: int | None = count("keep so many principal components", None)
    factory: str | None = option("string of faiss's index factory in place of the type's own (IVF4096,SQ8)", None)
    nprobe: int | None = count("clusters that a query searches (default: a 32nd)", None)
    ef_search: int | None = count("breadth of searching an hnsw (default: 128)", None)
    seed: int = option("seed of the rows and clusters that are drawn", 0)
    recall_queries: int = option("rows that measure the recall; 0: do not", 1000)
    max_memory: str | None = option("refuse to start if more is needed (24GB)", None)
    embeddings: str | None = option(
        "folder of the shards of `encode`: those of this text and model that are there are used, all are kept "
        "(default: beside the index, removed when it is made)",
        None,
    )
    dtype: Literal["float32", "float16"] = option("numbers in new shards", "float32")
    batch_size: int = count("texts of one forward pass", 64)
    compute_dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "numbers in the model (auto: bfloat16 where the device multiplies it faster)", "auto"
    )
    max_length: int | None = count("cut texts at so many tokens", None)
    threads: int | None = count("threads of faiss (default: all)", None)
    trust_remote_code: bool = option("run code that comes with the model", False)


@dataclass
class QueryOptions:
    """The options of `hf-meanmax search query`."""

    index: str = positional("folder of the index")
    queries: list[str] = positional("sentences", [])
    file: str | None = option("text file of queries, one a line", None)
    embeddings: str | None = option("vectors of the queries: a folder of `encode` or a file of a matrix", None)
    model: str | None = option("the model of the index, where it has moved", None)
    k: int = count("sentences of a query", 5)
    skip_identical: bool = option("leave out the query itself, and a sentence that is listed already", False)
    rescore: int = option(
        "where the index is compressed, encode this times k sentences anew for exact scores; 0: do not", RESCORE,
        at_least=0,
    )  # fmt: skip
    nprobe: int | None = count("clusters to search, instead of the index's own number", None)
    ef_search: int | None = count("breadth of the search, instead of the index's own", None)
    json: bool = option("print JSON", False)
    markdown: bool = option("print a Markdown table", False)
    output: str | None = option("file to write instead of printing", None)
    batch_size: int = count("texts of one forward pass", 64)
    threads: int | None = count("threads of faiss (default: all)", None)
    trust_remote_code: bool = option("run code that comes with the model", False)


def search_index(argv: Sequence[str]) -> None:
    """Encodes a corpus and indexes its sentences."""
    with one_line_errors("search index"):
        parser = OptionParser("search index", "Encode a corpus and index its sentences.", IndexOptions, CorpusOptions)
        args, corpus = parser.parse(argv)
        max_memory = None
        if args.max_memory is not None:
            try:
                max_memory = byte_count(args.max_memory)
            except ValueError as error:
                parser.error(str(error))
        _use_threads(args.threads)
        _index(args, corpus.open(), max_memory)


def search_query(argv: Sequence[str]) -> None:
    """Prints the nearest sentences of an index."""
    parser = OptionParser("search query", "Print the nearest sentences of an index.", QueryOptions)
    with one_line_errors("search query"):
        (args,) = parser.parse(argv)
        if args.json and args.markdown:
            parser.error("argument --markdown: not allowed with argument --json")
        _use_threads(args.threads)
        _query(args)


def _use_threads(threads: int | None) -> None:
    if threads is not None:
        require("faiss").omp_set_num_threads(threads)


def _index(args: IndexOptions, corpus: Corpus, max_memory: int | None) -> None:
    require("faiss")
    if args.pca:
        require_pca()
    output = Path(args.output)
    check_index_output(output)
    settings = IndexSettings(**{field.name: getattr(args, field.name) for field in fields(IndexSettings)})
    state = process_state()
    if state.num_processes > 1:
        raise ValueError("An index is made by one process; encode with several first, and give --embeddings FOLDER.")
    if state.device.type == "cpu":
        use_all_cores(1)
    embeddings = Path(args.embeddings) if args.embeddings else output.with_name(f".{output.name}.embeddings")
    compute_dtype = fast_dtype(args.compute_dtype, state.device)
    encoding = EncodeSettings(dtype=args.dtype, max_length=args.max_length, compute_dtype=compute_dtype)
    pca = None
    if args.embeddings and (embeddings / MANIFEST).is_file():
        # Shards that are there decide how they are made; whether text and model are theirs is checked below.
        found = read_manifest(embeddings)
        encoding = EncodeSettings(**found["settings"])
        if args.max_length not in (None, encoding.max_length):
            raise ValueError(
                f"{embeddings} was encoded with a length limit of {encoding.max_length or 'no'} tokens, not "
                f"{args.max_length}; leave --max_length out, or name another folder."
            )
        pca = Compression.load(embeddings / COMPRESSION).pca if found["given_pca"] else None
    model = load_encoder(args.model, args.trust_remote_code, state.device)
    rows = sum(1 for _ in CorpusLines(corpus))
    dimension = encoding.check_dimension(model.get_embedding_dimension())
    check_memory(plan_index(rows, dimension, settings), max_memory)
    encode = functools.partial(
        encode_corpus,
        model,
        corpus,
        embeddings,
        encoding,
        pca=pca,
        # The index may be searched from elsewhere.
        model_name=str(Path(args.model).resolve()) if Path(args.model).is_dir() else args.model,
        batch_size=args.batch_size,
        state=state,
    )
    try:
        encode()
    except FileExistsError:
        if args.embeddings:
            raise
        # What a run that was killed has left serves the same text, model and settings alone.
        shutil.rmtree(embeddings)
        encode()
    manifest = build_index(
        [embeddings],
        output,
        settings,
        lines=CorpusLines(corpus),
        recall_queries=args.recall_queries,
        max_memory=max_memory,
    )
    if not args.embeddings:
        shutil.rmtree(embeddings)
    recall = "".join(f", {name} {value}" for name, value in (manifest["recall"] or {}).items() if name != "queries")
    size = format_size(manifest["files"]["vectors.faiss"])
    print(f"{rows:,} sentences, {manifest['factory']}, {size}{recall}: {output}", file=sys.stderr)
    state.destroy_process_group()


def _query(args: QueryOptions) -> None:
    queries = list(args.queries)
    if args.file:
        queries += [line for line in open_corpus(Path(args.file)) if line]
    if not queries and not args.embeddings:
        raise ValueError("No query: give sentences, --file or --embeddings.")
    index = SentenceIndex(args.index, args.nprobe, args.ef_search)
    model = None
    if args.embeddings:
        vectors = _query_vectors(index, Path(args.embeddings))
        if queries and len(queries) != len(vectors):
            raise ValueError(f"{len(queries)} queries, {len(vectors)} vectors in {args.embeddings}; give as many.")
    else:
        name = args.model or (index.manifest["model"] or {}).get("name")
        if not name:
            raise ValueError(f"{args.index} records no model; name it with --model, or search with --embeddings.")
        model = load_encoder(name, args.trust_remote_code, process_state().device)
        index.check_model(model)
        model.to(COMPUTE_DTYPES[index.encoding.compute_dtype])
        vectors = index.embed(model, queries, args.batch_size)
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
    queries = queries or [f"{args.embeddings}, row {row}" for row in range(len(vectors))]
    score = "cosine" if index.manifest["settings"]["metric"] == "cosine" else "distance"
    if args.json:
        table = [
            {"query": query, "nearest": [{"row": n.row, score: round(n.score, 6), "text": n.text} for n in neighbors]}
            for query, neighbors in zip(queries, found, strict=True)
        ]
        text = json.dumps(table, indent=2, ensure_ascii=False)
    else:
        text = format_table(queries, found, args.markdown, score)
    with replacing_file(args.output) if args.output else nullcontext(sys.stdout) as file:
        print(text, file=file)


def _query_vectors(index: SentenceIndex, source: Path) -> np.ndarray:
    _, dimension = count_rows([source])
    if source.is_dir():
        encoded = read_manifest(source)
        made_by = (index.manifest["model"] or {}).get("weights")
        if made_by is not None and encoded["model"]["weights"] != made_by:
            raise ValueError(f"{source} was encoded by another model than {index.folder}; they cannot be compared.")
        here, there = encoded["settings"], asdict(index.encoding)
        changed = [name for name in ("truncate_dim", "pca", "normalize", "max_length") if here[name] != there[name]]
        if not changed and encoded["compression"].get("pca") != index.manifest["compression"].get("encoding_pca"):
            raise ValueError(
                f"{source} was encoded with another PCA than {index.folder}; use --pca_file for one of them."
            )
        if changed:
            raise ValueError(
                f"{source} was encoded with other settings than the vectors of {index.folder}: "
                + ", ".join(f"{name} is {here[name]}, not {there[name]}" for name in changed)
            )
    if dimension != index.dimension:
        raise ValueError(f"{source} holds vectors of {dimension} numbers; {index.folder} takes {index.dimension}.")
    return np.concatenate(list(read_embeddings([source], dequantize=True)))


def format_table(
    queries: Sequence[str], found: Sequence[Sequence[Neighbor]], markdown: bool = False, score: str = "cosine"
) -> str:
    """The nearest sentences of each query with their scores, as text or as a Markdown table.

    Args:
        queries: the texts of the queries.
        found: the sentences of each, the nearest first.
        markdown: whether to make a Markdown table, with the rank of each sentence.
        score: what that table calls the score.
    """
    if markdown:
        rows = []
        for query, neighbors in zip(queries, found, strict=True):
            cells = [[str(rank), f"{n.score:.4f}", markdown_text(_text(n))] for rank, n in enumerate(neighbors, 1)]
            first, *others = cells or [["", "", ""]]
            rows += [[markdown_text(query), *first], *(["", *row] for row in others)]
        return markdown_table(["query", "rank", score, "sentence"], rows, "lrrl")
    lines: list[str] = []
    for query, neighbors in zip(queries, found, strict=True):
        lines += ["", query] if lines else [query]
        lines += [f"  {n.score:7.4f}  {_text(n)}" for n in neighbors]
    return "\n".join(lines)


def _text(neighbor: Neighbor) -> str:
    return f"row {neighbor.row}" if neighbor.text is None else neighbor.text


def byte_count(text: str) -> int:
    """The bytes of a size: `24GB`, `500 MB`, `24GiB`, or bytes.

    Raises:
        ValueError: the text is no size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", text.strip().lower())
    if match is None:
        raise ValueError(f"--max_memory is {text!r}; write for instance 24GB.")
    number, unit, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** " kmgt".index(unit or " "))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; `argv` is the command line by default."""
    return run_subverb("search", {"index": search_index, "query": search_query}, argv)
