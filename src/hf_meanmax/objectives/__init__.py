"""What a model learns: each objective is a term of the training loss, and a run is a weighted list of them."""

from .base import Divisors, Encoded, Objective, TrainingModel, TrainingOutput
from .builder import build_objectives
from .context import ContextWords, NeighbourDecoding
from .contrastive import Contrastive
from .decoding import Decoding
from .penalty import AttentionPenalty
from .teacher import TeacherDistance, TeacherSimilarities

__all__ = [
    "AttentionPenalty",
    "ContextWords",
    "Contrastive",
    "Decoding",
    "Divisors",
    "Encoded",
    "NeighbourDecoding",
    "Objective",
    "TeacherDistance",
    "TeacherSimilarities",
    "TrainingModel",
    "TrainingOutput",
    "build_objectives",
]
