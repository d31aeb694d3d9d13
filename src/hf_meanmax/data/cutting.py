"""Rewrites a corpus as one text per line: long texts cut at sentence ends, Chinese segmented into words."""

from __future__ import annotations

import os
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import accumulate, chain, islice, starmap
from typing import Literal

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from hf_meanmax.fields import check_settings, count, option
from hf_meanmax.progress import progress_bar
from hf_meanmax.tokenization.words import COMMAS, FULL_STOPS, word_normalizer, word_pre_tokenizer

from .corpus import Corpus
from .random_streams import CUTTING, stream
from .sentences import CJK, CLOSING, chinese_segmenter, is_unsegmented, sentence_stretches
from .text_writer import text_writer
from .workers import map_in_processes

Unit = Literal["auto", "word", "character"]
Segmenter = Literal["jieba"]
SEGMENTERS: dict[str, Callable[[], Callable[[str], str]]] = {"jieba": chinese_segmenter}

# A part of a text that is cut only if it is longer than a piece, with the space after it, and its number of units.
Atom = tuple[str, int]

_LINES_PER_CHUNK = 512
_KNOWN_WORDS = 1 << 20
_ENDS = f"[,;:.!?\u2026\u3001\u3002\uff0c\uff1b\uff1a\uff01\uff1f{FULL_STOPS}{COMMAS}]"
_CLAUSE_END = re.compile(rf"{_ENDS}[{CLOSING}]*\s*$")
# A word and the marks that follow it, which stand alone in segmented text; straight quotes may open the next word.
_CLOSED = CLOSING.replace("\"'", "")
_BETWEEN_SPACES = re.compile(rf"\S+\s*(?:(?:{_ENDS}|[{_CLOSED}])+(?:\s+|$))*")
# A letter and its combining marks stay together.
_CHARACTERS = pre_tokenizers.Split(Regex(r"\X"), behavior="isolated")
# A CJK character, or a word or number between CJK characters, with the marks around it.
_OPENING_MARKS = "\u2018\u201c\u300a\u300c\u300e\u3010\uff08"
_MARKS = "\u2010-\u205e\u3000-\u303f\uff00-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
_BETWEEN_CHARACTERS = re.compile(
    rf"[{_OPENING_MARKS}]*(?:[^\s{CJK}{_MARKS}]+|.)(?:(?![{_OPENING_MARKS}])[!\"'),.:;?{_MARKS}])*\s*"
)


@dataclass(frozen=True)
class Cutting:
    """How the texts of a corpus are rewritten.

    With `max_length`, each text is cut into pieces and becomes a document of its own. Consecutive sentences are joined
    up to M units, with M drawn uniformly from `min_length` to `max_length` for each piece. A first sentence longer than
    M is a piece by itself, and a piece below `min_length` takes one more sentence if `max_length` allows. A sentence
    longer than `max_length` is cut at M units, or after a comma or another mark in the last third of these. Pieces that
    are still shorter than `min_length` are dropped.

    Args:
        max_length: maximum units of a piece; None cuts nothing.
        min_length: minimum units of a piece.
        unit: `"word"` (tokens of the word-level tokenizer, punctuation included, counted separately between spaces),
            `"character"`, or `"auto"`: characters if the first lines are mostly in a script without spaces and
            `segment` is None, words otherwise.
        segment: `"jieba"` puts spaces between the words of Chinese text.
        seed: seed of the lengths M, which depend on it and on the line number.

    Raises:
        ValueError: a value out of its range.
    """

    max_length: int | None = count("cut texts at sentence ends, to at most so many units", None)
    min_length: int = count("drop pieces of fewer units", 1)
    unit: Unit = option("what lengths count; auto decides by the first lines", "auto")
    segment: Segmenter | None = option("put spaces between the words of Chinese text", None)
    seed: int = option("seed of the lengths that are drawn", 0, at_least=0)

    def __post_init__(self) -> None:
        check_settings(self)
        if self.max_length is None and self.min_length > 1:
            raise ValueError(
                f"min_length is {self.min_length} but max_length is not given; only up to a max_length are texts cut."
            )
        if self.max_length is not None and self.max_length < self.min_length:
            raise ValueError(f"max_length is {self.max_length}; it must be at least min_length = {self.min_length}.")

    def for_texts(self, texts: Sequence[str]) -> Cutting:
        """The same settings with `"auto"` replaced by the unit that fits some texts of the corpus."""
        if self.unit != "auto":
            return self
        return replace(self, unit="character" if self.segment is None and is_unsegmented(texts) else "word")


