"""Splits raw text into sentences and words, in scripts with and without spaces between words."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence

from hf_meanmax.extras import require
from hf_meanmax.tokenization.words import FULL_STOPS

IDEOGRAPHS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
# Scripts that are written without spaces between words: kana, half-width kana, ideographs.
CJK = f"\u3040-\u30ff\uff66-\uff9f{IDEOGRAPHS}"
_CJK_CHARACTER = re.compile(f"[{CJK}]")
# Thai, Lao, Burmese and Khmer, without their digits.
_UNSPACED = re.compile(f"[{CJK}\u0e01-\u0e4f\u0e81-\u0ecf\u1000-\u103f\u1780-\u17df]")

# Inside a character class of a regular expression.
OPENING = "\"'(\\[\u00a1\u00ab\u00bf\u2018\u201c\u300a\u300c\u300e\u3010\uff08"
CLOSING = "\"')\\]\u00bb\u2019\u201d\u300b\u300d\u300f\u3011\uff09"
_SENTENCE_END = re.compile(
    # Spaced text: a space, then a letter that is not small; small letters and digits often follow an abbreviation.
    rf"(?<=[.!?\u2026{FULL_STOPS}])[{CLOSING}]*\s+(?=[{OPENING}]*(?P<first>[^\W\d_]))"
    # Full-width marks need no space; ASCII marks and the ellipsis end a sentence without a space only in CJK text.
    rf"|(?:[\u3002\uff01\uff1f\uff1b\uff61]|(?<=[{CJK}])(?:\u2026|\.\.)|(?<=[{CJK}])[.!?;](?=[{CJK}]))"
    rf"[\u3002\uff01\uff1f\uff1b\uff61\u2026.!?~\uff5e]*[{CLOSING}]*\s*"
)
_ABBREVIATION = re.compile(
    r"\b(?:(?-i:[b-hj-z]|(?<=\b[A-Za-z]\.\s)[A-HJ-Z])|"
    r"e\.g|i\.e|etc|vs|cf|al|approx|resp|eqs?|fig|sec|nos?|vol|pp?|ref|dr|mrs?|st)\.$",
    re.IGNORECASE,
)
# Characters; none of them has more.
_LONGEST_ABBREVIATION = 16


def is_unsegmented(texts: Sequence[str]) -> bool:
    """Whether most characters of the texts, white space aside, belong to a script without spaces between words."""
    joined = "".join("".join(texts).split())
    return 2 * len(_UNSPACED.findall(joined)) > len(joined)


def has_ideographs(texts: Sequence[str]) -> bool:
    """Whether the texts contain a Chinese or Japanese character."""
    return any(_CJK_CHARACTER.search(text) for text in texts)


def split_sentences(text: str) -> list[str]:
    """Splits a paragraph at sentence ends, but not after known abbreviations.

    A sentence ends after `.`, `!`, `?`, an ellipsis, or the full stop or question mark of Arabic, Urdu, Indian,
    Burmese, Ethiopic or Armenian text, with closing quotes and brackets, before a space and a letter that is not small.
    It also ends after Chinese and Japanese marks, the Chinese semicolon included. A single small letter before a full
    stop is an abbreviation, and so is a capital after another such letter; other abbreviations are only English ones.
    """
    return [sentence for sentence in map(str.strip, sentence_stretches(text)) if sentence]


def sentence_stretches(text: str) -> Iterator[str]:
    """Yields the sentences of [`split_sentences`] with the white space around them; joined, they give the text."""
    start = 0
    for match in _SENTENCE_END.finditer(text):
        first = match["first"]
        near = max(start, match.start() - _LONGEST_ABBREVIATION)
        if first is None or not (first.islower() or _ABBREVIATION.search(text, near, match.start())):
            yield text[start : match.end()]
            start = match.end()
    yield text[start:]


def chinese_segmenter() -> Callable[[str], str]:
    """Returns a function that puts spaces between the words of Chinese text, as segmented by jieba.

    Nothing but white space is added or removed; a stretch between spaces without a Chinese character stays as it is.

    Raises:
        ImportError: jieba is not installed.
    """
    with warnings.catch_warnings():
        # Newer versions of Python warn about its code when they compile it.
        warnings.simplefilter("ignore")
        jieba = require("jieba", "chinese", "Finding Chinese words")
    # It would log the location of its dictionary to stderr.
    jieba.setLogLevel(logging.WARNING)
    jieba.initialize()

    def segment(text: str) -> str:
        words: list[str] = []
        for stretch in text.split():
            found = list(jieba.cut(stretch)) if _CJK_CHARACTER.search(stretch) else [stretch]
            for previous, word in zip(["", *found], found, strict=False):
                # jieba splits the Chinese dash and ellipsis, which are two characters each.
                if word == previous and not word.isalnum():
                    words[-1] += word
                else:
                    words.append(word)
        return " ".join(words)

    return segment
