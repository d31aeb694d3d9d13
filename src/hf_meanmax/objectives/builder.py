"""The objectives of a run."""

from __future__ import annotations

from collections.abc import Sequence

from hf_meanmax.modeling.configuration_base import LatentConfig

from .base import Objective
from .context import ContextWords, NeighbourDecoding
from .contrastive import Contrastive
from .decoding import Decoding
from .penalty import AttentionPenalty
from .softmax import Softmax
from .teacher import TeacherDistance, TeacherLoss, TeacherSimilarities


def build_objectives(
    config: LatentConfig,
    *,
    decoding: float = 1.0,
    softmax: Softmax = "full",
    context: float = 0.0,
    teacher: float = 0.0,
    teacher_loss: TeacherLoss = "cosine",
    similarities: float = 0.0,
    contrasts: Sequence[Contrastive] = (),
    temperature: float = 0.05,
) -> list[Objective]:
    """The terms of the loss, by how much each counts: decoding first, and what else has a weight or the configuration
    asks for.

    Args:
        config: of the model. With `predict_previous` the previous sentence is decoded too; with `attention_penalty`
            the heads are kept apart.
        decoding: of what the decoder generates; a model without a decoder has no such term.
        softmax: over what the output layer scores.
        context: of the words around the text.
        teacher: of the distance from the teacher's vectors.
        teacher_loss: what distance.
        similarities: of the distance from the teacher's cosines.
        contrasts: terms that tell texts from others, with their weights.
        temperature: of the teacher's loss `"contrast"`.
    """
    objectives: list[Objective] = []
    if config.has_decoder:
        kind = NeighbourDecoding if config.predict_previous else Decoding
        objectives.append(kind(decoding, softmax))
    if teacher:
        objectives.append(TeacherDistance(teacher, teacher_loss, temperature))
    if similarities:
        objectives.append(TeacherSimilarities(similarities))
    objectives += contrasts
    if context:
        # Its logits are never held whole: they would come beside those of the text.
        objectives.append(ContextWords(context, "sampled" if softmax == "sampled" else "chunked"))
    if config.attention_penalty:
        objectives.append(AttentionPenalty(config.attention_penalty))
    return objectives
