"""Fine-tuning on labels: a classifier or a regression over one text or two, by transformers' Trainer.

Without a checkpoint, a model of `--family` (default: structured self-attentive) starts from random weights.
"""

from __future__ import annotations

import math
import shutil
import sys
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from transformers.utils import logging

from hf_meanmax.checkpoint.folder import (
    SETTINGS_FILE,
    check_checkpoint,
    is_classifier,
    require_text_encoder,
    save_checkpoint,
    weight_files,
)
from hf_meanmax.checkpoint.location import checkpoint_folder
from hf_meanmax.data import Documents, LabelledTexts, SentenceFilter, read_labelled
from hf_meanmax.files import Json, file_digest, follow_umask, naming_failed_writes, read_json, sole_writer, write_json
from hf_meanmax.hardware import (
    attention_for,
    peak_memory_bytes,
    prepare_training_on_cpu,
    usable_device,
    use_all_cores,
)
from hf_meanmax.modeling.configuration_base import LatentConfig
from hf_meanmax.processes import (
    errors_shared,
    main_process_first,
    naming_lost_processes,
    of_main_process,
    process_state,
)

from .cache import digest
from .checkpoints import CHECKPOINTS, RESULTS_FILE, check_run_folder, claim_folder
from .finetune_settings import FinetuneArguments
from .model import start_words
from .preparation import cached_store, check_known
from .vocabulary import load_or_train_tokenizer, prepare_word_vectors, token_ids, word_vectors_file

if TYPE_CHECKING:
    from accelerate import PartialState
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# More different numbers than this, some with fractions, are scores and not classes.
_MOST_SCORES = 20
# From this many examples on, long labels with less than two examples each on average are texts, not classes.
_ENOUGH_FOR_CLASSES = 10
# Classes printed one by one.
_CLASSES_SHOWN = 10
# One example in this many is held out for validation.
_HELD_OUT = 10
# The timeout of transformers' Trainer.
_PATIENCE = timedelta(minutes=30)
_FREE_ON_RESUME = {"overwrite", "report_to", "cache_dir", "output_dir", "recipe"}


def finetune(args: FinetuneArguments) -> Json:
    """Trains a classifier or a regression, and writes `<output_dir>/model` and `<output_dir>/results.json`.

    An interrupted run is resumed, a finished one left as it is. The weights of the best epoch in validation are kept.

    Returns:
        The scores of the validation set and the test set, parameters, minutes, and the score of each epoch.

    Raises:
        FileNotFoundError, ValueError: for settings, data or a checkpoint that cannot be trained on.
        FileExistsError: if `output_dir` holds a run with other settings or on other examples, or something else.
        BlockingIOError: if another process trains in `output_dir`.
        ConnectionError: if another process of the run ended or did not answer.
        OSError: if a result cannot be written.
    """
    folder, state = Path(args.output_dir), process_state()
    with naming_lost_processes(_PATIENCE), ExitStack() as stack:
        with errors_shared(state):
            if state.is_main_process:
                stack.enter_context(sole_writer(folder))
        stack.enter_context(naming_failed_writes(folder))
        return _finetune(args, folder, state)


