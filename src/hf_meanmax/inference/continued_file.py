"""A text file that a killed process can resume; it appears under its name only when it is complete."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from hf_meanmax.files import Json, differences, naming_failed_writes, sole_writer, write_json

# A killed process loses what it has made since it last saved.
_SAVE_SECONDS = 1.0


class ContinuedFile:
    """The lines of a file in progress (see [`continued_file`]).

    Attributes:
        rows: how many rows are in it.
        last_key: what the last of them is called.
    """

    def __init__(self, file: IO[str], progress: Path, made_from: Json) -> None:
        self._file, self._progress, self._made_from = file, progress, made_from
        self._saved = -_SAVE_SECONDS
        self._written: tuple[int, str, int] = (0, "", 0)
        state = _read_state(progress)
        is_of_this = state.get("made_from") == made_from
        if state.get("rows") and not is_of_this:
            changed = differences(state["made_from"] if isinstance(state["made_from"], dict) else {}, made_from)
            raise FileExistsError(
                f"{progress} belongs to {state['rows']:,} rows that were made with other settings ({changed}). Give "
                "the same ones to continue, or remove the file to start over."
            )
        if is_of_this and state["bytes"] <= os.fstat(file.fileno()).st_size:
            self._written = (state["rows"], state["last_key"], state["bytes"])
            file.truncate(state["bytes"])  # what was written after is no whole batch
        else:
            self.start_over()

    @property
    def rows(self) -> int:
        return self._written[0]

    @property
    def last_key(self) -> str:
        return self._written[1]

    def start_over(self) -> None:
        """Drops what is in it."""
        self._written = (0, "", 0)
        self._file.truncate(0)

    def append(self, lines: Iterable[str], last_key: object) -> None:
        """Writes a line for each of some rows, all or none of which a later process finds."""
        lines = list(lines)
        self._file.writelines(f"{line}\n" for line in lines)
        self._file.flush()
        # At once: an interrupt before it leaves the file as if the batch had not been written.
        self._written = (self.rows + len(lines), str(last_key), os.fstat(self._file.fileno()).st_size)
        if time.monotonic() - self._saved >= _SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Brings what was written to the disk, for a later process."""
        os.fsync(self._file.fileno())
        rows, last_key, size = self._written
        state = {"made_from": self._made_from, "rows": rows, "last_key": last_key, "bytes": size}
        write_json(self._progress, state, indent=None)
        self._saved = time.monotonic()


def is_file_name(path: str | os.PathLike[str]) -> bool:
    """Whether a path names a file, there or not, and neither a device nor a pipe."""
    return os.path.isfile(path) or not os.path.exists(path)


@contextmanager
def continued_file(path: str | os.PathLike[str], made_from: Json) -> Iterator[ContinuedFile]:
    """Opens the file in progress beside `path`, which takes its name if the block ends without error.

    After an error, or where the process was killed, `.NAME.partial` and `.NAME.progress` stay, if they hold a row, and
    the next call with the same `made_from` goes on with them.

    Args:
        path: a file.
        made_from: what its lines are a function of.

    Raises:
        IsADirectoryError: `path` is a folder.
        FileExistsError: what is there was made from something else.
        BlockingIOError: another process writes it.
        OSError: no permission, or no space left.
    """
    path = Path(os.path.realpath(path))
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file.")
    partial, progress = (path.with_name(f".{path.name}.{kind}") for kind in ("partial", "progress"))
    with sole_writer(path, beside=True), naming_failed_writes(path, path.with_name(f".{path.name}.")):
        # As they come, in the order in which they are written.
        with open(partial, "a", encoding="utf-8") as file:
            continued = ContinuedFile(file, progress, made_from)
            try:
                yield continued
            except BaseException:
                if continued.rows:
                    continued.save()
                else:
                    partial.unlink()
                    progress.unlink(missing_ok=True)
                raise
            continued.save()
        os.replace(partial, path)
        progress.unlink(missing_ok=True)


def _read_state(progress: Path) -> Json:
    try:
        state: Json = json.loads(progress.read_text(encoding="utf-8"))
        numbers = all(isinstance(state[name], int) for name in ("rows", "bytes"))
        return state if numbers and {"made_from", "last_key"} <= state.keys() else {}
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return {}
