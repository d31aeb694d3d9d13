"""Texts too long for attention between all their tokens to fit in memory: encoded in parts, or refused.

Each part is encoded as a text of its own. A maximum row of Z is the maximum over the parts, a mean row their mean
weighted by their numbers of tokens; then the rows are scaled as configured. Memory and time grow linearly with the
length, and no word is lost, but words of different parts do not attend to each other.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import normalize

from hf_meanmax.modeling.configuration_base import NO_LIMIT, LatentConfig

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedTokenizerBase

# The attention weights of 8 heads between this many tokens take half a gigabyte.
MOST_TOKENS = 4096


def latent_config(model: SentenceTransformer) -> LatentConfig | None:
    """The configuration of a SentenceTransformer of this package; None for any other."""
    config = getattr(getattr(model[0], "auto_model", None), "config", None)
    return config if isinstance(config, LatentConfig) else None


def default_prompt(model: SentenceTransformer) -> str:
    """The prompt that a SentenceTransformer puts before a text by default; empty if it has none."""
    return str(model.prompts.get(model.default_prompt_name or "") or "")


def scales_rows(model: SentenceTransformer) -> bool:
    """Whether a SentenceTransformer of this package was exported with `normalize` "rows"."""
    return _method(model) == "normalized_rows"


def groups_by_length(model: SentenceTransformer) -> bool:
    """Whether the model splits a call into small forward passes itself, so that a call may hold many texts."""
    return _has_self_attention(model) and model.device.type == "cpu" and _method(model) != "forward"


def _method(model: SentenceTransformer) -> str:
    """The name of the model's method that a SentenceTransformer calls."""
    transformer: Any = model[0]
    return str(transformer.modality_config["text"]["method"])


def has_long(model: SentenceTransformer, lengths: np.ndarray) -> np.ndarray:
    """Whether texts with these numbers of tokens `(N,)` are too long for the model to read at once, `(N,)`."""
    # Encoders without self-attention read word by word, and models of other packages have a limit of their own.
    found: np.ndarray = (lengths > MOST_TOKENS) & _has_self_attention(model)
    return found


def _has_self_attention(model: SentenceTransformer) -> bool:
    """Whether a SentenceTransformer is of this package and has a self-attention encoder."""
    config = latent_config(model)
    return config is not None and config.encoder_type == "self_attention"


@torch.inference_mode()
def encode_in_parts(model: SentenceTransformer, text: str) -> np.ndarray:
    """The vector `(D,)` of a text that is too long to be read at once.

    Args:
        model: a SentenceTransformer of this package.
        text: the text; the model's length limit cuts it.

    Raises:
        ValueError: the pooling, or a module after the encoder, cannot combine parts.
    """
    from sentence_transformers.sentence_transformer.modules import Normalize

    config = latent_config(model)
    rows = () if config is None else config.pooling_rows
    others = [type(module).__name__ for module in list(model)[1:] if not isinstance(module, Normalize)]
    if config is None or others or not set(rows) <= {"max", "mean", "weighted_mean"}:
        what = f"its module {others[0]} makes" if others else f"its pooling ({', '.join(rows)}) makes"
        raise ValueError(too_long(text, f"{what} no vector of parts", has_limit=True))
    encoder: Any = model.eval()[0].auto_model
    parts, counts = split_tokens(model.tokenizer, default_prompt(model) + text, (model.max_seq_length or NO_LIMIT) - 1)
    ids = [model.tokenizer(part, return_tensors="pt")["input_ids"].to(encoder.device) for part in parts]
    pooled = torch.cat([encoder.pooler(encoder(input_ids=part).last_hidden_state)[0] for part in ids]).float()
    shares = torch.tensor(counts, dtype=pooled.dtype, device=pooled.device) / sum(counts)
    combined = [
        pooled[:, i].amax(dim=0) if name == "max" else shares @ pooled[:, i]
        for i, name in enumerate(rows)
        if name != "weighted_mean"
    ]
    if "weighted_mean" in rows:
        # A weighted mean has no attention, so it reads the whole text at once.
        whole = torch.cat(ids, dim=1)
        combined.append(encoder.weighted_mean(encoder.embeddings.embed_words(whole), whole)[0, 0].float())
    latents = encoder.scale_rows(torch.stack(combined)[None])
    vector = (normalize(latents, dim=-1) if scales_rows(model) else latents).flatten()
    scaled: np.ndarray = (normalize(vector, dim=0) if len(model) > 1 else vector).cpu().numpy()
    return scaled


def split_tokens(tokenizer: PreTrainedTokenizerBase, text: str, most: int) -> tuple[list[str], list[int]]:
    """Splits the first `most` tokens of a text, without its end token, into parts of fewer than 4,096 tokens; returns
    the texts of the parts and their numbers of tokens."""
    encoded = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False, verbose=False)
    starts = [start for start, _ in encoded["offset_mapping"]]
    end = starts[most] if most < len(starts) else len(text)
    size = MOST_TOKENS - 1  # one is for the end token
    places = [*starts[: min(most, len(starts)) : size], end]
    places[0] = 0
    parts = [text[begin:stop] for begin, stop in pairwise(places)]
    whole, rest = divmod(min(most, len(starts)), size)
    return parts, [size] * whole + [rest] * (rest > 0)


def too_long(text: str, why: str, has_limit: bool = False) -> str:
    """The error message for a text that cannot be read at once; `has_limit` also suggests a length limit."""
    limit = f"Set the model's `max_seq_length` to {MOST_TOKENS} (`--max_length` of `encode` and `search index`), or cut"
    remedy = limit if has_limit else "Cut"
    return (
        f"A text of {len(text):,} characters ({text[:40]!r} ...) is more than the {MOST_TOKENS:,} tokens that a model "
        f"reads at once, and {why}. {remedy} texts with `hf-meanmax prepare --max_length`."
    )
