"""Tokenizers: same words from raw and Treebank text, exact round trips, saved and reloaded unchanged."""

import lzma
import random
import unicodedata
from collections import Counter
from itertools import islice

import pytest
from tokenizers import normalizers
from transformers import AutoTokenizer

from hf_meanmax.tokenization import SPECIAL_TOKENS, split_words, train_tokenizer, unknown_word_rate
from hf_meanmax.tokenization.tokenizers import TOKENIZER_KINDS

CORPUS = [
    "The quick brown fox doesn't jump over the lazy dog's bed.",
    "It can't be true, she said; it's (really) 3,000 well-known people!",
    "Is this the end? No... we'll see.",
    "\u5317\u4eac\u662f\u4e2d\u56fd\u7684\u9996\u90fd\u3002",
]


@pytest.fixture(scope="module")
def word():
    return train_tokenizer(CORPUS * 3, vocab_size=100, show_progress=False)


@pytest.fixture(scope="module")
def cased():
    return train_tokenizer(CORPUS, lowercase=False, show_progress=False)


RAW_AND_TREEBANK = [
    ("don't", "do n't"),
    ("Don\u2019t", "do n\u2019t"),
    ("don't", "don ' t"),
    ("don't", "do n 't"),
    ("can't", "ca n't"),
    ("won't", "wo n't"),
    ("it's", "it 's"),
    ("it's", "it ' s"),
    ("they're we've I'll I'd I'm", "they 're we 've I 'll I 'd I 'm"),
    ("cannot", "can not"),
    ("I'm gonna", "I 'm gon na"),
    ("'tis 'twas", "'t is 't was"),
    ("the dogs' tails", "the dogs ' tails"),
    ("(a) [b] {c}", "-LRB- a -RRB- -LSB- b -RSB- -LCB- c -RCB-"),
    ("(a)", "-lrb- a -rrb-"),
    ('"yes," she said', "`` yes , '' she said"),
    ("\u201cyes,\u201d she said", "`` yes , '' she said"),
    ("'yes'", "` yes '"),
    ("no\u2014never", "no -- never"),
    ("3,000 or 3.5%", "3,000 or 3.5 %"),
    ("1/2", "1\\/2"),
    ("well-known", "well - known"),
    ("wait\u2026 what....", "wait ... what ..."),
    ("$5.", "$ 5 ."),
    ("Mr. Smith", "Mr . Smith"),
    ("\ufb01ne", "fine"),
    ("12\u2033 40\u203226\u2033 \uff40x\uff40", "12'' 40'26'' 'x'"),
]


@pytest.mark.parametrize(("raw", "treebank"), RAW_AND_TREEBANK)
def test_raw_and_treebank_text_give_the_same_words(word, cased, raw, treebank):
    assert next(split_words(word, [raw])) == next(split_words(word, [treebank]))
    assert next(split_words(cased, [raw.lower()])) == next(split_words(cased, [treebank.lower()]))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I don't.", ["i", "do", "n't", "."]),
        ("can't mustn't've", ["ca", "n't", "must", "n't", "'ve"]),
        ("five o'clock, ma'am", ["five", "o'clock", ",", "ma'am"]),
        ("3,000.5 4th mp3 2014,", ["3,000.5", "4th", "mp3", "2014", ","]),
        ("snake_case a.b", ["snake", "_", "case", "a", ".", "b"]),
        ("get 'em!!", ["get", "'em", "!", "!"]),
        ("caf\u00e9 na\u00efve", ["caf\u00e9", "na\u00efve"]),
        ("pelicannot", ["pelicannot"]),
        (" \t\n ", []),
        ("", []),
    ],
)
def test_words(word, text, words):
    assert list(split_words(word, [text, "x"])) == [words, ["x"]]


