"""Suggestions for mistyped names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: object, known: Iterable[str], cutoff: float = 0.6, quote: str = "'") -> str:
    """A sentence, after a space, that suggests the known name most similar to `name`; empty if none is similar.

    Args:
        name: the mistyped name, in upper or lower case.
        known: the valid names.
        cutoff: the least similarity, from 0 to 1 (see [`difflib.get_close_matches`]).
        quote: the quotation mark around the name.
    """
    by_lower = {other.lower(): other for other in known}
    nearest = difflib.get_close_matches(str(name).lower(), by_lower, n=1, cutoff=cutoff)
    return f" Did you mean {quote}{by_lower[nearest[0]]}{quote}?" if nearest else ""
