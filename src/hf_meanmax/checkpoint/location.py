"""Locates a model: in a folder, in the package, or in a repository on the Hub."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub.errors import HFValidationError

from hf_meanmax.fields import expand_home
from hf_meanmax.modeling.suggestions import did_you_mean
from hf_meanmax.pretrained import packaged_folder, packaged_names

# Files of a Hub repository that are not needed to load a model here.
_OTHER_FRAMEWORKS = ["onnx/*", "openvino/*", "coreml/*", "*.h5", "*.msgpack", "*.ot"]


def checkpoint_folder(name: str | os.PathLike[str]) -> Path:
    """The folder of a checkpoint: `name` itself, the folder of a model of the package, or the download of a repository
    on the Hub.

    Raises:
        FileNotFoundError: there is no such folder, and no repository of this name could be read.
    """
    path = packaged_folder(os.fspath(name)) or Path(expand_home(os.fspath(name)))
    if not path.exists() and not is_missing_folder(name):
        from huggingface_hub import snapshot_download

        with naming_unread(name):
            path = Path(snapshot_download(os.fspath(name), ignore_patterns=_OTHER_FRAMEWORKS))
    return path


@contextmanager
def naming_unread(name: str | os.PathLike[str]) -> Iterator[None]:
    """Turns errors of reading a model from the Hub into one that names the model.

    Raises:
        FileNotFoundError: the model cannot be read; or `name` is a file, or looks like a misspelt packaged model.
    """
    if Path(name).is_file():
        raise FileNotFoundError(f"{str(name)!r} is a file; a model is a folder, or a name on the Hub.")
    meant = did_you_mean(os.fspath(name).replace("_", "-"), packaged_names(), cutoff=0.8)
    if meant and str(name) not in packaged_names() and "/" not in str(name):
        # Without a network, asking the Hub would take a minute.
        raise FileNotFoundError(f"No model {str(name)!r} is here or comes with the package.{meant}")
    try:
        yield
    except (OSError, HFValidationError, RuntimeError) as error:
        # huggingface_hub 1.5 raises this RuntimeError without a network.
        if isinstance(error, RuntimeError) and "client has been closed" not in str(error):
            raise
        reason = " ".join(str(error).split()).rstrip(".")
        raise FileNotFoundError(
            f"No model {str(name)!r}: it is no folder here, and could not be read from the Hub ({reason})."
            f"{packaged_hint(name)}"
        ) from error


def packaged_hint(name: str | os.PathLike[str]) -> str:
    """A hint for error messages about a model that is not found: the models that come with the package."""
    packaged = packaged_names()
    if str(name) in packaged:
        return f" It comes with the package: give its folder, which hf_meanmax.pretrained({str(name)!r}) returns."
    return f" The package has {' and '.join(packaged)}.{did_you_mean(Path(name).name, packaged)}"


def is_missing_folder(name: str | os.PathLike[str]) -> bool:
    """Whether a name is a path that does not exist here, rather than the name of a repository on the Hub."""
    text, path = os.fspath(name), Path(name)
    if path.exists():
        return False
    is_path = text.startswith((".", "/", "~")) or text.count("/") > 1
    return is_path or (path.parent != Path() and path.parent.is_dir())


def hint_at_model(folder: str | os.PathLike[str]) -> str:
    """A hint for error messages if a folder is a run's and its checkpoint is in `model`; else empty."""
    model = Path(folder) / "model"
    return f" Did you mean {model}?" if (model / "config.json").is_file() else ""
