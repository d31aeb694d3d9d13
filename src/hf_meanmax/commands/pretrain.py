"""Train an encoder and its decoder on raw text; every model family has the same training loop.

accelerate launch scripts/pretrain.py                                   # installed docstrings, offline
accelerate launch scripts/pretrain.py recipe.yaml --corpus 'my/*.txt' --max_minutes 45
hf-meanmax pretrain mean-max-aae-small --corpus my.txt --output_dir runs/mine
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from hf_meanmax.processes import errors_once
from hf_meanmax.training.pretrain import pretrain
from hf_meanmax.training.recipes import (
    SettingsParser,
    choice_of_family,
    family_of,
    list_recipes,
    parse_command_line,
    read_recipe,
    split_recipe,
)
from hf_meanmax.training.settings import PretrainArguments

from .options import command_line


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; `argv` is the command line by default. Returns the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    with command_line("pretrain", TypeError, FloatingPointError):
        if any(word in ("-h", "--help") for word in words):
            name, options = split_recipe(words)
            recipe = read_recipe(name) if name else {}
            parser = SettingsParser(PretrainArguments, family_of({**recipe, **choice_of_family(options)}))
            parser.set_defaults(**recipe)
            print(f"{__doc__}\npackaged recipes: {', '.join(list_recipes())}\n\n{parser.format_help()}")
            return 0
        with errors_once():
            arguments: PretrainArguments = parse_command_line(words)
        summary = pretrain(arguments)
    # The exit status of a signal (SIGTERM's if another process received it) shows callers that the run is unfinished.
    return 128 + (summary["terminated_by"] or signal.SIGTERM) if "terminated_by" in summary else 0
