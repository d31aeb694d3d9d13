"""Checkpoints of a run, written atomically and without pickle."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from hf_meanmax.checkpoint.folder import SETTINGS_FILE, model_around
from hf_meanmax.fields import expand_home
from hf_meanmax.files import Json, differences, is_owned, read_json, replacing_folder, write_json
from hf_meanmax.pretrained import check_hides_none

if TYPE_CHECKING:
    from transformers import PreTrainedModel

METRICS_FILE, RESULTS_FILE = "metrics.jsonl", "results.json"
CHECKPOINTS = "checkpoints"
# The settings of a system of `hf-meanmax reproduce`, written before its run.
SYSTEM_FILE = "system.json"
# Entries that a folder may hold before a run starts in it.
_NO_RESULTS = (".*", "*.log", "*.out", "*.err", "log*", SYSTEM_FILE)
# Keys of the state that identify what a run learns from; for each the description of a change, and what to restore.
_LEARNT_FROM = (
    ("learnt_from", "other texts or with another tokenizer, so that its weights know other words", "corpus"),
    ("teacher", "another teacher or embedder, whose weights or settings have changed since", "model"),
)
_FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


class Checkpoints:
    """The checkpoints of a run in one folder, in subfolders such as `step-00001000/`.

    Random numbers are functions of (seed, step, process), so a resumed run needs only the step to draw the same ones.

    Args:
        folder: the folder that holds them.
        keep: number of latest checkpoints kept besides the best.
        prefix: prefix of parameter names where the model is part of a larger module; the files have none.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int = 2, prefix: str = ""):
        self.folder = Path(folder)
        self.keep = keep
        self.prefix = prefix

    def path(self, step: int) -> Path:
        """The folder of a step's checkpoint, which need not exist."""
        return self.folder / f"step-{step:08d}"

    def list(self) -> list[Path]:
        """Finished checkpoints, oldest first."""
        finished = (p for p in self.folder.glob("step-*") if re.fullmatch(r"step-\d+", p.name))
        return sorted(p for p in finished if (p / "state.json").is_file())

    def latest(self) -> Path | None:
        """The newest finished checkpoint."""
        found = self.list()
        return found[-1] if found else None

    def save(
        self, model: PreTrainedModel, optimizers: Iterable[torch.optim.Optimizer], state: Json, is_main: bool
    ) -> Path:
        """Writes a checkpoint; every process must call this, the main one writes.

        `state` holds plain values, among them `step` and perhaps `best_step`, whose checkpoint is not removed.

        Raises:
            OSError: no space or no permission; older checkpoints are untouched then.
            FloatingPointError: if a weight is NaN or infinite; nothing is written then.
        """
        target = self.path(state["step"])
        weights = self._own_names(get_model_state_dict(model, options=_FULL))
        moments: Any = get_optimizer_state_dict(model, optimizers, options=_FULL)
        if not is_main:
            return target
        broken = [name for name, weight in weights.items() if not weight.isfinite().all()]
        if broken:
            raise FloatingPointError(
                f"After step {state['step']} some weights are NaN or infinite ({', '.join(broken[:3])} ...); they "
                f"are not saved. {self.remedy('Lower --learning_rate')}"
            )
        tensors = {
            f"{name}.{key}": t for name, entry in self._own_names(moments["state"]).items() for key, t in entry.items()
        }
        groups = [
            {**group, "params": list(self._own_names(dict.fromkeys(group["params"])))}
            for group in moments["param_groups"]
        ]
        text = json.dumps({**state, "param_groups": groups}, indent=1)
        with replacing_folder(target, owned=["*"]) as partial:
            save_file(_plain(weights), partial / "model.safetensors")
            save_file(_plain(tensors), partial / "optimizer.safetensors")
            (partial / "state.json").write_text(text, encoding="utf-8")
        self._remove_old(state.get("best_step"))
        return target

    def remedy(self, change: str) -> str:
        """Advice after NaN or infinite numbers; changed settings need a new folder once there is a checkpoint."""
        latest = self.latest()
        place = " in another --output_dir" if latest else ""
        return f"Last good checkpoint: {latest or 'none'}. {change} and run again{place}."

    def check_learnt_from(self, state: Json) -> None:
        """Checks that the newest checkpoint learnt from the same texts and teacher as `state` records.

        Call it before loading weights, which do not fit another vocabulary, and before a teacher encodes for hours.

        Raises:
            FileExistsError: it learnt from others.
        """
        latest = self.latest()
        saved = {} if latest is None else self.read_state(latest)
        for name, what, remedy in _LEARNT_FROM:
            if name in state and saved.get(name, state[name]) != state[name]:
                raise FileExistsError(
                    f"{self.folder.parent} holds a run that learnt from {what}. Give the {remedy} as it was, another "
                    "--output_dir, or --overwrite to start anew."
                )

    def read_state(self, path: Path) -> Json:
        """The plain values of a checkpoint.

        Raises:
            ValueError: if the file is missing or damaged.
        """
        return _read(path / "state.json", _read_state)

    def load(self, path: Path, model: PreTrainedModel, optimizers: Iterable[torch.optim.Optimizer]) -> Json:
        """Loads a checkpoint into model and optimizers; returns its plain values.

        Raises:
            ValueError: if a file is missing or damaged, or belongs to another model.
        """
        state = self.read_state(path)
        tensors = _read(path / "optimizer.safetensors", load_file)
        groups = state.pop("param_groups")
        for group in groups:
            group["params"] = [self.prefix + name for name in group["params"]]
        moments: Json = {"state": {}, "param_groups": groups}
        for name, tensor in tensors.items():
            parameter, _, key = name.rpartition(".")
            moments["state"].setdefault(self.prefix + parameter, {})[key] = tensor
        try:
            self.load_weights(path, model)
            set_optimizer_state_dict(model, optimizers, moments, options=StateDictOptions(full_state_dict=True))
        except (RuntimeError, KeyError) as error:
            raise ValueError(f"The checkpoint {path} belongs to another model: {error}") from error
        return state

    def load_weights(self, path: Path, model: PreTrainedModel) -> None:
        """Loads only the weights of a checkpoint into the model.

        Raises:
            ValueError: if the file is missing or damaged.
        """
        weights = _read(path / "model.safetensors", load_file)
        set_model_state_dict(model, self._prefixed(weights), options=StateDictOptions(full_state_dict=True))

    def _own_names(self, entries: Json) -> Json:
        return {name.removeprefix(self.prefix): entry for name, entry in entries.items()}

    def _prefixed(self, entries: Json) -> Json:
        return {self.prefix + name: entry for name, entry in entries.items()}

    def _remove_old(self, best_step: int | None) -> None:
        best = None if best_step is None else self.path(best_step)
        for path in self.list()[: -self.keep]:
            if path != best:
                shutil.rmtree(path, ignore_errors=True)
        # Left by a killed process.
        for path in self.folder.glob(".step-*.partial"):
            shutil.rmtree(path, ignore_errors=True)


