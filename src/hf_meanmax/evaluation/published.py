"""Published scores of other encoders, with their sources, for comparison with measured ones.

These encoders were trained on other text and with other word vectors than this package's: they show what the field has
reached, and are no controls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import yaml


@dataclass(frozen=True)
class PublishedRow:
    """The published scores of one encoder.

    Args:
        name: the encoder.
        group: how it was trained.
        source: where the numbers are from.
        scores: metrics by task, in the units of [`~hf_meanmax.evaluation.tasks.TaskResult`].
        dimension: dimension of its embeddings, None if not published.
        averages: `macro_8`, `micro_8` and the like over 6, 7 or 8 tasks, in percent.
    """

    name: str
    group: str
    source: str
    scores: Mapping[str, Mapping[str, float]]
    dimension: int | None = None
    averages: Mapping[str, float] = field(default_factory=dict)


@cache
def published_rows(part: str = "senteval") -> list[PublishedRow]:
    """The rows of published.yaml: controls first, then encoders trained without labels, then with labels.

    Args:
        part: `"senteval"`, or `"intrinsic"`: the scores of Cifka 2018 on sets of its own (paraphrases of HyTER and
            COCO, headlines and compressions). This package has no scores on these sets, so show them in a separate
            table.
    """
    content = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text(encoding="utf-8"))
    return [
        PublishedRow(
            **{
                **row,
                "group": content["groups"][row["group"]],
                "source": content["sources"][row["source"]],
                "scores": {task: _metrics(task, scores) for task, scores in row["scores"].items()},
            }
        )
        for row in content[part]
    ]


def _metrics(task: str, scores: float | list[float] | dict[str, float]) -> dict[str, float]:
    """Names one or two numbers by SentEval's metrics; a dict has its own names."""
    if isinstance(scores, dict):
        return scores
    names = ("pearson", "spearman") if task.startswith("STS") or task == "SICK-R" else ("accuracy", "f1")
    return dict(zip(names, scores if isinstance(scores, list) else [scores], strict=False))
