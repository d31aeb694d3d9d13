"""Encodes text files or a data set into shards of embeddings, one row per line.

Works with every checkpoint of this package and every SentenceTransformer, in one process or, with
`accelerate launch`, in several. Repeat the same call to resume an interrupted one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from hf_meanmax.cosines import unit_rows
from hf_meanmax.data.corpus import Corpus, CorpusLines
from hf_meanmax.fields import check_settings, count, option
from hf_meanmax.files import LOCK, Json, differences, sole_writer, write_json
from hf_meanmax.hardware import COMPUTE_DTYPES, ComputeDtype, compute_dtype, in_dtype
from hf_meanmax.processes import check_agreement, errors_shared, main_process_first, shared_versions
from hf_meanmax.progress import progress_bar

from .compression import PCA, Compression, calibrate_int8, check_finite, quantize_int8
from .embedding_files import (
    COMPRESSION,
    FORMAT_VERSION,
    FORMATS,
    MANIFEST,
    is_finished,
    lacking_shards,
    read_manifest,
    shard_name,
    write_shard,
)
from .encoder import (
    count_truncated,
    embedding_dimension,
    encode_texts,
    limited_length,
    report_truncated,
    report_unknown,
)
from .fingerprints import model_fingerprints

if TYPE_CHECKING:
    import torch
    from accelerate import PartialState
    from sentence_transformers import SentenceTransformer
    from tqdm.auto import tqdm


# Lines of a corpus that are checked for unknown words, and the largest length of such a line.
_LOOKED_AT, _LONG_LINE = 1000, 10_000


@dataclass(frozen=True)
class EncodeSettings:
    """Settings that, with the text and the model, determine the files of an encoded corpus.

    `compute_dtype="auto"` is bfloat16 where the device multiplies it faster, else float32. A PCA and the int8 ranges
    are fitted to rows drawn from the whole corpus; vectors are normalised after the PCA.
    """

    format: Literal["npy", "safetensors", "parquet"] = option("file format of the shards (vectors alone)", "npy")
    shard_size: int = count("rows of a shard, held in memory", 16384)
    dtype: Literal["float32", "float16", "int8"] = option("numbers in the shards (int8 cannot be decoded)", "float32")
    truncate_dim: int | None = count("keep the first so many numbers (they cannot be decoded then)", None)
    pca: int | None = count("keep so many principal components (they cannot be decoded then)", None)
    normalize: bool = option("scale vectors to unit length (decodable only with `latent_normalization`)", False)
    fit_rows: int = count("lines that the PCA and the ranges of int8 are fitted on", 16384)
    max_length: int | None = count("cut texts at so many tokens", None)
    compute_dtype: ComputeDtype = option(
        "numbers in the model (auto: bfloat16 where the device multiplies it faster)", "float32"
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.pca is not None and self.pca > self.fit_rows:
            raise ValueError(
                f"pca is {self.pca}, fitted on fit_rows = {self.fit_rows} rows; it needs at least as many."
            )

    @property
    def is_fitted(self) -> bool:
        """Whether a PCA or int8 ranges are fitted to the vectors."""
        return self.pca is not None or self.dtype == "int8"

    def check_dimension(self, dimension: int) -> int:
        """The size of the vectors in the files, for a model with vectors of size `dimension`.

        Raises:
            ValueError: `truncate_dim` or `pca` exceeds the size of the vectors.
        """
        if self.truncate_dim is not None:
            if self.truncate_dim > dimension:
                raise ValueError(f"truncate_dim is {self.truncate_dim}, the model's vectors have {dimension} numbers.")
            dimension = self.truncate_dim
        if self.pca is not None:
            if self.pca > dimension:
                raise ValueError(f"pca is {self.pca}, the vectors that it would be fitted to have {dimension} numbers.")
            dimension = self.pca
        return dimension


def encode_corpus(
    model: SentenceTransformer,
    corpus: Corpus,
    output: str | os.PathLike[str],
    settings: EncodeSettings | None = None,
    *,
    pca: PCA | None = None,
    model_name: str = "",
    batch_size: int = 64,
    state: PartialState | None = None,
    show_progress: bool = True,
) -> Json:
    """Encodes a corpus into shards in a folder, one row per line; a blank line is encoded as the empty text.

    Memory holds one shard of lines at a time. A shard is written to a temporary name and renamed, so the next run with
    the same text, model and settings keeps the shards that an interrupted run has finished. A PCA and the int8 ranges
    are fitted once, before the first shard, on rows drawn from the whole corpus with a fixed seed, and saved in
    `compression.safetensors`.

    Args:
        model: a SentenceTransformer; a copy is made if `settings` have another precision.
        corpus: the text (see [`open_corpus`][hf_meanmax.data.open_corpus]).
        output: the folder for the shards and `manifest.json`.
        settings: see [`EncodeSettings`][].
        pca: a fitted PCA of `settings.pca` components; by default one is fitted here.
        model_name: the model's name in the manifest.
        batch_size: texts per forward pass; fewer if they are long (see `encode_texts`).
        state: accelerate's `PartialState`; each of n processes encodes every n-th shard. No batch crosses shards, so
            the files equal those of one process.
        show_progress: show a progress bar.

    Returns:
        The manifest: the settings, `input`, `model`, `dimension`, `compression` (the fitted PCA), and `shards` (the
        number of rows of each file).

    Raises:
        FileExistsError: the folder holds an encoding of another text, model or settings, or other files.
        FileNotFoundError: several machines do not share the folder.
        BlockingIOError: another run encodes into the folder.
        PeerEndedError: another process of this run has ended.
        ValueError: a vector is not finite; `truncate_dim` or `pca` exceeds the size of the vectors, or the given PCA
            has another size; the text has changed meanwhile; another `compute_dtype` than float32 for an ONNX export;
            or the processes have different texts, models, settings or versions of the packages.
    """
    if not hasattr(corpus, "fingerprint"):
        raise TypeError(f"corpus is a {type(corpus).__name__}; give what `hf_meanmax.data.open_corpus` makes of it.")
    settings, output = settings or EncodeSettings(), Path(output)
    settings = replace(settings, compute_dtype=_compute_dtype(settings.compute_dtype, model))
    is_main = state is None or state.is_main_process
    with errors_shared(state), limited_length(model, settings.max_length):
        with main_process_first(state):
            plan = _plan(model, corpus, settings, pca, model_name)
        check_agreement(state, _to_agree_on(plan, batch_size))
        if is_main and show_progress:
            lines = [line for line in islice(CorpusLines(corpus), _LOOKED_AT) if 0 < len(line) <= _LONG_LINE]
            report_unknown(getattr(model, "tokenizer", None), lines, f"the first {len(lines):,} lines")
        with _writing(output) if is_main else nullcontext():
            with errors_shared(state):
                if is_main:
                    _prepare(output, plan)
            model = in_dtype(model, COMPUTE_DTYPES[settings.compute_dtype])
            encoding = _Encoding(model, corpus, output, settings, plan["dimension"], batch_size, state, show_progress)
            compression = encoding.compression(pca)
            with errors_shared(state):
                rows = encoding.write_shards(compression)
            with errors_shared(state):
                if is_main:
                    corpus.check_unchanged(plan["input"])
            fitted = compression.describe()
            manifest = {**plan, "compression": fitted, "shards": rows, "rows": sum(rows), "complete": True}
            if is_main:
                if state is not None and state.num_processes > 1 and (lacks := lacking_shards(output, manifest)):
                    raise FileNotFoundError(
                        f"{output} lacks {len(lacks):,} of the shards that other machines have written, "
                        f"{lacks[0].name} for instance; name a folder that all machines share."
                    )
                write_json(output / MANIFEST, manifest)
    return manifest


def _compute_dtype(name: ComputeDtype, model: SentenceTransformer) -> ComputeDtype:
    """The dtype to compute in; an ONNX export, which has no weights in torch, counts as float32."""
    if next(model.parameters(), None) is not None:
        return compute_dtype(name, model.device)
    if name not in ("auto", "float32"):
        raise ValueError(f"compute_dtype is {name!r}, but this model has no weights in torch; leave it out.")
    return "float32"


def _plan(
    model: SentenceTransformer, corpus: Corpus, settings: EncodeSettings, pca: PCA | None, model_name: str
) -> Json:
    """The manifest before anything is encoded; checks that the settings fit the model."""
    full = embedding_dimension(model)
    dimension, wanted = settings.check_dimension(full), settings.truncate_dim or full
    if pca is not None and pca.components.shape != (settings.pca, wanted):
        found = " to ".join(map(str, pca.components.shape[::-1]))
        raise ValueError(f"The PCA goes from {found} numbers; this encoding needs one from {wanted} to {settings.pca}.")
    return {
        "format_version": FORMAT_VERSION,
        "settings": asdict(settings),
        "dimension": dimension,
        "input": corpus.fingerprint(),
        "model": {"name": model_name, **model_fingerprints(model)},
        "given_pca": None if pca is None else pca.fingerprint(),
    }


def _to_agree_on(plan: Json, batch_size: int) -> dict[str, object]:
    """The values that must be equal in all processes that encode into one folder."""
    return {
        **shared_versions(),
        "text (path, size or time of change)": plan["input"],
        "model": plan["model"]["weights"],
        "tokenizer or length limit": plan["model"]["pipeline"],
        **plan["settings"],
        "PCA": plan["given_pca"],
        "batch_size": batch_size,
    }


@dataclass(frozen=True)
class _Encoding:
    """The share of an encoding that one process, identified by `state`, does.

    Args:
        model: a SentenceTransformer in the precision of the settings.
        dimension: size of the vectors in the files.
    """

    model: SentenceTransformer
    corpus: Corpus
    output: Path
    settings: EncodeSettings
    dimension: int
    batch_size: int
    state: PartialState | None
    show_progress: bool

    def compression(self, pca: PCA | None) -> Compression:
        """The compression of the folder's vectors, loaded from it or, the first time, fitted by the main process."""
        path = self.output / COMPRESSION
        if not self.settings.is_fitted:
            return Compression()
        with main_process_first(self.state):
            if not path.is_file():
                self._fit(pca).save(path)
            return Compression.load(path)

    def _fit(self, pca: PCA | None) -> Compression:
        """Fits a PCA, unless one is given, and int8 ranges to the vectors of lines drawn from the corpus."""
        settings, ranges = self.settings, None
        if pca is None or settings.dtype == "int8":
            texts = draw_lines(CorpusLines(self.corpus), settings.fit_rows)
            if not texts:
                raise ValueError("The corpus is empty; a PCA and the ranges of int8 are fitted to its lines.")
            if self.show_progress:
                print(f"Fitting the compression on {len(texts):,} lines.", file=sys.stderr)
            raw = replace(settings, normalize=settings.normalize and settings.pca is None)
            vectors = embed_texts(self.model, texts, raw, batch_size=self.batch_size)
            check_finite(vectors)
            if settings.pca is not None:
                pca = pca or PCA.fit(vectors, settings.pca)
                vectors = pca.apply(vectors)
                vectors = unit_rows(vectors) if settings.normalize else vectors
            if settings.dtype == "int8":
                ranges = calibrate_int8(vectors)
        if pca is not None and self.show_progress:
            kept = f"{settings.pca} components keep {pca.explained_variance_ratio:.1%} of the variance."
            print(kept, file=sys.stderr)
        return Compression(pca, ranges)

    def write_shards(self, compression: Compression) -> list[int]:
        """Writes this process's missing shards; returns the number of rows of every shard."""
        rank, processes = (0, 1) if self.state is None else (self.state.process_index, self.state.num_processes)
        model, corpus, settings = self.model, self.corpus, self.settings
        rows: list[int] = []
        truncated = blank = 0
        lines = CorpusLines(corpus)
        is_hidden = not self.show_progress or rank > 0
        with progress_bar(
            total=corpus.size, unit=corpus.unit, unit_scale=True, desc="encode", disable=is_hidden
        ) as bar:
            for number, shard in enumerate(lines.shards(settings.shard_size)):
                path = self.output / shard_name(number, FORMATS[settings.format])
                if number % processes == rank:
                    # Also of a shard that an earlier run has finished.
                    truncated += count_truncated(model, shard)
                    if not is_finished(path, len(shard), self.dimension):
                        with _moved(bar, lines.position, model, len(shard)):
                            embeddings = embed_texts(model, shard, settings, compression.pca, self.batch_size)
                        write_shard(path, _stored(embeddings, settings, compression, sum(rows)))
                rows.append(len(shard))
                blank += sum(not line.strip() for line in shard)
                bar.set_postfix(rows=sum(rows), refresh=False)
                bar.update(lines.position - bar.n)
        report_truncated(truncated, model, f" (process {rank})" if processes > 1 else "")
        if blank and rank == 0 and self.show_progress:
            print(f"{blank:,} of {sum(rows):,} texts {'is' if blank == 1 else 'are'} empty.", file=sys.stderr)
        return rows


