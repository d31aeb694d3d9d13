"""Writes files and folders so that a crash or a full disk never destroys the previous content."""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import json
import os
import re
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout

# An object of a JSON or YAML file.
Json = dict[str, Any]
# What to do with bytes that are not UTF-8, as in `bytes.decode`.
EncodingErrors = Literal["strict", "replace", "ignore"]

Read = TypeVar("Read")

# Name of the lock file, which records the process that writes a folder.
LOCK = ".lock"
# How long to wait for a folder that is missing during its replacement, which takes only a rename.
_REPLACEMENT_SECONDS = 5.0
_NOT_WRITTEN = " could not be written: "
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Error messages of numpy, torch and faiss about incompletely written files.
_CUT_SHORT = re.compile(r"requested and \d+ written|file write failed|failed writing file|unexpected pos|write error")


@contextmanager
def replacing_file(path: str | os.PathLike[str], mode: str = "w") -> Iterator[IO[Any]]:
    """Opens a temporary file beside `path` (UTF-8 in text mode) that takes its name if the block ends without error.

    Missing folders are created. If `path` is a link, its target is replaced; a device or a pipe is written to directly.
    The file's mode follows the umask, whatever library wrote it.

    Raises:
        IsADirectoryError: `path` is a folder.
        OSError: no permission, or no space left; the message names `path` and the cause.
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
    with naming_failed_writes(path, partial):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(partial, mode, encoding=encoding) as file:
                permissions = os.fstat(file.fileno()).st_mode & 0o777
                yield file
                file.flush()
                os.fsync(file.fileno())
            partial.chmod(permissions)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def replacing_folder(folder: str | os.PathLike[str], owned: Sequence[str]) -> Iterator[Path]:
    """Yields an empty folder beside `folder` that takes its place when the block ends without error.

    Until then `folder` is not touched. At every moment the old or the new content is complete: in `folder` or, between
    two renames, in the sibling `.NAME.old`, from which [`recover_folder`] restores it. File modes follow the umask,
    whatever library wrote the files.

    Args:
        folder: the folder to write; its parents are created.
        owned: name patterns of the entries that are replaced; any other entry of an existing folder is kept.

    Raises:
        FileExistsError: `folder` is a file.
        ValueError: `folder` cannot be replaced ([`check_replaceable`]).
        BlockingIOError: another process is writing it.
        OSError: no permission, or no space left; the message names `folder` and the cause.
    """
    folder = Path(os.path.realpath(folder))
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; name a folder.")
    check_replaceable(folder)
    partial, old = folder.with_name(f".{folder.name}.partial"), _old_name(folder)
    with _held(_lock_beside(partial), folder), naming_failed_writes(folder, partial):
        folder.parent.mkdir(parents=True, exist_ok=True)
        recover_folder(folder, owned)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            yield partial
            follow_umask(partial)
            _sync(partial)
            if folder.exists():
                os.rename(folder, old)
            os.rename(partial, folder)
            recover_folder(folder, owned)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def check_replaceable(folder: Path) -> None:
    """Checks that a folder can be replaced by a new one.

    Raises:
        ValueError: it is a mount point, or contains the working directory.
    """
    place = folder.resolve()
    if place in (Path.cwd(), *Path.cwd().parents) or os.path.ismount(place):
        raise ValueError(
            f"{folder} would be replaced as a whole, which the working folder and a mounted one cannot be; name one "
            "inside it."
        )


def check_new_folder(folder: str | os.PathLike[str]) -> Path:
    """Returns the folder as a path, after checking that it does not exist or is empty.

    Raises:
        FileExistsError: it exists and is not empty, or is a file.
        ValueError: it cannot be replaced ([`check_replaceable`]).
    """
    folder = Path(folder)
    check_replaceable(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} is there already; name a new folder.")
    return folder


def recover_folder(folder: str | os.PathLike[str], owned: Sequence[str]) -> None:
    """Finishes a [`replacing_folder`] of `folder` that was killed between its renames; does nothing otherwise.

    To be called only by the process that writes the folder.
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


