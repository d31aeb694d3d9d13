"""Time to a held-out loss under the full, the chunked and the sampled softmax.

    python benchmarks/softmax_time.py 'books/train-*.txt' --validation books/validation.txt --output runs/softmax

A sampled softmax is another objective, so tokens/s alone says little. Each form trains the same model from the same
weights for the same time, evaluation included, at a constant learning rate; the loss is that of the full softmax on the
same held-out sentences in every case. Prints tokens/s, the loss at the end, and the minutes of training (evaluation
left out) to each loss, beside their ratio to the full softmax. A run that is in the output folder is not repeated.
Other settings of scripts/pretrain.py can follow.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from hf_meanmax.evaluation.markdown import markdown_table
from hf_meanmax.files import replacing_file
from hf_meanmax.plots.training import read_metrics
from hf_meanmax.reproduce.plan import folder_name

FORMS: dict[str, list[str]] = {
    "full": ["--softmax", "full"],
    "chunked": ["--softmax", "chunked"],
    **{f"sampled, {n:,} negatives": ["--softmax", "sampled", "--num_negatives", str(n)] for n in (1000, 4000, 16000)},
}


def train(name: str, args: argparse.Namespace, options: list[str]) -> list[dict[str, Any]]:
    """The records of a run, made now or before."""
    folder = Path(args.output) / folder_name(name)
    if not (folder / "model").is_dir():
        command = [
            sys.executable, "-m", "hf_meanmax.commands", "pretrain", "mean-max-aae-small", "--corpus", *args.corpus,
            "--validation", args.validation, "--output_dir", str(folder), "--max_minutes", str(args.minutes),
            "--hidden_size", str(args.hidden_size), "--intermediate_size", str(2 * args.hidden_size),
            "--lr_schedule", "constant", "--epochs", "10", "--eval_steps", str(args.eval_steps), "--log_steps",
            str(args.eval_steps), "--checkpoint_steps", "1000000", "--validation_sentences", "1000",
            "--sample_sentences", "0", *FORMS[name], *options,
        ]  # fmt: skip
        subprocess.run(command, check=True)
    return read_metrics(folder)


def curve(records: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Minutes spent in training steps, and the held-out loss then."""
    minutes = {r["step"]: r["tokens"] / r["tokens_per_second"] / 60 for r in records if "tokens_per_second" in r}
    points = [(minutes[r["step"]], r["validation_loss"]) for r in records if "validation_loss" in r]
    times, losses = map(np.asarray, zip(*points, strict=True))
    return times, losses


def time_to(level: float, times: np.ndarray, losses: np.ndarray) -> float:
    """Minutes at which the loss first falls below a level, between two evaluations on the logarithm of the loss."""
    after = int(np.argmax(losses < level))
    if losses[after] >= level:
        return float("nan")
    if after == 0:
        return float(times[0])
    part = slice(after - 1, after + 1)
    return float(np.interp(-np.log(level), -np.log(losses[part]), times[part]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", nargs="+")
    parser.add_argument("--validation", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--minutes", type=float, default=6.0, help="of each run")
    parser.add_argument("--hidden-size", type=int, default=512)
    parser.add_argument("--eval-steps", type=int, default=100)
    parser.add_argument("--levels", type=float, nargs="+", default=[4.0, 3.0, 2.0, 1.5, 1.0])
    parser.add_argument("--forms", nargs="+", choices=list(FORMS), default=list(FORMS))
    args, options = parser.parse_known_args()
    found = {name: train(name, args, options) for name in args.forms}
    curves = {name: curve(records) for name, records in found.items()}
    lines, numbers = [], {}
    for name, (times, losses) in curves.items():
        summary = found[name][-1]
        reached = {level: time_to(level, times, losses) for level in args.levels}
        first = {level: time_to(level, *next(iter(curves.values()))) for level in args.levels}
        cells = [
            "" if np.isnan(t) else f"{t:.2f}" + ("" if np.isnan(first[level]) else f" ({first[level] / t:.1f}x)")
            for level, t in reached.items()
        ]
        lines.append(
            [name, f"{summary['tokens_per_second']:,.0f}", f"{summary['peak_memory_bytes'] / 2**30:.2f}",
             f"{summary['validation_loss']:.3f}", f"{summary.get('validation_bleu', float('nan')):.1f}", *cells]
        )  # fmt: skip
        numbers[name] = {
            **summary, "minutes": times.tolist(), "losses": losses.tolist(),
            "minutes to a loss": {str(level): t for level, t in reached.items() if not np.isnan(t)},
        }  # fmt: skip
    header = ["softmax", "tokens/s", "memory, GiB", f"loss after {args.minutes:g} minutes", "BLEU"]
    table = markdown_table(
        [*header, *(f"minutes to {level:g}" for level in args.levels)], lines, "l" + "r" * (4 + len(args.levels))
    )
    with replacing_file(Path(args.output) / "softmax.md") as file:
        file.write(table + "\n")
    with replacing_file(Path(args.output) / "softmax.json") as file:
        json.dump(numbers, file, indent=1)
    print(table)


if __name__ == "__main__":
    main()
