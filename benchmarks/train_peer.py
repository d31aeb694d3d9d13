"""Trains a peer from random weights on a corpus within a budget: TSDAE or unsupervised SimCSE (sentence-transformers).

    python benchmarks/train_peer.py tsdae 'books/*.txt' --output runs/tsdae --max-tokens 10000000
    python benchmarks/train_peer.py simcse 'books/*.txt' --output runs/simcse --max-minutes 45

Both have the architecture of all-MiniLM-L6-v2 by its sizes alone and a WordPiece tokenizer that is trained on the same
corpus. Tokens are those of the sentences (with TSDAE, the targets). The result is a SentenceTransformer;
training_args.json in it says how long it took. The same command goes on with a run that was stopped, from its last ten
minutes.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from hf_meanmax.data import open_corpus
from hf_meanmax.files import replacing_file
from hf_meanmax.hardware import is_bf16_fast, peak_memory_bytes, prepare_training_on_cpu, synchronize

VOCABULARY = 30522
WARMUP_STEPS, WARMUP_SHARE = 500, 0.1
KEPT = 0.4  # of the words, as TSDAE's paper deletes them
MINUTES_BETWEEN_CHECKPOINTS = 10.0


def train_tokenizer(lines: list[str]) -> str:
    """The JSON of a WordPiece tokenizer; two trainings on the same lines need not give the same."""
    from tokenizers import BertWordPieceTokenizer

    pieces = BertWordPieceTokenizer()
    pieces.train_from_iterator(lines, vocab_size=VOCABULARY, show_progress=False)
    return pieces.to_str()


def make_model(tokenizer: str, folder: Path, device: torch.device, pooling: str) -> Any:
    """The architecture of MiniLM-L6 with random weights."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

    (folder / "pieces.json").write_text(tokenizer, encoding="utf-8")
    BertTokenizerFast(tokenizer_file=str(folder / "pieces.json")).save_pretrained(folder / "bert")
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    BertForMaskedLM(config).save_pretrained(folder / "bert")
    modules = [Transformer(str(folder / "bert")), Pooling(384, pooling)]
    return SentenceTransformer(modules=modules, device=str(device)).train()


def features_of(model: Any, texts: list[str]) -> dict[str, torch.Tensor]:
    """What a SentenceTransformer reads of texts, on its device."""
    features = model.preprocess(texts)
    return {name: value.to(model.device) for name, value in features.items() if isinstance(value, torch.Tensor)}


