"""Evaluates encoders on tasks. Each result is cached, so a killed evaluation resumes where it stopped."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hf_meanmax._version import __version__
from hf_meanmax.evaluation.controls import make_controls
from hf_meanmax.evaluation.embedding import Embedder, is_sentence_transformer
from hf_meanmax.evaluation.tasks import Task, TaskResult
from hf_meanmax.evaluation.word_sources import unknown_word_rate_of
from hf_meanmax.files import Json, bytes_digest, read_json, write_json
from hf_meanmax.metrics import format_score
from hf_meanmax.progress import progress_bar

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer

MODEL = "model"  # the kind of an encoder that is no control
ENTRY_VERSION = 2


@dataclass
class TaskRun:
    """The result of one encoder on one task, with times and versions.

    Args:
        result: the scores.
        fingerprint: fingerprint of the task's data and protocol.
        dimension: dimension of the embeddings.
        seconds_embedding: seconds in the encoder, without texts cached from earlier tasks.
        seconds_scoring: seconds after embedding.
        texts_embedded: number of texts encoded for it.
        unknown_word_rate: share of the task's words that the encoder's vocabulary lacks; None if unknown.
        versions: versions of the packages that computed it.
        was_cached: whether it was read from the cache.
    """

    result: TaskResult
    fingerprint: str
    dimension: int
    seconds_embedding: float
    seconds_scoring: float
    texts_embedded: int
    unknown_word_rate: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    was_cached: bool = False


@dataclass
class EncoderRun:
    """The results of one encoder on several tasks; a control has its `kind` and, if it is random, its `seed`."""

    name: str
    kind: str = MODEL
    seed: int | None = None
    key: str | None = None
    tasks: dict[str, TaskRun] = field(default_factory=dict)

    @property
    def dimension(self) -> int | None:
        return next((run.dimension for run in self.tasks.values()), None)

    @property
    def results(self) -> dict[str, TaskResult]:
        return {name: run.result for name, run in self.tasks.items()}

    @property
    def sentences_per_second(self) -> float | None:
        """Texts encoded per second over all tasks, with the recorded times of cached tasks."""
        seconds = sum(run.seconds_embedding for run in self.tasks.values())
        return sum(run.texts_embedded for run in self.tasks.values()) / seconds if seconds > 0 else None


@dataclass
class Evaluation:
    """Scores of encoders on the same tasks, both in the given order."""

    encoders: list[EncoderRun] = field(default_factory=list)

    @property
    def models(self) -> list[EncoderRun]:
        """The encoders that are not controls."""
        return [run for run in self.encoders if run.kind == MODEL]

    @property
    def controls(self) -> dict[str, list[EncoderRun]]:
        """The controls by kind, one per seed."""
        kinds: dict[str, list[EncoderRun]] = {}
        for run in self.encoders:
            if run.kind != MODEL:
                kinds.setdefault(run.kind, []).append(run)
        return kinds

    def control_results(self, task: str) -> dict[str, list[TaskResult]]:
        """The results of the controls on one task, by kind."""
        found = {kind: [run.results[task] for run in runs if task in run.tasks] for kind, runs in self.controls.items()}
        return {kind: results for kind, results in found.items() if results}


class TaskError(ValueError):
    """A task that could not be scored; `evaluation` holds what was finished before it."""

    def __init__(self, message: str, evaluation: Evaluation):
        super().__init__(message)
        self.evaluation = evaluation


def evaluate(
    encoders: Sequence[object],
    tasks: Sequence[Task],
    cache_dir: str | os.PathLike[str] | None = None,
    device: torch.device | str | None = None,
    show_progress: bool = True,
    *,
    batch_size: int = 64,
) -> Evaluation:
    """Scores encoders on tasks.

    Args:
        encoders: [`Embedder`][]s, or encoders to wrap in one. Attributes `kind` and `seed` of an encoder are recorded.
        tasks: the tasks, with distinct names.
        cache_dir: a folder that caches every finished task by the encoder's key and the task's fingerprint, for later
            calls too. Nothing is cached without a folder, or for an encoder without a key.
        device: torch device for the work after embedding (default: the CPU).
        show_progress: show progress bars.
        batch_size: batch size of encoders that are not an `Embedder` yet.

    Raises:
        TaskError: a task could not be scored (for instance, the encoder returned NaN). Tasks finished before are in the
            cache, and in the error's `evaluation`.
        TypeError: an encoder or a task was given in place of a list.
        ValueError: two tasks or two encoders have the same name.
    """
    _check_lists(encoders, tasks)
    for encoder in encoders:
        if isinstance(encoder, Embedder):
            encoder.refresh()
    embedders = [
        encoder if isinstance(encoder, Embedder) else Embedder(encoder, None, None, batch_size, show_progress)
        for encoder in encoders
    ]
    _check_distinct("tasks", [task.name for task in tasks])
    _check_distinct("encoders", [embedder.name for embedder in embedders])
    cache = None if cache_dir is None else ResultCache(cache_dir)
    for name in [embedder.name for embedder in embedders if cache is not None and embedder.key is None]:
        warnings.warn(f"{name} has no key that identifies it, so its results are not kept; give it one.", stacklevel=2)
    fingerprints = {task.name: task.fingerprint() for task in tasks}
    evaluation = Evaluation()
    with progress_bar(
        total=len(embedders) * len(tasks), desc="evaluate", unit=" tasks", disable=not show_progress, smoothing=0
    ) as bar:
        for embedder in embedders:
            kind, seed = getattr(embedder.encoder, "kind", MODEL), getattr(embedder.encoder, "seed", None)
            run = EncoderRun(embedder.name, kind, seed, embedder.key)
            evaluation.encoders.append(run)
            for number, task in enumerate(tasks):
                bar.set_description_str(f"{embedder.name}: {task.name}")
                found = None if cache is None else cache.read(embedder.key, task.name, fingerprints[task.name])
                if found is None:
                    embedder.keep = _worth_keeping(tasks[number:])
                    found = _score(embedder, task, fingerprints[task.name], device, cache, evaluation)
                run.tasks[task.name] = found
                bar.set_postfix_str(f"{task.name} {format_score(found.result.score, found.result.main)}", refresh=False)
                bar.update()
            embedder.clear()
            _warn_of_cuts(embedder)
    return evaluation


def _check_lists(encoders: object, tasks: object) -> None:
    if hasattr(encoders, "encode") or isinstance(encoders, Embedder) or isinstance(tasks, Task):
        raise TypeError("`evaluate` takes lists: evaluate([model], [task]).")


def _warn_of_cuts(embedder: Embedder) -> None:
    if embedder.truncated and is_sentence_transformer(embedder.encoder):
        warnings.warn(
            f"{embedder.name} cut {embedder.truncated:,} of {embedder.encoded:,} texts at its limit of "
            f"{embedder.encoder.max_seq_length:,} tokens.",
            stacklevel=3,
        )


def evaluate_with_controls(
    model: SentenceTransformer | Embedder,
    tasks: Sequence[Task],
    seeds: Sequence[int] = (0, 1, 2),
    kinds: Sequence[str] | None = None,
    *,
    name: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    device: torch.device | str | None = None,
    batch_size: int = 64,
    show_progress: bool = True,
) -> Evaluation:
    """Scores a model and its controls, which have its word vectors and its dimension (see `make_controls`).

    Args:
        model: an [`Embedder`][], or an encoder to wrap in one; its controls have the same `unit_length`.
        tasks: the tasks.
        seeds: seeds of the random controls.
        kinds: kinds of controls (default: all that this encoder supports); none if empty.
        name: the model's name in tables.
        cache_dir, device, batch_size, show_progress: as for [`evaluate`][]; an [`Embedder`][] has its own `batch_size`
            and `show_progress`.

    Raises:
        TaskError, ValueError: as [`evaluate`][] and `make_controls`.
    """
    embedder = model if isinstance(model, Embedder) else Embedder(model, name, None, batch_size, show_progress)
    encoders, how = [embedder], (embedder.batch_size, embedder.show_progress, embedder.unit_length)
    if kinds is None or len(kinds) > 0:
        encoders += [Embedder(control, None, None, *how) for control in make_controls(embedder.encoder, seeds, kinds)]
    return evaluate(encoders, tasks, cache_dir, device, embedder.show_progress)


def package_versions() -> dict[str, str]:
    """The versions of this package and of the packages that scores depend on."""
    versions = {"python": platform.python_version(), "hf_meanmax": __version__}
    for name in ("torch", "transformers", "sentence-transformers", "scikit-learn", "scipy", "numpy"):
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


class ResultCache:
    """A cache of finished tasks: a folder per encoder, with a .json file of scores and items per task."""

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"{self.folder} is a file; name a folder for the cache.")

    def path(self, key: str, task: str, fingerprint: str) -> Path:
        """The file of an entry."""
        encoder = bytes_digest(key.encode(), 12)
        return self.folder / encoder / f"{re.sub(r'[^A-Za-z0-9_-]+', '_', task)}-{fingerprint}.json"

    def read(self, key: str | None, task: str, fingerprint: str) -> TaskRun | None:
        """The entry, or None if there is none or, with a warning, if it is damaged."""
        if key is None:
            return None
        path = self.path(key, task, fingerprint)
        if not path.is_file():
            return None
        try:
            entry = read_json(path)
            if not _identity(key, task, fingerprint).items() <= entry.items():
                raise ValueError("it belongs to another encoder, task or version")
            items = {name: np.array(values, dtype) for name, (dtype, values) in entry["items"].items()}
            result = TaskResult(items=items, **entry["result"])
            return TaskRun(result, fingerprint, was_cached=True, **entry["run"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            warnings.warn(f"{path} is damaged ({error!r}); {task} is computed again.", stacklevel=3)
            return None

    def write(self, key: str | None, task: str, run: TaskRun) -> None:
        """Writes an entry; does nothing without a key."""
        if key is None:
            return
        items = {name: np.asarray(values) for name, values in run.result.items.items()}
        parts = ("metrics", "main", "num_test", "details")
        kept = [part.name for part in fields(run) if part.name not in ("result", "fingerprint", "was_cached")]
        entry = {
            **_identity(key, task, run.fingerprint),
            "items": {name: [values.dtype.str, values.tolist()] for name, values in items.items()},
            "result": {name: getattr(run.result, name) for name in parts},
            "run": {name: getattr(run, name) for name in kept},
        }
        write_json(self.path(key, task, run.fingerprint), entry, indent=None, default=json_value)


def _identity(key: str, task: str, fingerprint: str) -> Json:
    return {"version": ENTRY_VERSION, "key": key, "task": task, "fingerprint": fingerprint}


def json_value(value: object) -> object:
    """Converts numpy's numbers and arrays to JSON values."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _score(
    embedder: Embedder,
    task: Task,
    fingerprint: str,
    device: torch.device | str | None,
    cache: ResultCache | None,
    evaluation: Evaluation,
) -> TaskRun:
    encoded, seconds, start = embedder.encoded, embedder.seconds, time.perf_counter()
    try:
        result = task.evaluate(embedder, device=device)
    except ValueError as error:
        done = sum(len(run.tasks) for run in evaluation.encoders if run.key is not None)
        kept = f" {done} finished tasks are kept in {cache.folder}." if done and cache is not None else ""
        raise TaskError(f"{task.name}: {error}{kept}", evaluation) from error
    embedding = embedder.seconds - seconds
    run = TaskRun(
        result=result,
        fingerprint=fingerprint,
        dimension=embedder.dimension or 0,
        seconds_embedding=embedding,
        seconds_scoring=time.perf_counter() - start - embedding,
        texts_embedded=embedder.encoded - encoded,
        unknown_word_rate=unknown_word_rate_of(embedder.encoder, task.sentences()),
        versions=package_versions(),
    )
    if cache is not None:
        cache.write(embedder.key, task.name, run)
    return run


def _worth_keeping(tasks: Sequence[Task]) -> set[str]:
    """Texts worth caching: those that the first task repeats, or that later tasks have."""
    kept = {text for task in tasks[1:] for text in task.sentences()}
    return kept.union(text for text, count in Counter(tasks[0].sentences()).items() if count > 1)


def _check_distinct(kind: str, names: list[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"Several {kind} are called {', '.join(repeated)}; give them different names.")
