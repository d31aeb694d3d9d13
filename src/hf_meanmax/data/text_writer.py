"""Text files that are written atomically, also compressed."""

from __future__ import annotations

import gzip
import io
import lzma
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from hf_meanmax.files import replacing_file

SUFFIXES = (".txt", ".xz", ".gz")


@contextmanager
def text_writer(path: str | os.PathLike[str]) -> Iterator[IO[str]]:
    """A text file to write, compressed as its suffix says. It takes the place of an older one only when all is written.

    Raises:
        ValueError: an unknown suffix.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path} is no {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file; name one.")
    with replacing_file(path, "wb") as raw:
        if path.suffix == ".xz":
            binary: Any = lzma.LZMAFile(raw, "wb")
        elif path.suffix == ".gz":
            # Without name and time, so that the same text gives the same file.
            binary = gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0)
        else:
            binary = raw
        text = io.TextIOWrapper(binary, encoding="utf-8", newline="\n")
        try:
            yield text
        finally:
            text.detach()
            if binary is not raw:
                binary.close()
