"""Model cards, and pushing a checkpoint folder to the Hub.

hf-meanmax-push runs/docstrings/model USER/NAME --private
"""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from safetensors import safe_open

from hf_meanmax.files import is_owned, replacing_file
from hf_meanmax.metrics import SENTEVAL, format_score, gain_text, kind_name
from hf_meanmax.modeling.configuration_base import NO_LIMIT
from hf_meanmax.modeling.configuration_compound_attention import CompoundAttentionConfig

from .folder import (
    CHECKPOINT_FILES,
    TARGET_TOKENIZER,
    check_checkpoint,
    full_auto_class,
    is_own_checkpoint,
    saved_normalization,
    saved_training_args,
)

# The data sets of `model_index`: these entries of a card are replaced by newer ones, any others are somebody's own.
_OWN_DATASETS = ("senteval", "hf_meanmax")
_SENTEVAL_METRICS = ("accuracy", "f1", "pearson", "spearman")
_METRICS = {"pearson": ("pearsonr", "Pearson correlation"), "spearman": ("spearmanr", "Spearman correlation")}


# Settings of a run that say where it read, wrote and reported: no card shows them.
LOCAL_SETTINGS = frozenset(
    "cache_dir checkpoint corpus output_dir overwrite report_to target target_tokenizer teacher test tokenizer train "
    "validation validation_target word_vectors".split()
)


class HubError(OSError):
    """What went wrong with the Hub, on one line. Nothing local is lost; the same call can be made again."""