def _finetune(args: FinetuneArguments, folder: Path, state: PartialState) -> Json:
    from transformers import EarlyStoppingCallback, set_seed

    from .finetune_trainer import build_trainer

    use_all_cores(state.num_processes)
    if usable_device(None).type == "cpu":
        prepare_training_on_cpu()
    with main_process_first(state):
        train, validation, test, labels = read_sets(args, show_classes=state.is_main_process)
    latest = None
    overwrites = of_main_process(state, args.overwrite and (folder / SETTINGS_FILE).is_file())
    if overwrites:
        # The older run is removed only after all inputs of the new one have been found.
        check_run_folder(folder)
    else:
        latest = _claimed(args, folder, (train, validation, test), state)
        if (folder / RESULTS_FILE).is_file():
            # Finished: only its best checkpoint is left, and training would resume from there.
            finished: Json = read_json(folder / RESULTS_FILE)
            return finished
    # Trainer sets it too, but only after the model's new weights were drawn.
    set_seed(args.seed)
    model, tokenizer = build_classifier(args, train, labels)
    encoded = [encode_examples(texts, tokenizer, labels, args.max_tokens) for texts in (train, validation, test)]
    sets, cut = [examples for examples, _ in encoded], sum(number for _, number in encoded)
    with errors_shared(state):
        if state.is_main_process:
            _check_known(sets[0], tokenizer, args.checkpoint)
    if overwrites:
        _claimed(args, folder, (train, validation, test), state)
    metric = "accuracy" if args.problem == "classification" else "pearson"
    trainer = build_trainer(args, model, tokenizer, sets, metric, latest)
    trainer.train(resume_from_checkpoint=None if latest is None else str(latest))
    # It would warn that its metric is missing from the final scores.
    trainer.pop_callback(EarlyStoppingCallback)
    results = {
        **_sizes(train, validation, test, model),
        "labels": labels,
        "cut_texts": cut,
        "minutes": round(trainer.state.log_history[-1]["minutes"], 2),
        "peak_memory_bytes": peak_memory_bytes(trainer.args.device),
    }
    for name, examples in (("validation", sets[1]), ("test", sets[2])):
        if examples:
            scores = trainer.evaluate(examples, metric_key_prefix=name)
            wanted = ("loss", metric, "attention_penalty")
            results[name] = {key: scores[f"{name}_{key}"] for key in wanted if f"{name}_{key}" in scores}
    results["epochs"] = [entry for entry in trainer.state.log_history if f"eval_{metric}" in entry or "loss" in entry]
    if trainer.is_world_process_zero():
        _save(args, model, tokenizer, folder, results)
    return results


def _check_known(examples: list[Json], tokenizer: PreTrainedTokenizerBase, checkpoint: str) -> None:
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    tokens = [token for example in examples for token in example["input_ids"] if token not in special]
    check_known(tokens.count(tokenizer.unk_token_id), len(tokens), tokenizer, checkpoint)


def _sizes(train: LabelledTexts, validation: LabelledTexts, test: LabelledTexts, model: PreTrainedModel) -> Json:
    return {
        "examples": {"train": len(train), "validation": len(validation), "test": len(test)},
        "unlabelled": train.unlabelled + validation.unlabelled + test.unlabelled,
        "textless": train.textless + validation.textless + test.textless,
        "encoder_parameters": sum(weights.numel() for weights in model.encoder.parameters()),
        "classifier_parameters": sum(weights.numel() for weights in model.classifier.parameters()),
    }


def claim(args: FinetuneArguments, sets: tuple[LabelledTexts, ...], processes: int = 1) -> None:
    """Creates the output folder, or checks that the run in it has the same settings and examples.

    Raises:
        FileExistsError: the folder holds another run.
    """
    settings = {name: value for name, value in args.to_dict().items() if name not in _FREE_ON_RESUME}
    settings["examples"] = digest([(part.texts, part.pairs, part.labels) for part in sets])
    defaults = {**args.defaults(), "processes": processes}
    if args.checkpoint:
        # The folder may hold another model by now. Runs of earlier versions did not record its files.
        settings["checkpoint_files"] = defaults["checkpoint_files"] = _contents(checkpoint_folder(args.checkpoint))
    folder = Path(args.output_dir)
    if args.overwrite or not (folder / RESULTS_FILE).is_file():
        # The number of processes determines the batches per epoch, by which Trainer counts the finished epochs.
        settings["processes"] = processes
    claim_folder(folder, settings, args.overwrite, defaults)


def _contents(folder: Path) -> str:
    files = [*weight_files(folder), folder / "config.json", folder / "tokenizer.json"]
    return digest([file_digest(path) for path in files if path.is_file()])


def _claimed(
    args: FinetuneArguments, folder: Path, sets: tuple[LabelledTexts, ...], state: PartialState
) -> Path | None:
    """The newest checkpoint in the folder; all processes look for it after the main one has claimed the folder."""
    with main_process_first(state):
        is_main = state.is_main_process
        if is_main:
            claim(args, sets, state.num_processes)
        return latest_checkpoint(folder / CHECKPOINTS, remove_partial=is_main)


