"""The models that come with the package: checkpoint folders beside this file, described by their cards. Nothing here
imports torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import overload

from huggingface_hub import ModelCard, ModelCardData

_FOLDER = Path(__file__).parent

# For help texts: where a model may come from, if it must encode, and if it must also decode.
ENCODER_SOURCES = "a folder, mini-en or static-en of the package, or a name on the Hub"
DECODER_SOURCES = "a folder, mini-en of the package, or a name on the Hub"


@dataclass(frozen=True)
class PretrainedModel:
    """A model that comes with the package.

    Attributes:
        name: its name for `pretrained(name)`.
        folder: its checkpoint folder.
        megabytes: total size of its files, in units of 1e6 bytes.
        license: licence identifier from its card.
        scores: scores in its card's `model-index`, by data set and metric.
    """

    name: str
    folder: str
    megabytes: float
    license: str
    scores: dict[str, float] = field(default_factory=dict)


@overload
def pretrained(name: str) -> str: ...
@overload
def pretrained(name: None = None) -> list[PretrainedModel]: ...
def pretrained(name: str | None = None) -> str | list[PretrainedModel]:
    """The folder of a packaged model, for `SentenceTransformer`, `AutoModel` and the like; without a name, a list of
    all packaged models.

    Raises:
        ValueError: no packaged model has this name.
    """
    folders = _folders()
    if name is None:
        return [_described(folder) for folder in folders.values()]
    if name not in folders:
        names = ", ".join(map(repr, folders)) or "no model at all"
        raise ValueError(f"No model named {name!r} comes with hf_meanmax, which has {names}.")
    return str(folders[name])


def packaged_names() -> list[str]:
    """The names of the models that come with the package."""
    return list(_folders())


def check_hides_none(place: str | Path, setting: str) -> None:
    """Raises ValueError if an output path equals the name of a packaged model, which would then be hidden."""
    if str(place) in packaged_names():
        raise ValueError(
            f"{setting} {place} would hide the model of that name that comes with the package. Name another."
        )


def packaged_folder(name: str) -> Path | None:
    """The folder of the packaged model of this name; None if there is none, or if a local path has this name."""
    found = _folders().get(name)
    return None if found is None or Path(name).exists() else found


def _folders() -> dict[str, Path]:
    return {path.parent.name: path.parent for path in sorted(_FOLDER.glob("*/config.json"))}


def _described(folder: Path) -> PretrainedModel:
    card = folder / "README.md"
    data = ModelCard.load(card).data if card.is_file() else ModelCardData()
    scores = {
        f"{result.dataset_name}, {result.metric_name or result.metric_type}": float(result.metric_value)
        for result in data.eval_results or ()
    }
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return PretrainedModel(folder.name, str(folder), round(size / 1e6, 1), data.license or "unknown", scores)
