"""Score reconstructions of held-out sentences from their embeddings: BLEU, chrF, ROUGE, exact matches.

hf-meanmax reconstruct runs/docstrings/model held-out.txt --limit 2000 --output reconstructions
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

from hf_meanmax.evaluation.reconstruction import ReconstructionSettings, score_checkpoint
from hf_meanmax.metrics import counted
from hf_meanmax.pretrained import DECODER_SOURCES

from .options import CORPUS_SOURCES, positional, verb, written


@dataclass
class ReconstructOptions:
    """The inputs and outputs of `hf-meanmax reconstruct`, besides its settings."""

    checkpoint: str = positional(f"a checkpoint with its decoder ({DECODER_SOURCES})")
    text: list[str] = positional(CORPUS_SOURCES)
    output: str | None = written("folder for scores, texts, and tables and figure of both", None, folder=True)


@verb("reconstruct")
def main(args: ReconstructOptions, settings: ReconstructionSettings) -> None:
    """Score reconstructions of held-out sentences from their embeddings."""
    scores = score_checkpoint(args.checkpoint, args.text, settings, output=args.output)
    print(json.dumps(scores, indent=1, ensure_ascii=False))
    print(
        f"BLEU {scores['bleu']:.1f} and chrF {scores['chrf']:.1f} of 100; {scores['exact_match']:.1%} of "
        f"{counted(scores['sentences'], 'text')} came back word for word",
        file=sys.stderr,
    )
