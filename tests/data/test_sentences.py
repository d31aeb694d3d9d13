"""Sentence ends and words of raw text, with and without spaces between words."""

from __future__ import annotations

import sys

import pytest

from hf_meanmax.data import sentences as module
from hf_meanmax.data.sentences import (
    chinese_segmenter,
    has_ideographs,
    is_unsegmented,
    sentence_stretches,
    split_sentences,
)
from hf_meanmax.tokenization import split_words, train_tokenizer

MIXED = "我们在北京大学看书，用 iPhone 13 拍照。“你好！”他说——don't stop, it's 3.5% only……《人民日报》A股、U盘；"


def test_scripts_without_spaces_are_recognised():
    assert is_unsegmented(["我们昨天在北京大学看书。", "酒店的服务态度非常好,WiFi也很快!"])
    assert is_unsegmented(["東京へ行きます。"])
    assert not is_unsegmented(["The old cat sat on the red mat.", "A dog ran."])
    assert not is_unsegmented(["한국어 문장", "", "the word 书"])


@pytest.mark.parametrize(
    "sentences",
    [
        ["He left.", "She stayed!", "“Why?”", "Nobody knew..."],
        ["It cost 3.5 dollars at approx. Ten shops, e.g. Smith's (see fig. A).", "Done…", "Él dijo.", "¿Qué?"],
        ["well... it was ok! it really was. 9 out of 10"],
        ["He said: “Never.”", "(She laughed.)", "'Yes.'", "[Both left.]"],
    ],
)
def test_sentences_of_spaced_text(sentences):
    assert split_sentences(" ".join(sentences)) == sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["今天下雨了。", "“你带伞了吗？”", "没有！！！", "那么；", "走吧……", "好"],
        ["增长3.5%，很快!", "我们去吧.", "好的~~"],
        ["他说：「行く。」", "そうですか？", "（笑い。）", "はい"],
    ],
)
def test_sentences_of_text_without_spaces(sentences):
    assert split_sentences("".join(sentences)) == sentences
    assert split_sentences(" ".join(sentences)) == sentences


def test_a_list_of_titles_takes_time_in_proportion_to_its_length(monkeypatch):
    """Every end that is none would be looked for from the start of the sentence."""
    read = []

    class Abbreviation:
        @staticmethod
        def search(text, start, end):
            read.append(end - start)
            return found.search(text, start, end)

    found = module._ABBREVIATION
    monkeypatch.setattr(module, "_ABBREVIATION", Abbreviation)
    assert len(split_sentences("We met Dr. Smith and approx. Ten others, " + "Dr. Smith " * 500)) == 1
    assert len(read) == 502
    assert max(read) < 20


@pytest.mark.parametrize("text", ["", " ", "No end", " One.  Two. ", MIXED, "。。”。a", "A.\tB.\n\nC"])
def test_stretches_are_the_text(text):
    assert "".join(sentence_stretches(text)) == text


def test_segmenting_loses_nothing(capfd):
    pytest.importorskip("jieba")
    segment = chinese_segmenter()
    for text in (MIXED, "", "  ", "hello world", "\u3000我们\u3000看书 "):
        segmented = segment(text)
        assert "".join(segmented.split()) == "".join(text.split())
        assert segmented == " ".join(segmented.split())
    segmented = segment(MIXED)
    assert segmented.startswith("我们 在 北京大学 看书 ， 用 iPhone 13 拍照 。")
    assert " stop, it's " in segmented, "stretches without Chinese stay as they are"
    assert "说 —— " in segmented, "the dash stays in one part"
    assert segment("真好！！！……") == "真 好 ！！！ ……"
    assert segment("看看天天") == "看看 天天"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (
            "राम घर गया। वह कल आएगा। हाँ।",
            3,
        ),
        ("كيف حالك؟ أنا بخير.", 2),
        ("وہ گیا۔ وہ آیا۔", 2),
        ("In z. B. Berlin, say J. R. R. Tolkien and others.", 2),  # `J.` may end a sentence.
        ("A or B. See below.", 2),
    ],
)
def test_sentences_of_other_languages(text, number):
    assert len(split_sentences(text)) == number
    assert " ".join(split_sentences(text)) == text


def test_scripts_without_spaces():
    thai = "ฉันชอบอ่านหนังสือ"
    assert is_unsegmented([thai])
    assert not has_ideographs([thai])
    assert has_ideographs(["我们"])


def test_word_tokens_are_the_segmented_words():
    pytest.importorskip("jieba")
    segment = chinese_segmenter()
    text = segment("他说：“北京大学的图书馆、食堂都很好！”我们明天去。")
    tokenizer = train_tokenizer([text], "word", show_progress=False)
    # Punctuation that has an ASCII form takes it.
    expected = '他 说 : " 北京大学 的 图书馆 、 食堂 都 很 好 ! " 我们 明天 去 。'.split()
    assert list(split_words(tokenizer, [text])) == [expected]
    ids = tokenizer(text).input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == [*expected, "</s>"]
    decoded = tokenizer.decode(ids, skip_special_tokens=True)
    # The spaces between words come back with them.
    assert decoded == '他 说: "北京大学 的 图书馆、 食堂 都 很 好!" 我们 明天 去。'
    assert tokenizer(decoded).input_ids == ids


def test_jieba_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "jieba", None)
    with pytest.raises(ImportError, match=r'pip install .* "\.\[chinese\]"'):
        chinese_segmenter()
