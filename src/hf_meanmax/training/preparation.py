"""Builds a run's tokenizer and token stores from its settings; all are cached and reused by later runs."""

from __future__ import annotations

import glob
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm.auto import tqdm

from hf_meanmax.data import (
    Corpus,
    Documents,
    ParallelCorpus,
    SentenceFilter,
    StoredTexts,
    TokenStore,
    build_token_store,
    open_corpus,
    pick_sentences,
)
from hf_meanmax.data.corpus import Chain
from hf_meanmax.data.held_out import BLOCK_LINES, HeldOut, first_documents, share_to_hold_out
from hf_meanmax.data.opening import is_address
from hf_meanmax.data.tables import table_kind
from hf_meanmax.data.token_store import TokenEncoder, count_shared
from hf_meanmax.inference.long_texts import MOST_TOKENS
from hf_meanmax.tokenization.word_vectors import load_gensim

from .cache import cache_folder, cache_lock, digest
from .run_settings import RunArguments
from .settings import PretrainArguments
from .vocabulary import load_or_train_tokenizer, teachers_words, token_ids, word_vectors_file

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Settings that leave out more than this share of the training texts are reported.
MUCH_LEFT_OUT = 0.2

# Beyond this share of held-out sentences that are trained on too, scores are too good for new text.
_MUCH_SHARED = 0.05


@dataclass(kw_only=True)
class Prepared:
    """The tokenizers and texts of a run.

    Attributes:
        tokenizer: the tokenizer of the run.
        train: the token store of the training corpus.
        validation: the token store of the first `validation_sentences` held-out sentences, or of as many lines for an
            objective that predicts their context.
        validation_texts: the texts of these sentences, in the store's order; empty if their context is predicted.
        train_target, validation_target: stores of the translations, where there are any.
        references: the translations of `validation_texts`.
        target_tokenizer: the tokenizer of the translations, if they have their own.
        sources: the texts of the stores `train` and `validation`, by these names.
        word_vectors: the setting, where a teacher or a static model is replaced by a file of its word vectors.
    """

    tokenizer: PreTrainedTokenizerBase
    train: TokenStore
    validation: TokenStore
    validation_texts: list[str]
    train_target: TokenStore | None = None
    validation_target: TokenStore | None = None
    references: list[str] = field(default_factory=list)
    target_tokenizer: PreTrainedTokenizerBase | None = None
    sources: dict[str, StoredTexts] = field(default_factory=dict)
    word_vectors: str = ""

    def fingerprint(self) -> str:
        """Hash of the tokenizers and of the training texts' token counts, independent of where the texts lie."""
        parts = [part for part in (self.tokenizer, self.target_tokenizer) if part is not None]
        tokenizers = [TokenEncoder(part).fingerprint() for part in parts]
        stores = [store for store in (self.train, self.train_target) if store is not None]
        return digest(tokenizers, [(len(store), store.token_counts.tolist()) for store in stores])

    def contents(self) -> dict[str, str]:
        """Hashes of the tokenizers and of each store, token by token."""
        parts = {"tokenizer": self.tokenizer, "tokenizer of the translations": self.target_tokenizer}
        stores = {
            "training texts": self.train, "translations": self.train_target, "held-out texts": self.validation,
            "held-out translations": self.validation_target,
        }  # fmt: skip
        hashes = {name: TokenEncoder(part).fingerprint() for name, part in parts.items() if part is not None}
        hashes |= {name: digest(store.checksums) for name, store in stores.items() if store is not None}
        return {f"hash of the {name}": value for name, value in hashes.items()}

    @property
    def output_store(self) -> TokenStore:
        """The token store of the decoder's targets."""
        return self.train if self.train_target is None else self.train_target

    @property
    def output_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the decoder's targets."""
        return self.tokenizer if self.target_tokenizer is None else self.target_tokenizer


