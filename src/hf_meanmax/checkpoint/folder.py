"""The checkpoint folder, which loads as encoder, as autoencoder and as SentenceTransformer."""

from __future__ import annotations

import filecmp
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoTokenizer

from hf_meanmax.families import FAMILIES
from hf_meanmax.fields import check_choice
from hf_meanmax.files import Json, check_replaceable, is_owned, read_json, replacing_folder, write_json
from hf_meanmax.hardware import check_sizes, usable_device
from hf_meanmax.modeling.configuration_base import LatentConfig
from hf_meanmax.modeling.configuration_compound_attention import CompoundAttentionConfig
from hf_meanmax.modeling.configuration_embedding_decoder import EmbeddingDecoderConfig
from hf_meanmax.modeling.encoder_model import NO_REPRESENTATION
from hf_meanmax.modeling.storage import stored_names
from hf_meanmax.tokenization.tokenizers import check_end_token

from .location import checkpoint_folder, hint_at_model, packaged_hint
from .sentence_transformer import NORMALIZATIONS, saved_normalization, write_sentence_transformer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Files of a checkpoint. All others in its folder are the user's own: a new save keeps them, and they are never pushed.
CHECKPOINT_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model-*-of-*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "target_tokenizer",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling",
    "[12]_Normalize",
    "training_args.json",
    # The model's code; any other code is the user's own.
    *sorted(path.name for path in (Path(__file__).parents[1] / "modeling").glob("[a-z]*.py")),
)

TARGET_TOKENIZER, ONNX_FOLDER = "target_tokenizer", "onnx"
_ONNX_FILES = ("*.onnx", "*.onnx.data")
_CLASSIFIER = "AutoModelForSequenceClassification"
# The settings of a run, beside its checkpoint `model`.
SETTINGS_FILE = "settings.json"


def save_checkpoint(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | os.PathLike[str],
    *,
    target_tokenizer: PreTrainedTokenizerBase | None = None,
    normalize: str | None = None,
    remote_code: bool = True,
    training_args: Json | None = None,
    like: Path | None = None,
) -> Path:
    """Writes a checkpoint folder, which transformers' Auto classes and `SentenceTransformer` load.

    The folder is written beside `folder` and renamed, so a crash or a full disk leaves an older checkpoint whole. Files
    in `folder` that belong to no checkpoint (logs, a README.md) are kept, but not ONNX models of the older weights.
    Weights are safetensors only.

    The SentenceTransformer consists of stock modules, and gives the model's own embedding. Its length limit is the
    tokenizer's `model_max_length` if that is set, and otherwise it cuts no text (sentence-transformers' own default
    would be `max_position_embeddings`). For a translator without a fixed representation it raises an error when it
    encodes; a decoder of another embedder's vectors has no SentenceTransformer part.

    Args:
        model: an autoencoder with its decoder, or a classifier.
        tokenizer: its tokenizer, which ends every text with the end token.
        folder: the folder to write.
        target_tokenizer: the tokenizer of the decoder's texts, for a model with a decoder and
            `separate_vocabularies`; it is saved in the sub-folder `target_tokenizer`.
        normalize: scaling of `SentenceTransformer.encode`: None gives the raw embedding, which `generate` decodes;
            `"rows"` scales each latent row to unit length, as the released code of the mean-max autoencoder does;
            `"embedding"` scales the whole vector. `pooler_output` stays raw in every case.
        remote_code: whether to save the model's code in the folder, so that it loads with `trust_remote_code=True`
            where hf_meanmax is not installed.
        training_args: description of the run, saved as `training_args.json`.
        like: a checkpoint folder from which the SentenceTransformer takes prompts, length limit, similarity function
            and `truncate_dim`.

    Returns:
        The folder.

    Raises:
        TypeError: an encoder alone, or `training_args` that JSON cannot represent.
        ValueError: an unknown `normalize`, or a tokenizer that does not fit the model.
        FileExistsError: `folder` is no checkpoint of this package, but holds files with names that a checkpoint uses.
        OSError: no permission or no space left.
    """
    _check_model(model, tokenizer, target_tokenizer)
    _check_normalization(normalize, model.config)
    args_text = None if training_args is None else json.dumps(training_args, indent=2, ensure_ascii=False) + "\n"
    folder = check_free(Path(folder))
    with replacing_checkpoint(folder) as partial:
        with saving_code(model, remote_code):
            model.save_pretrained(partial)
        _save_tokenizer(tokenizer, partial)
        if target_tokenizer is not None:
            _save_tokenizer(target_tokenizer, partial / TARGET_TOKENIZER)
        write_sentence_transformer(partial, model.config, tokenizer, normalize, like)
        if args_text is not None:
            (partial / "training_args.json").write_text(args_text, encoding="utf-8")
    return folder