def write_model_card(
    folder: str | os.PathLike[str],
    repo_id: str,
    *,
    title: str | None = None,
    path: str | os.PathLike[str] | None = None,
    data: str | None = None,
    results: dict[str, Any] | None = None,
    more_figures: Mapping[str, Any] | None = None,
    command: str | None = None,
    limits: str | None = None,
    language: str = "en",
    license: str = "apache-2.0",
) -> Path:
    """Writes the model card of a checkpoint folder: training data, figures, usage that runs, limits, privacy.

    Args:
        folder: a checkpoint folder (see [`save_checkpoint`]).
        repo_id: the repository that the usage lines name.
        title: of the card; by default the repository's name without its owner.
        path: where to write; README.md in the folder by default.
        data: what the model was trained on, in words; by default what `training_args.json` tells of the corpus.
        results: figures by name, nested or not; by default `results` of `training_args.json`. The content of an
            evaluation's results.json also becomes the card's `model-index`, beside entries of other origin that the
            folder's card has; without it, that card's `model-index` is kept.
        more_figures: figures by name that stand after those of `results`.
        command: the command that trained it.
        limits: what its users should know besides, for instance of the kind of its texts.
        language: language code of the texts.
        license: licence identifier of the Hub.

    Returns:
        The card's path.

    Raises:
        FileNotFoundError, ValueError: the folder is no whole checkpoint.
        ValueError: `results` is no dict.
    """
    from huggingface_hub import ModelCard, ModelCardData

    folder = Path(folder)
    config = check_checkpoint(folder)
    args = saved_training_args(folder)
    hidden = {*LOCAL_SETTINGS, "results"}
    if results is not None and not isinstance(results, dict):
        raise ValueError(f"Figures for the card have names: expected a dict, got a {type(results).__name__}.")
    remote_code = bool(getattr(config, "auto_map", None))
    # What was trained without this package's training, or before it had objectives, does what its family is for.
    is_translator = config.model_type == CompoundAttentionConfig.model_type
    objective = args.get("objective", "translation" if is_translator else "reconstruction")
    auto_class = full_auto_class(config)
    classifies = auto_class == "AutoModelForSequenceClassification"
    reconstructs = config.is_autoregressive and objective == "reconstruction" and not classifies
    translates = objective == "translation" and not classifies
    transformer = json.loads((folder / "sentence_bert_config.json").read_text(encoding="utf-8"))
    longest = transformer["max_seq_length"]
    model_name, entries = _entries_of_card(folder / "README.md")
    if results is not None and is_evaluation(results):
        entries = _with_newer(entries, model_index(results))
        results = _figures(results)
    card_data = ModelCardData(
        language=language,
        license=license,
        library_name="sentence-transformers" if config.has_latents and not classifies else "transformers",
        pipeline_tag="text-classification"
        if classifies
        else "sentence-similarity"
        if config.has_latents
        else "translation",
        tags=[
            *(["sentence-transformers", "sentence-similarity", "feature-extraction"] if config.has_latents else []),
            *(["text-classification"] if classifies else []),
            *(["autoencoder"] if reconstructs else ["translation"] if translates else []),
            config.model_type,
        ],
        model_name=(model_name or title or repo_id.split("/")[-1]) if entries else None,
        eval_results=entries or None,
    )
    card = ModelCard.from_template(
        card_data,
        template_str=files(__package__).joinpath("model_card_template.md").read_text(encoding="utf-8"),
        title=title or repo_id.split("/")[-1],
        repo_id=repo_id,
        model_type=config.model_type,
        reconstructs=reconstructs,
        also=" and ".join(
            told
            for told in (
                "predicting the words that follow" if args.get("context_weight") else "",
                "giving the vectors of a teacher" if args.get("teacher") else "",
            )
            if told
        ),
        translates=translates,
        said_by="target_tokenizer" if config.separate_vocabularies else "tokenizer",
        whole="autoencoder" if reconstructs else "translator" if translates else "predictor",
        generates=config.is_autoregressive,
        full_auto_class=auto_class,
        classifies=classifies,
        reads_pairs=config.pair_combination is not None,
        labels=", ".join(f"`{label}`" for _, label in sorted(config.id2label.items())),
        rows=config.num_latents,
        row_names="weighted means over the tokens"
        if config.pooling == "inner_attention"
        else ", ".join(_ROWS[row] for row in config.pooling_rows),
        width=f"{config.latent_width:,}",
        dimension=f"{config.sentence_embedding_size:,}",
        remote_code=remote_code,
        trust=", trust_remote_code=True" if remote_code else "",
        normalize=saved_normalization(folder),
        data=data or _describe_data(args),
        results=[*_flat(args.get("results", {}) if results is None else results), *_flat(dict(more_figures or {}))],
        command=command,
        limits=limits,
        parameters=f"{_count_parameters(folder):,}",
        vocab_size=f"{config.vocab_size:,}",
        input_vocab_size=f"{config.input_vocab_size:,}",
        longest="no limit" if longest >= NO_LIMIT else f"{longest:,} tokens, then cut",
        settings=[(name, value) for name, value in _flat(args) if name.split(".")[0] not in hidden],
    )
    target = folder / "README.md" if path is None else Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing_file(target, "wb") as file:
        file.write(str(card).encode())
    return target


def model_index(results: dict[str, Any]) -> list[Any]:
    """The scores of an evaluation as the entries of a card's `model-index`.

    Args:
        results: the content of results.json (see [`~hf_meanmax.evaluation.report.Results`]).

    Returns:
        huggingface_hub's `EvalResult`s, in the order of the tasks and metrics: accuracies in percent, correlations
        between -1 and 1.

    Raises:
        ValueError: `results` is not of an evaluation.
    """
    from huggingface_hub import EvalResult

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


def write_model_index(folder: str | os.PathLike[str], results: dict[str, Any]) -> Path:
    """Puts the scores of an evaluation into the metadata of a folder's model card, whose text stays as it is.

    Scores of an earlier evaluation are replaced, entries of other origin kept. A checkpoint folder without a card gets
    one.

    Args:
        folder: a checkpoint folder, or any folder with a README.md.
        results: the content of results.json (see [`~hf_meanmax.evaluation.report.Results`]).

    Returns:
        The card's path.

    Raises:
        FileNotFoundError: there is no card, and the folder is no checkpoint of this package.
        ValueError: the card's metadata cannot be read, or `results` is not of an evaluation.
    """
    from huggingface_hub import ModelCard

    folder = Path(folder)
    target = folder / "README.md"
    entries = model_index(results)
    if not target.is_file():
        if not is_own_checkpoint(folder):
            raise FileNotFoundError(f"{folder} has no README.md to write the scores into.")
        return write_model_card(folder, folder.resolve().name, results=results)
    model_name, before = _entries_of_card(target)
    card = ModelCard.load(target)
    card.data.model_name = model_name or folder.resolve().name
    card.data.eval_results = _with_newer(before, entries)
    with replacing_file(target, "wb") as file:
        file.write(str(card).encode())
    return target


