"""Scores of generated texts against their references: BLEU, chrF, ROUGE, exact matches.

The scores are the same for reconstructions and translations, also by the length of the reference (Zhang, Wu, Li and
Zhang, figure 2). They come from sacrebleu and rouge-score where possible.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count, pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from hf_meanmax.data.sentences import CJK, has_ideographs, is_unsegmented
from hf_meanmax.evaluation.markdown import markdown_table
from hf_meanmax.extras import require
from hf_meanmax.fields import check_choice
from hf_meanmax.files import Json
from hf_meanmax.metrics import LENGTH_METRICS, count_label, length_bins
from hf_meanmax.tokenization.tokenizers import is_character_level, is_word_level

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# sacrebleu's tokenisations for BLEU; its others need the network or further packages.
Tokenization = Literal["none", "13a", "intl", "zh", "char"]

_ROUGE_TYPES = ("rouge1", "rouge2", "rougeL")
_NGRAM = 4
_MOST_BINS = 10


@dataclass(frozen=True, kw_only=True)
class TextScores:
    """Scores of texts against one reference each.

    Attributes:
        bleu: corpus BLEU (0-100) by sacrebleu; 0 if no text has four tokens.
        chrf: corpus chrF2 (0-100) by sacrebleu, on characters other than white space.
        rouge1, rouge2, rougeL: mean F1 over the texts (0-100) by rouge-score; a text without the n-gram in question,
            such as a single word in ROUGE-2, counts as 0. None if ROUGE was not computed.
        exact_match: share (0-1) of texts that equal their reference.
        token_accuracy: share (0-1) of the references' tokens, in BLEU's tokenisation, that were generated at the same
            position; 0 if the references have no token.
        sentences: number of texts.
        signatures: settings and library versions of the scores: sacrebleu's signatures for `bleu` and `chrf`, and one
            of the same form for `rouge`.
    """

    bleu: float
    chrf: float
    rouge1: float | None = None
    rouge2: float | None = None
    rougeL: float | None = None
    exact_match: float
    token_accuracy: float
    sentences: int
    signatures: dict[str, str]

    def to_dict(self) -> Json:
        """The scores that were computed, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def tokenization_of(texts: Sequence[str], spaced: str) -> str:
    """BLEU's tokenisation of raw texts: by character in scripts without spaces between words (`"zh"` for Chinese and
    Japanese, which keeps words of other scripts, `"char"` for Thai and the like), otherwise `spaced`."""
    if not is_unsegmented(texts):
        return spaced
    return "zh" if has_ideographs(texts) else "char"


