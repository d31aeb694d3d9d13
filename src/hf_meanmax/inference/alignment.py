"""An embedding decoder without training: a linear map from an embedder's vectors to the Z of an autoencoder.

Ridge regression fits the map to texts that both encode; the autoencoder's decoder stays as it is (like ALGEN, Chen,
Xu and Bjerva, ACL 2025, which aligns an embedder with a decoder's own embedder).
"""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from hf_meanmax.checkpoint.folder import require_embedding
from hf_meanmax.cosines import paired_cosines, unit_rows
from hf_meanmax.files import Json
from hf_meanmax.modeling.conditional_decoding import LatentForConditionalDecoding
from hf_meanmax.modeling.configuration_embedding_decoder import EmbeddingDecoderConfig
from hf_meanmax.modeling.generation import NO_DECODER
from hf_meanmax.modeling.layers import scale_rows
from hf_meanmax.modeling.modeling_embedding_decoder import EmbeddingDecoderForGeneration
from hf_meanmax.progress import progress_bar

from .compression import check_finite
from .embedder import describe_embedder, embed, fit_standardization
from .long_texts import MOST_TOKENS, too_long
from .reconstruct import rows_by_length

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedTokenizerBase

# Regularisation strengths per text that are tried; the inputs are standardised.
_STRENGTHS = tuple(10.0**power for power in range(-5, 2))
_FEWEST, _FEW = 10, 1000
# Index of the held-out text among every ten.
_HELD_OUT = 5
_BLOCK = 1024
_BATCH_TOKENS = 8192


@dataclass(frozen=True)
class Alignment:
    """A decoder of the embedder's vectors, and the quality of its map.

    Args:
        model: the decoder.
        validation: the held-out texts.
        vectors: the embedder's vectors `(N, D)` of the held-out texts.
        report: `pairs`, `held_out`, `strength` (regularisation per text), and on the held-out texts
            `explained_variance` (the share explained of the squared distance between Z and the mean Z, both scaled as
            the decoder reads them) and the mean `cosine` with Z.
    """

    model: EmbeddingDecoderForGeneration
    validation: list[str]
    vectors: np.ndarray
    report: Json


def check_texts(texts: Sequence[str], held_out: int = 0) -> None:
    """Raises ValueError if too few texts differ to fit a map; its message also counts `held_out` others."""
    if (number := len(set(texts))) < _FEWEST:
        beside = f" beside {held_out:,} that {'is' if held_out == 1 else 'are'} held out" if held_out else ""
        raise ValueError(f"{number:,} different texts{beside} are too few; give {_FEWEST + held_out} or more.")


def align(
    embedder: SentenceTransformer,
    name: str,
    model: LatentForConditionalDecoding,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    validation: Sequence[str] | None = None,
    batch_size: int = 64,
    show_progress: bool = False,
) -> Alignment:
    """Makes a decoder of an embedder's vectors from an autoencoder, with a map fitted by ridge regression.

    The regularisation strength is the one that fits the held-out texts best.

    Args:
        embedder: the embedder whose vectors will be decoded.
        name: name of the embedder in the decoder's configuration.
        model: the autoencoder; its decoder reads the mapped vector of a text in place of the text's own Z.
        tokenizer: the tokenizer of the autoencoder.
        texts: texts for both to encode, 3,000 or more; duplicates and held-out texts are dropped.
        validation: held-out texts (default: every tenth of `texts`).
        batch_size: texts per forward pass.
        show_progress: show progress bars and warnings.

    Raises:
        ValueError: too few texts, one that is too long, a model without latent rows or without an autoregressive
            decoder, or vectors that are not finite.
    """
    check_alignable(model)
    # A duplicate could be both fitted and held out.
    texts = list(dict.fromkeys(texts))
    held_out = list(texts[_HELD_OUT::10] if validation is None else validation)
    scored = set(held_out)
    kept = [text for text in texts if text not in scored]
    check_texts(kept, len(texts) - len(kept))
    if not held_out:
        raise ValueError("`validation` holds no text. Give some, or leave it out.")
    check_lengths(tokenizer, [*kept, *held_out])
    described = describe_embedder(embedder, name)
    pairs = []
    for part, what in ((kept, "texts"), (held_out, "held-out texts")):
        vectors = embed(embedder, part, batch_size, show_progress, what)
        pairs.append((vectors, encode_rows(model, tokenizer, part, show_progress)))
    held_out_vectors = pairs[1][0]
    decoder = make_decoder(model, described, held_out_vectors.shape[1])
    fit = _fit_map(decoder, pairs[0], pairs[1], show_progress)
    if show_progress and len(kept) < _FEW:
        print(
            f"warning: {len(kept):,} pairs give a bad map; give 3,000 or more. From all-MiniLM-L6-v2 to mini-en, 100 "
            "explained 29 % of the variance, 1,000 59 %, 3,000 66 % and 100,000 70 %.",
            file=sys.stderr,
        )
    if show_progress and fit["strength"] == _STRENGTHS[-1]:
        print(
            f"warning: the strongest regularisation tried ({_STRENGTHS[-1]:g}) fits held-out texts best; more texts "
            "may help",
            file=sys.stderr,
        )
    report = {"pairs": len(kept), "held_out": len(held_out), **fit}
    return Alignment(decoder, held_out, held_out_vectors, report)


