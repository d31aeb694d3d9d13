"""Training speed of the gated paper's five systems on the same batches: attention against recurrence.

    python benchmarks/family_speed.py texts.txt --max-tokens 60

The systems run in turn, so a machine that slows down slows them all. Prints tokens/s of each (real tokens, padding not
counted), its ratio to the first in the same round, and the share of the matrix rate that it reaches.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from rounds import add_options, device
from training_speed import Ours, compare_loops, make_store

from hf_meanmax import GatedMeanMaxAAEConfig, GatedMeanMaxAAEForReconstruction
from hf_meanmax.hardware import attention_for

RECURRENT = {"encoder_type": "bilstm", "position_embedding_type": "none"}
SYSTEMS = {
    "gated mean-max AAE": {},
    "gated mean AAE": {"pooling": "mean"},
    "gated max AAE": {"pooling": "max"},
    "gated mean-max RAE": {**RECURRENT, "pooling": "mean_max_last", "decoder_type": "lstm_gates"},
    "RAE": {**RECURRENT, "pooling": "last", "decoder_type": "lstm"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", nargs="+")
    parser.add_argument("--vocab-size", type=int, default=20000)
    parser.add_argument("--embedding-size", type=int, default=256)
    parser.add_argument("--hidden-size", type=int, default=512)
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--negatives", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=8, help="steps of a measurement")
    parser.add_argument("--lines", type=int, default=50_000, help="lines of the corpus that are used")
    parser.add_argument("--min-tokens", type=int, default=10, help="shorter lines are left out")
    parser.add_argument("--max-tokens", type=int, default=60, help="longer lines are left out")
    add_options(parser)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        store, tokenizer = make_store(args, Path(folder))
        loops = {}
        for name, settings in SYSTEMS.items():
            torch.manual_seed(0)
            config = GatedMeanMaxAAEConfig(
                vocab_size=len(tokenizer), embedding_size=args.embedding_size, hidden_size=args.hidden_size,
                intermediate_size=2 * args.hidden_size, embedding_dropout=0.0, attention_dropout=0.0, **settings,
            )  # fmt: skip
            config._attn_implementation = attention_for("auto", device())
            loops[name] = Ours(args, store, GatedMeanMaxAAEForReconstruction(config).to(device()).train())
        compare_loops(loops, args, f"d = {args.hidden_size:,}")


if __name__ == "__main__":
    main()
