"""Cutting of a corpus: nothing is lost uncounted, lengths keep their range, the same on any number of processes."""

from __future__ import annotations

import gzip
import lzma
import os
import random
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from hf_meanmax.commands.prepare import main
from hf_meanmax.data import Cutting, Documents, cut_corpus, open_corpus
from hf_meanmax.data import cutting as cutting_module
from hf_meanmax.data.cutting import Cutter, CuttingReport
from hf_meanmax.tokenization.words import word_normalizer, word_pre_tokenizer

ENGLISH = [
    "The film, long and slow, was not bad. ",
    '"Why?" she asked. ',
    "It's 3.5 hours; I didn't sleep! ",
    "Well... He did (twice). ",
]
CHINESE = ["今天，我们去北京大学看书。", "图书馆很大！", "有Windows 11和3.5万本书；", "“真好，”他说。", "那么……走吧？"]
NORMALIZER, PRE_TOKENIZER = word_normalizer(False), word_pre_tokenizer()


def cut(text: str, *settings, number: int = 0, **options) -> tuple[list[str], CuttingReport]:
    return Cutter(Cutting(*settings, **options).for_texts([text]))(text, number)


def count_words(text: str) -> int:
    return len(PRE_TOKENIZER.pre_tokenize_str(NORMALIZER.normalize_str(text)))


def write_corpus(path: Path, sentences: list[str], lines: int = 200) -> Path:
    """Lines of one to thirty sentences, some without any end, and blank lines."""
    rng = random.Random(0)
    with open(path, "w", encoding="utf-8") as file:
        for number in range(lines):
            line = "".join(rng.choices(sentences, k=rng.randint(1, 30))).strip()
            file.write(re.sub("[.!?。！？；…]", "", line) if number % 10 == 0 else line)
            file.write("\n\n" if number % 50 == 0 else "\n")
    return path


def documents_of(path: Path) -> list[list[str]]:
    assert path.read_text(encoding="utf-8").endswith("\n\n"), "a blank line ends the last document as well"
    return [document.split("\n") for document in path.read_text(encoding="utf-8").split("\n\n")[:-1]]


@pytest.fixture(params=["word", "character"])
def case(request, tmp_path):
    """A corpus, its settings, and how its units are counted."""
    if request.param == "word":
        return write_corpus(tmp_path / "en.txt", ENGLISH), Cutting(40, 10), count_words
    return write_corpus(tmp_path / "zh.txt", CHINESE), Cutting(60, 12), len


def test_lengths_keep_their_range_and_use_all_of_it(case, tmp_path):
    source, settings, count = case
    output = tmp_path / "out.txt"
    report = cut_corpus(open_corpus(source), output, settings, show_progress=False)
    documents = documents_of(output)
    lengths = Counter(count(piece) for document in documents for piece in document)
    assert min(lengths) == settings.min_length
    assert max(lengths) == settings.max_length
    assert len(lengths) > 0.9 * (settings.max_length - settings.min_length)
    assert lengths == report.lengths
    assert report.pieces == lengths.total()
    assert report.texts == len([line for line in open_corpus(source) if line])
    assert report.cut_sentences > 0
    assert all(piece == " ".join(piece.split()) for document in documents for piece in document)


def test_nothing_is_lost_but_counted_short_pieces(case, tmp_path):
    source, settings, count = case
    report = cut_corpus(open_corpus(source), tmp_path / "all.txt", Cutting(settings.max_length), show_progress=False)
    lines = ["".join(line.split()) for line in open_corpus(source) if line]
    documents = documents_of(tmp_path / "all.txt")
    assert ["".join("".join(document).split()) for document in documents] == lines, "one document a line, in order"
    assert report.short_pieces == report.short_units == 0

    report = cut_corpus(open_corpus(source), tmp_path / "long.txt", settings, show_progress=False)
    written = sum(count(piece) for document in documents_of(tmp_path / "long.txt") for piece in document)
    whole = sum(count(line) for line in open_corpus(source) if line)
    assert report.short_pieces > 0
    # Spaces between pieces are no units of either.
    spaces = report.pieces + report.short_pieces if count is len else 0
    assert whole - spaces <= written + report.short_units <= whole


def test_pieces_of_a_text_stand_in_order():
    text = "".join(ENGLISH * 4).strip()
    pieces, report = cut(text, 25, 5, number=3)
    place = 0
    for piece in pieces:
        place = text.index(piece, place) + len(piece)
    assert report.lengths.total() == len(pieces) > 3