OTHER_LANGUAGES = {
    # What the word tokenizer makes of a text, and what it decodes that to.
    "arabic": ("مرحبا، كيف؟", ["مرحبا", "،", "كيف", "؟"], None),
    "hindi": ("राम गया।", ["राम", "गया", "।"], None),
    "spanish": ("¿qué tal? ¡bien!", ["¿", "qué", "tal", "?", "¡", "bien", "!"], None),
    "hebrew": ('צה"ל', ['צה"ל'], None),
    "greek": ("ΟΔΟΣ", ["οδος"], "οδος"),
    "turkish": ("İstanbul", ["istanbul"], "istanbul"),
    "persian": ("می\u200cخواهم", ["می\u200cخواهم"], None),
    "catalan": ("col·legi", ["col·legi"], None),
    "thai": ("น้ำ", ["น้ำ"], None),
    "emoji": (
        "\U0001f468\u200d\U0001f467 \u2764\ufe0f \U0001f44d\U0001f3fd",
        ["\U0001f468\u200d\U0001f467", "\u2764\ufe0f", "\U0001f44d\U0001f3fd"],
        None,
    ),
    "fractions": ("1½", ["1", "1", "/", "2"], "1 1/2"),
    "invisible marks": ("soft\u00adhyphen a\u200bb", ["softhyphen", "a", "b"], "softhyphen a b"),
}  # fmt: skip


@pytest.mark.parametrize("language", OTHER_LANGUAGES)
def test_words_of_other_languages(language):
    text, words, decoded = OTHER_LANGUAGES[language]
    tokenizer = train_tokenizer([text], show_progress=False)
    assert next(split_words(tokenizer, [text])) == words
    ids = tokenizer(text).input_ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == (decoded or text)
    assert tokenizer(decoded or text).input_ids == ids


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_marks_stay_with_their_letters(kind):
    """Hindi, vocalised Arabic and Thai: words are whole, and read as text."""
    words = [
        "हिन्दी",
        "كتابًا",
        "หนังสือ",
    ]
    text = " ".join(words)
    tokenizer = train_tokenizer([text] * 5, kind=kind, vocab_size=400, show_progress=False)
    assert next(split_words(tokenizer, [text])) == words
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text


@pytest.mark.parametrize(
    "text",
    [
        "i don't think it's (really) the dogs' bed, can't you see?",
        'he said it."',
        '"in short," she said, "that is fine."',
        'quite so," he said, "and then',
        "the 'only' well-known thing...",
        "it cannot be 3.5% of $5.",
        "'tis gonna rain -- or not.",
        "the u.s.a. has [many] {sets}; see: 1/2!",
    ],
)
def test_decoded_words_read_as_they_were_written(text):
    tokenizer = train_tokenizer([text], show_progress=False)
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text


def test_decoded_text_gives_the_same_words_again(word):
    rng = random.Random(1)
    pieces = [*"abc.,;:!?()[]{}\"'`-/$%#&_@", "--", "...", "n't", "'s", "do", "can", "not", "3,5", "u", "s", "it", "''"]
    decoder = word.backend_tokenizer.decoder
    texts = [CORPUS[row % 3] for row in range(3)] + [raw for raw, _ in RAW_AND_TREEBANK]
    for text in texts:
        (words,) = split_words(word, [text])
        assert next(split_words(word, [decoder.decode(words)])) == words, text
    # Heaps of punctuation are not sentences: nearly all must agree.
    agree = 0
    for _ in range(500):
        (words,) = split_words(word, [" ".join(rng.choices(pieces, k=8))])
        agree += next(split_words(word, [decoder.decode(words)])) == words
    assert agree >= 450


