"""SentEval and the intrinsic tasks for any sentence encoder, beside its controls.

    python scripts/evaluate.py runs/books/model --data data

Finished tasks are kept in the cache, so a killed evaluation goes on when the same command is given again.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import math
import os
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hf_meanmax.commands.old_options import make_parser, one_line_errors, parse_arguments, positive_int
from hf_meanmax.evaluation.controls import CONTROL_KINDS
from hf_meanmax.evaluation.embedding import Embedder, EmbeddingFile, write_sentences
from hf_meanmax.evaluation.report import RESULTS, Results, gain_text, kind_name, summarize, write_report
from hf_meanmax.evaluation.runner import evaluate_with_controls, shown_score
from hf_meanmax.evaluation.senteval import PAPER_TASKS, SENTEVAL_TASKS, available_senteval_tasks, load_senteval_task
from hf_meanmax.evaluation.tasks import Task
from hf_meanmax.files import replacing_file
from hf_meanmax.plots.figures import save_figure

DATA_VARIABLE = "HF_MEANMAX_DATA"
INTRINSIC_TASKS = ("paraphrases", "domain-alignment")
GROUPS = ("ten", "senteval", "intrinsic", "all")
PROGRAM = "evaluate"


def load_tasks(names: str, data: str | os.PathLike[str] | None = None, check_counts: bool = True) -> list[Task]:
    """The tasks of a list of names and groups.

    Args:
        names: names of tasks and groups with commas between them. `ten` are the tasks of Zhang, Wu, Li and
            Li 2018, `senteval` all of SentEval whose files exist, `intrinsic` the paraphrase clusters and the domain
            alignment of Cifka 2018, `all` the last two.
        data: the folder with `senteval/`, `paraphrases/` and `domain-alignment/`; by default HF_MEANMAX_DATA.
        check_counts: refuse SentEval sets that are not of the published sizes.

    Raises:
        FileNotFoundError: the folder, or a file of a task that was named, is missing.
        ValueError: there is no such task; the message has the nearest name.
    """
    known = (*GROUPS, *SENTEVAL_TASKS, *INTRINSIC_TASKS)
    parts = [part.strip() for part in names.split(",") if part.strip()]
    if not parts:
        raise ValueError(f"No task was named; choose among {', '.join(known)}.")
    parts = [_known_name(part, known) for part in parts]
    folder = data_folder(data)
    chosen: list[str] = []
    for part in parts:
        if part in ("senteval", "all"):
            chosen += available_senteval_tasks(folder / "senteval")
        if part in ("intrinsic", "all"):
            chosen += INTRINSIC_TASKS
        if part == "ten":
            chosen += PAPER_TASKS
        elif part not in GROUPS:
            chosen.append(part)
    return [_load_task(name, folder, check_counts) for name in dict.fromkeys(chosen)]


def data_folder(data: str | os.PathLike[str] | None = None) -> Path:
    """The folder of the tasks' files.

    Raises:
        FileNotFoundError: none was named, or there is no such folder.
    """
    value = os.environ.get(DATA_VARIABLE) if data is None else data
    if not value:
        raise FileNotFoundError(
            f"Where are the tasks' files? Give --data FOLDER, or set {DATA_VARIABLE}, to the folder that holds "
            "senteval/ in the official layout."
        )
    folder = Path(value)
    if not folder.is_dir():
        source = "" if data is not None else f" (from {DATA_VARIABLE})"
        raise FileNotFoundError(f"No such folder: {str(folder)!r}{source}; it should hold senteval/.")
    return folder


def evaluate_models(
    models: Sequence[tuple[str, Callable[[], Any]]],
    tasks: Sequence[Task],
    output: str | os.PathLike[str],
    *,
    controls: Sequence[str] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    cache_dir: str | os.PathLike[str] | None = None,
    device: Any = None,
    batch_size: int = 64,
    command: str | None = None,
    erasure: Sequence[Task] = (),
    latent_rows: int = 1,
    show_progress: bool = True,
) -> list[Results]:
    """Evaluates models one after the other, and writes results.json, report.md and figures.

    Args:
        models: names, and functions that load the encoders, so that one is in memory at a time.
        tasks: the tasks.
        output: the folder to write to. Of several models each has its own folder in it, beside the common report.
        controls: kinds of controls, by default all; none if empty.
        seeds: of the controls that draw at random.
        cache_dir, device, batch_size, show_progress: as for [`~hf_meanmax.evaluation.runner.evaluate`].
        command: what results.json says of how it was made.
        erasure: tasks of single sentences with a test set, on which rows and dimensions of the embeddings are erased.
        latent_rows: rows that an embedding consists of, for the erasure.

    Raises:
        ValueError: an encoder or a task fails; the models before it are written, the tasks before it are in the cache.
    """
    output = Path(output)
    for task in erasure:
        _erasable_sets(task)  # before hours of work, not after them
    done: list[Results] = []
    for name, load in models:
        encoder = load()
        embedder = Embedder(encoder, name, None, batch_size, show_progress)
        # A mere function is only known by what it gives.
        dimension = encoder.get_embedding_dimension() if hasattr(encoder, "get_embedding_dimension") else 0
        if dimension % latent_rows:
            raise ValueError(
                f"--latent-rows is {latent_rows}; the vectors of {name} have {dimension} numbers, not so many rows "
                "of one length."
            )
        evaluation = evaluate_with_controls(
            embedder,
            tasks,
            seeds,
            controls,
            cache_dir=cache_dir,
            device=getattr(encoder, "device", None) if device is None else device,
            batch_size=batch_size,
            show_progress=show_progress,
        )
        done.append(summarize(evaluation, command=command))
        folder = output if len(models) == 1 else output / name
        done[-1].save(folder / RESULTS)
        write_report(done[-1:], folder)
        if erasure:
            write_erasure(embedder, erasure, latent_rows, folder, device)
        del encoder, embedder
    if len(models) > 1:
        figures = [path.name for path in write_correlations(done, output) if path.suffix == ".png"]
        write_report(done, output, figures)
    return done


def write_erasure(
    embedder: Embedder, tasks: Sequence[Task], latent_rows: int, folder: str | os.PathLike[str], device: Any = None
) -> Path:
    """Writes erasure.json: what each latent row, and each dimension, is worth for some tasks (Cifka 2018, 5.4.3).

    Raises:
        ValueError: a task that is no classification of single sentences with a test set.
    """
    from hf_meanmax.evaluation.erasure import erasure_report

    reports = {}
    for task in tasks:
        train, test = _erasable_sets(task)
        report = erasure_report(
            embedder, train.texts[0], train.labels, test.texts[0], test.labels, latent_rows, device=device
        )
        reports[task.name] = report.to_dict()
    path = Path(folder) / "erasure.json"
    with replacing_file(path) as file:
        json.dump(reports, file, indent=1)
        file.write("\n")
    return path


def _erasable_sets(task: Task) -> tuple[Any, Any]:
    """The training and the test set of a classification of single sentences."""
    sets = getattr(task, "sets", {})
    if task.main_metric != "accuracy" or "test" not in sets or len(sets["train"].texts) != 1:
        raise ValueError(f"{task.name} cannot be used for erasure; choose among TREC, SST2 and SST5.")
    return sets["train"], sets["test"]


def write_correlations(results: Sequence[Results], folder: str | os.PathLike[str]) -> list[Path]:
    """Writes how metrics correlate over models (Cifka 2018, section 5.4): correlations.csv and correlations.png.

    Nothing is written for fewer than three models, whose correlations are 1 or -1 whatever the scores.

    Returns:
        The files; without matplotlib, the table alone.
    """
    from hf_meanmax.evaluation.correlations import MIN_MODELS, correlation_matrix

    if len(results) < MIN_MODELS:
        return []
    scores = {
        one.name: {
            f"{task} {metric}": value
            for task, found in one.scores.items()
            for metric, value in found["metrics"].items()
            if metric != "mse" and not metric.startswith("dev_") and not metric.endswith("_weighted")
        }
        for one in results
    }
    names, matrix, _ = correlation_matrix(scores)
    files = [Path(folder) / "correlations.csv"]
    files[0].parent.mkdir(parents=True, exist_ok=True)
    with replacing_file(files[0]) as file:
        file.write(",".join(["metric", *names]) + "\n")
        for name, row in zip(names, matrix.tolist(), strict=True):
            file.write(",".join([name, *("" if math.isnan(value) else f"{value:.4f}" for value in row)]) + "\n")
    with contextlib.suppress(ImportError):  # write_report says what to install
        from hf_meanmax.plots.correlations import plot_correlations

        save_figure(plot_correlations(names, matrix), files[0].with_suffix(".png"))
        files.append(files[0].with_suffix(".png"))
    return files


def summary(results: Results) -> str:
    """The main scores of a model and its gains over the strongest controls, a line each."""
    lines = [results.name]
    for task, scores in results.scores.items():
        metric = results.tasks[task]["main"]
        gain = results.gains.get(task)
        beside = "" if gain is None else f"  {gain_text(gain, metric)} over {kind_name(gain['control'])}"
        lines.append(f"  {task:10} {shown_score(scores['metrics'][metric], metric):>6}{beside}")
    return "\n".join(lines)


def model_name(model: str) -> str:
    """What tables call a model: the last part of its name, or the part before it of a folder `.../model` or
    `.../expanded`, which is told."""
    path = Path(model).resolve() if Path(model).is_dir() else Path(model)
    if path.name == "model" and path.parent.name:
        return path.parent.name
    return f"{path.parent.name}-expanded" if path.name == "expanded" and path.parent.name else path.name


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser(PROGRAM, "SentEval and the intrinsic tasks for any sentence encoder, beside its controls.")
    parser.add_argument("model", nargs="*", help="checkpoint folders, or any SentenceTransformers (folders or names)")
    parser.add_argument("--data", help=f"folder that holds senteval/ (default: ${DATA_VARIABLE})")
    parser.add_argument("--tasks", default="ten", help=f"names or groups, with commas: {', '.join(GROUPS)}")
    parser.add_argument(
        "--controls", default="all", help=f"all, none, or kinds with commas: {', '.join(CONTROL_KINDS)}"
    )
    parser.add_argument("--seeds", type=positive_int, default=3, help="how many seeds the random controls have")
    parser.add_argument("--output", help="folder for results.json, report.md and figures (default: results/NAME)")
    parser.add_argument("--cache", default="results/cache", help="folder that keeps finished tasks")
    parser.add_argument("--device", help="where to encode and to fit (default: a GPU if there is one)")
    parser.add_argument("--batch-size", type=positive_int, default=64, help="texts of one forward pass")
    parser.add_argument("--truncate-dim", type=positive_int, help="keep the first so many numbers of each vector")
    parser.add_argument("--erasure", metavar="TASKS", help="also erase latent rows and dimensions: TREC, SST2, SST5")
    parser.add_argument("--latent-rows", type=positive_int, default=1, help="rows of an embedding, for --erasure")
    parser.add_argument("--write-sentences", metavar="FILE", help="write the tasks' texts, one a line, and do no more")
    parser.add_argument("--embeddings", metavar="PATH", help="score saved embeddings of the texts of --sentences")
    parser.add_argument("--sentences", metavar="FILE", help="the file of --write-sentences that was embedded")
    parser.add_argument("--write-model-card", action="store_true", help="put the scores into the folder's README.md")
    parser.add_argument("--any-size", action="store_true", help="take SentEval sets of other than the published sizes")
    parser.add_argument("--trust-remote-code", action="store_true", help="run code that comes with the model")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; see `--help`."""
    args = parse_arguments(build_parser(), argv)
    with one_line_errors(PROGRAM), _told_how_to_go_on(args.cache):
        _check_arguments(args)
        controls = control_kinds(args.controls)
        tasks = load_tasks(args.tasks, args.data, not args.any_size)
        if args.write_sentences:
            count = write_sentences(args.write_sentences, (text for task in tasks for text in task.sentences()))
            print(f"{count:,} texts: {args.write_sentences}", file=sys.stderr)
            return
        if args.embeddings:
            models = [(Path(args.embeddings).stem, partial(EmbeddingFile, args.embeddings, args.sentences))]
            controls = ["majority"] if controls is None else controls
        else:
            # Shorter vectors are another encoder, whose results stand beside those of the whole ones.
            suffix = f"-{args.truncate_dim}" if args.truncate_dim else ""
            models = [(name + suffix, partial(_load_model, model, args)) for name, model in _named(args.model)]
        output = Path(args.output or (Path("results") / (models[0][0] if len(models) == 1 else "comparison")))
        words = sys.argv[1:] if argv is None else list(argv)
        done = evaluate_models(
            models,
            tasks,
            output,
            controls=controls,
            seeds=range(args.seeds),
            cache_dir=args.cache,
            device=args.device,
            batch_size=args.batch_size,
            command=shlex.join([f"{PROGRAM}.py", *words]),
            erasure=load_tasks(args.erasure, args.data, not args.any_size) if args.erasure else (),
            latent_rows=args.latent_rows,
        )
        for results in done:
            print(summary(results))
        print(f"report: {output / 'report.md'}", file=sys.stderr)
        if args.write_model_card:
            from hf_meanmax.checkpoint.hub import write_model_index

            for model, results in zip(args.model, done, strict=True):
                print(f"model card: {write_model_index(model, results.to_dict())}", file=sys.stderr)


