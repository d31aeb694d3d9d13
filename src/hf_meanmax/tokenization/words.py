"""The word-level pipeline: one regular expression says what a word is, one set of joins undoes it when decoding.

Raw text (`don't (really)`) and Penn-Treebank text (`do n't -LRB- really -RRB-`) give the same words, where a
contraction is a common one. The Treebank's own splits are the target: `ca n't`, `it 's`, `can not`, `gon na`. Hyphens
and full stops always stand alone, so a vocabulary learnt on either kind of text fits the other. Everything is made of
the `tokenizers` library's own parts and therefore saved in `tokenizer.json`.
"""

from __future__ import annotations

from tokenizers import Regex, decoders, normalizers, pre_tokenizers

# \p{M} keeps combining marks that NFKC cannot compose inside their word; the joiners of Persian and of Indian scripts
# stay there too. The underscore is punctuation.
_LETTER = r"[\p{L}\p{N}\p{M}\u200c\u200d]"
_EMOJI = r"\p{Extended_Pictographic}[\ufe0f\x{1f3fb}-\x{1f3ff}]*"
_HEBREW = r"[\u05d0-\u05ea]"
_SUFFIX = r"(?:[sdm]|re|ve|ll)"
# Two words that everyday spelling writes as one.
_FUSED = (("can", "not"), ("gon", "na"), ("wan", "na"), ("got", "ta"), ("gim", "me"), ("lem", "me"))

_WORD_PATTERN = "|".join(
    [
        r"\d+(?:[.,]\d+)+",
        *(rf"(?i:{first}(?={second}\b))" for first, second in _FUSED),
        r"(?i:n't\b)",
        rf"'(?i:(?:{_SUFFIX}|em)\b|t(?= ?(?:is|was)\b))",
        # A word up to its n't or clitic, with other inner apostrophes (o'clock, ma'am), Catalan dots and Hebrew marks.
        rf"(?:(?!(?i:n't\b)){_LETTER})+"
        rf"(?:(?:'(?!(?i:{_SUFFIX}\b))|\u00b7|(?<={_HEBREW})[\"\u05f4](?={_HEBREW})){_LETTER}+)*",
        r"\.\.\.|--",
        # Flags, and emoji that are joined or have a colour.
        r"[\x{1f1e6}-\x{1f1ff}]{2}",
        rf"{_EMOJI}(?:\u200d{_EMOJI})*",
        r"\S",
    ]
)

# Beside the ASCII marks: what ends sentences in Armenian, Arabic, Urdu, Indian, Burmese and Ethiopic text, and clauses.
FULL_STOPS = "\u0589\u061f\u06d4\u0964\u0965\u104b\u1362"
COMMAS = "\u060c\u061b\u104a\u1363"
# And Greek, Chinese and Japanese marks; Spanish ones open.
_CLOSING = f"{FULL_STOPS}{COMMAS}\u00b7\u3001\u3002\u3009\u300b\u300d\u300f\u3011"
_OPENING = "\u00a1\u00bf\u3008\u300a\u300c\u300e\u3010"

_BRACKETS = {"LRB": "(", "RRB": ")", "LSB": "[", "RSB": "]", "LCB": "{", "RCB": "}"}


def word_normalizer(lowercase: bool) -> normalizers.Normalizer:
    """NFKC, ASCII quotes and dashes, Treebank codes undone, optionally lower case."""
    steps: list[normalizers.Normalizer] = [
        # Marks without a look of their own; the one of no width is a space between words.
        normalizers.Replace(Regex("[\u00ad\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]"), ""),
        normalizers.Replace("\u200b", " "),
        # 1\u00bd is not 11/2.
        normalizers.Replace(Regex(r"(?<=\d)(?=[\u00bc-\u00be\u2150-\u215e])"), " "),
        # Before NFKC, which would make a space and a combining mark of the acute accent used as an apostrophe.
        normalizers.Replace("\u00b4", "'"),
        normalizers.NFKC(),
        normalizers.Replace(Regex("[\u2018\u2019\u201a\u201b\u2032\u2035\u02bc`]"), "'"),
        normalizers.Replace("\u2044", "/"),
        # NFKC takes these vowels of Thai and Lao apart.
        normalizers.Replace("\u0e4d\u0e32", "\u0e33"),
        normalizers.Replace("\u0ecd\u0eb2", "\u0eb3"),
        normalizers.Replace(Regex("''|(?<![^ ])' '(?![^ ])|[\u201c\u201d\u201e\u201f\u00ab\u00bb]"), '"'),
        normalizers.Replace(Regex("[\u2010\u2012\u2013\u2212]"), "-"),
        normalizers.Replace(Regex("[\u2014\u2015]+|---+"), "--"),
        normalizers.Replace(Regex(r"\.(?:\.+(?: \.)*|(?: \.){2,})"), "..."),
        # `don ' t`, `do n 't`, `it ' s`, `1\/2`: what some tokenised corpora make of a clitic or a slash.
        normalizers.Replace(
            Regex(rf"(?<=\w ') (?=(?i:t|{_SUFFIX})\b)|(?<=[nN]) (?=' ?[tT]\b)|\\(?=[/*])"),
            "",
        ),
        *(normalizers.Replace(Regex(f"-(?i:{code})-"), bracket) for code, bracket in _BRACKETS.items()),
    ]
    if lowercase:
        # A dotted capital would become two characters, and a sigma that ends a word another letter than in small print.
        steps += [
            normalizers.Replace("\u0130", "i"),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"(?<=\p{L})\u03c3(?!\p{L})"), "\u03c2"),
        ]
    return normalizers.Sequence(steps)


def word_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """Cuts normalised text into words; white space is dropped."""
    return pre_tokenizers.Split(Regex(_WORD_PATTERN), behavior="removed", invert=True)


def word_decoder() -> decoders.Decoder:
    """Joins words to readable text that gives the same words when tokenised again."""
    letter = _LETTER
    joins = "|".join(
        [
            rf" (?=[,!?;:%)\]}}{_CLOSING}])",
            # Never `. .` to `..`, which would be read as an ellipsis.
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
            # \K leaves what stands before it alone: the second of each pair of quotes closes to the left.
            decoders.Replace(Regex(r'(?:\A[^"]*[.,!?]|"[^"]*?)\K "| "\z'), '"'),
            decoders.Replace(Regex(r'(?:(?<=\A")|(?<= ")|(?<=[(\[]")) '), ""),
            # A lone apostrophe opens if one follows to close it (or it stands at the start), else it belongs to the
            # left. A plural before it (`the dogs '`) is a possessive.
            decoders.Replace(
                Regex(rf"(?:(?<=\A')|(?<=\"')|(?<=[^sS] ')(?= [^']*[^' ] ?'(?:[ .,!?]|\z))) (?!{clitic})"), ""
            ),
            decoders.Replace(Regex(r"(?<=\S) (?='(?:[ .,!?;:\"]|\z))"), ""),
        ]
    )
