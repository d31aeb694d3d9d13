"""The batches that a run's objective learns from."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from hf_meanmax.data import (
    BatchPlan,
    CandidateSampler,
    ContextSentences,
    MicroBatches,
    NeighbouringSentences,
    Noise,
    PairedSentences,
    Sentences,
    SentencesAndContext,
    TokenStore,
    VectorBatches,
)
from hf_meanmax.modeling.conditional_decoding import LatentForConditionalDecoding
from hf_meanmax.modeling.modeling_embedding_decoder import EmbeddingDecoderForGeneration

from .preparation import MUCH_LEFT_OUT, Prepared
from .settings import PretrainArguments
from .teacher import TeacherVectors


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


def _report_context(
    args: PretrainArguments, sentences: ContextSentences, stored: int, tell: Callable[[str], None]
) -> None:
    """Prints how many of the `stored` sentences are encoded, and what the others are."""
    alone = stored - len(sentences) - sentences.other_lengths
    is_much = max(sentences.other_lengths, alone) > MUCH_LEFT_OUT * stored
    tell(
        f"{'warning: ' if is_much else ''}{len(sentences):,} of these sentences are encoded; "
        f"{sentences.other_lengths:,} are context alone, by `min_tokens` {args.min_tokens} and `max_tokens` "
        f"{args.max_tokens}" + (f"; {alone:,} have no neighbour, and are left out" if alone else "")
    )


def make_run_batches(
    args: PretrainArguments,
    prepared: Prepared,
    model: LatentForConditionalDecoding,
    vectors: Mapping[str, TeacherVectors],
    rank: int,
    world_size: int,
    tell: Callable[[str], None],
) -> tuple[MicroBatches, MicroBatches]:
    """The batches of the training texts, and those of the held-out ones, of one process.

    Args:
        args: the run's settings.
        prepared: the texts.
        model: what is trained.
        vectors: the teacher's, or those that the model decodes, of "train" and of "validation", where there are any.
        rank: number of the process.
        world_size: of so many.
        tell: prints a warning.
    """
    config = model.config
    words, and_context = config.num_context_words, args.context_weight > 0 or args.has_neighbours
    sentences = sentences_to_learn(args, prepared.train, prepared.train_target, words, and_context)
    if isinstance(sentences, ContextSentences):
        _report_context(args, sentences, len(prepared.train), tell)
    held_out = sentences_to_learn(
        args, prepared.validation, prepared.validation_target, words, and_context and not config.has_decoder
    )
    plan = BatchPlan(sentences.costs(), args.batch_tokens, args.gradient_accumulation_steps, args.seed)
    held_out_plan = BatchPlan(held_out.costs(), args.batch_tokens, gradient_accumulation_steps=1, seed=0)
    candidates = None
    if args.softmax == "sampled" and config.has_decoder:
        candidates = CandidateSampler(prepared.output_store.token_counts, args.num_negatives, args.seed)
    counts_sentences = bool(config.attention_penalty) or args.contrastive != "none"
    if isinstance(model, EmbeddingDecoderForGeneration):
        scale = model.encoder.standardization.scale.cpu().numpy()
        # The scale 1 is of a number that never varies.
        noise_scale = args.embedding_noise * np.where(scale == 1, 0, scale) if args.embedding_noise else None
        return (
            VectorBatches(
                sentences, plan, vectors["train"], noise_scale,
                rank=rank, world_size=world_size, candidates=candidates, counts_sentences=counts_sentences,
            ),
            VectorBatches(held_out, held_out_plan, vectors["validation"], rank=rank, world_size=world_size),
        )  # fmt: skip
    noise = Noise(args.word_drop, args.word_swap, args.span_drop)
    training = MicroBatches(
        sentences, plan, rank, world_size, noise=noise, candidates=candidates, teacher_vectors=vectors.get("train"),
        counts_sentences=counts_sentences, makes_views=args.has_views,
    )  # fmt: skip
    if config.has_decoder:
        # The decoder is scored alone.
        return training, MicroBatches(held_out, held_out_plan, rank, world_size)
    validation = MicroBatches(
        held_out, held_out_plan, rank, world_size, noise=noise, teacher_vectors=vectors.get("validation"),
        counts_sentences=True, makes_views=args.has_views,
    )  # fmt: skip
    return training, validation
