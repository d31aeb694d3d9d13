"""The page as a folder for a Space on the Hub: app.py, requirements.txt, README.md and the model."""

from __future__ import annotations

import json
import os
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from huggingface_hub import RepoCard, SpaceCardData

from hf_meanmax import __version__
from hf_meanmax.checkpoint.card import read_card_data
from hf_meanmax.checkpoint.compact import compact_checkpoint
from hf_meanmax.checkpoint.folder import check_checkpoint, require_embedding
from hf_meanmax.checkpoint.hub import keep_former, sign_in, upload
from hf_meanmax.checkpoint.location import is_missing_folder, packaged_hint
from hf_meanmax.files import replacing_folder
from hf_meanmax.pretrained import packaged_folder

APP, REQUIREMENTS, CARD, MODEL = "app.py", "requirements.txt", "README.md", "model"

_APP = '''"""The demo of hf_meanmax for one model."""

from hf_meanmax.demo.page import launch

launch({model}, host="0.0.0.0", port=7860)
'''
_CARD = """---
{front}
---
# {title}

Similarity, decoding, paths between texts, search and attention of a model of hf_meanmax. Nothing that is typed is kept.
The same page on your own machine: `hf-meanmax demo MODEL`.
"""


def write_space(model: str, folder: str | os.PathLike[str], title: str = "hf_meanmax") -> Path:
    """Writes the page of a model as a folder for a Space, atomically; files of an existing Space that were changed by
    hand are kept as copies.

    Args:
        model: a checkpoint folder, which is included with its matrices in float16; or a name on the Hub, from which the
            Space loads it.
        folder: where to write.
        title: title of the Space.

    Returns:
        The folder.

    Raises:
        FileNotFoundError, ValueError: a folder that is missing or no whole checkpoint, or whose card cannot be read.
        FileExistsError: `folder` holds something else.
    """
    target = Path(folder)
    if target.exists() and not _is_space(target) and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{target} is there already; name a new folder.")
    source = _folder_of(model)
    front = SpaceCardData(
        title=title,
        sdk="gradio",
        sdk_version=_gradio_version(),
        python_version="3.11",
        app_file=APP,
        license=read_card_data(source / CARD).license if source else None,
        models=None if source else [model],
    )
    with replacing_folder(target, (APP, REQUIREMENTS, CARD, MODEL)) as partial:
        if source:
            compact_checkpoint(source, partial / MODEL, "float16", remote_code=False)
        named = MODEL if source else model
        (partial / APP).write_text(_APP.format(model=json.dumps(named)), encoding="utf-8")
        (partial / REQUIREMENTS).write_text(f"hf_meanmax[demo]=={__version__}\n", encoding="utf-8")
        RepoCard(_CARD.format(front=front.to_yaml(), title=title)).save(partial / CARD)
        for name in (APP, REQUIREMENTS, CARD):
            if (target / name).is_file() and (target / name).read_bytes() != (partial / name).read_bytes():
                keep_former(target / name)
    return target


def push_space(
    model: str,
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    revision: str | None = None,
    exist_ok: bool = False,
) -> str:
    """Pushes the page of a model to the Hub as a Space, in one commit.

    Args:
        model: as for `write_space`, or a folder written by it, which is uploaded unchanged.
        repo_id: `USER/NAME` of the Space, which is created if needed.
        private, token, revision, exist_ok: as in [`push`][hf_meanmax.checkpoint.hub.push].

    Returns:
        The address of the commit.

    Raises:
        FileNotFoundError, ValueError, HubError: as in [`push`][hf_meanmax.checkpoint.hub.push].
    """
    is_space = _is_space(Path(model))
    if not is_space:
        _folder_of(model)  # before the Hub is contacted
    api = sign_in(repo_id, token)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(model) if is_space else write_space(model, Path(scratch) / "space", repo_id.rpartition("/")[2])
        return upload(
            api,
            folder,
            repo_id,
            [APP, REQUIREMENTS, CARD, f"{MODEL}/*"],
            [f"{MODEL}/*"],
            space=True,
            private=private,
            revision=revision,
            exist_ok=exist_ok,
        )


def _folder_of(model: str) -> Path | None:
    """The checkpoint folder to include in a Space; None for a name on the Hub.

    Raises:
        FileNotFoundError, ValueError: a folder that is missing, no whole checkpoint, or one without vectors of texts.
    """
    folder = packaged_folder(model) or Path(model)
    if not folder.exists() and not is_missing_folder(model):
        if "/" not in model:
            raise FileNotFoundError(f"No model {model!r}.{packaged_hint(model)}")
        return None
    require_embedding(check_checkpoint(folder, encoder_alone=True), model)
    return folder


def _is_space(folder: Path) -> bool:
    """Whether a folder was written by [`write_space`]."""
    app = folder / APP
    return app.is_file() and "hf_meanmax.demo" in app.read_text(encoding="utf-8", errors="replace")


def _gradio_version() -> str | None:
    """The installed version of gradio; None, for which the Hub takes the newest, if there is none."""
    try:
        return version("gradio")
    except PackageNotFoundError:
        return None
