"""Training speed against TSDAE of sentence-transformers, on the same sentences.

    python benchmarks/training_peers.py books.txt

TSDAE has the architecture of all-MiniLM-L6-v2 by its sizes alone (random weights, a WordPiece tokenizer of 30,522
pieces that is trained on the same text), its published noise (0.6 of the words deleted) and tied weights; its batches
are made as its trainer makes them, tokenisation included. Both have the fast precision of the machine. They run in
turn, each in a process of its own, so a machine that slows down slows both. Prints target tokens/s, each by its own
tokenizer, words/s, which do not depend on one, the ratios of the same round, and the memory that each takes.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rounds import MEMORY, Measured, add_options, device, fast_precision, measure_in_turn, report
from train_peer import Peer, train_tokenizer
from training_speed import Ours, add_sizes, make_model, make_store
from worker import Worker

from hf_meanmax.hardware import attention_for


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_sizes(parser)
    add_options(parser)
    parser.add_argument("--tsdae-sentences", type=int, default=64, help="sentences of a step of TSDAE")
    parser.add_argument("--steps", type=int, default=8, help="steps of ours in a measurement; TSDAE takes half of them")
    args = parser.parse_args()

    workers = {"ours": Worker(OursInWords, args), "TSDAE": Worker(Tsdae, args)}
    steps = {"ours": args.steps, "TSDAE": max(1, args.steps // 2)}
    measurements = {name: partial(worker.call, "run", steps[name]) for name, worker in workers.items()}
    for worker in workers.values():
        worker.call("run", 2)
    found = measure_in_turn(measurements, args.rounds, fast_precision(), dict.fromkeys(workers, "TSDAE"))
    found.facts = {name: {MEMORY: worker.peak_memory()} for name, worker in workers.items()}
    report(found, args, f"d = {args.hidden_size:,}")


class OursInWords:
    """Our loop; it tells words too."""

    def __init__(self, args: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            store, tokenizer = make_store(args, Path(folder))
            lines = sentences_of(args, Path(folder), tokenizer)
            self.words = sum(len(line.split()) for line in lines) / int(store.lengths.sum())
            self.loop = Ours(args, store, make_model(args, len(tokenizer), device(), attention_for("auto", device())))

    def run(self, steps: int) -> Measured:
        rate = self.loop.run(steps)["tokens/s"]
        return {"target tokens/s": rate, "words/s": rate * self.words}


class Tsdae:
    """TSDAE as sentence-transformers trains it."""

    def __init__(self, args: Any) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            _, tokenizer = make_store(args, folder)
            self.lines = sentences_of(args, folder, tokenizer)
            torch.manual_seed(0)
            self.peer = Peer("tsdae", train_tokenizer(self.lines), folder, device(), learning_rate=3e-5)
        self.batch_size = min(args.tsdae_sentences, len(self.lines))
        self.random = random.Random(0)

    def run(self, steps: int) -> Measured:
        tokens, words, seconds = 0, 0, 0.0
        for _ in range(steps):
            texts = self.random.sample(self.lines, self.batch_size)
            start = time.perf_counter()
            tokens += self.peer.step(texts)
            seconds += time.perf_counter() - start
            words += sum(len(text.split()) for text in texts)
        return {"target tokens/s": tokens / seconds, "words/s": words / seconds}


def sentences_of(args: Any, folder: Path, tokenizer: Any) -> list[str]:
    """The sentences of the store that `make_store` made."""
    lines = [line for line in (folder / "corpus.txt").read_text(encoding="utf-8").split("\n") if line]
    lengths = map(len, tokenizer(lines, add_special_tokens=False)["input_ids"])
    return [line for line, n in zip(lines, lengths, strict=True) if args.min_tokens <= n <= args.max_tokens]


if __name__ == "__main__":
    main()
