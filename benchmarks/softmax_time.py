"""Time to a held-out loss under the full, the chunked and the sampled softmax.

    python benchmarks/softmax_time.py 'books/train-*.txt' --validation books/validation.txt --output runs/softmax

A sampled softmax is another objective, so tokens/s alone says little. Each form trains the same model from the same
weights for the same time, evaluation included, at a constant learning rate; the loss is that of the full softmax on the
same held-out sentences in every case. Prints tokens/s, the loss at the end, and the minutes of training (evaluation
left out) to each loss. A run that is in the output folder is not repeated.
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
from rounds import GIB, MEMORY, Rounds, add_options, fast_precision, report

from hf_meanmax.files import replacing_file
from hf_meanmax.reproduce.plan import folder_name
from hf_meanmax.training.checkpoints import read_metrics

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
    add_options(parser, rounds=None)
    args, options = parser.parse_known_args()
    found = {name: train(name, args, options) for name in args.forms}
    curves = {name: curve(records) for name, records in found.items()}
    measured, numbers = Rounds({}, precision=fast_precision()), {}
    for name, (times, losses) in curves.items():
        summary = found[name][-1]
        reached = {level: time_to(level, times, losses) for level in args.levels}
        reached = {level: minutes for level, minutes in reached.items() if not np.isnan(minutes)}
        figures = {"tokens/s": "tokens_per_second", f"loss after {args.minutes:g} minutes": "validation_loss",
                   "BLEU": "validation_bleu"}  # fmt: skip
        measured.figures[name] = {
            **{unit: [summary[key]] for unit, key in figures.items() if key in summary},
            **{f"minutes to a loss of {level:g}": [minutes] for level, minutes in reached.items()},
        }
        measured.facts[name] = {MEMORY: summary["peak_memory_bytes"] / GIB}
        numbers[name] = {
            **summary, "minutes": times.tolist(), "losses": losses.tolist(),
            "minutes to a loss": {str(level): minutes for level, minutes in reached.items()},
        }  # fmt: skip
    with replacing_file(Path(args.output) / "softmax.json") as file:
        json.dump(numbers, file, indent=1)
    report(measured, args, f"softmax, d = {args.hidden_size:,}")


if __name__ == "__main__":
    main()
