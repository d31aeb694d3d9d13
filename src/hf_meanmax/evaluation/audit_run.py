"""An audit from files and checkpoints: draws texts, reads or makes their vectors, and writes the page."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from hf_meanmax._version import __version__
from hf_meanmax.checkpoint.folder import load_decoder
from hf_meanmax.cosines import paired_cosines
from hf_meanmax.data.corpus import CorpusLines
from hf_meanmax.data.opening import TextOptions
from hf_meanmax.fields import count, option
from hf_meanmax.files import Json, shared_name
from hf_meanmax.hardware import COMPUTE_DTYPES, compute_dtype
from hf_meanmax.inference.correction import embedder_of, gives_other_vectors
from hf_meanmax.inference.decodable import check_sources, refuse_scaled
from hf_meanmax.inference.decode import DecodingSettings, decode_vectors
from hf_meanmax.inference.embedder import embed
from hf_meanmax.inference.sources import SourceOptions, VectorSource, open_sources, sources_named, take_rows
from hf_meanmax.plots.figures import new_figure
from hf_meanmax.pretrained import DECODER_SOURCES

from .audit import AuditSettings, Decode, audit, stsb_pairs
from .audit_page import write_audit
from .recovery import word_cutter
from .senteval_files import LabelledSet

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Number of texts on which vectors from files are compared with the embedder's.
_COMPARED = 64
_LEAST_COSINE = 0.99


@dataclass
class AuditSource(SourceOptions, TextOptions):
    """The texts and models of an audit."""

    decoder: str = option(f"a decoder of the embedder's vectors ({DECODER_SOURCES})")
    texts: list[str] = option("the audited texts: files or globs, one text a line")
    embedder: str | None = option("where the embedder is; by default where the decoder's run had it", None)
    embeddings: list[str] = option(
        "vectors of the texts, a row a line: folders of `encode`, .npy, .safetensors or .parquet files, faiss "
        "indexes (.faiss), lancedb:folder/table, or postgresql://user@host/database; by default the embedder makes "
        "them",
        [],
    )
    corpus: list[str] = option("texts that an attacker may have (files or globs); the nearest one is a control", [])
    limit: int = count("most texts, drawn at random", 1000)
    corpus_limit: int = count("most texts of the corpus, its first", 100_000)
    sts: bool = option("score on the STS benchmark what defences leave of similarity", False)
    data: str | None = option("folder with senteval/, for --sts; by default HF_MEANMAX_DATA", None)
    trust_remote_code: bool = option("run code that comes with the embedder", False)


def audit_checkpoint(
    source: AuditSource,
    output: str | os.PathLike[str],
    attack: DecodingSettings | None = None,
    settings: AuditSettings | None = None,
    device: torch.device | str | None = None,
    show_progress: bool = True,
) -> Json:
    """Audits an embedder with a decoder of its vectors, and writes `audit.html` and `audit.json`.

    Args:
        source: the texts and models.
        output: the folder to write to; its files are only replaced at the end.
        attack, settings: by default `DecodingSettings()` and `AuditSettings()`.
        device: where the models run.
        show_progress: show progress bars.

    Returns:
        The result of [`~hf_meanmax.evaluation.audit.audit`].

    Raises:
        FileNotFoundError: a model or a file is missing.
        FileExistsError: `output` is a file.
        ValueError: texts and vectors do not fit together; the decoder belongs to another embedder; there is no text.
        ImportError: matplotlib is not installed.
    """
    attack, settings = attack or DecodingSettings(), settings or AuditSettings()
    pairs = _prepare(source, output, settings)
    sources = open_sources(source.embeddings, source)
    model, _, tokenizer = load_decoder(source.decoder, device or "cpu")
    attack = replace(attack, compute_dtype=compute_dtype(attack.compute_dtype, model.device))
    embedder = _load_embedder(source, attack, model)
    texts, rows = _draw_texts(source, sources, settings.seed)
    others = chain.from_iterable(source.open_beside(name) for name in source.corpus)
    corpus = list(islice(filter(None, others), source.corpus_limit))

    def make_vectors(texts: Sequence[str], what: str) -> np.ndarray:
        if embedder is None:
            raise ValueError("The vectors need the embedder; name it.")
        return embed(embedder, texts, attack.batch_size, show_progress, what)

    vectors = _read_vectors(sources, rows, model) if sources else make_vectors(texts, "texts")
    refuse_scaled(vectors, model.config)
    cosine = None
    if source.embeddings and embedder is not None:
        # Spread over the files: after a missing row, all vectors belong to other texts.
        places = np.linspace(0, len(texts) - 1, min(len(texts), _COMPARED)).astype(int).tolist()
        cosine = _compare(vectors[places], make_vectors([texts[place] for place in places], "some texts"))
    model.to(COMPUTE_DTYPES[attack.compute_dtype])
    result = audit(
        _decoder(model, tokenizer, embedder, attack, show_progress), texts, vectors, word_cutter(tokenizer, texts),
        embed=None if embedder is None else make_vectors, corpus=corpus, pairs=pairs, settings=settings,
    )  # fmt: skip
    write_audit(result, _record(source, sources, attack, settings, model, len(corpus), cosine), output)
    return result


def _prepare(source: AuditSource, output: str | os.PathLike[str], settings: AuditSettings) -> LabelledSet | None:
    """Checks early what would make the audit fail late; returns the STS pairs, if they are needed."""
    if Path(output).exists() and not Path(output).is_dir():
        raise FileExistsError(f"{output} is a file; name a folder.")
    if source.vector_column and not source.embeddings:
        raise ValueError(
            f"`vector_column` is {source.vector_column!r}, which is of `embeddings`. Give both, or neither."
        )
    new_figure()
    if not source.sts:
        if source.data:
            raise ValueError(f"`data` is {source.data!r}, which is for `sts`. Give both, or neither.")
        return None
    if not settings.defence_texts:
        raise ValueError("`sts` scores the defences; let `defence_texts` be greater than 0.")
    return stsb_pairs(source.data)


def _load_embedder(source: AuditSource, attack: DecodingSettings, model: PreTrainedModel) -> SentenceTransformer | None:
    """The embedder if it is needed or named, or if it is the autoencoder's own encoder; None otherwise."""
    needed = not source.embeddings or source.corpus or source.sts or attack.rerank is not None
    if needed or source.embedder or (model.config.reads_text and not gives_other_vectors(model, source.decoder)):
        return embedder_of(model, source.decoder, source.embedder, model.device, source.trust_remote_code)
    remedy = "" if model.config.reads_text else " Name the embedder, and some of them are compared with its own."
    print(f"The vectors are taken to be of these texts in this order.{remedy}", file=sys.stderr)
    return None


