"""Memory, recall and speed of a nearest-sentence index at a given size, on synthetic vectors streamed from the disk.

    python benchmarks/search_size.py --rows 50000 --dimension 256 --index-type ivf-int8

The vectors are clustered and of low rank within a cluster, with a little noise, as sentence embeddings are; they are
written to shards, indexed as any embeddings are, and removed. Prints JSON: bytes a vector, peak memory, recall against
exact search, queries a second one at a time and 1,000 together.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import numpy as np
import torch

from hf_meanmax.hardware import peak_memory_bytes
from hf_meanmax.inference.index import IndexSettings, IndexType, Metric, build_index
from hf_meanmax.inference.search import SentenceIndex


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--dimension", type=int, default=256)
    parser.add_argument("--index-type", choices=get_args(IndexType), default="ivf-int8")
    parser.add_argument("--metric", choices=get_args(Metric), default="cosine")
    parser.add_argument("--factory")
    parser.add_argument("--nprobe", type=int)
    parser.add_argument("--clusters", type=int, default=1000, help="clusters of the vectors")
    parser.add_argument("--rank", type=int, default=48, help="directions in which the vectors of a cluster differ")
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float16", help="numbers in the shards")
    parser.add_argument("--shard-size", type=int, default=16384)
    parser.add_argument("--recall-queries", type=int, default=1000)
    parser.add_argument("--folder", help="where the shards and the index are made; by default a temporary folder")
    args = parser.parse_args()
    settings = IndexSettings(args.index_type, args.metric, factory=args.factory, nprobe=args.nprobe)

    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        start = time.perf_counter()
        shards = []
        for number, rows in enumerate(synthetic_vectors(args.rows, args)):
            shards.append(Path(folder) / f"shard-{number:06d}.npy")
            np.save(shards[-1], rows.astype(args.dtype))
        made = time.perf_counter()
        before = peak_memory_bytes(torch.device("cpu"))
        manifest = build_index(shards, Path(folder) / "index", settings, recall_queries=args.recall_queries)
        built, peak = time.perf_counter(), peak_memory_bytes(torch.device("cpu"))

        index = SentenceIndex(Path(folder) / "index")
        queries = next(synthetic_vectors(1000, args, seed=1))
        index.search(queries[:10], 10)
        times = []
        for query in queries[:50]:
            begun = time.perf_counter()
            index.search(query[None], 10)
            times.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        index.search(queries, 10)
        together = time.perf_counter() - begun
        size = (Path(folder) / "index" / "vectors.faiss").stat().st_size

    report = {
        "rows": args.rows,
        "dimension": args.dimension,
        "index": manifest.factory,
        "index_bytes": size,
        "bytes_per_vector": round(size / args.rows, 2),
        "peak_rss_bytes": peak,
        "rss_before_building_bytes": before,
        "recall": manifest.recall,
        "queries_per_second": round(1 / float(np.median(times)), 1),
        "queries_per_second_together": round(len(queries) / together, 1),
        "seconds_generating": round(made - start, 1),
        "seconds_building": round(built - made, 1),
        "threads": os.environ.get("OMP_NUM_THREADS", os.cpu_count()),
    }
    print(json.dumps(report, indent=2))


def synthetic_vectors(rows: int, args: argparse.Namespace, seed: int = 0) -> Iterator[np.ndarray]:
    """Batches of vectors `(<= shard_size, dimension)` float32 of the same distribution for every seed."""
    shape = np.random.default_rng(100)
    centres = shape.standard_normal((args.clusters, args.dimension), dtype=np.float32)
    spread = np.linspace(1, 0.1, args.rank, dtype=np.float32)[:, None]
    directions = spread * shape.standard_normal((args.rank, args.dimension), dtype=np.float32) / args.rank**0.5
    draw = np.random.default_rng(seed)
    for start in range(0, rows, args.shard_size):
        count = min(args.shard_size, rows - start)
        batch = centres[draw.integers(args.clusters, size=count)]
        batch += 1.5 * draw.standard_normal((count, args.rank), dtype=np.float32) @ directions
        batch += 0.1 * draw.standard_normal((count, args.dimension), dtype=np.float32)
        yield batch


if __name__ == "__main__":
    main()
