"""Add the words of a file of word vectors to a trained model's vocabulary.

hf-meanmax expand runs/mine/model vectors.safetensors --output runs/mine/expanded --texts reviews.txt
"""

from __future__ import annotations

from dataclasses import dataclass

from hf_meanmax.checkpoint.expand import expand_checkpoint
from hf_meanmax.checkpoint.location import checkpoint_folder
from hf_meanmax.data.opening import TextOptions
from hf_meanmax.metrics import counted
from hf_meanmax.tokenization import unknown_word_rate

from .options import count, option, positional, verb, written


@dataclass
class ExpandOptions(TextOptions):
    """The options of `hf-meanmax expand`."""

    model: str = positional("a checkpoint with a word-level tokenizer (a folder, or a name on the Hub)")
    vectors: str = positional("word2vec (.bin or text), GloVe, each also .gz, or .safetensors of `vectors`")
    output: str = written("folder of the expanded checkpoint", folder=True)
    limit: int | None = count("read only the first so many vectors", None)
    texts: list[str] | None = option("texts whose unknown words are counted, before and after", None)


@verb("expand")
def main(args: ExpandOptions) -> None:
    """Add the words of a file of word vectors to a trained model's vocabulary."""
    texts = args.open_texts(args.texts) if args.texts else None
    expansion = expand_checkpoint(
        args.model, args.vectors, args.output, limit=args.limit, encoding_errors=args.encoding_errors
    )
    print(
        f"{counted(expansion.added, 'word')} added, {len(expansion.tokenizer):,} in all; "
        f"{counted(expansion.left_out, 'vector')} left out (known, or words that the tokenizer never produces)"
    )
    if expansion.quality:
        print(f"the map: {expansion.quality}")
    if texts is not None:
        from transformers import AutoTokenizer

        for name, tokenizer in (
            ("before", AutoTokenizer.from_pretrained(checkpoint_folder(args.model))),
            ("after", expansion.tokenizer),
        ):
            unknown = unknown_word_rate(tokenizer, filter(None, texts))
            print(f"unknown words {name}: {unknown.rate:.2%} of {unknown.total:,}")
