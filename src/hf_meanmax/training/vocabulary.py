"""The tokenizer and the word vectors of a run: trained, cached, or read from the place that the settings name."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from tqdm.auto import tqdm

from hf_meanmax._version import __version__
from hf_meanmax.checkpoint.folder import is_own_checkpoint
from hf_meanmax.checkpoint.location import hint_at_model
from hf_meanmax.data import Corpus, StoredWords, TokenStore
from hf_meanmax.files import bytes_digest, replacing_folder
from hf_meanmax.inference.encoder import load_encoder
from hf_meanmax.inference.fingerprints import model_fingerprints
from hf_meanmax.inference.teacher_words import static_words
from hf_meanmax.tokenization import (
    TOKENIZER_KINDS,
    WORDPIECE,
    SkipGramSettings,
    embedding_matrix,
    load_word_vectors,
    train_tokenizer,
    train_word_vectors,
    wordpiece_tokenizer,
)

from .cache import cache_folder, cache_lock, digest
from .run_settings import RunArguments
from .settings import PretrainArguments
from .word_vectors import VectorSettings, train_corpus_vectors

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_or_train_tokenizer(
    args: RunArguments,
    name: str,
    corpus: Corpus,
    show_progress: bool = True,
    vocab_size: int | None = None,
    word_vectors: str = "",
    setting: str = "tokenizer",
) -> PreTrainedTokenizerBase:
    """The tokenizer `name`, the value of `setting`: a kind to train on the corpus, `"wordpiece"` (the words and pieces
    of the word vectors), or a folder.

    Raises:
        FileNotFoundError: if it is neither a kind nor a folder with a tokenizer.
        ValueError: `"wordpiece"` without a file of word vectors.
    """
    from transformers import AutoTokenizer

    if name == WORDPIECE:
        if word_vectors in ("", "train"):
            raise ValueError(
                f"`{setting}` is 'wordpiece' and `word_vectors` {word_vectors!r}: the words and pieces are those of a "
                "file of word vectors, or of the teacher. Make a file with `hf-meanmax vectors --teacher MODEL "
                "--pieces`, or give `word_vectors` 'teacher'."
            )
        vectors = load_word_vectors(word_vectors, encoding_errors=args.encoding_errors, show_progress=show_progress)
        return wordpiece_tokenizer(vectors.words, args.lowercase is not False)
    if name not in TOKENIZER_KINDS:
        if not (Path(name) / "tokenizer.json").is_file():
            raise FileNotFoundError(
                f"`{setting}` is {name!r}: neither one of {', '.join((*TOKENIZER_KINDS, WORDPIECE))} nor a folder with "
                "a tokenizer.json."
            )
        tokenizer = AutoTokenizer.from_pretrained(name)
        _check_special_tokens(args, tokenizer, f"`{setting}` {name!r}")
        return tokenizer
    size = vocab_size or args.model_size("vocab_size")
    settings = (name, size, args.min_frequency, args.lowercase)
    folder = cache_folder(args) / "tokenizers" / digest(__version__, corpus.identity(), settings)
    with cache_lock(folder):
        if not (folder / "tokenizer.json").is_file():
            tokenizer = train_tokenizer(corpus, *settings, show_progress=show_progress)
            with replacing_folder(folder, owned=["*"]) as partial:
                tokenizer.save_pretrained(partial)
    return AutoTokenizer.from_pretrained(folder)


def teachers_words(args: PretrainArguments, corpus: Corpus, show_progress: bool) -> Path:
    """The cached file of the teacher's vectors of the corpus's words and, for the tokenizer `wordpiece`, of the pieces
    of its vocabulary."""
    settings = VectorSettings(
        teacher=args.frozen_encoder, pieces=args.tokenizer == WORDPIECE, min_count=args.min_frequency,
        max_words=args.model_size("vocab_size"), keep_case=args.lowercase is False,
    )  # fmt: skip
    # Loaded for its fingerprint: the name may refer to another teacher by now.
    teacher = load_encoder(args.frozen_encoder)
    key = digest(__version__, corpus.identity(), asdict(settings), model_fingerprints(teacher))
    path = cache_folder(args) / "vectors" / f"{key}.safetensors"
    with cache_lock(path):
        if not path.is_file():
            train_corpus_vectors(corpus, path, settings, show_progress, teacher)
    return path


def word_vectors_file(args: RunArguments) -> str:
    """The setting `word_vectors`; for a static model's folder, a cached file of its vectors, as wide as the word table.

    Raises:
        FileNotFoundError: no such file or folder.
        ValueError: the folder is not that of a static model.
    """
    named = args.word_vectors
    if named in ("", "train", "teacher") or Path(named).is_file():
        return named
    if not Path(named).is_dir():
        raise FileNotFoundError(
            f"`word_vectors` is {named!r}: no such file or folder. Give a file of word vectors, the folder of a static "
            "model, 'train', 'teacher' or 'none'."
        )
    if not is_own_checkpoint(named):
        raise ValueError(
            f"`word_vectors` is {named!r}, a folder without a model of this package. Give a file of word vectors, or "
            f"the folder of a static model.{hint_at_model(named)}"
        )
    words = static_words(named, args.model.get("embedding_size"))
    vectors = bytes_digest(words.vectors.tobytes())
    path = cache_folder(args) / "vectors" / f"{digest(words.words, vectors)}.safetensors"
    with cache_lock(path):
        if not path.is_file():
            words.save(path)
    return str(path)


def _check_special_tokens(args: RunArguments, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Raises ValueError unless a tokenizer from a folder has the special tokens of a model, under ids where the model
    expects them."""
    ids = token_ids(tokenizer)
    missing = [field.removesuffix("_id") for field, number in ids.items() if number is None]
    if missing:
        raise ValueError(f"{name} has no {missing[0]}. Give a tokenizer with pad, unk, bos and eos tokens.")
    special, config = sorted(set(ids.values())), args.build_config()
    skips_special = config.has_weighted_mean or getattr(args, "decoder_inputs", "words") == "random"
    if skips_special and special[-1] >= config.num_special_tokens:
        raise ValueError(
            f"{name} has special tokens {special}; a weighted mean and `decoder_inputs` 'random' leave these out by "
            f"their numbers, the first {config.num_special_tokens} (`num_special_tokens`). Give another tokenizer."
        )


