"""How well a text comes back from its embedding: BLEU and its kin, exact matches, teacher-forced accuracy.

By default BLEU compares words as the tokenizer cuts and normalises them, which for a word-level tokenizer means
lower-cased words; the reference is the text itself, so a word outside the vocabulary is always an error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from hf_meanmax.data import BatchPlan
from hf_meanmax.data.sentences import is_unsegmented
from hf_meanmax.files import replacing_file
from hf_meanmax.reproduce.reconstruction_table import read_texts, system_name, write_table, write_texts
from hf_meanmax.tokenization import split_words_batch

from .text_scores import TOKENIZATIONS, TextScores, length_table, score_texts, scores_by_length

RESULTS_FILE, EXAMPLES_FILE = "reconstruction.json", "reconstructions.md"
TABLE_FILE, FIGURE_FILE = "bleu-by-length.md", "bleu-by-length.png"

# Up to so many tokens, texts fill a batch; of longer ones fewer are decoded together.
_LONG_TEXT = 64
# Logits that are held at once: a gigabyte of fp32.
_MOST_LOGITS = 2**28


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
        texts: sentences or paragraphs.
        batch_size: texts decoded together, sorted by length first; fewer of those of more than 64 tokens.
        show_progress: show a progress bar.
        generation: further arguments of `generate`, which by default is greedy and bounds each text by its own length.
    """
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    encoded = tokenizer(list(texts))["input_ids"] if texts else []
    said: list[list[int]] = [[] for _ in texts]
    device = next(model.parameters()).device
    batches = _rows_by_length(encoded, batch_size * _LONG_TEXT, least=_LONG_TEXT)
    for rows in tqdm(batches, desc="reconstruct", disable=not show_progress, leave=False):
        batch = tokenizer.pad({"input_ids": [encoded[row] for row in rows]}, return_tensors="pt").to(device)
        output = model.generate(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], **generation)
        for row, ids in zip(rows, output.tolist(), strict=True):
            said[row] = [token for token in ids if token not in special]
    return said


def reconstruction_pairs(
    tokenizer: Any, texts: Sequence[str], said: Sequence[Sequence[int]], tokenize: str | None = None
) -> tuple[list[str], list[str], str]:
    """What [`~hf_meanmax.evaluation.text_scores.score_texts`] compares for reconstructions.

    Args:
        tokenizer: the tokenizer of the model.
        texts: the texts.
        said: the token ids said for each (see [`reconstruct`]).
        tokenize: `"none"` compares words as the tokenizer cuts them. Any other compares plain text, which sacrebleu
            cuts in that way, with the texts as the tokenizer normalises them (lower-cased if it does so). By default
            `"none"`, but `"zh"` for text without spaces under a tokenizer of pieces, which cuts such text at
            punctuation alone.

    Returns:
        Hypotheses, references and `tokenize`. The references are the texts before any vocabulary was applied to
        them, so an unknown word that is said as `<unk>` is an error.
    """
    is_word_level = type(tokenizer.backend_tokenizer.model).__name__ == "WordLevel"
    if tokenize is None:
        tokenize = "zh" if not is_word_level and is_unsegmented(texts) else "none"
    if tokenize == "none" and is_word_level:
        hypotheses = [" ".join(tokenizer.convert_ids_to_tokens(list(ids))) for ids in said]
    else:
        hypotheses = tokenizer.batch_decode([list(ids) for ids in said], skip_special_tokens=True)
        if tokenize == "none":
            # Pieces are no words: they are joined to text first and then cut as the reference is.
            hypotheses = [" ".join(words) for words in split_words_batch(tokenizer, hypotheses)]
    if tokenize == "none":
        references = [" ".join(words) for words in split_words_batch(tokenizer, texts)]
    else:
        normalizer = tokenizer.backend_tokenizer.normalizer
        references = [text if normalizer is None else normalizer.normalize_str(text) for text in texts]
    return hypotheses, references, tokenize


