"""Score any sentence encoder on SentEval and the intrinsic tasks, beside its controls.

hf-meanmax evaluate runs/books/model --data data
hf-meanmax evaluate sentence-transformers/all-MiniLM-L6-v2 --tasks senteval --output results/minilm

Finished tasks are kept in the cache: rerun the same command to resume an interrupted evaluation.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hf_meanmax.checkpoint.card import write_model_index
from hf_meanmax.checkpoint.folder import is_own_checkpoint
from hf_meanmax.evaluation.controls import CONTROL_KINDS
from hf_meanmax.evaluation.embedding import EmbeddingFile, write_sentences
from hf_meanmax.evaluation.suite import (
    DATA_VARIABLE,
    GROUPS,
    SuiteSettings,
    control_kinds,
    evaluate_models,
    load_tasks,
    model_name,
    summary,
)
from hf_meanmax.files import short_names, sole_writer
from hf_meanmax.hardware import usable_device
from hf_meanmax.inference.encoder import embedding_dimension, load_encoder
from hf_meanmax.metrics import counted
from hf_meanmax.pretrained import ENCODER_SOURCES

from .options import OptionParser, command_line, count, option, positional, written

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@dataclass
class EvaluateOptions:
    """The options of `hf-meanmax evaluate`."""

    model: list[str] = positional(f"checkpoints, or any SentenceTransformers (each {ENCODER_SOURCES})", [])
    data: str | None = option(f"folder that holds senteval/ (default: ${DATA_VARIABLE})", None)
    tasks: str = option(f"names or groups, with commas: {', '.join(GROUPS)}", "ten")
    controls: str = option(f"all, none, or kinds with commas: {', '.join(CONTROL_KINDS)}", "all")
    seeds: int = count("number of seeds of the random controls", 3)
    output: str | None = written(
        "folder for results.json, report.md and figures (default: results/NAME)", None, folder=True
    )
    cache: str = option("folder that keeps finished tasks", "results/cache")
    device: str | None = option("where to encode and to fit (default: a GPU if there is one)", None)
    batch_size: int = count("texts of one forward pass", 64)
    unit_length: bool = option("scale all vectors to unit length, the controls' too", False)
    truncate_dim: int | None = count("keep the first so many numbers of each vector", None)
    erasure: str | None = option("tasks on which latent rows and dimensions are erased too: TREC, SST2, SST5", None)
    latent_rows: int = count("rows of an embedding, for --erasure", 1)
    write_sentences: str | None = written("only write the tasks' texts to this file, one per line, and exit", None)
    embeddings: str | None = option("score saved embeddings of the texts of --sentences", None)
    sentences: str | None = option("the file of --write_sentences that was embedded", None)
    write_model_card: bool = option("put the scores into the folder's README.md", False)
    any_size: bool = option("accept SentEval sets whose sizes differ from the published ones", False)
    trust_remote_code: bool = option("run code that comes with the model", False)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command; `argv` is the command line by default."""
    words = sys.argv[1:] if argv is None else list(argv)
    description = "Score any sentence encoder on SentEval and the intrinsic tasks, beside its controls."
    with command_line("evaluate"):
        (args,) = OptionParser("evaluate", description, EvaluateOptions).parse(words)
        with _resumable(args.cache):
            _evaluate(args, shlex.join(["hf-meanmax", "evaluate", *words]))


def _evaluate(args: EvaluateOptions, command: str) -> None:
    _check_arguments(args)
    if args.device is not None:
        usable_device(args.device)
    controls = control_kinds(args.controls)
    tasks = load_tasks(args.tasks, args.data, not args.any_size)
    erasure = load_tasks(args.erasure, args.data, not args.any_size) if args.erasure else []
    if args.write_sentences:
        every = (text for task in (*tasks, *erasure) for text in task.sentences())
        count = write_sentences(args.write_sentences, every)
        print(f"{counted(count, 'text')}: {args.write_sentences}", file=sys.stderr)
        return
    # Truncated or scaled vectors count as another encoder, whose results do not replace the model's own.
    suffix = (f"-{args.truncate_dim}" if args.truncate_dim else "") + ("-unit" if args.unit_length else "")
    models: list[tuple[str, Callable[[], EmbeddingFile | SentenceTransformer]]]
    if args.embeddings:
        path = Path(args.embeddings)
        name = (path.name if path.is_dir() else path.stem) + suffix
        models = [(name, partial(EmbeddingFile, args.embeddings, args.sentences or ""))]
        controls = ["majority"] if controls is None else controls
    else:
        models = [(name + suffix, partial(_load_model, model, args)) for name, model in _named(args.model)]
    output = Path(args.output or (Path("results") / (models[0][0] if len(models) == 1 else "comparison")))
    settings = SuiteSettings(
        controls=controls,
        seeds=range(args.seeds),
        cache_dir=args.cache,
        device=args.device,
        batch_size=args.batch_size,
        command=command,
        erasure=erasure,
        latent_rows=args.latent_rows,
        unit_length=args.unit_length,
    )
    with sole_writer(output):
        done = evaluate_models(models, tasks, output, settings)
    for results in done:
        print(summary(results))
    print(f"report: {output / 'report.md'}", file=sys.stderr)
    if args.write_model_card:
        for model, results in zip(args.model, done, strict=True):
            print(f"model card: {write_model_index(model, results.to_dict())}", file=sys.stderr)


