"""Texts so long that attention between all their tokens would not fit in memory: encoded in parts, or refused.

A part is encoded as a text of its own. A row of Z that is a maximum is the maximum over the parts, and one that is a
mean the mean of theirs, weighted by their tokens; rows that the model scales to unit length are scaled again. So memory
and time grow with the length, and no word is lost, but words of different parts do not attend to each other.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_meanmax.modeling.configuration_base import NO_LIMIT, LatentConfig

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedTokenizerBase

# The weights of 8 heads between so many tokens take half a gigabyte.
MOST_TOKENS = 4096
_MEANS = ("mean", "weighted_mean")


def latent_config(model: SentenceTransformer) -> LatentConfig | None:
    """The configuration of a SentenceTransformer of this package; None of another."""
    config = getattr(getattr(model[0], "auto_model", None), "config", None)
    return config if isinstance(config, LatentConfig) else None


def scales_rows(model: SentenceTransformer) -> bool:
    """Whether a SentenceTransformer of this package was exported with `normalize` "rows"."""
    transformer: Any = model[0]
    return bool(transformer.modality_config["text"]["method"] == "normalized_rows")


def has_long(model: SentenceTransformer, lengths: np.ndarray) -> np.ndarray:
    """Which texts of so many tokens `(N,)` a model cannot read at once, `(N,)`."""
    config = latent_config(model)
    if config is None or config.encoder_type != "self_attention":
        return np.zeros(len(lengths), dtype=bool)  # Others have a limit of their own, or read word by word.
    found: np.ndarray = lengths > MOST_TOKENS
    return found


def encode_in_parts(model: SentenceTransformer, text: str, encode: Callable[[list[str]], np.ndarray]) -> np.ndarray:
    """The vector `(D,)` of a text that is too long to be read at once.

    Args:
        model: a SentenceTransformer of this package.
        text: the text; the model's length limit cuts it.
        encode: gives the whole vectors `(N, D)` of N texts, one at a time.

    Raises:
        ValueError: the pooling does not allow it.
    """
    from sentence_transformers.sentence_transformer.modules import Normalize

    config = latent_config(model)
    rows = () if config is None else config.pooling_rows
    if (
        config is None
        or not set(rows) <= {"max", *_MEANS}
        or any(not isinstance(m, Normalize) for m in list(model)[1:])
    ):
        raise ValueError(too_long(text, f"its pooling ({', '.join(rows)}) and modules make no vector of parts"))
    parts, counts = split_tokens(model.tokenizer, text, (model.max_seq_length or NO_LIMIT) - 1)
    vectors = encode(parts).reshape(len(parts), len(rows), -1)
    means = np.average(vectors, axis=0, weights=counts)
    combined = np.stack([means[i] if name in _MEANS else vectors[:, i].max(axis=0) for i, name in enumerate(rows)])
    if config.latent_normalization is not None or scales_rows(model):
        combined /= np.maximum(np.linalg.norm(combined, axis=1, keepdims=True), 1e-12)
    vector = combined.reshape(-1)
    scaled: np.ndarray = vector / max(float(np.linalg.norm(vector)), 1e-12) if len(model) > 1 else vector
    return scaled


def split_tokens(tokenizer: PreTrainedTokenizerBase, text: str, most: int) -> tuple[list[str], list[int]]:
    """The first `most` tokens of a text, its end token left out, in parts of less than 4,096, and their numbers."""
    encoded = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False, verbose=False)
    starts = [start for start, _ in encoded["offset_mapping"]]
    end = starts[most] if most < len(starts) else len(text)
    size = MOST_TOKENS - 1  # And the end token.
    places = [*starts[: min(most, len(starts)) : size], end]
    places[0] = 0
    parts = [text[begin:stop] for begin, stop in pairwise(places)]
    whole, rest = divmod(min(most, len(starts)), size)
    return parts, [size] * whole + [rest] * (rest > 0)


def check_generation(text: str, length: int) -> None:
    """Checks that a text of so many tokens may be generated again, or translated.

    Raises:
        ValueError: it is too long.
    """
    if length > MOST_TOKENS:
        raise ValueError(too_long(text, "what is generated of it is as long"))


def too_long(text: str, why: str) -> str:
    """What an error says of a text that cannot be read at once."""
    return (
        f"A text of {len(text):,} characters ({text[:40]!r} ...) is more than the {MOST_TOKENS:,} tokens that a model "
        f"reads at once, and {why}. Give `--max_length {MOST_TOKENS}`, or cut texts with `hf-meanmax prepare "
        "--max_length`."
    )
