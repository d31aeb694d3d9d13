"""Scores of texts: equal to the libraries' own, right for Chinese, extremes, empty texts, scores by length."""

from __future__ import annotations

import random
import sys

import pytest
import sacrebleu

from hf_meanmax.evaluation.text_scores import (
    RougeTokenizer,
    TextScores,
    length_edges,
    length_table,
    score_texts,
    scores_by_length,
    tokenization_of,
)

CHINESE = [
    "我们昨天在北京大学看书。",
    "2022年的冬天很冷,下了一场大雪。",
    "酒店的服务态度非常好,WiFi也很快!",
    "记者从会议上获悉这个消息。",
]
ENGLISH = [
    "The old cat sat on the red mat.",
    "Don't stop, please: it is 3.5 miles to go!",
    "A dog ran.",
    "He wrote a long_letter to her, and she never answered it.",
]


def swap(text: str) -> str:
    """A text with its first and last thirds exchanged."""
    third = len(text) // 3
    return text[-third:] + text[third:-third] + text[:third]


@pytest.mark.parametrize("tokenize", ["none", "13a", "intl", "zh", "char"])
@pytest.mark.parametrize("references", [CHINESE, ENGLISH], ids=["chinese", "english"])
def test_bleu_and_chrf_are_sacrebleu_s(references, tokenize):
    hypotheses = [references[0], swap(references[1]), references[2][:-2], ""]
    scores = score_texts(hypotheses, references, tokenize, rouge=False)
    bleu = sacrebleu.BLEU(tokenize=tokenize)
    chrf = sacrebleu.CHRF()
    assert scores.bleu == bleu.corpus_score(hypotheses, [references]).score
    assert scores.chrf == chrf.corpus_score(hypotheses, [references]).score
    assert scores.signatures == {"bleu": str(bleu.get_signature()), "chrf": str(chrf.get_signature())}
    assert f"tok:{tokenize}" in scores.signatures["bleu"]
    assert f"version:{sacrebleu.__version__}" in scores.signatures["bleu"]
    assert (scores.exact_match, scores.sentences) == (0.25, 4)


def test_chinese_rouge_by_hand():
    """小猫喜欢我 against 我喜欢小猫: all characters, two of four pairs, a common subsequence of two characters."""
    pytest.importorskip("rouge_score")
    scores = score_texts(["小猫喜欢我"], ["我喜欢小猫"], "zh")
    assert (scores.rouge1, scores.rouge2, scores.rougeL) == (pytest.approx(100), pytest.approx(50), pytest.approx(40))
    # The mean over texts; three of the 3 and 5 characters: F1 = 2 * 3 / 8.
    scores = score_texts(["小猫喜欢我", "我喜欢"], ["我喜欢小猫", "我喜欢。小猫"], "zh")
    assert scores.rouge1 == pytest.approx((100 + 75) / 2)
    assert scores.rougeL == pytest.approx((40 + 75) / 2)
    assert "tok:words+cjk" in scores.signatures["rouge"]


def test_rouge_tokens():
    tokenize = RougeTokenizer().tokenize
    assert tokenize("WiFi快,2022年 <unk>") == ["wifi", "快", "2022", "年", "unk"]
    assert tokenize("Müllers naïve Straße_7") == ["müllers", "naïve", "straße", "7"]
    assert tokenize("हिन्दी में") == ["हिन्दी", "में"]
    assert tokenize("ラーメンを食べる") == list("ラーメンを食べる")
    assert tokenize("한국어 문장") == ["한국어", "문장"]
    assert tokenize(" ,。!") == tokenize("") == []


def test_rouge_on_ascii_text_is_the_library_s():
    rouge_scorer = pytest.importorskip("rouge_score.rouge_scorer")
    references = [*ENGLISH, "Running dogs chased the flying aeroplanes'  shadows"]
    hypotheses = [*map(swap, ENGLISH), "the dog runs and chases a shadow of flying aeroplanes"]
    scorer = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"])
    own = [scorer.score(true, said) for said, true in zip(hypotheses, references, strict=True)]
    scores = score_texts(hypotheses, references, rouge=True)
    for name in ("rouge1", "rouge2", "rougeL"):
        assert getattr(scores, name) == pytest.approx(100 * sum(row[name].fmeasure for row in own) / len(own))
    assert "stem:no" in scores.signatures["rouge"]


def extremes(scores: TextScores) -> list[float]:
    return [
        scores.bleu,
        scores.chrf,
        scores.rouge1,
        scores.rouge2,
        scores.rougeL,
        100 * scores.exact_match,
        100 * scores.token_accuracy,
    ]