def _check_arguments(args: EvaluateOptions) -> None:
    if args.write_sentences:
        return
    if bool(args.embeddings) != bool(args.sentences):
        raise ValueError("--embeddings and --sentences belong together: vectors, and the texts that they are of.")
    if bool(args.embeddings) == bool(args.model):
        raise ValueError("Name a model or several, or --embeddings with --sentences; not both, and not neither.")
    if args.latent_rows > 1 and not args.erasure:
        raise ValueError("--latent_rows is for --erasure; give it too, or leave --latent_rows out.")
    if args.latent_rows > 1 and args.truncate_dim:
        raise ValueError("--latent_rows are rows of whole vectors; leave --latent_rows or --truncate_dim out.")
    if args.embeddings and args.truncate_dim:
        raise ValueError("--truncate_dim is for models; --embeddings are taken as they are.")
    if args.write_model_card:
        if args.embeddings:
            raise ValueError("--write_model_card writes into the folder of a model, and --embeddings have none.")
        for name, vectors in (("truncate_dim", "truncated"), ("unit_length", "scaled")):
            if getattr(args, name):
                raise ValueError(f"--write_model_card takes no scores of {vectors} vectors; leave out --{name}.")
        if args.any_size:
            raise ValueError("--write_model_card takes scores of the published sets alone; leave out --any_size.")
        for model in args.model:
            if not Path(model).is_dir():
                raise ValueError(f"--write_model_card writes into the folder of a model, and {model!r} is none.")
            if not (Path(model) / "README.md").is_file() and not is_own_checkpoint(Path(model)):
                raise ValueError(f"--write_model_card writes into README.md, and {model!r} has none.")


def _named(models: Sequence[str]) -> list[tuple[str, str]]:
    names = [model_name(model) for model in models]
    if len(set(names)) < len(names):
        paths = [os.path.abspath(model) for model in models]
        if len(set(paths)) < len(paths):
            raise ValueError(f"A model is named twice: {', '.join(models)}. Name each once.")
        places = [path if os.path.exists(path) else model for path, model in zip(paths, models, strict=True)]
        names = [name.replace(os.sep, "-").strip("-") for name in short_names(places)]
    return list(zip(names, models, strict=True))


def _load_model(model: str, args: EvaluateOptions) -> SentenceTransformer:
    encoder = load_encoder(model, args.trust_remote_code, args.device)
    if args.truncate_dim is not None:
        dimension = embedding_dimension(encoder)
        if args.truncate_dim > dimension:
            raise ValueError(f"--truncate_dim is {args.truncate_dim}, the vectors of {model} have {dimension} numbers.")
        encoder.truncate_dim = args.truncate_dim
    return encoder


@contextlib.contextmanager
def _resumable(cache: str) -> Iterator[None]:
    """Ends an interrupted (Ctrl-C) or terminated program with one line on how to resume."""

    def interrupt(number: int, *unused: object) -> None:
        raise KeyboardInterrupt(number)

    handles = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, interrupt) if handles else None
    try:
        yield
    except KeyboardInterrupt as stop:
        print(
            f"\nhf-meanmax evaluate: interrupted. Finished tasks are kept in {cache}; rerun the command to resume.",
            file=sys.stderr,
        )
        raise SystemExit(128 + (stop.args[0] if stop.args else signal.SIGINT)) from None
    finally:
        if handles:
            signal.signal(signal.SIGTERM, before)
