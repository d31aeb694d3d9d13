"""Texts, or pairs of texts, with their labels."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .corpus import TextFile, readable
from .tables import TABLES, load_from_disk, load_from_hub, load_table, looks_local, missing_column, table_kind

if TYPE_CHECKING:
    from datasets import Dataset

# Words of a first line that show that it is a header.
_TEXT_HEADERS = set("text texts sentence sentence1 sentence_1 premise review question title comment tweet".split())
_LABEL_HEADERS = set("label labels class category target score rating sentiment stars topic intent emotion".split())

_NO_TEXT = ("", None, None)


@dataclass
class LabelledTexts:
    """Texts, or pairs of texts, with their labels.

    Attributes:
        texts: the texts, or the first of each pair.
        pairs: the second of each pair; None for single texts.
        labels: their labels, as in the file or data set.
        unlabelled: number of rows left out because they have no label (-1 in a data set with class labels).
        textless: number of rows of a table or data set left out because they lack a text, or one text of the pair.
    """

    texts: list[str]
    pairs: list[str] | None
    labels: list[str]
    unlabelled: int = 0
    textless: int = 0

    def __len__(self) -> int:
        return len(self.texts)

    def select(self, rows: Sequence[int] | npt.NDArray[np.int64]) -> LabelledTexts:
        """The examples with these row indices."""
        pairs = None if self.pairs is None else [self.pairs[row] for row in rows]
        return LabelledTexts([self.texts[row] for row in rows], pairs, [self.labels[row] for row in rows])


def read_labelled(
    source: str | os.PathLike[str],
    text_column: str = "text",
    pair_column: str = "",
    label_column: str = "label",
    split: str = "train",
    encoding_errors: str = "strict",
    config_name: str | None = None,
) -> LabelledTexts:
    """Reads labelled texts from a file or a data set.

    Args:
        source: a file without a header, of lines `text TAB label` or `text TAB second text TAB label` (`.tsv`, `.txt`,
            plain or `.gz`, `.xz`, `.zst`, `.bz2`); a `.csv`, `.json`, `.jsonl` or `.parquet` file with named columns;
            the folder of a data set written by `save_to_disk`, or the name of one on the Hub.
        text_column, pair_column, label_column: the named columns; without a `pair_column` texts are single.
        split: the split of a data set.
        encoding_errors: what to do with bytes that are not UTF-8: "strict" (an error), "replace" or "ignore".
        config_name: the configuration of a data set on the Hub.

    Raises:
        FileNotFoundError: there is no such file or data set.
        ValueError: an empty source, an unknown column or split, column names for a file without named columns, a
            damaged file, or a line without text or label (the message has its number).
    """
    path, columns = Path(source).expanduser(), (text_column, pair_column, label_column)
    rows: Iterator[tuple[str, str | None, str | None]]
    if path.is_dir():
        rows = _from_dataset(load_from_disk(path, split), *columns, str(path))
    elif path.is_file() and table_kind(path):
        if (table := load_table(path, encoding_errors)) is None:
            raise ValueError(f"{path}: empty, expected rows under named columns.")
        rows = _from_dataset(table, *columns, str(path))
    elif path.is_file():
        if columns != ("text", "", "label"):
            raise ValueError(
                f"{path} is read as lines `text TAB label` or `text TAB second text TAB label`, whose columns have no "
                f"names such as {label_column if label_column != 'label' else pair_column or text_column!r}. Leave the "
                f"columns out, or give a file with named columns: {', '.join(TABLES)}."
            )
        rows = _from_lines(TextFile(path, encoding_errors, is_table=True))
    elif looks_local(os.fspath(source)):
        raise FileNotFoundError(f"No such file or data set: {str(source)!r}.")
    else:
        rows = _from_dataset(load_from_hub(os.fspath(source), split, config_name)[0], *columns, str(source))
    read = list(rows)
    found = [row for row in read if row[2] is not None]
    if not found:
        reason = f"none of its {len(read):,} rows has both a text and a label in the column {label_column!r}"
        raise ValueError(f"{source}: {reason if read else 'empty, expected texts with labels'}.")
    texts, pairs, labels = (list(column) for column in zip(*found, strict=True))
    textless = read.count(_NO_TEXT)
    return LabelledTexts(texts, None if None in pairs else pairs, labels, len(read) - len(found) - textless, textless)


def _from_lines(file: TextFile) -> Iterator[tuple[str, str | None, str]]:
    width = 0
    for number, line in enumerate(file, start=1):
        parts = [part.strip() for part in line.split("\t")]
        width = width or len(parts)
        if number == 1 and parts[0].lower() in _TEXT_HEADERS and parts[-1].lower() in _LABEL_HEADERS:
            raise ValueError(
                f"{file.path}, line 1: {line!r} looks like a header, and such a file has none. Remove the line, "
                f"or give a file with named columns: {', '.join(TABLES)}."
            )
        if len(parts) not in (2, 3) or len(parts) != width or not all(parts):
            expected = "'text TAB second text TAB label'" if width == 3 else "'text TAB label'"
            shown = line if len(line) <= 60 else line[:57] + "..."
            raise ValueError(f"{file.path}, line {number}: expected {expected}, found {shown!r}.")
        yield parts[0], (parts[1] if width == 3 else None), parts[-1]


def _from_dataset(
    dataset: Dataset, text_column: str, pair_column: str, label_column: str, name: str
) -> Iterator[tuple[str, str | None, str | None]]:
    # A streamed data set does not always know its columns.
    columns = dataset.column_names or list(next(iter(dataset), {}))
    settings = {"text_column": text_column, "pair_column": pair_column, "label_column": label_column}
    for setting, wanted in settings.items():
        if wanted and columns and wanted not in columns:
            raise missing_column(name, wanted, columns, setting)
    features = getattr(dataset, "features", None) or {}
    names = getattr(features.get(label_column), "names", None)
    for number, row in enumerate(dataset):
        text, pair, label = row[text_column], row[pair_column] if pair_column else None, row[label_column]
        sides = (text, pair) if pair_column else (text,)
        if not all(side is None or isinstance(side, str) for side in sides) or isinstance(label, (list, dict)):
            found = {column: row[column] for column in settings.values() if column}
            raise ValueError(f"{name}, row {number} (the first is 0): expected text and one label, found {found}.")
        if not all(side and side.strip() for side in sides):
            yield _NO_TEXT
            continue
        text, pair = readable(text), None if pair is None else readable(pair)
        # NaN is the value that differs from itself.
        if label is None or label != label or not str(label).strip():
            yield text, pair, None
        elif not names:
            # In a column with missing labels, tables store whole numbers as floats.
            yield text, pair, str(int(label) if isinstance(label, float) and label.is_integer() else label)
        elif label < len(names):
            yield text, pair, names[label] if label >= 0 else None
        else:
            raise ValueError(f"{name}, row {number} (the first is 0): label {label}, expected 0 to {len(names) - 1}.")
