"""What a decoder reads while it reconstructs a text: its attention over the latent rows, or its gates on them.

Each text is encoded and decoded greedily; the recorded weights are written as figures and to inspection.json.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from hf_meanmax.files import Json, replacing_folder, write_json
from hf_meanmax.plots.alignment import (
    alignment_page,
    attention_by_position,
    induced_alignment,
    plot_alignment,
    plot_attention_by_position,
)
from hf_meanmax.plots.attention import plot_head_maps
from hf_meanmax.plots.decoding import GATE_QUANTILES, plot_latent_attention, plot_latent_gates
from hf_meanmax.plots.figures import save_figure, skip_figures_without_matplotlib
from hf_meanmax.tokenization.tokenizers import is_word_level

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from hf_meanmax.modeling.configuration_base import LatentConfig

INSPECTION_FILE = "inspection.json"
ALIGNMENT_PAGE = "alignments.html"
POSITIONS_FIGURE = "attention-by-position.png"
_BATCH = 64
_OWNED = (INSPECTION_FILE, ALIGNMENT_PAGE, POSITIONS_FIGURE, "text-[0-9]*-*.png")


@dataclass(frozen=True)
class DecodingRecord:
    """A generated text, with the decoder's attention and gates at each of the T steps.

    Attributes:
        text: the encoded text.
        reconstruction: the generated text.
        tokens: the T generated tokens; the last is the end token, unless the length limit was reached.
        source_tokens: the N encoded tokens.
        attentions: `(layers, heads, T, L)` over the rows `config.pooling_rows`, or over the source tokens without
            latent rows; None if the decoder has no attention.
        gates: `(layers, T, R, d)` on the rows `config.gated_rows`; None if the decoder has no gates.
        word_weights: `(L, N)`, the weights of the tokens in each row of inner attention; None for other poolings.
    """

    text: str
    reconstruction: str
    tokens: list[str]
    source_tokens: list[str]
    attentions: np.ndarray | None
    gates: np.ndarray | None
    word_weights: np.ndarray | None = None

    @property
    def alignment(self) -> np.ndarray | None:
        """Each inner attention head's part of the last layer's alignment of source and generated tokens, `(L, T, N)`;
        None for other models. The row of a weighted mean, after those of the heads, is left out."""
        if self.word_weights is None or self.attentions is None:
            return None
        heads = len(self.word_weights)
        return induced_alignment(self.attentions[-1].mean(axis=0)[:, :heads], self.word_weights)


@torch.no_grad()
def record_decoding(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    target_tokenizer: PreTrainedTokenizerBase | None = None,
) -> DecodingRecord:
    """Encodes a text, generates it (or its translation) greedily, and records the decoder's attention and gates.

    They are recorded in one forward pass over the generated text, which equals the steps of the generation.

    Args:
        model: an autoencoder in evaluation mode.
        tokenizer: its tokenizer.
        text: one text.
        target_tokenizer: tokenizer of the generated text, if it is another.

    Raises:
        ValueError: the decoder only reads the latent rows before its first word, so there is nothing to record.
    """
    batch = tokenizer([text], return_tensors="pt").to(model.device)
    with _written_out_attention(model):
        generated = model.generate(**batch, do_sample=False, num_beams=1)
        output = model(
            **batch,
            decoder_input_ids=generated[:, :-1],
            use_cache=False,
            output_attentions=True,
            output_latent_gates=True,
        )
        has_weights = model.config.pooling == "inner_attention"
        word_weights = model.encoder(**batch).pooling_attentions if has_weights else None
    target = tokenizer if target_tokenizer is None else target_tokenizer
    if not output.cross_attentions and not output.latent_gates and word_weights is None:
        raise ValueError(
            f"decoder_type is {model.config.decoder_type!r}: this decoder reads the latent rows before its first word "
            "alone, so it has neither attention over them nor gates on them to show."
        )
    return DecodingRecord(
        text,
        target.decode(generated[0], skip_special_tokens=True),
        token_texts(target, generated[0, 1:].tolist()),
        token_texts(tokenizer, batch["input_ids"][0].tolist()),
        _stacked(output.cross_attentions),
        _stacked(output.latent_gates),
        None if word_weights is None else word_weights[0].float().cpu().numpy(),
    )


@torch.no_grad()
def inner_attention_weights(
    encoder: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]
) -> Iterator[np.ndarray]:
    """The weights `(L, N)` of each text's tokens in the rows of an encoder's inner attention.

    Raises:
        ValueError: the encoder has another pooling.
    """
    if encoder.config.pooling != "inner_attention":
        raise ValueError(f"`pooling` is {encoder.config.pooling!r}; only 'inner_attention' gives words weights.")
    remaining = iter(texts)
    while block := list(islice(remaining, _BATCH)):
        batch = tokenizer(block, padding=True, return_tensors="pt").to(encoder.device)
        weights = encoder(**batch).pooling_attentions.float().cpu().numpy()
        for row, mask in zip(weights, batch["attention_mask"].bool().cpu().numpy(), strict=True):
            yield row[:, mask]


@contextmanager
def _written_out_attention(model: PreTrainedModel) -> Iterator[None]:
    """Switches to eager attention, since the fast implementations return no weights."""
    usual = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(usual)


def _stacked(layers: Sequence[torch.Tensor] | None) -> np.ndarray | None:
    """The arrays of the batch's only text, one per layer."""
    return np.stack([layer[0].float().cpu().numpy() for layer in layers]) if layers else None


