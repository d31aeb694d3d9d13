"""Decoding speed of a model: greedy, one vector at a time and in batches, with and without the cache, and with beams.

    python benchmarks/decoding_speed.py books.txt --model mini-en

Decodes the vectors that the model itself gives of some sentences. Each form is a process of its own; they run in turn,
so a machine that slows down slows them all. All must decode the same texts, but for those in bf16, where the machine is
fast at that, and for those of beams, which must be the same as each other. One keeps the rows that have ended to the
end of their batch, and one has the beam search of transformers, which does so too. Prints generated tokens/s and
vectors/s, their ratios to one vector at a time without a cache, and peak memory. Of the batch sizes, each takes its
best.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from functools import partial

import numpy as np
from rounds import MEMORY, Measured, add_options, device, fast_precision, measure_in_turn, report
from transformers import LogitsProcessorList
from worker import Worker

from hf_meanmax.checkpoint.folder import load_checkpoint, load_target_tokenizer
from hf_meanmax.data import open_corpus
from hf_meanmax.hardware import COMPUTE_DTYPES
from hf_meanmax.inference.decode import generate_ids
from hf_meanmax.inference.encode import draw_lines
from hf_meanmax.inference.encoder import load_encoder
from hf_meanmax.modeling import generation
from hf_meanmax.pretrained import packaged_folder

BEAMS = 8


@dataclass(frozen=True)
class Form:
    """How vectors are decoded.

    Args:
        batch_sizes: of which the fastest is taken.
        use_cache: whether the decoder keeps what it has computed of earlier tokens.
        drops_ended: whether rows leave the batch when they have ended; with beams, texts, and without it the search is
            that of transformers.
        dtype: numbers in the model.
        num_beams: beams of a text; 1 is greedy.
    """

    batch_sizes: list[int]
    use_cache: bool = True
    drops_ended: bool = True
    dtype: str = "float32"
    num_beams: int = 1


class Decoding:
    """A model, the vectors `(N, D)` that it decodes to texts of `max_length` tokens at most, and how."""

    def __init__(self, name: str, vectors: np.ndarray, max_length: int, form: Form) -> None:
        self.model, tokenizer = load_checkpoint(name)
        self.model.to(device(), COMPUTE_DTYPES[form.dtype]).eval()
        self.tokenizer = load_target_tokenizer(name, self.model.config, tokenizer)
        self.vectors, self.batch_size = vectors, 1
        self.options: dict[str, object] = {
            "max_new_tokens": max_length, "use_cache": form.use_cache, "num_beams": form.num_beams, "do_sample": False,
        }  # fmt: skip
        if not form.drops_ended:
            generation.WORDS_OF_A_STAGE = max_length
            if form.num_beams > 1:
                self.options["logits_processor"] = LogitsProcessorList()
        self.ids: list[list[int]] = []

    def choose_batch_size(self, sizes: list[int]) -> int:
        """The fastest on all vectors; each is tried once, after one vector to warm up."""
        self._decode(self.vectors[:1])
        times = {}
        for self.batch_size in sizes:
            start = time.perf_counter()
            self._decode(self.vectors)
            times[self.batch_size] = time.perf_counter() - start
        self.batch_size = min(times, key=lambda size: times[size])
        return self.batch_size

    def throughput(self) -> Measured:
        start = time.perf_counter()
        self.ids = self._decode(self.vectors)
        seconds = time.perf_counter() - start
        return {"tokens/s": sum(map(len, self.ids)) / seconds, "vectors/s": len(self.vectors) / seconds}

    def texts(self) -> list[str]:
        """What was decoded last."""
        return self.tokenizer.batch_decode(self.ids)

    def _decode(self, vectors: np.ndarray) -> list[list[int]]:
        return generate_ids(self.model, self.tokenizer, vectors, self.batch_size, **self.options)


def check_same(decoded: dict[str, list[str]]) -> None:
    """Ends with an error unless all forms, of as many beams, decoded the same texts."""
    first = next(iter(decoded.values()))
    for form, texts in decoded.items():
        differing = sum(one != other for one, other in zip(first, texts, strict=True))
        if differing:
            raise SystemExit(f"{form}: {differing:,} of {len(first):,} texts are not those of the first form.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", nargs="+")
    parser.add_argument("--model", default="mini-en", help="a checkpoint, or a model of the package")
    parser.add_argument("--sentences", type=int, default=256, help="vectors that are decoded")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[32, 64, 128, 256])
    parser.add_argument("--max-length", type=int, default=64, help="most tokens of a text")
    add_options(parser)
    args = parser.parse_args()

    folder = str(packaged_folder(args.model) or args.model)
    texts = draw_lines((line for line in open_corpus(args.corpus) if 4 <= len(line.split()) <= 32), args.sentences)
    vectors = load_encoder(folder, device=device()).encode(texts, batch_size=32)
    forms = {
        "one vector at a time, no cache": Form([1], use_cache=False),
        "one vector at a time": Form([1]),
        "batches, no cache": Form(args.batch_sizes, use_cache=False),
        "batches, ended rows kept": Form(args.batch_sizes, drops_ended=False),
        "batches": Form(args.batch_sizes),
    }
    few = sorted({max(1, size // BEAMS) for size in args.batch_sizes})
    forms[f"{BEAMS} beams, of transformers"] = Form(few, drops_ended=False, num_beams=BEAMS)
    forms[f"{BEAMS} beams"] = Form(few, num_beams=BEAMS)
    if fast_precision() == "bfloat16":
        forms["one vector at a time, bf16"] = Form([1], dtype="bfloat16")
        forms["batches, bf16"] = Form(args.batch_sizes, dtype="bfloat16")
        forms[f"{BEAMS} beams, bf16"] = Form(few, dtype="bfloat16", num_beams=BEAMS)
    workers = {name: Worker(Decoding, folder, vectors, args.max_length, form) for name, form in forms.items()}
    sizes = {name: worker.call("choose_batch_size", forms[name].batch_sizes) for name, worker in workers.items()}
    runs = {name: partial(worker.call, "throughput") for name, worker in workers.items()}
    found = measure_in_turn(runs, args.rounds)
    for beams in (1, BEAMS):
        exact = [name for name, form in forms.items() if form.dtype == "float32" and form.num_beams == beams]
        check_same({name: workers[name].call("texts") for name in exact})
    found.facts = {name: {"batch size": sizes[name], MEMORY: worker.peak_memory()} for name, worker in workers.items()}
    report(found, args, args.model)


if __name__ == "__main__":
    main()