def read_whole(folder: Path, read: Callable[[], Read]) -> Read:
    """Returns `read()`, repeated if [`replacing_folder`] replaced the folder meanwhile, so that the result never mixes
    the old and the new folder.

    Raises:
        Errors of `read` while the folder stays the same.
        FileNotFoundError: the folder is missing because its replacement was killed.
    """
    end = time.monotonic() + _REPLACEMENT_SECONDS
    while True:
        before = _state(folder)
        try:
            found = read()
        except (OSError, ValueError):
            if _state(folder) == before and not (before is None and _old_name(folder).exists()):
                raise
            if before is None and time.monotonic() > end:
                raise FileNotFoundError(
                    f"{folder} is missing: what replaced it was killed, and the old one is {_old_name(folder)}. Write "
                    "it again."
                ) from None
        else:
            if _state(folder) == before:
                return found
        time.sleep(0.01)


def _state(folder: Path) -> tuple[int, int] | None:
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


def read_json(path: str | os.PathLike[str], kind: type = dict) -> Any:
    """Returns the content of a JSON file.

    Args:
        path: the file.
        kind: expected type of the content, `dict` or `list`.

    Raises:
        ValueError: the file is damaged, or holds another type of value.
        OSError: the file cannot be read.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged or cut short: expected JSON ({error})") from None
    if not isinstance(content, kind):
        names: dict[type, str] = {dict: "an object", list: "a list"}
        found = names.get(type(content), type(content).__name__)
        raise ValueError(f"{path} is damaged: expected {names[kind]}, found {found}")
    return content


def write_json(path: str | os.PathLike[str], content: object, indent: int | None = 1, **options: Any) -> None:
    """Writes a JSON file with [`replacing_file`]; `options` are passed to `json.dumps`."""
    text = json.dumps(content, indent=indent, **options)
    with replacing_file(path) as file:
        file.write(text + "\n")


def json_digest(value: object, size: int = 16) -> str:
    """Hash of a value as JSON, of `size` bytes; it does not depend on the process or the order of keys."""
    return bytes_digest(json.dumps(value, sort_keys=True, default=str).encode(), size)


def bytes_digest(data: bytes, size: int = 16) -> str:
    """Hexadecimal hash of `data`, of `size` bytes."""
    return hashlib.blake2b(data, digest_size=size).hexdigest()


def file_digest(path: Path, size: int = 16) -> str:
    """The [`bytes_digest`] of a file's content, which is read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, partial(hashlib.blake2b, digest_size=size)).hexdigest()


def differences(there: Json, now: Json) -> str:
    """Describes the values that changed from one record to a newer one; nested keys are joined with dots."""

    def changed(before: Json, after: Json, prefix: str = "") -> Iterator[str]:
        for name in sorted({*before, *after}):
            old, new = before.get(name), after.get(name)
            if isinstance(old, dict) and isinstance(new, dict):
                yield from changed(old, new, f"{prefix}{name}.")
            elif old != new:
                yield f"{prefix}{name}: {old!r} there, {new!r} now"

    return "; ".join(changed(there, now))


def open_array(path: str | os.PathLike[str]) -> npt.NDArray[Any]:
    """Memory-maps the array of a .npy file.

    Raises:
        ValueError: the file is damaged.
        OSError: the file cannot be read.
    """
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # numpy parses the header as Python, so any error is possible
        raise ValueError(f"{path} is damaged or cut short: no array ({' '.join(str(error).split())[:200]})") from error
    return array


@contextmanager
def naming_failed_writes(path: Path, partial: Path | None = None) -> Iterator[None]:
    """Turns a library's errors about a full disk, or about the temporary file, into one line about `path`.

    Args:
        path: the file or folder to write, as the user knows it.
        partial: its temporary name until it is complete.

    Raises:
        OSError: `path` could not be written; the message has `path` and the cause. Other errors pass unchanged.
    """
    try:
        yield
    except Exception as error:
        cause = _cause_of_failed_write(error, path, partial)
        if cause is None:
            raise
        kind = type(error) if isinstance(error, OSError) else OSError
        raise kind(f"{path}{_NOT_WRITTEN}{cause}. What was there before is untouched.") from error


