"""Any encoder as a SentenceTransformer: loading, length limits, and vectors of texts."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from hf_meanmax.checkpoint.folder import check_checkpoint, is_own_checkpoint, naming_damage, require_embedding
from hf_meanmax.checkpoint.location import hint_at_model, is_missing_folder, naming_unread
from hf_meanmax.data.corpus import by_size, readable
from hf_meanmax.data.sentences import is_unsegmented
from hf_meanmax.fields import expand_home
from hf_meanmax.files import Json, read_json
from hf_meanmax.metrics import counted
from hf_meanmax.modeling.configuration_base import NO_LIMIT, LatentConfig
from hf_meanmax.pretrained import packaged_folder
from hf_meanmax.tokenization.tokenizers import is_character_level, is_word_level, unread_words

from .long_texts import default_prompt, encode_in_parts, groups_by_length, has_long, latent_config

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedTokenizerBase

# The class of an ONNX export's only module.
ONNX_TRANSFORMER = "hf_meanmax.inference.onnx_transformer.OnnxTransformer"
# Batches of texts with more tokens are smaller.
LONG_TEXT = 256
# Batches per call if the model itself splits a call into forward passes.
_TEXTS_OF_CALL = 4
# Texts that are tokenised at once to count their tokens.
_COUNTED_TEXTS = 1000
# Least share of unknown words for a warning.
_MANY_UNKNOWN = 0.2


def load_encoder(
    name: str, trust_remote_code: bool = False, device: torch.device | str | None = None
) -> SentenceTransformer:
    """Loads a SentenceTransformer from a folder, the package or the Hub; checks a folder of this package first.

    `name` may also be a `.onnx` file in the folder of an export.

    Raises:
        FileNotFoundError, ValueError: no such model, a damaged folder (see `check_checkpoint`), or a model without a
            fixed representation.
    """
    from sentence_transformers import SentenceTransformer

    name = str(packaged_folder(name) or expand_home(str(name)))
    settings: Json = {}
    if name.endswith(".onnx") and _is_export(str(Path(name).parent)):
        name, settings["model_kwargs"] = str(Path(name).parent), {"file_name": Path(name).name}
    trust_remote_code = trust_remote_code or _is_export(name)
    if is_own_checkpoint(name) or is_missing_folder(name):
        require_embedding(check_checkpoint(name, encoder_alone=True), name)
    elif Path(name).is_dir() and not (Path(name) / "modules.json").is_file():
        reason = "is no model's folder: it has neither config.json nor modules.json"
        if (Path(name) / "config.json").is_file():
            reason = "has no modules.json, so how its tokens become one vector is not known"
        raise FileNotFoundError(
            f"{name} {reason}; expected a folder of save_checkpoint or of SentenceTransformer.save_pretrained."
            f"{hint_at_model(name)}"
        )
    if Path(name).is_dir():
        reading = naming_damage(name) if is_own_checkpoint(name) else nullcontext()
    else:
        reading = naming_unread(name)
    with reading:
        return SentenceTransformer(
            name,
            device=None if device is None else str(device),
            trust_remote_code=trust_remote_code,
            **settings,
        )


def _is_export(folder: str) -> bool:
    """Whether a folder is an ONNX export; loading one runs only code of this package."""
    modules = Path(folder) / "modules.json"
    found = read_json(modules, list) if modules.is_file() else []
    return [module.get("type") for module in found if isinstance(module, dict)] == [ONNX_TRANSFORMER]


def encode_texts(
    model: SentenceTransformer, texts: list[str], batch_size: int, truncate_dim: int | None = None
) -> np.ndarray:
    """Vectors `(N, D)` of `model.encode`, with smaller batches for long texts.

    Args:
        model: a SentenceTransformer.
        texts: any number of texts.
        batch_size: texts per forward pass; half as many beyond 256 tokens, a quarter beyond 512, and so on. On a CPU a
            self-attention encoder of this package gets four times as many, which it splits into passes itself.
        truncate_dim: keep only the first `truncate_dim` numbers of each vector (default: the model's own setting).
    """
    texts = list(map(readable, texts))
    encode = partial(model.encode, show_progress_bar=False, convert_to_numpy=True, truncate_dim=truncate_dim)
    lengths = np.zeros(len(texts))
    # A token is nearly always a character or more, so only longer texts need counting.
    shortest = LONG_TEXT - len(default_prompt(model))
    long = [row for row, text in enumerate(texts) if len(text) > shortest]
    lengths[long] = np.minimum(count_tokens(model, [texts[row] for row in long]), model.max_seq_length or NO_LIMIT)
    if (in_parts := has_long(model, lengths)).any():
        return _with_long_texts(model, texts, in_parts, batch_size, truncate_dim)
    if groups_by_length(model):
        batch_size *= _TEXTS_OF_CALL
    halvings = np.ceil(np.log2(np.maximum(lengths / LONG_TEXT, 1))).astype(int)
    sizes = np.maximum(1, batch_size >> halvings)
    if len(set(sizes.tolist())) < 2:
        vectors: np.ndarray = encode(texts, batch_size=int(sizes.max(initial=1)))
        return vectors
    # The longest texts first, so that a lack of memory shows at once.
    rows = [np.flatnonzero(sizes == size) for size in np.unique(sizes)]
    parts = [encode([texts[row] for row in part], batch_size=int(sizes[part[0]])) for part in rows]
    vectors = np.empty((len(texts), parts[0].shape[1]), dtype=parts[0].dtype)
    vectors[np.concatenate(rows)] = np.concatenate(parts)
    return vectors


def embedding_dimension(model: SentenceTransformer) -> int:
    """The size of a model's vectors, measured on a text, since the model's own record may be wrong or missing."""
    from sentence_transformers.util import batch_to_device

    with torch.inference_mode():
        features = batch_to_device(model.preprocess(["a"]), model.device)
        size = int(model(features)["sentence_embedding"].shape[-1])
    return min(size, model.truncate_dim or size)


def _with_long_texts(
    model: SentenceTransformer, texts: list[str], in_parts: np.ndarray, batch_size: int, truncate_dim: int | None
) -> np.ndarray:
    """[`encode_texts`] if some texts, marked in `in_parts`, are too long to be read at once."""
    config = latent_config(model)
    size = 0 if config is None else config.sentence_embedding_size
    kept = truncate_dim or model.truncate_dim or size
    vectors = np.empty((len(texts), min(kept, size)), dtype=np.float32)
    for row in np.flatnonzero(in_parts):
        vectors[row] = encode_in_parts(model, texts[row])[:kept]
    rows = np.flatnonzero(~in_parts)
    if len(rows):
        vectors[rows] = encode_texts(model, [texts[row] for row in rows], batch_size, truncate_dim)
    return vectors


@contextmanager
def limited_length(model: SentenceTransformer, max_length: int | None) -> Iterator[None]:
    """Limits a SentenceTransformer to texts of `max_length` tokens inside the block; None keeps its own limit.

    Raises:
        ValueError: the model has fewer positions, or its limit cannot be set.
    """
    if max_length is None:
        yield
        return
    positions = _positions(getattr(model[0], "auto_model", None))
    if positions is not None and positions < max_length:
        raise ValueError(
            f"The length limit is {max_length} tokens, but the model has positions for {positions}; give less."
        )
    own = getattr(model, "max_seq_length", None)
    try:
        model.max_seq_length = max_length
    except AttributeError as error:
        raise ValueError(
            f"The length limit is {max_length} tokens, but a {type(model[0]).__name__} has none to set; leave it out."
        ) from error
    try:
        yield
    finally:
        model.max_seq_length = own


def _positions(model: torch.nn.Module | None) -> int | None:
    """The number of tokens that a transformer has positions for; None if it has no such limit."""
    config = getattr(model, "config", None)
    positions = getattr(config, "max_position_embeddings", -1)
    if model is None or isinstance(config, LatentConfig) or positions <= 0:
        return None
    for module in model.modules():
        padding = getattr(module, "padding_idx", None)
        if isinstance(padding, int) and isinstance(getattr(module, "position_embeddings", None), torch.nn.Embedding):
            # Positions of RoBERTa and similar models start after the padding index.
            return positions - padding - 1
    return positions


def append_linear(model: SentenceTransformer, weight: torch.Tensor, bias: torch.Tensor) -> None:
    """Appends a linear map of the vectors, weight `(out, in)` and bias `(out,)`, as the last module."""
    from sentence_transformers.sentence_transformer.modules import Dense

    size, read = weight.shape
    dense = Dense(read, size, activation_function=None, init_weight=weight, init_bias=bias)
    model.append(dense.to(model.device, next(model.parameters(), weight).dtype))
    # The model's card describes the vectors before the map.
    model._model_card_text = None


def count_tokens(model: SentenceTransformer, texts: list[str]) -> list[int]:
    """The number of tokens of each text with the default prompt, before any limit; 0 if the model has no tokenizer."""
    tokenizer = getattr(model, "tokenizer", None)
    if not texts or not callable(tokenizer):
        return [0] * len(texts)
    prompt = default_prompt(model)
    prompted = (prompt + readable(text) for text in texts)
    return [
        len(ids)
        for some in by_size(prompted, _COUNTED_TEXTS)
        for ids in tokenizer(some, truncation=False, verbose=False)["input_ids"]
    ]


def count_truncated(model: SentenceTransformer, texts: list[str]) -> int:
    """The number of texts that the length limit of a SentenceTransformer cuts."""
    limit = model.max_seq_length or NO_LIMIT
    # A token has at least one byte, and a character at most four, so only these texts can be too long.
    shortest = (limit - 8) // 4 - len(default_prompt(model))
    long = [text for text in texts if len(text) > shortest]
    return sum(length > limit for length in count_tokens(model, long))


def report_unknown(tokenizer: PreTrainedTokenizerBase | None, texts: Sequence[str], where: str) -> None:
    """Warns on stderr if a model's tokenizer does not know many words of texts, which the message calls `where`."""
    if tokenizer is None or not hasattr(tokenizer, "backend_tokenizer") or tokenizer.unk_token_id is None:
        return
    found = unread_words(tokenizer, texts)
    if found.rate < _MANY_UNKNOWN:
        return
    remedy = "Is it of their language?"
    is_of_words = is_word_level(tokenizer) and not is_character_level(tokenizer)
    spaces, characters = sum(text.count(" ") for text in texts), sum(map(len, texts))
    words = [*tokenizer.get_vocab().keys() - set(tokenizer.all_special_tokens)]
    if is_of_words and is_unsegmented(words) and 20 * spaces < characters:
        remedy = (
            "They have no spaces between words: segment them as the texts of the training, see `hf-meanmax prepare`."
        )
    print(
        f"warning: the model does not know {found.unknown:,} of {found.total:,} words ({found.rate:.1%}) of {where}. "
        f"{remedy}",
        file=sys.stderr,
    )


def report_truncated(number: int, model: SentenceTransformer, where: str = "") -> None:
    """Reports on stderr the number of texts that the length limit of a SentenceTransformer has cut, if any."""
    if number:
        print(f"The limit of {model.max_seq_length} tokens cut {counted(number, 'text')}{where}.", file=sys.stderr)
