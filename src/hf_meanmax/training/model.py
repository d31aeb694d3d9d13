"""Builds the model of a run and its objectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
import transformers

from hf_meanmax.checkpoint.folder import check_checkpoint, load_checkpoint
from hf_meanmax.checkpoint.location import checkpoint_folder
from hf_meanmax.files import Json
from hf_meanmax.hardware import attention_for
from hf_meanmax.inference.embedder import describe_embedder
from hf_meanmax.inference.encoder import embedding_dimension
from hf_meanmax.modeling.conditional_decoding import LatentForConditionalDecoding
from hf_meanmax.modeling.configuration_base import LatentConfig
from hf_meanmax.modeling.encoder_model import LatentEncoderModel
from hf_meanmax.objectives import Contrastive, Objective, build_objectives
from hf_meanmax.objectives.contrastive import Partner

from .preparation import Prepared
from .settings import PretrainArguments
from .vocabulary import token_ids

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_HEADS = ("teacher_head.", "contrastive_head.")


def make_config(
    args: PretrainArguments,
    prepared: Prepared,
    word_vectors: npt.NDArray[np.float32] | None,
    teacher: SentenceTransformer | None,
    tell: Callable[[str], None],
) -> LatentConfig:
    """The configuration of the model, from the settings and from the texts, word vectors and teacher.

    Args:
        args: the run's settings.
        prepared: the training texts.
        word_vectors: the initial word table `(V, embedding_size)`, if one is given.
        teacher: the teacher, or the embedder whose vectors the model decodes.
        tell: prints a warning.

    Raises:
        ValueError: settings that do not go together, or an embedding that cannot be compared with the teacher's.
    """
    derived: Json = {}
    size = 0 if teacher is None else embedding_dimension(teacher)
    if size and args.teacher and args.teacher_weight and args.teacher_head:
        derived["teacher_size"] = size
    if teacher is not None and args.embedder:
        embedder = describe_embedder(teacher, args.embedder)
        _compare_embedders(args, embedder, tell)
        derived |= {"embedder": embedder, "embedding_dim": size, "normalize_embeddings": embedder["normalized"]}
    if prepared.target_tokenizer is not None:
        derived |= {"separate_vocabularies": True, "input_vocab_size": len(prepared.tokenizer)}
    if word_vectors is not None:
        derived["embedding_size"] = word_vectors.shape[1]
    if size and not args.teacher_head and args.model.get("pooling") == "weighted_mean":
        # The single row is trained to be the teacher's vector.
        derived["latent_size"] = args.model.get("latent_size") or size
    config = args.build_config(**derived, vocab_size=len(prepared.output_tokenizer), **token_ids(prepared.tokenizer))
    is_compared = bool(args.teacher and args.teacher_weight) and not args.teacher_head
    if is_compared and config.sentence_embedding_size != size:
        raise ValueError(
            f"The embedding has {config.sentence_embedding_size} numbers and the teacher's vectors {size}: without "
            "a map (`teacher_head`) they are compared as they are. Make the embedding as wide, for instance by "
            "`--latent_size`, or give `--teacher_head true`."
        )
    return config


def _compare_embedders(args: PretrainArguments, embedder: Json, tell: Callable[[str], None]) -> None:
    """Warns if the initial model was trained to decode the vectors of another embedder."""
    initial = args.initial_model
    known: Json = (check_checkpoint(checkpoint_folder(initial)).embedder or {}) if initial else {}
    if known.get("weights") not in (None, embedder["weights"]):
        tell(
            f"warning: {initial} decodes the vectors of {known.get('name')!r}, and this run learns from those of "
            f"{args.embedder!r}, which its map does not fit; give the former as `--embedder` to go on from it"
        )


def make_objectives(args: PretrainArguments, config: LatentConfig) -> tuple[list[Objective], tuple[str, ...]]:
    """The objectives of a run, whose weighted sum is the loss, and the names of those that are also logged unweighted:
    all if there are several with a teacher or contrastive loss among them, otherwise all but the first."""
    partners: dict[Partner, bool] = {"neighbour": args.has_neighbours, "view": args.has_views}
    objectives = build_objectives(
        config,
        decoding=args.decoding_weight,
        softmax=args.softmax,
        context=args.context_weight,
        teacher=args.teacher_weight if args.teacher else 0.0,
        teacher_loss=args.teacher_loss,
        similarities=args.similarity_weight,
        contrasts=[
            Contrastive(partner, args.contrastive_weight, args.temperature, args.contrastive_row_weight)
            for partner, is_asked in partners.items()
            if is_asked
        ],
        temperature=args.temperature,
    )
    compares = args.learns_from_teacher or args.contrastive != "none"
    apart = objectives if compares and len(objectives) > 1 else objectives[1:]
    return objectives, tuple(objective.name for objective in apart)


def make_model(
    args: PretrainArguments,
    prepared: Prepared,
    config: LatentConfig,
    word_vectors: npt.NDArray[np.float32] | None,
    device: torch.device,
    tell: Callable[[str], None],
) -> LatentForConditionalDecoding:
    """The model in training mode, initialised from `initial_model`, or from word vectors and token counts.

    Args:
        args: the run's settings.
        prepared: the training texts.
        config: of the model.
        word_vectors: the initial word table `(V, embedding_size)`, if one is given.
        device: where it will be trained; it is made on the CPU.
        tell: prints a warning.
    """
    attention = attention_for(args.attention, device)
    auto_class = getattr(transformers, config.full_auto_class)
    model: LatentForConditionalDecoding = auto_class.from_config(config, attn_implementation=attention)
    if args.initial_model:
        for head in _start_from(model, args.initial_model):
            tell(f"warning: {args.initial_model} has a {head}, which this run neither trains nor keeps")
    else:
        _start_new(model, args, prepared, word_vectors, tell)
    if args.freeze_encoder:
        if config.tie_word_embeddings and config.has_decoder and not config.separate_vocabularies:
            tell(
                "warning: the output layer is the encoder's word table, which is frozen; give "
                "--tie_word_embeddings false"
            )
        model.freeze_encoder()
    model.train()
    return model


def check_start(args: PretrainArguments, config: LatentConfig) -> None:
    """Checks that the initial model, if there is one, fits the model of a run.

    Raises:
        ValueError: a weight is missing, or of another size.
    """
    if args.initial_model:
        with torch.device("meta"):
            model = getattr(transformers, config.full_auto_class).from_config(config)
        _start_from(model, args.initial_model)


def _start_from(model: LatentForConditionalDecoding, name: str) -> list[str]:
    """Copies the weights and `max_new_tokens` of a checkpoint into a model; training heads that it lacks stay new.

    Returns:
        Heads of the checkpoint that the model lacks.

    Raises:
        ValueError: a weight is missing, of another size, or left over.
    """
    checkpoint = load_checkpoint(name)[0]
    initial = checkpoint.state_dict()
    if model.can_generate() and checkpoint.can_generate():
        model.generation_config.max_new_tokens = checkpoint.generation_config.max_new_tokens
    for key, weight in model.state_dict().items():
        found = initial.get(key)
        is_contrastive = key.startswith("contrastive_head.")
        if key.startswith(_HEADS) and (found is None or (is_contrastive and found.shape != weight.shape)):
            continue
        if found is None or found.shape != weight.shape:
            here = "no such weight" if found is None else f"{tuple(found.shape)}"
            raise ValueError(
                f"{name} does not fit as `initial_model`: `{key}` is to be {tuple(weight.shape)}, and it has {here}. "
                "A teacher or embedder must give vectors of the size that the model was trained with."
            )
        weight.copy_(found)
    known = model.state_dict().keys()
    lost = [key for key in initial if key.startswith("encoder.") and key not in known]
    if lost:
        raise ValueError(
            f"{name} does not fit as `initial_model`: it has the weights {', '.join(lost)}, and the new model has none "
            "such. Leave `freeze_word_embeddings` and the other settings of the model as they are there."
        )
    return sorted({key.partition(".")[0] for key in initial if key.startswith(_HEADS) and key not in known})


def _start_new(
    model: LatentForConditionalDecoding,
    args: PretrainArguments,
    prepared: Prepared,
    word_vectors: npt.NDArray[np.float32] | None,
    tell: Callable[[str], None],
) -> None:
    config = model.config
    if word_vectors is None and config.freeze_word_embeddings:
        tell("warning: the frozen word table is random; give --word_vectors, or do not freeze it")
    scores_frozen = config.freeze_word_embeddings and config.tie_word_embeddings and not config.separate_vocabularies
    if scores_frozen and not config.output_bias:
        tell(
            "warning: the output layer is the frozen word table, which cannot learn how frequent words are; give "
            "--tie_word_embeddings false --output_bias true"
        )
    start_words(model.encoder, word_vectors, prepared.train.token_counts)
    if args.output_from_words and word_vectors is not None and model.has_own_output:
        model.start_output_from_words()
    if args.frequency_bias and config.output_bias and config.has_decoder:
        model.start_from_frequencies(torch.from_numpy(prepared.output_store.token_counts))
    if args.drop_unknown_words:
        model.encoder.embeddings.start_unknown_as_mean()


def start_words(
    encoder: LatentEncoderModel, vectors: npt.NDArray[np.float32] | None, token_counts: npt.NDArray[np.int64]
) -> None:
    """Initialises a new encoder's word table from `vectors` `(V, embedding_size)`, if given, and the word weights of a
    weighted mean from the token counts `(V,)` of the training texts."""
    if vectors is not None:
        encoder.embeddings.start_from(torch.from_numpy(np.asarray(vectors)))
    if (word_pooler := getattr(encoder, "word_pooler", None)) is not None:
        word_pooler.start_from_frequencies(torch.from_numpy(token_counts))
