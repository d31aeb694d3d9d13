"""An audit of an embedder and a decoder that are known: sums of word vectors, and a memory of texts."""

from __future__ import annotations

import json
import re
import zlib

import numpy as np
import pytest

from evaluation.senteval_folder import write_senteval_folder
from hf_meanmax.evaluation.audit import LIMITS, AuditSettings, audit, stsb_pairs
from hf_meanmax.evaluation.audit_page import render_page, write_audit
from hf_meanmax.evaluation.recovery import References, score_recovery
from hf_meanmax.evaluation.senteval_files import LabelledSet

SIZE = 24
SETTINGS = {"embedder": "tiny", "decoder": "memory", "corpus_texts": 30}


def cut(texts):
    return [text.lower().split() for text in texts]


def embed(texts, what=""):
    def vector(word):
        return np.random.default_rng(zlib.crc32(word.encode())).normal(size=SIZE)

    return np.stack([sum(map(vector, words), np.zeros(SIZE)) for words in cut(texts)]).astype(np.float32)


def make_texts(count: int, seed: int) -> list[str]:
    draws = np.random.default_rng(seed)
    words = [f"w{number}" for number in range(60)] + ["Ann", "1999"]
    return [
        " ".join(["The", *draws.choice(words, size=draws.integers(3, 12))]) + f" id{row}x{seed}" for row in range(count)
    ]


TEXTS, CORPUS = make_texts(40, 0), make_texts(30, 1)


class Memory:
    """A decoder that knows texts, and says the one whose vector is nearest; it keeps what it was asked."""

    def __init__(self, texts):
        self.texts, self.vectors = texts, embed(texts)
        self.asked: dict[str, np.ndarray] = {}

    def __call__(self, vectors, what):
        self.asked[what] = vectors
        assert vectors.dtype == np.float32
        return [self.texts[row] for row in ((vectors[:, None] - self.vectors) ** 2).sum(axis=2).argmin(axis=1)]


def pairs():
    first, second = TEXTS[:20], [f"{text} more" if row % 2 else CORPUS[row] for row, text in enumerate(TEXTS[:20])]
    return LabelledSet((first, second), np.arange(20) % 2 * 5.0)


@pytest.fixture(scope="module")
def whole():
    decode = Memory(TEXTS)
    settings = AuditSettings(defence_texts=25)
    result = audit(
        decode, TEXTS, embed(TEXTS), cut, embed=embed, corpus=[*CORPUS, TEXTS[0]], pairs=pairs(), settings=settings
    )
    return result, decode


def test_a_decoder_that_knows_the_texts(whole):
    result, _ = whole
    decoder = result["decoder"]
    assert (decoder["exact_match"], decoder["token_f1"], decoder["names_recall"]) == (1, 1, 1)
    assert decoder["bleu"] == pytest.approx(100)
    assert sum(row["count"] for row in decoder["by_length"]) == result["texts"] == 40
    assert result["case"] == "ignored"
    assert result["limits"][:-1] == list(LIMITS)
    assert result["limits"][-1].startswith(f"With other texts than these {len(TEXTS)} every figure")


def test_text_without_blanks_is_shuffled_too():
    """Its characters: as one word a text would stay what it is."""
    texts = ["\u6211\u559c\u6b22\u5403\u82f9\u679c\u548c\u9999\u8549\u3002", "A text of five words."]
    asked = {}

    def of_texts(texts, what=""):
        asked[what] = texts
        return embed(texts)

    audit(Memory(texts), texts, embed(texts), cut, embed=of_texts, settings=AuditSettings(defence_texts=0))
    for shuffled, text, parts in zip(asked["shuffled words"], texts, (list, str.split), strict=True):
        assert shuffled != text
        assert sorted(parts(shuffled)) == sorted(parts(text))


def test_controls(whole):
    result, decode = whole
    controls = result["controls"]
    # A sum does not know the order of its words, and this decoder has one text for it.
    assert controls["shuffled words"]["exact_match"] == 1
    np.testing.assert_allclose(decode.asked["decode shuffled words"], embed(TEXTS), atol=1e-4)
    assert controls["another text's vector"]["exact_match"] == 0
    assert result["texts_in_corpus"] == 1
    pool = [*CORPUS, TEXTS[0]]
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (embed(TEXTS), embed(pool))]
    found = [pool[row] for row in (unit[0] @ unit[1].T).argmax(axis=1)]
    expected = score_recovery(cut(found), References.of(TEXTS, cut, pool))
    assert {name: controls["nearest text"][name] for name in expected} == expected
    assert expected["exact_match"] == 1 / 40


def test_defences_change_what_the_decoder_reads(whole):
    result, decode = whole
    rows = {row["name"]: row for row in result["defences"]}
    assert rows["none"]["token_f1"] == 1
    assert rows["noise 1"]["token_f1"] < 1
    assert rows["first 3"]["token_f1"] < rows["int8"]["token_f1"] == 1
    assert rows["binary"]["num_bytes"] == 3
    assert {row["texts"] for row in rows.values()} == {25}
    assert rows["none"]["spearman"] > 0.8
    assert rows["first 3"]["spearman"] < rows["none"]["spearman"]
    assert result["defences_fitted_on"] == "corpus"
    rest = decode.asked["decode first 3"][:, 3:]
    np.testing.assert_allclose(rest, np.tile(embed([*CORPUS, TEXTS[0]])[:, 3:].mean(axis=0), (25, 1)), rtol=1e-4)


