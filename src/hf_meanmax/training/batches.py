"""The batches that a run's objective learns from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

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
from hf_meanmax.files import Json
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


def make_batches(
    args: PretrainArguments, sentences: Sentences, gradient_accumulation_steps: int, seed: int, **options: Any
) -> MicroBatches:
    """Micro batches of sentences; `options` are those of [`~hf_meanmax.data.MicroBatches`], or with `vectors`, which
    are then the input, of [`~hf_meanmax.data.VectorBatches`]."""
    plan = BatchPlan(sentences.costs(), args.batch_tokens, gradient_accumulation_steps, seed)
    return (VectorBatches if "vectors" in options else MicroBatches)(sentences, plan, **options)


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
    compared: Json = {
        "noise": Noise(args.word_drop, args.word_swap, args.span_drop), "makes_views": args.has_views,
    }  # fmt: skip
    of_set: dict[str, Json] = {name: {"teacher_vectors": found} for name, found in vectors.items()}
    if isinstance(model, EmbeddingDecoderForGeneration):
        scale = model.encoder.standardization.scale.cpu().numpy()
        of_set = {name: {"vectors": found} for name, found in vectors.items()}
        # The scale 1 is of a number that never varies.
        scale = np.where(scale == 1, 0, scale)
        of_set["train"]["noise_scale"] = args.embedding_noise * scale if args.embedding_noise else None
        compared = {}
    candidates = None
    if args.softmax == "sampled" and config.has_decoder:
        candidates = CandidateSampler(prepared.output_store.token_counts, args.num_negatives, args.seed)
    place = {"rank": rank, "world_size": world_size}
    words, and_context = config.num_context_words, args.context_weight > 0 or args.has_neighbours
    counts_sentences = bool(config.attention_penalty) or args.contrastive != "none"
    sentences = sentences_to_learn(args, prepared.train, prepared.train_target, words, and_context)
    if isinstance(sentences, ContextSentences):
        alone = len(prepared.train) - len(sentences) - sentences.other_lengths
        is_much = max(sentences.other_lengths, alone) > MUCH_LEFT_OUT * len(prepared.train)
        tell(
            f"{'warning: ' if is_much else ''}{len(sentences):,} of these sentences are encoded; "
            f"{sentences.other_lengths:,} are context alone, by `min_tokens` {args.min_tokens} and `max_tokens` "
            f"{args.max_tokens}" + (f"; {alone:,} have no neighbour, and are left out" if alone else "")
        )
    training = make_batches(
        args, sentences,
        args.gradient_accumulation_steps, args.seed, candidates=candidates, counts_sentences=counts_sentences,
        **of_set.get("train", {}), **compared, **place,
    )  # fmt: skip
    # A decoder of texts is scored alone.
    options: Json = {**place, **({} if config.has_decoder and config.reads_text else of_set.get("validation", {}))}
    if not config.has_decoder:
        options |= {**compared, "counts_sentences": True}
    held_out = sentences_to_learn(
        args, prepared.validation, prepared.validation_target, words, and_context and not config.has_decoder
    )
    return training, make_batches(args, held_out, 1, 0, **options)
