"""Files of embeddings: the shards and the manifest of `encode`, and any matrix in .npy, .safetensors or .parquet."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as safetensors_bytes

from hf_meanmax.files import Json, open_array, read_json, replacing_file

from .compression import Compression, dequantize_int8

MANIFEST = "manifest.json"
COMPRESSION = "compression.safetensors"  # the PCA and the ranges of int8 of an encoded corpus
FORMAT_VERSION = 2
EMBEDDINGS = "embeddings"  # name of the tensor, or of the column
FORMATS = {"npy": ".npy", "safetensors": ".safetensors", "parquet": ".parquet"}


# Required entries of a manifest.
_MANIFEST_KINDS: dict[str, type] = {"settings": dict, "dimension": int, "model": dict, "complete": bool}


def read_embeddings(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    batch_size: int = 1024,
    vector_column: str | None = None,
    *,
    start: int = 0,
    dequantize: bool = False,
) -> Iterator[np.ndarray]:
    """Streams embeddings, `(rows <= batch_size, dimension)` float arrays, in order.

    Args:
        sources: .npy, .safetensors or .parquet files, or folders that `encode_corpus` has written.
        batch_size: largest number of rows of an array; arrays do not cross files.
        vector_column: the tensor or column that holds the embeddings (default: `embeddings`, or the only one).
        start: number of rows to skip. The boundaries of the arrays stay the same, so the first may be shorter; files
            that end before it are not read.
        dequantize: restore an int8 encoding to float32, off by at most half a step inside its ranges. Without it, an
            int8 encoding is an error.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a folder's encoding is not finished, or a file is damaged or holds no matrix of numbers; or the
            numbers are int8 and `dequantize` is False.
    """
    for source in [sources] if isinstance(sources, (str, os.PathLike)) else sources:
        files, ranges = embedding_files(source), _int8_ranges(Path(source), dequantize)
        for path in files:
            with _unread_named(path):
                if start and start >= (count := _shape(path, vector_column)[0]):
                    start -= count
                    continue
                kind = "f" if ranges is None else "i"
                for batch in _READERS[path.suffix](path, batch_size, vector_column, kind, start):
                    yield batch if ranges is None else dequantize_int8(batch, ranges)
                start = 0


@contextmanager
def _unread_named(path: Path) -> Iterator[None]:
    """Turns the readers' errors into a ValueError that names the file."""
    try:
        yield
    except _READ_ERRORS as error:
        raise ValueError(f"{path}: no embeddings can be read from it ({error}).") from error


def read_rows(source: str | os.PathLike[str], rows: np.ndarray, name: str | None = None) -> np.ndarray:
    """Single rows of a source, `(len(rows), dimension)` float32; int8 is restored to float32.

    Of .npy files only these rows are read; other files are read only if they hold one of them.

    Args:
        source: a file or folder as for [`read_embeddings`].
        rows: row numbers, in any order.
        name: the tensor or column that holds the embeddings.

    Raises:
        IndexError: a row does not exist.
        FileNotFoundError, ValueError: as [`read_embeddings`].
    """
    wanted, inverse = np.unique(rows, return_inverse=True)
    if len(wanted) and wanted[0] < 0:
        raise IndexError(f"Row {wanted[0]} is asked for; rows count from 0.")
    found: list[np.ndarray] = []
    first = done = 0
    ranges = _int8_ranges(Path(source), dequantize=True)
    for path in embedding_files(source):
        with _unread_named(path):
            count = _shape(path, name)[0]
            upto = int(np.searchsorted(wanted, first + count))
            if upto > done:
                picked = _pick(path, wanted[done:upto] - first, name, "f" if ranges is None else "i")
                found.append(picked if ranges is None else dequantize_int8(picked, ranges))
        first, done = first + count, upto
    if done < len(wanted):
        raise IndexError(f"Row {wanted[done]:,} is asked for; there are {first:,}.")
    return np.concatenate(found).astype(np.float32, copy=False)[inverse] if found else np.zeros((0, 0), np.float32)


def _pick(path: Path, rows: np.ndarray, name: str | None, kind: str) -> np.ndarray:
    if path.suffix == ".npy":
        taken: np.ndarray = _open_npy(path, kind)[rows]
        return taken
    return pick_rows(_READERS[path.suffix](path, 1024, name, kind, 0), rows)


