"""Nearest sentences of a corpus by a model, and how many of a reference model's ten nearest are among them.

    python benchmarks/neighbours.py runs/student-small/model wiki.txt --queries queries.txt \\
        --reference sentence-transformers/all-MiniLM-L6-v2

Prints the three nearest sentences of the first ten queries. `--reference_vectors` takes the reference's vectors of the
corpus, row by row, in place of encoding it. With `--same_space`, also what the model's queries find in the reference's
index, and the reference's queries in the model's.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from hf_meanmax.cosines import unit_rows
from hf_meanmax.data import open_corpus
from hf_meanmax.inference.encoder import encode_texts, load_encoder

SHOWN = 3


def recall(found: np.ndarray, wanted: np.ndarray) -> str:
    """The share of `wanted` `(Q, k)` that is in `found` `(Q, k)`, and its standard error over the queries."""
    shares = [len(set(a) & set(b)) / len(b) for a, b in zip(found.tolist(), wanted.tolist(), strict=True)]
    return f"{np.mean(shares):.3f} (standard error {np.std(shares) / len(shares) ** 0.5:.3f})"


def main() -> None:
    import faiss

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("corpus", nargs="+")
    parser.add_argument("--queries", required=True, help="a text file, one query a line")
    parser.add_argument("--reference", help="a SentenceTransformer whose neighbours are taken for right")
    parser.add_argument("--reference_vectors", help=".npy of the corpus")
    parser.add_argument("--same_space", action="store_true")
    parser.add_argument("--neighbours", type=int, default=10)
    args = parser.parse_args()

    texts = [line for line in open_corpus(args.corpus) if line]
    queries = [line for line in open_corpus([args.queries]) if line]
    args.neighbours = min(args.neighbours, len(texts))

    def index_of(vectors: np.ndarray) -> faiss.Index:
        index = faiss.IndexFlatIP(vectors.shape[1])
        index.add(vectors)
        return index

    def encode(encoder: object, texts: list[str]) -> np.ndarray:
        return unit_rows(encode_texts(encoder, texts, 64))

    model = load_encoder(args.model, device="cpu")
    own, asked = index_of(encode(model, texts)), encode(model, queries)
    scores, rows = own.search(asked, args.neighbours)
    for number, query in enumerate(queries[:10]):
        print(f"- **{query}**")
        for score, row in zip(scores[number, :SHOWN], rows[number, :SHOWN], strict=True):
            print(f"    - {score:.2f} {texts[row]}")
    if args.reference is None:
        return
    reference = load_encoder(args.reference, device="cpu")
    given = args.reference_vectors
    vectors = unit_rows(np.load(given).astype(np.float32)) if given else encode(reference, texts)
    if len(vectors) != len(texts):
        raise SystemExit(f"{Path(given).name} has {len(vectors):,} rows and the corpus {len(texts):,} sentences.")
    other, asked_there = index_of(vectors), encode(reference, queries)
    wanted = other.search(asked_there, args.neighbours)[1]
    print(f"recall@{args.neighbours} of {len(queries)} queries among {len(texts):,}: {recall(rows, wanted)}")
    if args.same_space:
        for name, index, vectors in (
            ("own queries in its", other, asked),
            ("its queries in the own", own, asked_there),
        ):
            print(f"{name} index: {recall(index.search(vectors, args.neighbours)[1], wanted)}")


if __name__ == "__main__":
    main()
