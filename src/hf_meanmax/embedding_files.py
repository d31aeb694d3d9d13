"""Files of embeddings: the shards and the manifest of `encode`, and any matrix in .npy, .safetensors or .parquet."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as safetensors_bytes

from .files import replacing_file

MANIFEST = "manifest.json"
FORMAT_VERSION = 1
EMBEDDINGS = "embeddings"  # name of the tensor, or of the column
FORMATS = {"npy": ".npy", "safetensors": ".safetensors", "parquet": ".parquet"}


def read_embeddings(
    sources: Sequence[str | os.PathLike[str]], batch_size: int = 1024, name: str | None = None
) -> Iterator[np.ndarray]:
    """Streams embeddings back, `(rows <= batch_size, dimension)` float arrays, in order.

    Args:
        sources: .npy, .safetensors or .parquet files, or folders that [`encode_corpus`] has written.
        batch_size: most rows given at a time; arrays do not cross files.
        name: the tensor or column that holds the embeddings; by default `embeddings`, or the only one there is.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a folder's encoding is not finished, or a file is damaged or holds no matrix of numbers.
    """
    for source in sources:
        for path in embedding_files(source):
            try:
                yield from _READERS[path.suffix](path, batch_size, name)
            except (ValueError, OSError, EOFError, KeyError, SafetensorError) as error:
                raise ValueError(f"{path}: no embeddings can be read from it ({error}).") from error


def embedding_files(source: str | os.PathLike[str]) -> list[Path]:
    """The files of a source of [`read_embeddings`], in order."""
    path = Path(source)
    if path.is_dir():
        manifest = read_manifest(path)
        if not manifest.get("complete"):
            raise ValueError(f"{path}: the encoding is not finished; give its command again to go on with it.")
        suffix = FORMATS[manifest["settings"]["format"]]
        return [path / shard_name(number, suffix) for number in range(len(manifest["shards"]))]
    if not path.is_file():
        raise FileNotFoundError(f"No such file or folder: {str(path)!r}.")
    if path.suffix not in _READERS:
        raise ValueError(f"{path}: embeddings are read from {', '.join(_READERS)} files or a folder of encode.")
    return [path]


def read_manifest(folder: Path) -> dict[str, Any]:
    """What [`encode_corpus`] wrote of its work in a folder.

    Raises:
        ValueError: there is no such thing, or it is damaged.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise ValueError(f"{folder} holds no encoded corpus: it has no {MANIFEST}.")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format_version"] != FORMAT_VERSION:
            raise ValueError(f"format {manifest['format_version']}, expected {FORMAT_VERSION}")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged or of another version ({error}).") from None
    return manifest


def shard_name(number: int, suffix: str) -> str:
    """The file name of a shard."""
    return f"shard-{number:06d}{suffix}"


def write_manifest(output: Path, manifest: dict[str, Any]) -> None:
    with replacing_file(output / MANIFEST) as file:
        json.dump(manifest, file, indent=2)
        file.write("\n")


def is_finished(path: Path, rows: int, dimension: int) -> bool:
    """Whether a shard is there, whole and of the right shape, by its header."""
    if not path.is_file():
        return False
    try:
        return _shape(path) == (rows, dimension)
    except Exception:  # whatever a reader says of a damaged file
        return False


def _shape(path: Path) -> tuple[int, ...]:
    if path.suffix == ".npy":
        return tuple(np.load(path, mmap_mode="r", allow_pickle=False).shape)
    if path.suffix == ".safetensors":
        with safe_open(path, framework="pt") as file:
            return tuple(file.get_slice(EMBEDDINGS).get_shape())
    file = _pyarrow().parquet.ParquetFile(path)
    return file.metadata.num_rows, file.schema_arrow.field(EMBEDDINGS).type.list_size


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError:
        raise ImportError('Parquet files need pyarrow: pip install "pyarrow"') from None
    return pyarrow


def write_shard(path: Path, embeddings: np.ndarray) -> None:
    with replacing_file(path, "wb") as file:
        if path.suffix == ".npy":
            np.save(file, embeddings, allow_pickle=False)
        elif path.suffix == ".safetensors":
            file.write(safetensors_bytes({EMBEDDINGS: embeddings}))
        else:
            pa = _pyarrow()
            values = pa.array(embeddings.reshape(-1))
            column = pa.FixedSizeListArray.from_arrays(values, embeddings.shape[1])
            pa.parquet.write_table(pa.table({EMBEDDINGS: column}), file)


def _read_npy(path: Path, batch_size: int, name: str | None) -> Iterator[np.ndarray]:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if array.ndim != 2 or array.dtype.kind != "f":
        raise ValueError(f"an array {array.shape} of {array.dtype}, expected a matrix of floating-point numbers")
    for start in range(0, len(array), batch_size):
        yield np.array(array[start : start + batch_size])


def _read_safetensors(path: Path, batch_size: int, name: str | None) -> Iterator[np.ndarray]:
    with safe_open(path, framework="pt") as file:
        tensor = file.get_slice(_choose(name, list(file.keys()), "tensor"))
        shape = tensor.get_shape()
        if len(shape) != 2 or tensor.get_dtype() not in ("F64", "F32", "F16", "BF16"):
            raise ValueError(f"a tensor {shape} of {tensor.get_dtype()}, expected a matrix of floating-point numbers")
        for start in range(0, shape[0], batch_size):
            yield tensor[start : start + batch_size].float().numpy()


def _read_parquet(path: Path, batch_size: int, name: str | None) -> Iterator[np.ndarray]:
    pa = _pyarrow()
    file = pa.parquet.ParquetFile(path)
    schema = file.schema_arrow
    lists = [field.name for field in schema if pa.types.is_list(field.type) or pa.types.is_fixed_size_list(field.type)]
    column = _choose(name, lists, "list column")
    for batch in file.iter_batches(batch_size=batch_size, columns=[column]):
        array = batch.column(0)
        if array.null_count:
            raise ValueError(f"column {column!r} has missing rows")
        values = array.flatten().to_numpy(zero_copy_only=False)
        if len(array) == 0:
            continue
        lengths = np.unique(pa.compute.list_value_length(array).to_numpy())
        if len(lengths) != 1 or values.dtype.kind != "f":
            raise ValueError(f"rows of column {column!r} are not vectors of one size ({lengths[:3]}, {values.dtype})")
        yield np.array(values.reshape(len(array), -1))


_READERS: dict[str, Callable[[Path, int, str | None], Iterator[np.ndarray]]] = {
    ".npy": _read_npy,
    ".safetensors": _read_safetensors,
    ".parquet": _read_parquet,
}


def _choose(name: str | None, names: list[str], kind: str) -> str:
    if name is None:
        if EMBEDDINGS in names:
            return EMBEDDINGS
        if len(names) == 1:
            return names[0]
    if name not in names:
        raise ValueError(f"no {kind} {name or EMBEDDINGS!r}; name one of {', '.join(names) or 'none'}")
    return name
