"""Score how well held-out sentences come back from their embeddings: BLEU, chrF, ROUGE, exact matches.

hf-meanmax reconstruct runs/docstrings/model held-out.txt --limit 2000 --output reconstructions
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from hf_meanmax.evaluation.reconstruction import ReconstructionSettings, score_checkpoint

from .options import OptionParser, one_line_errors, option, positional


@dataclass
class ReconstructOptions:
    """What `hf-meanmax reconstruct` reads and writes, beside its settings."""

    checkpoint: str = positional("folder of a checkpoint with its decoder")
    text: list[str] = positional("text files (.txt .gz .xz .zst) or one data set")
    output: str | None = option("folder for scores, texts, and tables and figure of both", None)
    compare: list[str] = option("output folders of other systems to show beside this one", [])


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command; `argv` is the command line by default. Prints the scores as JSON."""
    description = "Score how well held-out sentences come back from their embeddings."
    with one_line_errors("reconstruct"):
        parser = OptionParser("reconstruct", description, ReconstructOptions, ReconstructionSettings)
        args, settings = parser.parse(argv)
        scores = score_checkpoint(args.checkpoint, args.text, settings, output=args.output, compare=args.compare)
    print(json.dumps(scores, indent=1, ensure_ascii=False))
