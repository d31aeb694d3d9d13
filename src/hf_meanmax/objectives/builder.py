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
    """Builds the objectives of a run: decoding first, then those with a weight or enabled by the configuration.

    Args:
        config: the model's configuration. `predict_previous` adds decoding of the previous sentence to that of the
            next one, `attention_penalty` adds the penalty on the attention heads.
        decoding: weight of the decoder's cross entropy; unused without a decoder.
        softmax: how token losses are computed ([`~hf_meanmax.objectives.softmax.token_loss`]).
        context: weight of predicting the words around the text.
        teacher: weight of the distance to the teacher's vectors.
        teacher_loss: kind of that distance.
        similarities: weight of the distance to the teacher's cosines.
        contrasts: contrastive objectives, with their own weights.
        temperature: the divisor of the cosines in the teacher loss `"contrast"`.
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
        # Never the full softmax: its logits would be held in memory beside those of the text.
        objectives.append(ContextWords(context, "sampled" if softmax == "sampled" else "chunked"))
    if config.attention_penalty:
        objectives.append(AttentionPenalty(config.attention_penalty))
    return objectives
