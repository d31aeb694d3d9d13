"""The batches that a run's objective learns from."""

from __future__ import annotations

from typing import Any

from hf_meanmax.data import (
    BatchPlan,
    ContextSentences,
    MicroBatches,
    NeighbouringSentences,
    PairedSentences,
    Sentences,
    SentencesAndContext,
    TokenStore,
    VectorBatches,
)

from .settings import PretrainArguments


def sentences_to_learn(
    args: PretrainArguments, store: TokenStore, target: TokenStore | None, num_words: int, and_context: bool
) -> Sentences:
    """What is learnt of a store: its sentences, these and their translations, or these and the text around them.

    Args:
        args: settings with the `objective`.
        store: the tokenised texts.
        target: those of their translations, if there are any.
        num_words: words of the text around a sentence.
        and_context: whether the text after each sentence is there as well: words that are a second target, or the
            sentence that its embedding is compared with.
    """
    if target is not None:
        return PairedSentences(store, target)
    if args.has_neighbours and and_context:
        return NeighbouringSentences(store, args.min_tokens, args.max_tokens)
    if and_context:
        return SentencesAndContext(store, args.min_tokens, args.max_tokens, num_words)
    if args.is_of_context:
        return ContextSentences(store, args.objective, args.min_tokens, args.max_tokens, num_words)
    return Sentences(store)


def make_batches(
    args: PretrainArguments, sentences: Sentences, gradient_accumulation_steps: int, seed: int, **options: Any
) -> MicroBatches:
    """Micro batches of sentences; `options` are those of [`~hf_meanmax.data.MicroBatches`], or with `vectors`, which
    are then the input, of [`~hf_meanmax.data.VectorBatches`]."""
    plan = BatchPlan(sentences.costs(), args.batch_tokens, gradient_accumulation_steps, seed)
    return (VectorBatches if "vectors" in options else MicroBatches)(sentences, plan, **options)
