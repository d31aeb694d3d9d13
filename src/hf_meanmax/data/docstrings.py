"""Collects English sentences from the docstrings of the standard library and of installed packages.

The source files are parsed with `ast`; nothing is imported or executed.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import inspect
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hf_meanmax.hardware import usable_cores
from hf_meanmax.progress import progress_bar

from .sentences import split_sentences
from .workers import map_in_processes

_SKIPPED_FOLDERS = {
    "__pycache__",
    "test",
    "tests",
    "testing",
    "idle_test",
    "site-packages",
    "dist-packages",
    "node_modules",
}
_LARGEST_FILE = 4_000_000
_FILES_TOGETHER = 16


@dataclass
class Docstrings:
    """Harvested documents, one for each docstring with at least one new sentence.

    Attributes:
        documents: sentences of each docstring.
        files: the source file of each document, relative to its root.
    """

    documents: list[list[str]] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    def split(self, held_out: float = 0.02) -> tuple[list[list[str]], list[list[str]]]:
        """Splits the documents by a hash of their file: (training documents, held-out documents).

        A file is always on the same side, and no sentence is on both sides, since duplicates were removed before.

        Raises:
            ValueError: `held_out` outside (0, 1).
        """
        if not 0.0 < held_out < 1.0:
            raise ValueError(f"held_out is {held_out}; it must lie between 0 and 1.")
        sides: tuple[list[list[str]], list[list[str]]] = ([], [])
        for document, file in zip(self.documents, self.files, strict=True):
            digest = hashlib.blake2b(file.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            sides[int.from_bytes(digest, "big") < held_out * 2**64].append(document)
        return sides


def harvest_docstrings(
    roots: Sequence[str | os.PathLike[str]] | None = None, num_proc: int | None = None, show_progress: bool = True
) -> Docstrings:
    """Collects the English sentences of all docstrings below `roots`.

    Code, doctests, tables, parameter lists and markup are removed. A sentence has 3-40 words, nearly all of them plain
    words. Of sentences that differ only in case, digits or punctuation the first is kept. The result depends on the
    files alone, not on `num_proc`.

    Args:
        roots: folders to search; None for the standard library and the installed packages. Test folders are
            skipped.
        num_proc: number of worker processes; None for one per core.
        show_progress: show a progress bar.

    Raises:
        FileNotFoundError: a root is not a folder.
        ValueError: no sentence was found.
    """
    if roots is None:
        roots = list(dict.fromkeys(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))
    folders = [Path(root) for root in roots]
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"No such folder: {folder}.")
    files = [(file, file.relative_to(folder).as_posix()) for folder in folders for file in _python_files(folder)]
    result = Docstrings()
    seen: set[str] = set()
    paths = [str(file) for file, _ in files]
    with progress_bar(total=len(files), unit="file", desc="docstrings", disable=not show_progress) as bar:
        for (_, name), found in zip(files, _map(paths, num_proc or usable_cores()), strict=True):
            for sentences in found:
                fresh = []
                for sentence in sentences:
                    key = re.sub(r"[^a-z]+", " ", sentence.lower()).strip()
                    if key not in seen:
                        seen.add(key)
                        fresh.append(sentence)
                if fresh:
                    result.documents.append(fresh)
                    result.files.append(name)
            bar.update()
    if not result.documents:
        raise ValueError(f"No sentence was found in the docstrings below {', '.join(map(str, folders))}.")
    return result


def _python_files(root: Path) -> Iterator[Path]:
    """Yields Python files below `root` in a fixed order, without tests and packages installed inside it."""
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if name not in _SKIPPED_FOLDERS and not name.startswith("."))
        for name in sorted(files):
            if name.endswith(".py") and not name.startswith("test_") and not name.endswith("_test.py"):
                yield Path(folder, name)


def _map(paths: list[str], num_proc: int) -> Iterator[list[list[str]]]:
    if num_proc == 1 or len(paths) < 64:
        yield from map(file_sentences, paths)
        return
    parts = ((paths[start : start + _FILES_TOGETHER],) for start in range(0, len(paths), _FILES_TOGETHER))
    for found in map_in_processes(_sentences_of_files, parts, num_proc):
        yield from found


def _sentences_of_files(paths: list[str]) -> list[list[list[str]]]:
    return list(map(file_sentences, paths))


def file_sentences(path: str) -> list[list[str]]:
    """The sentences of each docstring of one file; none if it is too large, or cannot be read or parsed."""
    try:
        if os.path.getsize(path) > _LARGEST_FILE:
            return []
        with open(path, "rb") as file:
            source = file.read()
        if b'"""' not in source and b"'''" not in source:
            return []
        docstrings = _parse_docstrings(source)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = map(sentences_of, docstrings)
    return [sentences for sentences in found if sentences]