@pytest.mark.parametrize(
    ("texts", "tokenize"), [(CHINESE, "zh"), (CHINESE, "char"), (ENGLISH, "13a"), (ENGLISH, "none")]
)
def test_identical_texts_score_100_and_disjoint_texts_0(texts, tokenize):
    pytest.importorskip("rouge_score")
    assert extremes(score_texts(texts, texts, tokenize)) == pytest.approx([100] * 7)
    assert score_texts(texts, texts, tokenize).bleu <= 100
    assert extremes(score_texts(["qqqq ; qqqq ; qqqq"] * 4, ["zzzz 甲乙丙丁 zzzz"] * 4, tokenize)) == [0] * 7


def test_shuffled_pairs_score_low():
    pytest.importorskip("rouge_score")
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(500)]
    texts = [" ".join(draw.choices(words, k=12)) for _ in range(60)]
    scores = score_texts(texts[1:] + texts[:1], texts)
    # Single letters agree by chance.
    assert scores.chrf < 20
    assert max(score for score in extremes(scores) if score != scores.chrf) < 5
    characters = [chr(0x4E00 + number) for number in range(500)]
    texts = ["".join(draw.choices(characters, k=30)) for _ in range(60)]
    assert max(extremes(score_texts(texts[1:] + texts[:1], texts, "zh"))) < 12


def test_token_accuracy_by_hand():
    """Of 5 + 3 + 2 tokens, 3 (a word too many shifts the rest), 3 and 1 stand at their place."""
    references = ["a b c d e", "a b c", "x y"]
    hypotheses = ["a b c z d e", "a b c d d d", "x"]
    assert score_texts(hypotheses, references, rouge=False).token_accuracy == pytest.approx(7 / 10)
    assert score_texts(["我们不读书"], ["我们爱读书"], "zh", rouge=False).token_accuracy == pytest.approx(4 / 5)


@pytest.mark.parametrize("tokenize", ["none", "13a", "zh", "char"])
def test_empty_texts_cost_and_do_not_fail(tokenize):
    pytest.importorskip("rouge_score")
    assert extremes(score_texts(["", ""], ["a b c d e", "我们爱读书"], tokenize)) == [0] * 7
    assert extremes(score_texts(["a b c d e"], [""], tokenize)) == [0] * 7
    nothing = score_texts(["", " "], ["", " "], tokenize)
    assert (nothing.exact_match, nothing.bleu, nothing.rouge1, nothing.token_accuracy) == (1, 0, 0, 0)
    half = score_texts(["", "a b c d e"], ["a b c d e", "a b c d e"], tokenize)
    assert (half.exact_match, half.token_accuracy, half.rouge1) == (0.5, 0.5, pytest.approx(50))
    assert scores_by_length(["", "a b"], ["", "a b"], tokenize=tokenize)[0]["from"] == 0


@pytest.mark.parametrize(
    ("hypotheses", "references", "options", "message"),
    [
        (["a", "b", "c"], ["a"], {}, "3 hypotheses for 1 references"),
        ([], [], {}, "both lists are empty"),
        ("abc", ["a"], {}, "hypotheses is a single string"),
        (["a"], [None], {}, r"references\[0\] is NoneType"),
        (["a"], ["a"], {"tokenize": "words"}, "`tokenize` is 'words'; allowed: 'none', '13a'"),
    ],
)
def test_bad_texts_are_refused(hypotheses, references, options, message):
    for function in (score_texts, scores_by_length):
        with pytest.raises(ValueError, match=message):
            function(hypotheses, references, **options)


def test_rouge_is_demanded_only_where_it_is_asked_for(monkeypatch):
    for name in ("rouge_score", "rouge_score.rouge_scorer"):
        monkeypatch.setitem(sys.modules, name, None)
    scores = score_texts(ENGLISH, ENGLISH)
    assert (scores.bleu, scores.rouge1) == (pytest.approx(100), None)
    assert set(scores.to_dict()) == {"bleu", "chrf", "exact_match", "token_accuracy", "sentences", "signatures"}
    with pytest.raises(ImportError, match=r'rouge-score\. In a clone: pip install .* "\.\[evaluation\]"'):
        score_texts(ENGLISH, ENGLISH, rouge=True)


def numbered(length: int, start: int = 0) -> str:
    return " ".join(f"w{start + number}" for number in range(length))


