"""Controls for a trained encoder: untrained encoders with its word vectors and its dimension.

After Wieting and Kiela 2019, "No training required: exploring random encoders for sentence classification". All
controls read the trained model's tokens and its trained word table."""

from __future__ import annotations

import copy
import hashlib
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from hf_meanmax.inference.encoder import encode_texts

from .embedding import config_settings
from .reservoir import Reservoir, draw_uniform
from .word_sources import VERSION, Words, WordSource, by_chunks, explain_no_controls, input_tables

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

CONTROL_KINDS = ("random_encoder", "random_projection", "echo_state_network", "bag", "majority")


class Control(ABC):
    """An untrained encoder of sentences.

    Attributes:
        kind: one of `CONTROL_KINDS`.
        seed: seed of its random weights, None if it has none.
        name: kind and seed, for tables.
        key: fingerprint of the control: a hash of word table, tokenizer, kind, seed, dimension and version.
        dimension: dimension of its vectors.
    """

    kind: str
    seed: int | None = None
    key: str
    dimension: int

    @property
    def name(self) -> str:
        words = self.kind.replace("_", " ")
        return words if self.seed is None else f"{words}, seed {self.seed}"

    @abstractmethod
    def encode(self, texts: Sequence[str], batch_size: int = 64) -> np.ndarray:
        """Encodes n texts as finite vectors `(n, dimension)` float32.

        Args:
            texts: any number of texts. The more at once, the faster.
            batch_size: texts per forward pass of a random encoder; other controls ignore it.
        """


class MajorityClass(Control):
    """A constant vector of one number, from which a classifier can only learn the most frequent class.

    The correlation of its predictions is undefined and counts as 0.
    """

    kind = "majority"
    key = f"majority-{VERSION}"
    dimension = 1

    def encode(self, texts: Sequence[str], batch_size: int = 64) -> np.ndarray:
        return np.ones((len(texts), 1), dtype=np.float32)


class RandomEncoder(Control):
    """The trained model's architecture and pooling, with weights initialised at random as before training.

    Only the word table is kept, for models of this package with the vectors of the special tokens. Learned positions
    and all layers, also those after the pooling, are initialised anew, at the first call of `encode`. The caller's
    random state is not changed.

    Args:
        model: the trained SentenceTransformer, which is not changed.
        seed: of the weights.

    Raises:
        ValueError: the model wraps no transformers model, or a later module holds weights that cannot be drawn anew.
    """

    kind = "random_encoder"

    def __init__(self, model: SentenceTransformer | WordSource, seed: int = 0):
        self._source = WordSource.of(model)
        self.seed = seed
        self.dimension = self._source.dimension
        reason = _why_not_redrawable(self._source.model)
        if reason:
            raise ValueError(f"{reason}; leave out the kind 'random_encoder'.")
        inner = self._source.inner
        architecture = [type(inner).__name__, str(inner.dtype), config_settings(inner.config)]
        self.key = self._source.key(self.kind, seed, architecture, words_alone=False)

    def encode(self, texts: Sequence[str], batch_size: int = 64) -> np.ndarray:
        if len(texts) == 0:
            return np.empty((0, self.dimension), dtype=np.float32)
        vectors = encode_texts(self.sentence_transformer, list(texts), batch_size)
        return np.asarray(vectors, dtype=np.float32)

    @cached_property
    def sentence_transformer(self) -> SentenceTransformer:
        """The SentenceTransformer with random weights. It shares the trained word table: do not train it."""
        model, inner, device = self._source.model, self._source.inner, self._source.device
        # Only the CPU's generator: seeding all devices would change states that are not restored.
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.default_generator.manual_seed(_stream(self.kind, self.seed))
            fresh = type(inner)(copy.deepcopy(inner.config)).to(inner.dtype)
            # The tokenizer is shared: a copied one may read special tokens in a text differently.
            shared = (model.tokenizer, getattr(model[0], "processor", None), getattr(model, "model_card_data", None))
            replaced: dict[int, object] = {id(inner): fresh, **{id(part): part for part in shared}}
            result = copy.deepcopy(model, replaced)
            for part in _later_layers(result):
                part.cpu().reset_parameters()  # type: ignore[operator]
        result.to(device)
        # Through `data`, so that weights tied to the table stay tied.
        for trained, drawn in zip(input_tables(inner), input_tables(fresh), strict=True):
            drawn.weight.data = trained.weight.detach().to(device)
        return result.eval().requires_grad_(False)


