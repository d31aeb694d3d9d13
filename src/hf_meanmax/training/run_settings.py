"""The settings that pretraining and fine-tuning share."""

from __future__ import annotations

import dataclasses
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, get_args, get_origin, get_type_hints

from accelerate.tracking import get_available_trackers
from accelerate.utils import LoggerType
from huggingface_hub.errors import StrictDataclassError

from hf_meanmax.checkpoint.card import LOCAL_SETTINGS
from hf_meanmax.families import FAMILIES
from hf_meanmax.fields import check_choice, check_settings, count, expand_home, option
from hf_meanmax.files import EncodingErrors, Json, shared_name
from hf_meanmax.hardware import check_sizes
from hf_meanmax.modeling.configuration_base import LatentConfig

Arguments = TypeVar("Arguments", bound="RunArguments")

# Local settings (see LOCAL_SETTINGS) that name no input.
_WRITTEN = {"output_dir", "cache_dir", "overwrite", "report_to"}


@dataclass
class RunArguments:
    """The settings that pretraining and fine-tuning share.

    `model` holds the settings that change the model's function; the others change only the training. On the command
    line and in a recipe all of them, and the fields of `model`, are flat keys: `--hidden_size 512 --epochs 8`.
    """

    family: str = option("the kind of model to train", "mean_max_aae")
    output_dir: str = option("folder of the result; by default runs/<recipe>", "")
    cache_dir: str = option(
        "what runs share: tokenised corpora, tokenizers, word vectors, a teacher's vectors; by default "
        "~/.cache/hf_meanmax",
        "",
    )
    overwrite: bool = option("start anew in a folder that holds another run", False)
    encoding_errors: EncodingErrors = option("what to do with bytes that are not UTF-8", "strict")
    config_name: str = option("configuration of a data set on the Hub", "")
    text_column: str = option("column of a data set (`translation.en` for a part of one)", "text")
    tokenizer: str = option(
        "word, bpe, unigram, char, wordpiece (the words and pieces of `word_vectors`), or a tokenizer's folder", "word"
    )
    lowercase: bool | None = option("by default words are lower-cased, pieces are not", None)
    min_frequency: int = count("rarer words are unknown", 1)
    word_vectors: str = option(
        "`train` skip-gram vectors on the corpus first, take the `teacher`'s vectors of its words, a file (of "
        "`hf-meanmax vectors`, word2vec or GloVe), or the folder of a static model (`embedding_size` is theirs); "
        "`none`: random ones",
        "",
    )
    word_vector_epochs: int = count("epochs of the skip-gram training", 2)
    word_vector_scale: float = option(
        "rescale word vectors to this root mean square; 0.7 is that of position codes (0: no rescaling)",
        0.7,
        at_least=0,
    )
    gradient_accumulation_steps: int = count("forward passes per optimizer step", 1)
    epochs: float = option("passes over the corpus, where max_steps is 0", 1.0)
    learning_rate: float = option("peak learning rate of Adam", 2e-4, at_least=0)
    lr_schedule: Literal["constant", "linear", "cosine"] = option("decay after the warm-up", "constant")
    warmup_steps: int = option("steps of linear warm-up", 0, at_least=0)
    weight_decay: float = option("weight of Adam's L2 regularisation, or of Muon's decay", 0.0, at_least=0)
    max_grad_norm: float = option("gradient clipping by the global norm (0: none)", 5.0, at_least=0)
    precision: Literal["auto", "bf16", "fp32"] = option("auto: bf16 where the device computes it fast", "auto")
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2", "flex_attention"] = option(
        "auto: eager on a CPU, where it is faster for sentences, sdpa on a GPU", "auto"
    )
    freeze_encoder: bool = option(
        "keep the encoder's weights, and train only the decoder and heads (with a new model: the random control)", False
    )
    seed: int = option("seed of weights, order, noise and dropout", 0, at_least=0, at_most=2**63 - 1)
    normalize: Literal["auto", "none", "rows", "embedding"] = option(
        "L2 normalisation in the SentenceTransformer export (auto: that of the model it starts from, or none)", "auto"
    )
    report_to: str = option("trackers of Accelerate: tensorboard, wandb", "")

    model: Json = option("fields of the family's configuration", {})
    recipe: str = ""

    def __post_init__(self) -> None:
        if self.normalize == "auto":
            self.normalize = "none"
        for name in ("word_vectors", "teacher"):
            if getattr(self, name, "") == "none":
                setattr(self, name, "")
        for name, kind in get_type_hints(type(self)).items():
            value = expand_home(getattr(self, name))
            setattr(self, name, [value] if takes_list(kind) and isinstance(value, str) else value)
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"`{name}` is {value}; it must be a finite number.")
        if self.overwrite and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")):
            raise ValueError(
                "`overwrite` with `--max_restarts` of the launcher would begin anew at each restart. Remove "
                f"{self.output_dir or 'the folder'} first, and leave `overwrite` out."
            )
        check_choice("family", self.family, sorted(FAMILIES))
        self.report_to = ",".join(filter(None, (name.strip() for name in self.report_to.split(","))))
        check_trackers(self.report_to)
        check_settings(self)

    def without_effect(self) -> dict[str, str]:
        """Settings without effect in this run, each with the setting that it needs."""
        unused = {} if self.word_vectors else {"word_vector_scale": "`word_vectors`"}
        if self.word_vectors != "train":
            unused["word_vector_epochs"] = "`word_vectors` 'train'"
        kinds = {self.tokenizer, getattr(self, "target_tokenizer", "") or self.tokenizer}
        if kinds == {"unigram"} and self.word_vectors != "teacher":
            unused["min_frequency"] = "a `tokenizer` of another kind than 'unigram'"
        return unused

    def refuse_without_effect(self, given: Json) -> None:
        """Checks that each given setting has an effect.

        Args:
            given: settings of the command line, not of a recipe; default values are accepted.

        Raises:
            ValueError: one has none.
        """
        defaults = self.defaults()
        for name, needed in self.without_effect().items():
            if name in given and given[name] != {**defaults["model"], **defaults}[name]:
                raise ValueError(f"`{name}` is {given[name]!r}, which has no effect without {needed}. Leave it out.")

    def check_sources(self) -> None:
        """Raises ValueError if an input of the run lies in its output folder, where an output would replace it."""
        place = Path(self.output_dir).resolve()
        for name in sorted(LOCAL_SETTINGS - _WRITTEN):
            value = getattr(self, name, None)
            for source in map(str, filter(None, value if isinstance(value, list) else [value])):
                if Path(source).exists() and place in Path(source).resolve().parents:
                    raise ValueError(
                        f"`{name}` {source!r} lies in `output_dir` {self.output_dir!r}, where what the run writes "
                        "would take its place. Give another `output_dir`."
                    )

    def model_size(self, name: str) -> int:
        """A size in the family's configuration: the run's, or the family's default."""
        return int(self.model.get(name, getattr(FAMILIES[self.family].config, name)))

    def build_config(self, **overrides: object) -> LatentConfig:
        """The family's configuration with the run's model settings; `overrides` come from the tokenizer.

        Raises:
            ValueError: for model settings that do not fit together.
        """
        settings: Json = {**self.model, **overrides}
        check_sizes(settings)
        try:
            return FAMILIES[self.family].config(**settings)
        except StrictDataclassError as error:
            raise ValueError(str(error.__cause__ or error)) from error

    def to_dict(self) -> Json:
        """All settings as plain values."""
        return dataclasses.asdict(self)

    def defaults(self) -> Json:
        """The default of each setting, and under `model` of each field of the family's configuration."""
        own, of_model = (
            {
                field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
                for field in fields
            }
            for fields in (dataclasses.fields(self), dataclasses.fields(FAMILIES[self.family].config))
        )
        return {**own, "model": of_model}

    def to_share(self) -> Json:
        """All settings as in `training_args.json`, which is published with the checkpoint: of local paths only the last
        part."""
        shared = self.to_dict()
        for name in LOCAL_SETTINGS & shared.keys():
            value = shared[name]
            shared[name] = list(map(shared_name, value)) if isinstance(value, list) else shared_name(value)
        return shared


def check_trackers(report_to: str) -> None:
    """Checks that the trackers of a run are known and installed.

    Raises:
        ValueError: Accelerate knows no such tracker.
        ImportError: its package is not installed.
    """
    known = [str(kind) for kind in LoggerType if kind != LoggerType.ALL]
    for name in filter(None, report_to.split(",")):
        if name not in known:
            raise ValueError(f"`report_to` is {report_to!r}; allowed, with commas: {', '.join(known)}.")
        if name not in map(str, get_available_trackers()):
            raise ImportError(f"`report_to` is {report_to!r}, and {name} is not installed: pip install {name}")


def takes_list(kind: object) -> bool:
    """Whether a field of this type is a list, or may be one."""
    return any(get_origin(part) is list for part in (kind, *get_args(kind)))
