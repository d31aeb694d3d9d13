"""Text files or a data set to one text file of one text a line, cut to a range of lengths, segmented, or both.

hf-meanmax-prepare reviews.txt --output reviews.cut.txt.xz --min-length 10 --max-length 60
"""

from __future__ import annotations

import argparse

from .cli import make_parser, one_line_errors, parse_arguments, positive_int
from .data.corpus import ENCODING_ERRORS
from .data.cutting import SEGMENTERS, UNITS, Cutting, cut_corpus
from .encode import corpus_of


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("hf-meanmax-prepare", "Write a corpus as one text a line, cut to a range of lengths.")
    parser.add_argument("input", nargs="+", help="text files or globs (.txt .gz .xz .zst), or one data set")
    parser.add_argument("--output", required=True, help="text file (.txt .gz .xz); a piece a line, blank between texts")
    parser.add_argument("--max-length", type=positive_int, help="cut texts at sentence ends, to at most so many units")
    parser.add_argument("--min-length", type=positive_int, default=1, help="drop pieces of fewer units")
    parser.add_argument("--unit", choices=UNITS, default="auto", help="what lengths count; auto looks at each text")
    parser.add_argument("--segment", choices=SEGMENTERS, help="put spaces between the words of Chinese text")
    parser.add_argument("--seed", type=int, default=0, help="of the lengths that are drawn")
    parser.add_argument("--parallel", type=positive_int, default=1, help="processes")
    parser.add_argument("--encoding-errors", choices=ENCODING_ERRORS, default="strict", help="bytes that are not UTF-8")
    parser.add_argument("--text-column", default="text", help="column of a data set")
    parser.add_argument("--split", default="train", help="split of a data set")
    parser.add_argument("--config-name", help="configuration of a data set on the Hub")
    return parser


def main(argv: list[str] | None = None) -> None:
    """The command line; see `--help`."""
    args = parse_arguments(build_parser(), argv)
    with one_line_errors("prepare"):
        settings = Cutting(args.max_length, args.min_length, args.unit, args.segment, args.seed)
        print(cut_corpus(corpus_of(args), args.output, settings, args.parallel))


if __name__ == "__main__":
    main()