def _draw_texts(source: AuditSource, sources: Sequence[VectorSource], seed: int) -> tuple[list[str], np.ndarray]:
    """Draws texts that are not blank; returns them with their rows in the vectors."""
    lines = CorpusLines(source.open_texts(source.texts))
    is_filled = np.fromiter(map(bool, lines), bool)
    filled = np.flatnonzero(is_filled)
    if not len(filled):
        raise ValueError(f"{', '.join(source.texts)}: there is no text; every line is blank.")
    count = sum(one.rows for one in sources) if sources else len(filled)
    # The vectors may be of all lines, or only of those that are not blank.
    if count not in (len(is_filled), len(filled)):
        raise ValueError(
            f"{sources_named(sources)}: {count:,} vectors for {len(is_filled):,} lines, of which {len(filled):,} are "
            "not blank. Give a vector for each line."
        )
    rows = filled if count == len(is_filled) else np.arange(count)
    drawn = np.sort(np.random.default_rng(seed).permutation(len(filled))[: source.limit])
    wanted = set(filled[drawn].tolist())
    texts = [line for number, line in enumerate(lines) if number in wanted]
    return texts, rows[drawn]


def _read_vectors(sources: Sequence[VectorSource], rows: np.ndarray, model: PreTrainedModel) -> np.ndarray:
    check_sources(sources, model)
    vectors = take_rows(sources, rows)
    bad = rows[~np.isfinite(vectors).all(axis=1)]
    if len(bad):
        raise ValueError(
            f"Row {bad[0] + 1:,} of the vectors is not finite (NaN or infinite); {len(bad):,} of the {len(rows):,} "
            "audited are not. Leave them and their texts out."
        )
    return vectors


def _compare(vectors: np.ndarray, embedded: np.ndarray) -> float:
    """The mean cosine between vectors from files and the embedder's; warns on stderr if some differ."""
    if vectors.shape != embedded.shape:
        raise ValueError(
            f"The vectors have {vectors.shape[1]:,} numbers and those of the embedder {embedded.shape[1]:,}; name the "
            "embedder that made them."
        )
    cosines = paired_cosines(vectors, embedded)
    others = int((~(cosines >= _LEAST_COSINE)).sum())
    if others:
        print(
            f"{others} of {len(cosines)} vectors are not those that the embedder makes of their texts (mean cosine "
            f"{cosines.mean():.3f}): they were changed, or texts and vectors are not in the same order.",
            file=sys.stderr,
        )
    return float(cosines.mean())


def _decoder(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    embedder: SentenceTransformer | None,
    attack: DecodingSettings,
    show_progress: bool,
) -> Decode:
    corrector = attack.corrector(model, tokenizer, embedder)
    generation = attack.generation()

    def decode(vectors: np.ndarray, what: str) -> list[str]:
        progress = what if show_progress else None
        return decode_vectors(model, tokenizer, vectors, attack.batch_size, corrector, progress, **generation)

    return decode


def _record(
    source: AuditSource,
    sources: Sequence[VectorSource],
    attack: DecodingSettings,
    settings: AuditSettings,
    model: PreTrainedModel,
    corpus: int,
    cosine: float | None,
) -> Json:
    """The settings of an audit, with paths shortened to their last part."""
    named = {
        "decoder": shared_name(source.decoder),
        "embedder": shared_name(source.embedder) or (getattr(model.config, "embedder", None) or {}).get("name"),
        **{name: [shared_name(part) for part in getattr(source, name)] or None for name in ("texts", "corpus")},
        "embeddings": [shared_name(one.name) for one in sources] or None,
    }
    rest = {"corpus_texts": corpus, "cosine_with_embedder": cosine, "hf_meanmax": __version__}
    return {**named, "limit": source.limit, "sts": source.sts, **asdict(attack), **asdict(settings), **rest}
