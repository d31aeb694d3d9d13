"""What a model learns: each objective is a term of the training loss, and a run is a weighted list of them."""

from .base import Divisors, Encoded, Objective, TrainingModel, TrainingOutput
from .builder import build_objectives
from .context import ContextWords, NeighbourDecoding
from .decoding import Decoding
from .penalty import AttentionPenalty
from .teacher import TeacherDistance

__all__ = [
    "AttentionPenalty",
    "ContextWords",
    "Decoding",
    "Divisors",
    "Encoded",
    "NeighbourDecoding",
    "Objective",
    "TeacherDistance",
    "TrainingModel",
    "TrainingOutput",
    "build_objectives",
]
