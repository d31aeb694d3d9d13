"""The documentation as a site: built strictly, with the tutorials, and complete."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hf_meanmax

ROOT = Path(__file__).parents[1]
SOURCES = ("CHANGELOG.md", "README.md", "docs", "mkdocs.yml", "model_cards", "results", "src")
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

pytestmark = pytest.mark.skipif(not (ROOT / "mkdocs.yml").is_file(), reason="the site is in the repository alone")


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    for package in ("material", "mkdocs_same_dir", "mkdocstrings_handlers.python", "nbconvert"):
        pytest.importorskip(package, reason='the site needs pip install -c constraints.txt ".[docs]"')
    # Quiet, mkdocs would not count its warnings, and strict would mean nothing.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=270, check=False
    )


def notebook() -> dict[str, object]:
    """A notebook with a link, a printed line and a figure."""
    text = {
        "cell_type": "markdown",
        "id": "a",
        "metadata": {},
        "source": "# First steps\n\n[Vectors](../docs/vectors.md)",
    }
    printed = {"output_type": "stream", "name": "stdout", "text": "printed line\n"}
    figure = {"output_type": "display_data", "metadata": {}, "data": {"image/png": PIXEL}}
    code = {"cell_type": "code", "id": "b", "metadata": {}, "execution_count": 1, "source": "draw()"}
    cells = [text, {**code, "outputs": [printed, figure]}]
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    for name in SOURCES:
        (folder / name).symlink_to(ROOT / name)
    (folder / "examples").mkdir()
    for path in (ROOT / "examples").glob("*.ipynb"):
        (folder / "examples" / path.name).symlink_to(path)
    (folder / "examples" / "00_first_steps.ipynb").write_text(json.dumps(notebook()), encoding="utf-8")
    result = build(folder)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder / "site"


def page(site: Path, name: str) -> str:
    return (site / name / "index.html").read_text(encoding="utf-8")


def test_the_readme_is_the_home_page(site):
    home = page(site, "")
    assert "Sentence and paragraph embeddings that can be decoded back to text." in home
    assert 'href="docs/vectors/"' in home


def test_pages_load_nothing_from_elsewhere(site):
    for name in ("", "docs/api/models", "examples/00_first_steps"):
        assert re.findall(r'<(?:link|script|img)[^>]*(?:href|src)="?https?:[^>]*', page(site, name)) == []


def test_notebooks_are_tutorials(site):
    text = page(site, "examples/00_first_steps")
    assert 'href="../../docs/vectors/"' in text
    assert "printed line" in text
    (figure,) = re.findall(r'<img[^>]*src="([^"]*)"', text)
    assert (site / "examples" / "00_first_steps" / figure).read_bytes() == base64.b64decode(PIXEL)
    assert "First steps" in page(site, "docs/vectors")


def test_experiments_are_listed_by_date(site):
    names = [path.stem for path in (ROOT / "docs" / "experiments").glob("2*.md")]
    listed = re.findall(r"(\d{4}-\d\d-\d\d): ", page(site, "docs/experiments").split("<article")[0])
    assert listed == sorted((name[:10] for name in names), reverse=True)


def test_the_reference_has_every_public_name(site):
    pages = "".join(path.read_text(encoding="utf-8") for path in (site / "docs" / "api").glob("*/index.html"))
    named = set(re.findall(r'id="(?:\w+\.)*(\w+)"', pages))
    assert set(hf_meanmax.__all__) - {"__version__"} <= named
    # A reference that the site does not resolve keeps its brackets.
    assert re.findall(r"\[<code>[^]]*\]", pages) == []


def test_a_broken_link_ends_the_build(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "hooks.py").symlink_to(ROOT / "docs" / "hooks.py")
    (tmp_path / "README.md").write_text("# Home\n\n[no part](#none), [no page](none.md), [a folder](docs)\n")
    (tmp_path / "base.yml").symlink_to(ROOT / "mkdocs.yml")
    (tmp_path / "mkdocs.yml").write_text("INHERIT: base.yml\nnav: [README.md, lost.md]\n")
    result = build(tmp_path)
    assert result.returncode != 0
    for name in ("'#none'", "'none.md'", "'docs'", "'lost.md'"):
        assert name in result.stderr
