"""From a run's settings to tokenizer, token stores and word vectors; all of it cached and reused by later runs."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from tqdm.auto import tqdm

from hf_meanmax._version import __version__
from hf_meanmax.data import (
    Corpus,
    Documents,
    SentenceFilter,
    TokenStore,
    build_token_store,
    open_corpus,
    pick_sentences,
)
from hf_meanmax.tokenization import train_tokenizer

from .arguments import PretrainArguments

TOKENIZER_KINDS = ("word", "bpe", "unigram", "char")
_BLOCK_LINES = 20


@dataclass
class Prepared:
    """What a run trains on.

    Attributes:
        tokenizer: the tokenizer of the run.
        train: the token store of the training corpus.
        validation: the token store of the first `validation_sentences` held-out sentences, or of as many lines for an
            objective that predicts their context.
        validation_texts: the texts of the sentences, in the store's order; none for a context.
    """

    tokenizer: Any
    train: TokenStore
    validation: TokenStore
    validation_texts: list[str]


class HeldOut(Corpus):
    """One side of a corpus that is cut into blocks of neighbouring lines, every `every`-th of which is held out.

    A block is a document, or 20 lines of a longer one.
    """

    def __init__(self, corpus: Corpus, every: int, held_out: bool):
        self.corpus = corpus
        self.every = every
        self.held_out = held_out
        self.unit = corpus.unit
        self.size = corpus.size

    def __iter__(self) -> Iterator[str]:
        block, lines = 0, 0
        for line in self.corpus:
            self.position = self.corpus.position
            # Blank lines that follow each other end one block, not several.
            if lines and (not line or lines == _BLOCK_LINES):
                block, lines = block + 1, 0
            if not line:
                yield line
                continue
            lines += 1
            if (block % self.every == self.every // 2) == self.held_out:
                yield line

    def identity(self) -> Any:
        return ["held out", self.every, self.held_out, self.corpus.identity()]


def prepare(args: PretrainArguments, show_progress: bool = True) -> Prepared:
    """Tokenizer, stores and held-out texts of a run, made once and found again in `cache_dir`.

    Raises:
        FileNotFoundError: if a corpus or the tokenizer's folder is not there.
        ValueError: if nothing is left of a corpus, with what each filter dropped.
    """
    cache = cache_folder(args)
    train, held_out = open_sides(args, show_progress)
    tokenizer = load_or_train_tokenizer(args, train, cache, show_progress)
    rule = SentenceFilter(
        min_tokens=args.min_tokens,
        max_tokens=args.max_tokens,
        beyond_max=args.long_lines,
        max_unknown_rate=args.max_unknown_rate,
        drop_unknown_words=args.drop_unknown_words,
    )
    if args.objective != "reconstruction":
        # A sentence that is too long or short to be encoded is still part of a context.
        rule = SentenceFilter(drop_unknown_words=args.drop_unknown_words)
    store = _build_store(train, tokenizer, cache, rule, show_progress)
    if args.objective != "reconstruction":
        lines = Documents(_first_documents(held_out, args.validation_sentences))
        validation = _build_store(lines, tokenizer, cache, rule, show_progress=False)
        return Prepared(tokenizer, store, validation, [])
    texts = pick_sentences(held_out, tokenizer, args.validation_sentences, args.min_tokens, args.max_tokens)
    if not texts:
        raise ValueError(
            f"No sentence of {args.min_tokens}-{args.max_tokens} tokens could be held out for validation; name a file "
            "with `--validation`, or widen `--min_tokens` and `--max_tokens`."
        )
    documents = Documents([texts])
    held_out_rule = SentenceFilter(drop_unknown_words=args.drop_unknown_words)
    validation = _build_store(documents, tokenizer, cache, held_out_rule, show_progress=False)
    return Prepared(tokenizer, store, validation, texts)


def _build_store(corpus: Corpus, tokenizer: Any, cache: Path, rule: SentenceFilter, show_progress: bool) -> TokenStore:
    """The token store of a corpus in the cache."""
    folder = cache / "stores" / _digest(corpus.identity(), _tokenizer_key(tokenizer), asdict(rule))
    with _one_at_a_time(folder):
        return build_token_store(corpus, tokenizer, folder, rule, show_progress)


def _one_at_a_time(path: Path) -> FileLock:
    """While one run makes a cached thing, another that wants it waits, and then finds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(f"{path}.lock")


def _first_documents(corpus: Corpus, number: int) -> list[list[str]]:
    """The first `number` lines of a corpus, document by document."""
    documents: list[list[str]] = [[]]
    for line in corpus:
        if line:
            documents[-1].append(line)
            number -= 1
        elif documents[-1]:
            documents.append([])
        if not number:
            break
    return [document for document in documents if document]


def cache_folder(args: PretrainArguments) -> Path:
    """Where tokenised corpora are kept: `cache_dir`, else $HF_MEANMAX_CACHE, else ~/.cache/hf_meanmax."""
    named = args.cache_dir or os.environ.get("HF_MEANMAX_CACHE") or Path.home() / ".cache" / "hf_meanmax"
    return Path(named).expanduser()