def _cause_of_failed_write(error: BaseException, path: Path, partial: Path | None) -> str | None:
    text = str(error)
    if _NOT_WRITTEN in text and (partial is None or str(partial) not in text):
        return None  # An inner call has named the file already.
    if isinstance(error, OSError) and error.strerror is not None:
        names = [os.fspath(name) for name in (error.filename, error.filename2) if isinstance(name, str | os.PathLike)]
        is_of_partial = partial is not None and any(name.startswith(str(partial)) for name in names)
        # Or a parent folder could not be created.
        if error.errno in _FULL or is_of_partial or any(path.is_relative_to(name) for name in names):
            return error.strerror
        return None
    if partial is None and isinstance(error, ValueError):
        return None  # It is about a file that was read, which may be on another disk.
    for number in _FULL:
        if os.strerror(number) in text or f"(os error {number})" in text:
            return os.strerror(number)
    return os.strerror(errno.ENOSPC) if _CUT_SHORT.search(text) else None


def follow_umask(folder: Path) -> None:
    """Gives every file below a folder the mode of a new file under the umask, taken from the folder's own mode."""
    permissions = folder.stat().st_mode & 0o666
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(permissions)


@contextmanager
def sole_writer(folder: str | os.PathLike[str], beside: bool = False) -> Iterator[None]:
    """Locks `folder`, which is created, against writing by other processes while the block runs. The lock of a killed
    process is released.

    Args:
        folder: the folder; it is removed again if it is still empty at the end.
        beside: put the lock file beside the folder, needed if the folder is replaced as a whole or is a file.

    Raises:
        BlockingIOError: another process is writing it; the message names the process.
        FileExistsError: `folder` is a file.
        OSError: no permission, or no space left.
    """
    folder = Path(os.path.realpath(folder))
    if not beside and folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; name a folder.")
    with _held(_lock_beside(folder) if beside else folder / LOCK, folder):
        yield


def _lock_beside(path: Path) -> Path:
    return path.with_name(f".{path.name}{LOCK}")


@contextmanager
def _held(place: Path, written: Path) -> Iterator[None]:
    """Holds the lock file `place` of the file or folder `written`; at the end removes it and folders made for it."""
    new = [parent for parent in place.parents if not parent.exists()]
    lock = FileLock(place, timeout=0)
    with naming_failed_writes(written, place):
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout:
            holder = _read_holder(place)
            raise BlockingIOError(f"{written} is being written by {holder}. Wait for it, or name another.") from None
    try:
        with suppress(OSError):  # The holder's name is optional, as on a full disk.
            command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
            place.write_text(json.dumps([os.getpid(), socket.gethostname(), command[:200]]), encoding="utf-8")
        yield
    finally:
        # Removed while it is held: afterwards it could be another process's lock.
        with suppress(OSError):
            place.unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):
            for parent in new:
                parent.rmdir()


def _read_holder(place: Path) -> str:
    try:
        pid, host, command = json.loads(place.read_text(encoding="utf-8"))
        return f"process {pid} on {host} (`{command}`)"
    except (OSError, ValueError):
        return "another process"


def run_name(path: Path) -> str:
    """The last part of a path; for the folder `.../model` of a run, the part before it."""
    return (path.parent if path.name == "model" else path).name or path.name


def short_names(paths: Sequence[str]) -> list[str]:
    """The shortest ends of the paths that are all different."""
    parts = [Path(path).parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = [str(Path(*part[-length:])) for part in parts]
        if len(set(names)) == len(names) and names != ["model"]:
            return names
    return list(paths)


def shared_name(value: object) -> object:
    """The [`run_name`] of a path; any other name, such as a model on the Hub, unchanged."""
    if not isinstance(value, str) or not value:
        return value
    is_path = (
        Path(value).is_absolute() or value.count("/") != 1 or any(c in value for c in "*?[") or Path(value).exists()
    )
    return run_name(Path(os.path.abspath(value))) if is_path else value


def is_owned(name: str, owned: Sequence[str]) -> bool:
    """Whether an entry's name matches one of the `owned` patterns of [`replacing_folder`]."""
    return any(fnmatch.fnmatch(name, pattern) for pattern in owned)


def _old_name(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.old")


def _sync(folder: Path) -> None:
    """Syncs every file of a folder to disk, so that after a crash no renamed folder lacks its content."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