def prepare(args: PretrainArguments, show_progress: bool = True) -> Prepared:
    """Tokenizer, token stores and held-out texts of a run, made once and cached in `cache_dir`.

    Raises:
        FileNotFoundError: if a corpus or the tokenizer's folder is not there.
        ValueError: if nothing is left of a corpus, with what each filter dropped.
    """
    word_vectors = word_vectors_file(args)
    if word_vectors == "train" and all(path.suffix for path in (cache_folder(args) / "vectors").glob("*")):
        # A missing gensim shows before the texts are read. Cached vectors, which have no suffix, may not need it.
        load_gensim()
    if args.objective == "translation":
        return _prepare_translation(args, word_vectors, show_progress)
    train, held_out = open_sides(args, show_progress)
    if any(train) and not any(held_out):  # before a teacher reads all words
        reason = f"the corpus is too short ({BLOCK_LINES + 1} lines suffice, or two documents)"
        if args.validation:
            reason = f"`validation` {args.validation!r} holds no text"
        raise ValueError(f"No text is held out for validation: {reason}. Name a file with `--validation`.")
    if word_vectors == "teacher":
        word_vectors = str(teachers_words(args, train, show_progress))
    tokenizer = load_or_train_tokenizer(args, args.tokenizer, train, show_progress, word_vectors=word_vectors)
    limits = (args.min_tokens, args.max_tokens, args.long_lines, args.max_unknown_rate, args.drop_unknown_words)
    # A sentence that is too long or short to be encoded is still part of a context.
    of_any_length = SentenceFilter(drop_unknown_words=args.drop_unknown_words)
    rule = of_any_length if args.reads_context else SentenceFilter(*limits)
    store = cached_store(args, train, tokenizer, rule, show_progress)
    _check_store(store, tokenizer, args, show_progress)
    needs_context = args.is_of_context or (args.has_neighbours and args.objective == "none")
    documents = _held_out_documents(args, held_out, tokenizer, needs_context)
    validation = cached_store(args, documents, tokenizer, of_any_length, show_progress=False)
    sources = {
        "train": StoredTexts(train, tokenizer, rule, len(store)),
        "validation": StoredTexts(documents, tokenizer, of_any_length),
    }
    if show_progress:
        _check_held_out(store, validation)
    # Like the store, the source leaves out a text that has only unknown words.
    texts = [] if needs_context else list(sources["validation"])
    return Prepared(
        tokenizer=tokenizer, train=store, validation=validation, validation_texts=texts, sources=sources,
        word_vectors=word_vectors,
    )  # fmt: skip


def _held_out_documents(
    args: PretrainArguments, held_out: Corpus, tokenizer: PreTrainedTokenizerBase, needs_context: bool
) -> Documents:
    """The first held-out lines in their documents if context is needed, otherwise the first held-out sentences within
    the length limits."""
    if needs_context:
        return Documents(first_documents(held_out, args.validation_sentences))
    # Longer texts cannot be generated in one pass; the end token counts too.
    longest = min(args.max_tokens, MOST_TOKENS - 1)
    texts = pick_sentences(held_out, tokenizer, args.validation_sentences, args.min_tokens, longest)
    if not texts:
        raise ValueError(
            f"No sentence of {args.min_tokens}-{longest} tokens could be held out for validation; name a file "
            "with `--validation`, or widen `--min_tokens` and `--max_tokens`."
        )
    return Documents([texts])


def _prepare_translation(args: PretrainArguments, word_vectors: str, show_progress: bool) -> Prepared:
    """Tokenizers and token stores of both sides of a parallel corpus."""
    train, held_out = open_pairs(args)
    target_tokenizer = None
    if args.target_tokenizer:
        size = args.source_vocab_size or None
        tokenizer = load_or_train_tokenizer(args, args.tokenizer, train.source_side, show_progress, size, word_vectors)
        target_tokenizer = load_or_train_tokenizer(
            args, args.target_tokenizer, train.target_side, show_progress, setting="target_tokenizer"
        )
        ids, of_target = token_ids(tokenizer), token_ids(target_tokenizer)
        if ids != of_target:
            raise ValueError(
                f"`target_tokenizer` {args.target_tokenizer!r} has the special tokens {of_target}, and the source's "
                f"tokenizer {ids}: a model has one number for each. Give tokenizers that agree."
            )
    else:
        both = Chain([train.source_side, train.target_side])
        tokenizer = load_or_train_tokenizer(args, args.tokenizer, both, show_progress, word_vectors=word_vectors)
    output_tokenizer = target_tokenizer or tokenizer
    source_rule = SentenceFilter(args.min_tokens, args.max_tokens, args.long_lines, args.max_unknown_rate)
    target_rule = SentenceFilter(1, args.max_target_tokens, args.long_lines, args.max_unknown_rate)
    pairs = _pick_pairs(args, held_out, tokenizer, output_tokenizer)
    texts, references = (list(side) for side in zip(*pairs, strict=True))
    source = cached_store(args, train.source_side, tokenizer, source_rule, show_progress)
    target = cached_store(args, train.target_side, output_tokenizer, target_rule, show_progress)
    _check_store(source, tokenizer, args, show_progress)
    _check_store(target, output_tokenizer, args, show_progress, "max_target_tokens")
    validation, validation_target = (
        cached_store(args, Documents([lines]), words, SentenceFilter(), show_progress=False)
        for lines, words in ((texts, tokenizer), (references, output_tokenizer))
    )
    if show_progress:
        _check_held_out(source, validation)
    return Prepared(
        tokenizer=tokenizer, train=source, validation=validation, validation_texts=texts, train_target=target,
        validation_target=validation_target, references=references, target_tokenizer=target_tokenizer,
        sources={"train": StoredTexts(train.source_side, tokenizer, source_rule, len(source))},
        word_vectors=word_vectors,
    )  # fmt: skip


