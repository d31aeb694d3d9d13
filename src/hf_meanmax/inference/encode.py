"""Text files or a data set to sharded embeddings, one row a line.

    hf-meanmax encode runs/docstrings/model corpus.txt --output embeddings

Works with every checkpoint of this package and every SentenceTransformer, on one process or, through
`accelerate launch`, on several. Rerun the same command to resume a killed run.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch

from hf_meanmax.checkpoint.folder import (
    check_checkpoint,
    damage_named,
    hint_at_model,
    is_missing_folder,
    is_own_checkpoint,
    require_text_encoder,
    unread_named,
)
from hf_meanmax.cosines import unit_rows
from hf_meanmax.data.corpus import Corpus, CorpusLines, readable
from hf_meanmax.files import LOCK, Json, sole_writer
from hf_meanmax.hardware import COMPUTE_DTYPES, ComputeDtype, compute_dtype, in_dtype
from hf_meanmax.modeling.configuration_base import NO_LIMIT, LatentConfig
from hf_meanmax.modeling.encoder_model import NO_REPRESENTATION
from hf_meanmax.pretrained import packaged_folder
from hf_meanmax.processes import check_agreement, errors_shared, main_process_first, shared_versions
from hf_meanmax.progress import progress_bar
from hf_meanmax.tokenization import unknown_word_rate
from hf_meanmax.tokenization.tokenizers import bare_backend

from .compression import PCA, Compression, calibrate_int8, check_finite, quantize_int8
from .embedding_files import (
    COMPRESSION,
    FORMAT_VERSION,
    FORMATS,
    MANIFEST,
    is_finished,
    read_manifest,
    shard_name,
    write_manifest,
    write_shard,
)
from .long_texts import encode_in_parts, has_long, latent_config

if TYPE_CHECKING:
    from accelerate import PartialState
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedTokenizerBase

DTYPES = {"float32": np.float32, "float16": np.float16, "int8": np.int8}

Value = TypeVar("Value")

# Lines of a corpus that are looked at for unknown words, and their most characters.
_LOOKED_AT, _LONG_LINE = 1000, 10_000
# Up to so many tokens, texts fill a batch; of longer ones fewer share a forward pass.
LONG_TEXT = 256


def _setting(default: Value, help: str, at_least: int | None = None) -> Value:
    """A field that is an option of `encode` too."""
    metadata = {"help": help} if at_least is None else {"help": help, "at_least": at_least}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class EncodeSettings:
    """What the files of an encoded corpus depend on, beside the text and the model.

    `compute_dtype="auto"` is bfloat16 where the device multiplies it faster, else float32. A PCA and the ranges of int8
    are fitted to rows that are drawn from the whole corpus; vectors are normalised after the PCA.
    """

    format: Literal["npy", "safetensors", "parquet"] = _setting("npy", "file format of the shards")
    shard_size: int = _setting(16384, "rows of a shard, held in memory", 1)
    dtype: Literal["float32", "float16", "int8"] = _setting("float32", "numbers in the shards (int8 cannot be decoded)")
    truncate_dim: int | None = _setting(None, "keep the first so many numbers (they cannot be decoded then)", 1)
    pca: int | None = _setting(None, "keep so many principal components (they cannot be decoded then)", 1)
    normalize: bool = _setting(False, "scale vectors to unit length (decodable only with `latent_normalization`)")
    fit_rows: int = _setting(16384, "lines that the PCA and the ranges of int8 are fitted on", 1)
    max_length: int | None = _setting(None, "cut texts at so many tokens", 1)
    compute_dtype: ComputeDtype = field(
        default="float32",
        metadata={"help": "numbers in the model (auto: bfloat16 where the device multiplies it faster)"},
    )

    def __post_init__(self) -> None:
        for name, allowed in (("format", FORMATS), ("dtype", DTYPES), ("compute_dtype", ("auto", *COMPUTE_DTYPES))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(allowed)}.")
        for name in ("shard_size", "truncate_dim", "pca", "fit_rows", "max_length"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be 1 or more.")
        if self.pca is not None and self.pca > self.fit_rows:
            raise ValueError(
                f"pca is {self.pca}, fitted on fit_rows = {self.fit_rows} rows; it needs at least as many."
            )

    @property
    def is_fitted(self) -> bool:
        """Whether something is fitted to the vectors."""
        return self.pca is not None or self.dtype == "int8"

    def check_dimension(self, dimension: int) -> int:
        """The numbers of a vector in the files, for a model whose vectors have `dimension`.

        Raises:
            ValueError: more numbers or components are asked for than there are.
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
    """Encodes a corpus into shards of a folder; a line is a row, a blank line the row of the empty text.

    Lines are held a shard at a time. Shards are written to a temporary name and renamed, so those that a killed run has
    finished are kept and the next run with the same text, model and settings makes the rest. A PCA and the ranges of
    int8 are fitted once, on rows drawn from the whole corpus with a fixed seed, and kept in `compression.safetensors`
    before the first shard.

    Args:
        model: a SentenceTransformer; it is left with the length limit and the precision of the settings.
        corpus: the text (see [`open_corpus`][hf_meanmax.data.open_corpus]).
        output: the folder for the shards and `manifest.json`.
        settings: see [`EncodeSettings`][].
        pca: a PCA of `settings.pca` components that was fitted before, instead of one fitted here.
        model_name: what the manifest calls the model.
        batch_size: texts of one forward pass; of long ones fewer (see `encode_texts`).
        state: accelerate's `PartialState`; with several processes each encodes every n-th shard. A batch is of one
            shard, so that the files are those of one process.
        show_progress: show a progress bar.

    Returns:
        The manifest: the settings, `input`, `model`, `dimension`, `compression` (what was fitted), and `shards` (the
        rows of each file).

    Raises:
        FileExistsError: the folder holds an encoding of another text, model or settings, or other files.
        FileNotFoundError: the processes of several machines do not write to one folder.
        BlockingIOError: another process encodes into the folder.
        PeerEndedError: another of the processes has ended.
        ValueError: the model gave a vector that is not finite, or more numbers or components are asked for than there
            are, or the PCA does not fit the vectors; or the processes have different texts, models, settings or
            versions of the packages.
    """
    settings, output = settings or EncodeSettings(), Path(output)
    settings = replace(settings, compute_dtype=compute_dtype(settings.compute_dtype, model.device))
    is_main = state is None or state.is_main_process
    with errors_shared(state):
        with main_process_first(state):
            limit_length(model, settings.max_length)
            plan = _plan(model, corpus, settings, pca, model_name)
        check_agreement(state, _to_agree_on(plan, batch_size))
        if is_main and show_progress:
            _report_unknown(model, corpus)
        with _writing(output) if is_main else nullcontext():
            with errors_shared(state):
                if is_main:
                    _prepare(output, plan)
            model = in_dtype(model, COMPUTE_DTYPES[settings.compute_dtype])
            compression = _fitted_once(model, corpus, output, settings, pca, batch_size, state, show_progress)
            with errors_shared(state):
                rows = _encode_shards(model, corpus, output, settings, compression, batch_size, state, show_progress)
            if is_main and state is not None and state.num_processes > 1:
                _check_shards(output, rows, settings, plan["dimension"])
            fitted = compression.describe()
            manifest = {**plan, "compression": fitted, "shards": rows, "rows": sum(rows), "complete": True}
            if is_main:
                write_manifest(output, manifest)
    return manifest


