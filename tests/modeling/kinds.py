"""One tiny model of each kind: what is checked alike of every class that transformers may be given."""

from __future__ import annotations

from typing import Any

import torch

import hf_meanmax
from modeling.family_tests import END, IGNORE, pad
from modeling.family_values import TINY

TEXTS = [[7, 5, 9, 21, 4, END], [6, END], [8, 1, 8, 30, END]]

# A name, the class, and its settings beside the sizes.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    # With a decoder.
    "attention": ("MeanMaxAAEForReconstruction", {}),
    "gates": ("GatedMeanMaxAAEForReconstruction", {"latent_normalization": "rows", "latent_scales": True}),
    "lstm_attention": ("StructuredSelfAttentionForReconstruction", {"decoder_type": "lstm_attention"}),
    "gru": ("RNNCNNForContextPrediction", {"decoder_type": "gru"}),
    "causal_cnn": ("RNNCNNForContextPrediction", {"decoder_type": "causal_cnn", "decoder_channels": [20, 12]}),
    "conditional_gru": ("CompoundAttentionForTranslation", {"architecture": "attn-attn", "latent_size": 10}),
    "two_vocabularies": (
        "CompoundAttentionForTranslation",
        {"architecture": "final-ctx", "separate_vocabularies": True, "input_vocab_size": 45, "latent_size": 20},
    ),
    "no_rows": ("CompoundAttentionForTranslation", {"architecture": "attn"}),
    "of_vectors": ("EmbeddingDecoderForGeneration", {"embedding_dim": 24, "latent_length": 3}),
    "words": ("RNNCNNForContextPrediction", {"num_context_words": 8, "decoder_channels": [20, 12]}),
    # Without one.
    "encoder": ("MeanMaxAAEModel", {"position_embedding_type": "learned"}),
    "recurrent_encoder": ("StructuredSelfAttentionModel", {}),
    "cnn_encoder": ("GatedMeanMaxAAEModel", {"encoder_type": "cnn", "position_embedding_type": "none"}),
    "static": (
        "MeanMaxAAEModel",
        {"encoder_type": "none", "pooling": "weighted_mean", "decoder_type": "none", "position_embedding_type": "none"},
    ),
    "classifier": ("StructuredSelfAttentionForSequenceClassification", {"num_labels": 3, "classifier_hidden_size": 11}),
    "of_pairs": ("MeanMaxAAEForSequenceClassification", {"num_labels": 3, "pair_combination": "concatenation"}),
}
# Those that generate.
GENERATING = [
    "attention", "gates", "lstm_attention", "gru", "causal_cnn", "conditional_gru", "two_vocabularies", "no_rows",
    "of_vectors",
]  # fmt: skip


def make(kind: str, dtype: torch.dtype = torch.float32, **settings: Any) -> Any:
    """The model of a kind in evaluation mode, whose words differ by more than rounding."""
    name, own = KINDS[kind]
    model_class = getattr(hf_meanmax, name)
    torch.manual_seed(0)
    model = model_class(model_class.config_class(**{**TINY, **own, **settings}))
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "embeddings" in parameter_name:
                parameter.mul_(5)
            elif parameter_name.startswith("lm_head") and parameter.dim() == 2:
                parameter.copy_(torch.randn_like(parameter))
    return model.to(dtype).eval()


def read(kind: str, texts: list[list[int]] = TEXTS) -> dict[str, torch.Tensor]:
    """What a model of the kind reads."""
    if kind == "of_vectors":
        return {"sentence_embedding": torch.randn(len(texts), 24, generator=torch.Generator().manual_seed(1))}
    inputs = {"input_ids": pad(texts), "attention_mask": (pad(texts, fill=IGNORE) != IGNORE).long()}
    if kind == "of_pairs":
        inputs["token_type_ids"] = pad([[0] + [1] * (len(text) - 1) for text in texts])
    return inputs


def labels(kind: str) -> dict[str, torch.Tensor]:
    """What a model of the kind learns, if it learns anything."""
    if kind in ("classifier", "of_pairs"):
        return {"labels": torch.tensor([2, 0, 1])}
    return {"labels": pad(TEXTS, fill=IGNORE)} if kind in (*GENERATING, "words") else {}


def same(first: Any, second: Any) -> bool:
    """Whether two outputs hold the same tensors, up to rounding, under the same names."""
    if isinstance(first, torch.Tensor):
        return first.shape == second.shape and torch.allclose(first, second, atol=1e-5)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[name], second[name]) for name in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return first is second or type(first) is type(second)
