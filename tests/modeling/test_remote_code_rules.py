"""The folder `modeling` travels with a checkpoint as flat files; what its files may import follows from that."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import hf_meanmax.modeling

FOLDER = Path(hf_meanmax.modeling.__file__).parent
FILES = sorted(FOLDER.glob("*.py"))
# transformers checks the imports of remote code against what is installed, and these every user has.
ALLOWED = {"torch", "transformers", "huggingface_hub", "safetensors", *sys.stdlib_module_names}


def test_the_folder_is_flat():
    assert FILES
    assert [path.name for path in FOLDER.iterdir() if path.is_dir() and path.name != "__pycache__"] == []
    assert (FOLDER / "__init__.py").read_text() == ""  # it is not copied


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_imports(path):
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            assert node.level == 1, f"line {node.lineno}: only files of this folder are copied"
            assert node.module is not None, f"line {node.lineno}: `from . import x` fails, write `from .x import y`"
            assert "." not in node.module, f"line {node.lineno}: the folder is flat"
            assert (FOLDER / f"{node.module}.py").exists(), f"line {node.lineno}"
            assert node in tree.body, f"line {node.lineno}: a relative import stands at the top level"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            assert {name.split(".")[0] for name in names} <= ALLOWED, f"line {node.lineno}"
