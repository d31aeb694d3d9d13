"""The scripts of `benchmarks/`, which import each other as they do when they are started."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    """The module of a name."""
    if not FOLDER.is_dir():
        pytest.skip("the benchmarks are in the repository alone")
    monkeypatch.syspath_prepend(str(FOLDER))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load
