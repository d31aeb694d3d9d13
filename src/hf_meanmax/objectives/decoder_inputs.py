"""Inputs of an autoregressive decoder in training that replace the targets (RNN-CNN, section 3.1)."""

from __future__ import annotations

import torch
from transformers import DynamicCache

from hf_meanmax.modeling.conditional_decoding import LatentForConditionalDecoding
from hf_meanmax.modeling.losses import IGNORE_INDEX


def feed_decoder(
    model: LatentForConditionalDecoding, batch: dict[str, torch.Tensor], inputs: str
) -> dict[str, torch.Tensor]:
    """Adds decoder inputs to a batch if `inputs` is `"own"` or `"random"`; for `"words"` the batch is unchanged, since
    the model shifts the labels itself.

    Args:
        batch: `input_ids`, `labels` and, where there is padding, `attention_mask`.
    """
    if inputs == "words":
        return batch
    labels = batch["labels"]
    text = {name: batch[name] for name in model.encoder_inputs if name in batch}
    words = random_inputs(model, labels) if inputs == "random" else own_inputs(model, labels, **text)
    mask = {"decoder_attention_mask": (labels != IGNORE_INDEX).long()} if "attention_mask" in batch else {}
    return {**batch, "decoder_input_ids": words, **mask}


@torch.no_grad()
def random_inputs(model: LatentForConditionalDecoding, labels: torch.Tensor) -> torch.Tensor:
    """Decoder inputs `(B, T)`: the start symbol, then words drawn uniformly from the vocabulary (uniform sampling).

    Args:
        labels: `(B, T)` targets, -100 at padding on the right.
    """
    config = model.config
    words = torch.randint(config.num_special_tokens, config.vocab_size, labels.shape, device=labels.device)
    return _behind_start(model, words, labels)


@torch.no_grad()
def own_inputs(model: LatentForConditionalDecoding, labels: torch.Tensor, **text: torch.Tensor) -> torch.Tensor:
    """Decoder inputs `(B, T)` that the decoder itself generates, each token drawn from its distribution (always
    sampling). No gradient flows through the draws.

    Args:
        labels: `(B, T)` targets, -100 at padding on the right.
        text: `input_ids` `(B, N)` and, where there is padding, `attention_mask`.

    Raises:
        ValueError: gradient checkpointing is on, with which a decoder cannot use a cache.
    """
    if model.training and model.decoder is not None and model.decoder.gradient_checkpointing:
        raise ValueError(
            "A decoder cannot draw its own inputs under gradient checkpointing; call "
            "`model.gradient_checkpointing_disable()`, or take 'words' or 'random'."
        )
    latents, mask = model.encode_latents(**text), text.get("attention_mask")
    cache = DynamicCache(config=model.config)
    words = labels.new_full((len(labels), 1), model.config.decoder_start_token_id)
    drawn = []
    for _ in range(labels.shape[1] - 1):
        output = model(
            encoder_outputs=(latents,), attention_mask=mask, decoder_input_ids=words, past_key_values=cache,
            use_cache=True,
        )  # fmt: skip
        words = draw(output.logits[:, -1])
        drawn.append(words)
    # Only fills the last column, which the shift drops.
    return _behind_start(model, torch.cat([*drawn, words], dim=1), labels)


def draw(scores: torch.Tensor) -> torch.Tensor:
    """Samples one word per row, `(B, 1)`, from the softmax of scores `(B, V)`.

    Draws one random number per row and looks it up in the cumulative distribution; torch.multinomial draws V.
    """
    cumulative = scores.float().softmax(dim=-1).cumsum(dim=-1)
    drawn = torch.rand(len(scores), 1, device=scores.device) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, drawn, right=True).clamp(max=scores.shape[-1] - 1)


def _behind_start(model: LatentForConditionalDecoding, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return model.prepare_decoder_input_ids_from_labels(words.masked_fill(labels == IGNORE_INDEX, IGNORE_INDEX))
