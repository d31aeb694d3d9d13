"""Greedy decoding speed of a model, one vector at a time and in batches, with and without the decoder's cache.

    python benchmarks/decoding_speed.py books.txt --model mini-en

Decodes the vectors that the model itself gives of some sentences. Each form is a process of its own; they run in turn,
so a machine that slows down slows them all. All must decode the same texts. Prints generated tokens/s and vectors/s,
their ratios to one vector at a time without a cache, and peak memory. Of the batch sizes, each takes its best.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import numpy as np
from rounds import MEMORY, Measured, add_options, device, measure_in_turn, report
from worker import Worker

from hf_meanmax.checkpoint.folder import load_checkpoint, load_target_tokenizer
from hf_meanmax.data import open_corpus
from hf_meanmax.inference.decode import generate_ids
from hf_meanmax.inference.encode import draw_lines, load_encoder
from hf_meanmax.pretrained import packaged_folder


class Decoding:
    """A model, the vectors that it decodes, and how.

    Args:
        name: of the checkpoint.
        vectors: `(N, D)`.
        max_length: most tokens of a text.
        use_cache: whether the decoder keeps what it has computed of earlier tokens.
    """

    def __init__(self, name: str, vectors: np.ndarray, max_length: int, use_cache: bool) -> None:
        self.model, tokenizer = load_checkpoint(name)
        self.model.to(device()).eval()
        self.tokenizer = load_target_tokenizer(name, self.model.config, tokenizer)
        self.vectors, self.batch_size = vectors, 1
        self.options = {"max_new_tokens": max_length, "use_cache": use_cache, "num_beams": 1, "do_sample": False}
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
    """Ends with an error unless all forms decoded the same texts."""
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

    name = str(packaged_folder(args.model) or args.model)
    texts = draw_lines((line for line in open_corpus(args.corpus) if 4 <= len(line.split()) <= 32), args.sentences)
    vectors = load_encoder(name, device=device()).encode(texts, batch_size=32)
    forms = {
        f"{batches}, {'cache' if use_cache else 'no cache'}": (sizes, use_cache)
        for batches, sizes in (("one vector at a time", [1]), ("batches", args.batch_sizes))
        for use_cache in (False, True)
    }
    workers = {form: Worker(Decoding, name, vectors, args.max_length, cache) for form, (_, cache) in forms.items()}
    sizes = {form: worker.call("choose_batch_size", forms[form][0]) for form, worker in workers.items()}
    runs = {form: partial(worker.call, "throughput") for form, worker in workers.items()}
    found = measure_in_turn(runs, args.rounds)
    check_same({form: worker.call("texts") for form, worker in workers.items()})
    found.facts = {form: {"batch size": sizes[form], MEMORY: worker.peak_memory()} for form, worker in workers.items()}
    report(found, args, args.model)


if __name__ == "__main__":
    main()
