"""Trains what a user would take for a faster embedder otherwise: the embedder itself with fewer of its layers, under
sentence-transformers' `MSELoss` to its vectors.

    hf-meanmax encode all-MiniLM-L6-v2 sentences.txt --output vectors
    python benchmarks/train_fewer_layers.py all-MiniLM-L6-v2 sentences.txt 'vectors/shard-*.npy' --layers 1 \\
        --max-minutes 60 --output runs/one-layer

The kept layers are spread over the embedder's, the first among them. training_args.json in the result, a
SentenceTransformer, says how long it took.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from glob import glob
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MSELoss
from tqdm import tqdm
from train_peer import features_of, rate_at

from hf_meanmax.data import open_corpus
from hf_meanmax.hardware import is_bf16_fast, peak_memory_bytes, prepare_training_on_cpu


def keep_layers(model: SentenceTransformer, count: int) -> list[int]:
    """Leaves so many of its layers to an embedder with the architecture of BERT; returns which."""
    transformer = model[0].auto_model
    layers = transformer.encoder.layer
    kept: list[int] = np.linspace(0, len(layers) - 1, count).round().astype(int).tolist()
    transformer.encoder.layer = torch.nn.ModuleList(layers[place] for place in kept)
    transformer.config.num_hidden_layers = count
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("embedder", help="a SentenceTransformer with the architecture of BERT")
    parser.add_argument("texts", help="a file of one sentence a line")
    parser.add_argument("vectors", help="glob of the .npy files with the embedder's vectors of these sentences")
    parser.add_argument("--output", required=True, help="folder of the SentenceTransformer")
    parser.add_argument("--layers", type=int, default=1, help="how many are kept")
    parser.add_argument("--max-minutes", type=float, default=60.0, help="stop after so many of the processor")
    parser.add_argument("--sentences", type=int, default=64, help="of a step")
    parser.add_argument("--learning-rate", type=float, default=3e-4, help="peak; see `train_peer.rate_at`")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    lines = list(filter(None, open_corpus([args.texts])))
    vectors = np.concatenate([np.load(name, mmap_mode="r") for name in sorted(glob(args.vectors))])
    if len(lines) != len(vectors):
        parser.error(f"there are {len(lines)} sentences and {len(vectors)} vectors")
    prepare_training_on_cpu()
    torch.manual_seed(args.seed)
    model = SentenceTransformer(args.embedder).train()
    device, use_bf16 = model.device, is_bf16_fast(model.device)
    kept = keep_layers(model, args.layers)
    loss = MSELoss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, fused=True)
    order = random.Random(args.seed)
    steps, tokens, minutes, start = 0, 0, 0.0, time.process_time()
    with tqdm(total=100, unit="%") as bar:
        while minutes < args.max_minutes:
            for group in optimizer.param_groups:
                group["lr"] = rate_at(args.learning_rate, steps, minutes / args.max_minutes)
            rows = order.sample(range(len(lines)), args.sentences)
            features = features_of(model, [lines[row] for row in rows])
            labels = torch.from_numpy(vectors[rows].astype(np.float32)).to(device)
            with torch.autocast(device.type, torch.bfloat16, enabled=use_bf16):
                value = loss([features], labels)
            value.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            steps += 1
            tokens += int(features["attention_mask"].sum())
            minutes = (time.process_time() - start) / 60
            bar.set_postfix(loss=f"{value.item():.2e}", refresh=False)
            bar.update(min(100, round(100 * minutes / args.max_minutes, 1)) - bar.n)
    model.eval().save_pretrained(args.output)
    results = {"kept": kept, "steps": steps, "tokens": tokens, "cpu_minutes": minutes,
               "tokens_per_second": tokens / minutes / 60,
               "peak_memory_bytes": peak_memory_bytes(device)}  # fmt: skip
    told = {**vars(args), "results": results}
    (Path(args.output) / "training_args.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
