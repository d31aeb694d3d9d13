"""Vectors of several models beside each other: quality by plain cosines, speed in the same run, size, reconstruction.

    HF_MEANMAX_DATA=... python benchmarks/vectors.py sentence-transformers/all-MiniLM-L6-v2 mini-en \\
        student=runs/student-small/model --texts held-out.txt --output vectors.json

The first model is what the others' speed is a multiple of. Any SentenceTransformer will do (a folder,
NAME=FOLDER, or a name), and a folder that model2vec has saved, where that package is installed. Speed is that of
`encode`, of one model after the other in every round, each with the best of the batch sizes and in a process of its
own. `--speed_only` and `--no_speed` leave a half away.
"""

from __future__ import annotations

import argparse
import json
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from encoding_speed import Encoding, measure_throughput
from huggingface_hub import snapshot_download
from rounds import MEMORY, add_options, report
from worker import Worker

from hf_meanmax.checkpoint.folder import check_checkpoint, is_own_checkpoint
from hf_meanmax.commands.options import named_folders
from hf_meanmax.data import open_corpus
from hf_meanmax.evaluation.reconstruction import ReconstructionSettings, score_checkpoint
from hf_meanmax.evaluation.senteval import load_senteval_task
from hf_meanmax.evaluation.suite import data_folder
from hf_meanmax.files import write_json
from hf_meanmax.inference.encoder import load_encoder
from hf_meanmax.pretrained import packaged_folder

STS = ("STS12", "STS13", "STS14", "STS15", "STS16")
EIGHT = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC", "SICK-E")


def load(name: str) -> Any:
    """A SentenceTransformer, or a model of model2vec."""
    config = Path(name) / "config.json"
    if config.is_file() and json.loads(config.read_text()).get("model_type") == "model2vec":
        from model2vec import StaticModel

        return StaticModel.from_pretrained(name)
    return load_encoder(name, device="cpu")


def quality(encode: Any, all_eight: bool) -> dict[str, float]:
    """Pearson correlations of plain cosines, and of SICK-R's head; with `all_eight` the accuracies too."""
    scores = {}
    for name in (*STS, "STSB", "SICK-R", *(EIGHT if all_eight else ())):
        result = load_senteval_task(name, data_folder()).evaluate(encode)
        scores[name] = float(result.metrics["cosine_pearson"] if name == "STSB" else result.score)
    scores["STS12-16"] = statistics.mean(scores[name] for name in STS)
    if all_eight:
        scores["eight tasks"] = statistics.mean(scores[name] for name in EIGHT)
    return scores


def megabytes(folder: str) -> float:
    """Of the weights, in a folder or on the Hub."""
    if not Path(folder).is_dir():
        folder = snapshot_download(folder, allow_patterns="*.safetensors")
    return sum(path.stat().st_size for path in Path(folder).rglob("*.safetensors") if path.is_file()) / 1e6


def has_decoder(name: str) -> bool:
    """Whether a folder is a checkpoint of this package that can decode."""
    folder = Path(name)
    if not folder.is_dir() or not is_own_checkpoint(folder):
        return False
    try:
        return check_checkpoint(folder).has_decoder
    except ValueError:
        return False  # an encoder alone


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--texts", nargs="+", required=True, help="held-out sentences, for speed and reconstruction")
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[32, 64, 128])
    parser.add_argument("--eight", action="store_true", help="the eight tasks of SentEval as well")
    parser.add_argument("--speed_only", action="store_true")
    parser.add_argument("--no_speed", action="store_true")
    parser.add_argument("--output", help="a json file of sizes and quality")
    add_options(parser)
    args = parser.parse_args()

    folders = named_folders(args.models)
    folders = {name: str(packaged_folder(folder) or folder) for name, folder in folders.items()}
    lines = [line for line in open_corpus(args.texts) if 4 <= len(line.split()) <= 32]
    texts = [lines[row] for row in np.random.default_rng(0).permutation(len(lines))[: args.sentences]]
    if not args.no_speed:
        sizes = {name: megabytes(folder) for name, folder in folders.items()}
        workers = {name: Worker(Encoding, texts, load, folder) for name, folder in folders.items()}
        found, facts = measure_throughput(workers, args.batch_sizes, args.rounds, "float32")
        found.facts = {
            name: {"size, MB": sizes[name], **facts[name], MEMORY: worker.peak_memory()}
            for name, worker in workers.items()
        }
        report(found, args, "model")
        for worker in workers.values():
            worker.close()
    if args.speed_only:
        return
    rows: dict[str, dict[str, Any]] = {}
    content = {"threads": torch.get_num_threads(), "sentences": len(texts), "rows": rows}
    for name, folder in folders.items():
        encoder = load(folder)
        rows[name] = {
            "megabytes": megabytes(folder),
            "numbers": int(np.asarray(encoder.encode(["a text"])).shape[1]),
            **quality(partial(encoder.encode, batch_size=64), args.eight),
        }
        if has_decoder(folder):
            settings = ReconstructionSettings(limit=args.sentences)
            rows[name]["BLEU"] = score_checkpoint(folder, args.texts, settings)["bleu"]
        print(name, json.dumps({key: np.round(value, 4).tolist() for key, value in rows[name].items()}), flush=True)
        if args.output:
            write_json(args.output, content)


if __name__ == "__main__":
    main()
