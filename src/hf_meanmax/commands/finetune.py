"""Train a classifier or a regression on labelled texts, from a checkpoint or from random weights.

accelerate launch scripts/finetune.py --checkpoint runs/mine/model --train train.tsv --test test.tsv
accelerate launch scripts/finetune.py --train reviews.tsv --word_vectors vectors.safetensors --epochs 8
hf-meanmax finetune --checkpoint runs/mine/model --train pairs.tsv --pair_combination concatenation

Without a checkpoint, a model of `--family` (default: structured self-attentive) starts from random weights.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from hf_meanmax.processes import end_processes, errors_once, is_launched_first
from hf_meanmax.training.finetune import finetune
from hf_meanmax.training.finetune_settings import FinetuneArguments
from hf_meanmax.training.recipes import SettingsParser, choice_of_family, family_of, parse_command_line

from .options import command_line


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; `argv` is the command line by default. Returns the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    with command_line("finetune", TypeError, FloatingPointError):
        if any(word in ("-h", "--help") for word in words):
            print(f"{__doc__}\n{SettingsParser(FinetuneArguments, family_of(choice_of_family(words))).format_help()}")
            return 0
        with errors_once():
            arguments = parse_command_line(words, FinetuneArguments)
        results = finetune(arguments)
        end_processes()
    if not is_launched_first():
        return 0
    for name in ("validation", "test"):
        if name in results:
            print(f"{name}: " + ", ".join(f"{key} {value:.4f}" for key, value in results[name].items()))
    print(
        f"{results['classifier_parameters']:,} parameters of the classifier, {results['encoder_parameters']:,} of the "
        f"encoder; {results['minutes']:.1f} minutes; {results['cut_texts']} texts were cut (`max_tokens` "
        f"{arguments.max_tokens}), {results['unlabelled']} had no label and "
        # Results of earlier versions lack this count: there, a row without text was an error.
        f"{results.get('textless', 0)} no text, and were left out"
    )
    print(f"saved to {Path(arguments.output_dir) / 'model'}")
    return 0
