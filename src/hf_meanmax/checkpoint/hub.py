"""Pushes checkpoint folders and Spaces to the Hub."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hf_meanmax.files import is_owned, replacing_file

from .card import write_model_card
from .folder import CHECKPOINT_FILES, TARGET_TOKENIZER, check_checkpoint
from .sentence_transformer import module_folders

if TYPE_CHECKING:
    from huggingface_hub import HfApi


class HubError(OSError):
    """An error of the Hub, on one line. Nothing local is lost, and the call can be repeated."""


def push(
    folder: str | os.PathLike[str],
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    revision: str | None = None,
    exist_ok: bool = False,
    card: str | os.PathLike[str] | None = None,
) -> str:
    """Pushes a checkpoint folder with its model card to the Hub, in one commit.

    Only the files of the checkpoint are sent, not logs or step checkpoints beside them. A README.md in the folder is
    sent as it is; without one, a card is written first.

    Args:
        folder: a checkpoint folder.
        repo_id: `USER/NAME`; the repository is created if it does not exist.
        private: whether a new repository is private (default: the account's setting). If True, an existing public
            repository is an error.
        token: a token with write access (default: the one of `hf auth login` or `HF_TOKEN`).
        revision: the branch to push to, created if it does not exist (default: `main`).
        exist_ok: push even if the repository already holds files. Not needed for one that a failed push has left empty.
        card: a file to put into the folder as README.md first; an existing README.md is kept under another name.

    Returns:
        The URL of the commit.

    Raises:
        FileNotFoundError, ValueError: the folder is no whole checkpoint, or `repo_id` is not a valid `USER/NAME`.
        HubError: no token, no permission, no connection, or the repository already holds files or is public despite
            `private`.
    """
    folder = Path(folder)
    check_checkpoint(folder)
    api = sign_in(repo_id, token)
    _put_card(folder, repo_id, card)
    parts = [*CHECKPOINT_FILES, *module_folders(folder)]
    names = [entry for entry in folder.iterdir() if is_owned(entry.name, parts)]
    return upload(
        api,
        folder,
        repo_id,
        ["README.md", *(f"{entry.name}/*" if entry.is_dir() else entry.name for entry in names)],
        # Files of an older push that the folder no longer has.
        [*CHECKPOINT_FILES, "[0-9]_*/*", f"{TARGET_TOKENIZER}/*"],
        private=private,
        revision=revision,
        exist_ok=exist_ok,
    )


def sign_in(repo_id: str, token: str | None = None) -> HfApi:
    """A client of the Hub, after checking that the Hub can be reached and accepts the token.

    Raises:
        ValueError: `repo_id` lacks its owner.
        HubError: no token, an invalid one, or no connection.
    """
    from huggingface_hub import HfApi, get_token

    if "/" not in repo_id:
        raise ValueError(f"The repository is {repo_id!r}; give its owner too, USER/{repo_id}.")
    if token is None and get_token() is None:
        raise HubError("There is no token for the Hub: run `hf auth login`, or set HF_TOKEN.")
    api = HfApi(token=token)
    with _hub_errors(api.endpoint, repo_id):
        api.whoami()  # fails at once for a bad token or without a connection, which later calls retry for long
    return api


def upload(
    api: HfApi,
    folder: Path,
    repo_id: str,
    patterns: Sequence[str],
    former: Sequence[str],
    *,
    space: bool = False,
    private: bool | None = None,
    revision: str | None = None,
    exist_ok: bool = False,
) -> str:
    """Uploads a folder in one commit to a model repository or a Space, which is created if it does not exist.

    Args:
        api: the client from [`sign_in`].
        folder: the folder to upload.
        repo_id: `USER/NAME`.
        patterns: patterns of the files to upload.
        former: patterns of files in the repository that are deleted if the folder no longer has them.
        space: whether the repository is a Gradio Space.
        private, revision, exist_ok: see [`push`].

    Returns:
        The URL of the commit.

    Raises:
        ValueError: `repo_id` is no valid name.
        HubError: see [`push`].
    """
    repo_type = "space" if space else "model"
    with _hub_errors(api.endpoint, repo_id):
        # Files that the Hub itself puts into a new repository.
        made = {".gitattributes", "README.md"} if space else {".gitattributes"}
        present = _files_on_hub(api, repo_id, repo_type, revision) - made
        if present and not exist_ok:
            raise HubError(
                f"{repo_id} exists and holds {len(present)} files; give exist_ok (--exist_ok) to replace them, or push "
                "to another name."
            )
        api.create_repo(
            repo_id, repo_type=repo_type, private=private, exist_ok=True, space_sdk="gradio" if space else None
        )
        if private and api.repo_info(repo_id, repo_type=repo_type).private is False:
            raise HubError(
                f"{repo_id} was there already and is public; make it private on the Hub, or take another name."
            )
        if revision is not None:
            api.create_branch(repo_id, branch=revision, repo_type=repo_type, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo_id,
            repo_type=repo_type,
            folder_path=folder,
            allow_patterns=list(patterns),
            delete_patterns=list(former),
            revision=revision,
            commit_message=f"Push a {'demo' if space else 'checkpoint'} of hf_meanmax",
        )
    return commit.commit_url


def _put_card(folder: Path, repo_id: str, card: str | os.PathLike[str] | None) -> None:
    """Puts the given card into the folder, or writes one if the folder has none."""
    if card is not None and Path(card).resolve() != (folder / "README.md").resolve():
        content, readme = Path(card).read_bytes(), folder / "README.md"
        if readme.is_file() and readme.read_bytes() == content:
            return
        keep_former(readme)
        with replacing_file(readme, "wb") as file:
            file.write(content)
    elif not (folder / "README.md").is_file():
        write_model_card(folder, repo_id)


def keep_former(file: Path) -> None:
    """Copies a file, if it exists, to the first free name of FILE.1, FILE.2, ..."""
    if not file.is_file():
        return
    places = (file.with_name(f"{file.name}.{number}") for number in itertools.count(1))
    former = shutil.copyfile(file, next(place for place in places if not place.exists()))
    print(f"the former {file.name} is kept as {former}.", file=sys.stderr)


def _files_on_hub(api: HfApi, repo_id: str, repo_type: str, revision: str | None) -> set[str]:
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        return set(api.list_repo_files(repo_id, repo_type=repo_type, revision=revision))
    except (RepositoryNotFoundError, RevisionNotFoundError):
        return set()


@contextmanager
def _hub_errors(endpoint: str, repo_id: str) -> Iterator[None]:
    """Turns errors of huggingface_hub into a `HubError` of one line."""
    from huggingface_hub.errors import HfHubHTTPError, HTTPError, OfflineModeIsEnabled  # type: ignore[attr-defined]

    try:
        yield
    except HfHubHTTPError as error:
        status = error.response.status_code
        said = " ".join((error.server_message or str(error)).split())
        if status == 401:
            reason = "the Hub does not accept the token; run `hf auth login`, or set HF_TOKEN"
        elif status == 403:
            reason = "the token may not write there; take one with write access, or another name"
        else:
            reason = f"the Hub answered {status}; try again"
        raise HubError(f"{repo_id} was not pushed: {reason} ({said}).") from error
    except OfflineModeIsEnabled as error:
        raise HubError(f"{repo_id} was not pushed: HF_HUB_OFFLINE is set; unset it and try again.") from error
    except (HTTPError, ConnectionError, TimeoutError) as error:
        said = " ".join(str(error).split())
        raise HubError(f"{repo_id} was not pushed: no connection to {endpoint} ({said}); try again.") from error
