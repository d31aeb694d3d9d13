"""Questions that are made of statements."""

from __future__ import annotations

import gzip
import warnings

import pytest

from hf_meanmax.data import make_questions, open_corpus, write_questions

ALL = 100


def questions(*sentences, **options):
    return list(make_questions(sentences, **{"per_sentence": ALL, **options}))


@pytest.mark.parametrize(
    ("statement", "asked"),
    [
        ("The bridge was built in 1890.", {"What was the bridge?"}),
        ("Marie Curie discovered radium in 1898.", {"Who discovered radium?"}),
        ("Marie Curie was a chemist who discovered radium.", {"Who was Marie Curie?"}),
        ("Radium was discovered by Marie Curie.", {"Who was Radium discovered by?"}),
        ("The road was closed because of heavy snow.", {"Why was the road closed?"}),
        ("Modesto is a town in California.", {"What is Modesto?", "What kind of town is Modesto?"}),
        ("The town has 40 churches and two schools.", {"How many churches are there?"}),
        ("The king\u2019s castle was built by the French.", {"Who was the king\u2019s castle built by?"}),
    ],
)
def test_a_statement_gives_what_can_be_asked_of_it(statement, asked):
    found = questions(statement)
    assert asked <= set(found)
    assert all(question.endswith("?") for question in found)


def test_a_date_is_asked_for_and_left_out():
    found = questions("The old bridge was built by the army in 1890.", "Marie Curie discovered radium in 1898.")
    dates = [question for question in found if question.startswith(("When", "In what year", "What year"))]
    assert len(dates) == 2
    assert dates[0].endswith(" was the old bridge built by the army?")
    assert dates[1] == "When was it that Marie Curie discovered radium?"
    assert not any("18" in question for question in dates)


def test_of_a_pronoun_only_what_is_said_is_asked():
    found = questions("He was the first man on the moon.")
    assert {question.split(" ", 1)[1] for question in found} >= {"was the first man on the moon?"}
    assert not any(" he" in question for question in found)


def test_no_part_of_a_question_is_missing_and_no_word_is_cut():
    found = questions(
        "Paris is (in French) a city of light.", "The army had ten thousand men.", "There are two possible solutions.",
        "In 2001 this became a law.", "She won the prize in chemistry in 1990.",
    )  # fmt: skip
    assert not any(" ?" in question or "How many" in question for question in found)
    assert not any("She" in question for question in found)
    assert "Who won the prize in chemistry?" in found
    assert questions("The town has two schools, and 40 of them are old.")


def test_a_name_inside_a_sentence_is_asked_for_and_no_capital_at_its_start_or_month():
    found = {question for seed in range(30) for question in questions("Yesterday we saw Vienna.", seed=seed)}
    assert found
    assert all("Vienna" in question for question in found)
    assert not questions("Yesterday we met in May.")


def test_what_is_no_statement_gives_nothing():
    assert questions("", "Stop!", "And then?", "running along, as ever") == []


def test_questions_are_drawn_by_the_seed_and_come_once():
    statements = [f"The {number}th bridge of the old town was built by the army in 1890." for number in "345"] * 2
    drawn = questions(*statements, per_sentence=2)
    assert drawn == questions(*statements, per_sentence=2)
    assert drawn != questions(*statements, per_sentence=2, seed=1)
    assert len(drawn) <= 2 * len(statements)
    assert len(set(drawn)) == len(drawn)


def test_of_a_share_of_the_sentences_questions_are_made():
    statements = [f"Town{number} was founded in 1890." for number in range(1000)]
    asked = questions(*statements, share=0.3)
    founded = {word for question in asked for word in question.strip("?").split() if word.startswith("Town")}
    assert 250 < len(founded) < 350


def test_long_and_short_questions_are_left_out():
    words = " ".join(f"word{number}" for number in range(40))
    assert all(3 <= len(question.split()) <= 24 for question in questions(f"The long list is {words[:110]}."))


def test_a_corpus_of_paragraphs_becomes_a_file(tmp_path, capsys):
    (tmp_path / "text.txt").write_text(
        "Marie Curie discovered radium in 1898. It was a great discovery.\n\nThe bridge was built in 1890.\n"
    )
    number = write_questions(open_corpus(str(tmp_path / "text.txt")), tmp_path / "new" / "q.txt.gz", share=1)
    with gzip.open(tmp_path / "new" / "q.txt.gz", "rt", encoding="utf-8") as file:
        lines = file.read().splitlines()
    assert len(lines) == number > 3
    assert any("radium" in line for line in lines)
    assert any("bridge" in line for line in lines)
    assert "100%" in capsys.readouterr().err


def test_text_of_another_language_is_told(tmp_path):
    german = "Im Haus war ein Hund aus Wien bei Herrn Meyer und seiner Frau in der alten Stadt.\n"
    for name, text in (("german", german * 3), ("mixed", german + "The bridge of the town was built in 1890.\n" * 2)):
        (tmp_path / "text.txt").write_text(text)
        with warnings.catch_warnings(record=True) as told:
            write_questions(open_corpus(str(tmp_path / "text.txt")), tmp_path / "q.txt", share=1, show_progress=False)
        found = [str(warning.message) for warning in told]
        assert len(found) == (name == "german")
        assert not found or found[0].startswith("Of the 51 words of this text 0 are the, of, and, or to. Is it Engl")


def test_without_a_question_nothing_is_written(tmp_path):
    (tmp_path / "text.txt").write_text("la la la\n")
    (tmp_path / "q.txt").write_text("older\n")
    with pytest.raises(
        ValueError, match=r"No question was made of this text.* a larger `share` of the sentences than 0\.2"
    ):
        write_questions(open_corpus(str(tmp_path / "text.txt")), tmp_path / "q.txt", show_progress=False)
    assert (tmp_path / "q.txt").read_text() == "older\n"
    with pytest.raises(ValueError, match=r"q\.csv is no \.txt, \.xz or \.gz file"):
        write_questions(open_corpus(str(tmp_path / "text.txt")), tmp_path / "q.csv", show_progress=False)
