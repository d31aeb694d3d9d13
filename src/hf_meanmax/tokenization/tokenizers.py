"""Trains tokenizers and inspects them: their words and their rate of unknown words."""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from hf_meanmax.files import Json
from hf_meanmax.modeling.suggestions import did_you_mean
from hf_meanmax.progress import progress_bar

from .latent_tokenizer import LatentTokenizer
from .words import word_decoder, word_normalizer, word_pre_tokenizer

# Ids 0 to 3 of every tokenizer that is trained here.
SPECIAL_TOKENS: tuple[str, ...] = ("<pad>", "<unk>", "<s>", "</s>")
PAD_TOKEN, UNK_TOKEN, BOS_TOKEN, EOS_TOKEN = SPECIAL_TOKENS

_BATCH = 1000
_MOST_LETTERS = 400
_BYTE_PIECES = tuple(f"<0x{byte:02X}>" for byte in range(256))
# A word keeps the space before it, so joining pieces needs no marker that the text itself could contain.
_PIECE_PATTERN = r" ?[\p{L}\p{M}\u200c\u200d]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}\u200c\u200d]+|\s+(?!\S)|\s+"


def train_tokenizer(
    texts: Iterable[str],
    kind: str = "word",
    vocab_size: int = 20000,
    min_frequency: int = 1,
    lowercase: bool | None = None,
    show_progress: bool = True,
) -> PreTrainedTokenizerFast:
    """Trains a tokenizer that `AutoTokenizer` reloads to the same ids.

    Args:
        texts: The corpus, one sentence or paragraph at a time. Empty lines are skipped. It is read once, for
            `"unigram"` twice (an iterator is then held in memory).
        kind: `"word"` (raw and Penn-Treebank text give the same words; decoding gives readable text), `"bpe"`
            (byte-level) and `"unigram"` (byte fallback), which both decode to the encoded text with composed letters
            (NFC), unless it is lower-cased, or `"char"` (one token per composed character).
        vocab_size: Maximum number of ids, the four special tokens included. A small corpus gives fewer.
        min_frequency: Rarer words (characters, merged pairs) are left out. Ignored for `"unigram"`.
        lowercase: Whether text is lower-cased (default: only for `"word"`).
        show_progress: Whether progress bars are drawn.

    Returns:
        A tokenizer with `<pad>`, `<unk>`, `<s>`, `</s>` as ids 0 to 3 that ends every text with `</s>`. The name of a
        special token in a text is read as ordinary text. Word and character ids are sorted by falling frequency, then
        alphabetically. Training is reproducible except for `"unigram"`, whose library sums in a varying order.

    Raises:
        ValueError: An unknown kind, an empty corpus, or a vocabulary too small for its kind.
    """
    train = _find_trainer(texts, kind, vocab_size, min_frequency)
    if kind == "unigram" and iter(texts) is texts:
        texts = list(texts)
    counted = _NonEmpty(texts, show_progress)
    options: Json = {
        "vocab_size": vocab_size,
        "min_frequency": min_frequency,
        "special_tokens": list(SPECIAL_TOKENS),
        # Progress bars of the library, which would fill a log.
        "show_progress": show_progress and sys.stderr.isatty(),
    }
    backend = train(counted, (kind == "word") if lowercase is None else lowercase, options)
    if counted.lines == 0:
        raise ValueError("the corpus is empty: no text with a character other than white space")
    return _fast_tokenizer(backend)


def wordpiece_tokenizer(vocabulary: Iterable[str], lowercase: bool = True) -> PreTrainedTokenizerFast:
    """Makes a WordPiece tokenizer from a vocabulary: a known word is one token, any other is split greedily into the
    longest pieces that fit. Text is split into words as by `train_tokenizer(kind="word")`.

    Args:
        vocabulary: words, pieces that begin a word, and pieces that continue one (`##ing`), in the order of their ids,
            which begin after the four special tokens. Names of special tokens, which many files of word vectors hold,
            are left out.
        lowercase: whether text is lower-cased.

    Raises:
        ValueError: an empty vocabulary, or a word that occurs twice.
    """
    names = [name for name in vocabulary if name not in SPECIAL_TOKENS]
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if not names:
        raise ValueError("The vocabulary has no word.")
    if repeated:
        raise ValueError(f"The vocabulary has words twice: {', '.join(map(repr, repeated[:3]))}.")
    ids = {name: number for number, name in enumerate([*SPECIAL_TOKENS, *names])}
    # Text in a script without spaces gives long words; beyond some hundred letters the search for pieces is too slow.
    model = models.WordPiece(
        ids, unk_token=UNK_TOKEN, continuing_subword_prefix="##", max_input_chars_per_word=_MOST_LETTERS
    )
    backend = _word_backend(model, lowercase)
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    return _fast_tokenizer(backend)