def _save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    tokenizer.save_pretrained(folder)
    settings = read_json(folder / "tokenizer_config.json")
    # These settings record only how the tokenizer was loaded on this machine.
    kept = {name: value for name, value in settings.items() if name not in ("is_local", "local_files_only")}
    write_json(folder / "tokenizer_config.json", kept, indent=2, ensure_ascii=False)


@contextmanager
def replacing_checkpoint(folder: Path) -> Iterator[Path]:
    """[`replacing_folder`] for a checkpoint folder, which must be free. If weights, configuration, tokenizer, prompts
    or length limit change, the ONNX models in the folder, exported from the older checkpoint, are deleted; stderr
    reports it."""
    with replacing_folder(folder, CHECKPOINT_FILES) as partial:
        yield partial
        exported = [path for pattern in _ONNX_FILES for path in (folder / ONNX_FOLDER).glob(pattern)]
        if not exported or not is_own_checkpoint(folder):
            return
        patterns = ("*.safetensors", "tokenizer*.json", "modules.json", "*sentence*.json")
        read = {path.name for place in (folder, partial) for each in patterns for path in place.glob(each)}
        before, after = (read_json(place / "config.json") | {"transformers_version": ""} for place in (folder, partial))
        if before == after and len(filecmp.cmpfiles(folder, partial, read, shallow=False)[0]) == len(read):
            return
        for path in exported:
            path.unlink()
        print(
            f"{folder / ONNX_FOLDER}: the models in it were of the older model and are removed; `hf-meanmax "
            f"export-onnx {folder}` makes new ones.",
            file=sys.stderr,
        )


def _check_normalization(normalize: str | None, config: LatentConfig) -> None:
    check_choice("normalize", normalize, NORMALIZATIONS)
    if normalize is not None:
        require_text_encoder(config, f"normalize is {normalize!r}, but this model")


def check_free(folder: Path) -> Path:
    """Returns the folder; checks that a new checkpoint would replace only files of an older one in it."""
    check_replaceable(folder)
    if not folder.is_dir() or is_own_checkpoint(folder, if_damaged=False):
        return folder
    taken = sorted(entry.name for entry in folder.iterdir() if is_owned(entry.name, CHECKPOINT_FILES))
    if taken:
        raise FileExistsError(
            f"{folder} is no checkpoint of this package, but has files that one would replace ({', '.join(taken)}); "
            "name another folder."
        )
    return folder


def load_checkpoint(
    folder: str | os.PathLike[str], **kwargs: object
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads the autoencoder (in evaluation mode) and the tokenizer from a checkpoint folder or a repository on the Hub.

    Args:
        folder: the folder, or the name of a repository.
        kwargs: passed to the model's `from_pretrained`, for instance `dtype`.

    Raises:
        FileNotFoundError, ValueError: see `check_checkpoint`; also if the checkpoint is a classifier.
    """
    path = checkpoint_folder(folder)
    config = check_checkpoint(path)
    model_class = _saved_class(config)
    if is_classifier(config):
        raise ValueError(
            f"{path} holds a {model_class.__name__}, which has no decoder. Load it with "
            "AutoModelForSequenceClassification, or give the checkpoint that it was fine-tuned from."
        )
    with naming_damage(path):
        model = model_class.from_pretrained(path, **kwargs)
        return model.eval(), AutoTokenizer.from_pretrained(path)


def load_decoder(
    folder: str | os.PathLike[str], device: torch.device | str | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
    """Loads a model that decodes, its tokenizer, and the tokenizer of the generated text.

    Args:
        folder: as for [`load_checkpoint`].
        device: the device of the model (default: an accelerator if there is one).

    Raises:
        FileNotFoundError, ValueError: as [`load_checkpoint`], a model without a decoder, or an unusable device.
    """
    device = usable_device(device)
    model, tokenizer = load_checkpoint(folder)
    if not model.config.has_decoder:
        raise ValueError(
            f"{folder} has no decoder: it gives vectors alone. Train one along (`--objective reconstruction`), or one "
            f"for its vectors: hf-meanmax pretrain embedding-decoder --embedder {folder}"
        )
    return model.to(device), tokenizer, load_target_tokenizer(folder, model.config, tokenizer)


@contextmanager
def naming_damage(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Turns the errors of a damaged file, such as a value of the wrong type, into one that names the folder.

    Raises:
        ValueError: a file of the folder is damaged.
    """
    try:
        yield
    except (OSError, ValueError, ImportError, RuntimeError, MemoryError):
        raise
    except Exception as error:  # tokenizers has no class of its own
        raise ValueError(f"A file in {folder} is damaged: {' '.join(str(error).split())[:300]}.") from error


def require_text_encoder(config: LatentConfig, what: str) -> None:
    """Checks that a model encodes texts.

    Args:
        config: its configuration.
        what: name of the model in the error.

    Raises:
        ValueError: the model decodes the vectors of another embedder.
    """
    if isinstance(config, EmbeddingDecoderConfig):
        raise ValueError(
            f"{what} decodes the vectors of {config.embedder_name} and has no text encoder of its own. Give "
            f"{config.embedder_name} texts, and this model the vectors (`hf-meanmax decode`)."
        )


def require_embedding(config: LatentConfig, what: str) -> None:
    """Checks that a model encodes texts to vectors.

    Args:
        config, what: see [`require_text_encoder`][].

    Raises:
        ValueError: the model decodes the vectors of another embedder, or has no latent rows.
    """
    require_text_encoder(config, what)
    if not config.has_latents:
        raise ValueError(f"{what}: {NO_REPRESENTATION}")


def load_target_tokenizer(
    folder: str | os.PathLike[str], config: LatentConfig, tokenizer: PreTrainedTokenizerBase
) -> PreTrainedTokenizerBase:
    """The tokenizer of the generated text: for a model with two vocabularies the one in the sub-folder
    `target_tokenizer`, else `tokenizer` itself."""
    if not config.separate_vocabularies:
        return tokenizer
    return AutoTokenizer.from_pretrained(checkpoint_folder(folder) / TARGET_TOKENIZER)


def saved_training_args(folder: str | os.PathLike[str]) -> Json:
    """The content of a checkpoint's `training_args.json`; empty if there is none.

    Raises:
        ValueError: the file is damaged or holds something else.
    """
    path = Path(folder) / "training_args.json"
    if not path.is_file():
        return {}
    args: Json = _read_json(path)
    return args


def learnt_objective(config: LatentConfig, args: Json) -> str:
    """The objective in a checkpoint's `training_args.json`, or else the usual one of its family."""
    is_translator = config.model_type == CompoundAttentionConfig.model_type
    return str(args.get("objective", "translation" if is_translator else "reconstruction"))


def require_reconstruction(folder: str | os.PathLike[str], remedies: Mapping[str, str] | None = None) -> Json:
    """The training arguments of a checkpoint that learnt to reconstruct its input.

    Args:
        folder: the checkpoint.
        remedies: what to do with a model of another objective, by the objective.

    Raises:
        ValueError: it learnt something else.
    """
    path = checkpoint_folder(folder)
    trained = saved_training_args(path)
    objective = learnt_objective(check_checkpoint(path, encoder_alone=True), trained)
    if objective == "reconstruction":
        return trained
    known = {"none": "it has no decoder. Take a model that has one, for instance mini-en", **(remedies or {})}
    remedy = known.get(objective, "it does not reconstruct its input. Take a model that does")
    raise ValueError(f"{os.fspath(folder)} learnt by the objective {objective!r}: {remedy}.")


def settings_of_run(folder: str | os.PathLike[str]) -> Json:
    """The settings, with paths as given, of the run in whose folder a checkpoint is `model`; empty for any other.

    Raises:
        ValueError: the file of the settings is damaged.
    """
    place = Path(folder).absolute()
    path = place.parent / SETTINGS_FILE
    if place.name != "model" or not path.is_file():
        return {}
    settings: Json = read_json(path)
    return settings


def check_checkpoint(folder: str | os.PathLike[str], encoder_alone: bool = False) -> LatentConfig:
    """Checks that a folder is a whole checkpoint of this package, without loading its weights.

    Args:
        folder: the folder.
        encoder_alone: accept an encoder alone, as `SentenceTransformer.save_pretrained` writes it.

    Returns:
        Its configuration.

    Raises:
        FileNotFoundError: the folder or one of its files is missing.
        ValueError: a file is damaged or cut short, belongs to another family of models, or does not fit the others; or
            the folder holds an encoder alone. The message names the file and what was expected.
    """
    folder = Path(folder)
    if not folder.is_dir():
        old = folder.with_name(f".{folder.name}.old")
        hint = f" A save was interrupted: rename {old} to {folder}." if old.is_dir() else ""
        raise FileNotFoundError(f"No checkpoint folder {str(folder)!r}.{hint or packaged_hint(folder)}")
    config = _read_config(folder)
    model_class = _saved_class(config)
    is_encoder = is_encoder_alone(config)
    if is_encoder and not encoder_alone:
        raise ValueError(
            f"{folder} holds an encoder alone ({model_class.__name__}), which can encode but not decode, be fine-tuned "
            "or be pushed; give the checkpoint that it was made from."
        )
    with naming_damage(folder):
        _check_weights(folder, config, model_class)
        if (folder / "generation_config.json").is_file():
            _read_json(folder / "generation_config.json")
        _check_tokenizer_files(folder, config.input_vocab_size or 0, "input_vocab_size")
        if config.separate_vocabularies and not is_encoder and not is_classifier(config):
            _check_tokenizer_files(folder / TARGET_TOKENIZER, config.vocab_size, "vocab_size")
        if config.reads_text:
            _check_modules(folder)
    return config


def saved_auto_class(config: LatentConfig) -> str:
    """The name of the Auto class of the model in a checkpoint with this configuration."""
    default: str = config.full_auto_class
    return config.auto_class_names.get((config.architectures or [""])[0], default)


def is_encoder_alone(config: LatentConfig) -> bool:
    """Whether a saved configuration is for an encoder without a decoder or a classifier."""
    return saved_auto_class(config) == "AutoModel"


def is_classifier(config: LatentConfig) -> bool:
    """Whether a saved configuration is for an encoder with a classifier."""
    return saved_auto_class(config) == _CLASSIFIER


def _check_modules(folder: Path) -> None:
    modules_file = folder / "modules.json"
    for entry in _read_json(modules_file, list):
        if not isinstance(entry, dict) or not all(isinstance(entry.get(name), str) for name in ("path", "type")):
            raise ValueError(f"{modules_file}: expected a list of modules with `path` and `type`, found {entry!r}.")
        _read_json(folder / entry["path"] / ("config.json" if entry["path"] else "sentence_bert_config.json"))
    saved_normalization(folder)  # raises an error if it cannot be read


def _check_tokenizer_files(folder: Path, most: int, name: str) -> None:
    path = folder / "tokenizer.json"
    model = _read_json(path).get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    number = len(vocabulary) if isinstance(vocabulary, dict | list) else 0
    if not 0 < number <= most:
        raise ValueError(f"{path}: {number} tokens, expected 1 to {most} (`{name}` of config.json).")
    _read_json(folder / "tokenizer_config.json")


def is_own_checkpoint(folder: str | os.PathLike[str], if_damaged: bool = True) -> bool:
    """Whether a folder is a checkpoint of this package (whole or not) by its config.json; `if_damaged` is returned for
    a config.json that cannot be read."""
    path = Path(folder) / "config.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    except ValueError:
        return if_damaged
    return isinstance(content, dict) and content.get("model_type") in list(FAMILIES)


def model_around(folder: Path) -> Path | None:
    """The nearest folder, among `folder` and its parents, that holds a model of this package, transformers or
    sentence-transformers; None if there is none."""
    for place in (folder, *folder.absolute().parents):
        if (place / "modules.json").is_file():
            return place
        with suppress(OSError, ValueError):
            if "model_type" in read_json(place / "config.json"):
                return place
    return None


def _read_json(path: Path, kind: type = dict) -> Any:
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing: the folder is no whole checkpoint; hf_meanmax.checkpoint.folder.save_checkpoint "
            f"writes all of it.{hint_at_model(path.parent)}"
        )
    return read_json(path, kind)


def _read_config(folder: Path) -> LatentConfig:
    path = folder / "config.json"
    content = _read_json(path)
    model_type = content.get("model_type")
    if model_type not in list(FAMILIES):  # a list, since model_type may be unhashable
        raise ValueError(
            f"{path}: model_type is {model_type!r}, a family that hf_meanmax does not have; expected one of "
            f"{', '.join(map(repr, FAMILIES))}."
        )
    names = content.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{path}: `architectures` is {names!r}; expected a list with the name of a class.")
    try:
        check_sizes(content)
        config: LatentConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        return config
    except Exception as error:  # strict configurations raise classes of their own
        raise ValueError(f"{path}: {error.__cause__ or error}") from error


def _saved_class(config: LatentConfig) -> type[PreTrainedModel]:
    """The class of the model in a checkpoint with this configuration: a whole model, or an encoder alone."""
    saved = (config.architectures or [""])[0]
    return FAMILIES[config.model_type].model_class(saved)


def weight_files(folder: Path) -> list[Path]:
    """The files of a checkpoint's weights. As in transformers, `model.safetensors` takes precedence over an index of
    shards, which an older save may have left.

    Raises:
        ValueError: the index is damaged.
    """
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file() or not index.is_file():
        return [whole]
    names = set((_read_json(index).get("weight_map") or {}).values())
    if not names:
        raise ValueError(f"{index}: `weight_map` names no file; expected that of each weight.")
    return sorted(folder / name for name in names)


def _check_weights(folder: Path, config: LatentConfig, model_class: type[PreTrainedModel]) -> None:
    files = weight_files(folder)
    found: dict[str, tuple[Path, tuple[int, ...]]] = {}
    for path in files:
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing; expected the weights of {type(config).__name__}.")
        try:
            with safe_open(path, framework="pt") as weights:
                stored = stored_names(list(weights.keys()))
                found |= {
                    name: (path, tuple(weights.get_slice(parts[0]).get_shape())) for name, parts in stored.items()
                }
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged or cut short: expected whole safetensors weights ({error}).") from None
    with torch.device("meta"):
        model = model_class(config)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    tied = set(model._tied_weights_keys or ()) if config.tie_word_embeddings else set()
    missing = sorted(set(expected) - set(found) - tied)
    if missing:
        raise ValueError(
            f"{files[0]}: {len(missing)} of {len(expected)} tensors of {type(model).__name__} are missing, "
            f"{missing[0]!r} among them."
        )
    for name, (path, shape) in found.items():
        if name in expected and shape != expected[name]:
            raise ValueError(f"{path}: {name!r} is {shape}, expected {expected[name]} by config.json.")


def _check_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, target_tokenizer: PreTrainedTokenizerBase
) -> None:
    """Checks that a model is a whole model of this package, and that the tokenizers fit it."""
    if not getattr(getattr(model, "config", None), "auto_classes", None):
        raise TypeError(f"save_checkpoint saves models of hf_meanmax; got {type(model).__name__}.")
    # The class with the decoder comes first.
    classes = model.config.auto_class_names
    names = [name for name, of in classes.items() if of not in ("AutoConfig", "AutoModel")]
    if type(model).__name__ not in names:
        raise TypeError(
            f"The decoder or the classifier is part of a checkpoint; got {type(model).__name__}, expected "
            f"{' or '.join(names)}."
        )
    config = model.config
    _check_tokenizer(tokenizer, config.input_vocab_size, config)
    if (target_tokenizer is not None) != (
        config.separate_vocabularies and classes[type(model).__name__] != _CLASSIFIER
    ):
        raise ValueError(
            f"`separate_vocabularies` is {config.separate_vocabularies} and target_tokenizer "
            f"{'given' if target_tokenizer is not None else 'left out'}; a model of two vocabularies, and no other, "
            "has a target tokenizer."
        )
    if target_tokenizer is not None:
        _check_tokenizer(target_tokenizer, config.vocab_size, config)


def _check_tokenizer(tokenizer: PreTrainedTokenizerBase, most: int, config: LatentConfig) -> None:
    if len(tokenizer) > most:
        name = "input_vocab_size" if most == config.input_vocab_size else "vocab_size"
        raise ValueError(
            f"The tokenizer has {len(tokenizer)} tokens, the model knows {most} (`{name}`): they do not belong "
            "together."
        )
    for name in ("pad_token_id", "eos_token_id"):
        if getattr(tokenizer, name) != getattr(config, name):
            raise ValueError(
                f"`{name}` is {getattr(tokenizer, name)} in the tokenizer and {getattr(config, name)} in the model's "
                "configuration; they must be equal."
            )
    check_end_token(tokenizer)


@contextmanager
def saving_code(model: PreTrainedModel, wanted: bool) -> Iterator[None]:
    """Inside the block, saving the model also saves its code and an `auto_map`, or neither if not `wanted`."""
    cls, config = type(model), model.config
    was_registered, auto_map = cls._auto_class, getattr(config, "auto_map", None)
    try:
        if wanted:
            config.auto_map = dict(config.auto_classes)
        else:
            cls._auto_class = None
            if auto_map is not None:
                del config.auto_map
        yield
    finally:
        cls._auto_class = was_registered
        if auto_map is not None:
            config.auto_map = auto_map
        elif getattr(config, "auto_map", None) is not None:
            del config.auto_map
