"""Tokenizers, word vectors and vocabulary expansion."""

from .expansion import Expansion, MapQuality, expand_vocabulary
from .latent_tokenizer import LatentTokenizer
from .tokenizers import (
    SPECIAL_TOKENS,
    TOKENIZER_KINDS,
    WORDPIECE,
    UnknownWords,
    split_words,
    train_tokenizer,
    unknown_word_rate,
    wordpiece_tokenizer,
)
from .word_vectors import SkipGramSettings, WordVectors, embedding_matrix, load_word_vectors, train_word_vectors

__all__ = [
    "Expansion",
    "LatentTokenizer",
    "MapQuality",
    "SPECIAL_TOKENS",
    "SkipGramSettings",
    "TOKENIZER_KINDS",
    "UnknownWords",
    "WORDPIECE",
    "WordVectors",
    "embedding_matrix",
    "expand_vocabulary",
    "load_word_vectors",
    "split_words",
    "train_tokenizer",
    "train_word_vectors",
    "unknown_word_rate",
    "wordpiece_tokenizer",
]