def _plan(
    model: SentenceTransformer, corpus: Corpus, settings: EncodeSettings, pca: PCA | None, model_name: str
) -> Json:
    """What the manifest says before anything is encoded; checks that the settings fit the model."""
    full = int(model.get_embedding_dimension() or 0)
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
    """What must be the same for all processes that encode into one folder."""
    return {
        **shared_versions(),
        "text (path, size or time of change)": plan["input"],
        "model": plan["model"]["weights"],
        "tokenizer or length limit": plan["model"]["pipeline"],
        **plan["settings"],
        "PCA": plan["given_pca"],
        "batch_size": batch_size,
    }


def _check_shards(output: Path, rows: list[int], settings: EncodeSettings, dimension: int) -> None:
    """Checks that the other processes have written to the folder that this one sees."""
    names = [shard_name(number, FORMATS[settings.format]) for number in range(len(rows))]
    lacks = [name for name, size in zip(names, rows, strict=True) if not is_finished(output / name, size, dimension)]
    if lacks:
        raise FileNotFoundError(
            f"{output} lacks {lacks[0]} and {len(lacks) - 1:,} other shards that are written; name a folder that all "
            "machines share."
        )


def _encode_shards(
    model: SentenceTransformer,
    corpus: Corpus,
    output: Path,
    settings: EncodeSettings,
    compression: Compression,
    batch_size: int,
    state: PartialState | None,
    show_progress: bool,
) -> list[int]:
    """Writes the shards of this process that are not there; returns the rows of all shards."""
    rank, processes = (0, 1) if state is None else (state.process_index, state.num_processes)
    dimension = settings.check_dimension(int(model.get_embedding_dimension() or 0))
    rows: list[int] = []
    truncated = 0
    lines = CorpusLines(corpus)
    suffix = FORMATS[settings.format]
    with progress_bar(
        total=corpus.size, unit=corpus.unit, unit_scale=True, desc="encode", disable=not show_progress or rank > 0
    ) as bar:
        for number, shard in enumerate(lines.shards(settings.shard_size)):
            path = output / shard_name(number, suffix)
            if number % processes == rank and not is_finished(path, len(shard), dimension):
                truncated += count_truncated(model, shard)
                embeddings = embed_texts(model, shard, settings, compression.pca, batch_size)
                write_shard(path, _stored(embeddings, settings, compression, sum(rows)))
            rows.append(len(shard))
            bar.set_postfix(rows=sum(rows), refresh=False)
            bar.update(lines.position - bar.n)
    report_truncated(truncated, model, f" (process {rank})" if processes > 1 else "")
    return rows


