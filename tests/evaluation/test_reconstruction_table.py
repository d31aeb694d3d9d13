"""The table of reconstructions: texts of all lengths, drawn by a seed, beside what each system said."""

from __future__ import annotations

import json

import pytest

from hf_meanmax.commands.reproduce import compare_reconstructions
from hf_meanmax.evaluation.reconstruction_table import (
    read_texts,
    reconstruction_table,
    sample_texts,
    write_table,
    write_texts,
)
from hf_meanmax.evaluation.text_scores import scores_by_length

TEXTS = [" ".join(["word"] * length) + f" {length}" for length in range(1, 41)]
PARTED = "a|b\tc\nd\u2028e"


def test_texts_are_read_as_they_were_written(tmp_path):
    said = ["x <unk> *y*", "z\rw"]
    write_texts(tmp_path, [PARTED, "中国 经济"], said)
    assert read_texts(tmp_path) == [("a|b c d e", "x <unk> *y*"), ("中国 经济", "z w")]
    write_texts(tmp_path, [], [])
    assert read_texts(tmp_path) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text\tother\na\tb\n", "its first line is 'text\\\\tother'"),
        ("text\treconstruction\na\tb\na\n", "line 3 has 1 columns, expected 2"),
        ("text\treconstruction\na\tb\tc\n", "line 2 has 3 columns, expected 2"),
    ],
)
def test_damaged_texts_are_refused(tmp_path, content, message):
    with pytest.raises(FileNotFoundError, match=r"reconstructions.tsv is missing; name an --output folder"):
        read_texts(tmp_path)
    (tmp_path / "reconstructions.tsv").write_text(content)
    with pytest.raises(ValueError, match=f"reconstructions.tsv is damaged: {message}"):
        read_texts(tmp_path)


def test_one_text_of_each_part_of_the_lengths():
    drawn = sample_texts(TEXTS, 4, seed=1)
    lengths = [len(text.split()) for text in drawn]
    assert [(length - 2) // 10 for length in lengths] == [0, 1, 2, 3]
    assert drawn == sample_texts([*reversed(TEXTS), *TEXTS], 4, seed=1)
    assert len({tuple(sample_texts(TEXTS, 4, seed)) for seed in range(10)}) > 5
    assert sample_texts(TEXTS[:3], 9) == TEXTS[:3]
    for texts, number in ((TEXTS, 0), ([], 3)):
        with pytest.raises(ValueError, match="cannot be drawn"):
            sample_texts(texts, number)


def test_chinese_is_measured_in_characters():
    texts = ["中国经济年增长", "中 国", "one two three four"]
    assert sample_texts(texts, 3) == ["中 国", "one two three four", "中国经济年增长"]
    table = reconstruction_table({"a": [(text, "x") for text in texts]}, texts[:2])
    assert [line.split(" | ")[0] for line in table.split("\n")[2::2]] == ["| 7", "| 2"]


def test_each_system_stands_below_the_ground_truth():
    systems = {"AAE": [("a | b", "a | *b*"), ("c", "c")], "R|AE": [("c", "d"), ("a | b", "<unk>")]}
    assert reconstruction_table(systems, ["c", "a | b"]) == (
        "| length | system | text |\n"
        "|---:|---|---|\n"
        "| 1 | ground truth | c |\n"
        "|  | AAE | c |\n"
        "|  | R\\|AE | d |\n"
        "| 3 | ground truth | a \\| b |\n"
        "|  | AAE | a \\| \\*b\\* |\n"
        "|  | R\\|AE | \\<unk> |"
    )
    with pytest.raises(ValueError, match="AAE has no reconstruction of 'e'"):
        reconstruction_table(systems, ["e"])
    with pytest.raises(ValueError, match="No system to show"):
        reconstruction_table({}, ["c"])


def test_only_texts_that_all_systems_share_are_drawn(tmp_path):
    systems = {"a": [(text, "x") for text in TEXTS], "b": [(text, "y") for text in TEXTS[30:]]}
    write_table(tmp_path / "t.md", systems, number=3, seed=2)
    text = (tmp_path / "t.md").read_text()
    assert text.startswith(reconstruction_table(systems, sample_texts(TEXTS[30:], 3, seed=2)) + "\n\n")
    assert text.endswith(
        "\n3 of 10 texts, drawn with seed 2, from short to long. Lengths are in words, of Chinese and Japanese in "
        "characters.\n"
    )
    write_table(tmp_path / "t.md", systems, rows=[40, 31])
    text = (tmp_path / "t.md").read_text()
    assert text.startswith(reconstruction_table(systems, [TEXTS[39], TEXTS[30]]) + "\n\nChosen texts: 40, 31 of 40. ")
    for arguments, message in (
        ({"rows": [0]}, "rows is 0; the first system has the rows 1 to 40"),
        ({"rows": [3, 41]}, "rows is 3, 41"),
        ({"rows": [3]}, "b has no reconstruction of"),
    ):
        with pytest.raises(ValueError, match=message):
            write_table(tmp_path / "other.md", systems, **arguments)
    with pytest.raises(ValueError, match="No text is shared by a, b"):
        write_table(tmp_path / "other.md", {**systems, "b": [("other", "x")]})
    with pytest.raises(ValueError, match="No text is shared by no system"):
        write_table(tmp_path / "other.md", {})
    assert not (tmp_path / "other.md").exists()


def test_command_line(tmp_path, capsys):
    folders = [tmp_path / "one/scores", tmp_path / "two/scores"]
    for folder, said in zip(folders, "xy", strict=True):
        folder.mkdir(parents=True)
        write_texts(folder, TEXTS, [said] * len(TEXTS))
        by_length = scores_by_length([said] * len(TEXTS), TEXTS, tokenize="none")
        (folder / "reconstruction.json").write_text(json.dumps({"scores": {"by_length": by_length}}))
    words = [*map(str, folders), "--output", str(tmp_path / "t")]
    with pytest.raises(SystemExit, match="different names, got A, A; give --names"):
        compare_reconstructions([*words, "--names", "A", "A"])
    with pytest.raises(SystemExit, match="1 names for 2 folders"):
        compare_reconstructions([*words, "--names", "A"])
    compare_reconstructions([*words, "--names", "A", "B", "--number", "2", "--seed", "5"])
    systems = {"A": read_texts(folders[0]), "B": read_texts(folders[1])}
    expected = reconstruction_table(systems, sample_texts(TEXTS, 2, seed=5))
    assert (tmp_path / "t/reconstructions.md").read_text().startswith(expected + "\n")
    # Without names, by what tells the folders apart.
    compare_reconstructions(words)
    assert "one/scores" in (tmp_path / "t/reconstructions.md").read_text()
    compare_reconstructions([*words, "--names", "A", "B", "--rows", "7"])
    shown = reconstruction_table(systems, [TEXTS[6]])
    assert (tmp_path / "t/reconstructions.md").read_text().startswith(shown + "\n")
    with pytest.raises(SystemExit, match=r"compare-reconstructions: .*none.reconstructions.tsv is missing"):
        compare_reconstructions([str(tmp_path / "none"), *words[2:]])
