"""The words that an encoder with inner attention reads, and the predictions of a classifier.

Several checkpoints are shown side by side: as shaded texts for the terminal, or as a page of all texts, figures and the
numbers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hf_meanmax.checkpoint.folder import check_checkpoint, is_classifier, require_text_encoder
from hf_meanmax.checkpoint.location import checkpoint_folder
from hf_meanmax.files import Json, replacing_folder, short_names, write_json
from hf_meanmax.plots.attention import ReadText, attention_page, plot_head_maps
from hf_meanmax.plots.figures import save_figure, skip_figures_without_matplotlib

from .decoding import inner_attention_weights, token_texts

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ATTENTION_FILE = "attention.json"
ATTENTION_PAGE = "attention.html"
_OWNED = (ATTENTION_FILE, ATTENTION_PAGE, "attention-[0-9]*.png")


def read_texts(checkpoints: Sequence[str | os.PathLike[str]], texts: Sequence[str]) -> list[ReadText]:
    """The inner attention of each checkpoint to each text, and a classifier's label with its probability.

    Checkpoints are named by their folders, or by their paths if these names are equal.

    Raises:
        FileNotFoundError, ValueError: no such checkpoint, one with another pooling, checkpoints that tokenise texts
            differently, or no text.
    """
    if isinstance(texts, str) or not texts:
        raise ValueError(f"texts is {texts!r}; give a list of one text at least.")
    paths = [checkpoint_folder(name) for name in checkpoints]
    names = short_names([os.fspath(name) for name in checkpoints])
    cut: list[list[str]] = []
    weights: list[Json] = [{} for _ in texts]
    predictions: list[dict[str, str]] = [{} for _ in texts]
    for path, name in zip(paths, names, strict=True):
        encoder, classifier, tokenizer = _load(path)
        tokens = [token_texts(tokenizer, ids) for ids in tokenizer(list(texts))["input_ids"]]
        if cut and tokens != cut:
            raise ValueError(f"{path} cuts the texts into other tokens than {paths[0]}; show the two apart.")
        cut = tokens
        for row, found in enumerate(inner_attention_weights(encoder, tokenizer, texts)):
            weights[row][name] = found
        if classifier is not None:
            for row, text in enumerate(texts):
                predictions[row][name] = _label(classifier, tokenizer, text)
    return [ReadText(*entry) for entry in zip(cut, weights, predictions, strict=True)]


def _load(path: Path) -> tuple[PreTrainedModel, PreTrainedModel | None, PreTrainedTokenizerBase]:
    """Encoder, classifier of single texts (or None) and tokenizer of a checkpoint."""
    from accelerate import PartialState
    from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

    config, device = check_checkpoint(path, encoder_alone=True), PartialState().device
    require_text_encoder(config, str(path))
    tokenizer = AutoTokenizer.from_pretrained(path)
    if is_classifier(config) and config.pair_combination is None:
        classifier = AutoModelForSequenceClassification.from_pretrained(path).eval().to(device)
        return classifier.encoder, classifier, tokenizer
    return AutoModel.from_pretrained(path).eval().to(device), None, tokenizer


@torch.no_grad()
def _label(classifier: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    logits = classifier(**tokenizer([text], return_tensors="pt").to(classifier.device)).logits[0].float()
    problem, names = classifier.config.problem, classifier.config.id2label
    if problem == "regression":
        return ", ".join(f"{value:.2f}" for value in logits.tolist())
    if problem == "multi_label_classification":
        shares = enumerate(logits.sigmoid().tolist())
        return ", ".join(f"{names[label]} ({share:.2f})" for label, share in shares if share > 0.5) or "none"
    probability, label = logits.softmax(dim=-1).max(dim=-1)
    return f"{names[label.item()]} ({probability.item():.2f})"


def write_attention(
    read: Sequence[ReadText], folder: str | os.PathLike[str], title: str = "Attention", most_figures: int = 20
) -> None:
    """Writes a page of all texts, the numbers, and a figure of each of the first `most_figures` texts; all or nothing.

    Without matplotlib the figures are left out, with a message on stderr.

    Raises:
        FileExistsError: `folder` is a file.
    """
    content = [
        {
            "tokens": list(text.tokens),
            "predictions": dict(text.predictions),
            "weights": {name: weights.round(6).tolist() for name, weights in text.weights.items()},
        }
        for text in read
    ]
    with replacing_folder(folder, _OWNED) as partial:
        write_json(partial / ATTENTION_FILE, content, indent=None, ensure_ascii=False)
        (partial / ATTENTION_PAGE).write_text(attention_page(title, read), encoding="utf-8")
        with skip_figures_without_matplotlib():
            for number, text in enumerate(islice(read, most_figures), 1):
                weights = text.weights if len(text.weights) > 1 else next(iter(text.weights.values()))
                save_figure(plot_head_maps(text.tokens, weights), partial / f"attention-{number}.png")
