"""Make vectors of all frequent words of a corpus, by skip-gram or by a teacher, to initialise a model from.

hf-meanmax vectors 'my/*.txt' --output vectors.safetensors --size 300
hf-meanmax vectors 'my/*.txt' --output words.safetensors --teacher MODEL --pieces

Pretraining starts from them with `--word_vectors vectors.safetensors`; `hf-meanmax expand` reads the same file. With
`--pieces` here, `--tokenizer wordpiece` in pretraining leaves no word unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

from hf_meanmax.training.word_vectors import VectorSettings, train_corpus_vectors

from .options import CorpusOptions, verb, written


@dataclass
class VectorsOptions:
    """The output of `hf-meanmax vectors`, besides the settings of the training."""

    output: str = written("a .safetensors file")


@verb("vectors")
def main(corpus: CorpusOptions, args: VectorsOptions, settings: VectorSettings) -> None:
    """Make word vectors for the frequent words of a corpus."""
    vectors = train_corpus_vectors(corpus.open(), args.output, settings)
    print(f"{len(vectors):,} words, {vectors.size} dimensions: {args.output}")