def test_scores_by_length_are_those_of_each_bin():
    references = [numbered(length, 7 * length) for length in (2, 3, 5, 6, 7, 10, 11, 18, 40)]
    hypotheses = [*references[:4], *(text.removesuffix(text.split()[-1]) + "oops" for text in references[4:])]
    rows = scores_by_length(hypotheses, references, edges=(5, 10, 15, 20))
    assert [(row["from"], row["to"], row["count"]) for row in rows] == [
        (1, 5, 3),
        (6, 10, 3),
        (11, 15, 1),
        (16, 20, 1),
        (21, None, 1),
    ]
    for row, part in zip(rows, (slice(0, 3), slice(3, 6), slice(6, 7), slice(7, 8), slice(8, 9)), strict=True):
        whole = score_texts(hypotheses[part], references[part], rouge=False)
        assert {name: row[name] for name in ("bleu", "chrf", "exact_match", "token_accuracy")} == {
            name: getattr(whole, name) for name in ("bleu", "chrf", "exact_match", "token_accuracy")
        }
    assert rows[0]["bleu"] == pytest.approx(100)
    assert rows[1]["exact_match"] == pytest.approx(1 / 3)


def test_lengths_are_in_the_tokens_of_bleu():
    rows = scores_by_length(["我们爱读书。"], ["我们爱读书。"], tokenize="zh")
    assert [(row["from"], row["to"], row["bleu"]) for row in rows] == [(6, 10, pytest.approx(100))]


def test_a_bin_of_texts_without_four_tokens_has_no_bleu():
    rows = scores_by_length(["a b", "a b c d"], ["a b", "a b c d"], edges=(3, 6))
    assert [row["bleu"] for row in rows] == [None, pytest.approx(100)]
    assert "| 1-3 | 1 | - |\n| 4-6 | 1 | 100.0 |" in length_table({"x": rows})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"edges": (5, 5)}, r"edges is \(5, 5\); give ascending lengths"),
        ({"edges": (0, 5)}, "ascending lengths from 1"),
        ({"edges": ()}, "ascending lengths from 1"),
    ],
)
def test_bad_bins_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        scores_by_length(["a b"], ["a b"], **options)


def test_default_bins_fit_the_data():
    assert length_edges(range(4, 33)) == [5, 10, 15, 20, 25, 30, 35]
    assert length_edges(range(50, 251)) == list(range(25, 251, 25))
    assert length_edges([1]) == length_edges([0]) == [5]
    # One text in 500 does not stretch the bins; it falls into the open one.
    assert length_edges([*range(1, 21)] * 25 + [5000]) == [5, 10, 15, 20]
    draw = random.Random(0)
    for scale in (3, 30, 300, 3000, 30000):
        lengths = [draw.randint(1, scale) for _ in range(200)]
        edges = length_edges(lengths)
        assert len(edges) <= 10
        assert len({high - low for low, high in zip([0, *edges], edges, strict=False)}) == 1


def test_table_of_several_systems():
    references = [numbered(5), numbered(8)]
    good = scores_by_length(references, references, edges=(5, 10))
    poor = scores_by_length(["nothing", references[1]], references, edges=(5,))
    assert length_table({"good": good, "poor": poor}) == (
        "| length | texts | good | poor |\n"
        "|---|---:|---:|---:|\n"
        "| 1-5 | 1 | 100.0 | 0.0 |\n"
        "| 6-10 | 1 | 100.0 | - |\n"
        "| 6+ | 1 | - | 100.0 |\n"
    )
    assert length_table({"good": good}, ["exact_match"]).splitlines()[2] == "| 1-5 | 1 | 100.0% |"
    with pytest.raises(ValueError, match="`metric` is 'blue'; allowed: 'bleu'"):
        length_table({"good": good}, ["blue"])
    with pytest.raises(ValueError, match="No system"):
        length_table({})


def test_figure_shows_each_system_and_the_number_of_texts():
    pytest.importorskip("matplotlib")
    from hf_meanmax.plots.reconstruction import plot_by_length

    references = [numbered(5), numbered(8), numbered(9), numbered(14)]
    good = scores_by_length(references, references, edges=(5, 10))
    poor = scores_by_length(["nothing", *references[1:]], references, edges=(5, 10))
    figure = plot_by_length({"good": good, "poor": poor})
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.lines] == ["good", "poor"]
    assert list(axes.lines[0].get_ydata()) == pytest.approx([100, 100, 100])
    assert list(axes.lines[1].get_ydata()) == pytest.approx([0, 100, 100])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1-5\nn=1", "6-10\nn=2", "11+\nn=1"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["good", "poor"]
    assert axes.get_ylabel() == "BLEU"
    assert axes.get_ylim()[0] == 0
    assert plot_by_length({"good": good}, "exact_match").axes[0].get_legend() is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [("the cat", "13a"), ("我们昨天在北京大学看书 iPhone", "zh"), ("หนังสือ", "char")],
)  # fmt: skip
def test_raw_text_is_cut_as_its_script_asks(text, expected):
    assert tokenization_of([text], "13a") == expected