def _random_texts(number: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    odd = [
        " ", "  ", "\n", "\r\n", "\t", "\u3000", "\u00a0", "\u2028", "\u2581", "\u0120", "<0x41>", "<s>", "</s>",
        "<pad>", "<unk>", "n't", "##", "\x00", "\ufeff", "\u0301", "e\u0301", "\ufb01", "\u00bd", "\U0001f600",
        "\u5317",
    ]  # fmt: skip

    def piece() -> str:
        kind = rng.random()
        if kind < 0.4:
            return rng.choice(odd)
        if kind < 0.8:
            return chr(rng.randint(32, 126))
        return chr(rng.choice([rng.randint(0xA0, 0xD7FF), rng.randint(0xE000, 0x10FFFF)]))

    return ["".join(piece() for _ in range(rng.randint(0, 30))) for _ in range(number)]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("vocab_size", [262, 400])
def test_decoding_gives_the_composed_text_back_exactly(kind, vocab_size):
    tokenizer = train_tokenizer(CORPUS * 20, kind=kind, vocab_size=vocab_size, show_progress=False)
    assert len(tokenizer) <= vocab_size
    texts = _random_texts(1000, seed=2) + CORPUS + ["  two  spaces  ", "\n\nlines\n"]
    ids = tokenizer(texts).input_ids
    assert tokenizer.batch_decode(ids, skip_special_tokens=True) == list(map(normalizers.NFC().normalize_str, texts))
    assert all(tokenizer.unk_token_id not in row for row in ids)


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_letters_with_accents_as_characters_of_their_own_are_the_same(kind):
    text = "p\u0159\xedli\u0161 \u017elu\u0165ou\u010dk\xfd k\u016f\u0148"
    decomposed = unicodedata.normalize("NFD", text)
    tokenizer = train_tokenizer([decomposed] * 20, kind=kind, vocab_size=400, show_progress=False)
    ids = tokenizer(text).input_ids
    assert tokenizer(decomposed).input_ids == ids
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_more_characters_than_ids():
    texts = ["".join(map(chr, range(0x4E00, 0x5E00))), "\u4e00\u4e8c\u4e09" * 5000]
    tokenizer = train_tokenizer(iter(texts), kind="unigram", vocab_size=300, show_progress=False)
    assert len(tokenizer) <= 300
    assert tokenizer.batch_decode(tokenizer(texts).input_ids, skip_special_tokens=True) == texts


def test_a_rare_capital_of_a_frequent_letter_cuts_no_word():
    texts = 8 * ["QUEEN"] + 600 * ["the quite quick brown fox jumps over a lazy dog"]
    options = {"kind": "unigram", "vocab_size": 330, "lowercase": True, "show_progress": False}
    capitals, small = (train_tokenizer(given, **options) for given in (texts, [text.lower() for text in texts]))
    assert capitals.get_vocab() == small.get_vocab()
    assert capitals.tokenize("Queen") == ["qu", "e", "e", "n"]


def test_characters_come_back_exactly_and_one_by_one():
    tokenizer = train_tokenizer(CORPUS + ["a  b\n"], kind="char", vocab_size=500, show_progress=False)
    for text in (*CORPUS, " a  b\na ", "\u9996\u90fd"):
        ids = tokenizer(text).input_ids
        assert len(ids) == len(text) + 1
        assert tokenizer.decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize("kind", ["word", "bpe", "unigram", "char"])
def test_saved_and_reloaded_to_the_same_ids(kind, tmp_path):
    tokenizer = train_tokenizer(CORPUS, kind=kind, vocab_size=300, show_progress=False)
    tokenizer.save_pretrained(tmp_path)
    reloaded = AutoTokenizer.from_pretrained(tmp_path)
    texts = CORPUS + _random_texts(50, seed=3) + [""]
    assert reloaded(texts).input_ids == tokenizer(texts).input_ids
    for tok in (tokenizer, reloaded):
        assert tok.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == [0, 1, 2, 3]
        assert (tok.pad_token_id, tok.unk_token_id, tok.bos_token_id, tok.eos_token_id) == (0, 1, 2, 3)
        assert all(ids[-1] == 3 and ids.count(3) == 1 for ids in tok(texts).input_ids)
        assert tok("").input_ids == [3]
        assert tok("a", "b", return_token_type_ids=True).input_ids.count(3) == 2
        assert set(tok("a")) == {"input_ids", "attention_mask"}
        assert sorted(tok.get_vocab().values()) == list(range(len(tok)))


def test_names_of_special_tokens_in_a_text_are_ordinary_text(word):
    assert next(split_words(word, ["a</s>b"])) == ["a", "<", "/", "s", ">", "b"]
    assert word("a</s>b").input_ids.count(3) == 1
    assert word("<pad> x").input_ids.count(0) == 0


def test_word_ids_fall_in_frequency_then_follow_the_alphabet():
    texts = ["b b b a a c", "c d", "e"]
    tokenizer = train_tokenizer(texts, show_progress=False)
    counts = Counter(word for words in split_words(tokenizer, texts) for word in words)
    expected = sorted(counts, key=lambda word: (-counts[word], word))
    assert tokenizer.convert_ids_to_tokens(list(range(4, len(tokenizer)))) == expected
    assert len(train_tokenizer(texts, vocab_size=6, show_progress=False)) == 6
    assert set(train_tokenizer(texts, min_frequency=2, show_progress=False).get_vocab()) == {*SPECIAL_TOKENS, *"abc"}


# The library's Unigram trainer sums floats in an order that changes from run to run.
@pytest.mark.parametrize("kind", ["word", "bpe", "char"])
def test_training_gives_the_same_tokenizer_each_time(kind):
    first, second = (train_tokenizer(CORPUS, kind=kind, vocab_size=300, show_progress=False) for _ in range(2))
    assert first.get_vocab() == second.get_vocab()


def test_lower_casing():
    assert "The" in train_tokenizer(CORPUS, lowercase=False, show_progress=False).get_vocab()
    for kind in ("bpe", "unigram", "char"):
        tokenizer = train_tokenizer(CORPUS, kind=kind, vocab_size=300, lowercase=True, show_progress=False)
        assert tokenizer.decode(tokenizer("The Fox").input_ids, skip_special_tokens=True) == "the fox"


def test_unknown_words_are_counted(word):
    texts = ["the Zebra doesn't see the zebra", "a quick gnu", ""]
    found = unknown_word_rate(word, iter(texts))
    # The plain reference: split, look up.
    words = [token for tokens in split_words(word, texts) for token in tokens]
    unknown = [token for token in words if token not in word.get_vocab()]
    assert (found.unknown, found.total) == (len(unknown), len(words))
    assert found.rate == len(unknown) / len(words)
    assert unknown_word_rate(word, []).rate == 0.0
    word(texts, padding=True, truncation=True, max_length=3)
    assert unknown_word_rate(word, texts) == found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"texts": CORPUS, "kind": "words"}, "Did you mean 'word'"),
        ({"texts": []}, "corpus is empty"),
        ({"texts": ["", "  \n"], "kind": "bpe"}, "corpus is empty"),
        ({"texts": CORPUS, "vocab_size": 4}, "vocab_size is 4, a word tokenizer needs at least 5"),
        ({"texts": CORPUS, "vocab_size": 200, "kind": "bpe"}, "at least 260"),
        ({"texts": CORPUS, "vocab_size": 260, "kind": "unigram"}, "at least 261"),
        ({"texts": CORPUS, "min_frequency": 0}, "min_frequency is 0"),
        ({"texts": "one string"}, "single string"),
    ],
)
def test_bad_arguments_are_explained(arguments, message):
    with pytest.raises(ValueError, match=message):
        train_tokenizer(**arguments, show_progress=False)


def test_an_error_in_the_corpus_is_raised_as_it_is():
    def texts():
        yield "fine"
        raise RuntimeError("line 2 is broken")

    with pytest.raises(RuntimeError, match="line 2 is broken"):
        train_tokenizer(texts(), show_progress=False)


def test_real_sentences_are_read_back_alike(word, data_root):
    with lzma.open(data_root / "corpora" / "books-en" / "validation.txt.xz", "rt", encoding="utf-8") as file:
        texts = [line.rstrip("\n") for line in islice(file, 4000)]
    reviews = data_root / "senteval" / "downstream" / "MR" / "rt-polarity.pos"
    texts += reviews.read_text(encoding="latin-1").split("\n")[:2000]
    decoder = word.backend_tokenizer.decoder
    for text in texts:
        (words,) = split_words(word, [text])
        assert next(split_words(word, [decoder.decode(words)])) == words
