"""What training and encoding cost as sentences, width, vocabulary, corpus and the number of processes grow.

    python benchmarks/scaling.py books.txt --output results/scaling
    python benchmarks/scaling.py books.txt --output results/scaling --parts lengths widths

Each point is measured in a process of its own, so that its peak memory is its own; medians of some rounds.
Sentences are random words, all of one length: the cost depends on sizes alone. `vocabulary` has a tied output, with
Adam and with `--lazy_adam`, and trains where the tables (weights, two moments, and Adam's gradient) fit into the memory
that is free.
`corpus` measures the tokenised store at three sizes and draws the line to 100 million sentences. `stores` starts on
stores of random tokens, up to 1,000 million. `processes` is one process on one core against two on one core each.
`gpus` is arithmetic with its assumptions, not a measurement.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from kill_resume import Processes
from rounds import GIB, Rounds, add_options, fast_precision, report
from rounds import device as default_device
from training_speed import make_optimizer

from hf_meanmax import MeanMaxAAEConfig, MeanMaxAAEForReconstruction
from hf_meanmax.data import (
    BatchPlan,
    MicroBatches,
    SentenceFilter,
    StoreReport,
    TokenStore,
    build_token_store,
    open_corpus,
)
from hf_meanmax.data.token_store import FORMAT_VERSION, ArrayWriter
from hf_meanmax.files import replacing_file
from hf_meanmax.hardware import (
    attention_for,
    count_flops,
    is_bf16_fast,
    measure_matrix_rate,
    peak_memory_bytes,
    synchronize,
)
from hf_meanmax.objectives import TrainingModel, build_objectives
from hf_meanmax.tokenization import train_tokenizer
from hf_meanmax.training.checkpoints import read_metrics
from hf_meanmax.training.optimizer import clip_gradients

LENGTHS = (8, 16, 32, 64, 128, 256)
WIDTHS = (256, 512, 1024, 2048)
VOCABULARIES = (20_000, 80_000, 200_000, 500_000, 2_000_000)
TARGET_SENTENCES = 100_000_000


def measure(task: dict[str, Any]) -> dict[str, float]:
    """Medians of one point: tokens/s of training and of encoding, their shares of the matrix rate, peak memory."""
    device = default_device()
    use_bf16 = is_bf16_fast(device)
    torch.manual_seed(0)
    size, length = task["hidden_size"], task["length"]
    config = MeanMaxAAEConfig(
        vocab_size=task["vocab_size"], hidden_size=size, intermediate_size=2 * size, max_position_embeddings=512,
        embedding_dropout=0.0, attention_dropout=0.0, tie_word_embeddings=task["tied"],
    )  # fmt: skip
    config._attn_implementation = attention_for("auto", device)
    model = MeanMaxAAEForReconstruction(config).to(device)
    rows = max(1, task["batch_tokens"] // length)
    ids = torch.randint(5, task["vocab_size"], (rows, length), device=device)
    candidates = torch.unique(torch.cat([ids.flatten(), torch.arange(task["negatives"], device=device)]))
    batch = {
        "input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids, "candidate_ids": candidates,
        "candidate_log_prob": torch.zeros(len(candidates), device=device),
    }  # fmt: skip
    optimizer = make_optimizer(model, task["lazy"])
    training_model = TrainingModel(model, build_objectives(config, softmax="sampled"))

    def loss(twin: MeanMaxAAEForReconstruction, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return TrainingModel(twin, training_model.objectives)(**batch, num_items_in_batch=1).loss

    def train() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=use_bf16):
            training_model(**batch, num_items_in_batch=ids.numel()).loss.backward()
        clip_gradients(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    @torch.inference_mode()
    def encode() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=use_bf16):
            model.base_model(input_ids=ids, attention_mask=batch["attention_mask"])

    found: dict[str, float] = {}
    rate = measure_matrix_rate(device, torch.bfloat16 if use_bf16 else torch.float32)
    if task["trains"]:
        found["training tokens/s"] = ids.numel() / median_seconds(train, task["rounds"], device)
        found["training share"] = count_flops(model, batch, loss) / ids.numel() * found["training tokens/s"] / rate
    model.eval()
    found["encoding tokens/s"] = ids.numel() / median_seconds(encode, task["rounds"], device)
    found["peak memory, GiB" if task["trains"] else "peak memory of encoding, GiB"] = peak_memory_bytes(device) / GIB
    found["weights, GiB"] = sum(weights.numel() * weights.element_size() for weights in model.parameters()) / GIB
    return found


def median_seconds(step: Callable[[], None], rounds: int, device: torch.device) -> float:
    step()
    times = []
    for _ in range(rounds):
        synchronize(device)
        start = time.perf_counter()
        step()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def scale_model(args: Any, part: str) -> list[dict[str, Any]]:
    """The points of lengths, widths or vocabularies."""
    base = {"length": 16, "hidden_size": args.hidden_size, "vocab_size": 20_000, "batch_tokens": args.batch_tokens,
            "negatives": args.negatives, "rounds": args.rounds, "trains": True, "tied": False,
            "lazy": False}  # fmt: skip
    if part == "lengths":
        tasks = [{**base, "length": length} for length in LENGTHS]
    elif part == "widths":
        tasks = [{**base, "hidden_size": width} for width in WIDTHS]
    else:
        free = psutil.virtual_memory().available
        # A table that is trained has its weights, two moments, and a gradient unless Adam is lazy.
        tasks = [
            {**base, "vocab_size": size, "tied": True, "lazy": lazy,
             "trains": 4 * size * 300 * (3 if lazy else 4) < 0.8 * free}
            for size in VOCABULARIES for lazy in (False, True)
        ]  # fmt: skip
        for task in [task for task in tasks if 4 * task["vocab_size"] * 300 > 0.8 * free]:
            print(f"{task['vocab_size']:,} words do not fit into {free / GIB:.0f} GiB and are left out", flush=True)
            tasks.remove(task)
    grows = {"lengths": "length", "widths": "hidden_size", "vocabulary": "vocab_size"}[part]
    rows = []
    for task in tasks:
        lazy = {"lazy": task["lazy"]} if part == "vocabulary" else {}
        rows.append({grows: task[grows], **lazy, **alone(measure, task)})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def measure_store(args: Any, lines: int, folder: str) -> dict[str, float]:
    """Seconds, bytes and growth of memory of tokenising so many lines, and of making the batches of an epoch."""
    texts = list(islice(filter(None, open_corpus(args.corpus)), lines))
    path = Path(folder) / "corpus.txt"
    path.write_text("\n".join(texts), encoding="utf-8")
    tokenizer = train_tokenizer(texts[:50_000], "word", 20_000, show_progress=False)
    number = len(texts)
    del texts
    before = psutil.Process().memory_info().rss
    start = time.perf_counter()
    rule = SentenceFilter(4, 32, "drop")
    store = build_token_store(open_corpus(str(path)), tokenizer, Path(folder) / "store", rule, False)
    tokenising = time.perf_counter() - start
    start = time.perf_counter()
    plan = BatchPlan(store.lengths, args.batch_tokens)
    plan.epoch(0)
    planning = time.perf_counter() - start
    size = sum(file.stat().st_size for file in (Path(folder) / "store").rglob("*") if file.is_file())
    return {"sentences": number, "tokenising, s": tokenising, "planning, s": planning, "disk, MiB": size / 2**20,
            "memory growth, MiB": (psutil.Process().memory_info().rss - before) / 2**20}  # fmt: skip


def scale_corpus(args: Any) -> list[dict[str, Any]]:
    """Three sizes, and the straight line through them at 100 million sentences."""
    rows = []
    for lines in (args.lines // 4, args.lines // 2, args.lines):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(alone(measure_store, args, lines, folder))
        print(json.dumps(rows[-1]), flush=True)
    sizes = [row["sentences"] for row in rows]
    if sizes[-1] < 2 * sizes[0]:
        raise SystemExit(f"The corpus has {sizes[-1]:,} lines, too few for --lines {args.lines}.")
    drawn: dict[str, Any] = {"sentences": TARGET_SENTENCES}
    for name in list(rows[0])[1:]:
        slope, start = np.polyfit(sizes, [row[name] for row in rows], 1)
        drawn[name] = float(slope * TARGET_SENTENCES + start)
    drawn["extrapolated"] = True
    return [*rows, drawn]


def generate_store(folder: Path, sentences: int) -> None:
    """A token store of random sentences of 4-34 words, written a part at a time."""
    random = np.random.default_rng(0)
    lengths = random.integers(5, 36, sentences)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens, vocabulary = int(offsets[-1]), 20_000
    parts: dict[str, Iterable[np.ndarray]] = {
        "tokens": (
            random.integers(4, vocabulary, min(1 << 26, tokens - start)).astype("<u2")
            for start in range(0, tokens, 1 << 26)
        ),
        "offsets": [offsets],
        "document_starts": [np.arange(0, sentences, 20)],
        "positions": [(np.arange(sentences) % 20).astype("<i4")],
        "token_counts": [np.full(vocabulary, tokens // vocabulary)],
    }
    arrays = {}
    for name, chunks in parts.items():
        writer = ArrayWriter(folder, name, {"tokens": "<u2", "positions": "<i4"}.get(name, "<i8"))
        for chunk in chunks:
            writer.append(chunk)
        arrays[name] = writer.close()
    report = asdict(StoreReport(lines=sentences, kept=sentences, tokens=tokens))
    meta = {"format_version": FORMAT_VERSION, "fingerprint": "", "eos_token_id": 2, "pad_token_id": 0}
    (folder / "store.json").write_text(json.dumps({**meta, "report": report, "arrays": arrays}), encoding="utf-8")


def measure_start(args: Any, folder: Path) -> dict[str, float]:
    """Seconds until the first batch of a store, its speed then, and how much memory of its own the process takes."""
    before = own_memory()
    start = time.perf_counter()
    store = TokenStore.open(folder)
    opening = time.perf_counter() - start
    batches = MicroBatches(store, BatchPlan(store.lengths, args.batch_tokens)).iterate(0)
    next(batches)
    first = time.perf_counter() - start
    tokens = sum(number for _, _, number in islice(batches, 500))
    rate = tokens / (time.perf_counter() - start - first)
    memory = (own_memory() - before) / 2**20
    batches.close()
    return {"tokens": store.report.tokens, "checked, s": opening, "first batch, s": first, "tokens/s": rate,
            "own memory, MiB": memory}  # fmt: skip


def own_memory() -> int:
    """Bytes that are this process's alone: those of a mapped file are the system's to drop."""
    memory = psutil.Process().memory_info()
    return memory.rss - memory.shared


def scale_stores(args: Any) -> list[dict[str, Any]]:
    """Starting on stores of so many sentences of 20 tokens."""
    rows = []
    for sentences in args.store_sentences:
        with tempfile.TemporaryDirectory() as name:
            generate_store(Path(name), sentences)
            rows.append({"sentences": sentences, **alone(measure_start, args, Path(name))})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def scale_processes(args: Any) -> list[dict[str, Any]]:
    """Tokens/s of a training run on one process and on two, a core each, and on one process with both cores."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = list(islice(filter(None, open_corpus(args.corpus)), 100_000))
        (folder / "corpus.txt").write_text("\n".join(lines), encoding="utf-8")
        for processes, threads in ((1, 1), (1, 2), (2, 1)):
            output = folder / f"{processes}-{threads}"
            words = [
                "mean-max-aae-small", "--corpus", str(folder / "corpus.txt"), "--cache_dir", str(folder / "cache"),
                "--output_dir", str(output), "--hidden_size", str(args.hidden_size), "--intermediate_size",
                str(2 * args.hidden_size), "--batch_tokens", str(args.batch_tokens), "--max_steps", str(args.steps),
                "--log_steps", str(max(1, args.steps // 4)), "--eval_steps", "0", "--sample_sentences", "0",
            ]  # fmt: skip
            os.environ["OMP_NUM_THREADS"] = str(threads)
            run = Processes(processes, words, folder / "log", fork=False)
            run.wait()
            first, *_, last = (record for record in read_metrics(output) if "loss" in record)
            # The first quarter warms up.
            rate = (last["tokens"] - first["tokens"]) / (last["minutes"] - first["minutes"]) / 60
            rows.append({"processes": processes, "threads of each": threads, "tokens/s": rate})
            print(json.dumps(rows[-1]), flush=True)
    for row in rows:
        row["efficiency"] = row["tokens/s"] / rows[0]["tokens/s"] / (row["processes"] * row["threads of each"])
    return rows


def estimate_gpus(args: Any) -> list[dict[str, Any]]:
    """Efficiency of eight GPUs, where a step's gradients are summed while nothing else happens: a lower bound."""
    with torch.device("meta"):
        config = MeanMaxAAEConfig(vocab_size=21_000, hidden_size=2048, intermediate_size=4096)
        model = MeanMaxAAEForReconstruction(config)
    weights = sum(weight.numel() for weight in model.parameters())
    rows = []
    for tokens in (4096, 16384, 65536):
        ids = torch.zeros(tokens // 16, 16, dtype=torch.long, device="meta")
        flops = count_flops(model, {"input_ids": ids, "labels": ids})
        compute = flops / (args.gpu_rate * 1e12 * args.gpu_share)
        # A ring all-reduce sends and receives each gradient (fp32) almost twice.
        exchange = 2 * 7 / 8 * 4 * weights / (args.gpu_bandwidth * 1e9)
        rows.append({
            "tokens a step and GPU": tokens, "compute, ms": 1e3 * compute, "exchange, ms": 1e3 * exchange,
            "efficiency": compute / (compute + exchange), "million tokens/s": 8 * tokens / (compute + exchange) / 1e6,
        })  # fmt: skip
    return rows


PARTS: dict[str, Callable[[Any], list[dict[str, Any]]]] = {
    "lengths": lambda args: scale_model(args, "lengths"),
    "widths": lambda args: scale_model(args, "widths"),
    "vocabulary": lambda args: scale_model(args, "vocabulary"),
    "corpus": scale_corpus,
    "stores": scale_stores,
    "processes": scale_processes,
    "gpus": estimate_gpus,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", nargs="+")
    parser.add_argument("--output", required=True, help="folder of scaling.json")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--hidden-size", type=int, default=512)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--negatives", type=int, default=4000)
    parser.add_argument("--lines", type=int, default=400_000, help="of the largest corpus that is measured")
    parser.add_argument(
        "--store-sentences", type=int, nargs="+", default=[500_000, 5_000_000, 50_000_000], help="of each random store"
    )
    parser.add_argument("--steps", type=int, default=60, help="of a training run on one process and on two")
    parser.add_argument("--gpu-rate", type=float, default=700.0, help="assumed TFLOP/s of large bf16 products")
    parser.add_argument("--gpu-share", type=float, default=0.45, help="assumed share of it that training reaches")
    parser.add_argument("--gpu-bandwidth", type=float, default=200.0, help="assumed GB/s of each GPU in an all-reduce")
    add_options(parser)
    args = parser.parse_args()
    output = Path(args.output)
    output.mkdir(parents=True, exist_ok=True)
    path = output / "scaling.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    for part in args.parts:
        found[part] = PARTS[part](args)
        with replacing_file(path) as file:
            json.dump({**found, "settings": vars(args)}, file, indent=1)
    report(measured(found, args.parts), args, "size")


def measured(found: dict[str, list[dict[str, Any]]], parts: Sequence[str]) -> Rounds:
    """The points of some parts, by what grows."""
    figures: dict[str, dict[str, list[float]]] = {}
    for part in parts:
        for point in found[part]:
            grows, *_ = point
            settings = [f"{grows.replace('_', ' ')} {point[grows]:,}"]
            settings += [name for name, value in point.items() if value is True]
            settings += [f"{point[name]} {name}" for name in ("threads of each",) if name in point]
            numbers = {k: v for k, v in point.items() if k not in (grows, "threads of each") and type(v) is not bool}
            figures[", ".join(settings)] = {name: [value] for name, value in numbers.items()}
    return Rounds(figures, precision=fast_precision())


if __name__ == "__main__":
    main()
