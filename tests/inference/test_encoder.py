"""What a model's texts get before they are encoded."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hf_meanmax import pretrained
from hf_meanmax.checkpoint.folder import load_checkpoint
from hf_meanmax.inference.encoder import load_encoder, report_unknown
from hf_meanmax.tokenization import train_tokenizer
from hf_meanmax.tokenization.tokenizers import UnknownWords, unknown_word_rate, unread_words


@pytest.mark.parametrize(
    ("learnt", "text", "advice"),
    [
        ("今天 天气 很 好 。", "今天天气很好。", "They have no spaces between words"),
        ("今天 天气 很 好 。", "明天 早上 也许 下雨", "Is it of their language?"),
        ("the weather is good", "今天天气很好", "Is it of their language?"),
        ("the weather is good", "the weather is bad and old", "Is it of their language?"),
        ("the weather is good", "the weather is good is good today", None),
    ],
)
def test_many_unknown_words_are_told_with_what_to_do(capsys, learnt, text, advice):
    tokenizer = train_tokenizer([learnt] * 3, show_progress=False)
    report_unknown(tokenizer, [text], "the queries")
    said = capsys.readouterr().err
    assert (f"of the queries. {advice}" in said) if advice else said == ""
    report_unknown(None, [text], "the queries")
    assert capsys.readouterr().err == ""


def test_unknown_pieces_of_other_tokenizers_count():
    """Unigram keeps the text of what it does not know."""
    model = models.Unigram([("<unk>", 0.0), (" ", -1.0), ("cat", -1.0)], unk_id=0)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), unk_token="<unk>")
    assert unread_words(tokenizer, ["dog cat dog"]) == UnknownWords(2, 5)


def test_words_spelt_letter_by_letter_are_unread():
    """Nothing is unknown to WordPiece that knows the letters."""
    tokenizer = AutoTokenizer.from_pretrained(pretrained("mini-en"))
    russian = "\u043c\u043e\u0441\u043a\u0432\u0430"
    assert unknown_word_rate(tokenizer, [russian]).rate == 0
    assert unread_words(tokenizer, [f"the NSA met at {russian} in 1987."]) == UnknownWords(1, 8)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_words_spelt_by_bytes_are_unread(kind, capsys):
    tokenizer = train_tokenizer(["the weather", "weather the", "weather", "the"] * 9, kind, 500, show_progress=False)
    russian = "\u043c\u043e\u0441\u043a\u0432\u0430"
    assert unknown_word_rate(tokenizer, [russian]).rate == 0
    assert unread_words(tokenizer, [f"the {russian} the, 1987"]) == UnknownWords(1, 5)
    report_unknown(tokenizer, [russian], "the queries")
    assert "does not know 1 of 1 words (100.0%) of the queries" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "meant"), [("mini_en", "mini-en"), ("Static-EN", "static-en")])
def test_a_misspelt_model_of_the_package_is_not_sought_on_the_hub(name, meant, monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", None)
    monkeypatch.setattr("sentence_transformers.SentenceTransformer", None)
    for load in (load_encoder, load_checkpoint):
        with pytest.raises(FileNotFoundError, match=f"No model '{name}' is here or .*Did you mean '{meant}'?"):
            load(name)
