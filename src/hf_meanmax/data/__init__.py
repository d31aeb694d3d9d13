"""Corpora, token stores and batches."""

from .batches import BatchPlan, EpochPlan, MicroBatches, Sentences
from .candidates import CandidateSampler
from .context import ContextSentences, NeighbouringSentences, SentencesAndContext
from .corpus import Corpus, Documents, pick_sentences
from .cutting import Cutting, CuttingReport, cut_corpus
from .docstrings import Docstrings, harvest_docstrings
from .labelled import LabelledTexts, read_labelled
from .noise import Noise
from .opening import TextOptions, open_corpus
from .parallel import PairedSentences, ParallelCorpus
from .questions import make_questions, write_questions
from .stored_texts import StoredTexts, StoredWords
from .token_store import Ragged, SentenceFilter, StoreReport, TokenStore, build_token_store
from .vector_batches import VectorBatches

__all__ = [
    "BatchPlan",
    "CandidateSampler",
    "ContextSentences",
    "Corpus",
    "Cutting",
    "CuttingReport",
    "Docstrings",
    "Documents",
    "EpochPlan",
    "LabelledTexts",
    "MicroBatches",
    "NeighbouringSentences",
    "Noise",
    "PairedSentences",
    "ParallelCorpus",
    "Ragged",
    "SentenceFilter",
    "Sentences",
    "SentencesAndContext",
    "StoreReport",
    "StoredTexts",
    "StoredWords",
    "TextOptions",
    "TokenStore",
    "VectorBatches",
    "build_token_store",
    "cut_corpus",
    "harvest_docstrings",
    "make_questions",
    "open_corpus",
    "pick_sentences",
    "read_labelled",
    "write_questions",
]
