"""The files of an audit: a self-contained HTML page, and the results as JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from hf_meanmax.files import Json, replacing_file, write_json
from hf_meanmax.plots.defences import plot_defences
from hf_meanmax.plots.figures import figure_data_uri
from hf_meanmax.plots.reconstruction import plot_by_length

PAGE_FILE, RESULTS_FILE = "audit.html", "audit.json"


def render_page(result: Json, settings: Mapping[str, object]) -> str:
    """The page of an audit as HTML, with embedded figures.

    Args:
        result: the result of [`~hf_meanmax.evaluation.audit.audit`].
        settings: the settings of the audit, with `embedder` (or None), `decoder` and `corpus_texts`.

    Raises:
        ImportError: matplotlib is not installed.
    """
    systems = {"the decoder": result["decoder"], **result["controls"]}
    figures = {"by_length": figure_data_uri(plot_by_length({name: one["by_length"] for name, one in systems.items()}))}
    if result["defences"]:
        floor = result["controls"].get("another text's vector", {}).get("token_f1")
        figures["defences"] = figure_data_uri(plot_defences(result["defences"], floor))
    environment = Environment(
        loader=PackageLoader("hf_meanmax", "evaluation"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    template = environment.get_template("audit_page.html")
    return template.render(**result, settings=settings, figures=figures) + "\n"


def write_audit(result: Json, settings: Mapping[str, object], output: str | os.PathLike[str]) -> Path:
    """Writes `audit.html` and `audit.json` into a folder; returns the page's path.

    Raises:
        OSError: the folder cannot be written.
        ImportError: matplotlib is not installed.
    """
    output = Path(output)
    record = {"settings": dict(settings), **result}
    write_json(output / RESULTS_FILE, record, ensure_ascii=False, allow_nan=False)
    # After the numbers, which are kept if the page fails.
    page = render_page(result, settings)
    with replacing_file(output / PAGE_FILE) as file:
        file.write(page)
    return output / PAGE_FILE