def _check_arguments(args: argparse.Namespace) -> None:
    if args.write_sentences:
        return
    if bool(args.embeddings) != bool(args.sentences):
        raise ValueError("--embeddings and --sentences belong together: vectors, and the texts that they are of.")
    if bool(args.embeddings) == bool(args.model):
        raise ValueError("Name a model or several, or --embeddings with --sentences; not both, and not neither.")
    if args.embeddings and args.truncate_dim:
        raise ValueError("--truncate-dim is for models; --embeddings are taken as they are.")
    if args.write_model_card:
        if args.embeddings:
            raise ValueError("--write-model-card writes into the folder of a model, and --embeddings have none.")
        if args.truncate_dim:
            raise ValueError("--write-model-card takes no scores of truncated vectors; leave out --truncate-dim.")
        for model in args.model:
            if not Path(model).is_dir():
                raise ValueError(f"--write-model-card writes into the folder of a model, and {model!r} is none.")


def control_kinds(text: str) -> list[str] | None:
    """The kinds of controls of a list of names with commas; None for all of them.

    Raises:
        ValueError: there is no such kind; the message has the nearest name.
    """
    if text in ("all", "none"):
        return None if text == "all" else []
    parts = [part.strip().replace("-", "_") for part in text.split(",") if part.strip()]
    return [_known_name(part, CONTROL_KINDS, "control") for part in parts]