def score_reconstructions(
    tokenizer: Any,
    texts: Sequence[str],
    said: Sequence[Sequence[int]],
    tokenize: str | None = None,
    rouge: bool | None = False,
) -> TextScores:
    """Scores of token ids against the texts' own words, before any vocabulary was applied to them.

    Args:
        tokenizer, texts, said, tokenize: as [`reconstruction_pairs`] takes them.
        rouge: as [`~hf_meanmax.evaluation.text_scores.score_texts`] takes it.

    Raises:
        ValueError, ImportError: as [`~hf_meanmax.evaluation.text_scores.score_texts`].
    """
    hypotheses, references, tokenize = reconstruction_pairs(tokenizer, texts, said, tokenize)
    return score_texts(hypotheses, references, tokenize, rouge=rouge)


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
def teacher_forced_counts(model: Any, batch: dict[str, torch.Tensor], splits: bool = True) -> torch.Tensor:
    """Summed cross entropy, correct tokens and all tokens of one batch, as a float64 tensor `(3,)`.

    On the CPU, whatever the model's device. The cross entropy is of the words alone, without the attention's penalty.
    Of a model that also says the previous sentence, the next one counts. With `splits` a batch whose logits would need
    more than a gigabyte is scored in parts.
    """
    batch = {name: value for name, value in batch.items() if name != "previous_targets"}
    # Not every accelerator has float64.
    totals = torch.zeros(3, dtype=torch.float64)
    rows, length = batch["labels"].shape
    size = max(1, _MOST_LOGITS // (length * model.config.vocab_size)) if splits else rows
    for start in range(0, rows, size):
        part = {name: tensor[start : start + size] for name, tensor in batch.items()}
        output, labels = model(**part, num_items_in_batch=1), part["labels"]
        correct = ((output.logits.argmax(dim=-1) == labels) & (labels != -100)).sum()
        loss = output.loss
        if output.attention_penalty is not None:
            loss = loss - model.config.attention_penalty * output.attention_penalty
        counts = [loss.float(), correct.float(), (labels != -100).sum().float()]
        totals += torch.stack(counts).cpu().double()
    return totals


def score_checkpoint(
    folder: str,
    source: Any,
    limit: int = 2000,
    min_tokens: int = 4,
    max_tokens: int = 32,
    batch_tokens: int = 8192,
    show_progress: bool = True,
    *,
    batch_size: int = 256,
    num_beams: int = 1,
    device: Any = None,
    tokenize: str | None = None,
    edges: Sequence[int] | None = None,
    output: str | os.PathLike[str] | None = None,
    compare: Sequence[str | os.PathLike[str]] = (),
    examples: int = 5,
    seed: int = 0,
) -> dict[str, Any]:
    """Reconstruction scores of a checkpoint folder on the first `limit` sentences of a corpus.

    Args:
        folder: a checkpoint with its decoder.
        source: text files or a data set, as [`~hf_meanmax.data.open_corpus`] takes them.
        limit: number of sentences.
        min_tokens, max_tokens: only sentences of so many tokens are taken, `</s>` not counted.
        batch_tokens: tokens of a teacher-forced batch.
        show_progress: show a progress bar.
        batch_size: sentences decoded together.
        num_beams: beams of the search; 1 is greedy.
        device: where the model runs, by default an accelerator if there is one.
        tokenize: see [`reconstruction_pairs`].
        edges: of the bins of length, see [`~hf_meanmax.evaluation.text_scores.scores_by_length`].
        output: a folder to write `reconstruction.json` (settings and scores), `reconstructions.tsv` (each text and
            what was said; tabs and line breaks become spaces), `reconstructions.md` (some of them; Zhang, Wu, Li and
            Zhang, table 3), `bleu-by-length.md` and, where matplotlib is installed, `bleu-by-length.png` (figure 2).
        compare: output folders of other checkpoints, shown beside this one in those tables and the figure.
        examples: texts in `reconstructions.md`, of those that all have said again, from short to long.
        seed: draws them.

    Returns:
        `bleu` and `chrf` (0-100), with rouge-score installed also `rouge1`, `rouge2` and `rougeL` (0-100),
        `exact_match` and `token_accuracy` (of what was said, 0-1), `accuracy` (teacher-forced, 0-1), `loss` (nats per
        token), `sentences`, `signatures` (by metric) and `by_length` (the rows of `scores_by_length`, with lengths in
        the tokens of BLEU).

    Raises:
        ValueError: the checkpoint learnt to say something else, no sentence of that length is there, a bad device, or
            an output folder of `compare` is damaged.
        FileNotFoundError: the checkpoint, the text or the results of a folder of `compare` are missing.
        FileExistsError: `output` is a file.
    """
    from hf_meanmax.checkpoint.folder import load_checkpoint, saved_training_args
    from hf_meanmax.data import open_corpus, pick_sentences

    others = {system_name(other): _read_by_length(Path(other)) for other in compare}
    others_texts = {system_name(other): read_texts(other) for other in compare}
    if compare and output is None:
        raise ValueError("compare needs output, the folder for the table and the figure.")
    if output is not None:
        output = Path(output)
        if output.exists() and not output.is_dir():
            raise FileExistsError(f"{output} is a file; name a folder.")
        if system_name(output) in others or len(others) < len(compare):
            raise ValueError("Output folders that are compared need different names: they are what the figure shows.")
    objective = saved_training_args(folder).get("objective", "reconstruction")
    if objective != "reconstruction":
        raise ValueError(
            f"{folder} learnt by the objective {objective!r}: it does not say its own text again. Score a translator "
            "with translate.py --reference."
        )
    device = _usable_device(device)
    model, tokenizer = load_checkpoint(folder)
    model.to(device)
    texts = pick_sentences(open_corpus(source), tokenizer, limit, min_tokens, max_tokens)
    if not texts:
        raise ValueError(f"{source} has no sentence of {min_tokens}-{max_tokens} tokens.")
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    said = reconstruct(model, tokenizer, texts, batch_size, show_progress=show_progress, num_beams=num_beams)
    hypotheses, references, tokenize = reconstruction_pairs(tokenizer, texts, said, tokenize)
    by_length = scores_by_length(hypotheses, references, edges=edges, tokenize=tokenize)
    batches = _padded_batches(tokenizer, texts, batch_tokens)
    loss, accuracy = teacher_forced_scores(
        model, ({name: tensor.to(device) for name, tensor in batch.items()} for batch in batches)
    )
    scores = {
        **score_texts(hypotheses, references, tokenize).to_dict(),
        "accuracy": accuracy,
        "loss": loss,
        "by_length": by_length,
    }
    if output is not None:
        settings = {
            "checkpoint": str(folder),
            "source": [str(part) for part in source] if isinstance(source, list | tuple) else str(source),
            "limit": limit,
            "min_tokens": min_tokens,
            "max_tokens": max_tokens,
            "num_beams": num_beams,
        }
        with replacing_file(output / RESULTS_FILE) as file:
            file.write(json.dumps({**settings, "scores": scores}, indent=1, ensure_ascii=False) + "\n")
        write_texts(output, texts, tokenizer.batch_decode(said))
        try:
            systems = {system_name(output): read_texts(output), **others_texts}
            write_table(output / EXAMPLES_FILE, systems, examples, seed)
        except ValueError as error:
            print(f"{EXAMPLES_FILE} was not written. {error}", file=sys.stderr)
        _write_by_length(output, {system_name(output): by_length, **others})
    return scores


def _usable_device(device: Any) -> torch.device:
    if device is None:
        from accelerate import PartialState

        return PartialState().device
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device is {str(device)!r}, which cannot be used here ({reason}); try 'cpu'.") from error
    return found


def _read_by_length(folder: Path) -> list[dict[str, Any]]:
    path = folder / RESULTS_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; name the --output folder of an earlier run.")
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["scores"]["by_length"]
        length_table({"": rows})
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no scores by length ({error!r}); make it again.") from error
    return rows


def _write_by_length(folder: Path, systems: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    from hf_meanmax.plots.figures import save_figure
    from hf_meanmax.plots.reconstruction import plot_by_length

    metrics = ("bleu", "chrf", "exact_match", "token_accuracy") if len(systems) == 1 else ("bleu",)
    with replacing_file(folder / TABLE_FILE) as file:
        file.write(length_table(systems, metrics))
    try:
        figure = plot_by_length(systems)
    except ImportError as error:
        print(f"{FIGURE_FILE} was not drawn. {error}", file=sys.stderr)
        return
    save_figure(figure, folder / FIGURE_FILE)


def _padded_batches(tokenizer: Any, texts: Sequence[str], batch_tokens: int) -> Iterable[dict[str, torch.Tensor]]:
    encoded = tokenizer(list(texts))["input_ids"]
    for rows in _rows_by_length(encoded, batch_tokens):
        batch = dict(tokenizer.pad({"input_ids": [encoded[row] for row in rows]}, return_tensors="pt"))
        batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        yield batch


def _rows_by_length(encoded: Sequence[Sequence[int]], batch_tokens: int, least: int = 1) -> list[np.ndarray]:
    """Indices of texts in batches of so many tokens, padding included, where a text counts as `least` or more."""
    if not encoded:
        return []
    lengths = np.array([len(ids) for ids in encoded])
    order = np.argsort(lengths, kind="stable")
    plan = BatchPlan(np.clip(lengths[order], least, batch_tokens), batch_tokens)
    return [order[rows] for rows in plan.sequential()]


def main(argv: Sequence[str] | None = None) -> None:
    """The command line of `scripts/reconstruct.py`; prints the scores as JSON."""
    from hf_meanmax.commands.old_options import make_parser, one_line_errors, parse_arguments, positive_int

    parser = make_parser("reconstruct.py", "Scores how well a checkpoint says held-out sentences again.")
    parser.add_argument("checkpoint", help="folder of a checkpoint with its decoder")
    parser.add_argument("text", nargs="+", help="text files (.txt .gz .xz .zst) or one data set")
    parser.add_argument("--limit", type=positive_int, default=2000, help="number of sentences")
    parser.add_argument("--min-tokens", type=positive_int, default=4, help="shorter sentences are left out")
    parser.add_argument("--max-tokens", type=positive_int, default=32, help="longer sentences are left out")
    parser.add_argument("--batch-size", type=positive_int, default=256, help="sentences decoded together")
    parser.add_argument("--num-beams", type=positive_int, default=1, help="beams of the search; 1 is greedy")
    parser.add_argument("--device", help="where the model runs, by default an accelerator if there is one")
    parser.add_argument(
        "--tokenize",
        choices=TOKENIZATIONS,
        help="what BLEU compares: none the words as the tokenizer cuts them, any other plain text that sacrebleu cuts; "
        "by default none, but zh for Chinese and Japanese under a tokenizer of pieces",
    )
    parser.add_argument("--output", help="folder for scores, texts, and tables and figure of both")
    parser.add_argument("--compare", nargs="+", default=[], help="--output folders of others to show beside this one")
    parser.add_argument("--examples", type=positive_int, default=5, help="texts in the table of reconstructions")
    parser.add_argument("--seed", type=int, default=0, help="draws the examples")
    args = parse_arguments(parser, argv)
    with one_line_errors("reconstruct.py"):
        scores = score_checkpoint(
            args.checkpoint,
            args.text,
            args.limit,
            args.min_tokens,
            args.max_tokens,
            batch_size=args.batch_size,
            num_beams=args.num_beams,
            device=args.device,
            tokenize=args.tokenize,
            output=args.output,
            compare=args.compare,
            examples=args.examples,
            seed=args.seed,
        )
    print(json.dumps(scores, indent=1, ensure_ascii=False))
