"""The objectives of a run."""

from __future__ import annotations

from hf_meanmax.modeling.configuration_base import LatentConfig

from .base import Objective
from .context import ContextWords, NeighbourDecoding
from .decoding import Decoding
from .penalty import AttentionPenalty
from .softmax import Softmax
from .teacher import TeacherDistance


def build_objectives(
    config: LatentConfig, softmax: Softmax = "full", teacher_weight: float = 0.0, context_weight: float = 0.0
) -> list[Objective]:
    """The terms of the loss: decoding, and what the configuration and the weights add to it.

    Args:
        config: of the model. With `predict_previous` the previous sentence is decoded too; with `attention_penalty`
            the heads are kept apart.
        softmax: over what the output layer scores.
        teacher_weight: weight of the distance from the teacher's vectors; 0 for none.
        context_weight: weight of the words around the text; 0 for none.
    """
    decoding = NeighbourDecoding if config.predict_previous else Decoding
    objectives: list[Objective] = [decoding(softmax=softmax)]
    if teacher_weight:
        objectives.append(TeacherDistance(teacher_weight))
    if context_weight:
        # Its logits are never held whole: they would come beside those of the text.
        objectives.append(ContextWords(context_weight, "sampled" if softmax == "sampled" else "chunked"))
    if config.attention_penalty:
        objectives.append(AttentionPenalty(config.attention_penalty))
    return objectives
