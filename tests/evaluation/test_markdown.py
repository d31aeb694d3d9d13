"""Markdown tables: cells that stay cells, texts that stay texts."""

from __future__ import annotations

import pytest

from hf_meanmax.evaluation.markdown import markdown_table, markdown_text


def test_a_table_has_a_line_for_each_row():
    table = markdown_table(["name", "score"], [["**mine**", "1.0"], ["", "2"]], "lr")
    assert table == "| name | score |\n|---|---:|\n| **mine** | 1.0 |\n|  | 2 |"
    assert markdown_table(["a", "b"], []) == "| a | b |\n|---|---|"


def test_pipes_and_line_breaks_stay_inside_their_cell():
    table = markdown_table(["a|b"], [["x | y\nz\u2028w"]])
    assert table.split("\n") == ["| a\\|b |", "|---|", "| x \\| y z w |"]


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("<unk> of *x*", r"\<unk> of \*x\*"),
        ("a_b `c` [d](e)", r"a\_b \`c\` \[d](e)"),
        ("~~no~~ $5 or $6 &amp; \\", r"\~\~no\~\~ \$5 or \$6 \&amp; \\"),
        ("plain text, with (marks): 1.5 - 2!", "plain text, with (marks): 1.5 - 2!"),
        ("中国，经济。", "中国，经济。"),
    ],
)
def test_a_text_is_shown_as_it_is(text, escaped):
    assert markdown_text(text) == escaped


def test_a_backslash_before_a_pipe_is_no_escape():
    """GitHub reads `\\|` as a pipe before anything else, so three backslashes show a backslash and a pipe."""
    assert markdown_table(["t"], [[markdown_text("a\\|b")]]).endswith("| a\\\\\\|b |")
