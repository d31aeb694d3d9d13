"""Logging of a run: records in a file and in trackers, and the losses of steps until they are needed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from accelerate import Accelerator

from hf_meanmax.files import Json, replacing_file

from .checkpoints import METRICS_FILE


class MetricsLog:
    """Writes the records of a run to `metrics.jsonl` in its folder and to Accelerate's trackers.

    Args:
        folder: the run's folder.
        accelerator: of the run; its main process writes.
        has_trackers: whether to write to the trackers too.
    """

    def __init__(self, folder: Path, accelerator: Accelerator, has_trackers: bool) -> None:
        self.path = folder / METRICS_FILE
        self.accelerator = accelerator
        self.has_trackers = has_trackers

    def record(self, record: Json) -> None:
        """Appends a record, which must have a `step`."""
        if self.accelerator.is_main_process:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        if self.has_trackers:
            self.accelerator.log({k: v for k, v in record.items() if k != "step"}, step=record["step"])

    def trim(self, step: int) -> None:
        """Drops the records after `step`: a resumed run repeats those steps."""
        if self.accelerator.is_main_process and self.path.is_file():
            lines = self.path.read_text(encoding="utf-8").splitlines()
            # A summary belongs to the end of the run, which is still to come.
            kept = [line for line in lines if _step_of(line) <= step and '"stopped_by"' not in line]
            with replacing_file(self.path) as file:
                file.write("".join(line + "\n" for line in kept))


class StepLosses:
    """The losses of each step, kept on the device until they are needed."""

    def __init__(self) -> None:
        self.waiting: list[tuple[tuple[int, int, int], torch.Tensor]] = []

    def add(self, step: int, epoch: int, step_in_epoch: int, loss: torch.Tensor) -> None:
        """Adds this process's losses of a step, a tensor."""
        self.waiting.append(((step, epoch, step_in_epoch), loss))

    def take(self, accelerator: Accelerator) -> list[tuple[tuple[int, int, int], list[float]]]:
        """Removes and returns the waiting losses as numbers, summed over processes."""
        if not self.waiting:
            return []
        entries = [entry for entry, _ in self.waiting]
        losses = accelerator.reduce(torch.stack([loss for _, loss in self.waiting]), "sum")
        self.waiting.clear()
        return list(zip(entries, losses.tolist(), strict=True))


def _step_of(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return sys.maxsize
