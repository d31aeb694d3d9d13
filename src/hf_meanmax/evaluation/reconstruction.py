"""How well a text comes back from its embedding: greedy BLEU, exact matches, teacher-forced accuracy."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from hf_meanmax.tokenization import split_words_batch


@dataclass(frozen=True)
class ReconstructionScores:
    """Scores of reconstructed texts.

    Attributes:
        bleu: corpus BLEU (sacrebleu, 0-100) against the original words; a word outside the vocabulary is an error.
        exact_match: share of texts that came back word for word.
        sentences: how many were scored.
    """

    bleu: float
    exact_match: float
    sentences: int


def reconstruct(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    batch_size: int = 256,
    show_progress: bool = False,
    **generation: Any,
) -> list[list[int]]:
    """Token ids said for each text, without special tokens, in the order of the texts.

    Args:
        model: a model with `generate`.
        tokenizer: its tokenizer.
        texts: sentences.
        batch_size: sentences decoded together; they are sorted by length first.
        show_progress: show a progress bar.
        generation: further arguments of `generate`; by default greedy, at most 1.5 times the input plus 5 tokens.
    """
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    encoded = tokenizer(list(texts))["input_ids"] if texts else []
    order = np.argsort([len(ids) for ids in encoded], kind="stable")
    said: list[list[int]] = [[] for _ in texts]
    device = next(model.parameters()).device
    for start in tqdm(range(0, len(order), batch_size), desc="reconstruct", disable=not show_progress, leave=False):
        rows = order[start : start + batch_size]
        batch = tokenizer.pad({"input_ids": [encoded[row] for row in rows]}, return_tensors="pt").to(device)
        bound = {"max_new_tokens": int(1.5 * batch["input_ids"].shape[1]) + 5}
        output = model.generate(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], **{**bound, **generation}
        )
        for row, ids in zip(rows, output.tolist(), strict=True):
            said[row] = [token for token in ids if token not in special]
    return said


def score_reconstructions(tokenizer: Any, texts: Sequence[str], said: Sequence[Sequence[int]]) -> ReconstructionScores:
    """BLEU and exact matches of token ids against the texts' own words, before any vocabulary was applied to them."""
    from sacrebleu.metrics import BLEU

    references = [" ".join(words) for words in split_words_batch(tokenizer, texts)]
    if type(tokenizer.backend_tokenizer.model).__name__ == "WordLevel":
        hypotheses = [" ".join(tokenizer.convert_ids_to_tokens(list(ids))) for ids in said]
    else:
        # Pieces are no words: they are joined to text first and then cut as the reference was.
        decoded = tokenizer.batch_decode([list(ids) for ids in said], skip_special_tokens=True)
        hypotheses = [" ".join(words) for words in split_words_batch(tokenizer, decoded)]
    score = BLEU(tokenize="none", force=True).corpus_score(hypotheses, [references])
    exact = np.mean([hypothesis == reference for hypothesis, reference in zip(hypotheses, references, strict=True)])
    return ReconstructionScores(float(score.score), float(exact), len(texts))


@torch.no_grad()
def teacher_forced_scores(model: Any, batches: Iterable[dict[str, torch.Tensor]]) -> tuple[float, float]:
    """Mean cross entropy (nats per token) and accuracy of the next word given the true words before it.

    Args:
        model: a model in evaluation mode; the full softmax is used.
        batches: dicts of `input_ids` `(B, N)`, `labels` `(B, N)` and perhaps `attention_mask`.
    """
    totals = None
    for batch in batches:
        part = teacher_forced_counts(model, batch)
        totals = part if totals is None else totals + part
    if totals is None or totals[2] == 0:
        raise ValueError("No target token to score: the evaluation set is empty.")
    loss, correct, count = totals.tolist()
    return loss / count, correct / count


@torch.no_grad()
def teacher_forced_counts(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Summed cross entropy, correct tokens and all tokens of one batch, as a float64 tensor `(3,)`."""
    output = model(**batch, num_items_in_batch=1)
    labels = batch["labels"]
    correct = ((output.logits.argmax(dim=-1) == labels) & (labels != -100)).sum()
    count = (labels != -100).sum()
    return torch.stack([output.loss.double(), correct.double(), count.double()])


def score_checkpoint(
    folder: str,
    source: Any,
    limit: int = 2000,
    min_tokens: int = 4,
    max_tokens: int = 32,
    batch_tokens: int = 8192,
    show_progress: bool = True,
) -> dict[str, float]:
    """Reconstruction scores of a checkpoint folder on the first `limit` sentences of a corpus.

    Args:
        folder: a checkpoint with its decoder.
        source: text files or a data set, as [`~hf_meanmax.data.open_corpus`] takes them.
        limit: number of sentences.
        min_tokens, max_tokens: only sentences of so many tokens are taken, `</s>` not counted.
        batch_tokens: tokens of a teacher-forced batch.
        show_progress: show a progress bar.

    Returns:
        `bleu` (0-100), `exact_match`, `accuracy` (teacher-forced), `loss` (nats per token), `sentences`.

    Raises:
        ValueError: if no sentence of that length is there.
    """
    from hf_meanmax.data import open_corpus, pick_sentences
    from hf_meanmax.export import load_checkpoint

    model, tokenizer = load_checkpoint(folder)
    texts = pick_sentences(open_corpus(source), tokenizer, limit, min_tokens, max_tokens)
    if not texts:
        raise ValueError(f"{source} has no sentence of {min_tokens}-{max_tokens} tokens.")
    scores = score_reconstructions(tokenizer, texts, reconstruct(model, tokenizer, texts, show_progress=show_progress))
    loss, accuracy = teacher_forced_scores(model, _padded_batches(tokenizer, texts, batch_tokens))
    return {
        "bleu": scores.bleu,
        "exact_match": scores.exact_match,
        "accuracy": accuracy,
        "loss": loss,
        "sentences": scores.sentences,
    }


def _padded_batches(tokenizer: Any, texts: Sequence[str], batch_tokens: int) -> Iterable[dict[str, torch.Tensor]]:
    encoded = sorted(tokenizer(list(texts))["input_ids"], key=len)
    start = 0
    while start < len(encoded):
        stop = min(len(encoded), start + max(1, batch_tokens // len(encoded[start])))
        batch = dict(tokenizer.pad({"input_ids": encoded[start:stop]}, return_tensors="pt"))
        batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        yield batch
        start = stop


def main(argv: Sequence[str] | None = None) -> None:
    """The command line of `scripts/reconstruct.py`; prints the scores as JSON."""
    from hf_meanmax.cli import make_parser, one_line_errors, parse_arguments, positive_int

    parser = make_parser("reconstruct.py", "Scores how well a checkpoint says held-out sentences again.")
    parser.add_argument("checkpoint", help="folder of a checkpoint with its decoder")
    parser.add_argument("text", nargs="+", help="text files (.txt .gz .xz .zst) or one data set")
    parser.add_argument("--limit", type=positive_int, default=2000, help="number of sentences")
    parser.add_argument("--min-tokens", type=positive_int, default=4, help="shorter sentences are left out")
    parser.add_argument("--max-tokens", type=positive_int, default=32, help="longer sentences are left out")
    args = parse_arguments(parser, argv)
    with one_line_errors("reconstruct.py"):
        scores = score_checkpoint(args.checkpoint, args.text, args.limit, args.min_tokens, args.max_tokens)
    print(json.dumps(scores, indent=1))
