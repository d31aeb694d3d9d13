"""The command line: `hf-meanmax VERB`, also as `python -m hf_meanmax.commands VERB`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from hf_meanmax.modeling.suggestions import did_you_mean

# Each verb is a module of this folder with a `main(argv)`; only the one that is called is imported.
VERBS = {
    "pretrain": "train an encoder and its decoder on raw text",
    "finetune": "train a classifier or a regression on labelled texts",
    "encode": "encode text to sharded embeddings",
    "decode": "decode embeddings back to text",
    "align": "fit a linear map so that an autoencoder's decoder reads another embedder's vectors",
    "audit": "show on one page what an embedder's vectors say about their texts",
    "translate": "translate text, and score it against references",
    "search": "index the sentences of a corpus, and find the nearest ones of a query",
    "evaluate": "score any sentence encoder beside its controls",
    "reconstruct": "score how well texts come back from their embeddings",
    "inspect": "show what inner attention and decoders read of a text",
    "vectors": "make word vectors for a corpus: skip-gram, or a teacher's",
    "expand": "add words to a trained model's vocabulary",
    "prepare": "cut long texts and segment Chinese, one text a line",
    "questions": "make questions of English statements, as text for a student",
    "whiten": "write a model whose vectors are whitened",
    "export": "write a smaller copy of a checkpoint, or a student in the space of its teacher",
    "export-onnx": "write a checkpoint's encoder as ONNX",
    "reproduce": "train and evaluate a list of systems, and put them into one table",
    "push": "push a checkpoint with its model card, or its demo as a Space, to the Hub",
    "demo": "serve a page that shows what a model does",
    "plot": "draw what training runs logged",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a verb; returns the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if not words or words[0] in ("-h", "--help"):
        width = max(map(len, VERBS))
        verbs = "\n".join(f"  {verb:{width}}  {does}" for verb, does in VERBS.items())
        print(
            f"usage: hf-meanmax VERB [options]\n\nverbs:\n{verbs}\n\nhf-meanmax VERB --help shows the options of a verb"
        )
        return 0
    verb, *rest = words
    if verb == "--version":
        from hf_meanmax import __version__

        print(__version__)
        return 0
    if verb not in VERBS:
        hint = did_you_mean(verb, VERBS, cutoff=0.5)
        print(f"hf-meanmax: unknown verb {verb!r}.{hint} Verbs: {', '.join(VERBS)}.", file=sys.stderr)
        return 2
    module = importlib.import_module(f"hf_meanmax.commands.{verb.replace('-', '_')}")
    return module.main(rest) or 0


if __name__ == "__main__":
    sys.exit(main())