def pick_rows(batches: Iterable[np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Picks rows, by ascending numbers, from a matrix that comes in batches; rows before are read, but not kept."""
    found, first = [], 0
    for batch in batches:
        inside = rows[(rows >= first) & (rows < first + len(batch))]
        found.append(batch[inside - first])
        first += len(batch)
        if first > rows.max(initial=0):
            break
    return np.concatenate(found) if found else np.zeros((0, 0), np.float32)


def count_rows(sources: Sequence[str | os.PathLike[str]]) -> tuple[int, int]:
    """The shape `(rows, dimension)` of all embeddings that [`read_embeddings`] streams, from the files' headers.

    Raises:
        FileNotFoundError, ValueError: as [`read_embeddings`]; the files hold vectors of different sizes, or none.
    """
    shapes = [shape for source in sources for shape in file_shapes(source)]
    rows, dimensions = sum(count for count, _ in shapes), {dimension for count, dimension in shapes if count}
    if len(dimensions) != 1:
        found = f"vectors of {', '.join(map(str, sorted(dimensions)))} numbers" if dimensions else "no vector"
        raise ValueError(f"{', '.join(map(str, sources))}: expected vectors of one size, found {found}.")
    return rows, dimensions.pop()


def file_shapes(source: str | os.PathLike[str], name: str | None = None) -> list[tuple[int, int]]:
    """The shape `(rows, dimension)` of each file of a source, from its header.

    Raises:
        FileNotFoundError, ValueError: as [`read_embeddings`].
    """
    shapes = []
    for path in embedding_files(source):
        with _unread_named(path):
            shapes.append(_shape(path, name))
    return shapes


def _int8_ranges(source: Path, dequantize: bool) -> np.ndarray | None:
    """The int8 ranges of a folder of int8 shards; None of another source."""
    if not source.is_dir() or read_manifest(source)["settings"]["dtype"] != "int8":
        return None
    if not dequantize:
        raise ValueError(
            f"{source} was encoded with --dtype int8; its numbers are steps of the ranges in {COMPRESSION}, no vectors."
        )
    ranges = Compression.load(source / COMPRESSION).ranges
    if ranges is None:
        raise ValueError(f"{source / COMPRESSION} holds no ranges of int8.")
    return ranges


def embedding_files(source: str | os.PathLike[str]) -> list[Path]:
    """The files of a source of [`read_embeddings`], in order."""
    path = Path(source)
    if path.is_dir():
        manifest = read_manifest(path)
        if not manifest.get("complete"):
            raise ValueError(f"{path}: the encoding is not finished; give its command again to go on with it.")
        return _shards(path, manifest)
    if not path.is_file():
        raise FileNotFoundError(f"No such file or folder: {str(path)!r}.")
    if path.suffix not in _READERS:
        raise ValueError(f"{path}: embeddings are read from {', '.join(_READERS)} files or a folder of encode.")
    return [path]


def _shards(folder: Path, manifest: Json) -> list[Path]:
    suffix = FORMATS[manifest["settings"]["format"]]
    return [folder / shard_name(number, suffix) for number in range(len(manifest["shards"]))]


def lacking_shards(folder: Path, manifest: Json) -> list[Path]:
    """The shards of an encoding that are missing or incomplete."""
    shards = zip(_shards(folder, manifest), manifest["shards"], strict=True)
    return [path for path, rows in shards if not is_finished(path, rows, manifest["dimension"])]


def read_manifest(folder: Path) -> Json:
    """Reads the manifest of [`encode_corpus`] in a folder.

    Raises:
        ValueError: the manifest is missing or damaged.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise ValueError(f"{folder} holds no encoded corpus: it has no {MANIFEST}.")
    manifest: Json = read_json(path)
    if manifest.get("format_version") != FORMAT_VERSION:
        raise ValueError(f"{path} has format {manifest.get('format_version')!r}, expected {FORMAT_VERSION}.")
    for name, kind in _MANIFEST_KINDS.items():
        if name not in manifest or not isinstance(manifest[name], kind):
            raise ValueError(f"{path} is damaged: `{name}` is {manifest.get(name)!r}.")
    # An encoding in progress has no `shards` yet.
    if manifest["complete"] and not isinstance(manifest.get("shards"), list):
        raise ValueError(f"{path} is damaged: `shards` is {manifest.get('shards')!r}.")
    if (name := manifest["settings"].get("format")) not in list(FORMATS):
        raise ValueError(f"{path} is damaged: `format` is {name!r}.")
    return manifest


def shard_name(number: int, suffix: str) -> str:
    """The file name of a shard."""
    return f"shard-{number:06d}{suffix}"


def is_finished(path: Path, rows: int, dimension: int) -> bool:
    """Whether a shard exists, whole and of the right shape, by its header."""
    if not path.is_file():
        return False
    try:
        return _shape(path, EMBEDDINGS) == (rows, dimension)
    except Exception:  # any error of a reader means a damaged file
        return False


def _shape(path: Path, name: str | None) -> tuple[int, int]:
    if path.suffix == ".npy":
        return _of_matrix(open_array(path).shape)
    if path.suffix == ".safetensors":
        with safe_open(path, framework="pt") as file:
            return _of_matrix(file.get_slice(choose_name(name, list(file.keys()), "tensor")).get_shape())
    file = pa.parquet.ParquetFile(path)
    column = choose_column(file.schema_arrow, name)
    kind = file.schema_arrow.field(column).type
    if pa.types.is_fixed_size_list(kind):
        return file.metadata.num_rows, kind.list_size
    first = next(_read_parquet(path, 1, name, "f", 0), np.zeros((0, 0)))
    return file.metadata.num_rows, first.shape[1]


def _of_matrix(shape: Sequence[int]) -> tuple[int, int]:
    if len(shape) != 2:
        raise ValueError(f"an array {tuple(shape)}, expected a matrix")
    return shape[0], shape[1]


def write_shard(path: Path, embeddings: np.ndarray) -> None:
    """Writes vectors `(N, D)` to a file, in the format of its suffix."""
    with replacing_file(path, "wb") as file:
        if path.suffix == ".npy":
            np.save(file, embeddings, allow_pickle=False)
        elif path.suffix == ".safetensors":
            file.write(safetensors_bytes({EMBEDDINGS: embeddings}))
        else:
            values = pa.array(embeddings.reshape(-1))
            column = pa.FixedSizeListArray.from_arrays(values, embeddings.shape[1])
            pa.parquet.write_table(pa.table({EMBEDDINGS: column}), file)


def _open_npy(path: Path, kind: str) -> np.ndarray:
    array = open_array(path)
    # torch has no floating-point type of more than 8 bytes.
    if array.ndim != 2 or array.dtype.kind != kind or array.dtype.itemsize > 8:
        raise ValueError(f"an array {array.shape} of {array.dtype}, expected a matrix of {_KINDS[kind]}")
    return array


def _bounds(rows: int, batch_size: int, start: int) -> Iterator[slice]:
    """Yields the slices of batches over `rows` rows, without rows before `start`."""
    for first in range(start - start % batch_size, rows, batch_size):
        yield slice(max(first, start), first + batch_size)


def _read_npy(path: Path, batch_size: int, name: str | None, kind: str, start: int) -> Iterator[np.ndarray]:
    array = _open_npy(path, kind)
    # Native byte order and row-major layout, whatever the file has.
    dtype = array.dtype.newbyteorder("=")
    for rows in _bounds(len(array), batch_size, start):
        yield np.array(array[rows], dtype=dtype, order="C")


def _read_safetensors(path: Path, batch_size: int, name: str | None, kind: str, start: int) -> Iterator[np.ndarray]:
    with safe_open(path, framework="pt") as file:
        tensor = file.get_slice(choose_name(name, list(file.keys()), "tensor"))
        shape = tensor.get_shape()
        if len(shape) != 2 or tensor.get_dtype() not in (("F64", "F32", "F16", "BF16") if kind == "f" else ("I8",)):
            raise ValueError(f"a tensor {shape} of {tensor.get_dtype()}, expected a matrix of {_KINDS[kind]}")
        for rows in _bounds(shape[0], batch_size, start):
            batch = tensor[rows]
            yield (batch.float() if kind == "f" else batch).numpy()


def _read_parquet(path: Path, batch_size: int, name: str | None, kind: str, start: int) -> Iterator[np.ndarray]:
    file = pa.parquet.ParquetFile(path)
    column = choose_column(file.schema_arrow, name)
    for batch in file.iter_batches(batch_size=batch_size, columns=[column]):
        if batch.num_rows > start:
            yield column_vectors(batch.column(0).slice(start), column, kind)
        start = max(0, start - batch.num_rows)


def column_vectors(array: pa.Array, column: str, kind: str = "f") -> np.ndarray:
    """The vectors `(N, D)` of a list column with at least one row.

    Raises:
        ValueError: rows are missing, have different sizes, or hold numbers of another kind.
    """
    if array.null_count:
        raise ValueError(f"column {column!r} has missing rows")
    values = array.flatten().to_numpy(zero_copy_only=False)
    lengths = np.unique(pa.compute.list_value_length(array).to_numpy())
    if values.dtype.kind != kind:
        raise ValueError(f"column {column!r} holds {values.dtype}, expected {_KINDS[kind]}")
    if len(lengths) != 1:
        raise ValueError(f"rows of column {column!r} are not vectors of one size ({lengths[:3]})")
    return np.array(values.reshape(len(array), -1))


_KINDS = {"f": "floating-point numbers of up to 8 bytes", "i": "int8"}
_READ_ERRORS = (ValueError, OSError, EOFError, KeyError, SafetensorError)
_READERS: dict[str, Callable[[Path, int, str | None, str, int], Iterator[np.ndarray]]] = {
    ".npy": _read_npy,
    ".safetensors": _read_safetensors,
    ".parquet": _read_parquet,
}


def choose_column(schema: pa.Schema, name: str | None) -> str:
    """The list column called `name`; without a name `embeddings`, or the only list column.

    Raises:
        ValueError: there is no such column.
    """
    are_lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    lists = [field.name for field in schema if any(is_kind(field.type) for is_kind in are_lists)]
    return choose_name(name, lists, "list column")


def choose_name(name: str | None, names: list[str], kind: str) -> str:
    """Returns `name`, which must be one of `names`; without a name `embeddings`, or the only one of `names`."""
    if name is None:
        if EMBEDDINGS in names:
            return EMBEDDINGS
        if len(names) == 1:
            return names[0]
    if name not in names:
        if not names:
            raise ValueError(f"no {kind}" if name is None else f"no {kind} {name!r}, and no other one")
        raise ValueError(f"no {kind} {name or EMBEDDINGS!r}; name one of {', '.join(names)}")
    return name
