"""What counts as recovered, beside counts made by hand."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_meanmax.evaluation.reconstruction import score_reconstructions
from hf_meanmax.evaluation.recovery import (
    References,
    ignores_case,
    names_of,
    pick_examples,
    recovery_by_length,
    score_recovery,
    token_f1,
    word_cutter,
)
from tiny_model import TEXTS, make_tokenizer


def tokenizer(lowercase: bool = True, pieces: bool = False) -> PreTrainedTokenizerFast:
    model = models.WordPiece({"[UNK]": 0}, unk_token="[UNK]") if pieces else models.WordLevel({"[UNK]": 0}, "[UNK]")
    backend = Tokenizer(model)
    backend.normalizer = normalizers.Lowercase() if lowercase else None
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")


TEXT = 'In 1999 Ann Lee met 12 men in Rome. She said: "They ran", and I left.'


def test_names_do_not_begin_a_sentence_or_a_quotation():
    assert list(names_of(TEXT)) == ["Ann", "Lee", "Rome"]
    assert list(names_of("I saw O'Brien, I'm sure. The man Jean-Luc\u2019s left")) == ["O'Brien", "Jean-Luc"]
    assert list(names_of("ALL IS WELL")) == list(names_of("")) == list(names_of("the cat")) == []


def test_special_words_and_their_recall():
    cut = word_cutter(tokenizer(), [TEXT])
    references = References.of([TEXT, "the men ran"], cut)
    assert references.special["numbers"] == [["1999", "12"], []]
    assert references.special["names"] == [["ann", "lee", "rome"], []]
    assert references.special["rare_words"][1] == ["the"]  # men and ran occur twice
    said = cut(["lee saw 12 and 12 , lee", "the men"])
    scores = score_recovery(said, references)
    assert (scores["numbers"], scores["numbers_recall"]) == (2, 0.5)
    assert (scores["names"], scores["names_recall"]) == (3, pytest.approx(1 / 3))
    assert scores["texts"] == 2
    assert scores["exact_match"] == 0
    assert scores["token_f1"] == pytest.approx((2 * 4 / (7 + len(references.words[0])) + 0.8) / 2)
    # The other text alone, with the counts of both.
    other = score_recovery(said[1:], references.select([1]))
    assert (other["numbers"], other["numbers_recall"], other["rare_words_recall"]) == (0, None, 1.0)


def test_rare_words_are_counted_in_a_corpus():
    cut = word_cutter(tokenizer(), ["a"])
    frequent = References.of(["the odd cat"], cut, ["the cat"] * 2)
    assert frequent.special["rare_words"] == [["odd"]]
    assert (frequent.rare_count, frequent.counted_words) == (1, 4)
    many = References.of(["the odd cat"], cut, ["the the the the the"] * 60_000 + ["cat cat cat"])
    assert many.rare_count == 3
    assert many.special["rare_words"] == [["odd", "cat"]]


@pytest.mark.parametrize(("lowercase", "case"), [(True, True), (False, False)])
def test_case_is_that_of_the_decoder(lowercase, case):
    cut = word_cutter(tokenizer(lowercase), ["a"])
    assert ignores_case(cut) is case
    references = References.of(["he met Ann"], cut)
    scores = score_recovery(cut(["he met ann"]), references)
    assert (scores["names_recall"], scores["exact_match"]) == (float(case), float(case))


def test_text_without_spaces_is_cut_by_character_under_pieces():
    assert word_cutter(tokenizer(pieces=True), ["中国经济"])(["中国经济"]) == [["中", "国", "经", "济"]]
    assert word_cutter(tokenizer(pieces=True), ["แมวนอน"])(["แมวนอน"]) == [list("แมวนอน")]
    assert word_cutter(tokenizer(pieces=True), ["The cat"])(["The cats."]) == [["the", "cats", "."]]


@pytest.mark.parametrize(
    ("said", "true", "expected"),
    [("", "", 1), ("a", "", 0), ("", "a", 0), ("a b", "b a", 1), ("a a a", "a b", 0.4), ("a b c d", "a b", 2 / 3)],
)
def test_token_f1(said, true, expected):
    assert token_f1(said.split(), true.split()) == pytest.approx(expected)


def test_bleu_and_exact_matches_are_those_of_reconstructions():
    tiny = make_tokenizer()
    texts, said = [text for text in TEXTS if text], ["the cat sat", "a dog ran on the mat", "", "the red dog sat"]
    cut = word_cutter(tiny, texts)
    scores = score_recovery(cut(said), References.of(texts, cut))
    expected = score_reconstructions(tiny, texts, [tiny(text, add_special_tokens=False)["input_ids"] for text in said])
    assert scores["bleu"] == pytest.approx(expected.bleu)
    assert scores["exact_match"] == expected.exact_match == 0.25


def test_by_length():
    cut = word_cutter(make_tokenizer(), ["a"])
    texts = ["the cat", "a dog ran", "a dog ran on the mat the cat", "the old cat sat on the red mat"]
    said = ["the cat", "a cat ran", "a dog ran on the mat the cat", "the old"]
    references = References.of(texts, cut)
    rows = recovery_by_length(cut(said), references)
    assert [(row["from"], row["to"], row["count"]) for row in rows] == [(1, 5, 2), (6, 10, 2)]
    assert rows[0]["bleu"] is None
    for row, part in zip(rows, ([0, 1], [2, 3]), strict=True):
        expected = score_recovery(cut([said[number] for number in part]), references.select(part))
        assert row["token_f1"] == expected["token_f1"]
        assert row["exact_match"] == expected["exact_match"] == 0.5
    assert rows[1]["bleu"] == pytest.approx(score_recovery(cut(said[2:]), references.select([2, 3]))["bleu"])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 14, 40])
def test_examples_do_not_overlap(count):
    texts = [f"text {number}" for number in range(count)]
    scores = [(number * 11 % count) / count for number in range(count)]
    groups = pick_examples(texts, texts, [(score, False) for score in scores], 5)
    shown = [row["text"] for rows in groups.values() for row in rows]
    assert len(shown) == len(set(shown)) == min(count, 15)
    assert groups["best"][0]["token_f1"] == max(scores)
    if count > 2:
        assert groups["worst"][0]["token_f1"] == min(scores)
        values = [[row["token_f1"] for row in groups[name]] for name in ("best", "median", "worst")]
        assert min(values[0]) > max(values[1]) >= min(values[1]) > max(values[2])
    if count == 40:
        assert abs(sorted(values[1])[2] - 0.5) < 0.06


def test_texts_that_came_back_word_for_word_are_the_best():
    texts = ["a long text with its words in another order", "a text", "a b"]
    groups = pick_examples(texts, texts, [(1.0, False), (1.0, True), (0.5, False)], 1)
    assert [rows[0]["text"] for rows in groups.values()] == [texts[1], texts[0], texts[2]]


def test_no_text():
    cut = word_cutter(make_tokenizer(), ["a"])
    with pytest.raises(ValueError, match="There is no text to score"):
        score_recovery([], References.of([], cut))
