"""Encoding speed through SentenceTransformer.encode, tokenisation included, and through ONNX int8, against peers.

    python benchmarks/encoding_speed.py books.txt --peer all-MiniLM-L6-v2

Ours are mean-max encoders of two sizes with random weights, which are as fast as trained ones. The peers are any
SentenceTransformers, in their own right and as ONNX int8, and a StaticEmbedding (one vector a piece, their mean). Each
takes the best of its batch sizes. All run in turn, so a machine that slows down slows them all. Prints sentences/s, the
ratio to the first peer in the same round, the share of the matrix rate, and where our time goes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rounds import FLOPS, Measured, Rounds, add_options, device, fast_precision, measure_in_turn, report

from hf_meanmax import MeanMaxAAEConfig, MeanMaxAAEForReconstruction
from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.data import open_corpus
from hf_meanmax.inference.onnx_encoder import OnnxEncoder
from hf_meanmax.inference.onnx_export import export_onnx
from hf_meanmax.tokenization import train_tokenizer

SIZES = {"mean-max 512": (512, 1024), "mean-max 1024": (1024, 2048)}


class OnnxPeer:
    """Mean of the last hidden states of any BERT-like model, as ONNX int8."""

    def __init__(self, model: Any, folder: Path) -> None:
        import onnxruntime
        from onnxruntime.quantization import QuantType, quantize_dynamic

        inner, self.tokenizer = model[0].auto_model.float().eval(), model.tokenizer

        class Mean(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = inner

            def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
                states = self.inner(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
                mask = attention_mask.unsqueeze(-1).to(states.dtype)
                return (states * mask).sum(1) / mask.sum(1)

        batch = self.tokenizer(["a text", "another text of some words"], padding=True, return_tensors="pt")
        dims = {0: torch.export.Dim("texts"), 1: torch.export.Dim("tokens")}
        torch.onnx.export(
            Mean(), (batch["input_ids"], batch["attention_mask"]), dynamo=True, dynamic_shapes=(dims, dims),
            opset_version=20, input_names=["input_ids", "attention_mask"], verbose=False,
        ).save(str(folder / "peer.onnx"))  # fmt: skip
        quantize_dynamic(
            str(folder / "peer.onnx"), str(folder / "peer8.onnx"), weight_type=QuantType.QInt8, per_channel=True
        )
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = torch.get_num_threads()
        self.session = onnxruntime.InferenceSession(str(folder / "peer8.onnx"), options)

    def encode(self, texts: list[str], batch_size: int) -> np.ndarray:
        order = np.argsort([-len(text) for text in texts], kind="stable")
        vectors: Any = [None] * len(texts)
        for start in range(0, len(texts), batch_size):
            rows = order[start : start + batch_size]
            batch = self.tokenizer([texts[row] for row in rows], padding=True, return_tensors="np")
            inputs = {name: batch[name].astype(np.int64) for name in ("input_ids", "attention_mask")}
            for row, vector in zip(rows, self.session.run(None, inputs)[0], strict=True):
                vectors[row] = vector
        return np.stack(vectors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", nargs="+")
    parser.add_argument("--peer", nargs="*", default=[], help="SentenceTransformers (folders or names)")
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--vocab-size", type=int, default=20000)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[16, 32, 64])
    add_options(parser)
    args = parser.parse_args()

    lines = [line for line in open_corpus(args.corpus) if line]
    chosen = np.random.default_rng(0).choice(len(lines), min(args.sentences, len(lines)), replace=False)
    texts = [lines[row] for row in chosen]
    dtype = getattr(torch, fast_precision())
    with tempfile.TemporaryDirectory() as folder:
        encoders, flops = make_encoders(args, lines, Path(folder), device(), dtype)
        found = measure_encoders(encoders, texts, args.batch_sizes, args.rounds, peers_of(encoders), flops)
        report(found, args, "encoder")
        for name in SIZES:
            print(f"{name}: {where_time_goes(encoders[name], texts, found.facts[name]['batch size'])}")


def peers_of(encoders: Iterable[str]) -> dict[str, str]:
    """By encoder, the first peer of its kind (int8 or not)."""
    first: dict[bool, str] = {}
    for name in encoders:
        if name.startswith("peer"):
            first.setdefault(name.endswith("int8"), name)
    return {name: first.get(name.endswith("int8"), name) for name in encoders}


def measure_encoders(
    encoders: dict[str, Any],
    texts: list[str],
    batch_sizes: list[int],
    rounds: int,
    references: dict[str, str] | None = None,
    flops: dict[str, float] | None = None,
) -> Rounds:
    """Sentences/s of each, with the best of the batch sizes; `flops` are those of a sentence."""
    flops = flops or {}
    sizes = {name: best_batch_size(encoder, texts, batch_sizes) for name, encoder in encoders.items()}

    def measure(name: str) -> Measured:
        rate = len(texts) / seconds_of(encoders[name], texts, sizes[name])
        return {"sentences/s": rate} | ({FLOPS: rate * flops[name]} if name in flops else {})

    found = measure_in_turn({name: partial(measure, name) for name in encoders}, rounds, fast_precision(), references)
    found.facts = {name: {"batch size": size} for name, size in sizes.items()}
    return found


def make_encoders(
    args: Any, lines: list[str], folder: Path, device: torch.device, dtype: torch.dtype
) -> tuple[dict[str, Any], dict[str, float]]:
    """Encoders by name, and for ours the FLOPs of the products a sentence."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    tokenizer = train_tokenizer(lines[:200_000], "word", args.vocab_size, show_progress=False)
    tokens = float(np.mean([len(ids) for ids in tokenizer(lines[:5000])["input_ids"]]))
    encoders: dict[str, Any] = {}
    flops = {}
    for name, (size, inner) in SIZES.items():
        config = MeanMaxAAEConfig(vocab_size=len(tokenizer), hidden_size=size, intermediate_size=inner)
        path = save_checkpoint(MeanMaxAAEForReconstruction(config), tokenizer, folder / name)
        encoders[name] = SentenceTransformer(str(path), device=str(device), model_kwargs={"dtype": dtype})
        flops[name] = 2 * tokens * (3 * config.embedding_size * size + 2 * size * inner)
        export_onnx(path)
        encoders[f"{name}, ONNX int8"] = OnnxEncoder(path / "onnx", int8=True, threads=torch.get_num_threads())
    for number, peer in enumerate(args.peer, 1):
        model = SentenceTransformer(peer, device=str(device), model_kwargs={"dtype": dtype})
        encoders[f"peer {Path(peer).name}"] = model
        (folder / str(number)).mkdir()
        single = SentenceTransformer(peer, device="cpu")
        encoders[f"peer {Path(peer).name}, ONNX int8"] = OnnxPeer(single, folder / str(number))
    static = StaticEmbedding(tokenizer.backend_tokenizer, embedding_dim=256)
    encoders["static embedding 256"] = SentenceTransformer(modules=[static], device=str(device))
    return encoders, flops


