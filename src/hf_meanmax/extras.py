"""The packages that evaluation and stores of vectors need and a plain install lacks."""

from __future__ import annotations

import importlib
from types import ModuleType

_NAMES = {"faiss": "faiss-cpu", "rouge_score": "rouge-score"}


def require(module: str, extra: str = "evaluation") -> ModuleType:
    """Imports a module of an extra, a dotted path too.

    Raises:
        ImportError: its package is not installed, with the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = _NAMES.get(top := module.partition(".")[0], top)
        raise ImportError(f'This needs {package}: pip install "hf_meanmax[{extra}]" ({error}).') from error
