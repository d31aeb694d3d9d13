"""Writing files and folders so that a crash or a full disk never costs what was there before."""

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

# The name of a file that says who writes a folder.
LOCK = ".lock"
# A folder that is replaced is missing for the time of a rename.
_REPLACEMENT_SECONDS = 5.0
_NOT_WRITTEN = " could not be written: "
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Messages of numpy, torch and faiss about a file that they could not write completely.
_CUT_SHORT = re.compile(r"requested and \d+ written|file write failed|failed writing file|unexpected pos|write error")


@contextmanager
def replacing_file(path: str | os.PathLike[str], mode: str = "w") -> Iterator[IO[Any]]:
    """Opens a temporary file beside `path` (UTF-8 in text mode) that takes its name if the block ends without error.

    Folders that are missing are made. What a link points to is replaced, not the link; a device or a pipe is written to
    as it is. The file's mode follows the umask, whatever wrote it.

    Raises:
        IsADirectoryError: `path` is a folder.
        OSError: no permission, or no space left; it names `path` and the cause.
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
    """Gives an empty folder beside `folder` that takes its place when the block ends without error.

    Until then `folder` is not touched. At every moment either the old or the new content is whole: in `folder`, or for
    the instant between two renames in the sibling `.NAME.old`, from which [`recover_folder`] restores it. The modes of
    the files follow the umask, whatever wrote them.

    Args:
        folder: the folder to write; its parents are made.
        owned: name patterns of the entries that a new folder replaces; any other entry of an existing folder is kept.

    Raises:
        FileExistsError: `folder` is a file.
        ValueError: it cannot be replaced.
        BlockingIOError: another process writes it.
        OSError: no permission, or no space left; it names `folder` and the cause.
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
    """Checks that another folder can take the place of this one.

    Raises:
        ValueError: the process works in it, or it is where a disk is mounted.
    """
    place = folder.resolve()
    if place in (Path.cwd(), *Path.cwd().parents) or os.path.ismount(place):
        raise ValueError(
            f"{folder} would be replaced as a whole, which the working folder and a mounted one cannot be; name one "
            "inside it."
        )


def check_new_folder(folder: str | os.PathLike[str]) -> Path:
    """The folder; checks that it is not there, or empty.

    Raises:
        FileExistsError: it is there.
        ValueError: it cannot be replaced.
    """
    folder = Path(folder)
    check_replaceable(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} is there already; name a new folder.")
    return folder


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


def read_whole(folder: Path, read: Callable[[], Read]) -> Read:
    """What `read` makes of a folder of which [`replacing_folder`] may put a new one in place meanwhile: of the old one
    or of the new one, never of both.

    Raises:
        What `read` raises of a folder that stays as it is.
        FileNotFoundError: the folder has not come back from a replacement.
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
    """What a JSON file holds.

    Args:
        path: the file.
        kind: `dict` or `list`, what must be in it.

    Raises:
        ValueError: it is damaged, or holds another kind of value.
        OSError: it cannot be read.
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
    """Writes a JSON file as [`replacing_file`] does; the options are those of `json.dumps`."""
    text = json.dumps(content, indent=indent, **options)
    with replacing_file(path) as file:
        file.write(text + "\n")


def json_digest(value: object, size: int = 16) -> str:
    """Hash of a value as JSON, `size` bytes long: the same in every process, whatever the order of its keys."""
    return bytes_digest(json.dumps(value, sort_keys=True, default=str).encode(), size)


def bytes_digest(data: bytes, size: int = 16) -> str:
    """A hash of bytes, of `size` bytes, in hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=size).hexdigest()


def file_digest(path: Path, size: int = 16) -> str:
    """The same of a file's bytes, read a part at a time."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, partial(hashlib.blake2b, digest_size=size)).hexdigest()