def test_sentences_stay_whole_where_they_fit():
    sentences = ["One two three four.", "Five six.", "Seven eight nine ten.", "Eleven twelve thirteen!"]
    lengths = set()
    for number in range(20):
        pieces, report = cut(" ".join(sentences), 10, number=number)
        assert all(piece.endswith((".", "!")) for piece in pieces)
        assert " ".join(pieces) == " ".join(sentences)
        assert report.cut_sentences == 0
        lengths.update(report.lengths)
    assert lengths == {3, 4, 5, 8, 9}, "lengths vary with the line"


def test_a_short_piece_takes_one_more_sentence_if_it_fits():
    text = "Oh! It was a very good film."
    for number in range(20):
        assert cut(text, 9, 4, number=number)[0] == [text]
        pieces, report = cut(text, 8, 4, number=number)
        assert pieces == ["It was a very good film."]
        assert (report.short_pieces, report.short_units) == (1, 2)


def test_a_long_sentence_is_cut_after_a_mark_in_its_last_third():
    words = [f"w{number}" for number in range(14)]
    assert cut(" ".join(words), 7, 7)[0] == [" ".join(words[:7]), " ".join(words[7:])]
    # w0 ... w4 and the comma are 6 of 7 units.
    assert cut(" ".join(words).replace("w4", "w4,"), 7, 6)[0][0] == "w0 w1 w2 w3 w4,"
    assert cut(" ".join(words).replace("w2", "w2,"), 7, 7)[0][0] == "w0 w1 w2, w3 w4 w5"
    pieces, report = cut(" ".join(words) + ". " + " ".join(words[:5]), 7, 1)
    assert report.cut_sentences == 1
    assert " ".join(pieces) == " ".join(words) + ". " + " ".join(words[:5])


def test_words_numbers_and_marks_of_chinese_stay_together():
    text = "我们都在用Windows和3.5万台电脑，很好!" * 5 + "他说：“真好，”然后去看《人民日报》了……"
    for number in range(30):
        pieces, _ = cut(text, 13, unit="character", number=number)
        assert "".join(pieces) == text
        assert sum("Windows" in piece for piece in pieces) == sum("3.5" in piece for piece in pieces) == 5
        assert not any(piece.startswith(tuple("，”！!》…")) or piece.endswith(tuple("“《")) for piece in pieces)


def test_a_short_piece_takes_no_part_that_makes_it_too_long():
    link = "/".join(["Part"] * 4)  # 7 units
    for number in range(20):
        pieces, report = cut(f"Oh, well! {link} {link} {link}", 8, 6, number=number)
        assert pieces == [link] * 3
        assert report.short_units == 4


def test_a_stretch_longer_than_a_piece_is_torn_after_a_unit():
    link = "/".join(["part"] * 30)
    pieces, report = cut(link, 10)
    assert "".join(pieces) == link
    assert max(report.lengths) <= 10
    assert all(part in ("", "part") for piece in pieces for part in piece.split("/")), "words are whole"
    pieces, report = cut("x" * 95, 10, unit="character")
    assert "".join(pieces) == "x" * 95
    assert max(report.lengths) <= 10


@pytest.mark.parametrize(
    ("unit", "text", "length"),
    [
        ("auto", "It's 3.5, no?", 6),
        ("character", "It's 3.5, no?", 13),
        ("auto", "今天 下雨了。", 7),
        ("word", "今天 下雨了。", 3),
    ],
)
def test_units(unit, text, length):
    assert cut(text, unit=unit)[1].lengths == {length: 1}
    assert cut(text, length, length, unit)[1].lengths == {length: 1}
    assert cut(text, length + 1, length + 1, unit)[1].short_units == length


def test_auto_looks_at_the_first_lines_not_at_each(tmp_path):
    corpus = Documents([["这是一个很好的电影。", "Windows 11和Linux", "我们都很喜欢看。"]])
    report = cut_corpus(corpus, tmp_path / "out.txt", show_progress=False)
    assert report.lengths == {8: 1, 10: 1, 16: 1}
    with pytest.raises(ValueError, match="for_texts"):
        Cutter(Cutting())


def test_the_file_depends_on_seed_and_line_alone(case, tmp_path, monkeypatch):
    monkeypatch.setattr(cutting_module, "_LINES_PER_CHUNK", 16)
    source, settings, _ = case
    made = {}
    for name, processes, seed in (("one", 1, 0), ("three", 3, 0), ("other", 1, 1)):
        changed = Cutting(settings.max_length, settings.min_length, seed=seed)
        report = cut_corpus(open_corpus(source), tmp_path / name / "out.gz", changed, processes, show_progress=False)
        made[name] = (tmp_path / name / "out.gz").read_bytes(), report
    assert made["one"] == made["three"]
    assert made["one"][0] != made["other"][0]