def latest_checkpoint(folder: Path, remove_partial: bool = False) -> Path | None:
    """The newest complete checkpoint of Trainer; `remove_partial` removes newer, incomplete ones."""
    steps = {path: path.name.removeprefix("checkpoint-") for path in folder.glob("checkpoint-*")}
    found = [path for path, step in steps.items() if step.isdecimal()]
    for path in sorted(found, key=lambda path: int(steps[path]), reverse=True):
        # The last file of a checkpoint that Trainer writes.
        try:
            read_json(path / "trainer_state.json")
            return path
        except (OSError, ValueError):
            if remove_partial:
                shutil.rmtree(path, ignore_errors=True)
    return None


def read_sets(
    args: FinetuneArguments, show_classes: bool = False
) -> tuple[LabelledTexts, LabelledTexts, LabelledTexts, list[str]]:
    """The training, validation and test examples (the last may be empty), and the labels by class number.

    The labels are [`label_names`] of all examples of `args.train`; `show_classes` prints their counts on stderr.

    Raises:
        FileNotFoundError, ValueError: as [`read_labelled`] and [`label_names`]; if there are too few examples, the
            validation or test set is the training set, some sets hold pairs and others single texts, or one has a
            label that the training examples lack.
    """

    def read(source: str, split: str) -> LabelledTexts:
        columns = (args.text_column, args.pair_column, args.label_column)
        return read_labelled(source, *columns, split, args.encoding_errors, args.config_name or None)

    whole = train = read(args.train, args.train_split)
    # From all examples, since those held out or left out may be the only ones of a rare label.
    labels = label_names(train, args.problem, args.train)
    if labels and show_classes:
        _tell_classes(train, args.train)
    rows = np.random.default_rng(args.seed).permutation(len(train))
    if args.validation:
        validation = read(args.validation, args.validation_split)
    else:
        held_out = max(1, len(train) // _HELD_OUT)
        validation, rows = train.select(rows[:held_out]), rows[held_out:]
    if args.max_examples:
        rows = rows[: args.max_examples]
    if len(rows) < 2:
        beside = "" if args.validation else f" beside {len(validation)} held out for validation"
        raise ValueError(f"{args.train}: {len(rows)} example(s) to train on{beside}, expected 2 or more.")
    train = replace(train.select(sorted(rows)), unlabelled=train.unlabelled, textless=train.textless)
    test = read(args.test, args.test_split) if args.test else LabelledTexts([], train.pairs and [], [])
    for texts, name, kind in ((validation, args.validation, "validation"), (test, args.test, "test")):
        if name and (texts.texts, texts.pairs) == (whole.texts, whole.pairs):
            remedy = " or leave it out, and a tenth is held out" if kind == "validation" else ""
            raise ValueError(
                f"`{kind}` is {name!r}, whose texts are those of `train`: it would be scored on what it was trained "
                f"on. Name other texts{remedy}."
            )
        if (texts.pairs is None) != (train.pairs is None):
            kinds = ["single texts" if each.pairs is None else "pairs" for each in (train, texts)]
            raise ValueError(f"{args.train} holds {kinds[0]} and {name} {kinds[1]}; they must be alike.")
        _check_labels(texts, labels, name)
    return train, validation, test, labels


def label_names(train: LabelledTexts, problem: str, name: str) -> list[str]:
    """The labels of the file `name`: sorted by value if all are numbers, else alphabetically; none for a regression.

    Raises:
        ValueError: if there is only one label, the labels look like scores or texts, or a label of a regression is
            not a number.
    """
    if problem == "regression":
        _check_labels(train, [], name)
        return []
    names = sorted(set(train.labels))
    if len(names) < 2:
        raise ValueError(f"All examples have the label {names[0]!r}; a classifier needs two or more.")
    is_numeric = all(map(_is_number, names))
    are_scores = is_numeric and len(names) > _MOST_SCORES and any(float(label) % 1 for label in names)
    # A few examples may have many classes, but not labels that are longer than the texts.
    are_texts = 2 * len(names) > len(train) >= _ENOUGH_FOR_CLASSES and sum(map(len, train.labels)) > sum(
        map(len, train.texts)
    )
    if are_scores or are_texts:
        kind, remedy = "numbers", "For scores give `--problem regression`."
        if are_texts:
            kind, remedy = "texts", "Are text and label swapped?"
        raise ValueError(
            f"{name}: the labels of {len(train):,} examples are {len(names):,} {kind} such as "
            f"{_short(max(names, key=len))!r}, too many to be classes. {remedy}"
        )
    return sorted(names, key=float) if is_numeric else names


def _tell_classes(train: LabelledTexts, name: str) -> None:
    """Prints the number of examples of each class on stderr, and warns of labels that are probably mistakes."""
    counts = Counter(train.labels)
    shown = [f"{_short(label)} {number:,}" for label, number in counts.most_common(_CLASSES_SHOWN)]
    print(f"{len(counts):,} classes: {', '.join(shown)}{', ...' if len(counts) > len(shown) else ''}", file=sys.stderr)
    alike: dict[str, list[str]] = {}
    for label in counts:
        alike.setdefault(unicodedata.normalize("NFKC", label).strip().casefold(), []).append(label)
    if same := [labels for labels in alike.values() if len(labels) > 1]:
        others = f" (and {len(same) - 1:,} more groups)" if len(same) > 1 else ""
        warnings.warn(
            f"{name}: the labels {', '.join(map(repr, same[0]))}{others} differ only in case, blanks or the form of "
            "their characters, and are classes of their own. Write them alike if they are one.",
            stacklevel=2,
        )
    # An unrecognised header becomes a class with a single example.
    single = [row for row, label in enumerate(train.labels) if counts[label] == 1]
    if single:
        row = single[0]
        warnings.warn(
            f"{name}: classes with a single example: {len(single):,}, such as {_short(train.labels[row])!r} with the "
            f"text {_short(train.texts[row])!r}. Remove the line if it is a header.",
            stacklevel=2,
        )


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


def _check_labels(texts: LabelledTexts, labels: list[str], name: str) -> None:
    """Checks that every label is one of `labels`, or a number if `labels` is empty."""
    for label in dict.fromkeys(texts.labels):
        if labels and label not in labels:
            raise ValueError(
                f"{name}: the label {label!r} does not occur in the training examples "
                f"({', '.join(labels)}). Correct it, or train on examples of it."
            )
        if not labels and not _is_number(label):
            raise ValueError(f"{name}: the label {label!r} is no number, which `problem` 'regression' needs.")


def _is_number(label: str) -> bool:
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False


def build_classifier(
    args: FinetuneArguments, train: LabelledTexts, labels: list[str]
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model to train, and its tokenizer: from a checkpoint, or new.

    Raises:
        FileNotFoundError, ValueError: no such checkpoint or tokenizer, a checkpoint of another package, or settings
            that do not fit the texts.
    """
    from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer

    head: Json = {"num_labels": len(labels) or 1, "problem_type": "single_label_classification"}
    if labels:
        head |= {"id2label": dict(enumerate(labels)), "label2id": {name: i for i, name in enumerate(labels)}}
    else:
        head["problem_type"] = "regression"
    attention = attention_for(args.attention, usable_device(None))
    texts = Documents([train.texts + (train.pairs or [])])
    make_store = partial(cached_store, args, texts, rule=SentenceFilter(), show_progress=False)
    is_learned, vectors = args.checkpoint and args.start == "encoder", None
    if args.checkpoint:
        path = checkpoint_folder(args.checkpoint)
        require_text_encoder(check_checkpoint(path), args.checkpoint)
        config = AutoConfig.from_pretrained(path, **head, **args.model)
        _check_family(args, config.model_type)
        tokenizer = AutoTokenizer.from_pretrained(path)
    else:
        word_vectors = word_vectors_file(args)
        tokenizer = load_or_train_tokenizer(args, args.tokenizer, texts, show_progress=False, word_vectors=word_vectors)
        if word_vectors:
            vectors = prepare_word_vectors(args, tokenizer, make_store(tokenizer), False, word_vectors)
        size = {} if vectors is None else {"embedding_size": vectors.shape[1]}
        config = args.build_config(**head, **size, vocab_size=len(tokenizer), **token_ids(tokenizer))
    if (config.pair_combination is not None) != (train.pairs is not None):
        kind = "single texts" if train.pairs is None else "pairs"
        remedy = "use 'none'" if train.pairs is None else "use 'concatenation' or 'multiplicative'"
        raise ValueError(f"{args.train} holds {kind}, but `pair_combination` is {config.pair_combination!r}; {remedy}.")
    # By `token_type_ids` a model of pairs distinguishes the two texts, and one of single texts refuses a second.
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    if is_learned:
        # transformers would report the head, which is new on purpose; the other weights have been checked.
        with _without_load_report():
            model = AutoModelForSequenceClassification.from_pretrained(
                path, config=config, attn_implementation=attention, ignore_mismatched_sizes=True
            )
        _renew_head(model, AutoConfig.from_pretrained(path))
    else:
        model = AutoModelForSequenceClassification.from_config(config, attn_implementation=attention)
    if args.checkpoint and args.start == "word_embeddings":
        learned = AutoModel.from_pretrained(path)
        model.encoder.embeddings.load_state_dict(learned.embeddings.state_dict())
    if args.checkpoint and args.start == "nothing":
        # Word vectors that are random and frozen would be an unfair control.
        model.get_input_embeddings().requires_grad_(True)
    if vectors is not None or (config.has_weighted_mean and not is_learned):
        start_words(model.encoder, vectors, make_store(tokenizer).token_counts)
    if args.freeze_encoder:
        model.freeze_encoder()
    return model, tokenizer


@contextmanager
def _without_load_report() -> Iterator[None]:
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _renew_head(model: PreTrainedModel, saved: LatentConfig) -> None:
    """Reinitialises the head if the saved model is a classifier with other labels or another problem type."""
    told_apart = ("id2label", "problem_type", "num_labels")
    is_other = any(getattr(saved, name) != getattr(model.config, name) for name in told_apart)
    if is_other and is_classifier(saved):
        model.classifier.load_state_dict(type(model)(model.config).classifier.state_dict())


def _check_family(args: FinetuneArguments, found: str) -> None:
    if args.family not in (FinetuneArguments.family, found):
        raise ValueError(
            f"`family` is {args.family!r}, and {args.checkpoint!r} is of the family {found!r}. Leave `family` out."
        )


def encode_examples(
    texts: LabelledTexts, tokenizer: PreTrainedTokenizerBase, labels: list[str], max_tokens: int
) -> tuple[list[Json], int]:
    """Token ids, token types of pairs and the label of each example, and the number of examples with a cut text."""
    sides = [texts.texts] if texts.pairs is None else [texts.texts, texts.pairs]
    encoded = [tokenizer(side)["input_ids"] if side else [] for side in sides]
    numbers = {name: number for number, name in enumerate(labels)}
    examples, cut = [], 0
    for row, label in enumerate(texts.labels):
        # A cut text keeps its end token.
        parts = [
            ids[row] if len(ids[row]) <= max_tokens + 1 else [*ids[row][:max_tokens], ids[row][-1]] for ids in encoded
        ]
        example: Json = {
            "input_ids": [token for part in parts for token in part],
            "labels": numbers[label] if labels else float(label),
        }
        cut += any(len(ids[row]) > max_tokens + 1 for ids in encoded)
        if len(parts) == 2:
            example["token_type_ids"] = [0] * len(parts[0]) + [1] * len(parts[1])
        examples.append(example)
    return examples, cut


def _save(
    args: FinetuneArguments, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, results: Json
) -> None:
    shown = {name: results[name] for name in ("validation", "test", "minutes") if name in results}
    normalize = None if args.normalize == "none" else args.normalize
    save_checkpoint(
        model.eval(), tokenizer, folder / "model", normalize=normalize,
        training_args={**args.to_share(), "family": model.config.model_type, "results": shown},
        like=checkpoint_folder(args.checkpoint) if args.checkpoint else None,
    )  # fmt: skip
    follow_umask(folder / CHECKPOINTS)
    # Written last: it marks the run as finished.
    write_json(folder / RESULTS_FILE, results)