def differences(there: Json, now: Json) -> str:
    """Which values of a record differ from those of an older one, and how; those of a dictionary by their own names."""

    def changed(before: Json, after: Json, prefix: str = "") -> Iterator[str]:
        for name in sorted({*before, *after}):
            old, new = before.get(name), after.get(name)
            if isinstance(old, dict) and isinstance(new, dict):
                yield from changed(old, new, f"{prefix}{name}.")
            elif old != new:
                yield f"{prefix}{name}: {old!r} there, {new!r} now"

    return "; ".join(changed(there, now))


def open_array(path: str | os.PathLike[str]) -> npt.NDArray[Any]:
    """The array of a .npy file, mapped from the disk.

    Raises:
        ValueError: it is damaged.
        OSError: it cannot be read.
    """
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # whatever is in the header ends in: it is parsed as Python
        raise ValueError(f"{path} is damaged or cut short: no array ({' '.join(str(error).split())[:200]})") from error
    return array


@contextmanager
def naming_failed_writes(path: Path, partial: Path | None = None) -> Iterator[None]:
    """Turns what a library says of a full disk, or of the name under which `path` is written, into one line.

    Args:
        path: what is written, as its user knows it.
        partial: the name that it has until it is whole.

    Raises:
        OSError: it could not be written; `path` and the cause are in the message. Other errors pass.
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
        return None  # It names a file already, by the name that its user knows.
    if isinstance(error, OSError) and error.strerror is not None:
        names = [os.fspath(name) for name in (error.filename, error.filename2) if isinstance(name, str | os.PathLike)]
        is_of_partial = partial is not None and any(name.startswith(str(partial)) for name in names)
        # A folder around it that cannot be made, too.
        if error.errno in _FULL or is_of_partial or any(path.is_relative_to(name) for name in names):
            return error.strerror
        return None
    if partial is None and isinstance(error, ValueError):
        return None  # It names what could not be read, which may be on another disk.
    for number in _FULL:
        if os.strerror(number) in text or f"(os error {number})" in text:
            return os.strerror(number)
    return os.strerror(errno.ENOSPC) if _CUT_SHORT.search(text) else None


def follow_umask(folder: Path) -> None:
    """Gives every file of a folder the mode that the umask gives a new one, as the folder itself has it."""
    permissions = folder.stat().st_mode & 0o666
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(permissions)


@contextmanager
def sole_writer(folder: str | os.PathLike[str], beside: bool = False) -> Iterator[None]:
    """Keeps every other process from writing `folder`, which is made, while the block runs; the lock of a killed
    process is released.

    Args:
        folder: the folder; it goes again if nothing was put into it.
        beside: have the lock beside it, where a new folder takes the place of the old one, or where it is a file.

    Raises:
        BlockingIOError: another process writes it; the message says which.
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
    """Holds the lock file `place` of the file or folder `written`, and removes it and the folders made for it."""
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
        with suppress(OSError):  # It tells others who writes; where the disk is full it need not.
            command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
            place.write_text(json.dumps([os.getpid(), socket.gethostname(), command[:200]]), encoding="utf-8")
        yield
    finally:
        # While it is held, or another's would be removed.
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
    """The last part of a path, or the part before it of the folder `.../model` of a run."""
    return (path.parent if path.name == "model" else path).name or path.name


def short_names(paths: Sequence[str]) -> list[str]:
    """The shortest ends of the paths that tell them apart."""
    parts = [Path(path).parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = [str(Path(*part[-length:])) for part in parts]
        if len(set(names)) == len(names) and names != ["model"]:
            return names
    return list(paths)


def shared_name(value: object) -> object:
    """The [`run_name`] of a path; any other name, as of a model on the Hub, unchanged."""
    if not isinstance(value, str) or not value:
        return value
    is_path = (
        Path(value).is_absolute() or value.count("/") != 1 or any(c in value for c in "*?[") or Path(value).exists()
    )
    return run_name(Path(os.path.abspath(value))) if is_path else value


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
