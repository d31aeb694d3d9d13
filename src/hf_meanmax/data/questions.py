"""Questions made from English statements by rules: text for a student whose users search with questions.

A statement gives several questions that differ in what they ask for, since corpora of statements teach a student little
of it. The questions need not have an answer in the text, and not all are good English: a teacher has a vector for each.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import numpy as np

from hf_meanmax.progress import progress_bar

from .corpus import Corpus
from .sentences import split_sentences
from .text_writer import text_writer

# Fewer or more words than these are no question that people ask.
_LEAST_WORDS, _MOST_WORDS = 3, 24
# Words of an answer's description that a question keeps.
_KEPT_WORDS = 14
# Inside a character class: letters, digits, both apostrophes and the hyphen.
_INNER = r"\w'\u2019-"
_WORD = rf"[^\W\d_][{_INNER}]*"
_NAME = rf"[A-Z][{_INNER}]+"
_DETERMINERS = "The|A|An|His|Her|Its|Their|This|These"
# First words of what has no name.
_NAMELESS = frozenset(
    "he she it they this these that those there here i we you some many most other others one another who what which "
    "when while where after before because although if in on at by for from with not however only both each all".split()
)
_MONTHS = frozenset(
    "january february march april may june july august september october november december monday tuesday wednesday "
    "thursday friday saturday sunday".split()
)
_IRREGULAR = "won|wrote|became|made|took|led|built|began|held|gave|found|fought|lost|sold|left|sang|drew|met|ran|taught"

# "The lake is the largest of the country."
_IS = re.compile(
    rf"((?:(?:{_DETERMINERS}) )?{_WORD}(?: (?!(?:is|was|are|were|has|had|and|he|she|it|they)\b){_WORD}){{0,5}}) "
    r"(is|was|are|were) (.{8,120})\."
)
# "Marie Curie discovered radium in 1898."
_DID = re.compile(rf"((?:The )?{_NAME}(?: (?:of |the )?{_NAME}){{0,3}}) ({_WORD}ed|{_IRREGULAR}) (.{{8,100}})\.")
# "a Polish engineer who fought in America"
_KIND = re.compile(
    rf"(?:a|an|the|one of the) ((?:{_WORD} ){{0,3}}?{_WORD}) (who|that|which|in|of|on|for|from|by|to|with) (.{{5,80}})"
)
# They are a tenth of English text or more, and hardly occur in other languages.
_ENGLISH = frozenset(("the", "of", "and", "to"))
_LEAST_ENGLISH = 0.03
# What a question has in which a part is missing, or a quotation.
_UNASKED = re.compile(r"\"|  | \?")
_CLAUSE = re.compile(r"[;:(]|, (?:and|but|which|who|where|with|as|although|while)\b")
_DATE = re.compile(r",? (?:in|on|until|since|from|after|before|around) (?:\w+ \d{1,2}, |\w+ )?(?:1\d|20)\d\d\b.*")
_PLACE = re.compile(rf" (?:in|at|near|from|to) (?:the )?{_NAME}")
_REASON = re.compile(r" (?:because|due to|in order to) ")
_NUMBER = re.compile(
    r"(?<![\w,.])(?:\d[\d,.]*|two|three|four|five|six|seven|eight|nine|ten|twelve|twenty|hundred|thousand|million) "
    rf"(?!this\b)([a-z]{{3,}}s)\b((?: (?:of|in|on|at|from|for) (?:the )?{_WORD}(?: {_WORD})?)?)"
)
# After a word in lower case, since at the start of a sentence any word has a capital; before none that it describes.
_INNER_NAME = re.compile(
    rf"(?<![{_INNER}])[a-z][{_INNER}]*,? ({_NAME}(?: (?:of the |of )?{_NAME}){{0,3}})"
    r"(?=[,.;)]| (?:and|or|in|of|on|at|to|for|with|from|by|as|is|was|are|were|has|had|who|which|that|when)\b)"
)
_NOUN = re.compile(r"\b(?:a|an|the) ([a-z]{4,}(?: [a-z]{4,})?)(?= (?:of|in|is|was|and|to|for|with)\b|[,.])")

_POSSESSIVE = re.compile(r"['\u2019]s$")

_OF_NAMES = (
    "What is {}?", "Who is {}?", "Who was {}?", "Where is {}?", "What is {} famous for?", "When was {} born?",
    "How old is {}?", "When did {} die?", "What does {} mean?", "What is the population of {}?",
    "What is the name of {}?", "How far is it to {}?", "Who invented {}?", "Who wrote {}?", "Where did {} come from?",
    "How did {} die?", "How big is {}?", "What is the origin of {}?",
)  # fmt: skip
_OF_NOUNS = (
    "What is {a} {}?", "What does {} mean?", "How do you make {a} {}?", "What causes {a} {}?",
    "How does {a} {} work?", "Why is {a} {} important?", "What is the name of the {}?", "Who invented the {}?",
    "How much does {a} {} cost?", "How long is {a} {}?", "What is another word for {}?",
    "What are the parts of {a} {}?", "Where can I find {a} {}?",
)  # fmt: skip
_PERIODS = ("When", "In what year", "What year")
_PLACES = ("Where", "In what city", "In which country", "What country", "What state", "In what place")
_DOERS = ("Who", "What company", "What country", "Which team", "What man", "What woman", "Which group", "What person")


def write_questions(
    corpus: Corpus,
    output: str | os.PathLike[str],
    share: float = 0.2,
    per_sentence: int = 3,
    seed: int = 0,
    show_progress: bool = True,
) -> int:
    """Writes questions made of a corpus's sentences as a text file, one a line, without repetitions.

    Args:
        corpus: English text, see [`open_corpus`].
        output: a .txt, .xz or .gz file; its folder is created.
        share: share of the sentences that questions are made of.
        per_sentence: most questions of a sentence.
        seed: seed of the sentences and of the questions that are drawn.
        show_progress: show a progress bar.

    Returns:
        The number of questions. If hardly any word is English, with a warning.

    Raises:
        ValueError: an unknown suffix, or no question was made of the corpus.
    """
    written = 0
    words: Counter[bool] = Counter()

    def sentences() -> Iterator[str]:
        for sentence in chain.from_iterable(map(split_sentences, corpus)):
            words.update(word in _ENGLISH for word in sentence.lower().split())
            yield sentence

    with text_writer(output) as file:
        with progress_bar(
            total=corpus.size, unit=corpus.unit, unit_scale=True, desc="questions", disable=not show_progress
        ) as bar:
            for question in make_questions(sentences(), share, per_sentence, seed):
                file.write(f"{question}\n")
                written += 1
                bar.update(corpus.position - bar.n)
            bar.update(corpus.position - bar.n)
        if not written:
            remedy = "" if share == 1 else f", or a larger `share` of the sentences than {share}"
            raise ValueError(
                f"No question was made of this text. The rules need English statements, such as 'X is a Y.'{remedy}."
            )
    if words[True] < _LEAST_ENGLISH * words.total():
        warnings.warn(
            f"Of the {words.total():,} words of this text {words[True]:,} are the, of, and, or to. Is it English? The "
            "rules make questions of English alone.",
            stacklevel=2,
        )
    return written


def make_questions(sentences: Iterable[str], share: float = 1.0, per_sentence: int = 3, seed: int = 0) -> Iterator[str]:
    """Questions of English statements, each once. Arguments as in [`write_questions`]."""
    generator = np.random.default_rng(seed)
    seen: set[str] = set()
    for sentence in sentences:
        if generator.random() >= share:
            continue
        found = list(dict.fromkeys(filter(_is_asked, _questions(sentence.strip(), generator))))
        for row in generator.permutation(len(found))[:per_sentence]:
            if found[row] not in seen:
                seen.add(found[row])
                yield found[row]


def _is_asked(question: str) -> bool:
    return _LEAST_WORDS <= len(question.split()) <= _MOST_WORDS and not _UNASKED.search(question)


def _questions(text: str, generator: np.random.Generator) -> Iterator[str]:
    if match := _IS.fullmatch(text):
        yield from _of_what_is(match[1], match[2], match[3], generator)
    if match := _DID.fullmatch(text):
        yield from _of_what_was_done(match[1], match[2], match[3], generator)
    names = [name for name in _INNER_NAME.findall(text) if name.split()[0].lower() not in _MONTHS | {"i"}]
    if match := _NUMBER.search(text):
        things, of_what = match.groups()
        yield f"How many {things}{of_what} are there?"
        if names:
            yield f"How many {things} does {names[0]} have?"
    nouns = _NOUN.findall(text)
    # Nearly all texts have a name and a noun: one of the two, or there would be little else.
    if names and (not nouns or generator.random() < 1 / 2):
        yield _one_of(_OF_NAMES, generator).format(_POSSESSIVE.sub("", _one_of(names, generator)))
    elif nouns:
        noun = _one_of(nouns, generator)
        yield _one_of(_OF_NOUNS, generator).format(noun, a="an" if noun[0] in "aeiou" else "a")


def _of_what_is(subject: str, verb: str, described: str, generator: np.random.Generator) -> Iterator[str]:
    described = _shortened(described)
    is_person = re.fullmatch(f"{_NAME} {_NAME}", subject) is not None
    yield f"{'Who' if is_person or generator.random() < 1 / 3 else 'What'} {verb} {described}?"
    named = subject.split()[0].lower() not in _NAMELESS
    if match := _KIND.fullmatch(described):
        kind, joint, rest = match.groups()
        joint = "" if joint in ("who", "that", "which") else f"{verb} {joint} "
        # "What capital is of France?" is no English.
        if joint != f"{verb} of ":
            yield f"{_one_of(('What', 'Which'), generator)} {kind} {joint}{rest}?"
        if named:
            yield f"What kind of {kind} {verb} {_in_a_sentence(subject)}?"
    if not named:
        return
    asked = f"{verb} {_in_a_sentence(subject)}"
    yield f"{'Who' if is_person else 'What'} {asked}?"
    if match := _DATE.search(described):
        yield f"{_one_of(_PERIODS, generator)} {asked} {described[: match.start()]}?"
    if match := _PLACE.search(described):
        yield f"{_one_of(_PLACES, generator)} {asked} {described[: match.start()]}?"
    if match := _REASON.search(described):
        yield f"Why {asked} {described[: match.start()]}?"
    if " by " in described:
        yield f"Who {asked} {described.partition(' by ')[0]} by?"


def _of_what_was_done(subject: str, verb: str, rest: str, generator: np.random.Generator) -> Iterator[str]:
    rest = _shortened(rest)
    date = _DATE.search(rest)
    undated = rest[: date.start()] if date else rest
    yield f"Who {verb} {undated}?"
    yield f"{_one_of(_DOERS, generator)} {verb} {undated}?"
    if date and subject.split()[0].lower() not in _NAMELESS:
        yield f"When was it that {_in_a_sentence(subject)} {verb} {undated}?"


def _shortened(text: str) -> str:
    """The first clause of a description, and of that the first words."""
    return " ".join(_CLAUSE.split(text)[0].strip(" ,").split()[:_KEPT_WORDS])


def _in_a_sentence(subject: str) -> str:
    """A subject with its determiner in lower case."""
    first, blank, rest = subject.partition(" ")
    return first.lower() + blank + rest if first in _DETERMINERS.split("|") else subject


def _one_of(words: Sequence[str], generator: np.random.Generator) -> str:
    return words[int(generator.integers(len(words)))]
