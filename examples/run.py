"""Run the notebooks of this folder and write their outputs into them.

    python examples/run.py
    python examples/run.py 02_train_on_your_own_text 05_five_papers_in_one_package
    python examples/run.py 06_chinese_paragraphs --set 'CORPUS=[/data/zh/*.txt]' --set MINUTES=30

A notebook runs in a folder of its own, which is deleted afterwards, and is saved only if every cell ran. `--set` gives
values for the names of its first code cell; the saved cell keeps its own. Progress, which goes to stderr, is not saved.
Needs `pip install -c constraints.txt ".[examples]"`.
"""

from __future__ import annotations

import argparse
import ast
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import nbformat
import yaml
from nbclient import NotebookClient
from nbformat import NotebookNode

from hf_meanmax.files import replacing_file

FOLDER = Path(__file__).parent
PARAMETERS = "parameters"  # the tag of the cell, as papermill has it


def execute(path: Path, settings: Mapping[str, object], folder: Path) -> NotebookNode:
    """A notebook with the outputs of a run in `folder`.

    Args:
        path: the notebook.
        settings: values for names of its cell with the tag `parameters`.
        folder: where its kernel works.

    Raises:
        ValueError: the cell has no such name.
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    metadata = notebook.metadata.copy()
    place = next(place for place, cell in enumerate(notebook.cells) if PARAMETERS in cell.metadata.get("tags", []))
    given = nbformat.v4.new_code_cell(_assignments(notebook.cells[place].source, settings))
    notebook.cells.insert(place + 1, given)
    where = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=None, kernel_name="python3", record_timing=False, resources=where).execute()
    notebook.cells.remove(given)
    notebook.metadata = metadata  # without the version of Python
    for number, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), 1):
        cell.execution_count = number
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = number
    return notebook


def _assignments(source: str, settings: Mapping[str, object]) -> str:
    lines = [node for node in ast.parse(source).body if isinstance(node, ast.Assign)]
    names = [target.id for line in lines for target in line.targets if isinstance(target, ast.Name)]
    for name in settings:
        if name not in names:
            raise ValueError(f"There is no parameter {name!r}; the notebook has {', '.join(names)}.")
    return "\n".join(f"{name} = {value!r}" for name, value in settings.items())


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command; `argv` is the command line by default."""
    parser = argparse.ArgumentParser(description="Run notebooks and write their outputs into them.")
    known = [path.stem for path in sorted(FOLDER.glob("*.ipynb"))]
    parser.add_argument("notebooks", nargs="*", metavar="NOTEBOOK", help=f"by default all: {', '.join(known)}")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter, as YAML")
    args = parser.parse_args(argv)
    for name in args.notebooks:
        if name not in known:
            parser.error(f"there is no notebook {name!r}; there are {', '.join(known)}")
    if bad := [item for item in args.set if "=" not in item]:
        parser.error(f"--set {bad[0]!r}: write NAME=VALUE")
    settings = {name: yaml.safe_load(value) for name, _, value in (item.partition("=") for item in args.set)}
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    for name in args.notebooks or known:
        path = FOLDER / f"{name}.ipynb"
        with tempfile.TemporaryDirectory() as folder:
            notebook = execute(path, settings, Path(folder))
        with replacing_file(path) as file:
            nbformat.write(notebook, file)
        print(f"{path.name}: {path.stat().st_size / 1000:,.0f} kB")


if __name__ == "__main__":
    main()