def token_texts(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """The text of each token."""
    if is_word_level(tokenizer):
        return tokenizer.convert_ids_to_tokens(ids)
    # Byte-level pieces are only readable when decoded.
    return [tokenizer.decode([number]) for number in ids]


def write_inspection(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    folder: str | os.PathLike[str],
    name: str = "",
    target_tokenizer: PreTrainedTokenizerBase | None = None,
    position_texts: Iterable[str] | None = None,
) -> list[DecodingRecord]:
    """Records the decoding of each text; writes figures and inspection.json, all of them or none.

    Without matplotlib the figures are left out, with a message on stderr.

    Args:
        model: an autoencoder in evaluation mode.
        tokenizer: its tokenizer.
        texts: the texts.
        folder: where to write; an older inspection there is replaced.
        name: name of the checkpoint, for inspection.json.
        target_tokenizer: tokenizer of the generated text, if it is another.
        position_texts: further texts, over which each head's weights by relative position are averaged.

    Returns:
        One record per text.

    Raises:
        ValueError: no text, or the decoder has nothing to show (see [`record_decoding`]).
        FileExistsError: `folder` is a file.
    """
    if isinstance(texts, str) or not texts:
        raise ValueError(f"texts is {texts!r}; give a list of one text at least.")
    config = model.config
    records = [record_decoding(model, tokenizer, text, target_tokenizer) for text in texts]
    content = {
        "checkpoint": name,
        "decoder_type": config.decoder_type,
        "attention_rows": list(config.pooling_rows) if records[0].attentions is not None else [],
        "gated_rows": list(config.gated_rows),
        "texts": [_numbers(record, config.gated_rows) for record in records],
    }
    aligned = [
        (record.source_tokens, record.tokens, record.alignment, record.word_weights)
        for record in records
        if record.alignment is not None and record.word_weights is not None
    ]
    profile = None
    if position_texts is not None:
        profile = attention_by_position(inner_attention_weights(model.encoder, tokenizer, position_texts))
        content["attention_by_position"] = _rounded(profile)
    with replacing_folder(folder, _OWNED) as partial:
        write_json(partial / INSPECTION_FILE, content, indent=None, ensure_ascii=False)
        if aligned:
            page = alignment_page(name or config.model_type, aligned)
            (partial / ALIGNMENT_PAGE).write_text(page, encoding="utf-8")
        with skip_figures_without_matplotlib():
            if profile is not None:
                save_figure(plot_attention_by_position(profile), partial / POSITIONS_FIGURE)
            for number, record in enumerate(records, 1):
                _draw(record, config, partial, f"text-{number}")
    return records


def _numbers(record: DecodingRecord, gated_rows: Sequence[str]) -> Json:
    """A record as JSON: attention by layer, head, step and row; gates as mean and quantiles over the dimensions."""
    numbers: Json = {
        "text": record.text,
        "reconstruction": record.reconstruction,
        "tokens": record.tokens,
        "source_tokens": record.source_tokens,
    }
    if record.word_weights is not None:
        numbers["word_weights"] = _rounded(record.word_weights)
    if record.attentions is not None:
        numbers["attention"] = _rounded(record.attentions)
    if record.gates is not None:
        low, high = np.quantile(record.gates, GATE_QUANTILES, axis=-1)
        statistics = {"mean": record.gates.mean(axis=-1), "quantile_10": low, "quantile_90": high}
        numbers["gates"] = [
            {
                row: {name: _rounded(values[layer, :, place]) for name, values in statistics.items()}
                for place, row in enumerate(gated_rows)
            }
            for layer in range(len(record.gates))
        ]
    return numbers


def _rounded(values: np.ndarray) -> list[object]:
    rounded: list[object] = values.astype(np.float64).round(6).tolist()
    return rounded


def _draw(record: DecodingRecord, config: LatentConfig, folder: Path, name: str) -> None:
    """Draws one set of figures per layer, and the alignment if there is one."""
    rows = config.pooling_rows if config.has_latents else record.source_tokens
    if record.word_weights is not None:
        save_figure(plot_head_maps(record.source_tokens, record.word_weights), folder / f"{name}-heads.png")
    if record.alignment is not None:
        figure = plot_alignment(record.source_tokens, record.tokens, record.alignment)
        save_figure(figure, folder / f"{name}-alignment.png")
    for layer in range(config.num_hidden_layers):
        prefix = name if config.num_hidden_layers == 1 else f"{name}-layer-{layer + 1}"
        if record.attentions is not None:
            weights = record.attentions[layer]
            for per_head, suffix in ((False, "attention"), (True, "attention-by-head")):
                figure = plot_latent_attention(record.tokens, weights, rows, per_head)
                save_figure(figure, folder / f"{prefix}-{suffix}.png")
        if record.gates is not None:
            figure = plot_latent_gates(record.tokens, record.gates[layer], config.gated_rows)
            save_figure(figure, folder / f"{prefix}-gates.png")
