"""How much of texts comes back from their vectors: BLEU and exact matches, token F1, numbers, names and rare words."""

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

# Cuts texts into the words that are compared.
Cut = Callable[[Sequence[str]], list[list[str]]]
KINDS = ("numbers", "names", "rare_words")
# A word is rare that makes up no more than one in so many words, or stands once in all.
RARE_ONE_IN = 100_000

_WORD = re.compile(r"[^\W\d_](?:[\w'\u2019-]*\w)?")
_QUOTES = "\"'(\u2018\u201c\u00ab"
_I = re.compile(r"I(['\u2019]\w+)?")


def word_cutter(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> Cut:
    """A function that cuts texts into words as a tokenizer normalises and cuts them.

    Args:
        tokenizer: of the decoder; of one of pieces, the words before they are cut into pieces.
        texts: what is to be compared. Scripts without spaces between words are cut by character under a tokenizer of
            pieces, and others into words under one of characters, as sacrebleu does.
    """
    tokenize = tokenization_under(tokenizer, texts)
    if tokenize == "none":
        return lambda texts: list(split_words(tokenizer, texts))
    from sacrebleu.metrics import BLEU

    cut, normalize = BLEU(tokenize=tokenize).tokenizer, normalizer_of(tokenizer)
    return lambda texts: [cut(normalize(text)).split() for text in texts]


def ignores_case(cut: Cut) -> bool:
    """Whether words that differ in their case alone are the same."""
    upper, lower = cut(["A", "a"])
    return upper == lower


@dataclass(frozen=True)
class References:
    """Texts that should come back, in words.

    Args:
        words: of each text.
        special: by kind (of [`KINDS`]) the words of each text that are of it.
        rare_count: how often a rare word occurs at most where words were counted.
        counted_words: how many words were counted.
    """

    words: list[list[str]]
    special: dict[str, list[list[str]]]
    rare_count: int
    counted_words: int

    @classmethod
    def of(cls, texts: Sequence[str], cut: Cut, counted: Iterable[str] | None = None) -> References:
        """The words of texts.

        Args:
            texts: the texts as they were written, in capitals and small letters.
            cut: cuts texts into words.
            counted: the texts whose words tell which are rare; by default `texts`.
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
        """Those of some texts; which words are rare stays as it was."""
        special = {kind: [found[row] for row in rows] for kind, found in self.special.items()}
        return References([self.words[row] for row in rows], special, self.rare_count, self.counted_words)


def names_of(text: str) -> Iterator[str]:
    """Words with a capital that do not begin a sentence or a quotation; neither `I` nor anything in a text of capitals.

    A sign of names in English and like languages, no proof of one.
    """
    if text.isupper():
        return
    for sentence in split_sentences(text):
        for number, match in enumerate(_WORD.finditer(sentence)):
            word, before = match[0], sentence[: match.start()][-1:]
            if number and word[0].isupper() and before not in _QUOTES and not _I.fullmatch(word):
                yield word


def has_digit(word: str) -> bool:
    """Whether a word has a digit in it."""
    return any(character.isdigit() for character in word)


def has_letter(word: str) -> bool:
    """Whether a word has a letter in it."""
    return any(character.isalpha() for character in word)


def token_f1(decoded: Sequence[str], true: Sequence[str]) -> float:
    """Harmonic mean of precision and recall of words, each as often as it occurs; 1 where both have none."""
    if not decoded and not true:
        return 1.0
    return 2 * (Counter(decoded) & Counter(true)).total() / (len(decoded) + len(true))


def score_recovery(decoded: Sequence[Sequence[str]], references: References) -> Json:
    """Scores of what was decoded.

    Args:
        decoded: the words of each text that was decoded.
        references: what should have come back.

    Returns:
        `texts`; `bleu` (0-100, by sacrebleu over these words); `exact_match` and mean `token_f1` (0-1); and for each
        kind the share of its words that came back (`numbers_recall`, ...; None where there are none) and their number
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
    """[`score_recovery`] in bins of the references' numbers of words, with `from`, `to` (None: no end) and `count`.

    BLEU is None where no reference has the four words that it needs.
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
    """The best, the middle and the worst texts, without overlap; of equally good ones the longest first.

    Args:
        texts: as they were.
        decoded: what came back of each.
        ranks: the token F1 of each, and whether it came back word for word.
        number: most texts of each group.
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
