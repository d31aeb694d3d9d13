"""Encoding speed through SentenceTransformer.encode, tokenisation included, and through ONNX int8, against peers.

    python benchmarks/encoding_speed.py books.txt --peer sentence-transformers/all-MiniLM-L6-v2
    python benchmarks/encoding_speed.py books.txt --peer MiniLM=models/all-MiniLM-L6-v2 --latency

Ours are mean-max encoders of two sizes with random weights, which are as fast as trained ones, and `mini-en` of the
package; in int8 through the `encoder.py` of their exports, and as SentenceTransformers. The peers are any
SentenceTransformers, in their own right, as ONNX int8, and as ONNX int8 in the loop that exports of ours bring along;
and a StaticEmbedding (one vector a piece, their mean). Each takes the best of its batch sizes, in a process of its
own. All run in turn, so a machine that slows down slows them all. Prints sentences/s, the ratio to the first peer of
the same kind in the same round, the share of the matrix rate, peak memory, and where the time goes. `--latency`
encodes one text at a time instead, and prints percentiles of the milliseconds, of tokenisation and of the model apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rounds import FLOPS, MEMORY, Measured, Rounds, add_options, device, fast_precision, measure_in_turn, report
from tokenizers import Tokenizer
from worker import Worker

from hf_meanmax import MeanMaxAAEConfig, MeanMaxAAEForReconstruction, pretrained
from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.commands.options import named_folders
from hf_meanmax.data import open_corpus
from hf_meanmax.inference.encoder import load_encoder
from hf_meanmax.inference.onnx_encoder import INT8_MODEL, MODEL, SETTINGS, TOKENIZER, OnnxEncoder
from hf_meanmax.inference.onnx_export import export_onnx
from hf_meanmax.tokenization import train_tokenizer

SIZES = {"mean-max 512": (512, 1024), "mean-max 1024": (1024, 2048)}
PACKAGED, PEER, OUR_LOOP, INT8 = "mini-en", "peer ", ", our loop", ", ONNX int8"
STOCK_LOOP = ", SentenceTransformer"


def export_peer(name: str, folder: Path) -> str:
    """Mean of the last hidden states of any BERT-like model, as ONNX int8, in a folder as ours are exported to."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from sentence_transformers import SentenceTransformer

    folder.mkdir()
    model = SentenceTransformer(name, device="cpu")
    inner = model[0].auto_model.float().eval()

    class Mean(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            states = self.inner(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            mask = attention_mask.unsqueeze(-1).to(states.dtype)
            return (states * mask).sum(1) / mask.sum(1)

    batch = model.tokenizer(["a text", "another text of some words"], padding=True, return_tensors="pt")
    dims = {0: torch.export.Dim("texts"), 1: torch.export.Dim("tokens")}
    whole = str(folder / MODEL)
    torch.onnx.export(
        Mean(), (batch["input_ids"], batch["attention_mask"]), dynamo=True, dynamic_shapes=(dims, dims),
        opset_version=20, input_names=["input_ids", "attention_mask"], verbose=False,
    ).save(whole)  # fmt: skip
    quantize_dynamic(whole, str(folder / INT8_MODEL), weight_type=QuantType.QInt8, per_channel=True)
    model.tokenizer.backend_tokenizer.save(str(folder / TOKENIZER))
    settings = {
        "dimension": inner.config.hidden_size, "pad_token_id": model.tokenizer.pad_token_id,
        "max_tokens": model.max_seq_length, "split_special_tokens": False,
    }  # fmt: skip
    (folder / SETTINGS).write_text(json.dumps(settings), encoding="utf-8")
    return str(folder)


class OnnxPeer:
    """What [`export_peer`] wrote, with the tokenizer of the model."""

    def __init__(self, name: str, folder: str) -> None:
        import onnxruntime
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(name)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = torch.get_num_threads()
        self.session = onnxruntime.InferenceSession(f"{folder}/{INT8_MODEL}", options)

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


class TimedSession:
    """A session of onnxruntime and the seconds that it has run."""

    def __init__(self, session: Any) -> None:
        self.session, self.seconds = session, 0.0

    def run(self, outputs: Any, inputs: Any) -> Any:
        start = time.perf_counter()
        found = self.session.run(outputs, inputs)
        self.seconds += time.perf_counter() - start
        return found


def load_fast(name: str) -> Any:
    """A SentenceTransformer in the fast precision of the machine."""
    return load_encoder(name, device=device()).to(getattr(torch, fast_precision()))


def load_int8(folder: str) -> OnnxEncoder:
    return OnnxEncoder(folder, int8=True, threads=torch.get_num_threads())


def load_int8_module(folder: str) -> Any:
    return load_encoder(f"{folder}/{INT8_MODEL}")


def make_static(tokenizer: str) -> Any:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    module = StaticEmbedding(Tokenizer.from_file(tokenizer), embedding_dim=256)
    return SentenceTransformer(modules=[module], device=str(device()))


class Encoding:
    """An encoder and what is measured of it.

    Args:
        texts: to encode.
        make: what makes the encoder.
        arguments: of it.
    """

    def __init__(self, texts: list[str], make: Callable[..., Any], *arguments: str) -> None:
        self.texts, self.batch_size = texts, 1
        self.encoder = make(*arguments)
        if hasattr(self.encoder, "session"):
            self.encoder.session = TimedSession(self.encoder.session)

    def choose_batch_size(self, sizes: list[int]) -> int:
        """The fastest on some texts, enough for two of the largest batches; each is tried twice."""
        few = self.texts[: max(500, 2 * max(sizes))]
        times = {size: min(seconds_of(self.encoder, few, size) for _ in range(2)) for size in sizes}
        self.batch_size = min(times, key=lambda size: times[size])
        return self.batch_size

    def throughput(self) -> Measured:
        return {"sentences/s": len(self.texts) / seconds_of(self.encoder, self.texts, self.batch_size)}

    def latency(self) -> Measured:
        """Of texts that are encoded one at a time."""
        whole = [seconds_of(self.encoder, [text], 1) for text in self.texts]
        parts = np.array([self._parts([text]) for text in self.texts])
        found = {"texts/s": len(whole) / sum(whole)}
        for percentile in (50, 99):
            found[f"p{percentile}, ms"] = 1e3 * float(np.percentile(whole, percentile))
        for place, part in enumerate(("tokenisation", "model")):
            for percentile in (50, 99):
                found[f"{part} p{percentile}, ms"] = 1e3 * float(np.percentile(parts[:, place], percentile))
        return found

    def where_time_goes(self) -> dict[str, str]:
        """Shares of tokenisation and of the model; the rest is sorting, collation and copies."""
        whole = statistics.median(seconds_of(self.encoder, self.texts, self.batch_size) for _ in range(3))
        order = sorted(self.texts, key=len, reverse=True)
        batches = [order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size)]
        tokenising, running = np.sum([self._parts(batch) for batch in batches], axis=0)
        return {"tokenisation": f"{tokenising / whole:.0%}", "model": f"{running / whole:.0%}"}

    @torch.inference_mode()
    def _parts(self, texts: list[str]) -> tuple[float, float]:
        """Seconds of tokenisation and of the model, for one batch."""
        start = time.perf_counter()
        if hasattr(self.encoder, "session"):
            before = self.encoder.session.seconds
            self.encoder.encode(texts, len(texts))
            running = self.encoder.session.seconds - before
            return time.perf_counter() - start - running, running
        inputs = self.encoder.preprocess(texts)
        made = time.perf_counter()
        inputs = {k: v.to(device()) if isinstance(v, torch.Tensor) else v for k, v in inputs.items()}
        self.encoder(inputs)["sentence_embedding"].cpu()
        return made - start, time.perf_counter() - made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", nargs="+")
    parser.add_argument("--peer", nargs="*", default=[], help="SentenceTransformers: folders, NAME=FOLDER, or names")
    parser.add_argument("--latency", action="store_true", help="one text at a time")
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--vocab-size", type=int, default=20000)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[16, 32, 64, 1024])
    add_options(parser)
    args = parser.parse_args()

    lines = [line for line in open_corpus(args.corpus) if line]
    chosen = np.random.default_rng(0).choice(len(lines), min(args.sentences, len(lines)), replace=False)
    texts = [lines[row] for row in chosen]
    with tempfile.TemporaryDirectory() as folder:
        places, flops = make_encoders(args, lines, Path(folder))
        workers = {name: Worker(Encoding, texts, *place) for name, place in places.items()}
        references = peers_of(workers)
        if args.latency:
            runs = {name: partial(worker.call, "latency") for name, worker in workers.items()}
            for worker in workers.values():
                worker.call("latency")
            found = measure_in_turn(runs, args.rounds, fast_precision(), references)
            facts: dict[str, dict[str, Any]] = {name: {} for name in workers}
        else:
            found, facts = measure_throughput(
                workers, args.batch_sizes, args.rounds, fast_precision(), references, flops
            )
            for name in SIZES:
                facts[name] |= workers[name].call("where_time_goes")
        found.facts = {name: {**facts[name], MEMORY: worker.peak_memory()} for name, worker in workers.items()}
        report(found, args, "encoder")


def peers_of(encoders: Iterable[str]) -> dict[str, str]:
    """By encoder, the first peer of its kind (int8 or not)."""
    first: dict[bool, str] = {}
    for name in encoders:
        if name.startswith(PEER):
            first.setdefault(name.endswith(INT8), name)
    return {name: first.get(name.endswith(INT8), name) for name in encoders}


def measure_throughput(
    workers: dict[str, Worker],
    batch_sizes: list[int],
    rounds: int,
    precision: str,
    references: dict[str, str] | None = None,
    flops: dict[str, float] | None = None,
) -> tuple[Rounds, dict[str, dict[str, Any]]]:
    """Sentences/s of each [`Encoding`], with the best of the batch sizes, which are among the facts; `flops` are those
    of a sentence."""
    flops = flops or {}
    facts = {name: {"batch size": worker.call("choose_batch_size", batch_sizes)} for name, worker in workers.items()}

    def measure(name: str) -> Measured:
        found = workers[name].call("throughput")
        return found | ({FLOPS: found["sentences/s"] * flops[name]} if name in flops else {})

    runs = {name: partial(measure, name) for name in workers}
    return measure_in_turn(runs, rounds, precision, references), facts


def make_encoders(args: Any, lines: list[str], folder: Path) -> tuple[dict[str, tuple[Any, ...]], dict[str, float]]:
    """By name, what makes an [`Encoding`]'s encoder, and for ours the FLOPs of the products a sentence."""
    tokenizer = train_tokenizer(lines[:200_000], "word", args.vocab_size, show_progress=False)
    tokens = float(np.mean([len(ids) for ids in tokenizer(lines[:5000])["input_ids"]]))
    places: dict[str, tuple[Any, ...]] = {}
    flops = {}
    for name, (size, inner) in SIZES.items():
        config = MeanMaxAAEConfig(vocab_size=len(tokenizer), hidden_size=size, intermediate_size=inner)
        path = save_checkpoint(MeanMaxAAEForReconstruction(config), tokenizer, folder / name)
        places[name] = (load_fast, str(path))
        flops[name] = 2 * tokens * (3 * config.embedding_size * size + 2 * size * inner)
    places[PACKAGED] = (load_fast, pretrained(PACKAGED))
    for name, (_, path) in list(places.items()):
        export_onnx(path, folder / f"{name}{INT8}")
        places[f"{name}{INT8}"] = (load_int8, str(folder / f"{name}{INT8}"))
        places[f"{name}{STOCK_LOOP}{INT8}"] = (load_int8_module, str(folder / f"{name}{INT8}"))
    for name, peer in named_folders(args.peer).items():
        places[f"{PEER}{name}"] = (load_fast, peer)
        exported = export_peer(peer, folder / f"{name}{INT8}")
        places[f"{PEER}{name}{INT8}"] = (OnnxPeer, peer, exported)
        places[f"{PEER}{name}{OUR_LOOP}{INT8}"] = (load_int8, exported)
    tokenizer.backend_tokenizer.save(str(folder / "static.json"))
    places["static embedding 256"] = (make_static, str(folder / "static.json"))
    return places, flops


def seconds_of(encoder: Any, texts: list[str], batch_size: int) -> float:
    start = time.perf_counter()
    encoder.encode(texts, batch_size=batch_size)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
