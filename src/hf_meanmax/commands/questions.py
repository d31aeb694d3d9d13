"""Make questions of English statements, as text for a student whose users search with questions.

hf-meanmax questions 'my/*.txt' --output questions.txt
hf-meanmax pretrain student-encoder --corpus 'my/*.txt' questions.txt
"""

from __future__ import annotations

from dataclasses import dataclass

from hf_meanmax.data.questions import write_questions

from .options import CorpusOptions, count, option, verb, written


@dataclass
class QuestionOptions:
    """The options of `hf-meanmax questions`, besides those of the corpus."""

    output: str = written("text file (.txt .gz .xz): a question a line")
    share: float = option("share of the sentences that questions are made of", 0.2, at_least=0, at_most=1)
    per_sentence: int = count("questions of such a sentence, at most", 3)
    seed: int = option("seed of the sentences and questions that are drawn", 0, at_least=0)


@verb("questions")
def main(corpus: CorpusOptions, args: QuestionOptions) -> None:
    """Make questions of English statements, as text for a student whose users search with questions."""
    number = write_questions(corpus.open(), args.output, args.share, args.per_sentence, args.seed)
    print(f"{number:,} questions: {args.output}")
