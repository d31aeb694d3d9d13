"""A tiny corpus and the settings of runs of a second."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hf_meanmax.training.recipes import arguments_from_settings
from hf_meanmax.training.settings import PretrainArguments

SUBJECTS = ["the cat", "a dog", "my friend", "the old man", "her sister"]
VERBS = ["saw", "found", "painted", "forgot", "bought"]
OBJECTS = ["the red house", "a book", "some bread", "the green door"]
PLACES = ["in town", "by the sea", "at night", "near the mill"]


def sentences(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    parts = (SUBJECTS, VERBS, OBJECTS, PLACES)
    return [" ".join(draw.choice(part) for part in parts) for _ in range(count)]


@pytest.fixture(scope="session")
def texts(tmp_path_factory) -> Path:
    """A folder with train.txt (documents of ten sentences) and held-out.txt."""
    folder = tmp_path_factory.mktemp("texts")
    lines = sentences(300, seed=0)
    documents = ["\n".join(lines[start : start + 10]) for start in range(0, 300, 10)]
    (folder / "train.txt").write_text("\n\n".join(documents) + "\n")
    (folder / "held-out.txt").write_text("\n".join(sentences(20, seed=1)) + "\n")
    return folder


@pytest.fixture(scope="session")
def settings(texts, tmp_path_factory) -> dict[str, Any]:
    """Flat settings of a tiny run without its output folder."""
    return {
        "corpus": [str(texts / "train.txt")],
        "validation": [str(texts / "held-out.txt")],
        "cache_dir": str(tmp_path_factory.mktemp("cache")),
        "vocab_size": 40,
        "embedding_size": 8,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_attention_heads": 2,
        "embedding_dropout": 0.0,
        "attention_dropout": 0.0,
        "batch_tokens": 160,
        "learning_rate": 0.01,
        "max_steps": 8,
        "log_steps": 1,
        "eval_steps": 0,
        "checkpoint_steps": 4,
        "precision": "fp32",
    }


@pytest.fixture
def make_arguments(settings, tmp_path) -> Callable[..., PretrainArguments]:
    def make(output: str = "run", **changes: Any) -> PretrainArguments:
        return arguments_from_settings({**settings, "output_dir": str(tmp_path / output), **changes})

    return make