def test_the_same_seed_gives_the_same_audit(whole):
    again = audit(
        Memory(TEXTS), TEXTS, embed(TEXTS), cut, embed=embed, corpus=[*CORPUS, TEXTS[0]], pairs=pairs(),
        settings=AuditSettings(defence_texts=25),
    )  # fmt: skip
    assert again == whole[0]


def test_a_weak_decoder_is_told(whole):
    assert whole[0]["warnings"] == []

    def same(vectors, what):
        return ["the w1 w2"] * len(vectors)

    weak = audit(same, TEXTS, embed(TEXTS), cut, settings=AuditSettings(defence_texts=0))
    assert len(weak["warnings"]) == 1
    assert "hardly more with the right vector" in render_page(weak, SETTINGS)
    settings = AuditSettings(defence_texts=0)
    beaten = audit(Memory(CORPUS), TEXTS, embed(TEXTS), cut, embed=embed, corpus=TEXTS, settings=settings)
    assert "search reveals more" in beaten["warnings"][-1]


def test_without_the_embedder():
    result = audit(Memory(CORPUS), TEXTS, embed(TEXTS), cut, settings=AuditSettings(defence_texts=0))
    assert list(result["controls"]) == ["another text's vector"]
    assert result["defences"] == []
    assert result["decoder"]["exact_match"] == 0
    assert result["texts_in_corpus"] is None
    page = render_page(result, {**SETTINGS, "embedder": None})
    assert "What the vectors of memory say" in page
    assert "<h2>Defences</h2>" not in page


def test_a_single_text():
    result = audit(Memory(TEXTS), TEXTS[:1], embed(TEXTS[:1]), cut)
    assert result["controls"] == {}
    assert result["decoder"]["exact_match"] == 1
    render_page(result, SETTINGS)


def test_the_page_is_whole_and_asks_for_nothing(whole, tmp_path):
    path = write_audit(whole[0], SETTINGS, tmp_path / "audit")
    page = path.read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 2
    visible = re.sub(r"data:image/png;base64,[\w+/=]+", "", page)
    assert not re.search(r"https?:|//|url\(|@import|<script|<link|srcset", visible)
    for limit in LIMITS:
        assert limit.split(".")[0] in visible
    assert "Capitals and small letters are taken as equal" in visible
    for words in ("nearest text", "shuffled words", "PCA 12", "20 pairs", "100.0&nbsp;%", "1 of the"):
        assert words.replace("&nbsp;", " ") in " ".join(visible.replace("&#39;", "'").split()), words
    record = json.loads((tmp_path / "audit" / "audit.json").read_text(encoding="utf-8"))
    assert record["settings"] == SETTINGS
    assert record["decoder"] == whole[0]["decoder"]
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["audit.html", "audit.json"]


def test_texts_are_shown_and_not_read_as_markup():
    texts = ["<script>alert(1)</script> & more", "the cat"]
    page = render_page(audit(Memory(texts), texts, embed(texts), cut), SETTINGS)
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in page


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"texts": []}, "no text to audit"),
        ({"texts": TEXTS[:3]}, r"3 texts and vectors of shape \(40, 24\)"),
        ({"vectors": np.where(np.arange(40)[:, None] == 7, np.nan, embed(TEXTS))}, "Vector 8 is not finite"),
        ({"embed": None, "corpus": CORPUS}, "needs the embedder"),
        ({"embed": None, "pairs": pairs()}, "need the embedder"),
    ],
)
def test_what_cannot_be_audited(given, reason):
    arguments = {"texts": TEXTS, "vectors": embed(TEXTS), "embed": embed, **given}
    with pytest.raises(ValueError, match=reason):
        audit(Memory(TEXTS), arguments.pop("texts"), arguments.pop("vectors"), cut, **arguments)


@pytest.mark.parametrize("changes", [{"defence_texts": -1}, {"examples": 0}, {"noise_levels": [-1.0]}])
def test_bad_settings(changes):
    with pytest.raises(ValueError, match=f"is {next(iter(changes.values()))}".replace("[-1.0]", "-1.0")):
        AuditSettings(**changes)


def test_the_pairs_of_the_sts_benchmark(tmp_path, monkeypatch):
    write_senteval_folder(tmp_path / "senteval", size=30)
    monkeypatch.setattr("hf_meanmax.evaluation.senteval._check_counts", lambda *_: None)
    found = stsb_pairs(str(tmp_path))
    first, second = found.texts
    assert len(first) == len(second) == len(found.labels) > 0
    # A text begins with its score.
    scores = [float(re.match(r"score([\d.]+)a", text)[1]) for text in first]
    np.testing.assert_allclose(found.labels, scores)
    with pytest.raises(FileNotFoundError):
        stsb_pairs(str(tmp_path / "none"))