def _plain(tensors: Json) -> dict[str, torch.Tensor]:
    """Tensors that safetensors can write: contiguous, and none sharing memory with another."""
    seen: set[int] = set()
    plain = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().contiguous()
        plain[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return plain


def _read(path: Path, read: Callable[[Path], Json]) -> Json:
    try:
        return read(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise ValueError(
            f"{path} is missing or damaged ({error}); a checkpoint has state.json, model.safetensors and "
            f"optimizer.safetensors. Remove {path.parent} to resume from the checkpoint before it."
        ) from error


def _read_state(path: Path) -> Json:
    state = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(state, dict) or not isinstance(state.get("param_groups"), list):
        raise ValueError("it holds no state of a run")
    return state


def claim_folder(folder: Path, settings: Json, overwrite: bool = False, defaults: Json | None = None) -> None:
    """Creates a run's folder and writes its settings, or checks that the run begun there has the same ones.

    Settings of a run that failed before its first checkpoint need not match. `overwrite` removes what an earlier run
    left in the folder. A setting that an earlier version did not have counts as its default.

    Raises:
        FileExistsError: the folder holds a run with other settings, or something other than a run.
    """
    path = folder / SETTINGS_FILE
    parts = (folder / CHECKPOINTS, folder / "model")
    check_run_folder(folder)
    if overwrite and path.is_file():
        for part in parts:
            shutil.rmtree(part, ignore_errors=True)
        for name in (METRICS_FILE, RESULTS_FILE):
            (folder / name).unlink(missing_ok=True)
    # These alone mark a begun run: trackers and an interrupted first save leave other entries among the checkpoints.
    names = (RESULTS_FILE, "model/*", f"{CHECKPOINTS}/step-*", f"{CHECKPOINTS}/checkpoint-*")
    is_begun = any(chain.from_iterable(map(folder.glob, names)))
    if not (is_begun and path.is_file()):
        write_json(path, settings)
        return
    theirs = {name: expand_home(value) for name, value in read_json(path).items()}
    # Fine-tuning names its texts `train`, pretraining `corpus`.
    if ("train" in theirs) != ("train" in settings):
        kind = "a fine-tuning" if "train" in theirs else "a pretraining"
        raise FileExistsError(f"{folder} holds {kind} run. Give another --output_dir.")
    defaults = defaults or {}
    now = _completed(settings, theirs, defaults)
    # Settings that no longer exist are ignored.
    there = {name: value for name, value in _completed(theirs, settings, defaults).items() if name in now}
    changed = differences(there, now)
    if changed:
        raise FileExistsError(
            f"{folder} holds a run with other settings ({changed}). Give them as they were there to resume it, another "
            "--output_dir, or --overwrite to start anew."
        )


def _completed(theirs: Json, settings: Json, defaults: Json) -> Json:
    """The recorded settings `theirs`, with the defaults of those that only `settings` has."""
    missing = {name: defaults[name] for name in settings if name not in theirs and name in defaults}
    nested = {
        name: _completed(value, settings[name], defaults[name])
        for name, value in theirs.items()
        if all(isinstance(part.get(name), dict) for part in (theirs, settings, defaults))
    }
    return {**missing, **theirs, **nested}


def check_run_folder(folder: Path) -> None:
    """Checks that the folder holds at most a run and its logs, lies in no model and hides no packaged model."""
    check_hides_none(folder, "--output_dir")
    model = model_around(folder)
    if model is not None:
        raise FileExistsError(f"{folder} holds a model, or lies in {model}, which does. Give another --output_dir.")
    settings = folder / SETTINGS_FILE
    if settings.is_file() and not {"corpus", "train"} & set(read_json(settings)):
        raise FileExistsError(f"{settings} was not written by a training run. Give another --output_dir.")
    if folder.is_dir() and not settings.is_file():
        foreign = sorted(entry.name for entry in folder.iterdir() if not is_owned(entry.name, _NO_RESULTS))
        if foreign:
            raise FileExistsError(f"{folder} holds {foreign[0]!r}, and no run. Give another --output_dir.")


def read_metrics(folder: str | os.PathLike[str]) -> list[Json]:
    """The records that a pretraining run logged, in the order of its steps.

    Args:
        folder: the run's output folder, or its `metrics.jsonl`.

    Raises:
        FileNotFoundError: there is no such log.
        ValueError: a line is not a record of a step; only an unfinished last line, of a killed run, is ignored.
    """
    path = Path(folder)
    path = path if path.is_file() else path / METRICS_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"{os.fspath(folder)!r} has no {METRICS_FILE}; give the output folder of a run of `hf-meanmax pretrain`."
        )
    lines = path.read_text(encoding="utf-8").splitlines()
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise ValueError(f"Line {number} of {path} is not JSON: {error}.") from error
            break
        if not isinstance(records[-1], dict) or "step" not in records[-1]:
            raise ValueError(f"Line {number} of {path} is no record of a step: {line[:100]}.")
    return records
