"""The figure of defences shows what it was given."""

from __future__ import annotations

import base64

import pytest

from hf_meanmax.plots.defences import plot_defences
from hf_meanmax.plots.figures import figure_data_uri

pytest.importorskip("matplotlib")

ROWS = [
    {"kind": "none", "name": "none", "token_f1": 0.5, "spearman": 0.8},
    {"kind": "noise", "name": "noise 1", "token_f1": 0.1, "spearman": -0.2},
    {"kind": "binary", "name": "binary", "token_f1": 0.3, "spearman": None},
]


def test_a_row_for_each_defence():
    figure = plot_defences(ROWS, floor=0.05)
    left, right = figure.axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["none", "noise 1", "binary"]
    assert [bar.get_width() for bar in left.patches] == [0.5, 0.1, 0.3]
    assert [bar.get_width() for bar in right.patches][:2] == [0.8, -0.2]
    assert right.get_xlim()[0] <= -0.2
    assert figure.legends[0].get_texts()[0].get_text() == "another text's vector"


def test_without_similarity_there_is_one_panel():
    rows = [{key: value for key, value in row.items() if key != "spearman"} for row in ROWS]
    assert len(plot_defences(rows).axes) == 1
    with pytest.raises(ValueError, match="no defence was tried"):
        plot_defences([])


def test_a_figure_as_an_address():
    address = figure_data_uri(plot_defences(ROWS), dpi=40)
    head, data = address.split(",")
    assert head == "data:image/png;base64"
    assert base64.b64decode(data).startswith(b"\x89PNG")