def _stored(embeddings: np.ndarray, settings: EncodeSettings, compression: Compression, first: int) -> np.ndarray:
    """Vectors as the files hold them; `first` is the row of the first one."""
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
    """The vectors that an encoding with these settings holds of some texts, `(N, dimension)` float32, before int8.

    Args:
        model: a SentenceTransformer that has the length limit and the precision of the settings.
        texts: any number of texts.
        settings: see [`EncodeSettings`].
        pca: the PCA of the encoding, if `settings.pca` asks for one.
        batch_size: texts of one forward pass; of long ones fewer (see [`encode_texts`]).
    """
    vectors = encode_texts(model, texts, batch_size, truncate_dim=settings.truncate_dim)
    vectors = np.asarray(vectors, dtype=np.float32)
    if pca is not None:
        vectors = pca.apply(vectors)
    # Here, since in the model's bf16 no row would come out at length 1.
    return unit_rows(vectors) if settings.normalize else vectors


def limit_length(model: SentenceTransformer, max_length: int | None) -> None:
    """Has a SentenceTransformer cut texts at `max_length` tokens; None leaves its own limit.

    Raises:
        ValueError: the model has no positions for so many, or no limit that could be set.
    """
    if max_length is None:
        return
    config = getattr(getattr(model[0], "auto_model", None), "config", None)
    positions = getattr(config, "max_position_embeddings", -1)
    if not isinstance(config, LatentConfig) and 0 < positions < max_length:
        raise ValueError(
            f"The length limit is {max_length} tokens, but the model has {positions} positions; give less."
        )
    try:
        model.max_seq_length = max_length
    except AttributeError as error:
        raise ValueError(
            f"The length limit is {max_length} tokens, but a {type(model[0]).__name__} has none to set; leave it out."
        ) from error


def encode_texts(
    model: SentenceTransformer, texts: list[str], batch_size: int, truncate_dim: int | None = None
) -> np.ndarray:
    """`model.encode` in batches that long texts do not swell: `(N, D)`.

    Args:
        model: a SentenceTransformer.
        texts: any number of texts.
        batch_size: texts of one forward pass; half as many of those beyond 256 tokens, a quarter beyond 512, and so on.
        truncate_dim: keep the first so many numbers of each vector; by default as many as the model says.
    """
    texts = list(map(readable, texts))
    encode = partial(model.encode, show_progress_bar=False, convert_to_numpy=True, truncate_dim=truncate_dim)
    lengths = np.zeros(len(texts))
    # Fewer characters are no more tokens, but for some rare scripts as bytes.
    long = [row for row, text in enumerate(texts) if len(text) > LONG_TEXT]
    lengths[long] = np.minimum(count_tokens(model, [texts[row] for row in long]), model.max_seq_length or NO_LIMIT)
    if (in_parts := has_long(model, lengths)).any():
        return _with_long_texts(model, texts, in_parts, batch_size, truncate_dim)
    halvings = np.ceil(np.log2(np.maximum(lengths / LONG_TEXT, 1))).astype(int)
    sizes = np.maximum(1, batch_size >> halvings)
    if len(set(sizes.tolist())) < 2:
        vectors: np.ndarray = encode(texts, batch_size=int(sizes.max(initial=1)))
        return vectors
    # The longest first: too little memory shows at once.
    rows = [np.flatnonzero(sizes == size) for size in np.unique(sizes)]
    parts = [encode([texts[row] for row in part], batch_size=int(sizes[part[0]])) for part in rows]
    vectors = np.empty((len(texts), parts[0].shape[1]), dtype=parts[0].dtype)
    vectors[np.concatenate(rows)] = np.concatenate(parts)
    return vectors


