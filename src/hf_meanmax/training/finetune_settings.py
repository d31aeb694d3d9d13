"""The settings of a fine-tuning run, checked together."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from hf_meanmax.checkpoint.location import checkpoint_folder
from hf_meanmax.checkpoint.sentence_transformer import saved_normalization
from hf_meanmax.data.tables import has_no_splits
from hf_meanmax.fields import count, option
from hf_meanmax.files import read_json
from hf_meanmax.pretrained import ENCODER_SOURCES

from .model_settings import OF_NEW_MODELS
from .run_settings import RunArguments


@dataclass
class FinetuneArguments(RunArguments):
    """The settings of a fine-tuning run."""

    family: str = option("the kind of model to train", "structured_self_attention")
    output_dir: str = option("folder of the result; by default runs/finetune", "")
    word_vectors: str = option(
        "`train` skip-gram vectors on the examples first, or take a file (of `hf-meanmax vectors`, word2vec or "
        "GloVe), or the folder of a static model",
        "",
    )
    checkpoint: str = option(f"start from this checkpoint's encoder and tokenizer ({ENCODER_SOURCES})", "")
    start: Literal["encoder", "word_embeddings", "nothing"] = option(
        "which weights of the checkpoint are kept, beside its architecture and tokenizer; `word_embeddings` and "
        "`nothing` are controls that show what pretraining adds",
        "encoder",
    )
    train: str = option("lines `text TAB label` or `text TAB text TAB label`, a table, or a data set", "")
    validation: str = option("like train; by default a tenth of it is held out", "")
    test: str = option("like train; scored once, at the end", "")
    text_column: str = option("column of the texts, in a table or a data set", "text")
    pair_column: str = option("column of the second texts, in a table or a data set", "")
    label_column: str = option("column of the labels, in a table or a data set", "label")
    train_split: str = option("split of a data set", "train")
    validation_split: str = option("the same for validation", "validation")
    test_split: str = option("the same for test", "test")
    problem: Literal["classification", "regression"] = option("whether labels are names or numbers", "classification")
    max_examples: int = option("train on so many examples, drawn by the seed (0: all)", 0, at_least=0)
    max_tokens: int = count("longer texts are cut, and counted", 256)
    epochs: float = option("passes over the examples", 5.0)
    batch_size: int = count("examples of one forward pass of a process", 32)
    learning_rate: float = option("peak learning rate of AdamW", 1e-3, at_least=0)
    weight_decay: float = option("decoupled weight decay of AdamW", 0.0, at_least=0)
    freeze_encoder: bool = option("train only the classifier", False)
    seed: int = option("seed of weights, order and dropout", 0, at_least=0, at_most=2**32 - 1)
    lr_schedule: Literal["constant", "linear", "cosine"] = option("decay after the warm-up", "linear")
    early_stopping_patience: int = option(
        "stop after so many epochs without a better validation score (0: never)", 0, at_least=0
    )

    def __post_init__(self) -> None:
        takes_normalization = self.normalize == "auto"
        super().__post_init__()
        for name in ("train", "validation", "test"):
            split, source = getattr(self, f"{name}_split"), Path(getattr(self, name))
            if split != name and (source.is_file() or has_no_splits(source)):
                what = "a file" if source.is_file() else "a single data set"
                raise ValueError(f"`{name}` is {what}, which has no split {split!r}. Leave `{name}_split` out.")
        sources = [source for source in (self.train, self.validation, self.test) if source]
        if self.config_name and all(Path(source).exists() for source in sources):
            raise ValueError(
                f"`config_name` is {self.config_name!r}, and {', '.join(sources)} is no data set on the Hub: only "
                "such a one has configurations. Leave it out."
            )
        if not self.output_dir:
            self.output_dir = str(Path("runs") / "finetune")
        if self.epochs <= 0:
            raise ValueError(f"`epochs` is {self.epochs}; give a positive number.")
        if self.word_vectors == "teacher":
            raise ValueError("`word_vectors` 'teacher' works only in pretraining. Give a file of `hf-meanmax vectors`.")
        if not self.train:
            raise ValueError("`train` is missing: name a file of labelled texts, or a data set.")
        if self.start != "encoder" and not self.checkpoint:
            raise ValueError(
                f"`start` is {self.start!r}, which needs a checkpoint; give `checkpoint`, or leave it out."
            )
        if self.checkpoint:
            given = [name for name in self.model if not _is_of_head(name)]
            if given:
                raise ValueError(
                    f"`{given[0]}` is {self.model[given[0]]!r}, but the checkpoint fixes it. With `checkpoint` "
                    "only dropouts, `attention_penalty`, and what begins with `classifier_` or `pair_` can be set."
                )
            if self.word_vectors:
                raise ValueError("`word_vectors` and `checkpoint` exclude each other: the checkpoint has a word table.")
            for item in fields(self):
                if item.name in OF_NEW_MODELS and getattr(self, item.name) != item.default:
                    raise ValueError(
                        f"`{item.name}` is {getattr(self, item.name)!r}, but `checkpoint` has words and a tokenizer. "
                        "Leave it out."
                    )
            if takes_normalization:
                self.normalize = saved_normalization(checkpoint_folder(self.checkpoint)) or "none"
        else:
            self.build_config()
        self.check_sources()

    def without_effect(self) -> dict[str, str]:
        saved = read_json(checkpoint_folder(self.checkpoint) / "config.json") if self.checkpoint else {}
        head = {**saved, **self.model}
        is_pruned = head.get("classifier_type") == "pruned"
        names = ("classifier_hidden_size",) if is_pruned else ("classifier_row_size", "classifier_column_size")
        unused = dict.fromkeys(names, f"`classifier_type` {'mlp' if is_pruned else 'pruned'!r}")
        if head.get("pair_combination") != "multiplicative":
            unused["pair_size"] = "`pair_combination` 'multiplicative'"
        unused |= {f"{name}_split": f"`{name}`" for name in ("validation", "test") if not getattr(self, name)}
        return {**super().without_effect(), **unused}


def _is_of_head(name: str) -> bool:
    """Whether a configuration field may be set when training starts from a checkpoint."""
    return name.startswith(("classifier_", "pair_")) or name.endswith("_dropout") or name == "attention_penalty"
