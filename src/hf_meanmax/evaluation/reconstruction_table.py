"""Reconstructions of several systems side by side as a Markdown table (Zhang, Wu, Li and Zhang, table 3).

The texts come from the output folders of [`~hf_meanmax.evaluation.reconstruction.score_checkpoint`].
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hf_meanmax.data.sentences import is_unsegmented
from hf_meanmax.evaluation.markdown import markdown_table, markdown_text
from hf_meanmax.files import Json, read_json, replacing_file
from hf_meanmax.metrics import LENGTH_METRICS
from hf_meanmax.plots.figures import save_figure, skip_figures_without_matplotlib
from hf_meanmax.plots.reconstruction import plot_by_length

from .text_scores import length_table

RESULTS_FILE, TEXTS_FILE, EXAMPLES_FILE = "reconstruction.json", "reconstructions.tsv", "reconstructions.md"
TABLE_FILE, FIGURE_FILE = "bleu-by-length.md", "bleu-by-length.png"
_HEADER = "text\treconstruction"


def write_texts(folder: Path, texts: Sequence[str], generated: Sequence[str]) -> None:
    """Writes texts and their reconstructions to `reconstructions.tsv`; tabs and line breaks become spaces."""
    with replacing_file(folder / TEXTS_FILE) as file:
        file.write(_HEADER + "\n")
        for pair in zip(texts, generated, strict=True):
            file.write("\t".join(re.sub(r"[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]", " ", text) for text in pair) + "\n")


def read_texts(folder: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """Each text and its reconstruction, from an `--output` folder of `hf-meanmax reconstruct`.

    Raises:
        FileNotFoundError: the folder has no `reconstructions.tsv`.
        ValueError: that file is damaged.
    """
    path = Path(folder) / TEXTS_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; name an --output folder of `hf-meanmax reconstruct`.")
    header, *lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    if header != _HEADER:
        raise ValueError(f"{path} is damaged: its first line is {header!r}, expected {_HEADER!r}.")
    pairs = []
    for number, line in enumerate(lines, 2):
        text, *rest = line.split("\t")
        if len(rest) != 1:
            raise ValueError(f"{path} is damaged: line {number} has {len(rest) + 1} columns, expected 2.")
        pairs.append((text, rest[0]))
    return pairs


def sample_texts(texts: Sequence[str], number: int, seed: int = 0) -> list[str]:
    """Draws texts of all lengths: one from each of `number` equally large parts, from the shortest to the longest.

    Args:
        texts: the texts; the choice does not depend on their order or on duplicates.
        number: number of texts; all if there are not more.
        seed: seed of the choice.

    Raises:
        ValueError: `number` is less than 1, or there is no text.
    """
    if number < 1 or not texts:
        raise ValueError(f"{number} of {len(texts)} texts cannot be drawn; ask for 1 or more of 1 or more.")
    ordered = sorted(set(texts), key=lambda text: (_length(text), text))
    generator = np.random.default_rng(seed)
    parts = np.array_split(np.arange(len(ordered)), min(number, len(ordered)))
    return [ordered[generator.choice(part)] for part in parts]


def _length(text: str) -> int:
    """Words, or characters in a script without spaces between words."""
    words = text.split()
    return len("".join(words)) if is_unsegmented([text]) else len(words)


def reconstruction_table(systems: Mapping[str, Sequence[tuple[str, str]]], texts: Sequence[str]) -> str:
    """A Markdown table of each text, followed by its reconstruction by each system.

    Args:
        systems: pairs of a text and its reconstruction, as from [`read_texts`], by the name of the system.
        texts: the texts to show, for instance from [`sample_texts`].

    Raises:
        ValueError: no system, or a text that one of them lacks.
    """
    if not systems:
        raise ValueError("No system to show: give pairs of text and reconstruction by the system's name.")
    generated = {name: dict(pairs) for name, pairs in systems.items()}
    rows = []
    for text in texts:
        rows.append([f"{_length(text):,}", "ground truth", markdown_text(text)])
        for name, reconstructions in generated.items():
            if text not in reconstructions:
                raise ValueError(f"{name} has no reconstruction of {text!r}; choose a text that all systems share.")
            rows.append(["", markdown_text(name), markdown_text(reconstructions[text])])
    return markdown_table(["length", "system", "text"], rows, "rll")


def write_table(
    path: str | os.PathLike[str],
    systems: Mapping[str, Sequence[tuple[str, str]]],
    number: int = 5,
    seed: int = 0,
    rows: Sequence[int] | None = None,
) -> None:
    """Writes [`reconstruction_table`], followed by a note on how its texts were chosen.

    Args:
        path: the Markdown file.
        systems: as for [`reconstruction_table`].
        number, seed: number and seed of texts drawn from those that all systems share (see [`sample_texts`]).
        rows: the texts to show instead, by their numbers in the first system, from 1.

    Raises:
        ValueError: no system, no text that all systems share, or a row that is not there.
    """
    known = [[text for text, _ in pairs] for pairs in systems.values()]
    if rows is None:
        shared = set(known[0]).intersection(*known[1:]) if known else set[str]()
        if not shared:
            raise ValueError(
                f"No text is shared by {', '.join(systems) or 'no system'}; let all reconstruct the same texts."
            )
        texts = sample_texts(list(shared), number, seed)
        note = f"{len(texts):,} of {len(shared):,} texts, drawn with seed {seed}, from short to long."
    else:
        count = len(known[0]) if known else 0
        if not all(1 <= row <= count for row in rows):
            raise ValueError(f"rows is {', '.join(map(str, rows))}; the first system has the rows 1 to {count:,}.")
        texts = [known[0][row - 1] for row in rows]
        note = f"Chosen texts: {', '.join(map(str, rows))} of {count:,}."
    table = reconstruction_table(systems, texts)
    with replacing_file(path) as file:
        file.write(f"{table}\n\n{note} Lengths are in words, of Chinese and Japanese in characters.\n")


def write_comparison(
    output: str | os.PathLike[str],
    folders: Mapping[str, str | os.PathLike[str]],
    number: int = 5,
    seed: int = 0,
    rows: Sequence[int] | None = None,
) -> None:
    """Writes reconstructions of one or more systems: `reconstructions.md` (some texts; Zhang, Wu, Li and Zhang, table
    3), `bleu-by-length.md` and, with matplotlib, `bleu-by-length.png` (figure 2).

    Args:
        output: the folder to write to.
        folders: output folders of `hf-meanmax reconstruct`, by the name of the system.
        number, seed, rows: which texts, see [`write_table`].

    Raises:
        FileNotFoundError: a file of a folder is missing.
        ValueError: one is damaged, or no text can be shown.
    """
    systems = {name: read_texts(folder) for name, folder in folders.items()}
    metrics = tuple(LENGTH_METRICS) if len(folders) == 1 else ("bleu",)
    by_length = {name: _read_by_length(Path(folder), metrics) for name, folder in folders.items()}
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    write_table(output / EXAMPLES_FILE, systems, number, seed, rows)
    with replacing_file(output / TABLE_FILE) as file:
        file.write(length_table(by_length, metrics))
    with skip_figures_without_matplotlib(f"{FIGURE_FILE} was not drawn."):
        save_figure(plot_by_length(by_length), output / FIGURE_FILE)


def _read_by_length(folder: Path, metrics: Sequence[str]) -> list[Json]:
    path = folder / RESULTS_FILE
    try:
        rows: list[Json] = read_json(path)["scores"]["by_length"]
        length_table({"": rows}, metrics)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no scores by length ({error!r}); make it again.") from error
    return rows


def system_name(folder: str | os.PathLike[str]) -> str:
    """The name of an output folder in figures and tables: the last part of its path."""
    return Path(os.path.abspath(folder)).name