def is_evaluation(results: Any) -> bool:
    """Whether figures are the content of an evaluation's results.json."""
    return isinstance(results, dict) and {"format_version", "model", "tasks", "scores"} <= set(results)


def _figures(results: dict[str, Any]) -> dict[str, Any]:
    """What the card's table shows of an evaluation, gains with their intervals."""

    figures: dict[str, Any] = {}
    for task, scores in results["scores"].items():
        main = results["tasks"][task]["main"]
        figures[task] = {main: format_score(scores["metrics"][main], main)}
        gain = results.get("gains", {}).get(task)
        if gain:
            figures[task][f"gain over the control {kind_name(gain['control'])}"] = gain_text(gain, main)
    for name, value in results.get("averages", {}).items():
        figures[name] = format_score(value, "accuracy")
        gain = results.get("average_gains", {}).get(name)
        if gain:
            figures[f"{name}, gain over the control {kind_name(gain['control'])}"] = gain_text(gain, "accuracy")
    return figures


def _with_newer(before: list[Any], newer: list[Any]) -> list[Any]:
    return [entry for entry in before if entry.dataset_type not in _OWN_DATASETS] + newer


def _entries_of_card(path: Path) -> tuple[str | None, list[Any]]:
    """The model's name and the entries in the `model-index` of a card, if there is one."""
    from huggingface_hub import ModelCard

    if not path.is_file():
        return None, []
    try:
        data = ModelCard.load(path).data
    except Exception as error:  # YAML's errors are of a class of their own
        said = " ".join(str(error).split())
        raise ValueError(f"{path}: the metadata at its start cannot be read; mend or remove it ({said}).") from error
    return data.model_name, list(data.eval_results or [])


def push(
    folder: str | os.PathLike[str],
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    revision: str | None = None,
    exist_ok: bool = False,
    card: str | os.PathLike[str] | None = None,
) -> str:
    """Pushes a checkpoint folder with its model card to the Hub, in one commit.

    Only the files of the checkpoint are sent, no logs or step checkpoints beside them. A README.md in the folder is
    sent as it is; without one, a card is written first.

    Args:
        folder: a checkpoint folder.
        repo_id: `USER/NAME`; the repository is made if need be.
        private: whether a new repository is private; by default as the account says. A public one that is there already
            is not pushed to if this is True.
        token: a token with write access; by default the one of `hf auth login` or of `HF_TOKEN`.
        revision: the branch to push to, made if need be; by default `main`.
        exist_ok: push even if the repository already holds files. One that a failed push has left empty needs no leave.
        card: a file that becomes the folder's README.md first; a former one is kept beside it.

    Returns:
        The address of the commit.

    Raises:
        FileNotFoundError, ValueError: the folder is no whole checkpoint, or `repo_id` is no valid name with its owner.
        HubError: no token, no permission, the Hub cannot be reached, or the repository holds files already or is public
            against `private`.
    """
    from huggingface_hub import HfApi, get_token

    folder = Path(folder)
    check_checkpoint(folder)
    if "/" not in repo_id:
        raise ValueError(f"The repository is {repo_id!r}; give its owner too, USER/{repo_id}.")
    if card is not None and Path(card).resolve() != (folder / "README.md").resolve():
        keep_former_card(folder)
        shutil.copyfile(card, folder / "README.md")
    elif not (folder / "README.md").is_file():
        write_model_card(folder, repo_id)
    if token is None and get_token() is None:
        raise HubError("There is no token for the Hub: run `hf auth login`, or set HF_TOKEN.")
    names = [entry for entry in folder.iterdir() if is_owned(entry.name, CHECKPOINT_FILES)]
    patterns = ["README.md", *(f"{entry.name}/*" if entry.is_dir() else entry.name for entry in names)]

    api = HfApi(token=token)
    with _hub_errors(api.endpoint, repo_id):
        api.whoami()  # a bad token, or no connection, shows here at once; later calls try for long
        present = _files_on_hub(api, repo_id, revision) - {".gitattributes"}
        if present and not exist_ok:
            raise HubError(
                f"{repo_id} exists and holds {len(present)} files; give exist_ok (--exist-ok) to replace them, "
                "or push to another name."
            )
        api.create_repo(repo_id, private=private, exist_ok=True)
        if private and api.model_info(repo_id).private is False:
            raise HubError(
                f"{repo_id} was there already and is public; make it private on the Hub, or take another name."
            )
        if revision is not None:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            allow_patterns=patterns,
            # An older export may have had other files.
            delete_patterns=[*CHECKPOINT_FILES, "[12]_Pooling/*", "[12]_Normalize/*", f"{TARGET_TOKENIZER}/*"],
            revision=revision,
            commit_message="Push a checkpoint of hf_meanmax",
        )
    return commit.commit_url