def tokenization_under(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> str:
    """The tokenisation in which to score a model with this tokenizer: `"none"`, the tokenizer's own, if that gives
    words, or characters of a script without spaces between words; otherwise one of sacrebleu's."""
    if not is_word_level(tokenizer):
        return tokenization_of(texts, "none")
    return "13a" if is_character_level(tokenizer) and not is_unsegmented(texts) else "none"


class RougeTokenizer:
    """Splits texts for ROUGE: lower-cased words of letters and digits of any script, each CJK character by itself.

    On ASCII text it equals rouge-score's tokenizer, which drops letters outside ASCII.
    """

    def __init__(self) -> None:
        from tokenizers import Regex, pre_tokenizers

        pattern = rf"[{CJK}]|[\p{{L}}\p{{N}}\p{{M}}\u200c\u200d&&[^{CJK}]]+"
        self._splitter = pre_tokenizers.Split(Regex(pattern), behavior="removed", invert=True)

    def tokenize(self, text: str) -> list[str]:
        """The words of a text."""
        return [word for word, _ in self._splitter.pre_tokenize_str(text.lower())]


def score_texts(
    hypotheses: Sequence[str],
    references: Sequence[str],
    tokenize: str = "none",
    *,
    rouge: bool | None = None,
) -> TextScores:
    """Scores texts against one reference each.

    Args:
        hypotheses: the generated texts.
        references: the true texts, in the same order. Both may contain empty texts.
        tokenize: tokenisation for BLEU and token accuracy: `"none"` (at white space, for text that is already split
            into words), `"13a"` (sacrebleu's default for raw text), `"intl"`, `"zh"` (raw Chinese: by character, other
            scripts by word) or `"char"`. chrF and ROUGE do not depend on it.
        rouge: whether to compute ROUGE (default: if rouge-score is installed).

    Raises:
        ValueError: lists of different lengths, no text at all, an item that is not a string, or an unknown `tokenize`.
        ImportError: `rouge` is true and rouge-score is not installed.
    """
    from sacrebleu.metrics import BLEU, CHRF

    _check_texts(hypotheses, references, tokenize)
    if rouge is None:
        rouge = importlib.util.find_spec("rouge_score") is not None
    bleu, chrf = BLEU(tokenize=tokenize, force=True), CHRF()
    scores: Json = {
        # Rounding may exceed 100 slightly.
        "bleu": min(100.0, float(bleu.corpus_score(hypotheses, [references]).score)),
        "chrf": float(chrf.corpus_score(hypotheses, [references]).score),
        "exact_match": fmean(a == b for a, b in zip(hypotheses, references, strict=True)),
        "token_accuracy": _token_accuracy(_tokens(hypotheses, tokenize), _tokens(references, tokenize)),
    }
    signatures = {"bleu": str(bleu.get_signature()), "chrf": str(chrf.get_signature())}
    if rouge:
        scorer = require("rouge_score.rouge_scorer").RougeScorer(list(_ROUGE_TYPES), tokenizer=RougeTokenizer())
        scored = [scorer.score(true, generated) for generated, true in zip(hypotheses, references, strict=True)]
        scores |= {name: 100 * fmean(one[name].fmeasure for one in scored) for name in _ROUGE_TYPES}
        version = importlib.metadata.version("rouge-score")
        signatures["rouge"] = f"f1|mean|case:lc|tok:words+cjk|stem:no|version:{version}"
    return TextScores(**scores, sentences=len(references), signatures=signatures)


def scores_by_length(
    hypotheses: Sequence[str],
    references: Sequence[str],
    edges: Sequence[int] | None = None,
    tokenize: str = "none",
) -> list[Json]:
    """Scores by length of the reference, in bins of BLEU's tokens (Zhang, Wu, Li and Zhang, figure 2).

    Args:
        hypotheses, references, tokenize: as for [`score_texts`][].
        edges: the largest length in each bin, ascending: `(5, 10)` gives 1-5, 6-10 and, if there are longer texts, 11
            or more (default: `length_edges`).

    Returns:
        A dict for each bin that holds a text: `from`, `to` (None if the bin has no end), `count` of texts, `bleu`
        (None if no reference has the four tokens that BLEU needs), `chrf`, `exact_match` and `token_accuracy`. A
        text of length 0 belongs to the first bin, which then begins at 0.

    Raises:
        ValueError: as [`score_texts`][]; edges that are not ascending from 1 or more.
    """
    _check_texts(hypotheses, references, tokenize)
    lengths = [len(tokens) for tokens in _tokens(references, tokenize)]
    edges = length_edges(lengths) if edges is None else [int(edge) for edge in edges]
    if not edges or edges[0] < 1 or any(low >= high for low, high in pairwise(edges)):
        raise ValueError(f"edges is {tuple(edges)}; give ascending lengths from 1 on, for instance (5, 10, 20).")

    def score(inside: Sequence[int]) -> Json:
        chosen = [hypotheses[index] for index in inside], [references[index] for index in inside]
        scores = score_texts(*chosen, tokenize, rouge=False)
        return {name: getattr(scores, name) for name in LENGTH_METRICS}

    return score_bins(score, lengths, edges)


def score_bins(score: Callable[[Sequence[int]], Json], lengths: Sequence[int], edges: Sequence[int]) -> list[Json]:
    """The result of `score` for the texts of each non-empty bin of lengths, after `from`, `to` and `count`.

    Args:
        score: takes the indices of some texts; its `bleu` becomes None if none of them has the four tokens of BLEU.
        lengths: the lengths of all texts.
        edges: as for [`scores_by_length`].
    """
    bins = np.searchsorted(edges, lengths)
    rows = []
    for number in np.unique(bins).tolist():
        inside = np.flatnonzero(bins == number).tolist()
        found = [lengths[index] for index in inside]
        bounds: Json = {
            "from": edges[number - 1] + 1 if number else min(1, *found),
            "to": edges[number] if number < len(edges) else None,
            "count": len(inside),
        }
        scores = score(inside)
        rows.append(bounds | (scores if max(found) >= _NGRAM else {**scores, "bleu": None}))
    return rows


def length_edges(lengths: Sequence[int]) -> list[int]:
    """Edges of bins of equal round width (5, 10, 20, 25, 50, 100, ...) for [`scores_by_length`].

    At most ten bins cover the texts, except for the longest 1 % in an open last bin: bins are 5 wide for sentences of
    4-32 words, and 25 wide for paragraphs of 50-250 words.
    """
    ordered = sorted(lengths)
    shortest, top = max(1, ordered[0]), max(1, ordered[math.ceil(0.99 * len(ordered)) - 1])
    widths = (width * 10**power for power in count() for width in (5, 10, 20, 25))
    width = next(w for w in widths if math.ceil(top / w) - (shortest - 1) // w <= _MOST_BINS)
    return list(range(width, top + width, width))


def length_table(systems: Mapping[str, Sequence[Json]], metrics: Sequence[str] = ("bleu",)) -> str:
    """A Markdown table of scores by length.

    Args:
        systems: the results of [`scores_by_length`] by the name of the system.
        metrics: `"bleu"`, `"chrf"`, `"exact_match"`, `"token_accuracy"`.

    Raises:
        ValueError: an unknown metric, or no system.
    """
    bins = length_bins(systems, metrics)
    columns = [(system, metric) for system in systems for metric in metrics]
    names = [
        " ".join([system] * (len(systems) > 1) + [LENGTH_METRICS[metric][0]] * (len(metrics) > 1 or len(systems) == 1))
        for system, metric in columns
    ]
    rows = []
    for label, found in bins:
        values = [found[system][metric] if system in found else None for system, metric in columns]
        cells = [
            "-" if v is None else LENGTH_METRICS[m][1].format(v) for v, (_, m) in zip(values, columns, strict=True)
        ]
        rows.append([label, count_label(found), *cells])
    return markdown_table(["length", "texts", *names], rows, "l" + "r" * (1 + len(names))) + "\n"


def _check_texts(hypotheses: Sequence[str], references: Sequence[str], tokenize: str) -> None:
    check_choice("tokenize", tokenize, get_args(Tokenization))
    for name, texts in (("hypotheses", hypotheses), ("references", references)):
        if isinstance(texts, str):
            raise ValueError(f"{name} is a single string; give a list of texts.")
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise ValueError(f"{name}[{index}] is {type(text).__name__}; every text must be a string.")
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses):,} hypotheses for {len(references):,} references; give one for each.")
    if not references:
        raise ValueError("There is no text to score: both lists are empty.")


def _tokens(texts: Sequence[str], tokenize: str) -> list[list[str]]:
    """The tokens of each text for BLEU."""
    from sacrebleu.metrics import BLEU

    cut = BLEU(tokenize=tokenize, force=True).tokenizer
    return [cut(text.rstrip()).split() for text in texts]


def _token_accuracy(hypotheses: list[list[str]], references: list[list[str]]) -> float:
    total = sum(map(len, references))
    same = sum(
        a == b
        for generated, true in zip(hypotheses, references, strict=True)
        for a, b in zip(generated, true, strict=False)
    )
    return same / total if total else 0.0
