"""Evaluation of encoders and of whole autoencoders."""

from .reconstruction import ReconstructionScores, reconstruct, score_reconstructions, teacher_forced_scores

__all__ = ["ReconstructionScores", "reconstruct", "score_reconstructions", "teacher_forced_scores"]
