"""The settings that pretraining and fine-tuning share."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Literal, TypeVar, get_args, get_origin, get_type_hints

from accelerate.tracking import get_available_trackers
from accelerate.utils import LoggerType
from huggingface_hub.errors import StrictDataclassError

from hf_meanmax.checkpoint.card import LOCAL_SETTINGS
from hf_meanmax.families import FAMILIES
from hf_meanmax.files import Json, shared_name
from hf_meanmax.hardware import check_sizes
from hf_meanmax.modeling.configuration_base import LatentConfig

Arguments = TypeVar("Arguments", bound="RunArguments")


@dataclass
class RunArguments:
    """The settings that pretraining and fine-tuning share.

    What changes the model's function stands in `model`, the rest changes only the training. On the command line and in
    a recipe all of them, and the fields of the family's configuration, are flat keys: `--hidden_size 512 --epochs 8`.
    """

    family: str = field(default="mean_max_aae", metadata={"help": "the kind of model to train"})
    output_dir: str = field(default="", metadata={"help": "folder of the result; by default runs/<recipe>"})
    cache_dir: str = field(default="", metadata={"help": "tokenised corpora; by default ~/.cache/hf_meanmax"})
    overwrite: bool = field(default=False, metadata={"help": "start anew in a folder that holds another run"})
    encoding_errors: Literal["strict", "replace", "ignore"] = field(
        default="strict", metadata={"help": "what to do with bytes that are not UTF-8"}
    )
    config_name: str = field(default="", metadata={"help": "configuration of a data set on the Hub"})
    text_column: str = field(
        default="text", metadata={"help": "column of a data set (`translation.en` for a part of one)"}
    )
    tokenizer: str = field(
        default="word",
        metadata={
            "help": "word, bpe, unigram, char, wordpiece (the words and pieces of `word_vectors`), or a tokenizer's "
            "folder"
        },
    )
    lowercase: bool | None = field(default=None, metadata={"help": "by default words are lower-cased, pieces are not"})
    min_frequency: int = field(default=1, metadata={"help": "rarer words are unknown"})
    word_vectors: str = field(
        default="",
        metadata={
            "help": "`train` skip-gram vectors on the corpus first, take the `teacher`'s vectors of its words, a file "
            "(of `hf-meanmax vectors`, word2vec or GloVe), or the folder of a static model (`embedding_size` is "
            "theirs); `none`: random ones"
        },
    )
    word_vector_epochs: int = field(default=2, metadata={"help": "epochs of the skip-gram training"})
    word_vector_scale: float = field(
        default=0.7,
        metadata={"help": "root mean square that word vectors are scaled to, that of position codes (0: as they are)"},
    )
    gradient_accumulation_steps: int = field(default=1, metadata={"help": "forward passes per optimizer step"})
    epochs: float = field(default=1.0, metadata={"help": "passes over the corpus, where max_steps is 0"})
    learning_rate: float = field(default=2e-4, metadata={"help": "peak learning rate of Adam"})
    lr_schedule: Literal["constant", "linear", "cosine"] = field(
        default="constant", metadata={"help": "decay after the warm-up"}
    )
    warmup_steps: int = field(default=0, metadata={"help": "steps of linear warm-up"})
    weight_decay: float = field(
        default=0.0, metadata={"help": "weight of Adam's L2 regularisation, or of Muon's decay"}
    )
    max_grad_norm: float = field(default=5.0, metadata={"help": "gradient clipping by the global norm (0: none)"})
    precision: Literal["auto", "bf16", "fp32"] = field(
        default="auto", metadata={"help": "auto: bf16 where the device computes it fast"}
    )
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2", "flex_attention"] = field(
        default="auto", metadata={"help": "auto: eager on a CPU, where it is faster for sentences, sdpa on a GPU"}
    )
    freeze_encoder: bool = field(default=False, metadata={"help": "train only the decoder (the random control)"})
    seed: int = field(default=0, metadata={"help": "seed of weights, order, noise and dropout"})
    normalize: Literal["none", "rows", "embedding"] = field(
        default="none", metadata={"help": "L2 normalisation in the SentenceTransformer export"}
    )
    report_to: str = field(default="", metadata={"help": "trackers of Accelerate: tensorboard, wandb"})

    model: Json = field(default_factory=dict, metadata={"help": "fields of the family's configuration"})
    recipe: str = ""

    def __post_init__(self) -> None:
        if self.word_vectors == "none":
            self.word_vectors = ""
        for name, kind in get_type_hints(type(self)).items():
            if takes_list(kind):
                value = getattr(self, name)
                setattr(self, name, [value] if isinstance(value, str) else value)
            allowed = get_args(kind)
            if getattr(kind, "__origin__", None) is Literal and getattr(self, name) not in allowed:
                raise ValueError(f"`{name}` is {getattr(self, name)!r}; allowed: {', '.join(map(repr, allowed))}.")
            if isinstance(getattr(self, name), float) and not math.isfinite(getattr(self, name)):
                raise ValueError(f"`{name}` is {getattr(self, name)}; it must be a finite number.")
        if self.family not in FAMILIES:
            raise ValueError(f"`family` is {self.family!r}; allowed: {', '.join(sorted(FAMILIES))}.")
        check_trackers(self.report_to)
        if self.seed >= 2**63:
            raise ValueError(f"`seed` is {self.seed}; it must be less than 2**63.")
        self.check_least(
            min_frequency=1, word_vector_epochs=1, gradient_accumulation_steps=1, warmup_steps=0, seed=0,
            word_vector_scale=0, weight_decay=0, max_grad_norm=0, learning_rate=0,
        )  # fmt: skip

    def check_least(self, **least: float) -> None:
        """Raises ValueError for a setting that is smaller than it may be."""
        for name, smallest in least.items():
            # NaN is no less than anything.
            if not getattr(self, name) >= smallest:
                raise ValueError(f"`{name}` is {getattr(self, name)}; it must be {smallest} or more.")

    def check_most(self, **most: float) -> None:
        """Raises ValueError for a setting that is larger than any machine takes."""
        for name, largest in most.items():
            if getattr(self, name) > largest:
                raise ValueError(f"`{name}` is {getattr(self, name):,}; it may be {largest:,} at most.")

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

    def to_share(self) -> Json:
        """All settings as `training_args.json` holds them, which goes where the checkpoint goes: of the paths of this
        machine the last part alone."""
        shared = self.to_dict()
        for name in local_settings(type(self)):
            value = shared[name]
            shared[name] = list(map(shared_name, value)) if isinstance(value, list) else shared_name(value)
        return shared


def check_trackers(report_to: str) -> None:
    """Checks that the trackers that a run reports to are there.

    Raises:
        ValueError: Accelerate knows no such tracker.
        ImportError: its package is not installed.
    """
    known = [str(kind) for kind in LoggerType if kind != LoggerType.ALL]
    for name in filter(None, report_to.split(",")):
        if name not in known:
            raise ValueError(f"`report_to` is {report_to!r}; allowed, with commas: {', '.join(known)}.")
        if name not in map(str, get_available_trackers()):
            remedy = '"hf_meanmax[trackers]"' if name in ("tensorboard", "wandb") else name
            raise ImportError(f"`report_to` is {report_to!r}, and {name} is not installed: pip install {remedy}")


def local_settings(kind: type[RunArguments]) -> list[str]:
    """The settings that say where a run read, wrote and reported, not what it was."""
    return [setting.name for setting in dataclasses.fields(kind) if setting.name in LOCAL_SETTINGS]


def takes_list(kind: object) -> bool:
    return any(get_origin(part) is list for part in (kind, *get_args(kind)))
