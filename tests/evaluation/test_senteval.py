"""SentEval tasks against plain scikit-learn and scipy versions of their protocols, on small folders."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold

from evaluation.senteval_folder import ENTAILMENT, STS_SETS, TREC_CLASSES, Bag, Shuffled, perfect, write_senteval_folder
from hf_meanmax.evaluation.relatedness import fit_relatedness
from hf_meanmax.evaluation.senteval import (
    PAPER_TASKS,
    SENTEVAL_TASKS,
    CrossValidationTask,
    available_senteval_tasks,
    averages,
    load_senteval_task,
)
from hf_meanmax.evaluation.senteval_files import downstream
from hf_meanmax.evaluation.tasks import TaskResult
from hf_meanmax.metrics import SENTEVAL

FOLDS = 3
POLARITY = {
    "MR": ("rt-polarity.pos", "rt-polarity.neg"),
    "CR": ("custrev.pos", "custrev.neg"),
    "SUBJ": ("subj.objective", "subj.subjective"),
    "MPQA": ("mpqa.pos", "mpqa.neg"),
}
CLASSIFICATION = [name for name in SENTEVAL_TASKS if not name.startswith("STS") and name != "SICK-R"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_senteval_folder(tmp_path_factory.mktemp("senteval"))


@pytest.fixture
def copy(folder, tmp_path) -> Path:
    """A folder that a test may damage."""
    return shutil.copytree(folder / "downstream", tmp_path / "downstream")


def load(name: str, folder: Path):
    return load_senteval_task(name, folder, check_counts=False, folds=FOLDS)


class Recorded:
    def __init__(self, embed):
        self.embed, self.asked = embed, []

    def __call__(self, texts):
        self.asked += texts
        return self.embed(texts)


# The protocols again, without regard to time.


def by_length(rows):
    return sorted(rows, key=lambda row: (*(len(text.split()) for text in row[:-1]), row[-1]))


def read(folder: Path, name: str) -> dict[str, list[tuple]]:
    """Sorted rows (text, ..., label) of each set."""
    root = folder / "downstream"
    if name in POLARITY:
        rows = []
        for file, label in zip(POLARITY[name], (1, 0), strict=True):
            rows += [(line, label) for line in (root / name / file).read_text("latin-1").splitlines()]
        return {"all": by_length(rows)}
    if name == "SNLI":
        found = {}
        for part in ("train", "dev", "test"):
            columns = [(root / f"SNLI/{kind}.{part}").read_text().splitlines() for kind in ("s2", "s1", "labels")]
            rows = by_length(zip(*columns, strict=True))
            numbers = {"entailment": 0, "neutral": 1, "contradiction": 2}
            found[part] = [(first, second, numbers[label]) for second, first, label in rows]
        return found
    parse, files = {
        "SST2": (
            lambda line: (line.split("\t")[0], int(line.split("\t")[1])),
            {part: f"SST/binary/sentiment-{part}" for part in ("train", "dev", "test")},
        ),
        "SST5": (
            lambda line: (line[2:], int(line[0])),
            {part: f"SST/fine/sentiment-{part}" for part in ("train", "dev", "test")},
        ),
        "TREC": (
            lambda line: (line.split(" ", 1)[1], TREC_CLASSES.index(line.split(":")[0])),
            {"train": "TREC/train_5500.label", "test": "TREC/TREC_10.label"},
        ),
        "MRPC": (
            lambda line: (*line.split("\t")[3:5], int(line[0])),
            {part: f"MRPC/msr_paraphrase_{part}.txt" for part in ("train", "test")},
        ),
        "SICK-E": (
            lambda line: (*line.split("\t")[1:3], ENTAILMENT.index(line.split("\t")[4])),
            {"train": "SICK/SICK_train.txt", "dev": "SICK/SICK_trial.txt", "test": "SICK/SICK_test_annotated.txt"},
        ),
        "SICK-R": (
            lambda line: (*line.split("\t")[1:3], float(line.split("\t")[3])),
            {"train": "SICK/SICK_train.txt", "dev": "SICK/SICK_trial.txt", "test": "SICK/SICK_test_annotated.txt"},
        ),
        "STSB": (
            lambda line: (*line.split("\t")[5:7], float(line.split("\t")[4])),
            {part: f"STS/STSBenchmark/sts-{part}.csv" for part in ("train", "dev", "test")},
        ),
    }[name]
    header = name in ("MRPC", "SICK-E", "SICK-R")
    return {
        part: by_length(map(parse, (root / file).read_text().splitlines()[header:])) for part, file in files.items()
    }


def features(rows, embed, name="") -> np.ndarray:
    columns = list(zip(*rows, strict=True))[:-1]
    if len(columns) == 1:
        return embed(columns[0])
    u, v = (embed(column) for column in columns)
    if name == "SNLI":
        return np.hstack([u, v, u * v, np.abs(u - v)])
    return np.hstack([np.abs(u - v), u * v])


def labels(rows) -> np.ndarray:
    return np.array([row[-1] for row in rows])


def fit(X, y, C) -> LogisticRegression:
    return LogisticRegression(C=C, max_iter=2000).fit(X, y)


def folds_of(X, y):
    return StratifiedKFold(FOLDS, shuffle=True, random_state=1111).split(X, y)


def cross_validated(X, y, strengths):
    scores = []
    for C in strengths:
        accuracies = [fit(X[train], y[train], C).score(X[held], y[held]) for train, held in folds_of(X, y)]
        scores.append(round(100 * np.mean(accuracies), 2))
    return strengths[int(np.argmax(scores))], max(scores)


def nested_reference(X, y):
    """Test accuracy, dev accuracy, the strength of each fold, and whether each item was right."""
    strengths = [2.0**t for t in range(-2, 4)]
    dev, test, chosen, correct = [], [], [], np.full(len(y), np.nan)
    for train, held in folds_of(X, y):
        C, score = cross_validated(X[train], y[train], strengths)
        model = fit(X[train], y[train], C)
        correct[held] = model.predict(X[held]) == y[held]
        dev.append(score)
        chosen.append(C)
        test.append(round(100 * model.score(X[held], y[held]), 2))
    return round(np.mean(test), 2), round(np.mean(dev), 2), chosen, correct


@pytest.mark.parametrize("name", POLARITY)
def test_nested_cross_validation_agrees_with_scikit_learn(folder, name):
    rows = read(folder, name)["all"]
    accuracy, dev, chosen, correct = nested_reference(features(rows, Bag()), labels(rows))
    result = load(name, folder).evaluate(Bag())
    item = 100 / len(rows)
    assert result.metrics["accuracy"] == pytest.approx(accuracy, abs=2 * item)
    assert result.metrics["dev_accuracy"] == pytest.approx(dev, abs=2 * item)
    assert (result.items["correct"] != correct).sum() <= 2
    assert sum(ours == theirs for ours, theirs in zip(result.details["C"], chosen, strict=True)) >= FOLDS - 1
    assert 55 < accuracy < 100
    assert result.num_test == len(rows) == 60


@pytest.mark.parametrize("name", ["TREC", "MRPC"])
def test_cross_validation_on_train_agrees_with_scikit_learn(folder, name):
    sets = read(folder, name)
    X, y = features(sets["train"], Bag()), labels(sets["train"])
    C, dev = cross_validated(X, y, [2.0**t for t in range(-1, 6)])
    predicted = fit(X, y, C).predict(features(sets["test"], Bag()))
    gold = labels(sets["test"])
    result = load(name, folder).evaluate(Bag())
    item = 100 / len(gold)
    assert result.metrics["accuracy"] == pytest.approx(100 * (predicted == gold).mean(), abs=2 * item)
    assert result.metrics["dev_accuracy"] == pytest.approx(dev, abs=2 * 100 / len(y))
    assert result.details["C"] == C
    assert (result.items["correct"] != (predicted == gold)).sum() <= 2
    assert result.num_test == len(gold) == 60
    if name == "MRPC":
        assert result.metrics["f1"] == pytest.approx(100 * f1_score(gold, predicted), abs=2 * item)
    else:
        assert "f1" not in result.metrics


@pytest.mark.parametrize("name", ["SST2", "SST5", "SICK-E", "SNLI"])
def test_choice_on_the_development_set_agrees_with_scikit_learn(folder, name):
    sets = read(folder, name)
    # Without a penalty only classes that overlap have a finite minimum: few features.
    embed, strengths = (Bag(2), [1e9]) if name == "SNLI" else (Bag(), [2.0**t for t in range(-2, 4)])
    X, y = ({part: make(rows) for part, rows in sets.items()} for make in (lambda r: features(r, embed, name), labels))
    models = [fit(X["train"], y["train"], C) for C in strengths]
    scores = [round(100 * model.score(X["dev"], y["dev"]), 2) for model in models]
    best = int(np.argmax(scores))
    correct = models[best].predict(X["test"]) == y["test"]
    result = load(name, folder).evaluate(embed)
    item = 100 / 60
    assert result.metrics["accuracy"] == pytest.approx(100 * correct.mean(), abs=2 * item)
    assert result.metrics["dev_accuracy"] == pytest.approx(scores[best], abs=2 * item)
    assert result.details["C"] == strengths[best]
    assert (result.items["correct"] != correct).sum() <= 2
    assert result.num_test == 60


@pytest.mark.parametrize("name", ["SICK-R", "STSB"])
def test_relatedness_is_the_layer_on_the_pair_features(folder, name):
    sets = read(folder, name)
    model = fit_relatedness(
        features(sets["train"], Bag()), labels(sets["train"]), features(sets["dev"], Bag()), labels(sets["dev"])
    )
    predicted, gold = model.predict(features(sets["test"], Bag())), labels(sets["test"])
    result = load(name, folder).evaluate(Bag())
    assert result.metrics["pearson"] == pytest.approx(pearsonr(predicted, gold)[0], abs=1e-6)
    assert result.metrics["spearman"] == pytest.approx(spearmanr(predicted, gold)[0], abs=1e-3)
    assert result.metrics["mse"] == pytest.approx(((predicted - gold) ** 2).mean(), abs=1e-6)
    assert np.allclose(result.items["predicted"], predicted, atol=1e-6)
    assert np.array_equal(result.items["gold"], gold)


@pytest.mark.parametrize("year", STS_SETS)
def test_similarity_is_the_correlation_of_cosines_by_data_set(folder, year):
    pearsons, spearmans, sizes, cosines = [], [], [], []
    for name in STS_SETS[year]:
        stem = folder / f"downstream/STS/STS{year}-en-test"
        lines = (stem / f"STS.input.{name}.txt").read_text().splitlines()
        gold = (stem / f"STS.gs.{name}.txt").read_text().splitlines()
        rows = by_length(
            (*line.split("\t"), float(score)) for line, score in zip(lines, gold, strict=True) if score != ""
        )
        pairs = [(Bag()([a])[0], Bag()([b])[0]) for a, b, _ in rows]
        found = [u @ v / np.linalg.norm(u) / np.linalg.norm(v) for u, v in pairs]
        pearsons.append(pearsonr(found, labels(rows))[0])
        spearmans.append(spearmanr(found, labels(rows))[0])
        sizes.append(len(rows))
        cosines += found
    result = load(f"STS{year}", folder).evaluate(Bag())
    assert result.score == result.metrics["pearson"] == pytest.approx(np.mean(pearsons), abs=1e-5)
    assert result.metrics["spearman"] == pytest.approx(np.mean(spearmans), abs=1e-3)
    assert result.metrics["pearson_weighted"] == pytest.approx(np.average(pearsons, weights=sizes), abs=1e-5)
    assert result.metrics["spearman_weighted"] == pytest.approx(np.average(spearmans, weights=sizes), abs=1e-3)
    assert list(result.details["sets"]) == list(STS_SETS[year])
    assert [part["pearson"] for part in result.details["sets"].values()] == pytest.approx(pearsons, abs=1e-5)
    assert np.allclose(result.items["predicted"], cosines, atol=1e-5)
    assert np.bincount(result.items["group"]).tolist() == sizes
    assert result.num_test == sum(sizes)


@pytest.mark.parametrize("name", ["SICK-R", "STSB"])
def test_related_pairs_have_plain_cosines_too(folder, name):
    task = load(name, folder)
    embed = Bag()
    first, second = (embed(column).astype(np.float64) for column in task.sets["test"].texts)
    cosines = (first * second).sum(axis=1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    metrics = task.evaluate(embed).metrics
    assert metrics["cosine_pearson"] == pytest.approx(np.corrcoef(cosines, task.sets["test"].labels)[0, 1], abs=1e-5)
    assert metrics["cosine_spearman"] == pytest.approx(spearmanr(cosines, task.sets["test"].labels)[0], abs=1e-5)


@pytest.mark.parametrize("name", SENTEVAL_TASKS)
def test_exactly_the_listed_sentences_are_embedded_and_a_perfect_encoder_wins(folder, name):
    task = load(name, folder)
    embed = Recorded(perfect)
    result = task.evaluate(embed)
    assert embed.asked == task.sentences()
    assert result.main == task.main_metric
    if name in CLASSIFICATION:
        assert result.score == 100
        assert result.items["correct"].tolist() == [1] * result.num_test
    else:
        # A softmax cannot follow the score exactly, but does so in order.
        assert result.score > (0.9 if name in ("SICK-R", "STSB") else 0.999)
        assert result.metrics["spearman"] > 0.98
        assert len(result.items["predicted"]) == len(result.items["group"]) == result.num_test


@pytest.mark.parametrize("name", SENTEVAL_TASKS)
def test_a_shuffled_encoder_is_at_chance(folder, name):
    task = load(name, folder)
    result = task.evaluate(Shuffled(task.sentences()))
    if name in CLASSIFICATION:
        chance = 100 / len(np.unique(next(iter(task.sets.values())).labels))
        assert abs(result.score - chance) < 20
    else:
        assert abs(result.score) < 0.35


@pytest.mark.parametrize("name", ["STS14", "SICK-R", "MR", "SICK-E"])
def test_an_encoder_of_one_vector_has_no_correlation_and_says_one_class(folder, name):
    for vector in (np.zeros(8), np.linspace(0.1, 1, 8)):
        result = load(name, folder).evaluate(lambda texts, v=vector: np.tile(v.astype(np.float32), (len(texts), 1)))
        expected = {"MR": 50, "SICK-E": 33.33}.get(name, 0)
        assert result.score == expected
        assert np.isfinite(list(result.metrics.values())).all()


@pytest.mark.parametrize("name", SENTEVAL_TASKS)
def test_texts_are_tokens_joined_by_one_space_in_the_order_of_the_protocol(copy, name):
    if name.startswith("STS1"):
        task = load(name, copy)
        for part in task.sets.values():
            keys = [(len(a.split()), len(b.split()), y) for a, b, y in zip(*part.texts, part.labels, strict=True)]
            assert keys == sorted(keys)
            assert not any("unscored" in text for column in part.texts for text in column)
        return
    expected = read(copy.parent, name)
    sets = load(name, copy).sets
    assert list(sets) == list(expected)
    for part, rows in expected.items():
        assert list(zip(*sets[part].texts, strict=True)) == [row[:-1] for row in rows]
        assert sets[part].labels.tolist() == [row[-1] for row in rows]


def test_white_space_and_the_rest_of_the_encodings(copy):
    (copy / "SUBJ/subj.objective").write_bytes(b"  two \t words\r\n" + b"caf\xe9 one\n" * 9)
    task = load("SUBJ", copy)
    texts = dict(zip(task.sets["all"].texts[0], task.sets["all"].labels, strict=True))
    assert texts["two words"] == texts["caf\xe9 one"] == 1
    path = copy / "STS/STS13-en-test/STS.input.FNWN.txt"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(["caf\xe9  noir \tcr\xe8me", *lines[1:]]) + "\n", encoding="utf-8")
    first, second = load("STS13", copy).sets["FNWN"].texts
    assert "caf\xe9 noir" in first
    assert "cr\xe8me" in second


def test_a_trailing_pair_without_score_is_skipped(copy):
    stem = copy / "STS/STS16-en-test"
    for kind, line in (("input", "a\tb\n"), ("gs", "\n")):
        with (stem / f"STS.{kind}.headlines.txt").open("a") as file:
            file.write(line)
    before = len(load("STS16", copy).sets["headlines"])
    with (stem / "STS.input.headlines.txt").open("a") as file:
        file.write("c\td\n")
    with (stem / "STS.gs.headlines.txt").open("a") as file:
        file.write("2.5\n")
    assert len(load("STS16", copy).sets["headlines"]) == before + 1


# Wrong input


@pytest.mark.parametrize("name", SENTEVAL_TASKS)
def test_a_small_folder_is_refused_unless_told_otherwise(folder, name):
    with pytest.raises(ValueError, match=r"found [\d,]+ examples.*, expected [\d,]+\..*check_counts=False"):
        load_senteval_task(name, folder)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("MR", "MR/rt-polarity.neg"),
        ("TREC", "TREC/TREC_10.label"),
        ("SICK-R", "SICK/SICK_trial.txt"),
        ("STS15", "STS/STS15-en-test/STS.gs.belief.txt"),
        ("SNLI", "SNLI/labels.dev"),
    ],
)
def test_a_missing_file_is_named(copy, name, file):
    (copy / file).unlink()
    with pytest.raises(FileNotFoundError, match=file):
        load(name, copy)
    with pytest.warns(UserWarning, match=f"is left out: .* has no {file}"):
        assert name not in available_senteval_tasks(copy)


DAMAGE = {
    "sst2 label": ("SST2", "SST/binary/sentiment-dev", 3, "fine film\t7", "unknown label '7'; expected one of 0, 1"),
    "sst2 columns": ("SST2", "SST/binary/sentiment-dev", 3, "fine film 1", "1 columns separated by tabs, expected 2"),
    "sst5 label": ("SST5", "SST/fine/sentiment-test", 2, "5 film", "unknown label '5'"),
    "sst5 text": ("SST5", "SST/fine/sentiment-test", 2, "3", "expected a label, a space and a text"),
    "trec label": (
        "TREC",
        "TREC/TREC_10.label",
        5,
        "FOO:bar what ?",
        "unknown label 'FOO'; expected one of ABBR, DESC",
    ),
    "trec line": ("TREC", "TREC/TREC_10.label", 5, "what ?", "expected COARSE:fine and a question"),
    "mrpc columns": ("MRPC", "MRPC/msr_paraphrase_train.txt", 4, "1\t2\t3\tonly one", "4 columns .* expected 5"),
    "mrpc label": ("MRPC", "MRPC/msr_paraphrase_train.txt", 4, "2\t2\t3\ta\tb", "unknown label '2'"),
    "sick label": ("SICK-E", "SICK/SICK_trial.txt", 2, "1\ta\tb\t3\tMAYBE", "unknown label 'MAYBE'"),
    "sick score": ("SICK-R", "SICK/SICK_trial.txt", 2, "1\ta\tb\thigh\tNEUTRAL", "'high' is no score between 0 and 5"),
    "stsb score": ("STSB", "STS/STSBenchmark/sts-dev.csv", 1, "a\tb\tc\td\t5.5\te\tf", "'5.5' is no score"),
    "stsb columns": ("STSB", "STS/STSBenchmark/sts-dev.csv", 1, "a\tb\tc\td\t5.0\te", "6 columns .* expected 7"),
    "sts columns": ("STS12", "STS/STS12-en-test/STS.input.MSRvid.txt", 6, "no tab", "1 columns .* expected 2"),
    "sts score": ("STS12", "STS/STS12-en-test/STS.gs.MSRvid.txt", 1, "nan", "'nan' is no score"),
    "snli label": ("SNLI", "SNLI/labels.test", 8, "-", "unknown label '-'; expected one of entailment"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_line_is_named_by_file_and_number(copy, case):
    name, file, number, line, message = DAMAGE[case]
    lines = (copy / file).read_text().split("\n")
    lines[number - 1] = line
    (copy / file).write_text("\n".join(lines))
    with pytest.raises(ValueError, match=f"{file}, line {number}: .*{message}"):
        load(name, copy)


@pytest.mark.parametrize(
    ("name", "file", "other"),
    [
        ("STS14", "STS/STS14-en-test/STS.gs.images.txt", "STS/STS14-en-test/STS.input.images.txt"),
        ("SNLI", "SNLI/s2.train", "SNLI/labels.train"),
    ],
)
def test_files_of_different_lengths_are_refused(copy, name, file, other):
    lines = (copy / file).read_text().splitlines()
    (copy / file).write_text("\n".join(lines[:-1]) + "\n")
    with pytest.raises(ValueError, match=f"{file}, line {len(lines)}: it has .* lines and .*{other} has {len(lines)}"):
        load(name, copy)


def test_empty_files_and_wrong_encodings_are_refused(copy):
    (copy / "TREC/TREC_10.label").write_text("")
    with pytest.raises(ValueError, match=r"TREC_10.label holds no examples"):
        load("TREC", copy)
    (copy / "MR/rt-polarity.pos").write_text("")
    with pytest.raises(ValueError, match=r"rt-polarity.pos holds no examples"):
        load("MR", copy)
    (copy / "SST/binary/sentiment-dev").write_bytes(b"caf\xe9\t1\n")
    with pytest.raises(ValueError, match="sentiment-dev: byte 3 is not utf-8"):
        load("SST2", copy)


def test_folds_that_the_data_cannot_give_are_refused(folder):
    with pytest.raises(ValueError, match="folds is 1; it must be 2 or more"):
        load_senteval_task("MR", folder, check_counts=False, folds=1)
    with pytest.raises(
        ValueError, match="MR has 2 classes in training, the smallest with 30 examples: too few for 29 f"
    ):
        load_senteval_task("MR", folder, check_counts=False, folds=29)
    with pytest.raises(
        ValueError, match="TREC has 6 classes in training, the smallest with 20 examples: too few for 21"
    ):
        load_senteval_task("TREC", folder, check_counts=False, folds=21)


@pytest.mark.parametrize(
    ("given", "meant"), [("sst2", "SST2"), ("SICKEntailment", "SICK-E"), ("STSBenchmark", "STSB"), ("MRCP", "MRPC")]
)
def test_an_unknown_task_names_the_nearest(folder, given, meant):
    with pytest.raises(ValueError, match=f"no SentEval task '{given}'. Did you mean '{meant}'"):
        load_senteval_task(given, folder)


def test_a_task_of_another_protocol_is_refused(folder):
    with pytest.raises(ValueError, match="SST2 has another protocol; use DevelopmentSetTask"):
        CrossValidationTask("SST2", folder)


# Folders, fingerprints, averages


def test_the_folder_may_be_downstream_or_hold_it(folder, tmp_path):
    assert available_senteval_tasks(folder) == available_senteval_tasks(folder / "downstream") == list(SENTEVAL_TASKS)
    assert available_senteval_tasks(tmp_path) == []
    for call in (available_senteval_tasks, lambda path: load_senteval_task("MR", path)):
        with pytest.raises(FileNotFoundError, match=r"No such folder: .*nowhere"):
            call(tmp_path / "nowhere")


def test_a_task_without_files_is_left_out_silently(copy, recwarn):
    shutil.rmtree(copy / "SNLI")
    assert available_senteval_tasks(copy) == [name for name in SENTEVAL_TASKS if name != "SNLI"]
    assert not recwarn.list


def test_the_fingerprint_depends_on_texts_labels_and_folds(copy):
    before = load("CR", copy).fingerprint()
    assert load("CR", copy).fingerprint() == before
    assert load_senteval_task("CR", copy, check_counts=False, folds=4).fingerprint() != before
    assert len({load(name, copy).fingerprint() for name in SENTEVAL_TASKS}) == len(SENTEVAL_TASKS)
    # The same texts with one label changed.
    positive, negative = copy / "CR/custrev.pos", copy / "CR/custrev.neg"
    first, *rest = positive.read_text("latin-1").splitlines(keepends=True)
    positive.write_text("".join(rest), "latin-1")
    negative.write_text(negative.read_text("latin-1") + first, "latin-1")
    assert load("CR", copy).fingerprint() != before


def test_averages_are_those_that_the_paper_prints():
    names = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC", "SICK-E")
    scores = dict(zip(names, (78.7, 82.3, 93.4, 88.8, 83.8, 91.4, 75.5, 83.5), strict=True))
    sizes = dict(zip(names, (10662, 3775, 10000, 10606, 1821, 500, 1725, 4927), strict=True))
    found = averages({name: TaskResult({"accuracy": scores[name]}, "accuracy", num_test=sizes[name]) for name in names})
    printed = {"macro_8": 84.7, "micro_8": 85.6, "macro_7": 86.0, "micro_7": 86.0, "macro_6": 85.0, "micro_6": 85.9}
    # Task scores and averages are printed with one decimal each.
    assert found == pytest.approx(printed, abs=0.1)
    assert found["micro_8"] == pytest.approx(85.549, abs=1e-3)


def test_averages_need_all_their_tasks_and_ignore_others():
    names = ("MR", "CR", "SUBJ", "MPQA", "TREC", "MRPC")
    results = {
        name: TaskResult({"accuracy": float(i), "f1": 0.0}, "accuracy", num_test=i) for i, name in enumerate(names, 1)
    }
    results["SICK-R"] = TaskResult({"pearson": 0.9}, "pearson", num_test=4927)
    assert averages(results) == {"macro_6": 3.5, "micro_6": pytest.approx(91 / 21)}
    assert averages({}) == {}


def test_paper_tasks_are_tasks():
    assert len(PAPER_TASKS) == 10
    assert set(PAPER_TASKS) < set(SENTEVAL_TASKS)


def test_the_real_sets_have_the_published_sizes(data_root):
    names = available_senteval_tasks(data_root / "senteval")
    if not names:
        pytest.skip("HF_MEANMAX_DATA has no senteval/downstream")
    # Loading checks the sizes.
    pairs = {name: load_senteval_task(name, data_root / "senteval") for name in names}
    assert all(task.sentences() for task in pairs.values())


def test_reports_and_cards_know_the_same_tasks():
    assert set(SENTEVAL_TASKS) == SENTEVAL


def test_any_of_the_folders_can_be_named(folder, tmp_path):
    assert downstream(folder) == downstream(folder / "downstream") == folder / "downstream"
    (tmp_path / "senteval" / "TREC").mkdir(parents=True)
    assert downstream(tmp_path) == downstream(tmp_path / "senteval") == tmp_path / "senteval"
    (tmp_path / "senteval" / "downstream").mkdir()
    assert downstream(tmp_path) == tmp_path / "senteval" / "downstream"
    with pytest.raises(FileNotFoundError, match="No such folder"):
        downstream(tmp_path / "none")