def token_ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """The special token ids, by their names in a configuration."""
    return {
        "pad_token_id": tokenizer.pad_token_id,
        "unk_token_id": tokenizer.unk_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "decoder_start_token_id": tokenizer.bos_token_id,
    }


def prepare_word_vectors(
    args: RunArguments,
    tokenizer: PreTrainedTokenizerBase,
    store: TokenStore,
    show_progress: bool = True,
    source: str | None = None,
) -> npt.NDArray[np.float32] | None:
    """The initial word table `(V, embedding_size)` as a float32 array, or None without word vectors.

    With `word_vectors` "train" the vectors are learnt from the sentences of `store`. If the run sets no
    `embedding_size`, that of the vectors is taken.

    Args:
        source: replaces `args.word_vectors`.

    Raises:
        ValueError: if a file's vectors are of another dimension than `embedding_size`.
    """
    source = args.word_vectors if source is None else source
    if not source:
        return None
    if source == "train":
        size = args.model_size("embedding_size")
        epochs, seed = args.word_vector_epochs, args.seed
        path = cache_folder(args) / "vectors" / digest(store.fingerprint, size, epochs, seed)
        with cache_lock(path):
            vectors = train_word_vectors(
                StoredWords(store, tokenizer), SkipGramSettings(size=size, epochs=epochs, seed=seed), cache_path=path,
                corpus_key=store.fingerprint, show_progress=show_progress,
            )  # fmt: skip
    else:
        words = set(tokenizer.get_vocab())
        vectors = load_word_vectors(source, words, encoding_errors=args.encoding_errors, show_progress=show_progress)
        wanted = args.model.get("embedding_size")
        if wanted not in (None, vectors.vectors.shape[1]):
            raise ValueError(
                f"`word_vectors` is {args.word_vectors!r}: these vectors have {vectors.vectors.shape[1]} dimensions, "
                f"`embedding_size` is {wanted}; leave it out."
            )
    matrix, found = embedding_matrix(tokenizer, vectors, seed=args.seed)
    if show_progress:
        tqdm.write(f"word vectors: {int(found.sum())} of {len(found)} words have one")
    if args.word_vector_scale:
        # One factor for all vectors keeps their relative lengths.
        mean_square = np.mean(np.square(matrix[found]))
        if not 0 < mean_square < np.inf:
            raise ValueError(
                f"`word_vectors` is {args.word_vectors!r}: the mean square of the {int(found.sum())} vectors of the "
                f"vocabulary's words is {mean_square}. Give other vectors, or `--word_vector_scale 0`."
            )
        matrix *= args.word_vector_scale / np.sqrt(mean_square)
    return matrix