def _fast_tokenizer(backend: Tokenizer) -> PreTrainedTokenizerFast:
    """A transformers tokenizer that ends every text with `</s>` and reads names of special tokens as text."""
    backend.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS_TOKEN}",
        pair=f"$A {EOS_TOKEN} $B:1 {EOS_TOKEN}:1",
        special_tokens=[(EOS_TOKEN, SPECIAL_TOKENS.index(EOS_TOKEN))],
    )
    return LatentTokenizer(
        tokenizer_object=backend,
        pad_token=PAD_TOKEN,
        unk_token=UNK_TOKEN,
        bos_token=BOS_TOKEN,
        eos_token=EOS_TOKEN,
        padding_side="right",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        # Otherwise a text that happens to contain `</s>` would end there.
        split_special_tokens=True,
    )


def _find_trainer(texts: Iterable[str], kind: str, vocab_size: int, min_frequency: int) -> Callable[..., Tokenizer]:
    """Checks the arguments of [`train_tokenizer`] and returns the training function of this kind."""
    if kind not in _TRAINERS:
        hint = did_you_mean(kind, _TRAINERS)
        if kind == "wordpiece":
            hint = " A WordPiece tokenizer is made of a list of words: `wordpiece_tokenizer`."
        raise ValueError(f"kind is {kind!r}, allowed are {', '.join(map(repr, _TRAINERS))}.{hint}")
    train, smallest = _TRAINERS[kind]
    if vocab_size < smallest:
        raise ValueError(
            f"vocab_size is {vocab_size}, a {kind} tokenizer needs at least {smallest} "
            f"({len(SPECIAL_TOKENS)} special tokens{' and 256 bytes' if smallest > 256 else ' and one more'})"
        )
    if min_frequency < 1:
        raise ValueError(f"min_frequency is {min_frequency}, it must be 1 or more")
    if isinstance(texts, str):
        raise ValueError("texts is a single string, expected an iterable of strings: pass [text]")
    return train


class _NonEmpty:
    """Iterates over batches of the texts that are not blank, and counts them in `lines`."""

    def __init__(self, texts: Iterable[str], show_progress: bool = False):
        self.texts = texts
        self.show_progress = show_progress
        self.lines = 0

    def __iter__(self) -> Iterator[list[str]]:
        self.lines = 0
        batch: list[str] = []
        for text in progress_bar(self.texts, desc="tokenizer", unit=" lines", disable=not self.show_progress):
            if not text or text.isspace():
                continue
            self.lines += 1
            batch.append(text)
            if len(batch) == _BATCH:
                yield batch
                batch = []
        if batch:
            yield batch


def _word_backend(model: models.Model, lowercase: bool) -> Tokenizer:
    """A backend that splits text into words, still without a vocabulary."""
    backend = Tokenizer(model)
    backend.normalizer = word_normalizer(lowercase)
    backend.pre_tokenizer = word_pre_tokenizer()
    backend.decoder = word_decoder()
    return backend


def _train_words(texts: Iterable[list[str]], lowercase: bool, options: Json) -> Tokenizer:
    backend = _word_backend(models.WordLevel(unk_token=UNK_TOKEN), lowercase)
    backend.train_from_iterator(texts, trainer=trainers.WordLevelTrainer(**options))
    return backend


def _train_chars(texts: Iterable[list[str]], lowercase: bool, options: Json) -> Tokenizer:
    backend = _cutting_backend(models.WordLevel(unk_token=UNK_TOKEN), r"[\s\S]", lowercase)
    backend.decoder = decoders.Fuse()
    backend.train_from_iterator(texts, trainer=trainers.WordLevelTrainer(**options))
    return backend


