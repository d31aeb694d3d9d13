"""Texts that nobody writes, and that somebody sends."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterator

# Blocks with habits of their own: controls, combining marks, bidirectional marks, surrogates, emoji, private use.
RANGES = (
    (0x00, 0x1F), (0x20, 0x7E), (0x7F, 0xA0), (0xC0, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x590, 0x6FF),
    (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x2000, 0x206F), (0x2190, 0x21FF), (0x3040, 0x30FF),
    (0x4E00, 0x4FFF), (0xAC00, 0xACFF), (0xD800, 0xDFFF), (0xE000, 0xE0FF), (0xFB00, 0xFB06), (0xFE00, 0xFE0F),
    (0xFFF0, 0xFFFF), (0x10000, 0x100FF), (0x1D400, 0x1D4FF), (0x1F1E6, 0x1F64F), (0xE0000, 0xE007F),
    (0x10FFF0, 0x10FFFF),
)  # fmt: skip
PIECES = (
    "", " ", "\t", "\r", "\x00", "\u2028", "\ufeff", "\u200d", "</s>", "<s>", "<unk>", "<pad>", "[CLS]", "##", "-LRB-",
    "n't", "'", '"', "``", "...", "http://a.b/c?d=e&f", "a" * 300, "1e309", "-0", "NaN", "\\ud800", "%s%n", "${x}",
    "\u0130",
)  # fmt: skip


def odd_texts(count: int, seed: int) -> Iterator[str]:
    """So many texts of up to some dozens of characters, a few of them longer."""
    draw = random.Random(seed)
    for _ in range(count):
        parts = [draw.choice(PIECES) if draw.random() < 0.2 else _run(draw) for _ in range(draw.randint(0, 6))]
        text = draw.choice(("", " ", "  ")).join(parts)
        if draw.random() < 0.1:
            text = unicodedata.normalize(draw.choice(("NFC", "NFD", "NFKC", "NFKD")), text)
        yield text * draw.randint(2, 20) if draw.random() < 0.02 else text


def _run(draw: random.Random) -> str:
    first, last = draw.choice(RANGES)
    return "".join(chr(draw.randint(first, last)) for _ in range(draw.randint(1, 10)))