@pytest.mark.parametrize(("suffix", "open_file"), [(".txt", open), (".gz", gzip.open), (".xz", lzma.open)])
def test_suffixes_and_documents_without_cutting(tmp_path, suffix, open_file):
    output = tmp_path / f"out{suffix}"
    corpus = Documents([["One  sentence. Another."], ["Two\tlines", "of one\u2028document"]])
    cut_corpus(corpus, output, show_progress=False)
    with open_file(output, "rt", encoding="utf-8") as file:
        assert file.read() == "One sentence. Another.\n\nTwo lines\nof one document\n\n"
    assert os.listdir(tmp_path) == [output.name]


def test_segmented_pieces(tmp_path):
    pytest.importorskip("jieba")
    source, output = write_corpus(tmp_path / "zh.txt", CHINESE, 60), tmp_path / "out.txt"
    report = cut_corpus(open_corpus(source), output, Cutting(30, segment="jieba"), show_progress=False)
    documents = documents_of(output)
    lines = ["".join(line.split()) for line in open_corpus(source) if line]
    assert ["".join("".join(document).split()) for document in documents] == lines
    assert max(report.lengths) == 30
    assert Counter(count_words(piece) for document in documents for piece in document) == report.lengths
    assert any("北京大学 看书" in piece for document in documents for piece in document)
    assert any("Windows 11 和" in piece for document in documents for piece in document)
    # With spaces around the marks, as in other segmented text.
    spaced = [" ".join(re.sub("([，。”])", r" \1 ", piece).split()) for document in documents for piece in document]
    source = write_corpus(tmp_path / "spaced.txt", [" ".join(spaced)], 1)
    cut_corpus(open_corpus(source), output, Cutting(9, 4, unit="word"), show_progress=False)
    assert "，" in output.read_text()
    assert not re.search("^[，。”]", output.read_text(), re.MULTILINE)


def test_command_line(tmp_path, capsys):
    pytest.importorskip("jieba")
    source, output = write_corpus(tmp_path / "zh.txt", CHINESE, 40), tmp_path / "made" / "out.xz"
    main([str(source), "--output", str(output), "--min-length", "5", "--max-length", "30", "--segment", "jieba"])
    said = capsys.readouterr().out
    assert said.startswith("40 texts read, ")
    assert said.count("\n") == 1
    assert "lengths: min 5, median" in said
    assert len(list(open_corpus(output))) > 80


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--min-length", "9", "--max-length", "8"], "max_length is 8; it must be at least min_length = 9"),
        (["--min-length", "9"], "max_length is not given"),
        (["--max-length", "9", "--seed", "-1"], "`seed` is -1"),
        (["--max-length", "500", "--min-length", "400"], "No piece is left (2 texts read, 0 pieces written, 2 short"),
        (["--output", "out.zip"], "out.zip is no .txt, .xz or .gz file"),
        (["--segment", "jieba"], 'pip install -c constraints.txt ".[chinese]"'),
        (["--segment", "jieba", "--parallel", "2"], 'pip install -c constraints.txt ".[chinese]"'),
    ],
)
def test_bad_input_is_one_line_and_leaves_the_old_file(tmp_path, capsys, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "jieba", None)
    Path("in.txt").write_text("One.\nTwo.\n", encoding="utf-8")
    Path("out.gz").write_text("old", encoding="utf-8")
    with pytest.raises(SystemExit) as error:
        main(["in.txt", "--output", "out.gz", *options])
    told = capsys.readouterr().err if error.value.code == 2 else str(error.value)
    assert told.startswith("hf-meanmax prepare: ")
    assert message in told
    assert Path("out.gz").read_text(encoding="utf-8") == "old"
    assert sorted(os.listdir()) == ["in.txt", "out.gz"]


@pytest.mark.parametrize("text", ["", "\n \n\n"])
def test_an_empty_corpus_is_an_error(tmp_path, text):
    (tmp_path / "in.txt").write_text(text)
    with pytest.raises(ValueError, match="The corpus is empty"):
        cut_corpus(open_corpus(tmp_path / "in.txt"), tmp_path / "out.txt", Cutting(9), show_progress=False)
    assert os.listdir(tmp_path) == ["in.txt"]


@pytest.mark.parametrize(("name", "value"), [("unit", "letter"), ("segment", "spaces"), ("min_length", 0)])
def test_unknown_settings_are_named(name, value):
    with pytest.raises(ValueError, match=f"`{name}` is {value!r}"):
        Cutting(**{"max_length": 9, name: value})
