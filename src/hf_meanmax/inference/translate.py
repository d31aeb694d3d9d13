"""Translate texts, one line a line; with the reference translations, their BLEU.

hf-meanmax-translate runs/en-de/model test.en --output test.out.de --reference test.de
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any

from tqdm.auto import tqdm

from hf_meanmax.checkpoint.folder import load_checkpoint, load_target_tokenizer
from hf_meanmax.commands.old_options import (
    add_corpus_options,
    corpus_of,
    make_parser,
    one_line_errors,
    parse_arguments,
    positive_int,
)
from hf_meanmax.data.corpus import Corpus, CorpusLines, open_corpus
from hf_meanmax.evaluation.reconstruction import reconstruct
from hf_meanmax.evaluation.text_scores import score_texts
from hf_meanmax.files import replacing_file

_LINES = 2048


def translate_corpus(
    model: Any, tokenizer: Any, target_tokenizer: Any, corpus: Corpus, *, batch_size: int = 64, **generation: Any
) -> Iterator[str]:
    """The translation of each line, in order and in constant memory; a blank line stays blank.

    Args:
        model: a translator.
        tokenizer, target_tokenizer: of what it reads and of what it says.
        corpus: the texts, whole; none is cut.
        batch_size: texts translated together; fewer of long ones.
        generation: arguments of `generate`, for instance `num_beams`.
    """
    lines = iter(CorpusLines(corpus))
    while block := list(islice(lines, _LINES)):
        texts = [line for line in block if line]
        said = reconstruct(model, tokenizer, texts, batch_size, **generation)
        translations = iter(target_tokenizer.batch_decode(said, skip_special_tokens=True))
        for line in block:
            yield " ".join(next(translations).splitlines()) if line else ""


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("hf-meanmax-translate", "Translate texts, one line a line.")
    parser.add_argument("model", help="a checkpoint that was trained to translate (folder or name on the Hub)")
    add_corpus_options(parser)
    parser.add_argument("--output", help="text file; by default the text goes to standard output")
    parser.add_argument("--reference", help="the right translations, line by line: prints BLEU and chrF")
    parser.add_argument("--batch-size", type=positive_int, default=64, help="texts translated together")
    parser.add_argument("--num-beams", type=positive_int, default=1, help="beams of the search; 1 is greedy")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """The command line; see `--help`."""
    args = parse_arguments(build_parser(), argv)
    with one_line_errors("translate"):
        from accelerate import PartialState

        corpus = corpus_of(args)
        references = None
        if args.reference is not None:
            references = list(CorpusLines(open_corpus(args.reference, args.encoding_errors)))
            texts = sum(1 for _ in CorpusLines(corpus))
            if texts != len(references):
                raise ValueError(f"{texts} texts and {len(references)} references; give one reference a text.")
        model, tokenizer = load_checkpoint(args.model)
        model.to(PartialState().device)
        target_tokenizer = load_target_tokenizer(args.model, model.config, tokenizer)
        said = translate_corpus(
            model, tokenizer, target_tokenizer, corpus, batch_size=args.batch_size, num_beams=args.num_beams
        )
        translations = []
        with replacing_file(args.output) if args.output else nullcontext(sys.stdout) as file:
            for translation in tqdm(said, unit="line", desc="translate", disable=not args.output):
                print(translation, file=file)
                if references is not None:
                    translations.append(translation)
        if references is not None:
            scores = score_texts(translations, references, "13a", rouge=False)
            print(f"BLEU {scores.bleu:.2f}, chrF {scores.chrf:.2f} ({scores.signatures['bleu']})", file=sys.stderr)


if __name__ == "__main__":
    main()