def _known_name(name: str, known: Sequence[str], what: str = "task or group") -> str:
    found = {other.lower(): other for other in known}
    if name.lower() in found:
        return found[name.lower()]
    nearest = difflib.get_close_matches(name.lower(), found, n=1, cutoff=0.3)
    hint = f"; did you mean {found[nearest[0]]}?" if nearest else "."
    raise ValueError(f"There is no {what} {name!r}{hint} Known: {', '.join(known)}.")


def _load_task(name: str, folder: Path, check_counts: bool) -> Task:
    if name == "paraphrases":
        from hf_meanmax.evaluation.paraphrases import load_paraphrase_task

        return load_paraphrase_task(folder)
    if name == "domain-alignment":
        from hf_meanmax.evaluation.domain_alignment import load_domain_alignment_task

        return load_domain_alignment_task(folder)
    return load_senteval_task(name, folder / "senteval", check_counts)


def _named(models: Sequence[str]) -> list[tuple[str, str]]:
    names = [model_name(model) for model in models]
    if len(set(names)) < len(names):
        names = [model.strip("/.").replace("/", "-") for model in models]
    return list(zip(names, models, strict=True))


def _load_model(model: str, args: argparse.Namespace) -> Any:
    from hf_meanmax.inference.encode import load_encoder

    encoder = load_encoder(model, args.trust_remote_code, args.device)
    if args.truncate_dim is not None:
        dimension = encoder.get_embedding_dimension()
        if args.truncate_dim > dimension:
            raise ValueError(f"--truncate-dim is {args.truncate_dim}; the vectors of {model} have {dimension} numbers.")
        encoder.truncate_dim = args.truncate_dim
    return encoder


@contextlib.contextmanager
def _told_how_to_go_on(cache: str) -> Iterator[None]:
    """Ends an interrupted (Ctrl-C) or terminated program with a line that says how to go on."""

    def interrupt(*unused: Any) -> None:
        raise KeyboardInterrupt

    handles = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, interrupt) if handles else None
    show_warning = warnings.showwarning
    warnings.showwarning = lambda message, *unused, **also: print(f"{PROGRAM}: {message}", file=sys.stderr)
    try:
        yield
    except KeyboardInterrupt:
        print(
            f"\n{PROGRAM}: interrupted. Finished tasks are kept in {cache}; give the same command again to go on.",
            file=sys.stderr,
        )
        raise SystemExit(130) from None
    finally:
        warnings.showwarning = show_warning
        if handles:
            signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    main()
