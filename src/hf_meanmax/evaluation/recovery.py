"""Scores of texts recovered from vectors: BLEU, exact matches, token F1, numbers, names and rare words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from hf_meanmax.data.sentences import split_sentences
from hf_meanmax.files import Json
from hf_meanmax.tokenization.tokenizers import normalizer_of, split_words

from .text_scores import length_edges, score_bins, score_texts, tokenization_under

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Splits texts into the words to compare.
Cut = Callable[[Sequence[str]], list[list[str]]]
KINDS = ("numbers", "names", "rare_words")
# A word is rare if it makes up at most one in so many words, or occurs once.
RARE_ONE_IN = 100_000

_WORD = re.compile(r"[^\W\d_](?:[\w'\u2019-]*\w)?")
_QUOTES = "\"'(\u2018\u201c\u00ab"
_POSSESSIVE = re.compile("['\u2019]s$")
_I = re.compile(r"I(['\u2019]\w+)?")


def word_cutter(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> Cut:
    """Returns a function that normalises texts and splits them into words as a tokenizer does.

    Args:
        tokenizer: the decoder's tokenizer; of a subword tokenizer, its words before they are split into pieces.
        texts: the texts to compare. As in sacrebleu, scripts without spaces between words are split by character under
            a subword tokenizer, and other scripts into words under a character tokenizer.
    """
    tokenize = tokenization_under(tokenizer, texts)
    if tokenize == "none":
        return lambda texts: list(split_words(tokenizer, texts))
    from sacrebleu.metrics import BLEU

    cut, normalize = BLEU(tokenize=tokenize).tokenizer, normalizer_of(tokenizer)
    return lambda texts: [cut(normalize(text)).split() for text in texts]


def ignores_case(cut: Cut) -> bool:
    """Whether words that only differ in case count as the same."""
    upper, lower = cut(["A", "a"])
    return upper == lower


@dataclass(frozen=True)
class References:
    """The texts to recover, as words.

    Args:
        words: the words of each text.
        special: for each kind of [`KINDS`], the words of that kind in each text.
        rare_count: the largest count of a rare word.
        counted_words: the number of words that were counted.
    """

    words: list[list[str]]
    special: dict[str, list[list[str]]]
    rare_count: int
    counted_words: int

    @classmethod
    def of(cls, texts: Sequence[str], cut: Cut, counted: Iterable[str] | None = None) -> References:
        """The words of texts.

        Args:
            texts: the texts in their original case.
            cut: cuts texts into words.
            counted: the texts in which words are counted, to find the rare ones (default: `texts`).
        """
        words = cut(texts)
        counts = Counter(word for row in (words if counted is None else cut(list(counted))) for word in row)
        rare = max(1, counts.total() // RARE_ONE_IN)
        special = {
            "numbers": [[word for word in row if has_digit(word)] for row in words],
            "names": [
                [word for part in cut(list(names_of(text))) for word in part if has_letter(word)] for text in texts
            ],
            "rare_words": [
                [word for word in row if counts[word] <= rare and has_letter(word) and not has_digit(word)]
                for row in words
            ],
        }
        return cls(words, special, rare, counts.total())

    def select(self, rows: Sequence[int]) -> References:
        """The references of some texts, with the same rare words."""
        special = {kind: [found[row] for row in rows] for kind, found in self.special.items()}
        return References([self.words[row] for row in rows], special, self.rare_count, self.counted_words)


def names_of(text: str) -> Iterator[str]:
    """Capitalised words that do not begin a sentence or a quotation, except `I` and without a possessive `'s`; none in
    a text all in capitals.

    A heuristic for names in English and similar languages.
    """
    if text.isupper():
        return
    for sentence in split_sentences(text):
        for number, match in enumerate(_WORD.finditer(sentence)):
            word, before = match[0], sentence[: match.start()][-1:]
            if number and word[0].isupper() and before not in _QUOTES and not _I.fullmatch(word):
                yield _POSSESSIVE.sub("", word)


def has_digit(word: str) -> bool:
    """Whether a word has a digit in it."""
    return any(character.isdigit() for character in word)


def has_letter(word: str) -> bool:
    """Whether a word has a letter in it."""
    return any(character.isalpha() for character in word)


def token_f1(decoded: Sequence[str], true: Sequence[str]) -> float:
    """Harmonic mean of precision and recall of words, counted with repetitions; 1 if both are empty."""
    if not decoded and not true:
        return 1.0
    return 2 * (Counter(decoded) & Counter(true)).total() / (len(decoded) + len(true))


def score_recovery(decoded: Sequence[Sequence[str]], references: References) -> Json:
    """Scores of decoded texts.

    Args:
        decoded: the words of each decoded text.
        references: the texts to recover.

    Returns:
        `texts`; `bleu` (0-100, by sacrebleu over these words); `exact_match` and mean `token_f1` (0-1); and for each
        kind the share of its words that were recovered (`numbers_recall`, ...; None if there are none) and their number
        (`numbers`, ...).

    Raises:
        ValueError: there is no text, or not one for each reference.
    """
    joined = [" ".join(words) for words in decoded]
    scores = score_texts(joined, [" ".join(words) for words in references.words], rouge=False)
    result: Json = {"texts": scores.sentences, "bleu": scores.bleu, "exact_match": scores.exact_match}
    result["token_f1"] = fmean(token_f1(a, b) for a, b in zip(decoded, references.words, strict=True))
    for kind, special in references.special.items():
        total = sum(map(len, special))
        found = sum((Counter(a) & Counter(b)).total() for a, b in zip(decoded, special, strict=True))
        result |= {f"{kind}_recall": found / total if total else None, kind: total}
    return result


def recovery_by_length(decoded: Sequence[Sequence[str]], references: References) -> list[Json]:
    """[`score_recovery`] in bins of the references' length in words, with `from`, `to` (None: no end) and `count`.

    BLEU is None if no reference in the bin has the four words that it needs.
    """
    lengths = [len(words) for words in references.words]

    def score(inside: Sequence[int]) -> Json:
        scores = score_recovery([decoded[row] for row in inside], references.select(inside))
        del scores["texts"]
        return scores

    return score_bins(score, lengths, length_edges(lengths))


def pick_examples(
    texts: Sequence[str], decoded: Sequence[str], ranks: Sequence[tuple[float, bool]], number: int
) -> dict[str, list[Mapping[str, str | float]]]:
    """The best, the median and the worst texts, without overlap; among equally good ones the longest first.

    Args:
        texts: the original texts.
        decoded: the text decoded for each.
        ranks: the token F1 of each, and whether it was recovered word for word.
        number: the most texts in a group.
    """
    order = sorted(range(len(texts)), key=lambda row: (*ranks[row], len(texts[row])), reverse=True)
    best = min(number, -(-len(order) // 3))
    worst = min(number, -(-(len(order) - best) // 2))
    between = order[best : len(order) - worst]
    middle = max(0, (len(between) - number) // 2)
    groups = {
        "best": order[:best],
        "median": between[middle : middle + number],
        "worst": order[len(order) - worst :][::-1],
    }
    return {
        name: [{"text": texts[row], "decoded": decoded[row], "token_f1": ranks[row][0]} for row in rows]
        for name, rows in groups.items()
    }
