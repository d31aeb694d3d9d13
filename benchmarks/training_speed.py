"""Training speed on this machine: our loop against a plain one, and the share of the machine's matrix rate.

    python benchmarks/training_speed.py corpus.txt --vocab-size 20000

The plain loop has the same model, but batches in random order with padding, fp32 and the full softmax. Both see the
same sentences and as many tokens a step; they run in turn, so a machine that slows down slows both. Prints tokens/s
(real tokens, padding not counted), their ratio, the matrix rate that the machine reaches on large bf16 products and
on the very products of this model, the share of each that the loop reaches, and peak memory.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rounds import (
    FLOPS,
    Measured,
    add_options,
    device,
    fast_precision,
    measure_in_turn,
    report,
)

from hf_meanmax import MeanMaxAAEConfig, MeanMaxAAEForReconstruction
from hf_meanmax.data import BatchPlan, CandidateSampler, MicroBatches, SentenceFilter, build_token_store, open_corpus
from hf_meanmax.hardware import (
    attention_for,
    is_bf16_fast,
    prepare_training_on_cpu,
    synchronize,
)
from hf_meanmax.objectives import TrainingModel, build_objectives
from hf_meanmax.tokenization import train_tokenizer
from hf_meanmax.training.optimizer import RowAdam, clip_gradients
from hf_meanmax.training.summary import count_flops_per_token

PLAIN = "plain loop"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_sizes(parser)
    add_options(parser)
    parser.add_argument("--warm-up", type=int, default=2, help="steps before; a GPU needs some of each size")
    parser.add_argument(
        "--steps", type=int, default=12, help="steps of our loop in a measurement; the plain one takes 2"
    )
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        store, tokenizer = make_store(args, Path(folder))
        ours = Ours(args, store, make_model(args, len(tokenizer), device(), attention_for("auto", device())))
        plain = Plain(args, store, len(tokenizer), device())
        for loop in (ours, plain):
            loop.run(args.warm_up)

        def measure_ours() -> Measured:
            products = measure_model_products(args, ours.num_candidates)
            found = ours.run(args.steps)
            return {**found, "share of the rate of its own products": found[FLOPS] / products}

        loops = {"ours": measure_ours, PLAIN: lambda: plain.run(2)}
        found = measure_in_turn(loops, args.rounds, fast_precision(), dict.fromkeys(loops, PLAIN))
        report(found, args, f"d = {args.hidden_size:,}")


def add_sizes(parser):
    """The corpus, and the sizes of model and step."""
    parser.add_argument("corpus", nargs="+")
    parser.add_argument("--vocab-size", type=int, default=20000)
    parser.add_argument("--hidden-size", type=int, default=1024)
    parser.add_argument("--intermediate-size", type=int, default=2048)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--negatives", type=int, default=4000)
    parser.add_argument("--lines", type=int, default=200_000, help="lines of the corpus that are used")
    parser.add_argument("--min-tokens", type=int, default=4, help="shorter lines are left out")
    parser.add_argument("--max-tokens", type=int, default=32, help="longer lines are left out")


def make_store(args, folder):
    lines = []
    for line in open_corpus(args.corpus):
        lines.append(line)
        if len(lines) >= args.lines:
            break
    tokenizer = train_tokenizer(filter(None, lines), "word", args.vocab_size, show_progress=False)
    (folder / "corpus.txt").write_text("\n".join(lines), encoding="utf-8")
    rule = SentenceFilter(args.min_tokens, args.max_tokens, "drop")
    store = build_token_store(open_corpus(str(folder / "corpus.txt")), tokenizer, folder / "store", rule, False)
    return store, tokenizer


def make_model(args, vocab_size, device, attention):
    config = MeanMaxAAEConfig(
        vocab_size=vocab_size, hidden_size=args.hidden_size, intermediate_size=args.intermediate_size,
        embedding_dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    config._attn_implementation = attention
    return MeanMaxAAEForReconstruction(config).to(device).train()


def make_optimizer(model, lazy=False):
    """What the training loop makes of a model, its gradients and the allocator."""
    if model.device.type == "cpu":
        prepare_training_on_cpu()
    if model.device.type == "cpu" or lazy:
        model.make_gradients_sparse()
    return RowAdam(model.parameters(), lazy=lazy, lr=1e-3, fused=True)


class Ours:
    """What the training loop does at each step; on reconstruction with a sampled softmax unless `batches` are given.

    `feed(model, batch)` gives the decoder other inputs.
    """

    def __init__(self, args, store, model, batches=None, softmax="sampled", feed=None):
        self.model = model
        self.device = model.device
        self.use_bf16 = is_bf16_fast(self.device)
        self.optimizer = make_optimizer(self.model)
        if batches is None:
            plan = BatchPlan(store.lengths, args.batch_tokens, args.accumulation)
            batches = MicroBatches(store, plan, candidates=CandidateSampler(store.token_counts, args.negatives))
        self.batches = batches.iterate(0)
        self.training_model = TrainingModel(model, build_objectives(model.config, softmax=softmax))
        self.feed = feed
        self.num_candidates = 0
        self.flops_per_token = 0.0

    def run(self, steps, unit="tokens"):
        """So many steps; the speed is in target tokens or in sentences."""
        found, seconds = {"tokens": 0, "sentences": 0}, 0.0
        for _ in range(steps):
            _, micro_batches, num_targets = next(self.batches)
            if not self.flops_per_token:
                # Slow to count, and much the same for every batch.
                self.flops_per_token = count_flops_per_token(self.model, self.training_model.objectives, micro_batches)
            self.num_candidates = len(micro_batches[0].get("candidate_ids", ()))
            start = time.perf_counter()
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.use_bf16):
                for batch in micro_batches:
                    batch = {name: tensor.to(self.device) for name, tensor in batch.items()}
                    if self.feed is not None:
                        batch = self.feed(self.model, batch)
                    self.training_model(**batch, num_items_in_batch=num_targets).loss.backward()
                    found["sentences"] += len(batch["input_ids"])
            clip_gradients(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            synchronize(self.device)
            seconds += time.perf_counter() - start
            found["tokens"] += num_targets
        return {f"{unit}/s": found[unit] / seconds, FLOPS: self.flops_per_token * found["tokens"] / seconds}


def compare_loops(loops, args, title, unit="tokens"):
    """Measures the loops in turn; `unit` is "tokens" (targets) or "sentences"."""
    for loop in loops.values():
        loop.run(2)
    measurements = {name: partial(loop.run, args.steps, unit) for name, loop in loops.items()}
    report(measure_in_turn(measurements, args.rounds, fast_precision()), args, title)


class Plain:
    """The textbook loop: random batches padded to their longest row, fp32, full softmax, PyTorch's defaults."""

    def __init__(self, args, store, vocab_size, device):
        torch.manual_seed(0)
        self.device = device
        self.store = store
        self.model = make_model(args, vocab_size, device, "sdpa")
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.rng = np.random.default_rng(0)
        self.rows = max(1, round(args.batch_tokens * args.accumulation / float(store.lengths.mean())))

    def run(self, steps):
        tokens, seconds = 0, 0.0
        for _ in range(steps):
            start = time.perf_counter()
            rows = [
                torch.from_numpy(self.store[int(i)].astype(np.int64))
                for i in self.rng.integers(0, len(self.store), self.rows)
            ]
            ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0).to(self.device)
            mask = (ids != 0).long()
            labels = ids.masked_fill(mask == 0, -100)
            self.model(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            synchronize(self.device)
            seconds += time.perf_counter() - start
            tokens += int(mask.sum())
        return {"tokens/s": tokens / seconds}


def measure_model_products(args, num_candidates):
    """FLOP/s over the products of this model's layers, forward and backward, in sizes of one micro batch."""
    tokens, e, d, f = args.batch_tokens, 300, args.hidden_size, args.intermediate_size
    sizes = [(e, d)] * 6 + [(d, f), (f, d)] * 2 + [(d, d), (d, num_candidates)]
    options = {"device": device(), "dtype": getattr(torch, fast_precision())}
    flops, seconds = 0, 0.0
    for inner, outer in sizes:
        x, w, g = (torch.randn(size, **options) for size in ((tokens, inner), (outer, inner), (tokens, outer)))
        for product in (lambda x=x, w=w: x @ w.t(), lambda g=g, w=w: g @ w, lambda g=g, x=x: g.t() @ x):
            product()
            times = []
            for _ in range(5):
                start = time.perf_counter()
                product()
                synchronize(device())
                times.append(time.perf_counter() - start)
            seconds += statistics.median(times)
            flops += 2 * tokens * inner * outer
    return flops / seconds


if __name__ == "__main__":
    main()