def _pick_pairs(
    args: PretrainArguments,
    held_out: Iterable[tuple[str, str]],
    tokenizer: PreTrainedTokenizerBase,
    output_tokenizer: PreTrainedTokenizerBase,
) -> list[tuple[str, str]]:
    """The first held-out pairs whose sides are within the length limits."""
    # Longer texts cannot be translated in one pass.
    longest = min(args.max_tokens, MOST_TOKENS - 1)

    def fits(pair: tuple[str, str]) -> bool:
        source, target = (
            len(words(text, add_special_tokens=False)["input_ids"])
            for words, text in zip((tokenizer, output_tokenizer), pair, strict=True)
        )
        return args.min_tokens <= source <= longest and 0 < target <= args.max_target_tokens

    pairs = list(islice(filter(fits, held_out), args.validation_sentences))
    if not pairs:
        raise ValueError(
            f"No pair of sentences could be held out for validation (`min_tokens` {args.min_tokens}, `max_tokens` "
            f"{args.max_tokens}, `max_target_tokens` {args.max_target_tokens}); widen these settings, or name other "
            "files with `--validation` and `--validation_target`."
        )
    return pairs


def open_pairs(args: PretrainArguments) -> tuple[ParallelCorpus, ParallelCorpus]:
    """The training pairs of a translation, and the held-out ones."""

    def read(source: list[str], target: list[str] | None) -> ParallelCorpus:
        sides = ((source, args.text_column), (target or source, args.target_column or args.text_column))
        return ParallelCorpus(
            *(open_corpus(names, args.encoding_errors, *_place_in(names, column, args)) for names, column in sides)
        )

    pairs = read(args.corpus, args.target)
    if args.validation:
        validation = read(args.validation, args.validation_target)
        _refuse_trained_on(pairs.source, validation.source, args.validation)
        return pairs, validation
    every = share_to_hold_out(pairs.source_side)
    train, held_out = (
        ParallelCorpus(HeldOut(pairs.source_side, every, held), HeldOut(pairs.target_side, every, held))
        for held in (False, True)
    )
    return train, held_out


def cached_store(
    args: RunArguments, corpus: Corpus, tokenizer: PreTrainedTokenizerBase, rule: SentenceFilter, show_progress: bool
) -> TokenStore:
    """The token store of a corpus, built once and cached."""
    key = digest(corpus.identity(), TokenEncoder(tokenizer).fingerprint(), asdict(rule))
    folder = cache_folder(args) / "stores" / key
    with cache_lock(folder):
        return build_token_store(corpus, tokenizer, folder, rule, show_progress)


def check_known(unknown: int, words: int, tokenizer: PreTrainedTokenizerBase, initial_model: str = "") -> None:
    """Warns on stderr if a tokenizer does not know more than a tenth of the words of the training texts.

    Raises:
        ValueError: it knows none.
    """
    remedy = (
        f"The tokenizer has {len(tokenizer):,} tokens: train one with a lower `min_frequency` (few words of little "
        "text are frequent) and a larger `vocab_size`, or give one of this language. Texts without spaces between "
        "words are segmented by `hf-meanmax prepare` first, or read with `--tokenizer char`."
    )
    if initial_model:
        remedy = f"The words are those of {initial_model}: add others with `hf-meanmax expand`, or start without it."
    if words and unknown >= words:
        raise ValueError(f"All {words:,} words of the training texts are unknown. {remedy}")
    if 10 * unknown > words:
        share = f"{unknown:,} of {words:,} words ({unknown / words:.1%}) of the training texts are unknown"
        tqdm.write(f"warning: {share}. {remedy}", file=sys.stderr)


