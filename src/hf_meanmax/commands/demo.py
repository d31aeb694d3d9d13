"""Serve a page that shows what a model does: similarity, decoding, paths between texts, search, attention.

hf-meanmax demo
hf-meanmax demo runs/docstrings/model --space spaces/docstrings
"""

from __future__ import annotations

from dataclasses import dataclass

from hf_meanmax.demo.page import launch
from hf_meanmax.demo.space import write_space
from hf_meanmax.pretrained import ENCODER_SOURCES, pretrained

from .options import option, positional, verb, written

_HOST = "127.0.0.1"


@dataclass
class DemoOptions:
    """The options of `hf-meanmax demo`."""

    model: str | None = positional(
        f"a checkpoint, or any SentenceTransformer ({ENCODER_SOURCES}); by default mini-en",
        None,
    )
    host: str = option("address to listen at; 0.0.0.0 lets other machines in", _HOST)
    port: int | None = option("by default the first free one from 7860", None, at_least=1, at_most=65535)
    space: str | None = written(
        "write the page as a folder for a Space on the Hub, and serve nothing", None, folder=True
    )
    trust_remote_code: bool = option("run code that comes with the model", False)


@verb("demo")
def main(args: DemoOptions) -> None:
    """Serve a page that shows what a model does."""
    model = pretrained("mini-en") if args.model is None else args.model
    if args.space is not None:
        given = {"host": args.host != _HOST, "port": args.port is not None, "trust_remote_code": args.trust_remote_code}
        for name in filter(given.get, given):
            raise ValueError(f"--{name} cannot be used with --space. Leave it out.")
        folder = write_space(model, args.space)
        print(f"written: {folder}; push it with `hf-meanmax push {folder} USER/NAME --space`")
        return
    launch(model, args.host, args.port, args.trust_remote_code)
