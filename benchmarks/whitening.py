"""What whitening does to cosines: STS12 to STS16 with raw vectors and with whitened ones, beside untrained encoders.

    python benchmarks/whitening.py runs/mine/model --texts my.txt --data data --output whitening.json

Each encoder's components are fitted to its own vectors of the same texts. The controls (see
`hf_meanmax.evaluation.controls`) have the word vectors and the dimension of the first model.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hf_meanmax.commands.options import named_folders
from hf_meanmax.data import open_corpus
from hf_meanmax.evaluation.controls import make_controls
from hf_meanmax.evaluation.suite import load_tasks
from hf_meanmax.files import replacing_file
from hf_meanmax.inference.compression import PCA
from hf_meanmax.inference.encode import draw_lines
from hf_meanmax.inference.encoder import encode_texts, load_encoder

TASKS = ("STS12", "STS13", "STS14", "STS15", "STS16")
RAW = "raw"


def correlations(
    encode: Callable[[list[str]], np.ndarray], fitted_on: list[str], tasks: list[Any], dimensions: list[int]
) -> dict[str, list[float]]:
    """Mean Pearson correlation of each task, for raw vectors and for so many whitened numbers."""
    rows = np.asarray(encode(fitted_on), dtype=np.float64)
    texts = sorted({text for task in tasks for text in task.sentences()})
    vectors = np.asarray(encode(texts), dtype=np.float64)
    kinds = {RAW: vectors}
    possible = [dimension for dimension in dimensions if dimension <= rows.shape[1]]
    if possible:
        weight, bias = PCA.fit(rows, max(possible)).whitening()
        whitened = vectors @ weight.T + bias
        kinds |= {str(dimension): whitened[:, :dimension] for dimension in possible}
    found = {}
    for kind, values in kinds.items():
        by_text = dict(zip(texts, values, strict=True))
        found[kind] = [
            task.evaluate(lambda asked, known=by_text: np.array([known[text] for text in asked])).metrics["pearson"]
            for task in tasks
        ]
        found[kind].append(float(np.mean(found[kind])))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="NAME=FOLDER", help="SentenceTransformers")
    parser.add_argument("--texts", required=True, nargs="+", help="what whitening is fitted to")
    parser.add_argument("--data", required=True, help="folder with senteval/")
    parser.add_argument("--output", required=True, help="JSON file")
    parser.add_argument("--rows", type=int, default=16384, help="texts that are drawn")
    parser.add_argument("--dimensions", nargs="+", type=int, default=[128, 256, 512], help="whitened numbers")
    args = parser.parse_args()
    tasks = load_tasks(",".join(TASKS), args.data)
    texts = draw_lines(filter(None, open_corpus(args.texts)), args.rows)
    results: dict[str, dict[str, list[float]]] = {}

    def measure(name: str, encode: Callable[[list[str]], np.ndarray]) -> None:
        results[name] = correlations(encode, texts, tasks, args.dimensions)
        for kind, values in results[name].items():
            print(f"| {name} | {kind} | {' | '.join(f'{value:.3f}' for value in values)} |", flush=True)
        with replacing_file(args.output) as file:
            json.dump({"tasks": [*TASKS, "mean"], "texts": len(texts), "pearson": results}, file, indent=1)

    for number, (name, folder) in enumerate(named_folders(args.models).items()):
        model = load_encoder(folder)
        measure(name, partial(encode_texts, model, batch_size=64))
        if number == 0:
            for control in make_controls(
                model, (0,), ("random_encoder", "random_projection", "echo_state_network", "bag")
            ):
                measure(control.name, control.encode)


if __name__ == "__main__":
    main()
