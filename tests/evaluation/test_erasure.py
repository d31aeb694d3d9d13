"""Erasure against classifiers that scikit-learn fits anew, and against one product for each dimension."""

from __future__ import annotations

import numpy as np
import pytest

from hf_meanmax.evaluation.erasure import erase_dimensions, erase_rows
from hf_meanmax.evaluation.logistic_regression import fit_logistic_regressions


def make_data(classes=3, dimension=12, train=300, test=200, informative=4, spread=1.0, seed=0):
    """Gaussian classes that differ in the first `informative` dimensions only."""
    draw = np.random.default_rng(seed)
    centers = np.zeros((classes, dimension))
    centers[:, :informative] = 1.5 * draw.standard_normal((classes, informative))
    labels = draw.integers(classes, size=train + test)
    features = (centers[labels] + spread * draw.standard_normal((train + test, dimension)) + 2).astype(np.float32)
    return features[:train], labels[:train], features[train:], labels[train:]


def arrays(found):
    """What is listed by part, to compute with."""
    return {name: np.array(value) for name, value in found.items()}


def reference_accuracy(features, labels, test, gold):
    linear_model = pytest.importorskip("sklearn.linear_model")
    fitted = linear_model.LogisticRegression(tol=1e-8, max_iter=2000).fit(features, labels)
    return 100 * np.mean(fitted.predict(test) == gold)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("rows", [2, 3])
def test_rows_are_erased_with_classifiers_fitted_anew(classes, rows):
    x, y, test, gold = make_data(classes)
    found = arrays(erase_rows(x, y, test, gold, rows))
    row_of_column = np.arange(12) // (12 // rows)
    assert found["accuracy"] == pytest.approx(reference_accuracy(x, y, test, gold), abs=0.51)
    for row in range(rows):
        for accuracy, columns in (
            (found["without"][row], row_of_column != row),
            (found["only"][row], row_of_column == row),
        ):
            assert accuracy == pytest.approx(reference_accuracy(x[:, columns], y, test[:, columns], gold), abs=0.51)
    assert found["absolute"].argmax() == 0
    assert found["only"].argmax() == 0
    assert found["absolute"] == pytest.approx(found["accuracy"] - found["without"])
    assert found["relative"] == pytest.approx(100 * (1 - found["without"] / found["accuracy"]))


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("chunk", [16_000_000, 2_100])
def test_dimensions_are_erased_in_the_fitted_classifier(classes, chunk, monkeypatch):
    """The same as a product for each dimension, whether all are done at once or a few at a time."""
    monkeypatch.setattr("hf_meanmax.evaluation.erasure._CHUNK_NUMBERS", chunk)
    x, y, test, gold = make_data(classes)
    found = arrays(erase_dimensions(x, y, test, gold))
    fitted = fit_logistic_regressions(x, y, np.ones((1, len(x)), dtype=bool), [1.0])
    assert found["accuracy"] == pytest.approx(100 * np.mean(fitted.predict(test)[0] == gold))
    assert found["without"].shape == (12,)
    for dimension in range(12):
        erased = test.copy()
        erased[:, dimension] = x[:, dimension].mean()
        assert found["without"][dimension] == pytest.approx(100 * np.mean(fitted.predict(erased)[0] == gold))
    assert found["absolute"] == pytest.approx(found["accuracy"] - found["without"])
    assert found["relative"] == pytest.approx(100 * (1 - found["without"] / found["accuracy"]))
    assert found["mean_absolute"] == pytest.approx(found["absolute"].mean())
    assert found["absolute"][:4].max() > 2


def test_only_the_dimension_that_holds_the_label_matters():
    draw = np.random.default_rng(0)
    y = draw.integers(2, size=400)
    x = 0.01 * draw.standard_normal((400, 6)).astype(np.float32)
    x[:, 2] += 4 * y
    x[:, 4] = 7
    found = arrays(erase_dimensions(x[:200], y[:200], x[200:], y[200:]))
    assert found["accuracy"] == 100
    assert 30 < found["absolute"][2] < 70
    assert found["absolute"][[0, 1, 3, 4, 5]].tolist() == [0] * 5


def test_shuffled_labels_give_chance_and_no_important_row():
    x, y, test, gold = make_data(4, train=2000, test=1000)
    found = arrays(erase_rows(x, np.random.default_rng(1).permutation(y), test, gold, 3))
    assert 15 < found["accuracy"] < 40
    assert np.abs(found["absolute"]).max() < 12


def test_labels_may_be_words_and_unseen_in_training():
    x, y, test, gold = make_data(3)
    words = np.array(["no", "perhaps", "yes"])
    by_number, by_word = erase_dimensions(x, y, test, gold), erase_dimensions(x, words[y], test, words[gold])
    assert by_word["without"] == by_number["without"]
    unseen = erase_dimensions(x, y, test, np.full(len(gold), 9))
    assert unseen["accuracy"] == 0
    assert unseen["relative"] == [None] * 12
    assert unseen["absolute"] == [0] * 12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 1}, "rows is 1; without the only row nothing is left"),
        ({"rows": 5}, "12 dimensions is no matrix of 5 rows"),
        ({"rows": 2, "labels": np.zeros(300)}, "two or more"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    names = ("train", "labels", "test", "gold")
    with pytest.raises(ValueError, match=message):
        erase_rows(**{**dict(zip(names, make_data(3), strict=True)), **change})