def seconds_of(encoder: Any, texts: list[str], batch_size: int) -> float:
    start = time.perf_counter()
    encoder.encode(texts, batch_size=batch_size)
    return time.perf_counter() - start


def best_batch_size(encoder: Any, texts: list[str], sizes: list[int]) -> int:
    """Each is tried twice, and the second time counts."""
    few = texts[:500]
    times = {size: min(seconds_of(encoder, few, size) for _ in range(2)) for size in sizes}
    return min(times, key=lambda size: times[size])


@torch.inference_mode()
def where_time_goes(model: Any, texts: list[str], batch_size: int) -> str:
    """Shares of tokenisation, the model, and the rest (sorting, collation, copies)."""
    whole = statistics.median(seconds_of(model, texts, batch_size) for _ in range(3))
    order = sorted(texts, key=len, reverse=True)
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    start = time.perf_counter()
    features = [model.preprocess(batch) for batch in batches]
    tokenising = time.perf_counter() - start
    features = [{k: v.to(model.device) if isinstance(v, torch.Tensor) else v for k, v in f.items()} for f in features]
    start = time.perf_counter()
    for feature in features:
        model(feature)["sentence_embedding"].cpu()
    running = time.perf_counter() - start
    rest = max(0.0, whole - tokenising - running)
    return f"tokenisation {tokenising / whole:.0%}, model {running / whole:.0%}, the rest {rest / whole:.0%}"


if __name__ == "__main__":
    main()