class BagOfWords(Control):
    """The mean of the word vectors, of the word table's dimension e; zero for a text without known words.

    Special tokens and unknown words do not count.

    Args:
        model: the trained SentenceTransformer.

    Raises:
        ValueError: the model wraps no transformers model.
    """

    kind = "bag"

    def __init__(self, model: SentenceTransformer | WordSource):
        self._source = WordSource.of(model)
        self.dimension = self._source.embedding_size
        self.key = self._source.key(self.kind, None)

    def encode(self, texts: Sequence[str], batch_size: int = 64) -> np.ndarray:
        return by_chunks(self._source, texts, self.dimension, Words.mean)


class RandomProjection(Control):
    """The mean of random projections of the word vectors (Wieting and Kiela 2019, section 3).

    A matrix W `(e, D)`, uniform in [-1/sqrt(e), 1/sqrt(e)], projects each known word's vector, and thus the mean.
    Zero for a text without known words.

    Args:
        model: the trained SentenceTransformer, whose dimension is D.
        seed: of the matrix.

    Raises:
        ValueError: the model wraps no transformers model.
    """

    kind = "random_projection"

    def __init__(self, model: SentenceTransformer | WordSource, seed: int = 0):
        self._source = WordSource.of(model)
        self.seed = seed
        self.dimension = self._source.dimension
        self.key = self._source.key(self.kind, seed, "mean")

    @cached_property
    def matrix(self) -> torch.Tensor:
        """W, `(e, D)` float32."""
        size = self._source.embedding_size
        drawn = draw_uniform(np.random.default_rng(_stream(self.kind, self.seed)), (size, self.dimension), size**-0.5)
        return torch.from_numpy(drawn).to(self._source.device)

    def encode(self, texts: Sequence[str], batch_size: int = 64) -> np.ndarray:
        return by_chunks(self._source, texts, self.dimension, lambda words: words.mean() @ self.matrix)


