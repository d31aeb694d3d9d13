"""The summary of a run at its end."""

from __future__ import annotations

import math

import torch

from hf_meanmax.files import Json
from hf_meanmax.hardware import count_flops, peak_memory_bytes
from hf_meanmax.metrics import counted
from hf_meanmax.modeling.conditional_decoding import LatentForConditionalDecoding
from hf_meanmax.modeling.losses import IGNORE_INDEX
from hf_meanmax.objectives import Objective, TrainingModel


def count_flops_per_token(
    model: LatentForConditionalDecoding, objectives: list[Objective], micro_batches: list[dict[str, torch.Tensor]]
) -> float:
    """FLOPs of a step's matrix products per target token."""

    def loss(twin: LatentForConditionalDecoding, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        value: torch.Tensor = TrainingModel(twin, objectives)(**batch, num_items_in_batch=1).loss
        return value

    tokens = sum(
        int((batch[name] != IGNORE_INDEX).sum())
        for batch in micro_batches
        for name in ("labels", "previous_targets")
        if name in batch
    )
    return sum(count_flops(model, batch, loss) for batch in micro_batches) / max(1, tokens)


def summarize_run(state: Json, stop_reason: str, device: torch.device, num_processes: int, matrix_rate: float) -> Json:
    """Steps, target tokens, minutes, speed and memory of a run.

    Args:
        state: the run's, after its last step.
        stop_reason: why it stopped; "" after all of its steps.
        device: of this process.
        num_processes: of the run.
        matrix_rate: measured FLOP/s of the machine's matrix products, with which the speed is compared.
    """
    summary: Json = {
        "steps": state["step"],
        "tokens": state["tokens"],
        "minutes": round(state["seconds"] / 60, 2),
        "cpu_minutes": round(state.get("cpu_seconds", 0.0) / 60, 2),
        "stopped_by": stop_reason or "steps",
    }
    if state["step_seconds"]:
        rate = state["tokens"] / state["step_seconds"]
        summary["tokens_per_second"] = round(rate, 1)
        # With sharded weights, matrix products are not counted.
        if state["flops_per_token"]:
            summary["flops_per_token"] = state["flops_per_token"]
            summary["matrix_rate_flops"] = matrix_rate
            summary["share_of_matrix_rate"] = rate / num_processes * state["flops_per_token"] / matrix_rate
    summary["peak_memory_bytes"] = peak_memory_bytes(device)
    return summary


def format_summary(summary: Json) -> str:
    """The summary in a few lines."""
    lines = [f"{counted(summary['steps'], 'step')}, {summary['tokens']:,} tokens, {summary['minutes']:.1f} minutes"]
    if "tokens_per_second" in summary:
        of_limit = ""
        # A share above 1 means that other work slowed the measurement of the matrix rate.
        if summary.get("share_of_matrix_rate", math.inf) <= 1:
            share, limit = 100 * summary["share_of_matrix_rate"], summary["matrix_rate_flops"] / 1e12
            of_limit = f"; {share:.0f} % of the measured matrix rate ({limit:.2f} TFLOP/s)"
        lines.append(f"{summary['tokens_per_second']:,.0f} tokens/s{of_limit}")
    lines.append(f"peak memory {summary['peak_memory_bytes'] / 2**30:.2f} GiB")
    scores = f"held-out: loss {summary['validation_loss']:.3f}"
    for name, value in summary.items():
        term = name.removeprefix("validation_")
        if term != name and term.endswith("_loss"):
            scores += f", {term} {value:.3f}"
    if "validation_accuracy" in summary:
        scores += f", accuracy {summary['validation_accuracy']:.4f}"
    if "validation_bleu" in summary:
        scores += f", greedy BLEU {summary['validation_bleu']:.1f}"
    if "validation_exact_match" in summary:
        scores += f", exact matches {summary['validation_exact_match']:.1%}"
    lines.append(scores)
    if "validation_teacher_neighbors" in summary:
        found = f"{summary['validation_teacher_neighbors']:.0%} by the embedding"
        if "validation_teacher_cosine" in summary:
            found += (
                f", {summary['validation_teacher_space_neighbors']:.0%} in the teacher's space, where the mean cosine "
                f"with the teacher's vectors is {summary['validation_teacher_cosine']:.3f}"
            )
        lines.append(f"of the teacher's ten nearest held-out texts: {found}")
    return "\n".join(lines)
