"""Train skip-gram word vectors on a corpus, for all its frequent words: to start a model from, and to expand it later.

hf-meanmax vectors 'my/*.txt' --output vectors.safetensors --size 300

A model starts from them with `--word_vectors vectors.safetensors`; `hf-meanmax expand` reads the same file.
"""

from __future__ import annotations

from dataclasses import dataclass

from hf_meanmax.training.word_vectors import VectorSettings, train_corpus_vectors

from .options import CorpusOptions, option, verb


@dataclass
class VectorsOptions:
    """Where `hf-meanmax vectors` writes, beside the settings of the training."""

    output: str = option("a .safetensors file")


@verb("vectors")
def main(corpus: CorpusOptions, args: VectorsOptions, settings: VectorSettings) -> None:
    """Train skip-gram word vectors on a corpus."""
    vectors = train_corpus_vectors(corpus.open(), args.output, settings)
    print(f"{len(vectors):,} words, {vectors.size} dimensions: {args.output}")
