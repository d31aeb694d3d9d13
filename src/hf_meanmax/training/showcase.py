"""Shows a freshly trained model on held-out sentences: neighbours, reconstructions, an interpolation."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from hf_meanmax.checkpoint.folder import load_checkpoint
from hf_meanmax.inference.alignment import encode_rows

_SHOWN = 5  # sentences
_WIDEST = 76
# Generated tokens: one more than the characters shown, so that a text that is cut ends in "...".
_BOUND = {"max_new_tokens": _WIDEST + 1}


def show(folder: str | os.PathLike[str], sentences: Sequence[str]) -> None:
    """Prints what the checkpoint in `folder` does with held-out `sentences`, and the code that loads it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import semantic_search

    model, tokenizer = load_checkpoint(folder)
    encoder = SentenceTransformer(str(folder), device="cpu")
    embeddings = encoder.encode(list(sentences), convert_to_tensor=True, show_progress_bar=False)

    spaced = [int(i) for i in torch.linspace(0, len(sentences) - 1, min(_SHOWN, len(sentences)))]
    print("\nnearest neighbours among held-out sentences (cosine)")
    for query, found in zip(spaced, semantic_search(embeddings[spaced], embeddings, top_k=2), strict=True):
        others = [int(hit["corpus_id"]) for hit in found if hit["corpus_id"] != query]
        print(f"  {_short(sentences[query])}")
        print("".join(f"    ~ {_short(sentences[other])}\n" for other in others[:1]), end="")

    print("\nreconstructions of held-out sentences, from their vectors alone")
    # Not from the SentenceTransformer, which may normalise its vectors: those cannot be decoded.
    raw = encode_rows(model, tokenizer, [sentences[query] for query in spaced])
    generated = model.generate(sentence_embedding=torch.from_numpy(raw), **_BOUND)
    for query, text in zip(spaced, tokenizer.batch_decode(generated, skip_special_tokens=True), strict=True):
        print(f"  {_short(sentences[query])}\n   -> {_short(text)}")

    if len(sentences) > 1:
        print("\nfrom one sentence to another")
        ends = torch.from_numpy(encode_rows(model, tokenizer, sentences[:2]))
        between = torch.lerp(ends[:1], ends[1:], torch.linspace(0, 1, 5)[:, None])
        generated = model.generate(sentence_embedding=between, **_BOUND)
        for text in tokenizer.batch_decode(generated, skip_special_tokens=True):
            print(f"  {_short(text)}")

    print(
        f"\nto use it:\n"
        f"  from sentence_transformers import SentenceTransformer\n"
        f'  model = SentenceTransformer("{folder}")\n'
        f'  embeddings = model.encode(["a sentence of yours"])'
    )


def _short(text: str) -> str:
    return text if len(text) <= _WIDEST else text[: _WIDEST - 3] + "..."