def _with_long_texts(
    model: SentenceTransformer, texts: list[str], in_parts: np.ndarray, batch_size: int, truncate_dim: int | None
) -> np.ndarray:
    """[`encode_texts`] of texts of which some are too long to be read at once."""
    config = latent_config(model)
    size = 0 if config is None else config.sentence_embedding_size
    kept = truncate_dim or model.truncate_dim or size
    vectors = np.empty((len(texts), min(kept, size)), dtype=np.float32)
    for row in np.flatnonzero(in_parts):
        vectors[row] = encode_in_parts(model, texts[row])[:kept]
    rows = np.flatnonzero(~in_parts)
    if len(rows):
        vectors[rows] = encode_texts(model, [texts[row] for row in rows], batch_size, truncate_dim)
    return vectors


def _fitted_once(
    model: SentenceTransformer,
    corpus: Corpus,
    output: Path,
    settings: EncodeSettings,
    pca: PCA | None,
    batch_size: int,
    state: PartialState | None,
    show_progress: bool,
) -> Compression:
    """What the folder's vectors are compressed with: found in it, or fitted by the first process."""
    path = output / COMPRESSION
    if not settings.is_fitted:
        return Compression()
    with main_process_first(state):
        if not path.is_file():
            _fit_compression(model, corpus, settings, pca, batch_size, show_progress).save(path)
        return Compression.load(path)


def _fit_compression(
    model: SentenceTransformer,
    corpus: Corpus,
    settings: EncodeSettings,
    pca: PCA | None,
    batch_size: int,
    show_progress: bool,
) -> Compression:
    """A PCA, unless one is given, and the ranges of int8, on vectors of lines drawn from the corpus."""
    ranges = None
    if pca is None or settings.dtype == "int8":
        texts = draw_lines(CorpusLines(corpus), settings.fit_rows)
        if not texts:
            raise ValueError("The corpus is empty; a PCA and the ranges of int8 are fitted to its lines.")
        if show_progress:
            print(f"Fitting the compression on {len(texts):,} lines.", file=sys.stderr)
        raw = replace(settings, normalize=settings.normalize and settings.pca is None)
        vectors = embed_texts(model, texts, raw, batch_size=batch_size)
        check_finite(vectors)
        if settings.pca is not None:
            pca = pca or PCA.fit(vectors, settings.pca)
            vectors = pca.apply(vectors)
            vectors = unit_rows(vectors) if settings.normalize else vectors
        if settings.dtype == "int8":
            ranges = calibrate_int8(vectors)
    if pca is not None and show_progress:
        print(f"{settings.pca} components keep {pca.explained_variance_ratio:.1%} of the variance.", file=sys.stderr)
    return Compression(pca, ranges)


def draw_lines(lines: Iterable[str], count: int, seed: int = 0) -> list[str]:
    """So many lines drawn uniformly, in their order; all of them if there are fewer. Only these are held."""
    generator = np.random.default_rng(seed)
    drawn: list[tuple[int, str]] = []
    for number, line in enumerate(lines):
        if number < count:
            drawn.append((number, line))
        elif (place := int(generator.integers(number + 1))) < count:
            drawn[place] = (number, line)
    return [line for _, line in sorted(drawn)]


def model_fingerprints(model: SentenceTransformer) -> dict[str, str]:
    """Hashes of a SentenceTransformer: `weights`, and `pipeline` (modules, length limit, prompts, tokenizer)."""
    return {"weights": weights_fingerprint(model), "pipeline": pipeline_fingerprint(model)}


