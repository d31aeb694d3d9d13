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
import multiprocessing
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from train_peer import Peer, train_tokenizer
from training_speed import Ours, add_options, make_model, make_store

from hf_meanmax.hardware import attention_for, is_bf16_fast, peak_memory_bytes


class Tsdae:
    """A step of TSDAE as sentence-transformers trains it."""

    def __init__(self, args: Any, lines: list[str], folder: Path, device: torch.device) -> None:
        torch.manual_seed(0)
        self.peer = Peer("tsdae", train_tokenizer(lines), folder, device, learning_rate=3e-5)
        self.lines, self.batch_size = lines, args.tsdae_sentences
        self.random = random.Random(0)

    def run(self, steps: int) -> tuple[int, int, float]:
        """Target tokens, words and seconds."""
        tokens, words, seconds = 0, 0, 0.0
        for _ in range(steps):
            texts = self.random.sample(self.lines, self.batch_size)
            start = time.perf_counter()
            tokens += self.peer.step(texts)
            seconds += time.perf_counter() - start
            words += sum(len(text.split()) for text in texts)
        return tokens, words, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser)
    parser.add_argument("--tsdae-sentences", type=int, default=64, help="sentences of a step of TSDAE")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each")
    parser.add_argument("--steps", type=int, default=8, help="steps of ours in a measurement; TSDAE takes half of them")
    args = parser.parse_args()

    rates: dict[str, list[float]] = {name: [] for name in ("ours", "ours words", "tsdae", "tsdae words")}
    steps = {"ours": args.steps, "tsdae": max(1, args.steps // 2)}
    workers = {name: Worker(args, name) for name in steps}
    for name, worker in workers.items():
        print(f"{name}: {worker.receive()}", flush=True)
    for number in range(args.rounds):
        for name, worker in workers.items():
            tokens, words, seconds = worker.run(steps[name])
            rates[name].append(tokens / seconds)
            rates[f"{name} words"].append(words / seconds)
        print(
            f"round {number + 1}  ours {rates['ours'][-1]:8,.0f} target tokens/s  "
            f"TSDAE {rates['tsdae'][-1]:8,.0f}  ratio {rates['ours'][-1] / rates['tsdae'][-1]:.1f}  in words "
            f"{rates['ours words'][-1] / rates['tsdae words'][-1]:.1f}",
            flush=True,
        )
    ratios = [a / b for a, b in zip(rates["ours"], rates["tsdae"], strict=True)]
    in_words = [a / b for a, b in zip(rates["ours words"], rates["tsdae words"], strict=True)]
    memory = {name: worker.run(0) / 2**30 for name, worker in workers.items()}
    print(
        f"medians: ours {statistics.median(rates['ours']):,.0f} target tokens/s, TSDAE "
        f"{statistics.median(rates['tsdae']):,.0f}; ratio {statistics.median(ratios):.1f} "
        f"({min(ratios):.1f}-{max(ratios):.1f}), in words {statistics.median(in_words):.1f} "
        f"({min(in_words):.1f}-{max(in_words):.1f}); peak memory {memory['ours']:.2f} and {memory['tsdae']:.2f} GiB"
    )


class Worker:
    """A loop in a process of its own, with its own memory and the allocator that its users have; one runs at a time."""

    def __init__(self, args: Any, which: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        context.Process(target=work, args=(args, which, theirs), daemon=True).start()

    def receive(self) -> Any:
        """What the process says next."""
        return self.connection.recv()

    def run(self, steps: int) -> Any:
        """Target tokens, words and seconds of so many steps; bytes of peak memory for none."""
        self.connection.send(steps)
        return self.receive()


def work(args: Any, which: str, connection: Any) -> None:
    """Serves a [`Worker`]."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store, tokenizer = make_store(args, folder)
        lines = [line for line in (folder / "corpus.txt").read_text(encoding="utf-8").split("\n") if line]
        lengths = map(len, tokenizer(lines, add_special_tokens=False)["input_ids"])
        lines = [line for line, n in zip(lines, lengths, strict=True) if args.min_tokens <= n <= args.max_tokens]
        words = sum(len(line.split()) for line in lines) / int(store.lengths.sum())
        if which == "ours":
            loop: Any = Ours(args, store, make_model(args, len(tokenizer), device, attention_for("auto", device)))
        else:
            loop = Tsdae(args, lines, folder, device)
        loop.run(2)
        precision = "bf16" if is_bf16_fast(device) else "fp32"
        connection.send(f"{torch.get_num_threads()} threads, {device.type}, {precision}")
        while True:
            try:
                steps = connection.recv()
            except EOFError:
                return
            if not steps:
                connection.send(peak_memory_bytes(device))
                continue
            if which == "ours":
                tokens, seconds, _ = loop.run(steps)
                connection.send((tokens, tokens * words, seconds))
            else:
                connection.send(loop.run(steps))


if __name__ == "__main__":
    main()
