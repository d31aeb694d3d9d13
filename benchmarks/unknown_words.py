"""Unknown words of a word-level tokenizer on held-out text and on every SentEval set, as a markdown table.

    HF_MEANMAX_DATA=... python benchmarks/unknown_words.py --vocab-size 20000

Trains on corpora/books-en (or on the .xz files of `--corpus`) and reads senteval/downstream of the data folder.
`--tokenizer FOLDER` measures a saved tokenizer instead.
"""

from __future__ import annotations

import argparse
import lzma
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from transformers import AutoTokenizer

from hf_meanmax.tokenization import train_tokenizer, unknown_word_rate

SETS = ("MR", "CR", "SUBJ", "MPQA", "SST2", "SST5", "TREC", "MRPC", "SICK", "STS12", "STS13", "STS14", "STS15")
SETS += ("STS16", "STSB")


def senteval_texts(downstream: Path, name: str) -> Iterator[str]:
    """The sentences of one SentEval set, every split and both sides of a pair."""
    pattern, encoding, columns, header = {
        "MR": ("MR/rt-polarity.*", "latin-1", None, 0),
        "CR": ("CR/custrev.*", "latin-1", None, 0),
        "SUBJ": ("SUBJ/subj.*", "latin-1", None, 0),
        "MPQA": ("MPQA/mpqa.*", "latin-1", None, 0),
        "SST2": ("SST/binary/sentiment-*", "utf-8", [0], 0),
        "SST5": ("SST/fine/sentiment-*", "utf-8", "after first word", 0),
        "TREC": ("TREC/*.label", "latin-1", "after first word", 0),
        "MRPC": ("MRPC/msr_paraphrase_*.txt", "utf-8-sig", [3, 4], 1),
        "SICK": ("SICK/SICK_*.txt", "utf-8", [1, 2], 1),
        "STSB": ("STS/STSBenchmark/sts-*.csv", "utf-8", [5, 6], 0),
    }.get(name, (f"STS/{name}-en-test/STS.input.*.txt", "utf-8", [0, 1], 0))
    paths = sorted(downstream.glob(pattern))
    if not paths:
        raise FileNotFoundError(f"no file matches {downstream / pattern}")
    for path in paths:
        for line in path.read_text(encoding=encoding).split("\n")[header:]:
            line = line.rstrip("\r")
            if not line.strip():
                continue
            if columns is None:
                yield line
            elif columns == "after first word":
                yield line.split(" ", 1)[1]
            else:
                fields = line.split("\t")
                yield from (fields[column] for column in columns)


def lines_of(paths: list[Path]) -> Iterator[str]:
    """The lines of .xz files."""
    for path in paths:
        with lzma.open(path, "rt", encoding="utf-8") as file:
            yield from (line.rstrip("\n") for line in file)


def main() -> None:
    """Trains or loads the tokenizer and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab-size", type=int, default=20000)
    parser.add_argument("--corpus", nargs="+", type=Path, help=".xz files to train on, relative to the data folder")
    parser.add_argument("--tokenizer", help="folder of a saved tokenizer to measure instead of training one")
    parser.add_argument("--save", help="folder to save the trained tokenizer in")
    parser.add_argument("--top", type=int, default=8, help="how many unknown words to show for each set")
    arguments = parser.parse_args()
    if "HF_MEANMAX_DATA" not in os.environ:
        sys.exit("set HF_MEANMAX_DATA to the folder that holds corpora/books-en and senteval/downstream")
    data = Path(os.environ["HF_MEANMAX_DATA"])
    books = data / "corpora" / "books-en"

    if arguments.tokenizer:
        tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
    else:
        start = time.perf_counter()
        files = [data / path for path in arguments.corpus or sorted(books.glob("train-*.txt.xz"))]
        tokenizer = train_tokenizer(lines_of(files), kind="word", vocab_size=arguments.vocab_size)
        print(f"trained on {len(files)} files in {time.perf_counter() - start:.0f} s, {len(tokenizer)} ids\n")
    if arguments.save:
        tokenizer.save_pretrained(arguments.save)

    print("| set | tokens | unknown | rate | most frequent unknown words |\n|---|---|---|---|---|")
    sources = {"books-en test": lines_of([books / "test.txt.xz"])}
    sources |= {name: senteval_texts(data / "senteval" / "downstream", name) for name in SETS}
    for name, texts in sources.items():
        found = unknown_word_rate(tokenizer, texts)
        words = ", ".join(f"`{word}` {count}" for word, count in found.most_common(arguments.top))
        print(f"| {name} | {found.total:,} | {found.unknown:,} | {100 * found.rate:.2f} % | {words} |")


if __name__ == "__main__":
    main()
