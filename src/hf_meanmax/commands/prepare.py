"""Write a corpus as one text a line, cut to a range of lengths, segmented, or both.

hf-meanmax prepare reviews.txt --output reviews.cut.txt.xz --min_length 10 --max_length 60
hf-meanmax prepare "news-zh/*.txt.xz" --output news-zh.txt.xz --segment jieba --max_length 60
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hf_meanmax.data.cutting import Cutting, cut_corpus

from .options import CorpusOptions, count, option, verb, written


@dataclass
class PrepareOptions:
    """The options of `hf-meanmax prepare`, beside those of the corpus."""

    output: str = written("text file (.txt .gz .xz): a piece a line, a blank line between texts")
    max_length: int | None = count("cut texts at sentence ends, to at most so many units", None)
    min_length: int = count("drop pieces of fewer units", 1)
    unit: Literal["auto", "word", "character"] = option("what lengths count; auto decides by the first lines", "auto")
    segment: Literal["jieba"] | None = option("put spaces between the words of Chinese text", None)
    seed: int = option("seed of the lengths that are drawn", 0)
    parallel: int = count("number of processes", 1, at_most=1024)


@verb("prepare")
def main(corpus: CorpusOptions, args: PrepareOptions) -> None:
    """Write a corpus as one text a line, cut to a range of lengths."""
    settings = Cutting(args.max_length, args.min_length, args.unit, args.segment, args.seed)
    print(cut_corpus(corpus.open(), args.output, settings, args.parallel))
