"""Evaluation of sentence encoders, beside their controls, and of whole autoencoders."""

from .reconstruction import reconstruct, score_reconstructions, teacher_forced_scores
from .text_scores import TextScores, score_texts, scores_by_length

__all__ = [
    "TextScores",
    "reconstruct",
    "score_reconstructions",
    "score_texts",
    "scores_by_length",
    "teacher_forced_scores",
]
