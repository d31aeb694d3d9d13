"""Compares translators: BLEU, the scores of their representations, and the correlations between them (Cifka 2018,
chapter 5).

The scores come from the output folders of `hf-meanmax evaluate`; BLEU is computed here and cached.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from hf_meanmax.checkpoint.folder import load_decoder
from hf_meanmax.data import Documents
from hf_meanmax.evaluation.correlations import MIN_MODELS, correlation_matrix
from hf_meanmax.evaluation.markdown import markdown_table, markdown_text
from hf_meanmax.evaluation.report import RESULTS, Results
from hf_meanmax.evaluation.text_scores import score_texts, tokenization_of
from hf_meanmax.files import Json, json_digest, read_json, replacing_file, write_json
from hf_meanmax.inference.fingerprints import weights_fingerprint
from hf_meanmax.inference.translate import check_translator, translate_corpus
from hf_meanmax.plots.correlations import plot_correlations
from hf_meanmax.plots.figures import save_figure, skip_figures_without_matplotlib

TABLE, NUMBERS, FIGURE = "translators.md", "translators.json", "correlations.png"
_PARAPHRASES = "paraphrases"


def score_translator(
    folder: str | os.PathLike[str],
    pairs: Mapping[str, tuple[Sequence[str], Sequence[str]]],
    batch_size: int = 64,
    known: Json | None = None,
) -> Json:
    """Cased BLEU (sacrebleu's 13a) of a checkpoint's greedy translations, with its architecture and size.

    Args:
        folder: a checkpoint that translates.
        pairs: source texts and their translations, by the name of the set.
        batch_size: texts translated together.
        known: an earlier result; sets are not translated again if the weights and the texts are the same.

    Returns:
        `architecture`, `heads`, `size` (of the representation, 0 if there is none), `BLEU NAME` of each set, and
        `fingerprint`, hashes of the weights and of each set's texts.

    Raises:
        FileNotFoundError, ValueError: as [`load_checkpoint`]; the checkpoint is no translator.
    """
    check_translator(folder)
    model, tokenizer, target_tokenizer = load_decoder(folder)
    config = model.config
    weights = weights_fingerprint(model)
    known = known or {}
    before = known.get("fingerprint", {})
    scores: Json = {
        "architecture": getattr(config, "architecture", None) or config.model_type,
        "heads": config.num_latents,
        "size": config.sentence_embedding_size,
        "fingerprint": {"weights": weights},
    }
    for name, (texts, references) in pairs.items():
        scores["fingerprint"][name] = json_digest([texts, references])
        if before.get("weights") == weights and before.get(name) == scores["fingerprint"][name]:
            scores[f"BLEU {name}"] = known[f"BLEU {name}"]
            continue
        corpus = Documents([texts])
        translations = list(translate_corpus(model, tokenizer, target_tokenizer, corpus, batch_size=batch_size))
        # Without the blank line that ends the document.
        scores[f"BLEU {name}"] = score_texts(
            translations[: len(texts)], references, tokenization_of(references, "13a"), rouge=False
        ).bleu
    return scores


def representation_scores(results: Results) -> dict[str, float]:
    """An encoder's scores as in the tables of Cifka 2018: the mean accuracy of the classification tasks, the mean
    correlation (times 100) of the similarity and relatedness tasks, and the metrics of the paraphrase clusters."""
    by_kind: dict[str, list[float]] = {"accuracy": [], "pearson": []}
    for task, found in results.scores.items():
        main = results.tasks[task]["main"]
        if main in by_kind:
            by_kind[main].append(found["metrics"][main])
    scores = {}
    if by_kind["accuracy"]:
        scores[f"mean accuracy of {len(by_kind['accuracy'])}"] = fmean(by_kind["accuracy"])
    if by_kind["pearson"]:
        scores[f"mean similarity of {len(by_kind['pearson'])}"] = 100 * fmean(by_kind["pearson"])
    for task, found in results.scores.items():
        if task == _PARAPHRASES:
            scores |= {f"{task} {name}": value for name, value in found["metrics"].items()}
    return scores


def compare_translators(
    folders: Mapping[str, str | os.PathLike[str]],
    pairs: Mapping[str, tuple[Sequence[str], Sequence[str]]],
    output: str | os.PathLike[str],
    results: str | os.PathLike[str] | None = None,
    batch_size: int = 64,
) -> dict[str, Json]:
    """Writes a table and the numbers of translators and, of three or more, the heat map of correlations between BLEU
    and the scores of the representations. Sets are not translated again by the same weights.

    Args:
        folders: checkpoints by the name of the system.
        pairs: source texts and their translations, by the name of the set.
        output: a folder.
        results: the output folder of `hf-meanmax evaluate` with a folder for each system; systems without a folder
            there, or without a representation, only have BLEU.
        batch_size: texts translated together.

    Returns:
        The scores of each system.
    """
    output = Path(output)
    path = output / NUMBERS
    known = read_json(path) if path.is_file() else {}
    if results is not None:
        _check_results(Path(results), folders)
    systems: dict[str, Json] = {}
    for name, folder in folders.items():
        found = score_translator(folder, pairs, batch_size, known.get(name))
        if results is not None and (own := Path(results) / name / RESULTS).is_file():
            found |= representation_scores(Results.load(own))
        systems[name] = found
        write_json(path, {**known, **systems})
    metrics = list(dict.fromkeys(key for scores in systems.values() for key in scores))
    metrics = [key for key in metrics if key not in ("fingerprint", "architecture", "heads", "size")]
    rows = [
        [
            markdown_text(name),
            str(scores["heads"] or ""),
            str(scores["size"] or ""),
            *(f"{scores[key]:.2f}" if _is_score(scores.get(key)) else "" for key in metrics),
        ]
        for name, scores in systems.items()
    ]
    with replacing_file(output / TABLE) as file:
        header = ["system", "rows", "size", *(key.replace("_", " ") for key in metrics)]
        file.write(markdown_table(header, rows, "l" + "r" * (len(header) - 1)) + "\n")
    if len(systems) >= MIN_MODELS:
        # As in Cifka 2018, the number of rows is correlated too; a system without a representation has none.
        shown = {
            name: {"rows": scores["heads"] or None, **{key: scores.get(key) for key in metrics}}
            for name, scores in systems.items()
        }
        names, matrix = correlation_matrix(shown)
        with skip_figures_without_matplotlib(f"{FIGURE} was not drawn."):
            save_figure(plot_correlations([name.replace("_", " ") for name in names], matrix), output / FIGURE)
    return systems


def _check_results(results: Path, names: Iterable[str]) -> None:
    if not any((results / name / RESULTS).is_file() for name in names):
        raise FileNotFoundError(
            f"{os.fspath(results)!r} has no folder with {RESULTS} of {', '.join(names)}; give the output folder of "
            "`hf-meanmax evaluate`, and NAME=FOLDER by its names."
        )


def _is_score(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
