"""The packages that a plain install lacks."""

from __future__ import annotations

import importlib
from types import ModuleType

_NAMES = {"faiss": "faiss-cpu", "rouge_score": "rouge-score"}


def require(module: str, extra: str = "evaluation", purpose: str = "This") -> ModuleType:
    """Imports a module of an extra, a dotted path too, for a purpose that the error names.

    Raises:
        ImportError: its package is not installed, with the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = _NAMES.get(top := module.partition(".")[0], top)
        is_missing = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == top
        detail = "" if is_missing else f" ({error})"
        raise ImportError(
            f'{purpose} needs {package}. In a clone: pip install -c constraints.txt ".[{extra}]"{detail}'
        ) from error
