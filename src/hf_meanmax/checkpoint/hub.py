"""Pushing a checkpoint folder to the Hub, and what else is pushed there."""

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
    """What went wrong with the Hub, on one line. Nothing local is lost; the same call can be made again."""


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

    Only the files of the checkpoint are sent, no logs or step checkpoints beside them. A README.md in the folder is
    sent as it is; without one, a card is written first.

    Args:
        folder: a checkpoint folder.
        repo_id: `USER/NAME`; the repository is made if need be.
        private: whether a new repository is private; by default as the account says. A public one that is there already
            is not pushed to if this is True.
        token: a token with write access; by default the one of `hf auth login` or of `HF_TOKEN`.
        revision: the branch to push to, made if need be; by default `main`.
        exist_ok: push even if the repository already holds files. Not needed for one that a failed push has left empty.
        card: a file that becomes the folder's README.md first; a former one is kept beside it.

    Returns:
        The address of the commit.

    Raises:
        FileNotFoundError, ValueError: the folder is no whole checkpoint, or `repo_id` is no valid name with its owner.
        HubError: no token, no permission, the Hub cannot be reached, or the repository holds files already or is public
            against `private`.
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
        # An older export may have had other files.
        [*CHECKPOINT_FILES, "[0-9]_*/*", f"{TARGET_TOKENIZER}/*"],
        private=private,
        revision=revision,
        exist_ok=exist_ok,
    )


def sign_in(repo_id: str, token: str | None = None) -> HfApi:
    """The Hub, once it is known to be within reach and to accept the token.

    Raises:
        ValueError: `repo_id` lacks its owner.
        HubError: no token, one that the Hub does not accept, or no connection.
    """
    from huggingface_hub import HfApi, get_token

    if "/" not in repo_id:
        raise ValueError(f"The repository is {repo_id!r}; give its owner too, USER/{repo_id}.")
    if token is None and get_token() is None:
        raise HubError("There is no token for the Hub: run `hf auth login`, or set HF_TOKEN.")
    api = HfApi(token=token)
    with _hub_errors(api.endpoint, repo_id):
        api.whoami()  # a bad token, or no connection, shows here at once; later calls try for long
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
    """Uploads a folder to a model's repository or a Space, which is made if need be, in one commit.

    Args:
        api: of [`sign_in`].
        folder: what to upload.
        repo_id: `USER/NAME`.
        patterns: of the files that are sent.
        former: patterns of the files of an older upload, which go if the folder has them no longer.
        space: whether it is a Space of gradio.
        private, revision, exist_ok: as in [`push`].

    Returns:
        The address of the commit.

    Raises:
        ValueError: `repo_id` is no valid name.
        HubError: as in [`push`].
    """
    repo_type = "space" if space else "model"
    with _hub_errors(api.endpoint, repo_id):
        # What the Hub itself puts into a new repository.
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
    """Puts a given card into the folder, or writes one where there is none."""
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
    """Copies a file, if it is there, to the first free name of FILE.1, FILE.2, ..."""
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
    """Turns the errors of huggingface_hub into a `HubError` of one line."""
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
