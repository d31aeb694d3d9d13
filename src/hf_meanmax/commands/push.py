"""Push a checkpoint folder with its model card to the Hub.

hf-meanmax push runs/docstrings/model USER/NAME --private
hf-meanmax push runs/docstrings/model USER/NAME --card_only model_cards/NAME.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hf_meanmax.checkpoint.card import CardDescription, write_model_card
from hf_meanmax.checkpoint.hub import check_push, keep_former_card, push

from .options import OptionParser, one_line_errors, option, positional, written


@dataclass
class PushOptions:
    """The options of `hf-meanmax push`."""

    folder: str = positional("a checkpoint folder")
    repo_id: str = positional("USER/NAME on the Hub")
    card_only: str | None = written("write the model card to this file and push nothing", None)
    card: str | None = option("a card to push instead of a generated one", None)
    results: str | None = option("scores for the card: a results.json, or any JSON", None)
    data: str | None = option("what the model was trained on, in words, for the card", None)
    language: str = option("language code, for the card", "en")
    license: str = option("licence, for the card", "apache-2.0")
    private: bool = option("make a new repository private", False)
    revision: str | None = option("branch to push to", None)
    exist_ok: bool = option("replace what the repository holds", False)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command; `argv` is the command line by default."""
    parser = OptionParser("push", "Push a checkpoint folder with its model card to the Hub.", PushOptions)
    with one_line_errors("push"):
        (args,) = parser.parse(argv)
        written = {"--results": args.results, "--data": args.data}
        if args.card is not None and any(written.values()):
            given = " and ".join(filter(written.get, written))
            parser.error(f"{given}: for a generated card, not for --card")
        results = None if args.results is None else json.loads(Path(args.results).read_text(encoding="utf-8"))
        description = CardDescription(data=args.data, language=args.language, license=args.license)
        if args.card_only is not None:
            print(write_model_card(args.folder, args.repo_id, description, path=args.card_only, results=results))
            return
        check_push(args.folder, args.repo_id)
        readme = Path(args.folder) / "README.md"
        if args.card is None and readme.is_file() and not (results or args.data):
            print(f"{readme} is pushed as it is; remove it to have a card written.", file=sys.stderr)
        elif args.card is None:
            keep_former_card(Path(args.folder))
            write_model_card(args.folder, args.repo_id, description, results=results)
        url = push(
            args.folder,
            args.repo_id,
            private=args.private or None,
            revision=args.revision,
            exist_ok=args.exist_ok,
            card=args.card,
        )
        print(f"pushed: {url}", file=sys.stderr)
