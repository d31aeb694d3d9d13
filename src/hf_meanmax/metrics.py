"""Formats numbers, metrics, gains and names of controls for messages, tables, figures and model cards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from hf_meanmax.fields import check_choice

Record: TypeAlias = Mapping[str, Any]  # of a JSON file
SENTEVAL = frozenset(
    "CR MPQA MR MRPC SICK-E SICK-R SNLI SST2 SST5 STS12 STS13 STS14 STS15 STS16 STSB SUBJ TREC".split()
)


def counted(number: int, noun: str) -> str:
    """`1 step`, `2,000 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_score(value: float, metric: str) -> str:
    """A score as tables show it: percentages with one decimal, correlations and indices with three."""
    return f"{value:.1f}" if is_percentage(metric) else f"{value:.3f}"


def is_percentage(metric: str) -> bool:
    """Whether a metric is between 0 and 100; the others are correlations and indices."""
    return not any(word in metric for word in ("pearson", "spearman", "correlation", "inverse", "mse"))


def kind_name(kind: str) -> str:
    """The name of a kind of control in tables and figures."""
    return kind.replace("_", " ")


def gain_text(gain: Record | None, metric: str) -> str:
    """A gain with its interval, `+1.2 [+0.3, +2.1]`; empty if there is no gain or no difference."""
    if not gain or gain["difference"] is None:
        return ""
    number = "+.1f" if is_percentage(metric) else "+.3f"
    interval = "" if gain["low"] is None else f" [{gain['low']:{number}}, {gain['high']:{number}}]"
    return f"{gain['difference']:{number}}{interval}"


LENGTH_METRICS = {
    "bleu": ("BLEU", "{:.1f}"),
    "chrf": ("chrF", "{:.1f}"),
    "exact_match": ("exact match", "{:.1%}"),
    "token_accuracy": ("token accuracy", "{:.1%}"),
}


def length_bins(systems: Mapping[str, Sequence[Record]], metrics: Sequence[str]) -> list[tuple[str, dict[str, Record]]]:
    """The length bins of all systems in order, each a label (`"6-10"`, `"26+"`) and the rows by system.

    Raises:
        ValueError: as [`length_table`].
    """
    for metric in metrics:
        check_choice("metric", metric, LENGTH_METRICS)
    if not systems:
        raise ValueError("No system to show: give the rows of scores_by_length by the system's name.")
    bins: dict[tuple[int, float], dict[str, Record]] = {}
    for system, rows in systems.items():
        for row in rows:
            key = (row["from"], math.inf if row["to"] is None else row["to"])
            bins.setdefault(key, {})[system] = row
    return [
        (f"{low}+" if high == math.inf else f"{low}-{high}" if low != high else str(low), bins[low, high])
        for low, high in sorted(bins)
    ]


def count_label(found: Mapping[str, Record]) -> str:
    """The number of texts in a bin, or a range if the systems differ."""
    low, high = min(row["count"] for row in found.values()), max(row["count"] for row in found.values())
    return f"{low:,}" if low == high else f"{low:,}-{high:,}"
