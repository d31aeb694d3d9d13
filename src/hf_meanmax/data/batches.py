"""Batches of sentences of similar length under a token budget.

The plan cuts global batches, over all processes, as a function of (lengths, budget, seed, epoch) alone; each process
then takes its rows of them. So a resumed run, or a run with another number of processes, sees exactly the same batches.
"""

from __future__ import annotations

import itertools
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from hf_meanmax.modeling.losses import IGNORE_INDEX

from .candidates import Candidates, CandidateSampler
from .noise import Noise
from .random_streams import NOISE, ORDER, VIEW, stream
from .token_store import Ragged, TokenStore

_PREFETCHED_STEPS = 4

MicroBatch = dict[str, torch.Tensor]
T = TypeVar("T")


class BatchPlan:
    """Cuts sentences, sorted by length, into micro batches of rows x longest <= `batch_tokens`.

    A sentence longer than the budget is a micro batch of its own; one warning counts such sentences. All epochs have
    micro batches of the same sizes; their sentences and their order are drawn anew for each epoch.

    Args:
        lengths: int (sentences,), tokens of each sentence, `</s>` included.
        batch_tokens: budget of a micro batch over all processes, padding included.
        gradient_accumulation_steps: micro batches of an optimizer step; the last step of an epoch may have fewer.
        seed: seed of the run.

    Raises:
        ValueError: no sentence, or a length or number below 1.
    """

    def __init__(self, lengths: np.ndarray, batch_tokens: int, gradient_accumulation_steps: int = 1, seed: int = 0):
        if batch_tokens < 1 or gradient_accumulation_steps < 1:
            raise ValueError(
                f"batch_tokens is {batch_tokens} and gradient_accumulation_steps {gradient_accumulation_steps}; "
                "both must be at least 1."
            )
        if not len(lengths) or np.min(lengths) < 1:
            raise ValueError("A batch plan needs at least one sentence, and every sentence at least one token.")
        # Stable sorting of 16-bit keys is a radix sort.
        self.lengths = np.asarray(lengths, dtype=np.uint16 if np.max(lengths) < 1 << 16 else np.int64)
        self.gradient_accumulation_steps = gradient_accumulation_steps
        self.seed = seed
        ordered = np.sort(self.lengths).astype(np.int64)
        self.cuts = _cut(ordered, batch_tokens)
        self.longest = ordered[self.cuts[1:] - 1]
        oversized = int(np.count_nonzero(ordered > batch_tokens))
        if oversized:
            warnings.warn(
                f"{oversized:,} sentences are longer than the budget of {batch_tokens} tokens "
                f"(the longest: {ordered[-1]}); each is a micro batch of its own.",
                stacklevel=2,
            )

    @property
    def num_micro_batches(self) -> int:
        return len(self.longest)

    @property
    def num_steps(self) -> int:
        """Optimizer steps of an epoch."""
        return -(-self.num_micro_batches // self.gradient_accumulation_steps)

    @property
    def padding_rate(self) -> float:
        """Share of padding among all positions of the micro batches of an epoch."""
        places = int((np.diff(self.cuts) * self.longest).sum())
        return 1.0 - int(self.lengths.sum(dtype=np.int64)) / places

    def epoch(self, epoch: int) -> EpochPlan:
        """The micro batches of one epoch, in random order."""
        rng = stream(self.seed, ORDER, epoch)
        order = rng.permutation(len(self.lengths))
        order = order[np.argsort(self.lengths[order], kind="stable")]
        return EpochPlan(self, order, rng.permutation(self.num_micro_batches))

    def sequential(self) -> Iterator[np.ndarray]:
        """All sentences once, in order of length, for evaluation: yields the row indices of each micro batch."""
        order = np.argsort(self.lengths, kind="stable")
        for start, stop in zip(self.cuts[:-1], self.cuts[1:], strict=True):
            yield order[start:stop]


class EpochPlan:
    """The micro batches of one epoch. `plan.rows(step)` gives the sentence indices of each micro batch of a step."""

    def __init__(self, plan: BatchPlan, order: np.ndarray, micro_order: np.ndarray):
        self.plan = plan
        self.order = order
        self.micro_order = micro_order

    def __len__(self) -> int:
        return self.plan.num_steps

    def rows(self, step: int) -> list[np.ndarray]:
        """Sentence indices of each micro batch of `step`, in order of length.

        Raises:
            IndexError: no such step in an epoch.
        """
        if not 0 <= step < len(self):
            raise IndexError(f"step is {step}; an epoch has the steps 0 to {len(self) - 1}.")
        size = self.plan.gradient_accumulation_steps
        cuts = self.plan.cuts
        return [self.order[cuts[m] : cuts[m + 1]] for m in self.micro_order[step * size : (step + 1) * size]]


def _cut(ordered: np.ndarray, batch_tokens: int) -> np.ndarray:
    """Boundaries of greedy micro batches over ascending lengths."""
    cuts = [0]
    while cuts[-1] < len(ordered):
        start = cuts[-1]
        window = ordered[start : start + max(1, batch_tokens // int(ordered[start]))]
        fits = np.searchsorted(np.arange(1, len(window) + 1) * window, batch_tokens, side="right")
        cuts.append(start + max(1, int(fits)))
    return np.array(cuts, dtype=np.int64)


def pad(rows: Ragged, value: int) -> np.ndarray:
    """Rows as an int64 matrix (rows, longest), padded with `value`."""
    width = int(rows.lengths.max())
    filled = np.arange(width) < rows.lengths[:, None]
    if filled.all():
        return rows.ids.reshape(len(rows.lengths), width)
    matrix = np.full(filled.shape, value, dtype=np.int64)
    matrix[filled] = rows.ids
    return matrix


class Sentences:
    """The training sentences of a store, each with its target: here the sentence itself, in subclasses for instance
    the next words or a translation.

    Args:
        store: the token store.
        indices: int (sentences,), indices of the training sentences in the store (default: all).
    """

    def __init__(self, store: TokenStore, indices: np.ndarray | None = None):
        self.store = store
        self.indices = indices

    def __len__(self) -> int:
        return len(self.store) if self.indices is None else len(self.indices)

    def in_store(self, rows: np.ndarray) -> np.ndarray:
        """Indices of these sentences in the store."""
        return rows if self.indices is None else self.indices[rows]

    def inputs(self, rows: np.ndarray) -> Ragged:
        """Input of the encoder."""
        return self.store.rows(self.in_store(rows))

    def targets(self, rows: np.ndarray) -> Ragged:
        """Targets of the decoder."""
        return self.inputs(rows)

    def further_targets(self, rows: np.ndarray) -> dict[str, Ragged]:
        """Targets of further decoders, by the names of the model's arguments."""
        return {}

    def neighbours(self, rows: np.ndarray) -> Ragged | None:
        """The neighbouring text with which each embedding is compared, if there is one."""
        return None

    def costs(self) -> np.ndarray:
        """Lengths for a batch plan."""
        return self.store.lengths if self.indices is None else self.store.lengths[self.indices]


class VectorRows(Protocol):
    """A matrix whose rows are read by index: an array, or one stored in files."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.floating]: ...


class MicroBatches:
    """Micro batches of sentences as tensors, for one process of `world_size`.

    A micro batch holds `input_ids` (B, N) and `labels` (B, N'), with -100 at padding; `attention_mask` (B, N) only
    if the global micro batch has padding. All processes have the widths of the global micro batch. With `candidates`,
    `candidate_ids` (C,) and `candidate_log_prob` (C,) are added; labels stay word ids.

    Process r takes the rows r, r + W, ... of each micro batch. A process without a row gets a placeholder row whose
    labels are all -100, so that every process makes the same number of forward passes.

    Sentences with neighbours have `neighbour_ids` (B, M) and, if there is padding, `neighbour_mask` as well. With
    `makes_views` there are `view_ids` and `view_mask`, a second copy of the input; noise is applied only to this copy.

    With `counts_sentences` or `teacher_vectors`, each batch also has the number of sentences of the whole global step,
    `num_sentences_in_batch`. With `teacher_vectors` it has `teacher_embeddings` `(B, size)` float32 as well, NaN in a
    placeholder row.

    Args:
        sentences: inputs and targets.
        plan: a batch plan over `sentences.costs()`.
        rank: number of this process.
        world_size: number of processes.
        noise: denoising noise for the input, or only for its view with `makes_views`; the labels stay clean.
        candidates: sampler for sampled softmax.
        teacher_vectors: `(len(store), size)`, the teacher's vector of each sentence of the store.
        counts_sentences: whether to add the number of sentences, for a loss that averages over sentences.
        makes_views: whether to add a second copy of the input.

    Raises:
        ValueError: a plan or teacher vectors for another number of sentences, or a rank outside the world.
    """

    def __init__(
        self,
        sentences: Sentences | TokenStore,
        plan: BatchPlan,
        rank: int = 0,
        world_size: int = 1,
        noise: Noise | None = None,
        candidates: CandidateSampler | None = None,
        teacher_vectors: VectorRows | None = None,
        counts_sentences: bool = False,
        makes_views: bool = False,
    ):
        self.sentences = sentences if isinstance(sentences, Sentences) else Sentences(sentences)
        self.store = self.sentences.store
        if teacher_vectors is not None and len(teacher_vectors) != len(self.store):
            raise ValueError(f"There are {len(teacher_vectors):,} teacher vectors for {len(self.store):,} sentences.")
        self.teacher_vectors = teacher_vectors
        self.counts_sentences = counts_sentences or teacher_vectors is not None
        self.makes_views = makes_views
        if len(plan.lengths) != len(self.sentences):
            raise ValueError(f"The plan covers {len(plan.lengths):,} sentences, there are {len(self.sentences):,}.")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank is {rank}; it must be at least 0 and below world_size = {world_size}.")
        self.plan = plan
        self.rank = rank
        self.world_size = world_size
        self.noise = noise
        self.candidates = candidates

    def iterate(self, epoch: int, start_step: int = 0) -> Iterator[tuple[int, list[MicroBatch], int]]:
        """The steps of an epoch from `start_step` on, prepared a few steps ahead in a thread.

        Yields:
            (step, micro batches, number of target tokens of the whole global step).

        Raises:
            ValueError: `start_step` outside the epoch (its end is allowed and yields nothing).
        """
        if not 0 <= start_step <= self.plan.num_steps:
            raise ValueError(f"start_step is {start_step}; an epoch has {self.plan.num_steps} steps.")
        return prefetch(lambda: self._steps(epoch, start_step), _PREFETCHED_STEPS)

    def sequential(self) -> Iterator[tuple[np.ndarray, MicroBatch]]:
        """All sentences once in order of length, without noise and candidates, for evaluation.

        Yields:
            (sentence indices of this process's rows, micro batch). A process without a row gets no index and a
            placeholder row whose labels are all -100.
        """
        for rows in self.plan.sequential():
            batch = self._divide(self.sentences.inputs(rows), self._labels(rows), None)
            self._add_positives(batch, rows, (0, 0, int(rows[0])))
            self._complete(batch, rows, len(rows))
            yield rows[self.rank :: self.world_size], batch

    def _steps(self, epoch: int, start_step: int) -> Iterator[tuple[int, list[MicroBatch], int]]:
        plan = self.plan.epoch(epoch)
        for step in range(start_step, len(plan)):
            rows_of_step = plan.rows(step)
            made = [self._make(rows, epoch, step, micro) for micro, rows in enumerate(rows_of_step)]
            for (batch, _), rows in zip(made, rows_of_step, strict=True):
                self._complete(batch, rows, sum(map(len, rows_of_step)))
            yield step, [batch for batch, _ in made], sum(num_targets for _, num_targets in made)

    def _make(self, rows: np.ndarray, epoch: int, step: int, micro: int) -> tuple[MicroBatch, int]:
        inputs, labels = self.sentences.inputs(rows), self._labels(rows)
        if self.noise is not None and not self.makes_views:
            inputs = self.noise(inputs, stream(self.plan.seed, NOISE, epoch, step, micro))
        candidates = None
        if self.candidates is not None:
            candidates = self.candidates.sample(
                np.concatenate([targets.ids for targets in labels.values()]), epoch, step, micro
            )
        batch = self._divide(inputs, labels, candidates)
        self._add_positives(batch, rows, (epoch, step, micro))
        return batch, _num_targets(labels)

    def _add_positives(self, batch: MicroBatch, rows: np.ndarray, key: tuple[int, int, int]) -> None:
        """Adds the neighbours and views (this process's rows) with which the embeddings are compared."""
        positives: dict[str, Ragged | None] = {"neighbour": self.sentences.neighbours(rows)}
        if self.makes_views:
            view = self.sentences.inputs(rows)
            positives["view"] = view if self.noise is None else self.noise(view, stream(self.plan.seed, VIEW, *key))
        for name, texts in positives.items():
            if texts is not None:
                self._put_texts(batch, texts, f"{name}_ids", f"{name}_mask")

    def _put_texts(self, batch: MicroBatch, texts: Ragged, ids: str, mask: str) -> None:
        """Adds this process's rows of `texts` (row 0 as a placeholder if it has none) and, if there is padding, their
        mask."""
        mine = slice(self.rank, None, self.world_size) if self.rank < len(texts.lengths) else slice(0, 1)
        batch[ids] = _tensor(pad(texts, self.store.pad_token_id)[mine])
        width = int(texts.lengths.max())
        if texts.lengths.min() < width:
            batch[mask] = _tensor((np.arange(width) < texts.lengths[mine, None]).astype(np.int64))

    def _complete(self, batch: MicroBatch, rows: np.ndarray, num_sentences: int) -> None:
        """Adds the number of sentences and, for this process's rows, the teacher's vectors."""
        if self.counts_sentences:
            batch["num_sentences_in_batch"] = torch.tensor(num_sentences)
        if self.teacher_vectors is None:
            return
        mine = rows[self.rank :: self.world_size]
        if len(mine):
            vectors = self.teacher_vectors[self.sentences.in_store(mine)]
        else:
            vectors = np.full((1, self.teacher_vectors.shape[1]), np.nan)
        batch["teacher_embeddings"] = _tensor(np.asarray(vectors, dtype=np.float32))

    def _labels(self, rows: np.ndarray) -> dict[str, Ragged]:
        return {"labels": self.sentences.targets(rows), **self.sentences.further_targets(rows)}

    def _divide(self, inputs: Ragged, labels: dict[str, Ragged], candidates: Candidates | None) -> MicroBatch:
        """This process's rows of a global micro batch."""
        batch: MicroBatch = {}
        self._put_texts(batch, inputs, "input_ids", "attention_mask")
        for name, targets in labels.items():
            padded = pad(targets, IGNORE_INDEX)[self.rank :: self.world_size]
            batch[name] = _tensor(padded if len(padded) else np.full((1, *padded.shape[1:]), IGNORE_INDEX))
        if candidates is not None:
            batch["candidate_ids"] = _tensor(candidates.ids)
            batch["candidate_log_prob"] = _tensor(candidates.log_prob)
        return batch


def _num_targets(labels: dict[str, Ragged]) -> int:
    # A second target beside the sentence has its own weight, and is not counted.
    return sum(len(targets.ids) for name, targets in labels.items() if name != "context_targets")


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def prefetch(make: Callable[[], Iterable[T]], depth: int) -> Iterator[T]:
    """Yields the items of `make()`, prepared in a thread up to `depth` ahead.

    Exceptions of `make()` are raised here; closing the iterator ends the thread.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="batch maker")
    items = pool.submit(lambda: iter(make()))

    def take() -> list[T]:
        return list(itertools.islice(items.result(), 1))

    waiting = deque(pool.submit(take) for _ in range(depth))
    try:
        while found := waiting.popleft().result():
            waiting.append(pool.submit(take))
            yield found[0]
    finally:
        pool.shutdown(cancel_futures=True)