def open_sides(args: PretrainArguments, show_progress: bool = True) -> tuple[Corpus, Corpus]:
    """The training corpus and the held-out one."""

    def read(source: list[str]) -> Corpus:
        return open_corpus(source, args.encoding_errors, args.text_column, args.split)

    if args.corpus == ["docstrings"]:
        from hf_meanmax.data.docstrings import harvest_docstrings

        documents, held_out_documents = harvest_docstrings(show_progress=show_progress).split()
        return Documents(documents), Documents(held_out_documents)
    corpus = read(args.corpus)
    if args.validation:
        return corpus, read(args.validation)
    # A small corpus gives up a larger share, so that there is something to measure on.
    for every in (100, 10, 2):
        held_out = HeldOut(corpus, every, held_out=True)
        if sum(1 for _ in islice(filter(None, held_out), 100)) == 100:
            break
    return HeldOut(corpus, every, held_out=False), held_out


def load_or_train_tokenizer(args: PretrainArguments, corpus: Corpus, cache: Path, show_progress: bool = True) -> Any:
    """The tokenizer that `args.tokenizer` names: a kind to train on the corpus, or a folder.

    Raises:
        FileNotFoundError: if it is neither a kind nor a folder with a tokenizer.
    """
    from transformers import AutoTokenizer

    if args.tokenizer not in TOKENIZER_KINDS:
        if not (Path(args.tokenizer) / "tokenizer.json").is_file():
            raise FileNotFoundError(
                f"`tokenizer` is {args.tokenizer!r}: neither one of {', '.join(TOKENIZER_KINDS)} nor a folder with a "
                "tokenizer.json."
            )
        return AutoTokenizer.from_pretrained(args.tokenizer)
    settings = (args.tokenizer, int(args.model.get("vocab_size", 20000)), args.min_frequency, args.lowercase)
    folder = cache / "tokenizers" / _digest(__version__, corpus.identity(), settings)
    with _one_at_a_time(folder):
        if not (folder / "tokenizer.json").is_file():
            tokenizer = train_tokenizer(filter(None, corpus), *settings, show_progress=show_progress)
            partial = folder.with_name(f"{folder.name}.{os.getpid()}")
            tokenizer.save_pretrained(partial)
            os.replace(partial, folder)
    return AutoTokenizer.from_pretrained(folder)


def prepare_word_vectors(args: PretrainArguments, prepared: Prepared, size: int, show_progress: bool = True) -> Any:
    """The start of the word table `(V, size)` as a float32 array, or None where none is asked for.

    Raises:
        ValueError: if a file's vectors are of another dimension than `embedding_size`.
    """
    if not args.word_vectors:
        return None
    from hf_meanmax.tokenization import embedding_matrix, load_word_vectors, train_word_vectors

    tokenizer = prepared.tokenizer
    if args.word_vectors == "train":
        epochs, seed = args.word_vector_epochs, args.seed
        path = cache_folder(args) / "vectors" / _digest(prepared.train.fingerprint, size, epochs, seed)
        with _one_at_a_time(path):
            vectors = train_word_vectors(
                StoredWords(prepared.train, tokenizer), size, epochs, seed=seed, cache_path=path,
                corpus_key=prepared.train.fingerprint, show_progress=show_progress,
            )  # fmt: skip
    else:
        vectors = load_word_vectors(args.word_vectors, vocabulary=set(tokenizer.get_vocab()))
        if vectors.vectors.shape[1] != size:
            raise ValueError(
                f"The vectors of {args.word_vectors!r} have {vectors.vectors.shape[1]} dimensions, `embedding_size` is "
                f"{size}; set `--embedding_size {vectors.vectors.shape[1]}`."
            )
    matrix, found = embedding_matrix(tokenizer, vectors, seed=args.seed)
    tqdm.write(f"word vectors: {int(found.sum())} of {len(found)} words have one")
    if args.word_vector_scale:
        # One factor for all: what a vector's length says of its word is kept.
        matrix *= args.word_vector_scale / np.sqrt(np.mean(np.square(matrix[found])))
    return matrix


class StoredWords:
    """The words of every stored sentence, `</s>` left out; can be read again for each epoch of word vectors.

    An unknown word is a word of its own, `<unk>`, so distances between the others stay what they are.
    """

    def __init__(self, store: TokenStore, tokenizer: Any):
        self.store = store
        self.words = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))

    def __iter__(self) -> Iterator[list[str]]:
        for start in range(0, len(self.store), 4096):
            rows = self.store.rows(np.arange(start, min(start + 4096, len(self.store))))
            ids = rows.ids.tolist()
            end = 0
            for length in rows.lengths.tolist():
                begin, end = end, end + length
                yield [self.words[token] for token in ids[begin : end - 1]]


def _tokenizer_key(tokenizer: Any) -> str:
    return hashlib.blake2b(tokenizer.backend_tokenizer.to_str().encode(), digest_size=16).hexdigest()


def _digest(*parts: Any) -> str:
    return hashlib.blake2b(json.dumps(parts, sort_keys=True, default=str).encode(), digest_size=12).hexdigest()
