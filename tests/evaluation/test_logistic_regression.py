"""Many logistic regressions at once against scikit-learn, one at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hf_meanmax.evaluation.logistic_regression import fit_logistic_regressions

linear_model = pytest.importorskip("sklearn.linear_model")


def make_problem(rows: int, size: int, classes: int, noise: float = 1.0, seed: int = 0):
    """Features with a mean and a falling spectrum, as embeddings have them, and labels that follow them noisily."""
    rng = np.random.default_rng(seed)
    scale = np.exp(-np.arange(size) / (size / 4))
    features = (rng.standard_normal((rows, size)) * scale + rng.standard_normal(size)).astype(np.float32)
    scores = (features - features.mean(0)) @ rng.standard_normal((size, classes))
    labels = (scores + noise * rng.gumbel(size=(rows, classes))).argmax(axis=1)
    return features, labels


def make_masks(rows: int, folds: int, strengths, seed: int = 1):
    fold = np.random.default_rng(seed).integers(0, folds, rows)
    masks = np.stack([fold != number for number in range(folds) for _ in strengths])
    return masks, np.tile(np.asarray(strengths, dtype=float), folds)


@pytest.mark.parametrize(
    ("rows", "size", "classes", "noise"),
    [(300, 12, 2, 1.0), (300, 12, 4, 1.0), (120, 160, 2, 0.3), (150, 160, 3, 0.5)],
    ids=["two classes", "four classes", "more dimensions than rows", "the same, three classes"],
)
def test_equal_to_scikit_learn(rows, size, classes, noise):
    features, labels = make_problem(rows, size, classes, noise)
    masks, strengths = make_masks(rows, 3, [0.25, 1.0, 8.0])
    fitted = fit_logistic_regressions(features, labels, masks, strengths, tolerance=1e-10, max_iterations=500)
    assert fitted.converged.all()
    predictions = fitted.predict(features)
    differing = 0
    for problem, (mask, C) in enumerate(zip(masks, strengths, strict=True)):
        reference = linear_model.LogisticRegression(C=C, tol=1e-8, max_iter=5000)
        reference.fit(features[mask].astype(np.float64), labels[mask])
        largest = np.abs(reference.coef_).max()
        np.testing.assert_allclose(fitted.coefficients[problem].numpy(), reference.coef_, atol=5e-3 * largest)
        differing += int((reference.predict(features) != predictions[problem]).sum())
    assert differing <= 0.002 * predictions.size


def test_the_default_tolerance_gives_the_accuracies_of_scikit_learn():
    features, labels = make_problem(400, 60, 2, noise=2.0)
    masks, strengths = make_masks(400, 5, 2.0 ** np.arange(-2, 4))
    predictions = fit_logistic_regressions(features, labels, masks, strengths).predict(features)
    for mask, C, predicted in zip(masks, strengths, predictions, strict=True):
        reference = linear_model.LogisticRegression(C=C, tol=1e-8, max_iter=5000).fit(features[mask], labels[mask])
        held_out = ~mask
        ours = (predicted[held_out] == labels[held_out]).sum()
        theirs = (reference.predict(features[held_out]) == labels[held_out]).sum()
        assert abs(int(ours) - int(theirs)) <= 1


def test_a_problem_does_not_depend_on_those_beside_it():
    features, labels = make_problem(200, 10, 2)
    masks, strengths = make_masks(200, 4, [0.5, 4.0])
    together = fit_logistic_regressions(features, labels, masks, strengths, tolerance=1e-10)
    for problem in range(len(masks)):
        alone = fit_logistic_regressions(
            features, labels, masks[problem : problem + 1], strengths[problem : problem + 1], tolerance=1e-10
        )
        torch.testing.assert_close(alone.coefficients[0], together.coefficients[problem], atol=2e-3, rtol=2e-3)


def test_rows_outside_the_mask_have_no_say():
    features, labels = make_problem(200, 10, 3)
    mask = np.arange(200) < 150
    spoiled = features.copy()
    spoiled[~mask] = 1.0
    wrong = np.where(mask, labels, 0)
    fitted = fit_logistic_regressions(features, labels, mask[None], [2.0], tolerance=1e-10)
    other = fit_logistic_regressions(spoiled, wrong, mask[None], [2.0], tolerance=1e-10)
    torch.testing.assert_close(fitted.coefficients, other.coefficients, atol=2e-3, rtol=2e-3)


def test_constant_features_predict_the_majority_of_the_training_rows():
    labels = np.array([0] * 30 + [1] * 10 + [0] * 10 + [1] * 30)
    features = np.ones((80, 1), dtype=np.float32)
    first = np.arange(80) < 40
    fitted = fit_logistic_regressions(features, labels, np.stack([first, ~first]), [1.0, 1.0])
    assert (fitted.predict(features) == np.array([[0], [1]])).all()


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_identical_rows_of_more_dimensions_than_rows_predict_the_majority(value):
    labels = np.array([0, 0, 0, 1, 1])
    features = np.full((5, 9), value, dtype=np.float32)
    fitted = fit_logistic_regressions(features, labels, np.ones((1, 5), dtype=bool), [1.0])
    assert (fitted.predict(features) == 0).all()


def test_features_whose_squares_overflow_are_refused():
    features = np.eye(5, 9, dtype=np.float32) * 1e30
    with pytest.raises(ValueError, match="The features are too large"):
        fit_logistic_regressions(features, np.array([0, 0, 0, 1, 1]), np.ones((1, 5), dtype=bool), [1.0])


def test_large_offsets_and_repeated_columns():
    features, labels = make_problem(300, 12, 2)
    features = np.concatenate([features, features[:, :3], np.ones((300, 2), dtype=np.float32)], axis=1)
    masks = np.ones((2, 300), dtype=bool)
    plain = fit_logistic_regressions(features, labels, masks, [1.0, 1e9])
    offset = fit_logistic_regressions(features + 100, labels, masks, [1.0, 1e9])
    assert torch.isfinite(plain.coefficients).all()
    assert (plain.predict(features) == offset.predict(features + 100)).mean() > 0.99


def test_labels_of_any_kind():
    features, labels = make_problem(200, 10, 3)
    names = np.array(["no", "perhaps", "yes"])[labels]
    masks = np.ones((1, 200), dtype=bool)
    assert set(fit_logistic_regressions(features, names, masks, [1.0]).predict(features)[0]) <= {"no", "perhaps", "yes"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.zeros(5)}, "need as many labels as rows"),
        ({"C": [1.0, 2.0]}, "do not fit masks"),
        ({"C": [0.0]}, "C must be positive"),
        ({"labels": np.zeros(20)}, "rows of 1 class"),
        ({"masks": np.arange(20)[None] < 1}, "rows of 1 class"),
        ({"features": np.full((20, 3), np.nan, dtype=np.float32)}, "Row 0 of the features is not finite"),
    ],
    ids=["labels", "strengths", "zero strength", "one class", "one row", "NaN"],
)
def test_bad_input_is_named(change, message):
    good = {
        "features": np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32),
        "labels": np.arange(20) % 2,
        "masks": np.ones((1, 20), dtype=bool),
        "C": [1.0],
    }
    with pytest.raises(ValueError, match=message):
        fit_logistic_regressions(**{**good, **change})
