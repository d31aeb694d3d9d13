"""The word-level pipeline: a regular expression splits text into words, and a set of joins undoes it when decoding.

Raw text (`don't (really)`) and Penn-Treebank text (`do n't -LRB- really -RRB-`) give the same words, for common
contractions. Words follow the Treebank's splits: `ca n't`, `it 's`, `can not`, `gon na`. Hyphens and full stops are
always separate words, so a vocabulary learnt on either kind of text fits the other. All parts are components of the
`tokenizers` library and therefore saved in `tokenizer.json`.
"""

from __future__ import annotations

from tokenizers import Regex, decoders, normalizers, pre_tokenizers

# \p{M} keeps combining marks that NFKC cannot compose inside their word, and so do the zero-width joiners of Persian
# and Indian scripts. The underscore is punctuation.
_LETTER = r"[\p{L}\p{N}\p{M}\u200c\u200d]"
_EMOJI = r"\p{Extended_Pictographic}[\ufe0f\x{1f3fb}-\x{1f3ff}]*"
_HEBREW = r"[\u05d0-\u05ea]"
_SUFFIX = r"(?:[sdm]|re|ve|ll)"
# Pairs of words that are written as one word.
_FUSED = (("can", "not"), ("gon", "na"), ("wan", "na"), ("got", "ta"), ("gim", "me"), ("lem", "me"))

_WORD_PATTERN = "|".join(
    [
        r"\d+(?:[.,]\d+)+",
        *(rf"(?i:{first}(?={second}\b))" for first, second in _FUSED),
        r"(?i:n't\b)",
        rf"'(?i:(?:{_SUFFIX}|em)\b|t(?= ?(?:is|was)\b))",
        # A word without its n't or clitic, but with other inner apostrophes (o'clock), Catalan dots and Hebrew marks.
        rf"(?:(?!(?i:n't\b)){_LETTER})+"
        rf"(?:(?:'(?!(?i:{_SUFFIX}\b))|\u00b7|(?<={_HEBREW})[\"\u05f4](?={_HEBREW})){_LETTER}+)*",
        r"\.\.\.|--",
        # Flags; emoji, also joined or with a skin tone.
        r"[\x{1f1e6}-\x{1f1ff}]{2}",
        rf"{_EMOJI}(?:\u200d{_EMOJI})*",
        r"\S",
    ]
)

# Non-ASCII marks that end sentences, and clauses, in Armenian, Arabic, Urdu, Indian, Burmese and Ethiopic text.
FULL_STOPS = "\u0589\u061f\u06d4\u0964\u0965\u104b\u1362"
COMMAS = "\u060c\u061b\u104a\u1363"
# With Greek, Chinese and Japanese marks; Spanish marks are opening ones.
_CLOSING = f"{FULL_STOPS}{COMMAS}\u00b7\u3001\u3002\u3009\u300b\u300d\u300f\u3011"
_OPENING = "\u00a1\u00bf\u3008\u300a\u300c\u300e\u3010"

_BRACKETS = {"LRB": "(", "RRB": ")", "LSB": "[", "RSB": "]", "LCB": "{", "RCB": "}"}


