"""A text file whose writing can be resumed after an interruption; it gets its name only when it is complete."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from hf_meanmax.files import Json, differences, naming_failed_writes, sole_writer, write_json

# A killed process loses the rows written since it last saved.
_SAVE_SECONDS = 1.0


class ContinuedFile:
    """The lines of a file in progress (see [`continued_file`]).

    Attributes:
        rows: number of rows written.
        last_key: key of the last row.
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
            file.truncate(state["bytes"])  # rows after the last save are written again
        else:
            self.start_over()

    @property
    def rows(self) -> int:
        return self._written[0]

    @property
    def last_key(self) -> str:
        return self._written[1]

    def start_over(self) -> None:
        """Drops all rows."""
        self._written = (0, "", 0)
        self._file.truncate(0)

    def append(self, lines: Iterable[str], last_key: object) -> None:
        """Writes a batch of lines, one per row; a resuming process finds all of them or none."""
        lines = list(lines)
        self._file.writelines(f"{line}\n" for line in lines)
        self._file.flush()
        # One assignment: if interrupted before it, the batch counts as not written.
        self._written = (self.rows + len(lines), str(last_key), os.fstat(self._file.fileno()).st_size)
        if time.monotonic() - self._saved >= _SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Syncs the rows to disk and records the progress, for a resuming process."""
        os.fsync(self._file.fileno())
        rows, last_key, size = self._written
        state = {"made_from": self._made_from, "rows": rows, "last_key": last_key, "bytes": size}
        write_json(self._progress, state, indent=None)
        self._saved = time.monotonic()


def is_file_name(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a regular file or does not exist yet, rather than a device or a pipe."""
    return os.path.isfile(path) or not os.path.exists(path)


@contextmanager
def continued_file(path: str | os.PathLike[str], made_from: Json) -> Iterator[ContinuedFile]:
    """Opens a file in progress beside `path`, which is renamed to `path` if the block ends without error.

    After an error, or if the process was killed, `.NAME.partial` and `.NAME.progress` stay if they hold a row, and the
    next call with the same `made_from` resumes from them.

    Args:
        path: a file.
        made_from: the inputs and settings that determine its lines.

    Raises:
        IsADirectoryError: `path` is a folder.
        FileExistsError: the file in progress was made from something else.
        BlockingIOError: another process writes it.
        OSError: no permission, or no space left.
    """
    path = Path(os.path.realpath(path))
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file.")
    partial, progress = (path.with_name(f".{path.name}.{kind}") for kind in ("partial", "progress"))
    with sole_writer(path, beside=True), naming_failed_writes(path, path.with_name(f".{path.name}.")):
        # Append mode keeps earlier rows, and writes at the end after a truncation.
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