def weights_fingerprint(module: torch.nn.Module) -> str:
    """Hash of the values of all weights, whatever they are called."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in module.state_dict().values():
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def pipeline_fingerprint(model: SentenceTransformer) -> str:
    """Hash of what a SentenceTransformer does around its weights: modules, length limit, tokenizer."""
    parts = [repr(model), model.max_seq_length, model.prompts, tokenizer_text(getattr(model, "tokenizer", None))]
    return hashlib.blake2b(json.dumps(parts, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()


def tokenizer_text(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """All settings of a fast tokenizer; None of another."""
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        return None
    return str(bare_backend(tokenizer).to_str())


@contextmanager
def _writing(output: Path) -> Iterator[None]:
    """[`sole_writer`] of the folder, in which a run that fails before it has encoded anything leaves nothing."""
    with sole_writer(output):
        try:
            yield
        except BaseException:
            if _is_bare(output):
                (output / MANIFEST).unlink()
            raise


def _is_bare(output: Path) -> bool:
    """Whether a folder holds only the manifest of a run that had not encoded anything."""
    names = {path.name for path in output.iterdir()} - {LOCK} if output.is_dir() else set()
    return names == {MANIFEST} and not read_manifest(output)["complete"]


def _prepare(output: Path, plan: Json) -> None:
    """Makes the folder, or checks that what is in it belongs to this text, model and these settings."""
    for name in (MANIFEST, COMPRESSION, "shard-*"):
        for left in output.glob(f".{name}.partial-*"):
            left.unlink()
    names = {path.name for path in output.iterdir()} - {LOCK} if output.is_dir() else set()
    # A run that was killed before it had encoded anything binds nobody.
    if not output.exists() or (output.is_dir() and not names) or _is_bare(output):
        output.mkdir(parents=True, exist_ok=True)
        write_manifest(output, {**plan, "complete": False})
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
            # The same model may have moved.
            before, now = ({k: v for k, v in (m or {}).items() if k != "name"} for m in (before, now))
        if before != now:
            detail = f" ({before} there, {now} now)" if key in ("settings", "dimension") else ""
            raise FileExistsError(
                f"{output} holds an encoding of {words}{detail}. Name another folder, or remove this one."
            )


def _report_unknown(model: SentenceTransformer, corpus: Corpus) -> None:
    """Says on stderr how many words of the first lines a model does not know, if they are most."""
    tokenizer: Any = getattr(model, "tokenizer", None)
    if getattr(tokenizer, "backend_tokenizer", None) is None or tokenizer.unk_token_id is None:
        return
    lines = [line for line in islice(CorpusLines(corpus), _LOOKED_AT) if 0 < len(line) <= _LONG_LINE]
    found = unknown_word_rate(tokenizer, lines)
    if found.rate > 0.5:
        print(
            f"warning: the model does not know {found.unknown:,} of {found.total:,} words ({found.rate:.1%}) of the "
            f"first {len(lines):,} lines. Is it of their language?",
            file=sys.stderr,
        )


def count_truncated(model: SentenceTransformer, texts: list[str]) -> int:
    """How many texts the length limit of a SentenceTransformer cuts."""
    limit = model.max_seq_length or NO_LIMIT
    # A token is a byte or more, so only these can be too long.
    long = [text for text in texts if 4 * len(text) + 8 > limit]
    return sum(length > limit for length in count_tokens(model, long))


def report_truncated(number: int, model: SentenceTransformer, where: str = "") -> None:
    """Says on stderr how many texts the length limit of a SentenceTransformer has cut, if it has cut any."""
    if number:
        print(f"{number:,} texts were longer than {model.max_seq_length} tokens and were cut{where}.", file=sys.stderr)


def count_tokens(model: SentenceTransformer, texts: list[str]) -> list[int]:
    """The tokens of each text before any limit; 0 where a SentenceTransformer has no tokenizer that tells."""
    tokenizer = getattr(model, "tokenizer", None)
    if not texts or not callable(tokenizer):
        return [0] * len(texts)
    return [len(ids) for ids in tokenizer(list(map(readable, texts)), truncation=False, verbose=False)["input_ids"]]


def load_encoder(
    name: str, trust_remote_code: bool = False, device: torch.device | str | None = None
) -> SentenceTransformer:
    """A SentenceTransformer from a folder, of the package or from the Hub; a folder of this package is checked first.

    Raises:
        FileNotFoundError, ValueError: no such model, a damaged folder (see `check_checkpoint`), or a model without a
            fixed representation.
    """
    from sentence_transformers import SentenceTransformer

    name = str(packaged_folder(name) or name)
    if is_own_checkpoint(name) or is_missing_folder(name):
        config = check_checkpoint(name, encoder_alone=True)
        require_text_encoder(config, name)
        if not config.has_latents:
            raise ValueError(f"{name}: {NO_REPRESENTATION}")
    elif Path(name).is_dir() and not (Path(name) / "modules.json").is_file():
        raise FileNotFoundError(
            f"{name} has no modules.json, so how its tokens become one vector is not known; expected a folder of "
            f"save_checkpoint or of SentenceTransformer.save_pretrained.{hint_at_model(name)}"
        )
    if Path(name).is_dir():
        reading = damage_named(name) if is_own_checkpoint(name) else nullcontext()
    else:
        reading = unread_named(name)
    with reading:
        return SentenceTransformer(
            name,
            device=None if device is None else str(device),
            trust_remote_code=trust_remote_code,
        )