class Peer:
    """A step of TSDAE or SimCSE, as sentence-transformers' trainer makes one."""

    def __init__(
        self,
        kind: str,
        tokenizer: str,
        folder: Path,
        device: torch.device,
        learning_rate: float,
        seed: int = 0,
        groups: int = 1,
    ) -> None:
        from sentence_transformers.sentence_transformer.losses import (
            DenoisingAutoEncoderLoss,
            MultipleNegativesRankingLoss,
        )

        self.kind, self.device, self.groups = kind, device, groups
        self.model = make_model(tokenizer, folder, device, "cls" if kind == "tsdae" else "mean")
        if kind == "tsdae":
            loss: Any = DenoisingAutoEncoderLoss(self.model, tie_encoder_decoder=True)
        else:
            loss = MultipleNegativesRankingLoss(self.model)
        self.loss = loss.to(device).train()
        self.optimizer = torch.optim.AdamW(self.loss.parameters(), lr=learning_rate, fused=True)
        self.use_bf16 = is_bf16_fast(device)
        self.random = random.Random(seed)

    def step(self, texts: list[str], learning_rate: float | None = None) -> int:
        """Trains on texts; returns the number of tokens."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate or group["lr"]
        tokens = self.backward(texts)
        torch.nn.utils.clip_grad_norm_(self.loss.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        synchronize(self.device)
        return tokens

    def backward(self, texts: list[str]) -> int:
        """Adds the gradients of the loss of texts, in `groups` of like length, which change no gradient and have less
        padding; returns the number of tokens."""
        texts = sorted(texts, key=len)
        others = [self._noisy(text) for text in texts] if self.kind == "tsdae" else texts
        size = -(-len(texts) // self.groups)
        groups = [
            (
                features_of(self.model, others[start : start + size]),
                features_of(self.model, texts[start : start + size]),
            )
            for start in range(0, len(texts), size)
        ]
        # The first token of a text is no target.
        counts = [int(features["attention_mask"][:, 1:].sum()) for _, features in groups]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.use_bf16):
            if self.kind == "tsdae":
                # The loss is a mean over target tokens.
                for features, count in zip(groups, counts, strict=True):
                    (self.loss(features, None) * (count / sum(counts))).backward()
            else:
                sides = [
                    torch.cat([self.model(side)["sentence_embedding"] for side in sides])
                    for sides in zip(*groups, strict=True)
                ]
                self.loss.compute_loss_from_embeddings(sides, None).backward()
        return sum(counts)

    def state_dict(self) -> dict[str, Any]:
        return {
            "loss": self.loss.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": self.random.getstate(),
            "torch": torch.get_rng_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loss.load_state_dict(state["loss"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.random.setstate(state["random"])
        torch.set_rng_state(state["torch"])

    def _noisy(self, text: str) -> str:
        words = text.split()
        kept = [word for word in words if self.random.random() < KEPT]
        return " ".join(kept or [self.random.choice(words)])


def rate_at(peak: float, steps: int, progress: float) -> float:
    """The learning rate after so many steps and such a share of the budget: it rises for 500 steps, or a tenth of the
    budget where that is less, and falls to 0."""
    return peak * min(1.0, max((steps + 1) / WARMUP_STEPS, progress / WARMUP_SHARE)) * (1 - progress)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("tsdae", "simcse"))
    parser.add_argument("corpus", nargs="+")
    parser.add_argument("--output", required=True, help="folder of the SentenceTransformer")
    parser.add_argument("--max-tokens", type=int, default=0, help="stop after so many (0: no limit)")
    parser.add_argument("--max-minutes", type=float, default=0.0, help="stop after so many (0: no limit)")
    parser.add_argument("--sentences", type=int, default=64, help="of a step")
    parser.add_argument(
        "--groups",
        type=int,
        default=1,
        help="of like length that a step computes in turn: same gradients, less padding",
    )
    parser.add_argument("--learning-rate", type=float, default=3e-4, help="peak; see `rate_at`")
    parser.add_argument("--max-cpu-minutes", type=float, default=0.0, help="stop after so many of the processor")
    parser.add_argument("--lines", type=int, default=6_000_000, help="lines of the corpus that are read")
    parser.add_argument("--min-words", type=int, default=4, help="shorter lines are left out")
    parser.add_argument("--max-words", type=int, default=32, help="longer lines are left out")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if not (args.max_tokens or args.max_minutes or args.max_cpu_minutes):
        parser.error("give --max-tokens, --max-minutes or --max-cpu-minutes")

    lines = [
        line
        for line in islice(filter(None, open_corpus(args.corpus)), args.lines)
        if args.min_words <= len(line.split()) <= args.max_words
    ]
    prepare_training_on_cpu()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    checkpoint = Path(f"{args.output}.checkpoint")
    saved = torch.load(checkpoint, weights_only=True) if checkpoint.is_file() else None
    if saved is not None and saved["settings"] != vars(args):
        parser.error(f"{checkpoint} is of a run with other settings; remove it, or give another --output")
    tokenizer = train_tokenizer(lines) if saved is None else saved["tokenizer"]
    with tempfile.TemporaryDirectory() as folder:
        peer = Peer(args.kind, tokenizer, Path(folder), device, args.learning_rate, args.seed, args.groups)
        order = random.Random(args.seed)
        steps, tokens, progress = 0, 0, 0.0
        minutes, cpu_minutes = 0.0, 0.0
        if saved is not None:
            peer.load_state_dict(saved["peer"])
            order.setstate(saved["order"])
            steps, tokens, progress = saved["steps"], saved["tokens"], saved["progress"]
            minutes, cpu_minutes = saved["minutes"], saved["cpu_minutes"]
        start, cpu_start = time.perf_counter() - 60 * minutes, time.process_time() - 60 * cpu_minutes
        saved_at = minutes
        with tqdm(total=100, unit="%", initial=round(100 * progress, 1)) as bar:
            while progress < 1:
                rate = rate_at(args.learning_rate, steps, progress)
                tokens += peer.step(order.sample(lines, args.sentences), rate)
                steps += 1
                minutes, cpu_minutes = (time.perf_counter() - start) / 60, (time.process_time() - cpu_start) / 60
                progress = max(
                    tokens / args.max_tokens if args.max_tokens else 0.0,
                    minutes / args.max_minutes if args.max_minutes else 0.0,
                    cpu_minutes / args.max_cpu_minutes if args.max_cpu_minutes else 0.0,
                )
                bar.update(min(100, round(100 * progress, 1)) - bar.n)
                if minutes - saved_at >= MINUTES_BETWEEN_CHECKPOINTS:
                    saved_at = minutes
                    checkpoint.parent.mkdir(parents=True, exist_ok=True)
                    reached = {"steps": steps, "tokens": tokens, "progress": progress, "minutes": minutes,
                               "cpu_minutes": cpu_minutes, "order": order.getstate()}  # fmt: skip
                    with replacing_file(checkpoint, "wb") as file:
                        torch.save(
                            {**reached, "settings": vars(args), "tokenizer": tokenizer, "peer": peer.state_dict()}, file
                        )
        peer.model.eval().save_pretrained(args.output)
    results = {"steps": steps, "tokens": tokens, "minutes": minutes, "cpu_minutes": cpu_minutes,
               "tokens_per_second": tokens / minutes / 60,
               "peak_memory_bytes": peak_memory_bytes(device)}  # fmt: skip
    told = {**vars(args), "results": results}
    (Path(args.output) / "training_args.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    checkpoint.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