@dataclass
class CuttingReport:
    """Counts of the texts and pieces of a corpus that was cut.

    Attributes:
        texts: lines read that are not blank.
        short_pieces: pieces dropped because they are shorter than `min_length`.
        short_units: units in them.
        cut_sentences: sentences longer than `max_length`.
        lengths: number of pieces written, by length in units.
    """

    texts: int = 0
    short_pieces: int = 0
    short_units: int = 0
    cut_sentences: int = 0
    lengths: Counter[int] = field(default_factory=Counter)

    @property
    def pieces(self) -> int:
        """Number of pieces written."""
        return self.lengths.total()

    def add(self, other: CuttingReport) -> None:
        """Adds the counts of `other`."""
        self.texts += other.texts
        self.short_pieces += other.short_pieces
        self.short_units += other.short_units
        self.cut_sentences += other.cut_sentences
        self.lengths.update(other.lengths)

    def median(self) -> int:
        """The median length of the pieces (the lower one of two in the middle)."""
        lengths = sorted(self.lengths)
        totals = accumulate(self.lengths[length] for length in lengths)
        return next(length for length, total in zip(lengths, totals, strict=True) if 2 * total >= self.pieces)

    def __str__(self) -> str:
        units = self.short_units + sum(length * number for length, number in self.lengths.items())
        share = self.short_units / units if units else 0.0
        text = (
            f"{self.texts:,} texts read, {self.pieces:,} pieces written, {self.short_pieces:,} short ones dropped "
            f"({share:.1%} of the units), {self.cut_sentences:,} sentences cut"
        )
        if self.pieces:
            text += f"; lengths: min {min(self.lengths)}, median {self.median()}, max {max(self.lengths)}"
        return text


class Cutter:
    """Cuts texts by the rules of a [`Cutting`].

    Raises:
        ImportError: the segmenter is not installed.
        ValueError: the unit is `"auto"`; replace it with [`Cutting.for_texts`].
    """

    def __init__(self, settings: Cutting):
        if settings.unit == "auto":
            raise ValueError("The unit is 'auto'; decide it with Cutting.for_texts.")
        self.settings = settings
        self.segment = None if settings.segment is None else SEGMENTERS[settings.segment]()
        # Unlike pre-tokenising, encoding gives the offsets of the words in the text before normalisation.
        self._splitter = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
        self._splitter.normalizer = word_normalizer(lowercase=False)
        self._splitter.pre_tokenizer = word_pre_tokenizer()
        self._known: dict[str, int] = {}

    def count(self, text: str) -> int:
        """Number of units of a text: its characters, or the words between its spaces."""
        if self.settings.unit == "character":
            return len(text)
        return sum(map(self._count_words, text.split()))

    def __call__(self, text: str, number: int) -> tuple[list[str], CuttingReport]:
        """Cuts a text, line `number` of its corpus, into pieces and counts them. White space becomes one space."""
        text = " ".join(text.split())
        report = CuttingReport(texts=1)
        if self.settings.max_length is None:
            pieces = [text if self.segment is None else self.segment(text)]
        else:
            sentences = [self._atoms(sentence) for sentence in sentence_stretches(text)]
            report.cut_sentences = sum(_size(sentence) > self.settings.max_length for sentence in sentences)
            pieces = ["".join(atom for atom, _ in piece).strip() for piece in self._pieces(sentences, number)]
        kept = []
        for piece in pieces:
            length = self.count(piece)
            if length < self.settings.min_length:
                report.short_pieces += 1
                report.short_units += length
            else:
                report.lengths[length] += 1
                kept.append(piece)
        return kept, report

    def _count_words(self, stretch: str) -> int:
        found = self._known.get(stretch)
        if found is None:
            found = len(self._splitter.encode(stretch).ids)
            if len(self._known) < _KNOWN_WORDS:
                self._known[stretch] = found
        return found

    def _atoms(self, sentence: str) -> deque[Atom]:
        pattern = _BETWEEN_CHARACTERS if self.settings.unit == "character" else _BETWEEN_SPACES
        if self.segment is not None:
            sentence, pattern = self.segment(sentence) + " ", _BETWEEN_SPACES
        atoms: deque[Atom] = deque()
        for text in pattern.findall(sentence):
            size = self.count(text)
            if size > (self.settings.max_length or size):
                atoms.extend((part, self.count(part)) for part in self._torn(text))
            else:
                atoms.append((text, size))
        return atoms

    def _torn(self, text: str) -> list[str]:
        """Cuts a text that is longer than a whole piece after each unit."""
        if self.settings.unit == "character":
            return [character for character, _ in _CHARACTERS.pre_tokenize_str(text)]
        starts = sorted({start for start, _ in self._splitter.encode(text).offsets} - {0})
        return [text[start:end] for start, end in zip([0, *starts], [*starts, len(text)], strict=True)]

    def _pieces(self, sentences: list[deque[Atom]], number: int) -> Iterator[list[Atom]]:
        low, high = self.settings.min_length, self.settings.max_length or 0
        rng = stream(self.settings.seed, CUTTING, number)
        waiting = deque((sentence, _size(sentence)) for sentence in sentences)
        piece: list[Atom] = []
        limit = int(rng.integers(low, high + 1))
        while waiting:
            sentence, size = waiting.popleft()
            length = _size(piece)
            if length + size <= limit or (length < low and length + size <= high):
                piece += sentence
                continue
            if length < low and size > high:
                taken = _take(sentence, limit - length, least=0 if piece else 1)
                piece += taken
                size -= _size(taken)
            waiting.appendleft((sentence, size))
            yield piece
            piece, limit = [], int(rng.integers(low, high + 1))
        if piece:
            yield piece


