"""Batches whose input is a vector of each sentence instead of its words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from .batches import BatchPlan, MicroBatch, MicroBatches, Sentences, VectorRows
from .random_streams import NOISE, stream
from .token_store import TokenStore


class VectorBatches(MicroBatches):
    """Micro batches with `sentence_embedding` `(B, D)` float32 instead of `input_ids`; zeros in a placeholder row.

    The targets stay `labels`; `attention_mask`, if there is padding, is the mask of the labels.

    Args:
        sentences: the targets.
        plan: a batch plan over `sentences.costs()`.
        vectors: `(len(store), D)`, one for each sentence of the store.
        noise_scale: `(D,)`, the standard deviation of Gaussian noise on the vectors in training.
        options: `rank`, `world_size`, `candidates` and `counts_sentences` of [`MicroBatches`].
    """

    def __init__(
        self,
        sentences: Sentences | TokenStore,
        plan: BatchPlan,
        vectors: VectorRows,
        noise_scale: np.ndarray | None = None,
        **options: Any,
    ) -> None:
        super().__init__(sentences, plan, **options)
        if len(vectors) != len(self.store):
            raise ValueError(f"There are {len(vectors):,} vectors for {len(self.store):,} sentences.")
        self.vectors = vectors
        self.noise_scale = noise_scale

    def sequential(self) -> Iterator[tuple[np.ndarray, MicroBatch]]:
        """As [`MicroBatches.sequential`], without noise."""
        for mine, batch in super().sequential():
            self._put_vectors(batch, self.vectors[self.sentences.in_store(mine)])
            yield mine, batch

    def _make(self, rows: np.ndarray, epoch: int, step: int, micro: int) -> tuple[MicroBatch, int]:
        batch, num_targets = super()._make(rows, epoch, step, micro)
        mine = slice(self.rank, None, self.world_size)
        vectors = self.vectors[self.sentences.in_store(rows[mine])]
        if self.noise_scale is not None:
            # Drawn for the rows of all processes, so that the noise does not depend on their number.
            draws = stream(self.plan.seed, NOISE, epoch, step, micro).standard_normal(
                (len(rows), len(self.noise_scale)), dtype=np.float32
            )
            vectors = vectors + draws[mine] * self.noise_scale
        self._put_vectors(batch, vectors)
        return batch, num_targets

    def _put_vectors(self, batch: MicroBatch, vectors: np.ndarray) -> None:
        del batch["input_ids"]
        if not len(vectors):
            vectors = np.zeros((1, self.vectors.shape[1]))
        batch["sentence_embedding"] = torch.from_numpy(np.asarray(vectors, dtype=np.float32))
