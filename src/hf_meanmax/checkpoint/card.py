"""The model card of a checkpoint: front matter, usage, figures, and `model-index`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from safetensors import safe_open

from hf_meanmax.files import Json, read_json, replacing_file, shared_name
from hf_meanmax.metrics import SENTEVAL, format_score, gain_text, kind_name
from hf_meanmax.modeling.configuration_base import LatentConfig
from hf_meanmax.modeling.storage import stored_names

from .folder import (
    check_checkpoint,
    is_classifier,
    is_own_checkpoint,
    learnt_objective,
    naming_damage,
    saved_auto_class,
    saved_training_args,
    weight_files,
)
from .sentence_transformer import saved_length_limit, saved_normalization

# Data sets in `model_index`: their entries in a card are replaced by newer ones, any other entries are the user's own.
_OWN_DATASETS = ("senteval", "hf_meanmax")


_SENTEVAL_METRICS = ("accuracy", "f1", "pearson", "spearman")


_METRICS = {"pearson": ("pearsonr", "Pearson correlation"), "spearman": ("spearmanr", "Spearman correlation")}


# Tensors of a checkpoint that are not parameters.
_BUFFERS = ("word_pooler.frequencies", "standardization.mean", "standardization.scale")


# Settings of a run with local paths and names, which a card does not show.
LOCAL_SETTINGS = frozenset(
    "cache_dir checkpoint corpus embedder initial_model output_dir overwrite report_to target target_tokenizer teacher "
    "test tokenizer train validation validation_target word_vectors".split()
)


@dataclass(frozen=True)
class CardDescription:
    """Content of a model card that the checkpoint does not record.

    Args:
        title: title of the card (default: the repository's name without its owner).
        data: description of the training data (default: the corpus in `training_args.json`).
        command: the command that trained the model.
        limits: limits that users should know, for instance the kind of texts it was trained on.
        language: language code of the texts, or several separated by commas.
        license: licence identifier of the Hub.
    """

    title: str | None = None
    data: str | None = None
    command: str | None = None
    limits: str | None = None
    language: str = "en"
    license: str = "apache-2.0"


def write_model_card(
    folder: str | os.PathLike[str],
    repo_id: str,
    description: CardDescription | None = None,
    *,
    path: str | os.PathLike[str] | None = None,
    results: Json | None = None,
    more_figures: Mapping[str, object] | None = None,
) -> Path:
    """Writes the model card of a checkpoint folder: training data, figures, usage that runs, limits, privacy.

    Args:
        folder: a checkpoint folder (see [`save_checkpoint`]).
        repo_id: the repository named in the usage lines.
        description: title, data, limits and the like.
        path: the file to write (default: README.md in the folder).
        results: figures by name, nested or not (default: `results` of `training_args.json`). The content of an
            evaluation's results.json also becomes the card's `model-index`, beside other entries that the folder's
            card already has; without it, that card's `model-index` is kept.
        more_figures: figures by name to show after those of `results`.

    Returns:
        The card's path.

    Raises:
        FileNotFoundError, ValueError: the folder is no whole checkpoint, or its `training_args.json` is damaged.
        ValueError: `results` is no dict.
    """
    folder, description = Path(folder), description or CardDescription()
    config = check_checkpoint(folder)
    if results is not None and not isinstance(results, dict):
        raise ValueError(f"Figures for the card have names: expected a dict, got a {type(results).__name__}.")
    args = saved_training_args(folder)
    title = description.title or repo_id.split("/")[-1]
    model_name, entries = _entries_of_card(folder / "README.md")
    if results is not None and is_evaluation(results):
        entries = _with_newer(entries, model_index(results))
    figures = args.get("results") or {} if results is None else _figures(results)
    with naming_damage(folder):
        use = _use_of(config, args)
        card = ModelCard.from_template(
            _card_data(config, use, description, (model_name or title) if entries else None, entries),
            template_str=files(__package__).joinpath("model_card_template.md").read_text(encoding="utf-8"),
            title=title,
            repo_id=repo_id,
            data=description.data or _describe_data(args),
            command=description.command,
            limits=description.limits,
            results=[*_flat(figures), *_flat(dict(more_figures or {}))],
            **use,
            **_sizes_of(folder, config),
            settings=[
                (name, value) for name, value in _flat(args) if name.split(".")[0] not in {*LOCAL_SETTINGS, "results"}
            ],
        )
    target = folder / "README.md" if path is None else Path(path)
    with replacing_file(target, "wb") as file:
        file.write(str(card).encode())
    return target


def _use_of(config: LatentConfig, args: Json) -> Json:
    """The template's variables about the use of a model, such as its objective and Auto class."""
    objective = learnt_objective(config, args)
    auto_class = saved_auto_class(config)
    classifies = is_classifier(config)
    reconstructs = config.is_autoregressive and objective == "reconstruction" and not classifies and config.reads_text
    translates = objective == "translation" and not classifies
    remote_code = bool(getattr(config, "auto_map", None))
    others = ["predicting the words that follow"] if args.get("context_weight") else []
    others += ["predicting the vectors of a teacher"] if args.get("teacher") else []
    contrast = {"neighbours": "the next sentence", "views": "the same sentence under noise"}
    contrast["both"] = " and ".join(contrast.values())
    others += [f"picking {contrast[kind]} out of others" for kind in contrast if kind == args.get("contrastive")]
    return {
        "model_type": config.model_type,
        "full_auto_class": auto_class,
        "classifies": classifies,
        "reconstructs": reconstructs,
        "translates": translates,
        "generates": config.is_autoregressive,
        "decodes": config.has_decoder,
        "also": " and ".join(others),
        "whole": "autoencoder" if reconstructs else "translator" if translates else "predictor",
        "output_tokenizer": "target_tokenizer" if config.separate_vocabularies else "tokenizer",
        "embedder": None if config.reads_text else getattr(config, "embedder_name", ""),
        "prompt": None if config.reads_text else (getattr(config, "embedder", None) or {}).get("prompt"),
        "reads_pairs": config.pair_combination is not None,
        "problem": config.problem,
        "labels": ", ".join(f"`{label}`" for _, label in sorted(config.id2label.items())),
        "remote_code": remote_code,
        "trust": ", trust_remote_code=True" if remote_code else "",
    }


def _sizes_of(folder: Path, config: LatentConfig) -> Json:
    longest = saved_length_limit(folder) if config.reads_text else None
    attends = config.pooling == "inner_attention"
    names = ["weighted means over the tokens"] if attends else []
    names += [_ROWS[row] for row in config.pooling_rows if row in _ROWS]
    if config.weighted_mean_hidden_size:
        names[-1] += f" with a feed-forward layer of {config.weighted_mean_hidden_size:,} units over it"
    return {
        "rows": config.num_latents,
        "row_names": ", ".join(names),
        "width": f"{config.latent_width:,}",
        "dimension": f"{getattr(config, 'embedding_dim', config.sentence_embedding_size):,}",
        "normalize": saved_normalization(folder),
        "has_unit_rows": config.latent_normalization is not None,
        "parameters": f"{_count_parameters(folder):,}",
        "vocab_size": f"{config.vocab_size:,}",
        "input_vocab_size": f"{config.input_vocab_size:,}",
        "has_unknown_words": read_json(folder / "tokenizer.json")["model"]["type"] == "WordLevel",
        "longest": "no limit" if longest is None else f"{longest:,} tokens, then cut",
    }


def _card_data(
    config: LatentConfig,
    use: Json,
    description: CardDescription,
    model_name: str | None,
    entries: Sequence[EvalResult],
) -> ModelCardData:
    """The front matter of a card."""
    classifies, embeds = use["classifies"], config.has_latents and config.reads_text
    codes = [code.strip() for code in description.language.split(",")]
    task = "sentence-similarity" if embeds else "translation" if config.reads_text else "text-generation"
    return ModelCardData(
        language=codes if len(codes) > 1 else codes[0],
        license=description.license,
        library_name="sentence-transformers" if embeds and not classifies else "transformers",
        pipeline_tag="text-classification" if classifies else task,
        tags=[
            *(["sentence-transformers", "sentence-similarity", "feature-extraction"] if embeds else []),
            *(["text-classification"] if classifies else []),
            *(["autoencoder"] if use["reconstructs"] else ["translation"] if use["translates"] else []),
            config.model_type,
        ],
        model_name=model_name,
        eval_results=list(entries) or None,
    )


def model_index(results: Json) -> list[EvalResult]:
    """Converts the scores of an evaluation to entries of a card's `model-index`.

    Args:
        results: the content of results.json (see [`~hf_meanmax.evaluation.report.Results`]).

    Returns:
        huggingface_hub's `EvalResult`s, in the order of the tasks and metrics: accuracies in percent, correlations
        between -1 and 1.

    Raises:
        ValueError: `results` is not from an evaluation.
    """
    if not is_evaluation(results):
        raise ValueError("A model-index is made of an evaluation: the content of the results.json of `evaluate`.")
    entries = []
    for task, scores in results["scores"].items():
        is_senteval = task in SENTEVAL
        similarity = {"pearson", "spearman"} & set(scores["metrics"])
        task_type = "sentence-similarity" if similarity or not is_senteval else "text-classification"
        for metric, value in scores["metrics"].items():
            if value is None or (metric not in _SENTEVAL_METRICS if is_senteval else metric.startswith("dev_")):
                continue
            kind, name = _METRICS.get(metric, (metric, metric.replace("_", " ")))
            entries.append(
                EvalResult(
                    task_type=task_type,
                    dataset_type="senteval" if is_senteval else "hf_meanmax",
                    dataset_name=f"SentEval {task}" if is_senteval else task,
                    dataset_config=task,
                    dataset_split="test",
                    metric_type=kind,
                    metric_name=name,
                    metric_value=round(float(value), 4),
                )
            )
    return entries


def write_model_index(folder: str | os.PathLike[str], results: Json) -> Path:
    """Writes the scores of an evaluation into the metadata of a folder's model card; its text stays as it is.

    Scores of an earlier evaluation are replaced, other entries are kept. A checkpoint folder without a card gets one.

    Args:
        folder: a checkpoint folder, or any folder with a README.md.
        results: the content of results.json (see [`~hf_meanmax.evaluation.report.Results`]).

    Returns:
        The card's path.

    Raises:
        FileNotFoundError: there is no card, and the folder is no checkpoint of this package.
        ValueError: the card's metadata cannot be read, or `results` is not from an evaluation.
    """
    folder = Path(folder)
    target = folder / "README.md"
    entries = model_index(results)
    if not target.is_file():
        if not is_own_checkpoint(folder):
            raise FileNotFoundError(f"{folder} has no README.md to write the scores into.")
        # For a folder `runs/NAME/model`, the evaluation records NAME.
        return write_model_card(folder, str(folder), CardDescription(title=results["model"]["name"]), results=results)
    model_name, before = _entries_of_card(target)
    card = ModelCard.load(target)
    card.data.model_name = model_name or results["model"]["name"]
    card.data.eval_results = _with_newer(before, entries)
    with replacing_file(target, "wb") as file:
        file.write(str(card).encode())
    return target


def is_evaluation(results: object) -> bool:
    """Whether `results` is the content of an evaluation's results.json."""
    return isinstance(results, dict) and {"format_version", "model", "tasks", "scores"} <= set(results)


def _figures(results: Json) -> Json:
    """The figures for the card's table: of an evaluation its scores and gains with their intervals, without missing
    ones (None); of `reconstruct` the scores without paths and settings; others as they are."""
    if results.keys() >= {"checkpoint", "source", "scores"}:
        return {name: score for name, score in results["scores"].items() if name != "by_length"}
    if not is_evaluation(results):
        return results
    figures: Json = {}
    for task, scores in results["scores"].items():
        main = results["tasks"][task]["main"]
        if scores["metrics"][main] is None:
            continue
        figures[task] = {main: format_score(scores["metrics"][main], main)}
        gain = results.get("gains", {}).get(task)
        if gain and gain["difference"] is not None:
            figures[task][f"gain over the control {kind_name(gain['control'])}"] = gain_text(gain, main)
    for name, value in results.get("averages", {}).items():
        if value is None:
            continue
        figures[name] = format_score(value, "accuracy")
        gain = results.get("average_gains", {}).get(name)
        if gain and gain["difference"] is not None:
            figures[f"{name}, gain over the control {kind_name(gain['control'])}"] = gain_text(gain, "accuracy")
    return figures


def _with_newer(before: list[EvalResult], newer: list[EvalResult]) -> list[EvalResult]:
    return [entry for entry in before if entry.dataset_type not in _OWN_DATASETS] + newer


def read_card_data(path: Path) -> ModelCardData:
    """The metadata of a card; empty if there is no card.

    Raises:
        ValueError: the metadata cannot be read.
    """
    if not path.is_file():
        return ModelCardData()
    try:
        data: ModelCardData = ModelCard.load(path).data
        return data
    except Exception as error:  # YAML's errors have a class of their own
        said = " ".join(str(error).split())
        raise ValueError(f"{path}: the metadata at its start cannot be read; mend or remove it ({said}).") from error


def _entries_of_card(path: Path) -> tuple[str | None, list[EvalResult]]:
    """The model's name and the entries of a card's `model-index`; None and empty if it has none."""
    data = read_card_data(path)
    return data.model_name, list(data.eval_results or [])


_ROWS = {
    "max": "the maximum over the tokens",
    "mean": "the mean over the tokens",
    "last": "the last state",
    "weighted_mean": "a weighted mean of the word vectors",
}


def _describe_data(args: Json) -> str:
    corpus = args.get("corpus") or args.get("train")
    if not corpus:
        return "Not recorded with this checkpoint."
    if corpus in ("docstrings", ["docstrings"]):
        return "English sentences from the docstrings of the Python standard library and of installed packages."
    sources = [corpus] if isinstance(corpus, str) else corpus
    return (
        ("Texts of " if args.get("train") else "Sentences of ")
        + ", ".join(f"`{shared_name(str(source))}`" for source in sources)
        + "."
    )


def _flat(values: Json, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Names (joined by dots) and readable values of nested settings or figures; empty ones are left out."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, float) and math.isfinite(value):
            yield prefix + name, f"{value:.6g}"
        elif value not in (None, "", []):
            yield prefix + name, " ".join(str(value).split()).replace("|", r"\|")


def _count_parameters(folder: Path) -> int:
    count = 0
    for path in weight_files(folder):
        with safe_open(path, framework="pt") as weights:
            stored = stored_names(list(weights.keys()))
            kept = [parts[0] for name, parts in stored.items() if not name.endswith(_BUFFERS)]
            count += sum(math.prod(weights.get_slice(part).get_shape()) for part in kept)
    return count