def _parse_docstrings(source: bytes) -> list[str]:
    # The garbage collector more than doubles the time of parsing; a syntax tree has no cycles to collect.
    collecting = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return list(_docstrings(ast.parse(source)))
    finally:
        if collecting:
            gc.enable()


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """Docstrings in the order of the source. Only statements are visited, which is much faster than `ast.walk`."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found = ast.get_docstring(node, clean=False)
            if found is not None:
                yield found
        for name in ("finalbody", "orelse", "handlers", "body"):
            waiting.extend(reversed(getattr(node, name, ())))


def sentences_of(docstring: str) -> list[str]:
    """The plain English sentences of one docstring."""
    return [
        sentence
        for paragraph in paragraphs_of(docstring)
        for sentence in split_sentences(_without_markup(paragraph))
        if is_plain_english(sentence)
    ]


_BULLET = re.compile(r"(?:[-*+\u2022]|\d{1,2}[.)]|\(?[a-z\d][.)])\s+")
_RULE = re.compile(r"[-=~^\"'`#*+_.|: ]{3,}$")
# "name : type", "name (type): text", "name: text", "`name` (`type`): text", ":param name: text", "@param name"
_PARAMETER = re.compile(
    r"(?::\w[^:]*:|@\w+|[`*]*[\w.,* /\[\]-]{1,40}[`*]*\s*(?:\([^)]*\))?\s*:(?:\s|$)|[`*]*\w+[`*]*\s+--\s)"
)
# Matches only parameters, so it is used even after a line of prose.
_INNER_PARAMETER = re.compile(r":\w[^:]*:\s|@\w+\s|[`*]*\w+[`*]* (?:: |-- )|[`*]*\w+[`*]*\s*\([^)]*\)\s*:\s")
_SECTION = re.compile(
    r"(?:args?|arguments?|params?|parameters?|keyword args?|keyword arguments?|other parameters|returns?|yields?|"
    r"raises?|attributes?|examples?|example usage|usage|see also|references?|inputs?|outputs?|shape|methods?|warns?|"
    r"receives?|todo)\s*:{0,2}$",
    re.IGNORECASE,
)


def paragraphs_of(docstring: str) -> list[str]:
    """Paragraphs of prose, each as one line, without code, doctests, tables, headings and parameter lists."""
    lines = inspect.cleandoc(docstring).splitlines()
    # The lines of each paragraph; the last paragraph is still open.
    paragraphs: list[list[str]] = [[]]
    fenced = False
    skip_deeper_than: int | None = None
    doctest = False
    for number, raw in enumerate(lines):
        text = raw.strip()
        indent = len(raw) - len(raw.lstrip())
        if text.startswith(("```", "~~~")):
            fenced = not fenced
            text = ""
        if fenced or not text:
            doctest = False
            paragraphs.append([])
            continue
        if skip_deeper_than is not None:
            if indent > skip_deeper_than:
                continue
            skip_deeper_than = None
        if text.startswith((">>>", "In [", "$ ")):
            doctest = True
        following = lines[number + 1].strip() if number + 1 < len(lines) else ""
        is_heading = bool(following) and bool(_RULE.match(following)) and len(set(following)) == 1
        starts_block = (
            text.startswith((".. ", "|", "+--", "@", "<"))
            or bool(_SECTION.match(text))
            or bool((_INNER_PARAMETER if paragraphs[-1] else _PARAMETER).match(text))
        )
        if doctest or _RULE.match(text) or is_heading or starts_block:
            paragraphs.append([])
            if starts_block:
                skip_deeper_than = indent
            continue
        bullet = _BULLET.match(text)
        if bullet:
            paragraphs.append([])
            text = text[bullet.end() :]
            if _PARAMETER.match(text):
                skip_deeper_than = indent
                continue
        if text.endswith("::"):
            skip_deeper_than = indent
            text = text[:-1]
        paragraphs[-1].append(text)
    return [" ".join(found) for found in paragraphs if found]


_MARKUP = [
    (re.compile(r":[\w:+.-]+:`~?(?:[^`<]*\.)?([^`<.]+?)(?:\s*<[^`]*>)?`"), r"\1"),
    (re.compile(r"`([^`<]+?)\s*<[^`]*>`_{1,2}"), r"\1"),
    (re.compile(r"!?\[([^\]]*)\]\([^)]*\)"), r"\1"),
    (re.compile(r"\[\d+\]_?"), ""),
    (re.compile(r"`+~?([^`]+)`+_{0,2}"), r"\1"),
    (re.compile(r"(\*{1,3})(?=\S)([^*]+?)(?<=\S)\1"), r"\2"),
    (re.compile(r"\s+([,.;:!?])"), r"\1"),
    (re.compile(r"\s+"), " "),
]
_QUOTES = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": "-"})


def _without_markup(text: str) -> str:
    text = text.translate(_QUOTES)
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    return text.strip()


_WORD = re.compile(r"[\"'(]*(?:[A-Za-z]+(?:[-'/][A-Za-z]+)*'?|\d[\d.,]*%?|-)[\"')]*[.,;:!?]*[\"')]*")
_CODE = re.compile(r"[_=<>{}\[\]|\\@#$^~*`&+]|::|\w\(|\w\.\w|https?:|[a-z][A-Z]")
_ENGLISH = """
the a an of to in is are for and or that this with be on by as it if from not will can when at which has have was were
you we its than then all any each no should may must does do used using only
"""
_FUNCTION_WORDS = frozenset(_ENGLISH.split())
_PLAIN_WORDS = 0.9


def is_plain_english(sentence: str) -> bool:
    """Whether a sentence has 3-40 words, nearly all plain, begins with a capital and contains common English words."""
    words = sentence.split()
    if not 3 <= len(words) <= 40 or not sentence.isascii():
        return False
    if not re.match(r"[\"'(]?[A-Z]", sentence) or sentence[-1] in ":,;-(" or _CODE.search(sentence):
        return False
    if sum(_WORD.fullmatch(word) is not None for word in words) < _PLAIN_WORDS * len(words):
        return False
    # Without a full stop it may be a title, but a title does not end in a function word.
    if sentence[-1].isalnum() and words[-1].lower() in _FUNCTION_WORDS:
        return False
    if sentence.count("(") != sentence.count(")") or sentence.count('"') % 2:
        return False
    return len(words) < 6 or not _FUNCTION_WORDS.isdisjoint(word.strip("\"'(),.;:!?").lower() for word in words)
