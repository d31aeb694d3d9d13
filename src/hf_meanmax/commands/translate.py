"""Translate texts line by line; with reference translations, print BLEU and chrF.

hf-meanmax translate runs/en-de/model test.en --output test.out.de --reference test.de
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from hf_meanmax.checkpoint.folder import load_decoder
from hf_meanmax.data.corpus import CorpusLines
from hf_meanmax.evaluation.text_scores import Tokenization, score_texts, tokenization_of
from hf_meanmax.files import json_digest, replacing_file
from hf_meanmax.inference.continued_file import continued_file, is_file_name
from hf_meanmax.inference.decode import MOST_BEAMS
from hf_meanmax.inference.fingerprints import tokenizer_text, weights_fingerprint
from hf_meanmax.inference.translate import check_translator, translate_corpus
from hf_meanmax.metrics import counted
from hf_meanmax.progress import progress_bar

from .options import CorpusOptions, count, option, positional, verb, written


@dataclass
class TranslateOptions:
    """The options of `hf-meanmax translate`, besides those of the corpus."""

    model: str = positional("a checkpoint that was trained to translate (a folder, or a name on the Hub)")
    output: str | None = written("text file; by default the text goes to standard output", None)
    reference: str | None = option("reference translations, line by line: prints BLEU and chrF", None)
    batch_size: int = count("texts translated together", 64)
    num_beams: int = count("beams of the search; 1 is greedy", 1, at_most=MOST_BEAMS)
    tokenize: Tokenization | None = option(
        "how BLEU cuts texts; by default 13a, or by character in scripts without spaces", None
    )


@verb("translate")
def main(args: TranslateOptions, corpus_options: CorpusOptions) -> None:
    """Translate texts line by line."""
    if args.tokenize and args.reference is None:
        raise ValueError(f"`tokenize` is {args.tokenize!r}, which is for the BLEU of a `reference`. Give one.")
    corpus = corpus_options.open()
    check_translator(args.model)
    if next(iter(CorpusLines(corpus)), None) is None:
        corpus_options.warn_of_no_line()
    references = None
    if args.reference is not None:
        references = list(CorpusLines(corpus_options.open_beside(args.reference)))
        texts = sum(1 for _ in CorpusLines(corpus))
        if texts != len(references):
            given = f"{counted(texts, 'text')} and {counted(len(references), 'reference')}"
            raise ValueError(f"{given}; give one reference a text.")
    model, tokenizer, target_tokenizer = load_decoder(args.model)

    def translate(first_line: int = 0) -> Iterator[str]:
        translated = translate_corpus(
            model, tokenizer, target_tokenizer, corpus,
            batch_size=args.batch_size, num_beams=args.num_beams, first_line=first_line,
        )  # fmt: skip
        return progress_bar(translated, initial=first_line, unit="line", desc="translate", disable=not args.output)

    translations = []
    if args.output is None or not is_file_name(args.output):
        with replacing_file(args.output) if args.output else nullcontext(sys.stdout) as file:
            for translation in translate():
                print(translation, file=file)
                if references is not None:
                    translations.append(translation)
    else:
        made_from = {
            "weights": weights_fingerprint(model),
            "tokenizers": json_digest([tokenizer_text(tokenizer), tokenizer_text(target_tokenizer)]),
            "texts": corpus.fingerprint(),
            **{name: getattr(args, name) for name in ("batch_size", "num_beams")},
        }
        with continued_file(args.output, made_from) as output:
            for row, translation in enumerate(translate(output.rows), output.rows):
                output.append([translation], row)
        if references is not None:
            translations = Path(args.output).read_text(encoding="utf-8").split("\n")[:-1]
    if references is not None:
        tokenize = args.tokenize or tokenization_of(references, "13a")
        scores = score_texts(translations, references, tokenize, rouge=False)
        print(f"BLEU {scores.bleu:.2f}, chrF {scores.chrf:.2f} ({scores.signatures['bleu']})", file=sys.stderr)
