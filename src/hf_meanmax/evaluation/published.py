"""Scores that others have published, with their sources, to stand beside measured ones.

Their encoders were trained on other text, and with other word vectors, than those of this package: they show what the
field has reached, and are no controls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import yaml


@dataclass(frozen=True)
class PublishedRow:
    """What a publication says of one encoder.

    Args:
        name: the encoder.
        group: how it was trained.
        source: where the numbers are from.
        scores: metrics by task, in the units of [`~hf_meanmax.evaluation.tasks.TaskResult`].
        dimension: of its embeddings, None where the source does not say.
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
    """The rows of published.yaml: the published controls first, then what was trained without labels, then with them.

    Args:
        part: `"senteval"`, or `"intrinsic"`: the thesis's scores on sets of its own (paraphrases of HyTER and COCO,
            headlines and compressions). No score of this package is on these sets, so none belongs into a table with
            them.
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
    """One or two numbers by the names of SentEval's metrics; others have their names."""
    if isinstance(scores, dict):
        return scores
    names = ("pearson", "spearman") if task.startswith("STS") or task == "SICK-R" else ("accuracy", "f1")
    return dict(zip(names, scores if isinstance(scores, list) else [scores], strict=False))