def word_normalizer(lowercase: bool) -> normalizers.Normalizer:
    """Normalises to NFKC, ASCII quotes and dashes, brackets for Treebank codes, and optionally lower case."""
    steps: list[normalizers.Normalizer] = [
        # Invisible characters are removed; the zero-width space separates words.
        normalizers.Replace(Regex("[\u00ad\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]"), ""),
        normalizers.Replace("\u200b", " "),
        # So that 1\u00bd does not become 11/2.
        normalizers.Replace(Regex(r"(?<=\d)(?=[\u00bc-\u00be\u2150-\u215e])"), " "),
        # Before NFKC, which would turn an acute accent used as an apostrophe into a space and a combining mark.
        normalizers.Replace("\u00b4", "'"),
        normalizers.NFKC(),
        normalizers.Replace(Regex("[\u2018\u2019\u201a\u201b\u2032\u2035\u02bc`]"), "'"),
        normalizers.Replace("\u2044", "/"),
        # Undoes the decomposition of these Thai and Lao vowels by NFKC.
        normalizers.Replace("\u0e4d\u0e32", "\u0e33"),
        normalizers.Replace("\u0ecd\u0eb2", "\u0eb3"),
        normalizers.Replace(Regex("''|(?<![^ ])' '(?![^ ])|[\u201c\u201d\u201e\u201f\u00ab\u00bb]"), '"'),
        normalizers.Replace(Regex("[\u2010\u2012\u2013\u2212]"), "-"),
        normalizers.Replace(Regex("[\u2014\u2015]+|---+"), "--"),
        normalizers.Replace(Regex(r"\.(?:\.+(?: \.)*|(?: \.){2,})"), "..."),
        # `don ' t`, `do n 't`, `it ' s`, `1\/2`: clitics and slashes as some tokenised corpora write them.
        normalizers.Replace(
            Regex(rf"(?<=\w ') (?=(?i:t|{_SUFFIX})\b)|(?<=[nN]) (?=' ?[tT]\b)|\\(?=[/*])"),
            "",
        ),
        *(normalizers.Replace(Regex(f"-(?i:{code})-"), bracket) for code, bracket in _BRACKETS.items()),
    ]
    if lowercase:
        # Lower-casing would turn the dotted capital I into two characters, and a final sigma into the inner form.
        steps += [
            normalizers.Replace("\u0130", "i"),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"(?<=\p{L})\u03c3(?!\p{L})"), "\u03c2"),
        ]
    return normalizers.Sequence(steps)


def word_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """Splits normalised text into words; white space is dropped."""
    return pre_tokenizers.Split(Regex(_WORD_PATTERN), behavior="removed", invert=True)


def word_decoder() -> decoders.Decoder:
    """Joins words to readable text that gives the same words when tokenised again."""
    letter = _LETTER
    joins = "|".join(
        [
            rf" (?=[,!?;:%)\]}}{_CLOSING}])",
            # Never joins `. .` to `..`, which would be read as an ellipsis.
            r"(?<!\.) (?=\.)",
            rf"(?<={letter}) (?=(?i:n't|'{_SUFFIX})(?!{letter}))",
            rf"(?<=[(\[{{{_OPENING}]) ",
            r"(?<=[$#]) (?=\d)",
            rf"(?<={letter}) (?=[-/] {letter})|(?<={letter} [-/]) (?={letter})",
            # u. s. a. -> u.s.a.
            r"(?<=\b\p{L} \.) (?=\p{L} \.)",
            *(rf"(?<=\b(?i:{first})) (?=(?i:{second})\b)" for first, second in _FUSED),
            r"(?:(?<=\A'[tT])|(?<= '[tT])) (?=(?i:is|was)\b)",
        ]
    )
    clitic = rf"(?i:(?:t|{_SUFFIX}|em)\b)"
    return decoders.Sequence(
        [
            # Puts one space between words; no word begins with its prefix mark.
            decoders.WordPiece(prefix="##", cleanup=False),
            decoders.Fuse(),
            decoders.Replace(Regex(joins), ""),
            # \K keeps the text before it: the second quote of each pair is joined to the word on its left.
            decoders.Replace(Regex(r'(?:\A[^"]*[.,!?]|"[^"]*?)\K "| "\z'), '"'),
            decoders.Replace(Regex(r'(?:(?<=\A")|(?<= ")|(?<=[(\[]")) '), ""),
            # A lone apostrophe opens a quotation if a closing one follows or it is at the start; else it is joined to
            # the left. After a plural (`the dogs '`) it is a possessive.
            decoders.Replace(
                Regex(rf"(?:(?<=\A')|(?<=\"')|(?<=[^sS] ')(?= [^']*[^' ] ?'(?:[ .,!?]|\z))) (?!{clitic})"), ""
            ),
            decoders.Replace(Regex(r"(?<=\S) (?='(?:[ .,!?;:\"]|\z))"), ""),
        ]
    )
