"""The interface of evaluation tasks: the texts that they need, and the scores of the embeddings."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from hf_meanmax.files import Json

if TYPE_CHECKING:
    import torch

Embed: TypeAlias = Callable[[Sequence[str]], np.ndarray]


@dataclass
class TaskResult:
    """The scores of one encoder on one task.

    Args:
        metrics: scores by name; accuracies and the like in percent, correlations between -1 and 1.
        main: the name of the main metric, which tables show.
        items: arrays with one value per test item, to compare two encoders item by item: `correct` (1 or 0) for a
            classification; `predicted` and `gold`, and `group` (number of the data set) if there are several, for a
            correlation. Empty if a task has no such items.
        num_test: size of the test set, the weight of the task in a micro average.
        details: whatever else a reader may want to know (the chosen strength, scores by data set), as JSON values.
    """

    metrics: dict[str, float]
    main: str
    items: dict[str, np.ndarray] = field(default_factory=dict)
    num_test: int = 0
    details: Json = field(default_factory=dict)

    @property
    def score(self) -> float:
        """The main metric."""
        return self.metrics[self.main]


class Task(ABC):
    """An evaluation task. Its constructor reads the files, and raises if one is missing or damaged.

    Attributes:
        name: its name in tables.
        version: version of the protocol; cached results of other versions are not used.
        main_metric: the name of the main metric.
    """

    name: str
    version: int = 1
    main_metric: str

    @abstractmethod
    def sentences(self) -> list[str]:
        """Every text that [`evaluate`][] embeds, in a fixed order; texts may repeat."""

    @abstractmethod
    def evaluate(self, embed: Embed, device: torch.device | str | None = None) -> TaskResult:
        """Scores an encoder.

        Args:
            embed: maps n texts of [`sentences`][] to `(n, D)` float32, finite.
            device: torch device for the work after embedding (default: the CPU).
        """

    def settings(self) -> Json:
        """The settings on which the scores depend, as JSON values."""
        return {}

    def fingerprint(self) -> str:
        """A hash of data and protocol; cached results with another fingerprint are not used."""
        digest = hashlib.blake2b(digest_size=12)
        digest.update(json.dumps([self.name, self.version, self.settings()], sort_keys=True).encode())
        for part in self.data():
            digest.update(repr(part).encode("utf-8", "surrogatepass"))
            digest.update(b"\0")
        return digest.hexdigest()

    def data(self) -> Sequence[object]:
        """Texts and labels in order, for [`fingerprint`][]; tasks with labels override this to add them."""
        return self.sentences()


def read_lines(path: Path, encoding: str = "utf-8") -> list[str]:
    """The lines of a task's file, without line ends; only `\\n` and `\\r\\n` end a line.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not text of that encoding.
    """
    if not path.is_file():
        raise FileNotFoundError(f"No such file: {str(path)!r}.")
    try:
        text = path.read_bytes().decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start:,} is not {encoding}.") from None
    lines = text.replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines
