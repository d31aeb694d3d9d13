"""The settings of a run that are fields of its model's configuration, and those that an initial model fixes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from transformers import PreTrainedConfig

from hf_meanmax.checkpoint.folder import TARGET_TOKENIZER, check_checkpoint, is_classifier
from hf_meanmax.checkpoint.location import checkpoint_folder
from hf_meanmax.checkpoint.sentence_transformer import saved_normalization
from hf_meanmax.files import Json
from hf_meanmax.modeling.configuration_base import LatentConfig
from hf_meanmax.tokenization.tokenizers import WORDPIECE

# Configuration fields that may differ from those of the initial model.
_RUN_SETTINGS = {"embedding_dropout", "attention_dropout", "hidden_dropout", "label_smoothing", "contrastive_size"}
# Other settings that only a new model has.
OF_NEW_MODELS = {
    "tokenizer", "target_tokenizer", "lowercase", "min_frequency", "source_vocab_size", "word_vectors",
    "word_vector_epochs", "word_vector_scale", "output_from_words", "frequency_bias",
}  # fmt: skip
# Values of these that are accepted with an initial model too, since they change nothing.
_ASKS_FOR_NOTHING = (("word_vectors", "none"), ("output_from_words", False), ("frequency_bias", False))


def model_fields(config: type[LatentConfig]) -> Json:
    """Names and types of the configuration fields that a run may set; ids and input sizes follow from the tokenizer."""
    inherited = set(PreTrainedConfig.__dataclass_fields__)
    derived = {"input_vocab_size", "separate_vocabularies", "teacher_size", "is_encoder_decoder"}
    derived |= {"decoder_start_token_id", "embedding_dim", "embedder", "normalize_embeddings", "latent_names"}
    ids = {"pad_token_id", "unk_token_id", "bos_token_id", "eos_token_id"}
    left_out = inherited | derived | ids | set(config.fixed_fields)
    return {f.name: f.type for f in dataclasses.fields(config) if f.name not in left_out}


def settings_of(initial_model: str, model: Json) -> Json:
    """The settings of a run that follow from the checkpoint that it starts from.

    Args:
        initial_model: the checkpoint.
        model: the run's own configuration fields, of which only dropouts and other training settings are kept.

    Returns:
        `family`, `model`, `tokenizer`, `target_tokenizer`, `word_vectors`, `normalize`.

    Raises:
        FileNotFoundError, ValueError: as [`~hf_meanmax.checkpoint.folder.check_checkpoint`].
    """
    folder, config = _read(initial_model)
    if (config.input_vocab_size or 0) > config.vocab_size and not config.separate_vocabularies:
        raise ValueError(
            f"`initial_model` {initial_model!r} was given words by `hf-meanmax expand`, which its decoder does not "
            "know. Start from the model that it was made from, and expand the new one."
        )
    if is_classifier(config):
        raise ValueError(
            f"`initial_model` is {initial_model!r}, a classifier, which has no decoder. Start from the model that it "
            "was made from."
        )
    names = {*model_fields(type(config)), *({"latent_names"} & {f.name for f in dataclasses.fields(config)})}
    kept = {name: getattr(config, name) for name in sorted(names - _RUN_SETTINGS)}
    own = {name: value for name, value in model.items() if name in _RUN_SETTINGS}
    return {
        "family": config.model_type,
        "model": {**kept, **own},
        "tokenizer": str(folder),
        "target_tokenizer": str(folder / TARGET_TOKENIZER) if config.separate_vocabularies else "",
        "word_vectors": "",
        "normalize": saved_normalization(folder) or "none",
    }


def refuse_new_model(initial_model: str, given: Json) -> None:
    """Checks that options do not contradict the initial model of a run.

    Args:
        initial_model: the checkpoint.
        given: the options of the command line; those of a recipe are ignored instead.

    Raises:
        ValueError: one contradicts it.
    """
    config = _read(initial_model)[1]
    fixed = {*model_fields(type(config)), *OF_NEW_MODELS, "family"} - _RUN_SETTINGS
    for name, value in given.items():
        if (name, value) in _ASKS_FOR_NOTHING:
            continue
        if name in fixed and value != getattr(config, "model_type" if name == "family" else name, None):
            raise ValueError(
                f"`{name}` is {value!r}, which is for a new model; the run starts from {initial_model!r}, whose "
                "settings and words hold. Leave it out."
            )


def refuse_new_tokenizer(settings: Json, given: Json) -> None:
    """Checks that options for training a tokenizer are not given with an existing one.

    Args:
        settings: the run's settings.
        given: the options of the command line; those of a recipe are ignored instead.

    Raises:
        ValueError: one is.
    """
    words = settings.get("word_vectors", "")
    # These options choose the words that the teacher encodes.
    if words == "teacher" or (settings.get("tokenizer") == WORDPIECE and words in ("", "none", "train")):
        return
    tokenizers = [name for name in (settings.get("tokenizer", "word"), settings.get("target_tokenizer")) if name]
    there = [name for name in tokenizers if name == WORDPIECE or (Path(str(name)) / "tokenizer.json").is_file()]
    fixed: Json = {"source_vocab_size": 0} if settings.get("tokenizer") in there else {}
    if len(there) == len(tokenizers):
        fixed |= {"vocab_size": None, "min_frequency": 1}
        # With wordpiece, `lowercase` still applies to the text.
        fixed |= {} if WORDPIECE in there else {"lowercase": None}
    for name, free in fixed.items():
        if given.get(name, free) != free:
            raise ValueError(
                f"`{name}` is {given[name]!r}, which is for a new tokenizer; `tokenizer` {there[0]!r} has its words "
                "already. Leave one of them out."
            )


def _read(initial_model: str) -> tuple[Path, LatentConfig]:
    folder = checkpoint_folder(initial_model)
    return folder, check_checkpoint(folder)