def _size(atoms: Iterable[Atom]) -> int:
    return sum(size for _, size in atoms)


def _take(sentence: deque[Atom], room: int, least: int) -> list[Atom]:
    """Removes at most `room` units, but at least `least` atoms, from the start of a longer sentence and returns them.

    It cuts after the last mark in the last third of these units, if there is one.
    """
    taken: list[Atom] = []
    total, end = 0, None
    while sentence and (len(taken) < least or total + sentence[0][1] <= room):
        taken.append(sentence.popleft())
        total += taken[-1][1]
        if 3 * total >= 2 * room and _CLAUSE_END.search(taken[-1][0]):
            end = len(taken)
    if end is not None:
        sentence.extendleft(reversed(taken[end:]))
    return taken[:end]


def cut_corpus(
    corpus: Corpus,
    output: str | os.PathLike[str],
    settings: Cutting | None = None,
    num_proc: int = 1,
    show_progress: bool = True,
) -> CuttingReport:
    """Writes a corpus atomically as one text file: one piece per line, a blank line after each document.

    With `settings.max_length` every line of the corpus becomes a document, otherwise its blank lines are kept.

    Args:
        corpus: see [`open_corpus`].
        output: a .txt, .xz or .gz file; its folder is created.
        settings: see [`Cutting`].
        num_proc: number of worker processes; the output does not depend on it.
        show_progress: show a progress bar.

    Raises:
        ValueError: an unknown suffix, an empty corpus, or no piece left.
        ImportError: the segmenter is not installed.
    """
    settings = settings or Cutting()
    report = CuttingReport()
    with text_writer(output) as file:
        with progress_bar(
            total=corpus.size, unit=corpus.unit, unit_scale=True, desc="cut", disable=not show_progress
        ) as bar:
            for text, part in _cut_chunks(corpus, settings, num_proc):
                file.write(text)
                report.add(part)
                bar.set_postfix(texts=report.texts, pieces=report.pieces, refresh=False)
                bar.update(corpus.position - bar.n)
        if not report.pieces:
            raise ValueError(f"No piece is left ({report})." if report.texts else "The corpus is empty.")
    return report


def _cut_chunks(corpus: Corpus, settings: Cutting, num_proc: int) -> Iterator[tuple[str, CuttingReport]]:
    """Yields the text to write and its counts for some lines at a time, in order."""
    chunks = _chunks(corpus)
    start = list(islice(chunks, 1))
    settings = settings.for_texts([line for _, lines in start for line in lines])
    chunks = chain(start, chunks)
    # Made here first, so that a missing package is reported here and not in a worker.
    _cutter(settings)
    cut = partial(_cut_lines, settings)
    yield from starmap(cut, chunks) if num_proc == 1 else map_in_processes(cut, chunks, num_proc)


def _chunks(corpus: Corpus) -> Iterator[tuple[int, list[str]]]:
    """Yields the number of each chunk's first line, and its lines."""
    lines = iter(corpus)
    first = 0
    while chunk := list(islice(lines, _LINES_PER_CHUNK)):
        yield first, chunk
        first += len(chunk)


@lru_cache(maxsize=1)
def _cutter(settings: Cutting) -> Cutter:
    """The cutter, cached in each process, since segmenters take seconds to load."""
    return Cutter(settings)


def _cut_lines(settings: Cutting, first: int, lines: list[str]) -> tuple[str, CuttingReport]:
    cutter = _cutter(settings)
    is_cut = settings.max_length is not None
    written: list[str] = []
    report = CuttingReport()
    for number, line in enumerate(lines, start=first):
        if line:
            pieces, part = cutter(line, number)
            report.add(part)
            written += pieces
            if is_cut and pieces:
                written.append("")
        elif not is_cut:
            written.append("")
    return "".join(f"{line}\n" for line in written), report
