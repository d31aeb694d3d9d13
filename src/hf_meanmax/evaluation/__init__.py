"""Evaluation of sentence encoders, with controls, and of autoencoders."""

from hf_meanmax.inference.reconstruct import reconstruct

from .embedding import Embedder, EmbeddingFile
from .reconstruction import score_reconstructions, teacher_forced_scores
from .report import Results, summarize, write_report
from .runner import evaluate, evaluate_with_controls
from .tasks import Task, TaskResult
from .text_scores import TextScores, score_texts, scores_by_length

__all__ = [
    "Embedder",
    "EmbeddingFile",
    "Results",
    "Task",
    "TaskResult",
    "TextScores",
    "evaluate",
    "evaluate_with_controls",
    "reconstruct",
    "score_reconstructions",
    "score_texts",
    "scores_by_length",
    "summarize",
    "teacher_forced_scores",
    "write_report",
]