class EchoStateNetwork(Control):
    """A random bidirectional echo state network, averaged over the words (Wieting and Kiela 2019, section 3).

    Each direction has D/2 units (for an odd D the forward one has one more), no bias, and

        h_t = tanh(W_in x_t + W h_{t-1}),    h_0 = 0.

    Each unit reads 10 others: a row of W has 10 weights, uniform, scaled so that W has the given spectral radius (found
    by power iteration). W_in is uniform in [-a, a] with a = input_scale sqrt(3) / r, where r is the root mean square
    length of the table's word vectors: averaged over the vocabulary, W_in x_t has a standard deviation of input_scale
    (over a text it is larger, if frequent words have longer vectors than rare ones). Words are known tokens, as in
    [`BagOfWords`]; a text without any gets zeros. The states are averaged, since their maximum was a weaker control on
    opinions than the bag of words.

    Args:
        model: the trained SentenceTransformer, whose dimension is D.
        seed: of the weights.

    Raises:
        ValueError: the model wraps no transformers model.
    """

    kind = "echo_state_network"
    inputs_per_unit = 10
    # How slowly inputs are forgotten.
    spectral_radius = 0.8
    input_scale = 1.0

    def __init__(self, model: SentenceTransformer | WordSource, seed: int = 0):
        self._source = WordSource.of(model)
        self.seed = seed
        self.dimension = self._source.dimension
        # 1.0 was the leaking rate, no longer a setting; it stays in the key so that cached results are found.
        self.key = self._source.key(self.kind, seed, self.spectral_radius, self.input_scale, 1.0, "mean")

    @cached_property
    def directions(self) -> list[Reservoir]:
        """The weights of the forward and of the backward direction."""
        rng = np.random.default_rng(_stream(self.kind, self.seed))
        scale = self.input_scale * math.sqrt(3) / self._source.word_length
        sizes = (self.dimension - self.dimension // 2, self.dimension // 2)
        return [
            Reservoir.draw(
                rng, units, self._source.embedding_size, scale, self.inputs_per_unit, self.spectral_radius
            ).to(self._source.device)
            for units in sizes
            if units
        ]

    def encode(self, texts: Sequence[str], batch_size: int = 64) -> np.ndarray:
        return by_chunks(self._source, texts, self.dimension, self._run)

    def _run(self, words: Words) -> torch.Tensor:
        result = torch.zeros(len(words.lengths), self.dimension, device=words.vectors.device)
        start = 0
        for number, reservoir in enumerate(self.directions):
            columns = slice(start, start + len(reservoir.inputs))
            start = columns.stop
            projected = words.vectors @ reservoir.project.T
            for rows, ids, active in words.batches(len(reservoir.inputs), backward=number == 1):
                result[rows, columns] = self._pooled_states(reservoir, projected, ids, active)
        return result

    def _pooled_states(
        self, reservoir: Reservoir, projected: torch.Tensor, ids: torch.Tensor, active: torch.Tensor
    ) -> torch.Tensor:
        """The mean `(B, units)` of the states of texts whose words are rows `ids` `(T, B)` of `projected`."""
        states = projected.new_zeros(len(reservoir.inputs), ids.shape[1])
        pooled = torch.zeros_like(states)
        for word, is_word in zip(ids, active, strict=True):
            # W h: for each unit, the weighted sum of the 10 states that it reads.
            inputs = nn.functional.embedding_bag(
                reservoir.inputs, states, mode="sum", per_sample_weights=reservoir.weights
            )
            states = inputs.add_(projected[word].T).tanh_()
            pooled += states.masked_fill(~is_word, 0.0)
        return (pooled / active.sum(dim=0)).T


def make_controls(
    model: object,
    seeds: Sequence[int] = (0, 1, 2),
    kinds: Sequence[str] | None = None,
) -> list[Control]:
    """The controls of a trained encoder, in the order of `CONTROL_KINDS`; random ones once per seed.

    They share the model's word table: do not train the model until they have been used. The model is not changed.

    Args:
        model: a SentenceTransformer whose first module wraps a transformers model. Any other encoder (a function, a
            file of embeddings) only has the majority class, since its word vectors are not known.
        seeds: seeds of the random controls.
        kinds: the kinds to make (default: all that this encoder supports, with a warning if some are not).

    Raises:
        ValueError: an unknown or unsupported kind, or a repeated seed.
    """
    for kind in kinds or ():
        if kind not in CONTROL_KINDS:
            raise ValueError(f"{kind!r} is no kind of control; choose among {', '.join(CONTROL_KINDS)}.")
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds are {list(seeds)}; expected distinct numbers.")
    reason = explain_no_controls(model)
    if reason is not None:
        if kinds is None:
            warnings.warn(f"Only the majority class is a control of this encoder: {reason}.", stacklevel=2)
        elif any(kind != "majority" for kind in kinds):
            raise ValueError(f"Only the majority class is a control of this encoder: {reason}.")
        return [MajorityClass()] if kinds is None or "majority" in kinds else []
    words = WordSource(model)
    if kinds is None:
        kinds = CONTROL_KINDS
        if lacks_random := _why_not_redrawable(words.model):
            warnings.warn(f"{lacks_random}.", stacklevel=2)
            kinds = [kind for kind in kinds if kind != RandomEncoder.kind]
    controls: list[Control] = []
    for drawn in (RandomEncoder, RandomProjection, EchoStateNetwork):
        if drawn.kind in kinds:
            controls += [drawn(words, seed) for seed in seeds]
    if "bag" in kinds:
        controls.append(BagOfWords(words))
    if "majority" in kinds:
        controls.append(MajorityClass())
    return controls


def _stream(kind: str, seed: int | None) -> int:
    """A seed per kind of control, so that different kinds draw different numbers."""
    digest = hashlib.blake2b(f"{kind} {seed}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _later_layers(model: SentenceTransformer) -> Iterator[nn.Module]:
    """The layers with weights after the first module of a SentenceTransformer."""
    for module in list(model)[1:]:
        for part in module.modules():
            if next(part.parameters(recurse=False), None) is not None:
                yield part


def _why_not_redrawable(model: SentenceTransformer) -> str | None:
    """The reason why a model cannot have a random encoder, or None if it can."""
    for part in _later_layers(model):
        if not hasattr(part, "reset_parameters"):
            return (
                f"The weights of {type(part).__name__}, after the transformers model, cannot be drawn anew, so this "
                "model has no random encoder"
            )
    return None
