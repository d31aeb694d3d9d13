"""Optional packages, which a plain install lacks."""

from __future__ import annotations

import importlib
from types import ModuleType

_NAMES = {"faiss": "faiss-cpu", "rouge_score": "rouge-score"}


def require(module: str, extra: str = "evaluation", purpose: str = "This") -> ModuleType:
    """Imports a module (or dotted path) of an optional package; the error names the purpose.

    Raises:
        ImportError: its package is not installed; the message has the command that installs it.
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
