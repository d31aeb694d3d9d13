"""The Massive Text Embedding Benchmark runs on a checkpoint unmodified: one task of its own kind, from local data."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer

from hf_meanmax.checkpoint.folder import save_checkpoint
from tiny_model import make_model, make_tokenizer, random_lines

mteb = pytest.importorskip("mteb", reason="mteb is not installed: pip install mteb")


def make_task(first: list[str], second: list[str], scores: list[float]):
    """A task of semantic textual similarity whose pairs are in memory."""
    from datasets import Dataset, DatasetDict
    from mteb.abstasks import AbsTaskSTS
    from mteb.abstasks.task_metadata import TaskMetadata

    class LocalSTS(AbsTaskSTS):
        metadata = TaskMetadata(
            name="LocalSTS",
            description="Pairs that are in memory.",
            dataset={"path": "local/sts", "revision": "1"},
            type="STS",
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="cosine_spearman",
        )

        def load_data(self, *args: object, **kwargs: object) -> None:
            pairs = {"sentence1": first, "sentence2": second, "score": scores}
            self.dataset = DatasetDict({"test": Dataset.from_dict(pairs)})
            self.data_loaded = True

    return LocalSTS()


def test_a_task_runs_on_a_checkpoint(tmp_path):
    model = SentenceTransformer(str(save_checkpoint(make_model(), make_tokenizer(), tmp_path / "model")), device="cpu")
    first, second = random_lines(40), random_lines(40, seed=1)
    scores = np.random.default_rng(0).uniform(0, 5, 40).tolist()
    results = mteb.evaluate(model, make_task(first, second, scores), cache=None, show_progress_bar=False)
    (result,) = results.task_results
    cosines = (model.encode(first, normalize_embeddings=True) * model.encode(second, normalize_embeddings=True)).sum(1)
    assert result.get_score() == pytest.approx(spearmanr(cosines, scores).statistic, abs=1e-4)