@contextmanager
def _moved(bar: tqdm, end: int, model: SentenceTransformer, rows: int) -> Iterator[None]:
    """Moves a progress bar to `end` with the forward passes of a model that encodes `rows` texts."""
    begin, done = bar.n, 0

    def move(module: object, args: object, output: dict[str, torch.Tensor]) -> None:
        nonlocal done
        done = min(rows, done + len(output["sentence_embedding"]))
        bar.update(begin + (end - begin) * done // rows - bar.n)

    hook = model[-1].register_forward_hook(move)
    try:
        yield
    finally:
        hook.remove()


def _stored(embeddings: np.ndarray, settings: EncodeSettings, compression: Compression, first: int) -> np.ndarray:
    """Vectors in the dtype of the files; `first` is the row number of the first, for errors."""
    if settings.dtype == "float16":
        embeddings = embeddings.astype(np.float16)
    finite = np.isfinite(embeddings).all(axis=1)
    if not finite.all():
        row = first + int(np.argmin(finite)) + 1
        raise ValueError(
            f"The embedding of line {row:,} is not finite in {settings.dtype}; finished shards are kept. Check the "
            "model, or use float32."
        )
    return embeddings if compression.ranges is None else quantize_int8(embeddings, compression.ranges)


def embed_texts(
    model: SentenceTransformer, texts: list[str], settings: EncodeSettings, pca: PCA | None = None, batch_size: int = 64
) -> np.ndarray:
    """The vectors of texts in an encoding with these settings, `(N, dimension)` float32, before int8.

    Args:
        model: a SentenceTransformer in the precision of the settings.
        texts: any number of texts.
        settings: see [`EncodeSettings`].
        pca: the PCA of the encoding, if `settings.pca` is set.
        batch_size: texts per forward pass; fewer if they are long (see [`encode_texts`]).
    """
    with limited_length(model, settings.max_length):
        vectors = encode_texts(model, texts, batch_size, truncate_dim=settings.truncate_dim)
    vectors = np.asarray(vectors, dtype=np.float32)
    if pca is not None:
        vectors = pca.apply(vectors)
    # Normalised here in float32, since in bf16 the lengths would not be exactly 1.
    return unit_rows(vectors) if settings.normalize else vectors


def draw_lines(lines: Iterable[str], count: int) -> list[str]:
    """Draws `count` lines uniformly, in their order, or all if there are fewer; holds only these in memory."""
    generator = np.random.default_rng(0)
    drawn: list[tuple[int, str]] = []
    for number, line in enumerate(lines):
        if number < count:
            drawn.append((number, line))
        elif (place := int(generator.integers(number + 1))) < count:
            drawn[place] = (number, line)
    return [line for _, line in sorted(drawn)]


@contextmanager
def _writing(output: Path) -> Iterator[None]:
    """[`sole_writer`] of the folder; empties it if the run fails before its first shard."""
    with sole_writer(output):
        try:
            yield
        except BaseException:
            if _is_bare(output):
                _empty(output)
            raise


def _is_bare(output: Path) -> bool:
    """Whether a folder holds only the manifest, and perhaps the compression, of a run without a finished shard."""
    names = {path.name for path in output.iterdir()} - {LOCK} if output.is_dir() else set()
    return MANIFEST in names and names <= {MANIFEST, COMPRESSION} and not read_manifest(output)["complete"]


def _empty(output: Path) -> None:
    for name in (COMPRESSION, MANIFEST):
        (output / name).unlink(missing_ok=True)


def _prepare(output: Path, plan: Json) -> None:
    """Makes the folder, or checks that the encoding in it has this text, this model and these settings."""
    for name in (MANIFEST, COMPRESSION, "shard-*"):
        for left in output.glob(f".{name}.partial-*"):
            left.unlink()
    names = {path.name for path in output.iterdir()} - {LOCK} if output.is_dir() else set()
    # An interrupted run without a finished shard does not bind the next one to its settings.
    if not output.exists() or (output.is_dir() and not names) or _is_bare(output):
        _empty(output)
        write_json(output / MANIFEST, {**plan, "complete": False})
        return
    if not output.is_dir() or not (output / MANIFEST).is_file():
        raise FileExistsError(f"{output} exists and holds no encoded corpus; name another folder.")
    found = read_manifest(output)
    for key, words in (
        ("input", "another text, or the same file changed since"),
        ("model", "another model"),
        ("dimension", "vectors of another size"),
        ("settings", "other settings"),
        ("given_pca", "another PCA"),
    ):
        before, now = found.get(key), plan[key]
        if key == "model":
            # The same model may have another path.
            before, now = ({k: v for k, v in (m or {}).items() if k != "name"} for m in (before, now))
        if before != now:
            detail = f" ({before} there, {now} now)" if key == "dimension" else ""
            if key == "settings":
                detail = f" ({differences(before or {}, now)})"
            raise FileExistsError(
                f"{output} holds an encoding of {words}{detail}. Name another folder, or remove this one."
            )
