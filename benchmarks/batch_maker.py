"""Speed and padding of the token store and the batch maker, in one process.

    python benchmarks/batch_maker.py "corpora/books-en/train-*.txt.xz" --store runs/books_store

Builds the store with a word-level tokenizer (or opens it, if it is there), then makes the batches of one epoch: plain,
with denoising noise, and with the candidates of a sampled softmax. Prints target tokens/s and the share of padding.
Without `--store` it is made in a temporary folder.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from itertools import islice
from typing import Any

from rounds import Measured, add_options, measure_in_turn, report

from hf_meanmax.data import (
    BatchPlan,
    CandidateSampler,
    Documents,
    MicroBatches,
    Noise,
    SentenceFilter,
    build_token_store,
    open_corpus,
)
from hf_meanmax.tokenization import train_tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="+", help="text files or globs")
    parser.add_argument("--lines", type=int, help="read so many alone")
    parser.add_argument("--store", help="folder of the token store")
    parser.add_argument("--batch_tokens", type=int, default=16_384)
    parser.add_argument("--min_tokens", type=int, default=4)
    parser.add_argument("--max_tokens", type=int, default=32)
    parser.add_argument("--num_negatives", type=int, default=4000)
    add_options(parser, rounds=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(args, args.store or f"{folder}/store")


def run(args: argparse.Namespace, folder: str) -> None:
    corpus = Documents([list(islice(open_corpus(args.corpus), args.lines))]) if args.lines else open_corpus(args.corpus)
    tokenizer = train_tokenizer(islice(filter(None, corpus), 200_000), kind="word", vocab_size=20_000)
    start = time.perf_counter()
    store = build_token_store(corpus, tokenizer, folder, SentenceFilter(args.min_tokens, args.max_tokens, "drop"))
    print(f"store: {store.report}\n  ready after {time.perf_counter() - start:.1f} s")

    start = time.perf_counter()
    plan = BatchPlan(store.lengths, args.batch_tokens)
    plan.epoch(0)
    print(f"plan of {plan.num_micro_batches:,} micro batches: {time.perf_counter() - start:.2f} s")
    options = {
        "plain": {},
        "noise": {"noise": Noise(0.1, 0.1)},
        f"{args.num_negatives} negatives": {"candidates": CandidateSampler(store.token_counts, args.num_negatives)},
    }

    def measure(option: dict[str, Any]) -> Measured:
        start = time.perf_counter()
        tokens = sum(num_targets for _, _, num_targets in MicroBatches(store, plan, **option).iterate(0))
        return {"tokens/s": tokens / (time.perf_counter() - start)}

    found = measure_in_turn({name: partial(measure, option) for name, option in options.items()}, args.rounds)
    found.facts = {name: {"padding": f"{plan.padding_rate:.2%}"} for name in options}
    report(found, args, "batches")


if __name__ == "__main__":
    main()
