"""Push a checkpoint folder with its model card to the Hub, or its demo as a Space.

hf-meanmax push runs/docstrings/model USER/NAME --private
hf-meanmax push runs/docstrings/model USER/NAME --card_only model_cards/NAME.md
hf-meanmax push runs/docstrings/model USER/NAME --space
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_meanmax.checkpoint.card import CardDescription, write_model_card
from hf_meanmax.checkpoint.folder import check_checkpoint
from hf_meanmax.checkpoint.hub import push
from hf_meanmax.demo.space import push_space
from hf_meanmax.files import read_json
from hf_meanmax.pretrained import ENCODER_SOURCES

from .options import option, positional, verb, written

# Options that only a generated card uses, and options that only a push uses.
_OF_GENERATED = ("results", "data", "language", "license")
_OF_PUSH = ("card", "private", "revision", "exist_ok")


@dataclass
class PushOptions:
    """The options of `hf-meanmax push`."""

    folder: str = positional(
        f"a checkpoint folder; with --space {ENCODER_SOURCES}, or a folder of `hf-meanmax demo --space`"
    )
    repo_id: str = positional("USER/NAME on the Hub")
    card_only: str | None = written("write the model card to this file and push nothing", None)
    card: str | None = option("a card to push instead of a generated one", None)
    results: str | None = option("scores for the card: a results.json, or any JSON object", None)
    data: str | None = option("what the model was trained on, in words, for the card", None)
    language: str | None = option("language code for the card, or several (zh,en); by default en", None)
    license: str | None = option("licence, for the card (by default apache-2.0)", None)
    private: bool = option("make a new repository private", False)
    space: bool = option("push the page of `hf-meanmax demo` with this model as a Space, and no model", False)
    revision: str | None = option("branch to push to", None)
    exist_ok: bool = option("replace what the repository holds", False)


@verb("push")
def main(args: PushOptions) -> None:
    """Push a checkpoint folder with its model card, or its demo, to the Hub."""
    _refuse_contradictions(args)
    if args.card_only is not None:
        print(_write_card(args, args.card_only))
        return
    target: dict[str, Any] = {"private": args.private or None, "revision": args.revision, "exist_ok": args.exist_ok}
    if args.space:
        url = push_space(args.folder, args.repo_id, **target)
    else:
        check_checkpoint(args.folder)
        with tempfile.TemporaryDirectory() as folder:
            card = args.card
            if card is None and _wants_new_card(args):
                card = str(_write_card(args, os.path.join(folder, "README.md")))
            url = push(args.folder, args.repo_id, card=card, **target)
    print(f"pushed: {url}", file=sys.stderr)


def _refuse_contradictions(args: PushOptions) -> None:
    for is_given, options, reason in (
        (args.card is not None, _OF_GENERATED, "for a generated card, not for --card"),
        (args.card_only is not None, _OF_PUSH, "for a push, not for --card_only"),
        (args.space, ("card", "card_only", *_OF_GENERATED), "for the card of a model, not for --space"),
    ):
        given = " and ".join(f"--{name}" for name in options if getattr(args, name))
        if is_given and given:
            raise ValueError(f"{given}: {reason}")


def _wants_new_card(args: PushOptions) -> bool:
    """Whether to write a card: the folder has none, or options change it."""
    readme = Path(args.folder) / "README.md"
    if not readme.is_file() or any(getattr(args, name) for name in _OF_GENERATED):
        return True
    is_of_another = args.repo_id not in readme.read_text(encoding="utf-8", errors="replace")
    but = f", though it does not name {args.repo_id}" if is_of_another else ""
    print(f"{readme} is pushed as it is{but}; remove it to have a card written.", file=sys.stderr)
    return False


def _write_card(args: PushOptions, path: str) -> Path:
    results = None if args.results is None else read_json(args.results)
    given = {"data": args.data, "language": args.language, "license": args.license}
    description = CardDescription(**{name: value for name, value in given.items() if value is not None})
    missing = [f"--{name}" for name in ("language", "license") if given[name] is None]
    if missing:
        print(
            f"The card says language {description.language} and licence {description.license}; "
            f"{' and '.join(missing)} would change that.",
            file=sys.stderr,
        )
    return write_model_card(args.folder, args.repo_id, description, path=path, results=results)