def _train_bpe(texts: Iterable[list[str]], lowercase: bool, options: Json) -> Tokenizer:
    backend = _cutting_backend(models.BPE(), rf"'(?:[sdmt]|re|ve|ll)|{_PIECE_PATTERN}", lowercase)
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([backend.pre_tokenizer, to_bytes])
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend.train_from_iterator(texts, trainer=trainers.BpeTrainer(initial_alphabet=alphabet, **options))
    return backend


def _train_unigram(texts: Iterable[list[str]], lowercase: bool, options: Json) -> Tokenizer:
    size = options["vocab_size"] - len(_BYTE_PIECES)
    pieces = size - len(SPECIAL_TOKENS)
    backend = _cutting_backend(models.Unigram(), _PIECE_PATTERN, lowercase)
    # Pieces are pruned by likelihood, not by frequency.
    taken = {name: value for name, value in options.items() if name != "min_frequency"}
    trainer = trainers.UnigramTrainer(unk_token=UNK_TOKEN, **{**taken, "vocab_size": size})
    texts = _without_rare_characters(texts, backend.normalizer.normalize_str, most=pieces)
    backend.train_from_iterator(texts, trainer=trainer)
    backend.model = _with_byte_fallback(backend, pieces)
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return backend


def _cutting_backend(model: models.Model, pattern: str, lowercase: bool) -> Tokenizer:
    """A backend that splits text into matches of a pattern, still without a vocabulary."""
    backend = Tokenizer(model)
    # Text of some systems and PDF files has accents as characters of their own.
    steps: list[normalizers.Normalizer] = [normalizers.NFC()]
    if lowercase:
        steps.append(normalizers.Lowercase())
    backend.normalizer = normalizers.Sequence(steps)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return backend


def _without_rare_characters(
    texts: Iterable[list[str]], normalize: Callable[[str], str], most: int
) -> Iterator[list[str]]:
    """The normalised texts, split at rare characters: all beyond the most frequent that cover 99.95 % of the corpus, or
    beyond the `most` most frequent. These are spelt by bytes.

    The trainer would give each character an id, and refuse to train if there are more characters than ids.
    """
    counts: Counter[str] = Counter()
    for batch in texts:
        counts.update(normalize("".join(batch)))
    allowed, left = 0.0005 * counts.total(), counts.total()
    rare = set()
    for number, (character, count) in enumerate(sorted(counts.items(), key=lambda item: (-item[1], item[0]))):
        if number >= most or left <= allowed:
            rare.add(character)
        left -= count
    if not rare:
        yield from texts
        return
    cut = re.compile(f"[{re.escape(''.join(sorted(rare)))}]")
    for batch in texts:
        yield [part for text in batch for part in cut.split(normalize(text)) if part]


def _with_byte_fallback(backend: Tokenizer, most: int) -> models.Unigram:
    """A model of the `most` likeliest trained pieces and the 256 bytes, scored below all trained pieces."""
    pieces = [tuple(piece) for piece in json.loads(backend.to_str())["model"]["vocab"]]
    special, learnt = pieces[: len(SPECIAL_TOKENS)], pieces[len(SPECIAL_TOKENS) :]
    # The trainer exceeds its size by a few pieces when characters take up most of it.
    learnt = sorted(learnt, key=lambda piece: (-piece[1], piece[0]))[:most]
    lowest = min((score for _, score in learnt), default=0.0)
    vocabulary = special + [(piece, lowest - 20.0) for piece in _BYTE_PIECES] + learnt
    return models.Unigram(vocabulary, unk_id=SPECIAL_TOKENS.index(UNK_TOKEN), byte_fallback=True)


_TRAINERS: dict[str, tuple[Callable[..., Tokenizer], int]] = {
    "word": (_train_words, len(SPECIAL_TOKENS) + 1),
    "bpe": (_train_bpe, len(SPECIAL_TOKENS) + len(_BYTE_PIECES)),
    "unigram": (_train_unigram, len(SPECIAL_TOKENS) + len(_BYTE_PIECES) + 1),
    "char": (_train_chars, len(SPECIAL_TOKENS) + 1),
}
# Kinds that can be trained on a corpus; a WordPiece vocabulary comes from word vectors ([`wordpiece_tokenizer`]).
TOKENIZER_KINDS = tuple(_TRAINERS)
WORDPIECE = "wordpiece"


