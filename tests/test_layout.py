"""The layout: imports between the parts of the package go one way, and files and functions stay readable."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import hf_meanmax

SOURCE = Path(hf_meanmax.__file__).parent
# Each part imports from parts on lines above its own, and from itself.
ORDER = [
    ["_version", "fields"],
    ["files", "hardware", "extras", "progress", "metrics", "cosines", "pretrained"],
    ["processes"],
    ["modeling"],
    ["tokenization"],
    ["families"],
    ["data"],
    ["plots", "objectives", "checkpoint"],
    ["inference"],
    ["evaluation"],
    ["inspection"],
    ["training", "demo"],
    ["reproduce"],
    ["commands"],
    ["__init__"],
]
LEVEL = {part: level for level, parts in enumerate(ORDER) for part in parts}
# Every module may import the version from the package itself.
EVERYONES = {"_version"}


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """The parts that a module imports, wherever in it, with the lines."""
    package = ["hf_meanmax", *path.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            names = [[*base, *(node.module or "").split("."), alias.name] for alias in node.names]
            for name in ([word for word in name if word] for name in names):
                if name[0] == "hf_meanmax":
                    # `from hf_meanmax import MeanMaxAAEModel` is of the package itself, unless it names a part.
                    part = "_version" if name[1] == "__version__" else name[1]
                    yield (part if part in LEVEL else "__init__"), node.lineno
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "hf_meanmax":
                    yield ([*alias.name.split("."), "__init__"][1]), node.lineno


MODULES = sorted(SOURCE.rglob("*.py"))


def test_every_part_has_a_place():
    assert {part_of(path) for path in MODULES} == set(LEVEL)


@pytest.mark.parametrize("part", [part for parts in ORDER for part in parts])
def test_imports_go_one_way(part):
    upwards = [
        f"{path.relative_to(SOURCE)}:{line} imports {other}"
        for path in MODULES
        if part_of(path) == part
        for other, line in imported(path)
        if other != part and other not in EVERYONES and LEVEL[other] >= LEVEL[part]
    ]
    assert upwards == []


def test_modeling_imports_what_a_checkpoint_can_carry():
    foreign = []
    for path in (SOURCE / "modeling").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level > 1:
                foreign.append(f"{path.name}:{node.lineno}")
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            foreign += [f"{path.name}:{node.lineno} {name}" for name in names if name.startswith("hf_meanmax")]
    assert foreign == []


def test_a_file_fits_in_a_head():
    lines = {str(path.relative_to(SOURCE)): path.read_text(encoding="utf-8").count("\n") for path in MODULES}
    assert {name: number for name, number in lines.items() if number > 600} == {}


def test_a_function_has_few_arguments():
    many = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                number = len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs)
                if number - (node.args.args[:1] != [] and node.args.args[0].arg in ("self", "cls")) > 10:
                    many.append(f"{path.relative_to(SOURCE)}:{node.name} has {number}")
    assert many == []
