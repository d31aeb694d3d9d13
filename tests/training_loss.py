"""The loss of all objectives that a batch has fields of."""

from __future__ import annotations

import torch

from hf_meanmax.objectives import (
    AttentionPenalty,
    ContextWords,
    Decoding,
    NeighbourDecoding,
    TeacherDistance,
    TrainingModel,
    TrainingOutput,
)


def training_model(model, batch, softmax="full", teacher_weight=1.0, context_weight=1.0) -> TrainingModel:
    decoding = NeighbourDecoding if "previous_targets" in batch else Decoding
    objectives = [decoding(softmax=softmax)]
    if "teacher_embeddings" in batch:
        objectives.append(TeacherDistance(teacher_weight, "squared"))
    if "context_targets" in batch:
        objectives.append(ContextWords(context_weight, softmax))
    if model.config.attention_penalty:
        objectives.append(AttentionPenalty(model.config.attention_penalty))
    return TrainingModel(model, objectives)


def training_loss(model, batch: dict[str, torch.Tensor], num_items_in_batch=None, **options) -> TrainingOutput:
    return training_model(model, batch, **options)(**batch, num_items_in_batch=num_items_in_batch)