def split_words(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str]) -> Iterator[list[str]]:
    """Yields the words of each text as split by the tokenizer, before the lookup in its vocabulary.

    Words are normalised, without special tokens; unknown words stay readable. For BPE and Unigram they are the spans
    inside which pieces are formed.
    """
    normalize, pre_tokenizer = normalizer_of(tokenizer), tokenizer.backend_tokenizer.pre_tokenizer
    for text in map(normalize, texts):
        if pre_tokenizer is None:
            yield [text] if text else []
        else:
            # By offsets, since the names of byte-level pieces are not their text.
            places = (place for _, place in pre_tokenizer.pre_tokenize_str(text))
            yield [word for start, end in places if (word := text[start:end].strip())]


def normalizer_of(tokenizer: PreTrainedTokenizerFast) -> Callable[[str], str]:
    """The function that normalises a text before it is split, for instance by lower-casing."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    return str if normalizer is None else normalizer.normalize_str


def is_word_level(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether the tokenizer has only whole words, and no pieces of words."""
    return isinstance(tokenizer.backend_tokenizer.model, models.WordLevel)


def is_character_level(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether the tokenizer has only single characters and special tokens."""
    lengths = {len(token) for token in tokenizer.get_vocab().keys() - set(tokenizer.all_special_tokens)}
    return is_word_level(tokenizer) and lengths == {1}


def bare_backend(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    """A copy of the backend, without the padding and truncation that an earlier call may have left on."""
    backend = tokenizer.backend_tokenizer
    copied: Tokenizer = type(backend).from_str(backend.to_str())
    copied.no_padding()
    copied.no_truncation()
    # The serialised copy lacks this setting.
    copied.encode_special_tokens = bool(getattr(tokenizer, "split_special_tokens", False))
    return copied


def check_end_token(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises ValueError unless the tokenizer appends the end token; without it an empty text would have no token, and
    max pooling would give minus infinity."""
    if tokenizer("").input_ids != [tokenizer.eos_token_id]:
        raise ValueError(
            f"The tokenizer turns an empty text into {tokenizer('').input_ids}, expected the end token alone "
            f"([{tokenizer.eos_token_id}]); give it the template '$A {tokenizer.eos_token}'."
        )


@dataclass(frozen=True)
class UnknownWords:
    """Number of tokens, or words, in some texts, and how many of them are unknown to a tokenizer."""

    unknown: int
    total: int

    @property
    def rate(self) -> float:
        """Share of unknown tokens; 0 if there is no token."""
        return self.unknown / self.total if self.total else 0.0


def unknown_word_rate(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str]) -> UnknownWords:
    """Counts all and unknown tokens of `texts`, without special tokens."""
    unknown = total = 0
    texts = iter(texts)
    backend = bare_backend(tokenizer)
    while batch := list(islice(texts, _BATCH)):
        for encoding in backend.encode_batch_fast(batch, add_special_tokens=False):
            total += len(encoding.ids)
            unknown += encoding.ids.count(tokenizer.unk_token_id)
    return UnknownWords(unknown, total)


def unread_words(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> UnknownWords:
    """Counts all words of `texts` and those that are unknown or spelt by letters or bytes, as tokenizers of pieces do
    with words of another script."""
    backend = bare_backend(tokenizer)
    if isinstance(backend.model, models.WordLevel) or backend.pre_tokenizer is None:
        return unknown_word_rate(tokenizer, texts)
    unknown = total = 0
    for text, encoding in zip(texts, backend.encode_batch(list(texts), add_special_tokens=False), strict=True):
        for _, group in groupby(range(len(encoding.ids)), encoding.word_ids.__getitem__):
            places = list(group)
            span = text[encoding.offsets[places[0]][0] : encoding.offsets[places[-1]][1]]
            word = unicodedata.normalize("NFC", span.strip())
            if word:
                is_spelt = len(places) > 2 and len(places) >= len(word) and set(map(_major_category, word)) <= {*"LM"}
                total += 1
                unknown += is_spelt or tokenizer.unk_token_id in map(encoding.ids.__getitem__, places)
    return UnknownWords(unknown, total)


def _major_category(character: str) -> str:
    return unicodedata.category(character)[0]
