"""Write a corpus as one text per line, cut to a range of lengths, segmented, or both.

hf-meanmax prepare reviews.txt --output reviews.cut.txt.xz --min_length 10 --max_length 60
hf-meanmax prepare "news-zh/*.txt.xz" --output news-zh.txt.xz --segment jieba --max_length 60
"""

from __future__ import annotations

from dataclasses import dataclass

from hf_meanmax.data.cutting import Cutting, cut_corpus

from .options import CorpusOptions, count, verb, written


@dataclass
class PrepareOptions:
    """The options of `hf-meanmax prepare`, besides those of the corpus and of its cutting."""

    output: str = written("text file (.txt .gz .xz): a piece a line, a blank line between texts")
    parallel: int = count("number of processes", 1, at_most=1024)


@verb("prepare")
def main(corpus: CorpusOptions, args: PrepareOptions, cutting: Cutting) -> None:
    """Write a corpus as one text per line, cut to a range of lengths."""
    print(cut_corpus(corpus.open(), args.output, cutting, args.parallel))
