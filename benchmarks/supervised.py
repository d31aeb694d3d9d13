"""Classifiers side by side on one set of labelled texts: mean and standard deviation of the accuracy over seeds.

    python benchmarks/supervised.py heads --train yelp.train.tsv --validation yelp.validation.tsv --test yelp.test.tsv \
        --word_vectors vectors.safetensors --output results/yelp
    python benchmarks/supervised.py labels --checkpoint runs/books/model --train ... --output results/curve

`heads`: one head and many, with and without the penalty, against maximum and mean-max pooling on the same BiLSTM.
`labels`: 100, 1,000 and all examples, from a checkpoint's encoder, from its word vectors alone, and from random
weights; fewer examples are passed over more often. Both beside logistic regression on TF-IDF. With several
`--learning_rates` each run is the one that is best on the validation set. Other settings of scripts/finetune.py can
follow. A run that is in the output folder is not repeated.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from hf_meanmax.data.labelled import LabelledTexts
from hf_meanmax.evaluation.markdown import markdown_table
from hf_meanmax.files import replacing_file
from hf_meanmax.reproduce.plan import folder_name
from hf_meanmax.reproduce.tables import format_mean
from hf_meanmax.training.finetune import claim, finetune, read_sets
from hf_meanmax.training.finetune_settings import FinetuneArguments
from hf_meanmax.training.recipes import (
    SettingsParser,
    arguments_from_settings,
    choice_of_family,
    family_of,
    split_recipe,
)

HEADS: dict[str, dict[str, Any]] = {
    "30 heads, penalty": {"latent_heads": 30},
    "30 heads": {"latent_heads": 30, "attention_penalty": 0},
    "1 head": {"latent_heads": 1, "attention_penalty": 0},
    "maximum": {"pooling": "max", "attention_penalty": 0},
    "mean and maximum": {"pooling": "mean_max", "attention_penalty": 0},
}
LABELS: dict[str, dict[str, Any]] = {
    f"{start}, {number or 'all'} examples": {"start": kept, "max_examples": number, "epochs": epochs}
    for number, epochs in ((100, 40), (1000, 15), (0, 5))
    for start, kept in (("pretrained", "encoder"), ("its word vectors", "word_embeddings"), ("random", "nothing"))
}
GRIDS = {"heads": HEADS, "labels": LABELS}


def tfidf_accuracy(args: FinetuneArguments) -> dict[str, float]:
    """Logistic regression on TF-IDF of words and pairs of words, its strength chosen on the validation set.

    Two texts have their features side by side.
    """
    import scipy.sparse
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    train, validation, test, _ = read_sets(args)
    started = time.perf_counter()
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2)
    vectorizer.fit([*train.texts, *(train.pairs or [])])

    def features_of(examples: LabelledTexts) -> Any:
        parts = [examples.texts] if examples.pairs is None else [examples.texts, examples.pairs]
        return scipy.sparse.hstack([vectorizer.transform(part) for part in parts], format="csr")

    features = features_of(train)
    best: tuple[float, Any] = (-1.0, None)
    for strength in (1.0, 10.0, 100.0):
        model = LogisticRegression(C=strength, max_iter=1000).fit(features, train.labels)
        best = max(best, (model.score(features_of(validation), validation.labels), model), key=lambda x: x[0])
    accuracy = best[1].score(features_of(test), test.labels)
    return {"validation": best[0], "test": accuracy, "minutes": (time.perf_counter() - started) / 60}


def run(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The results of a fine-tuning run, made now or before with the same settings; its checkpoints are not kept."""
    path = folder / "results.json"
    args = arguments_from_settings({**settings, "output_dir": str(folder)}, "", FinetuneArguments)
    claim(args, read_sets(args)[:3])
    if not path.is_file():
        finetune(args)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return json.loads(path.read_text(encoding="utf-8"))


def main(argv: list[str]) -> None:
    grid, words = split_recipe(argv)
    if grid not in GRIDS:
        raise SystemExit(f"{__doc__}\ngive one of {', '.join(GRIDS)}")
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--systems", nargs="+", default=list(GRIDS[grid]))
    parser.add_argument("--keep_models", action="store_true")
    parser.add_argument("--learning_rates", type=float, nargs="+", default=[])
    parser.add_argument("--output", type=Path, required=True)
    own, words = parser.parse_known_args(words)
    seeds, systems, output = own.seeds, own.systems, own.output
    options = SettingsParser(FinetuneArguments, family_of(choice_of_family(words))).read(words)
    for name in ("train", "test"):
        if name not in options:
            raise SystemExit(f"{__doc__}\n--{name} is missing")
    rows: dict[str, list[dict[str, Any]]] = {}
    for seed in seeds:
        for name in systems:
            folder = output / f"{folder_name(name)}-{seed}"
            settings = {**options, **GRIDS[grid][name], "seed": seed}
            if own.learning_rates:
                tried = [
                    run({**settings, "learning_rate": rate}, folder / str(rate)) | {"learning_rate": rate}
                    for rate in own.learning_rates
                ]
                found = max(tried, key=lambda one: one["validation"]["accuracy"])
            else:
                found = run(settings, folder)
            if not own.keep_models and seed != seeds[0]:
                for model in folder.glob("**/model"):
                    shutil.rmtree(model)
            rows.setdefault(name, []).append(found)
            print(f"{name}, seed {seed}: test {found['test']['accuracy']:.4f}", flush=True)
            write(output, rows)
    for number in sorted({GRIDS[grid][name].get("max_examples", options.get("max_examples", 0)) for name in systems}):
        settings = {key: value for key, value in options.items() if key in FinetuneArguments.__dataclass_fields__}
        found = []
        for seed in seeds if number else seeds[:1]:
            told = {**settings, "max_examples": number, "seed": seed, "output_dir": str(output)}
            scores = tfidf_accuracy(arguments_from_settings(told, "", FinetuneArguments))
            found.append({"test": {"accuracy": scores["test"]}, "validation": {"accuracy": scores["validation"]},
                          "minutes": scores["minutes"]})  # fmt: skip
        rows[f"TF-IDF, {number or 'all'} examples" if grid == "labels" else "TF-IDF"] = found
    write(output, rows)
    print((output / "table.md").read_text(encoding="utf-8"))


def write(output: Path, rows: dict[str, list[dict[str, Any]]]) -> None:
    """The table and the numbers of what is done."""
    lines = []
    for name, found in rows.items():
        line = [name]
        for part in ("validation", "test"):
            values = [100 * one[part]["accuracy"] for one in found]
            line.append(format_mean(values, 1))
        penalties = [one["test"]["attention_penalty"] for one in found if "attention_penalty" in one["test"]]
        line.append(f"{np.mean(penalties):.1f}" if penalties else "")
        parameters = found[0].get("classifier_parameters")
        line.append("" if parameters is None else f"{parameters / 1e6:.1f}")
        line.append(f"{np.mean([one['minutes'] for one in found]):.1f}")
        lines.append([*line, str(len(found))])
    header = ["system", "validation", "test", "overlap of heads", "head, M parameters", "minutes", "seeds"]
    with replacing_file(output / "table.md") as file:
        file.write(markdown_table(header, lines, "lrrrrrr") + "\n")
    with replacing_file(output / "numbers.json") as file:
        json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main(sys.argv[1:])
