"""What a mistyped name was meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: object, known: Iterable[str], cutoff: float = 0.6, quote: str = "'") -> str:
    """A sentence with the known name that is most like `name`, a space before it; empty where none is like it.

    Args:
        name: what was given, in upper or lower case.
        known: the names that there are.
        cutoff: how like they must be, from 0 to 1 (see [`difflib.get_close_matches`]).
        quote: what stands around the name.
    """
    by_lower = {other.lower(): other for other in known}
    nearest = difflib.get_close_matches(str(name).lower(), by_lower, n=1, cutoff=cutoff)
    return f" Did you mean {quote}{by_lower[nearest[0]]}{quote}?" if nearest else ""