def keep_former_card(folder: Path) -> None:
    """Copies a folder's README.md, if there is one, to the first free README.md.1, README.md.2, ..."""
    readme = folder / "README.md"
    if not readme.is_file():
        return
    places = (readme.with_name(f"README.md.{number}") for number in itertools.count(1))
    former = shutil.copyfile(readme, next(place for place in places if not place.exists()))
    print(f"the former card is kept as {former}.", file=sys.stderr)


def _files_on_hub(api: Any, repo_id: str, revision: str | None) -> set[str]:
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        return set(api.list_repo_files(repo_id, revision=revision))
    except (RepositoryNotFoundError, RevisionNotFoundError):
        return set()


@contextmanager
def _hub_errors(endpoint: str, repo_id: str) -> Iterator[None]:
    """Turns the errors of huggingface_hub into a `HubError` of one line."""
    from huggingface_hub.errors import HfHubHTTPError, HTTPError, OfflineModeIsEnabled  # type: ignore[attr-defined]

    try:
        yield
    except HfHubHTTPError as error:
        status = error.response.status_code
        said = " ".join((error.server_message or str(error)).split())
        if status == 401:
            reason = "the Hub does not accept the token; run `hf auth login`, or set HF_TOKEN"
        elif status == 403:
            reason = "the token may not write there; take one with write access, or another name"
        else:
            reason = f"the Hub answered {status}; try again"
        raise HubError(f"{repo_id} was not pushed: {reason} ({said}).") from error
    except OfflineModeIsEnabled as error:
        raise HubError(f"{repo_id} was not pushed: HF_HUB_OFFLINE is set; unset it and try again.") from error
    except (HTTPError, ConnectionError, TimeoutError) as error:
        said = " ".join(str(error).split())
        raise HubError(f"{repo_id} was not pushed: no connection to {endpoint} ({said}); try again.") from error


_ROWS = {"max": "the maximum over the tokens", "mean": "the mean over the tokens", "last": "the last state"}


def _describe_data(args: dict[str, Any]) -> str:
    corpus = args.get("corpus") or args.get("train")
    if not corpus:
        return "Not recorded with this checkpoint."
    if corpus in ("docstrings", ["docstrings"]):
        return "English sentences from the docstrings of the Python standard library and of installed packages."
    sources = [corpus] if isinstance(corpus, str) else corpus
    return (
        ("Texts of " if args.get("train") else "Sentences of ")
        + ", ".join(f"`{Path(str(source)).name}`" for source in sources)
        + "."
    )


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
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
    for path in folder.glob("model*.safetensors"):
        with safe_open(path, framework="pt") as weights:
            names = weights.keys()
            count += sum(math.prod(weights.get_slice(name).get_shape()) for name in names)
    return count
