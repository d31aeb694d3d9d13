"""Writing files and folders so that a crash or a full disk never costs what was there before."""

from __future__ import annotations

import fnmatch
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

# An object of a JSON or YAML file.
Json = dict[str, Any]


@contextmanager
def replacing_file(path: str | os.PathLike[str], mode: str = "w") -> Iterator[IO[Any]]:
    """Opens a temporary file beside `path` (UTF-8 in text mode) that takes its name if the block ends without error.

    What a link points to is replaced, not the link; a device or a pipe is written to as it is.

    Raises:
        IsADirectoryError: `path` is a folder.
        OSError: no permission, or no space left.
    """
    path = Path(os.path.realpath(path))
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file.")
    encoding = None if "b" in mode else "utf-8"
    if path.exists() and not path.is_file():
        with open(path, mode, encoding=encoding) as file:
            yield file
        return
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        with open(partial, mode, encoding=encoding) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def replacing_folder(folder: str | os.PathLike[str], owned: Sequence[str]) -> Iterator[Path]:
    """Gives an empty folder beside `folder` that takes its place when the block ends without error.

    Until then `folder` is not touched. At every moment either the old or the new content is whole: in `folder`, or for
    the instant between two renames in the sibling `.NAME.old`, from which [`recover_folder`] restores it.

    Args:
        folder: the folder to write; its parents are made.
        owned: name patterns of the entries that a new folder replaces; any other entry of an existing folder is kept.

    Raises:
        FileExistsError: `folder` is a file.
        OSError: no permission, or no space left.
    """
    folder = Path(os.path.realpath(folder))
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; name a folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial, old = folder.with_name(f".{folder.name}.partial"), _old_name(folder)
    recover_folder(folder, owned)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        _sync(partial)
        if folder.exists():
            os.rename(folder, old)
        os.rename(partial, folder)
        recover_folder(folder, owned)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def recover_folder(folder: str | os.PathLike[str], owned: Sequence[str]) -> None:
    """Finishes a [`replacing_folder`] of `folder` that was killed between its renames; does nothing otherwise.

    Only for the process that writes the folder.
    """
    folder = Path(os.path.realpath(folder))
    old = _old_name(folder)
    if not old.exists():
        return
    if not folder.exists():
        os.rename(old, folder)
        return
    for entry in old.iterdir():
        if not is_owned(entry.name, owned) and not (folder / entry.name).exists():
            os.rename(entry, folder / entry.name)
    shutil.rmtree(old)


def shared_name(value: object) -> object:
    """The last part of a path; a name that is no path here, as of something on the Hub, whole."""
    if not isinstance(value, str):
        return value
    is_path = (
        Path(value).is_absolute() or value.count("/") != 1 or any(c in value for c in "*?[") or Path(value).exists()
    )
    return Path(value).name if is_path else value


def is_owned(name: str, owned: Sequence[str]) -> bool:
    """Whether the name of an entry fits one of the patterns of [`replacing_folder`]."""
    return any(fnmatch.fnmatch(name, pattern) for pattern in owned)


def _old_name(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.old")


def _sync(folder: Path) -> None:
    """Brings every file of a folder to the disk, so that a rename cannot outlive what it renames."""
    for path in folder.rglob("*"):
        if path.is_file():
            # Windows brings nothing to the disk that was opened for reading.
            descriptor = os.open(path, os.O_RDWR)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
