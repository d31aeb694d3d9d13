"""The training and validation batches of a run."""

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
    """The sentences of a store with the targets of the objective: themselves, translations, or the text around them.

    Args:
        args: settings with the `objective`.
        store: the tokenised texts.
        target: the tokenised translations, if there are any.
        num_words: words of the text around a sentence.
        and_context: whether to add the text after each sentence: words as a second target, or the sentence that its
            embedding is compared with.
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
    """Prints how many of the `stored` sentences are encoded, only serve as context, or are left out."""
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
    """The training batches and the validation batches of one process.

    Args:
        args: the run's settings.
        prepared: the texts.
        model: the model to train.
        vectors: of the teacher, or of the embedder that the model decodes, by "train" and "validation"; may be empty.
        rank: number of the process.
        world_size: number of processes.
        tell: prints a warning.
    """
    config = model.config
    words = config.num_context_words
    sentences = sentences_to_learn(args, prepared.train, prepared.train_target, words, args.adds_context)
    if isinstance(sentences, ContextSentences):
        _report_context(args, sentences, len(prepared.train), tell)
    held_out = sentences_to_learn(
        args, prepared.validation, prepared.validation_target, words, args.adds_context and not config.has_decoder
    )
    plan = BatchPlan(sentences.costs(), args.batch_tokens, args.gradient_accumulation_steps, args.seed)
    held_out_plan = BatchPlan(held_out.costs(), args.batch_tokens, gradient_accumulation_steps=1, seed=0)
    candidates = None
    if args.softmax == "sampled" and config.has_decoder:
        candidates = CandidateSampler(prepared.output_store.token_counts, args.num_negatives, args.seed)
    counts_sentences = bool(config.attention_penalty) or args.contrastive != "none"
    if isinstance(model, EmbeddingDecoderForGeneration):
        scale = model.encoder.standardization.scale.cpu().numpy()
        # A scale of 1 marks a number that never varies, which gets no noise.
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
        # Only the decoder is scored, without noise, views or a teacher.
        return training, MicroBatches(held_out, held_out_plan, rank, world_size)
    validation = MicroBatches(
        held_out, held_out_plan, rank, world_size, noise=noise, teacher_vectors=vectors.get("validation"),
        counts_sentences=True, makes_views=args.has_views,
    )  # fmt: skip
    return training, validation
