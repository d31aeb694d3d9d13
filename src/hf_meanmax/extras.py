"""The packages that evaluation needs and a plain install lacks."""

from __future__ import annotations

import importlib
from types import ModuleType

_NAMES = {"sklearn": "scikit-learn", "faiss": "faiss-cpu", "rouge_score": "rouge-score", "scipy": "scipy"}


def require(module: str) -> ModuleType:
    """Imports a module of the `evaluation` extra, a dotted path too.

    Raises:
        ImportError: its package is not installed, with the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = _NAMES.get(module.partition(".")[0], module)
        raise ImportError(f'This needs {package}: pip install "hf_meanmax[evaluation]" ({error}).') from error