def _check_store(
    store: TokenStore, tokenizer: PreTrainedTokenizerBase, args: PretrainArguments, show: bool, most: str = "max_tokens"
) -> None:
    """Warns on stderr of many texts left out by length, or many unknown words; `most` names the upper length limit."""
    counts, report = store.token_counts, store.report
    left_out = {"min_tokens": report.too_short, most: report.too_long}
    total = sum(left_out.values())
    # The built-in recipe leaves out most of its text on purpose.
    if show and total > MUCH_LEFT_OUT * report.lines and args.corpus != ["docstrings"]:
        parts = [f"{count:,} by `{name}` {getattr(args, name)}" for name, count in left_out.items() if count]
        cut = ", or cut long ones with `--long_lines truncate`" if report.too_long else ""
        tqdm.write(
            f"warning: {total:,} of {report.lines:,} sentences ({total / report.lines:.1%}) of the training texts are "
            f"left out by their length: {' and '.join(parts)}. Change these settings{cut}.",
            file=sys.stderr,
        )
    if show and tokenizer.unk_token_id is not None:
        unknown, words = int(counts[tokenizer.unk_token_id]), int(counts.sum()) - len(store)
        check_known(unknown, words, tokenizer, args.initial_model)


def _check_held_out(train: TokenStore, held_out: TokenStore) -> None:
    """Warns on stderr if many held-out sentences are trained on too."""
    shared = count_shared(train, held_out)
    if shared > _MUCH_SHARED * len(held_out):
        tqdm.write(
            f"warning: {shared:,} of {len(held_out):,} held-out sentences ({shared / len(held_out):.1%}) are among the "
            "training texts too, so that scores of these are too good for new text. Remove duplicates, or name other "
            "text with `--validation`.",
            file=sys.stderr,
        )


def open_sides(args: PretrainArguments, show_progress: bool = True) -> tuple[Corpus, Corpus]:
    """The training corpus and the held-out one."""

    def read(source: list[str]) -> Corpus:
        return open_corpus(source, args.encoding_errors, *_place_in(source, args.text_column, args))

    if args.corpus == ["docstrings"]:
        from hf_meanmax.data.docstrings import harvest_docstrings

        if show_progress:
            print("The text is the docstrings of the installed packages; --corpus names other text.", file=sys.stderr)
        documents, held_out_documents = harvest_docstrings(show_progress=show_progress).split()
        held_out = read(args.validation) if args.validation else Documents(held_out_documents)
        return Documents(documents), held_out
    corpus = read(args.corpus)
    if args.validation:
        validation = read(args.validation)
        _refuse_trained_on(corpus, validation, args.validation)
        return corpus, validation
    every = share_to_hold_out(corpus)
    return HeldOut(corpus, every, held_out=False), HeldOut(corpus, every, held_out=True)


def _refuse_trained_on(corpus: Corpus, validation: Corpus, names: list[str]) -> None:
    """Raises ValueError if a part of the validation texts is a part of the corpus."""
    of_corpus, of_validation = ([part.identity() for part in side.parts] for side in (corpus, validation))
    if any(part in of_corpus for part in of_validation):
        raise ValueError(
            f"`validation` ({', '.join(names)}) is among the texts of `corpus`, and would be trained on. Leave it out, "
            "and a part is held out; or name other texts, of a data set another split that was saved to a file."
        )


def _place_in(source: list[str], column: str, args: PretrainArguments) -> tuple[str, str, str | None]:
    """Column, split and configuration with which to open `source`; files other than the corpus have no split, and text
    files no column."""
    if source is args.corpus or not all(map(_is_of_files, source)):
        return column, args.split, args.config_name or None
    return (column if any(map(table_kind, source)) else "text"), "train", None


def _is_of_files(name: str) -> bool:
    return is_address(name) or Path(name).is_file() or glob.has_magic(name)
