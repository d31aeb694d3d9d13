"""The objectives of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hf_meanmax.modeling.configuration_base import LatentConfig

from .base import Objective
from .context import ContextWords, NeighbourDecoding
from .contrastive import Contrastive
from .decoding import Decoding
from .penalty import AttentionPenalty
from .softmax import Softmax
from .teacher import TeacherDistance, TeacherLoss, TeacherSimilarities


@dataclass(frozen=True)
class Weights:
    """What a run learns, and how much each term counts; a term with the weight 0 is not there.

    Args:
        decoding: of what the decoder generates; a model without a decoder has no such term.
        softmax: over what the output layer scores.
        context: of the words around the text.
        teacher: of the distance from the teacher's vectors.
        teacher_loss: what distance.
        similarities: of the distance from the teacher's cosines.
        neighbour: of telling the next sentence from others.
        view: of telling another view of the text from others.
        temperature: of the terms that tell texts from others.
    """

    decoding: float = 1.0
    softmax: Softmax = "full"
    context: float = 0.0
    teacher: float = 0.0
    teacher_loss: TeacherLoss = "cosine"
    similarities: float = 0.0
    neighbour: float = 0.0
    view: float = 0.0
    temperature: float = 0.05


def build_objectives(config: LatentConfig, weights: Weights | None = None) -> list[Objective]:
    """The terms of the loss: decoding first, and what the configuration and the weights add to it.

    Args:
        config: of the model. With `predict_previous` the previous sentence is decoded too; with `attention_penalty`
            the heads are kept apart.
        weights: of the terms; by default decoding alone.
    """
    weights = weights or Weights()
    objectives: list[Objective] = []
    if config.has_decoder:
        decoding = NeighbourDecoding if config.predict_previous else Decoding
        objectives.append(decoding(weights.decoding, weights.softmax))
    if weights.teacher:
        objectives.append(TeacherDistance(weights.teacher, weights.teacher_loss, weights.temperature))
    if weights.similarities:
        objectives.append(TeacherSimilarities(weights.similarities))
    partners: tuple[tuple[Literal["neighbour", "view"], float], ...] = (
        ("neighbour", weights.neighbour), ("view", weights.view),
    )  # fmt: skip
    objectives += [Contrastive(partner, weight, weights.temperature) for partner, weight in partners if weight]
    if weights.context:
        # Its logits are never held whole: they would come beside those of the text.
        objectives.append(ContextWords(weights.context, "sampled" if weights.softmax == "sampled" else "chunked"))
    if config.attention_penalty:
        objectives.append(AttentionPenalty(config.attention_penalty))
    return objectives
