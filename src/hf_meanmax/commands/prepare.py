"""Text files or a data set to one text file of one text a line, cut to a range of lengths, segmented, or both.

hf-meanmax-prepare reviews.txt --output reviews.cut.txt.xz --min-length 10 --max-length 60
"""

from __future__ import annotations

import argparse

from hf_meanmax.data.cutting import SEGMENTERS, UNITS, Cutting, cut_corpus

from .options import add_corpus_options, corpus_of, make_parser, one_line_errors, parse_arguments, positive_int


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("hf-meanmax-prepare", "Write a corpus as one text a line, cut to a range of lengths.")
    parser.add_argument("--output", required=True, help="text file (.txt .gz .xz); a piece a line, blank between texts")
    parser.add_argument("--max-length", type=positive_int, help="cut texts at sentence ends, to at most so many units")
    parser.add_argument("--min-length", type=positive_int, default=1, help="drop pieces of fewer units")
    parser.add_argument("--unit", choices=UNITS, default="auto", help="what lengths count; auto looks at each text")
    parser.add_argument("--segment", choices=SEGMENTERS, help="put spaces between the words of Chinese text")
    parser.add_argument("--seed", type=int, default=0, help="of the lengths that are drawn")
    parser.add_argument("--parallel", type=positive_int, default=1, help="processes")
    add_corpus_options(parser)
    return parser


def main(argv: list[str] | None = None) -> None:
    """The command line; see `--help`."""
    args = parse_arguments(build_parser(), argv)
    with one_line_errors("prepare"):
        settings = Cutting(args.max_length, args.min_length, args.unit, args.segment, args.seed)
        print(cut_corpus(corpus_of(args), args.output, settings, args.parallel))


if __name__ == "__main__":
    main()
