"""Training speed of RNN-CNN against the decoders that its paper compares, on the same sentences, in sentences/s.

    python benchmarks/context_speed.py books.txt

Predict-all-words decoders, autoregressive ones with each kind of input, and skip-thought with encoders of as many units
(600) and of as wide a vector (1,200), each with the sampled and with the full softmax. All run in turn, so a machine
that slows down slows them all. Prints sentences/s of each, its ratio to the first in the same round, and the share of
the matrix rate that its products reach.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

import torch
from rounds import add_options, device
from training_speed import Ours, compare_loops, make_store

from hf_meanmax import RNNCNNConfig, RNNCNNForContextPrediction
from hf_meanmax.data import BatchPlan, CandidateSampler, ContextSentences, MicroBatches
from hf_meanmax.hardware import attention_for
from hf_meanmax.objectives.decoder_inputs import feed_decoder

SKIP_THOUGHT = {
    "encoder_type": "gru", "pooling": "last", "decoder_type": "gru", "predict_previous": True,
    "tie_word_embeddings": False,
}  # fmt: skip
SYSTEMS = {
    "predict-all-words CNN": ({}, "words"),
    "predict-all-words RNN": ({"decoder_type": "words_rnn"}, "words"),
    "autoregressive RNN, words": ({"decoder_type": "gru"}, "words"),
    "autoregressive RNN, own samples": ({"decoder_type": "gru"}, "own"),
    "autoregressive RNN, random words": ({"decoder_type": "gru"}, "random"),
    "skip-thought, 600 units": (SKIP_THOUGHT, "words"),
    "skip-thought, 1,200 units": ({**SKIP_THOUGHT, "hidden_size": 1200}, "words"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", nargs="+", help="sentences in order, a blank line between documents")
    parser.add_argument("--vocab-size", type=int, default=20000)
    parser.add_argument("--hidden-size", type=int, default=600)
    parser.add_argument("--sentences", type=int, default=64, help="sentences of a step")
    parser.add_argument("--negatives", type=int, default=2000)
    parser.add_argument("--softmax", choices=("sampled", "full"), default="sampled")
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--steps", type=int, default=3, help="steps of a measurement")
    parser.add_argument("--lines", type=int, default=100_000, help="lines of the corpus that are used")
    parser.add_argument("--max-tokens", type=int, default=32, help="longer sentences are context alone")
    add_options(parser)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        limit, args.max_tokens, args.min_tokens = args.max_tokens, None, 1
        store, tokenizer = make_store(args, Path(folder))
        loops = {}
        for name in args.systems:
            settings, inputs = SYSTEMS[name]
            torch.manual_seed(0)
            config = RNNCNNConfig(**{"vocab_size": len(tokenizer), "hidden_size": args.hidden_size, **settings})
            config._attn_implementation = attention_for("auto", device())
            model = RNNCNNForContextPrediction(config).to(device()).train()
            objective = "neighbours" if config.predict_previous else "next_words"
            sentences = ContextSentences(store, objective, 4, limit, config.num_context_words)
            # As many sentences a step for all, whatever their targets take.
            budget = round(args.sentences * float(sentences.costs().mean()))
            sampler = CandidateSampler(store.token_counts, args.negatives) if args.softmax == "sampled" else None
            batches = MicroBatches(sentences, BatchPlan(sentences.costs(), budget, 1), candidates=sampler)
            feed = partial(feed_decoder, inputs=inputs)
            loops[name] = Ours(args, store, model, batches, softmax=args.softmax, feed=feed)
        compare_loops(loops, args, f"{args.softmax} softmax, about {args.sentences} sentences a step", "sentences")


if __name__ == "__main__":
    main()
