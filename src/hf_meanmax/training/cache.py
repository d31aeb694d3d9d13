"""The cache that runs share: tokenised corpora, tokenizers, word vectors and teachers' vectors."""

from __future__ import annotations

import os
from pathlib import Path

from filelock import FileLock

from hf_meanmax.files import json_digest

from .run_settings import RunArguments


def cache_lock(path: Path) -> FileLock:
    """Locks an entry of the cache: while one run makes it, others wait and then read it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"The cache cannot be written ({error}). Give another folder: `cache_dir`, or HF_MEANMAX_CACHE."
        ) from error
    return FileLock(f"{path}.lock")


def cache_folder(args: RunArguments) -> Path:
    """The folder of the cache: `cache_dir`, else $HF_MEANMAX_CACHE, else ~/.cache/hf_meanmax."""
    named = args.cache_dir or os.environ.get("HF_MEANMAX_CACHE") or Path.home() / ".cache" / "hf_meanmax"
    return Path(named).expanduser()


def digest(*parts: object) -> str:
    """A short hash of plain values, the same in every process."""
    return json_digest(parts, size=12)
