"""Small SentEval folders in the official layout, and encoders whose scores on them are known.

A text says its target (`label2a`, `score3.25b`: a and b are the sides of a pair), then some fillers and a word of its
own.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

STS_SETS = {
    "12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "13": ("FNWN", "headlines", "OnWN"),
    "14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
ENTAILMENT = ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")
TREC_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
CLASSES = 6


def write_senteval_folder(root: Path, size: int = 60, seed: int = 0) -> Path:
    """Writes all tasks below `root/downstream` and returns `root`.

    MR, CR, SUBJ and MPQA have `size` sentences, a training set has twice as many, every other set `size`.
    """
    writer = _Writer(root / "downstream", size, random.Random(seed))
    writer.polarity()
    writer.single()
    writer.pairs()
    writer.similarity()
    return root


class _Writer:
    def __init__(self, root: Path, size: int, generator: random.Random):
        self.root, self.size, self.random = root, size, generator
        self.count = 0

    def write(self, file: str, lines: Sequence[str], encoding: str = "utf-8") -> None:
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes("".join(line + "\n" for line in lines).encode(encoding))

    def text(self, *targets: str, extra: str = "") -> str:
        self.count += 1
        fillers = [f"w{self.random.randrange(20)}" for _ in range(self.random.randrange(6))]
        return " ".join([*targets, *fillers, f"id{self.count}", *extra.split()])

    def score(self) -> float:
        return self.random.randrange(0, 101) / 20

    def polarity(self) -> None:
        files = {
            "MR": ("rt-polarity.pos", "rt-polarity.neg"),
            "CR": ("custrev.pos", "custrev.neg"),
            "SUBJ": ("subj.objective", "subj.subjective"),
            "MPQA": ("mpqa.pos", "mpqa.neg"),
        }
        for task, names in files.items():
            for label, name in zip((1, 0), names, strict=True):
                lines = [self.text(f"label{label}", extra="caf\xe9") for _ in range(self.size // 2)]
                self.write(f"{task}/{name}", lines, "latin-1")

    def single(self) -> None:
        for name in ("train", "dev", "test"):
            size = self.size * (1 + (name == "train"))
            self.write(f"SST/binary/sentiment-{name}", [f"{self.text(f'label{i % 2}')}\t{i % 2}" for i in range(size)])
            self.write(f"SST/fine/sentiment-{name}", [f"{i % 5} {self.text(f'label{i % 5}')}" for i in range(size)])
        for file, size in (("train_5500", 2 * self.size), ("TREC_10", self.size)):
            lines = [f"{TREC_CLASSES[i % 6]}:fine {self.text(f'label{i % 6}', extra='?')}" for i in range(size)]
            self.write(f"TREC/{file}.label", lines, "latin-1")

    def pairs(self) -> None:
        for name, size in (("train", 2 * self.size), ("test", self.size)):
            lines = ["\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
            for i in range(size):
                first, second = (self.text(f"label{i % 2}{side}") for side in "ab")
                lines.append(f"{i % 2}\t{i}\t{i}\t{first}\t{second}")
            self.write(f"MRPC/msr_paraphrase_{name}.txt", lines)
        for name, size in (("train", 2 * self.size), ("trial", self.size), ("test_annotated", self.size)):
            lines = ["pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"]
            for i in range(size):
                score = max(1.0, self.score())
                first, second = (self.text(f"label{i % 3}{side}", f"score{score}{side}") for side in "ab")
                lines.append(f"{i}\t{first}\t{second}\t{score}\t{ENTAILMENT[i % 3]}")
            self.write(f"SICK/SICK_{name}.txt", lines)
        for name, size in (("train", 2 * self.size), ("dev", self.size), ("test", self.size)):
            lines = []
            for i in range(size):
                score = self.score()
                first, second = (self.text(f"score{score}{side}") for side in "ab")
                lines.append(f"main-captions\tMSRvid\t2012test\t{i:04d}\t{score:.3f}\t{first}\t{second}")
            self.write(f"STS/STSBenchmark/sts-{name}.csv", lines)
            first, second = ([self.text(f"label{i % 3}{side}") for i in range(size)] for side in "ab")
            names = ("entailment", "neutral", "contradiction")
            self.write(f"SNLI/s1.{name}", first)
            self.write(f"SNLI/s2.{name}", second)
            self.write(f"SNLI/labels.{name}", [names[i % 3] for i in range(size)])

    def similarity(self) -> None:
        for year, names in STS_SETS.items():
            for position, name in enumerate(names):
                inputs, gold = [], []
                for i in range(self.size + 10 * position):
                    score = self.score()
                    first, second = (self.text(f"score{score}{side}") for side in "ab")
                    inputs.append(f"{first}\t{second}")
                    gold.append(f"{score:.2f}")
                    if i % 4 == 3:
                        inputs.append(f"{self.text('unscored')}\t{self.text('unscored')}")
                        gold.append("")
                self.write(f"STS/STS{year}-en-test/STS.input.{name}.txt", inputs)
                self.write(f"STS/STS{year}-en-test/STS.gs.{name}.txt", gold)


def perfect(texts: Sequence[str]) -> np.ndarray:
    """Vectors `(n, 8)` that say the target: classes are separable, and a pair's cosine is a fifth of its score."""
    vectors = np.zeros((len(texts), CLASSES + 2), dtype=np.float32)
    for vector, text in zip(vectors, texts, strict=True):
        if label := re.match(r"label(\d)([ab]?)", text):
            # u * v is the class.
            vector[:CLASSES] = 1 if label[2] == "a" else np.arange(CLASSES) == int(label[1])
        if score := re.search(r"score([\d.]+)([ab])", text):
            cosine = float(score[1]) / 5
            vector[CLASSES:] = (1, 0) if score[2] == "a" else (cosine, (1 - cosine**2) ** 0.5)
    return vectors


class Shuffled:
    """The perfect vectors of other texts."""

    def __init__(self, texts: Sequence[str], seed: int = 0):
        texts = sorted(set(texts))
        self.other = dict(zip(texts, np.random.default_rng(seed).permutation(texts).tolist(), strict=True))

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        return perfect([self.other[text] for text in texts])


class Bag:
    """Mean of random word vectors: its scores are neither perfect nor chance."""

    def __init__(self, size: int = 8):
        self.size = size

    def word(self, word: str) -> np.ndarray:
        return np.random.default_rng(zlib.crc32(word.encode())).standard_normal(self.size)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        return np.stack([np.mean([self.word(word) for word in text.split()], axis=0) for text in texts]).astype(
            np.float32
        )
