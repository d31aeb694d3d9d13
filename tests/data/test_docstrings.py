"""Docstrings: what is prose and what is cut, and the harvest of a folder."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from hf_meanmax.data import Docstrings, harvest_docstrings
from hf_meanmax.data.docstrings import is_plain_english, sentences_of, split_sentences

GOOGLE = """Loads a model from the given folder. The folder must exist!

    Longer text that goes over
    two lines, with `code` and **bold words** in it. See :class:`~pack.mod.Thing` for more.

    Args:
        path (str): The path of the folder that is read.
            It may be relative to the home.
        strict: Whether to raise an error.

    Returns:
        The model that was loaded from the folder.

    Example:
        >>> load("x")
        A model is printed here.
    """
NUMPY = """
    Compute the mean of all values.

    Parameters
    ----------
    values : array
        The values that are used for the mean.

    Notes
    -----
    The result is exact for short lists. Use this when
    speed does not matter.

    .. math:: x = y

    ===== =======
    Value Meaning
    ===== =======

    A code block is cut as follows::

        This is not a sentence of the prose.

    - The first item is a sentence.
    - The second item is a sentence
      that goes over two lines.

    ```python
    This is code in a fence.
    ```
    """


def test_google_style():
    assert sentences_of(GOOGLE) == [
        "Loads a model from the given folder.",
        "The folder must exist!",
        "Longer text that goes over two lines, with code and bold words in it.",
        "See Thing for more.",
    ]


def test_numpy_style():
    assert sentences_of(NUMPY) == [
        "Compute the mean of all values.",
        "The result is exact for short lists.",
        "Use this when speed does not matter.",
        "The first item is a sentence.",
        "The second item is a sentence that goes over two lines.",
    ]


def test_fields_and_links():
    text = "Open the `user guide <https://x.y>`_ or [the page](https://a.b).\n\n:param x: The value of the thing.\n"
    assert sentences_of(text) == ["Open the user guide or the page."]


def test_sentences_end_at_full_stops_but_not_at_abbreviations():
    assert split_sentences("Use a list, e.g. A or B. See Dr. Who. Done? Yes.") == [
        "Use a list, e.g. A or B.",
        "See Dr. Who.",
        "Done?",
        "Yes.",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Two words.",
        "the sentence starts in lower case.",
        "Call foo_bar to get the value.",
        "Use x = 3 for the value.",
        "See https://example.org for the value.",
        "Return the value of self.value here.",
        "Gibt die Summe aller Werte als Zahl aus.",
        "Caf\u00e9 is not plain ASCII text here.",
        "The values are (see below.",
        "The list of values,",
        "This is considered to be a",
        "Word " * 41 + "end.",
    ],
)
def test_what_is_no_plain_english(text):
    assert not is_plain_english(text)


def make_tree(root: Path, files: int = 3) -> Path:
    for i in range(files):
        folder = root / f"pack{i % 4}"
        folder.mkdir(parents=True, exist_ok=True)
        kind = "abcdefghijklmnopqrstuvwxyz"[i % 26] * (i // 26 + 2)
        (folder / f"m{i:03}.py").write_text(
            f'"""This is the module of the {kind} kind."""\n'
            'def f():\n    """The same sentence is everywhere."""\n'
            "    if True:\n        class C:\n"
            f'            """Inner classes of the {kind} kind count too."""\n'
            "raise SystemExit('it was executed')\n"
        )
    return root


def test_harvest_of_a_folder(tmp_path):
    make_tree(tmp_path)
    (tmp_path / "broken.py").write_text('def f(:\n    """This file cannot be parsed."""\n')
    (tmp_path / "latin.py").write_bytes(b'"""The encoding \xff of this is wrong."""')
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.py").write_text('"""This is a folder of tests."""')
    (tmp_path / "test_b.py").write_text('"""This is a file of tests."""')
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "z.py").write_text('"""The SAME sentence, is everywhere!"""')
    found = harvest_docstrings([tmp_path], num_proc=1, show_progress=False)
    assert found.documents == [
        ["This is the module of the aa kind."],
        ["The same sentence is everywhere."],
        ["Inner classes of the aa kind count too."],
        ["This is the module of the bb kind."],
        ["Inner classes of the bb kind count too."],
        ["This is the module of the cc kind."],
        ["Inner classes of the cc kind count too."],
    ]
    assert found.files == ["pack0/m000.py"] * 3 + ["pack1/m001.py"] * 2 + ["pack2/m002.py"] * 2


def test_harvest_does_not_depend_on_the_number_of_processes(tmp_path):
    make_tree(tmp_path, files=100)
    assert harvest_docstrings([tmp_path], 1, show_progress=False) == harvest_docstrings(
        [tmp_path], 2, show_progress=False
    )


def test_split_is_by_file(tmp_path):
    found = harvest_docstrings([make_tree(tmp_path, files=200)], 1, show_progress=False)
    train, held_out = found.split(0.2)
    assert (train, held_out) == found.split(0.2)
    assert 0.1 < len(held_out) / (len(train) + len(held_out)) < 0.3
    assert sorted(train + held_out) == sorted(found.documents)
    sides = {}
    for document, file in zip(found.documents, found.files, strict=True):
        sides.setdefault(file, set()).add(document in held_out)
    assert all(len(side) == 1 for side in sides.values())
    assert not {s for d in train for s in d} & {s for d in held_out for s in d}
    with pytest.raises(ValueError, match=r"held_out is 1\.0"):
        Docstrings().split(1.0)


def test_standard_library():
    folder = Path(sysconfig.get_paths()["stdlib"]) / "asyncio"
    found = harvest_docstrings([folder], num_proc=1, show_progress=False)
    sentences = [sentence for document in found.documents for sentence in document]
    assert len(sentences) > 200
    assert "Return True if the queue is empty, False otherwise." in sentences
    assert all(3 <= len(sentence.split()) <= 40 for sentence in sentences)


def test_bad_roots(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"):
        harvest_docstrings([tmp_path / "missing"])
    with pytest.raises(ValueError, match="No sentence was found"):
        harvest_docstrings([tmp_path], show_progress=False)
