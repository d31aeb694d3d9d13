"""Train and evaluate a list of systems, and put them into one table; or compare finished ones.

hf-meanmax reproduce systems.yaml --data data --output results/mine
hf-meanmax reproduce compare-evaluations results/one results/other --output results/both
hf-meanmax reproduce compare-reconstructions runs/gated/scores runs/rae/scores --output compared
hf-meanmax reproduce compare-translations a=runs/a/model b=runs/b/model --pairs test=test.en,test.de --output compared
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hf_meanmax.data import open_corpus
from hf_meanmax.data.corpus import CorpusLines
from hf_meanmax.evaluation.reconstruction_table import write_comparison
from hf_meanmax.evaluation.report import Results, write_report
from hf_meanmax.files import short_names
from hf_meanmax.reproduce import translation_table
from hf_meanmax.reproduce.plan import TABLE, read_plan
from hf_meanmax.reproduce.run import reproduce

from .options import count, named_folders, option, positional, verb, written


@dataclass
class ReproduceOptions:
    """The options of `hf-meanmax reproduce`."""

    plan: str = positional("name of a packaged plan (books, books-gpu, variants), or a YAML file of its form")
    data: str = option("folder that holds senteval/ and what the plan names")
    output: str = written("folder for the table, the results and the runs", folder=True)
    only: list[str] = option("names of systems to make", [])


@dataclass
class EvaluationsOptions:
    """The options of `hf-meanmax reproduce compare-evaluations`."""

    results: list[str] = positional("results.json files of `evaluate`, or folders that hold one")
    output: str = written("folder for report.md and the figures", folder=True)


@dataclass
class ReconstructionsOptions:
    """The options of `hf-meanmax reproduce compare-reconstructions`."""

    folders: list[str] = positional("output folders of `reconstruct`, with the same texts")
    output: str = written("folder for the tables and the figure", folder=True)
    names: list[str] | None = option("names of the systems (default: those of their folders)", None)
    number: int = count("texts to draw, from short to long", 5)
    seed: int = option("seed of the drawing", 0, at_least=0)
    rows: list[int] | None = option("show these texts of the first folder instead, by their numbers from 1", None)


@dataclass
class TranslationsOptions:
    """The options of `hf-meanmax reproduce compare-translations`."""

    models: list[str] = positional("checkpoints, NAME=FOLDER or FOLDER")
    pairs: list[str] = option("texts and their translations, NAME=SOURCE,REFERENCE")
    output: str = written("folder for the table, the numbers and the figure", folder=True)
    results: str | None = option("output folder of `evaluate`, with a folder for each name", None)
    batch_size: int = count("texts translated together", 64)


@verb("reproduce")
def run_plan(args: ReproduceOptions) -> None:
    """Train and evaluate a list of systems, and put them into one table. For finished systems, compare-evaluations,
    compare-reconstructions and compare-translations write a table; each has its own --help."""
    plan = read_plan(args.plan, args.data, args.output)
    failures = reproduce(plan, args.data, args.output, args.only)
    table = Path(args.output) / TABLE
    print(table.read_text(encoding="utf-8") if table.is_file() else "")
    if failures:
        raise ValueError("failed: " + "; ".join(f"{name}: {error}" for name, error in failures.items()))


@verb("reproduce compare-reconstructions")
def compare_reconstructions(args: ReconstructionsOptions) -> None:
    """Show reconstructions of several systems side by side, and their BLEU by length."""
    names = args.names or short_names([os.path.abspath(folder) for folder in args.folders])
    if len(names) != len(args.folders):
        raise ValueError(f"{len(names)} names for {len(args.folders)} folders; give one each.")
    folders = dict(zip(names, args.folders, strict=True))
    if len(folders) < len(names):
        raise ValueError(f"The systems need different names, got {', '.join(names)}; give --names.")
    write_comparison(args.output, folders, args.number, args.seed, args.rows)


@verb("reproduce compare-translations")
def compare_translations(args: TranslationsOptions) -> None:
    """Compare several translators and their representations in one table."""
    folders = named_folders(args.models)
    pairs = dict(map(_read_pair, args.pairs))
    if len(pairs) < len(args.pairs):
        raise ValueError(f"--pairs need different names, got {', '.join(args.pairs)}.")
    translation_table.compare_translators(folders, pairs, args.output, args.results, args.batch_size)
    print((Path(args.output) / translation_table.TABLE).read_text(encoding="utf-8"), end="")


def _read_pair(text: str) -> tuple[str, tuple[list[str], list[str]]]:
    name, equals, files = text.partition("=")
    source, comma, reference = files.partition(",")
    if not (equals and comma):
        raise ValueError(f"--pairs has {text!r}; expected NAME=SOURCE,REFERENCE.")
    # Blank lines are kept, so that texts and translations stay aligned.
    texts, references = (list(CorpusLines(open_corpus(path))) for path in (source, reference))
    if len(texts) != len(references):
        raise ValueError(
            f"{source} has {len(texts):,} lines and {reference} {len(references):,}; they must be as many."
        )
    return name, (texts, references)


@verb("reproduce compare-evaluations")
def compare_evaluations(args: EvaluationsOptions) -> None:
    """Write one report of several evaluations."""
    results = [Results.load(path) for path in args.results]
    names = [one.name for one in results]
    if len(set(names)) < len(names):
        raise ValueError(
            f"The evaluations are of {', '.join(names)}, and a report needs a different name for each: the name "
            "of the model's folder."
        )
    for path in write_report(results, args.output):
        print(path)


COMPARISONS = {
    "compare-evaluations": compare_evaluations,
    "compare-reconstructions": compare_reconstructions,
    "compare-translations": compare_translations,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command; `argv` is the command line by default."""
    words = sys.argv[1:] if argv is None else list(argv)
    if words and words[0] in COMPARISONS:
        return COMPARISONS[words[0]](words[1:])
    if words and words[0].startswith("compare-") and not Path(words[0]).is_file():
        raise SystemExit(f"hf-meanmax reproduce: unknown {words[0]!r}; choose from {', '.join(COMPARISONS)}")
    return run_plan(words)
