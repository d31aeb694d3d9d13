"""The names that `import hf_meanmax` gives, and what it needs for that."""

from __future__ import annotations

import importlib
import subprocess
import sys

import hf_meanmax
from hf_meanmax import evaluation

PUBLIC_NAMES = {
    "CompoundAttentionConfig",
    "CompoundAttentionForSequenceClassification",
    "CompoundAttentionForTranslation",
    "CompoundAttentionModel",
    "EmbeddingDecoderConfig",
    "EmbeddingDecoderForGeneration",
    "GatedMeanMaxAAEConfig",
    "GatedMeanMaxAAEForReconstruction",
    "GatedMeanMaxAAEForSequenceClassification",
    "GatedMeanMaxAAEModel",
    "MeanMaxAAEConfig",
    "MeanMaxAAEForReconstruction",
    "MeanMaxAAEForSequenceClassification",
    "MeanMaxAAEModel",
    "RNNCNNConfig",
    "RNNCNNForContextPrediction",
    "RNNCNNForSequenceClassification",
    "RNNCNNModel",
    "StructuredSelfAttentionConfig",
    "StructuredSelfAttentionForReconstruction",
    "StructuredSelfAttentionForSequenceClassification",
    "StructuredSelfAttentionModel",
    "__version__", "pretrained",
}  # fmt: skip

EVALUATION_NAMES = {
    "Embedder", "EmbeddingFile", "Results", "Task", "TaskResult", "TextScores", "evaluate", "evaluate_with_controls",
    "reconstruct", "score_reconstructions", "score_texts", "scores_by_length", "summarize", "teacher_forced_scores",
    "write_report",
}  # fmt: skip

# Imported where they are used: the models load and train without them.
LATE_IMPORTS = ("datasets", "faiss", "gensim", "jieba", "matplotlib", "onnx", "rouge_score", "sacrebleu")
LATE_IMPORTS += ("scipy", "sentence_transformers", "sklearn")


def test_public_names():
    assert set(hf_meanmax.__all__) == PUBLIC_NAMES
    assert [name for name in PUBLIC_NAMES if not hasattr(hf_meanmax, name)] == []


def test_public_names_of_the_evaluation():
    assert set(evaluation.__all__) == EVALUATION_NAMES
    # A submodule of the same name would take the function's place once it is imported.
    importlib.import_module("hf_meanmax.commands.evaluate")
    assert callable(evaluation.evaluate)


def test_models_import_without_the_heavy_packages():
    code = f"""
import sys
sys.modules.update(dict.fromkeys({LATE_IMPORTS!r}))
import hf_meanmax
import hf_meanmax.evaluation
import hf_meanmax.training
hf_meanmax.MeanMaxAAEModel, hf_meanmax.MeanMaxAAEForReconstruction
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
