"""How much of their texts an embedder's vectors leak: recovery by a decoder, with controls and defences."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hf_meanmax.cosines import paired_cosines
from hf_meanmax.data.sentences import is_unsegmented
from hf_meanmax.fields import check_settings, count, option
from hf_meanmax.files import Json

from .defences import KEPT_SHARES, NOISE_LEVELS, Defence, check_levels, make_defences
from .neighbors import nearest
from .recovery import Cut, References, ignores_case, pick_examples, recovery_by_length, score_recovery, token_f1
from .relatedness import correlations
from .senteval import load_senteval_task
from .senteval_files import LabelledSet
from .suite import data_folder

# Vectors (N, D) to N texts, and texts to vectors; the second argument is the label of a progress bar.
Decode = Callable[[np.ndarray, str], list[str]]
Encode = Callable[[Sequence[str], str], np.ndarray]

# Limits of the scores, printed in the page and written to the file.
LIMITS = (
    "These scores are a lower bound of what the vectors reveal. They are of one decoder; a larger one, one trained on "
    "more texts or on texts like these, with beams or with corrections, recovers more.",
    "An exact match of 0 is no proof of safety. Names, numbers, topics or single words may come back where no "
    "sentence does, and what a text is about can be read from a vector without any decoder, by a classifier or by "
    "search.",
    "The defences were not attacked adaptively. The decoder has learnt from whole vectors; one that was trained on "
    "noisy, shortened or quantised vectors recovers more from those, so the fall in recovery overstates what a defence "
    "takes away.",
    "The texts are a sample. Others, longer ones or ones nearer to what the decoder was trained on, may come back "
    "better or worse, and a mean says nothing about the single text that matters.",
    "Texts that the decoder was trained on, or that `align` fitted its map to, come back more often than new ones. "
    "Where such texts are among these, the figures are too high.",
    "Numbers, names and rare words are found by simple rules (a digit, a capital inside a sentence, a count). A word "
    "that came back may be a guess from the others; the controls show how often guesses succeed.",
)
# Least gain in token F1 over another text's vector; a decoder below it is too weak for conclusions.
_LEAST_GAIN = 0.02
_FEW_TEXTS = 200
_PAIRS = "STS benchmark, test"


@dataclass
class AuditSettings:
    """Settings of an audit.

    Raises:
        ValueError: a number is out of range.
    """

    defence_texts: int = option("texts, drawn at random, on which defences are tried (0: none)", 500, at_least=0)
    noise_levels: list[float] = option(
        "lengths of Gaussian noise, as shares of the mean length of a vector", list(NOISE_LEVELS)
    )
    kept_shares: list[float] = option(
        "shares of the dimensions that are kept, by PCA and from the front", list(KEPT_SHARES)
    )
    examples: int = count("most examples of each group", 5)
    seed: int = option("seed of everything that is drawn", 0, at_least=0)

    def __post_init__(self) -> None:
        check_settings(self)
        check_levels(self.noise_levels, self.kept_shares)


def stsb_pairs(data: str | None = None) -> LabelledSet:
    """The test set of the STS benchmark: pairs of texts with their similarity.

    Args:
        data: the folder with `senteval/` (default: HF_MEANMAX_DATA).

    Raises:
        FileNotFoundError: the folder is not named, or lacks the files.
        ValueError: a file is damaged.
    """
    return load_senteval_task("STSB", data_folder(data)).sets["test"]


def audit(
    decode: Decode,
    texts: Sequence[str],
    vectors: np.ndarray,
    cut: Cut,
    *,
    embed: Encode | None = None,
    corpus: Sequence[str] = (),
    pairs: LabelledSet | None = None,
    settings: AuditSettings | None = None,
) -> Json:
    """Measures how much of texts a decoder recovers from their vectors.

    Args:
        decode: the attacker's decoder.
        texts: the embedded texts.
        vectors: the vectors of the texts, `(N, D)`.
        cut: splits texts into the words to compare (see `word_cutter`).
        embed: the embedder; without it there are no controls "nearest text" and "shuffled words", and no similarity.
        corpus: texts that the attacker has. The nearest of them is a control, rare words are counted in them, and
            defences are fitted to their vectors.
        pairs: pairs of the STS benchmark, to measure the similarity that remains under each defence.
        settings: by default `AuditSettings()`.

    Returns:
        `texts`, `words_per_text`, `case` (`"ignored"` or `"kept"`), `rare_count`, `counted_words`; `decoder`: the
        scores of `score_recovery`, and `by_length`; `controls`: the same for each control; `texts_in_corpus`;
        `defences`: a list of dicts with `kind`, `name`, `num_bytes`, the scores and, with pairs, `spearman`;
        `defences_fitted_on`, `pairs`; `examples`; `warnings` if the decoder is too weak for conclusions; and `limits`.

    Raises:
        ValueError: there is no text; texts and vectors differ in number; or the decoder rejects a vector or it is not
            finite.
    """
    settings = settings or AuditSettings()
    _check(texts, vectors, embed, corpus, pairs)
    corpus_words = corpus if len(corpus) else None
    references = References.of(texts, cut, corpus_words)
    decoded = decode(vectors, "decode")
    recovered = cut(decoded)
    result: Json = {
        "texts": len(texts),
        "words_per_text": float(np.mean([len(words) for words in references.words])),
        "case": "ignored" if ignores_case(cut) else "kept",
        "rare_count": references.rare_count,
        "counted_words": references.counted_words,
        "decoder": _scores(recovered, references),
    }
    pool = None if embed is None or not len(corpus) else embed(corpus, "corpus")
    hypotheses = _controls(decode, texts, decoded, vectors, settings.seed, embed, corpus, pool)
    result["controls"] = {name: _scores(cut(found), references) for name, found in hypotheses.items()}
    known = set(corpus)
    result["texts_in_corpus"] = sum(text in known for text in texts) if known else None
    result["pairs"] = None if pairs is None else {"name": _PAIRS, "number": len(pairs)}
    result["defences"] = []
    if settings.defence_texts:
        result["defences_fitted_on"] = "texts" if pool is None else "corpus"
        defences = make_defences(
            vectors if pool is None else pool, settings.noise_levels, settings.kept_shares, settings.seed
        )
        rows = np.sort(np.random.default_rng(settings.seed).permutation(len(texts))[: settings.defence_texts])
        some, sides = references.select(rows.tolist()), None
        if embed is not None and pairs is not None:
            sides = np.split(embed([*pairs.texts[0], *pairs.texts[1]], _PAIRS), 2)
        for defence in defences:
            found = cut(decode(defence.restore(defence.store(vectors[rows])), f"decode {defence.name}"))
            row = {"kind": defence.kind, "name": defence.name, "num_bytes": defence.num_bytes}
            row |= score_recovery(found, some)
            if sides is not None and pairs is not None:
                row["spearman"] = _similarity(defence, sides, pairs.labels)
            result["defences"].append(row)
    # Among texts with all words recovered, those in the right order rank first.
    ranks = [(token_f1(a, b), a == b) for a, b in zip(recovered, references.words, strict=True)]
    result["examples"] = pick_examples(texts, decoded, ranks, settings.examples)
    result["warnings"] = _warnings(result["decoder"], result["controls"])
    few = f"With other texts than these {len(texts):,} every figure may differ by many points; audit some hundreds."
    result["limits"] = [*LIMITS, *([few] if len(texts) < _FEW_TEXTS else [])]
    return result


def _check(
    texts: Sequence[str], vectors: np.ndarray, embed: Encode | None, corpus: Sequence[str], pairs: LabelledSet | None
) -> None:
    if not len(texts):
        raise ValueError("There is no text to audit.")
    if vectors.ndim != 2 or len(vectors) != len(texts):
        raise ValueError(f"There are {len(texts):,} texts and vectors of shape {vectors.shape}; give one for each.")
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise ValueError(f"Vector {bad[0] + 1:,} is not finite (NaN or infinite); {len(bad):,} in all. Leave them out.")
    if pairs is not None and embed is None:
        raise ValueError("Pairs with scores need the embedder; name it, or leave them out.")
    if len(corpus) and embed is None:
        raise ValueError("The nearest text of a corpus needs the embedder; name it, or leave the corpus out.")


def _scores(decoded: list[list[str]], references: References) -> Json:
    return {**score_recovery(decoded, references), "by_length": recovery_by_length(decoded, references)}


def _controls(
    decode: Decode,
    texts: Sequence[str],
    decoded: Sequence[str],
    vectors: np.ndarray,
    seed: int,
    embed: Encode | None,
    corpus: Sequence[str],
    pool: np.ndarray | None,
) -> dict[str, list[str]]:
    """The text that each control recovers without the text's own vector, by the control's name."""
    found: dict[str, list[str]] = {}
    if pool is not None:
        found["nearest text"] = [corpus[row] for row in nearest(vectors, pool, "cosine").tolist()]
    if embed is not None:
        draws = random.Random(seed)
        # In text without spaces, characters are shuffled.
        parts = ((list(text), "") if is_unsegmented([text]) else (text.split(), " ") for text in texts)
        shuffled = [blank.join(draws.sample(words, len(words))) for words, blank in parts]
        found["shuffled words"] = decode(embed(shuffled, "shuffled words"), "decode shuffled words")
    if len(texts) > 1:
        # A cyclic shift of a random order, so that no text keeps its own vector. All vectors are decoded already.
        order = np.random.default_rng(seed).permutation(len(texts))
        other = np.empty_like(order)
        other[order] = np.roll(order, 1)
        found["another text's vector"] = [decoded[row] for row in other.tolist()]
    return found


def _warnings(decoder: Json, controls: dict[str, Json]) -> list[str]:
    """Warnings where a control shows that this decoder is too weak for conclusions."""
    found = []
    floor = controls.get("another text's vector")
    if floor and decoder["token_f1"] < floor["token_f1"] + _LEAST_GAIN:
        found.append(
            "This decoder scores hardly more with the right vector than with another text's: it reads next to nothing "
            "from the vectors. Nothing follows from these figures about what they reveal; use a decoder that was "
            "trained longer or on texts like these."
        )
    near = controls.get("nearest text")
    if near and near["token_f1"] > decoder["token_f1"]:
        found.append(
            "The nearest text of the corpus has more of the words than what was decoded: search reveals more than "
            "this decoder does."
        )
    return found


def _similarity(defence: Defence, embedded: Sequence[np.ndarray], gold: np.ndarray) -> float | None:
    """Spearman's rho between cosines of the stored vectors and gold scores; None if undefined."""
    first, second = (defence.store(side).astype(np.float64) for side in embedded)
    rho = correlations(paired_cosines(first, second), gold)[1]
    return rho if np.isfinite(rho) else None
