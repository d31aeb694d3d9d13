"""Reconstruction scores of autoencoders: BLEU, chrF and ROUGE, exact matches, teacher-forced accuracy.

By default BLEU compares words as the tokenizer splits and normalises them (a word-level tokenizer lower-cases them).
The reference is the text itself, so a word outside the vocabulary is always an error. Teacher-forced accuracy and
loss take the unknown token for a word.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hf_meanmax.checkpoint.folder import load_decoder, require_reconstruction
from hf_meanmax.data import pick_sentences
from hf_meanmax.data.opening import TextOptions
from hf_meanmax.fields import check_settings, count, option
from hf_meanmax.files import Json, write_json
from hf_meanmax.inference.decode import MOST_BEAMS
from hf_meanmax.inference.encoder import report_unknown
from hf_meanmax.inference.reconstruct import reconstruct, rows_by_length
from hf_meanmax.modeling.losses import IGNORE_INDEX
from hf_meanmax.tokenization.tokenizers import is_word_level, normalizer_of, split_words

from .reconstruction_table import RESULTS_FILE, system_name, write_comparison, write_texts
from .text_scores import TextScores, Tokenization, score_texts, scores_by_length, tokenization_under

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from transformers.configuration_utils import PreTrainedConfig

# Most logits held at once: a quarter of a gigabyte of fp32.
_MOST_LOGITS = 2**26
# Number of texts shown with their reconstructions when progress is shown.
_SHOWN = 3
_SCORED_ELSEWHERE = {
    "translation": "score it with `hf-meanmax translate --reference`",
    "embedding_inversion": "it decodes the vectors of another embedder. Score it with `hf-meanmax audit`",
}


def reconstruction_pairs(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    generated: Sequence[Sequence[int]],
    tokenize: str | None = None,
) -> tuple[list[str], list[str], str]:
    """Hypotheses and references of reconstructions for [`~hf_meanmax.evaluation.text_scores.score_texts`].

    Args:
        tokenizer: the tokenizer of the model.
        texts: the texts.
        generated: the token ids generated for each text (see [`reconstruct`]).
        tokenize: `"none"` compares words as the tokenizer splits them; any other value compares plain text in this
            tokenisation of sacrebleu, with the texts as the tokenizer normalises them. By default `"none"`, except by
            character (`"zh"`, `"char"`) for text without spaces under a subword tokenizer, which splits such text only
            at punctuation, and by word (`"13a"`) for other text under a character tokenizer.

    Returns:
        Hypotheses, references and `tokenize`. The references keep words outside the vocabulary, so a word that is
        generated as `<unk>` is an error.
    """
    if tokenize is None:
        tokenize = tokenization_under(tokenizer, texts)
    if tokenize == "none" and is_word_level(tokenizer):
        hypotheses = [" ".join(tokenizer.convert_ids_to_tokens(list(ids))) for ids in generated]
    else:
        hypotheses = tokenizer.batch_decode([list(ids) for ids in generated], skip_special_tokens=True)
        if tokenize == "none":
            # Pieces are joined to text first, and then split into words like the references.
            hypotheses = [" ".join(words) for words in split_words(tokenizer, hypotheses)]
    if tokenize == "none":
        references = [" ".join(words) for words in split_words(tokenizer, texts)]
    else:
        references = list(map(normalizer_of(tokenizer), texts))
    return hypotheses, references, tokenize


def score_reconstructions(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    generated: Sequence[Sequence[int]],
    tokenize: str | None = None,
) -> TextScores:
    """Scores of generated token ids against the texts, including words outside the vocabulary.

    Args:
        tokenizer, texts, generated, tokenize: as for `reconstruction_pairs`.

    Raises:
        ValueError: as [`score_texts`][hf_meanmax.evaluation.text_scores.score_texts].
    """
    hypotheses, references, tokenize = reconstruction_pairs(tokenizer, texts, generated, tokenize)
    return score_texts(hypotheses, references, tokenize, rouge=False)


@torch.no_grad()
def teacher_forced_scores(model: PreTrainedModel, batches: Iterable[dict[str, torch.Tensor]]) -> tuple[float, float]:
    """Mean cross entropy (nats per token) and accuracy of the next word given the true words before it.

    Args:
        model: a model in evaluation mode; the full softmax is used.
        batches: dicts of `input_ids` `(B, N)`, `labels` `(B, N)` and optionally `attention_mask`.
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
def teacher_forced_counts(model: PreTrainedModel, batch: dict[str, torch.Tensor], splits: bool = True) -> torch.Tensor:
    """Summed cross entropy, correct tokens and all tokens of one batch, as a float64 tensor `(3,)`.

    The tensor is on the CPU. The cross entropy excludes the attention penalty. For a model that also generates the
    previous sentence, only the next one counts. With `splits`, a batch whose logits would need more than a quarter of a
    gigabyte is scored in parts.
    """
    batch = {name: value for name, value in batch.items() if name != "previous_targets"}
    # Not every accelerator has float64.
    totals = torch.zeros(3, dtype=torch.float64)
    rows, length = batch["labels"].shape
    size = max(1, _MOST_LOGITS // (length * model.config.vocab_size)) if splits else rows
    for start in range(0, rows, size):
        part = {name: tensor[start : start + size] for name, tensor in batch.items()}
        output, labels = model(**part, num_items_in_batch=1), part["labels"]
        correct = ((output.logits.argmax(dim=-1) == labels) & (labels != IGNORE_INDEX)).sum()
        loss = output.loss
        if output.attention_penalty is not None:
            loss = loss - model.config.attention_penalty * output.attention_penalty
        counts = [loss.float(), correct.float(), (labels != IGNORE_INDEX).sum().float()]
        totals += torch.stack(counts).cpu().double()
    return totals


@dataclass
class ReconstructionSettings(TextOptions):
    """How reconstructions are made and scored.

    Raises:
        ValueError: a number is out of range, `max_tokens` is less than `min_tokens`, or `tokenize` is unknown.
    """

    limit: int = count("number of sentences", 2000)
    min_tokens: int = count("shorter sentences are left out", 4)
    max_tokens: int = count("longer sentences are left out", 32)
    batch_size: int = count("sentences decoded together", 256)
    batch_tokens: int = count("tokens of a teacher-forced batch", 8192)
    num_beams: int = count("beams of the search; 1 is greedy", 1, at_most=MOST_BEAMS)
    device: str | None = option("where the model runs; by default an accelerator if there is one", None)
    tokenize: Tokenization | None = option(
        "sacrebleu's tokenisation, or `none` for the words of the model's tokenizer; by default none, but zh for "
        "Chinese and Japanese under a tokenizer of pieces",
        None,
    )
    examples: int = count("texts in the table of reconstructions", 5)
    seed: int = option("seed that draws the examples", 0, at_least=0)

    def __post_init__(self) -> None:
        check_settings(self)
        if self.max_tokens < self.min_tokens:
            raise ValueError(f"`max_tokens` is {self.max_tokens}, less than `min_tokens` {self.min_tokens}.")


def score_checkpoint(
    folder: str,
    source: object,
    settings: ReconstructionSettings | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    show_progress: bool = True,
) -> Json:
    """Reconstruction scores of a checkpoint folder on the first `limit` sentences of a corpus.

    Args:
        folder: a checkpoint with its decoder.
        source: text files or a data set, as for [`~hf_meanmax.data.open_corpus`].
        settings: by default `ReconstructionSettings()`.
        output: a folder to write `reconstruction.json` (settings and scores), `reconstructions.tsv` (each text and
            its reconstruction; tabs and line breaks become spaces), `reconstructions.md` (some of them; Zhang, Wu, Li
            and Zhang, table 3), `bleu-by-length.md` and, with matplotlib, `bleu-by-length.png` (figure 2).
        show_progress: show a progress bar, and the first texts with their reconstructions.

    Returns:
        `bleu` and `chrf` (0-100), with rouge-score installed also `rouge1`, `rouge2` and `rougeL` (0-100),
        `exact_match` and `token_accuracy` (of the reconstructions, 0-1), `accuracy` (teacher-forced, 0-1), `loss`
        (nats per token), `sentences`, `left_out` (number of shorter or longer ones; None if `limit` was reached),
        `signatures` (by metric) and `by_length` (the rows of `scores_by_length`, with lengths in BLEU's tokens).

    Raises:
        ValueError: the checkpoint was not trained to reconstruct, no sentence has that length, or the device is bad.
        FileNotFoundError: the checkpoint or the text is missing.
        FileExistsError: `output` is a file.
    """
    settings = settings or ReconstructionSettings()
    output = None if output is None else Path(output)
    if output is not None and output.exists() and not output.is_dir():
        raise FileExistsError(f"{output} is a file; name a folder.")
    trained = require_reconstruction(folder, _SCORED_ELSEWHERE)
    model, tokenizer, _ = load_decoder(folder, settings.device)
    texts, left_out = _pick_texts(source, tokenizer, settings, trained.get("max_tokens"))
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    generated = reconstruct(
        model, tokenizer, texts, settings.batch_size, show_progress=show_progress, num_beams=settings.num_beams
    )
    hypotheses, references, tokenize = reconstruction_pairs(tokenizer, texts, generated, settings.tokenize)
    if show_progress:
        for text, decoded in list(zip(references, hypotheses, strict=True))[:_SHOWN]:
            print(f"{text}\n    {decoded}", file=sys.stderr)
    batches = _padded_batches(model.config, tokenizer, texts, settings.batch_tokens)
    on_device = ({name: tensor.to(model.device) for name, tensor in batch.items()} for batch in batches)
    loss, accuracy = teacher_forced_scores(model, on_device)
    by_length = scores_by_length(hypotheses, references, tokenize=tokenize)
    scores = score_texts(hypotheses, references, tokenize).to_dict()
    scores |= {"left_out": left_out, "accuracy": accuracy, "loss": loss, "by_length": by_length}
    if output is not None:
        parts = [str(part) for part in source] if isinstance(source, list | tuple) else str(source)
        record = {"checkpoint": str(folder), "source": parts, **asdict(settings), "scores": scores}
        write_json(output / RESULTS_FILE, record, ensure_ascii=False)
        write_texts(output, texts, tokenizer.batch_decode(generated))
        write_comparison(output, {system_name(output): output}, settings.examples, settings.seed)
    return scores


def _pick_texts(
    source: object, tokenizer: PreTrainedTokenizerBase, settings: ReconstructionSettings, most_trained: int | None
) -> tuple[list[str], int | None]:
    """The texts to score, and the number of too short or too long ones (None if `limit` was reached)."""
    filled = 0

    def lines() -> Iterator[str]:
        nonlocal filled
        for line in filter(None, settings.open_texts(source)):
            filled += 1
            yield line

    least, most = settings.min_tokens, settings.max_tokens
    texts = pick_sentences(lines(), tokenizer, settings.limit, least, most)
    if not texts:
        named = ", ".join(map(str, source)) if isinstance(source, list | tuple) else source
        raise ValueError(f"{named} has no sentence of {least}-{most} tokens.")
    report_unknown(tokenizer, texts, "the texts")
    _report_long(tokenizer, texts, most_trained)
    # Lines after the last text may have been read as well, so their number is not known.
    if len(texts) == settings.limit:
        return texts, None
    left_out = filled - len(texts)
    if left_out:
        print(
            f"{left_out:,} of {filled:,} sentences are not of {least}-{most} tokens and were left out "
            "(`--min_tokens`, `--max_tokens`).",
            file=sys.stderr,
        )
    return texts, left_out


def _report_long(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], most: int | None) -> None:
    """Warns on stderr how many texts have more than `most` tokens, the most in training (None if unknown)."""
    if most is None:
        return
    count = sum(len(ids) > most for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"])
    if count:
        print(
            f"warning: {count:,} of {len(texts):,} texts have more than {most} tokens, the most in the model's last "
            "training, and come back worse. A lower `--max_tokens` leaves them out.",
            file=sys.stderr,
        )


def _padded_batches(
    config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], batch_tokens: int
) -> Iterable[dict[str, torch.Tensor]]:
    encoded = tokenizer(list(texts))["input_ids"]
    for rows in rows_by_length(encoded, batch_tokens):
        batch = dict(tokenizer.pad({"input_ids": [encoded[row] for row in rows]}, return_tensors="pt"))
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, IGNORE_INDEX)
        # The decoder cannot generate words of an expanded vocabulary: to it they are unknown.
        batch["labels"] = labels.masked_fill(labels >= config.vocab_size, config.unk_token_id)
        yield batch
