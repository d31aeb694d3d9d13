"""What mkdocs does for the site beside its plugins: patterns in the navigation become the files that they name, and
notebooks become pages, so that a new notebook or experiment needs no line in mkdocs.yml."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Called before mkdocs looks for files."""
    config.nav = _expand(config.nav, Path(config.docs_dir))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called when mkdocs has found all files: makes a page of each notebook, as it was last run, and files of its
    figures."""
    for file in list(files):
        if not file.src_uri.endswith(".ipynb"):
            continue
        folder, _, name = file.src_uri.removesuffix(".ipynb").rpartition("/")
        resources = {"unique_key": name, "output_files_dir": f"{name}_files"}
        text, found = MarkdownExporter().from_filename(file.abs_src_path, resources)
        files.remove(file)
        files.append(_Notebook(text, file.src_uri, config))
        for figure, content in found["outputs"].items():
            files.append(File.generated(config, f"{folder}/{figure}", content=content))
    return files


class _Notebook(File):
    """A notebook as a page of Markdown, so that its links are checked and lead where they do in the repository."""

    def __init__(self, text: str, src_uri: str, config: MkDocsConfig) -> None:
        super().__init__(src_uri, config.docs_dir, config.site_dir, config.use_directory_urls)
        self.text = text

    @property
    def content_string(self) -> str:
        return self.text

    def is_documentation_page(self) -> bool:
        return True


def _expand(entries: list[Any], root: Path) -> list[Any]:
    found: list[Any] = []
    for entry in entries:
        if isinstance(entry, str) and "*" in entry:
            found += _matches(root, entry, [other for other in entries if other != entry])
        elif isinstance(entry, dict):
            ((title, value),) = entry.items()
            if isinstance(value, list) or "*" in value:
                value = _expand(value if isinstance(value, list) else [value], root)
            if value:  # A section without files is left out.
                found.append({title: value})
        else:
            found.append(entry)
    return found


def _matches(root: Path, pattern: str, named: list[Any]) -> list[Any]:
    """The files of a pattern but those that are named beside it. Dated ones have the date in the title, and the newest
    is the first."""
    names = [path.relative_to(root).as_posix() for path in sorted(root.glob(pattern))]
    names = [name for name in names if name not in named]
    dated = [name for name in names if re.match(r"\d{4}-\d\d-\d\d-", Path(name).name)]
    titled = [{f"{Path(name).name[:10]}: {_heading(root / name)}": name} for name in reversed(dated)]
    return titled + [name for name in names if name not in dated]


def _heading(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
