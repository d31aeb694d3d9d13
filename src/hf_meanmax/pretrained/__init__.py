"""The models that come with the package. Each is a checkpoint folder beside this file; its description is read from
its card. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import yaml

_FOLDER = Path(__file__).parent

# Where the help texts say that a model may be: one that encodes, and one that decodes as well.
ENCODER_SOURCES = "a folder, mini-en or static-en of the package, or a name on the Hub"
DECODER_SOURCES = "a folder, mini-en of the package, or a name on the Hub"


@dataclass(frozen=True)
class PretrainedModel:
    """A model that comes with the package.

    Attributes:
        name: what `pretrained(name)` takes.
        folder: its checkpoint folder.
        megabytes: of all files, 1e6 bytes each.
        license: licence identifier of its card.
        scores: of its card's `model-index`, by data set and metric.
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
    """The folder of a model that comes with the package, for `SentenceTransformer`, `AutoModel` and the like; without a
    name, all these models.

    Raises:
        ValueError: no model has this name.
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


def packaged_folder(name: str) -> Path | None:
    """The folder of the packaged model of this name, unless there is none, or something of this name lies here."""
    return None if Path(name).exists() else _folders().get(name)


def _folders() -> dict[str, Path]:
    return {path.parent.name: path.parent for path in sorted(_FOLDER.glob("*/config.json"))}


def _described(folder: Path) -> PretrainedModel:
    card = _front_matter(folder / "README.md")
    scores = {}
    for model in card.get("model-index") or ():
        for result in model.get("results", ()):
            for metric in result.get("metrics", ()):
                label = f"{result['dataset']['name']}, {metric.get('name', metric['type'])}"
                scores[label] = float(metric["value"])
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return PretrainedModel(folder.name, str(folder), round(size / 1e6, 1), card.get("license", "unknown"), scores)


def _front_matter(card: Path) -> dict[str, Any]:
    """The YAML at the head of a model card; empty where there is none."""
    text = card.read_text(encoding="utf-8") if card.is_file() else ""
    parts = text.split("---\n", 2)
    content = yaml.safe_load(parts[1]) if len(parts) == 3 and not parts[0] else None
    return content if isinstance(content, dict) else {}