def check_alignable(model: LatentForConditionalDecoding) -> None:
    """Raises ValueError unless a model encodes texts to latent rows and has an autoregressive decoder."""
    require_embedding(model.config, "The model to align to")
    if not model.config.has_decoder:
        raise ValueError(NO_DECODER)
    if not model.config.is_autoregressive:
        raise ValueError(
            f"decoder_type is {model.config.decoder_type!r}, which is not autoregressive; align to an autoencoder."
        )


def check_lengths(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> None:
    """Raises ValueError if a text is longer than an autoencoder can read at once."""
    for text in texts:
        # A token has at least one byte, and a character at most four, so most texts need not be tokenised.
        if 4 * len(text) >= MOST_TOKENS and len(tokenizer(text)["input_ids"]) > MOST_TOKENS:
            raise ValueError(too_long(text, "a map is fitted to whole texts"))


@torch.inference_mode()
def encode_rows(
    model: LatentForConditionalDecoding,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    show_progress: bool = False,
) -> np.ndarray:
    """Flattened Z of texts, scaled as the model's decoder reads it: `(N, L * latent_width)` float32."""
    encoded = tokenizer(list(texts))["input_ids"]
    rows = np.zeros((len(texts), model.config.sentence_embedding_size), np.float32)
    batches = rows_by_length(encoded, _BATCH_TOKENS)
    for batch_rows in progress_bar(batches, desc="encode", disable=not show_progress, leave=False):
        ids = [encoded[row] for row in batch_rows]
        batch = tokenizer.pad({"input_ids": ids}, return_tensors="pt").to(model.device)
        found = model.encode_latents(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        rows[batch_rows] = found.flatten(1).float().cpu().numpy()
    check_finite(rows)
    return rows


def make_decoder(
    model: LatentForConditionalDecoding, embedder: dict[str, str | int | bool | None], dimension: int
) -> EmbeddingDecoderForGeneration:
    """An embedding decoder with the decoder of an autoencoder and a map that is not fitted yet.

    Args:
        model: the autoencoder.
        embedder: the result of [`~hf_meanmax.inference.embedder.describe_embedder`].
        dimension: size of the embedder's vectors.
    """
    old = model.config
    left_out = {*EmbeddingDecoderConfig.fixed_fields, "input_vocab_size"}
    shared = {item.name for item in dataclasses.fields(EmbeddingDecoderConfig)} - left_out
    own = {"architectures", "dtype", "transformers_version", "id2label", "label2id"}
    settings = {item.name: getattr(old, item.name) for item in dataclasses.fields(old) if item.name in shared - own}
    if model.decoder_embeddings is not None:
        settings["freeze_word_embeddings"] = False
    config = EmbeddingDecoderConfig(
        **settings, embedding_dim=dimension, latent_length=old.num_latents, latent_names=list(old.pooling_rows),
        map_layer_norm=False, normalize_embeddings=bool(embedder["normalized"]), embedder=embedder,
    )  # fmt: skip
    decoder = EmbeddingDecoderForGeneration(config)
    learnt = model.state_dict()
    if model.decoder_embeddings is not None:
        # An embedding decoder has one word table: here that of the decoder, not of the encoder.
        learnt = {key: weight for key, weight in learnt.items() if not key.startswith("encoder.embeddings.")}
    weights = decoder.state_dict()
    with torch.no_grad():
        for key, weight in learnt.items():
            name = key.replace("decoder_embeddings.", "encoder.embeddings.")
            if name in weights:
                # Words added by a vocabulary expansion can be encoded but not generated.
                weights[name].copy_(weight[: len(weights[name])])
    decoder.generation_config.max_new_tokens = model.generation_config.max_new_tokens
    decoder.to(model.device)
    decoder.eval()
    return decoder


def _fit_map(
    decoder: EmbeddingDecoderForGeneration,
    pairs: tuple[np.ndarray, np.ndarray],
    held_out: tuple[np.ndarray, np.ndarray],
    show_progress: bool,
) -> dict[str, float]:
    """Fits the decoder's map to pairs of a vector and Z, with the strength that fits the held-out pairs best; returns
    `strength`, `explained_variance` and `cosine`."""
    from scipy.linalg import LinAlgWarning
    from sklearn.linear_model import Ridge

    vectors, targets = pairs
    held_out_vectors, held_out_targets = held_out
    encoder = decoder.encoder
    fit_standardization(encoder.standardization, vectors, decoder.config.normalize_embeddings)
    scaled = unit_rows(vectors) if decoder.config.normalize_embeddings else vectors
    inputs = encoder.standardization(torch.from_numpy(scaled).to(decoder.device)).cpu().numpy()
    best, strength, state = np.inf, 0.0, {}
    for tried in progress_bar(_STRENGTHS, desc="fit", disable=not show_progress, leave=False):
        with warnings.catch_warnings():
            # A weak regularisation with few texts is ill-conditioned; the held-out error rejects it.
            warnings.simplefilter("ignore", LinAlgWarning)
            fitted = Ridge(alpha=tried * len(inputs)).fit(inputs, targets)
        _set_map(decoder, fitted.coef_, fitted.intercept_)
        error = float(np.square(_map_rows(decoder, held_out_vectors) - held_out_targets).sum())
        if error < best:
            best, strength = error, tried
            state = {key: value.clone() for key, value in encoder.map.state_dict().items()}
    encoder.map.load_state_dict(state)
    # The baseline: the mean Z of all texts, scaled as the decoder reads it.
    mean = torch.from_numpy(targets.mean(axis=0)).view(1, decoder.config.num_latents, -1)
    with torch.inference_mode():
        mean_rows = scale_rows(mean.to(decoder.device), decoder.config, encoder.latent_scales)
    spread = float(np.square(held_out_targets - mean_rows.flatten(1).cpu().numpy()).sum())
    cosine = float(paired_cosines(_map_rows(decoder, held_out_vectors), held_out_targets).mean())
    return {"strength": strength, "explained_variance": 1 - best / spread, "cosine": cosine}


@torch.no_grad()
def _set_map(decoder: EmbeddingDecoderForGeneration, weight: np.ndarray, bias: np.ndarray) -> None:
    linear = decoder.encoder.map
    assert isinstance(linear, nn.Linear)
    linear.weight.copy_(torch.from_numpy(np.atleast_2d(weight)))
    linear.bias.copy_(torch.from_numpy(np.atleast_1d(bias)))


@torch.inference_mode()
def _map_rows(decoder: EmbeddingDecoderForGeneration, vectors: np.ndarray) -> np.ndarray:
    parts = [
        decoder.encode_latents(sentence_embedding=torch.from_numpy(vectors[start : start + _BLOCK]).to(decoder.device))
        for start in range(0, len(vectors), _BLOCK)
    ]
    rows: np.ndarray = torch.cat(parts).flatten(1).cpu().numpy()
    return rows
