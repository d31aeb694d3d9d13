"""The relatedness layer against torch's autograd and Adam, in the plain form of the protocol."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr

from hf_meanmax.evaluation.relatedness import _Layer, correlations, fit_relatedness, pair_features, score_distributions

SIZE = 6


@pytest.fixture
def sets() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Features and scores that depend on them, with noise."""
    random = np.random.default_rng(3)
    direction = random.standard_normal(SIZE)
    found = {}
    for name, count in (("train", 150), ("dev", 40), ("test", 40)):
        features = random.standard_normal((count, SIZE)).astype(np.float32)
        scores = 2.5 + features @ direction / 2 + 0.8 * random.standard_normal(count)
        found[name] = features, scores.clip(0, 5).round(2)
    return found


def reference(train, dev, test):
    """Expected scores of the test pairs, the best Pearson on dev, and the epochs made."""
    torch.manual_seed(1111)
    np.random.seed(1111)  # noqa: NPY002
    model = torch.nn.Sequential(torch.nn.Linear(train[0].shape[1], 5), torch.nn.Softmax(dim=1))
    optimizer = torch.optim.Adam(model.parameters())
    X, y = torch.from_numpy(train[0]), torch.from_numpy(score_distributions(train[1]))
    integers = np.arange(1, 6)

    def predict(features):
        with torch.no_grad():
            return model(torch.from_numpy(features)).numpy() @ integers

    best, failures, epochs, stop, kept = -1.0, 0, 0, False, None
    while not stop and epochs <= 1000:
        for _ in range(50):
            order = np.random.permutation(len(X))  # noqa: NPY002
            for start in range(0, len(X), 64):
                rows = order[start : start + 64]
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(X[rows]), y[rows]).backward()
                optimizer.step()
        epochs += 50
        pearson = pearsonr(predict(dev[0]), dev[1])[0]
        if pearson > best:
            best, kept = pearson, copy.deepcopy(model.state_dict())
        else:
            stop = failures >= 3
            failures += 1
    model.load_state_dict(kept)
    return predict(test[0]), best, epochs


def test_fit_agrees_with_autograd_and_torch_adam(sets):
    expected, best, epochs = reference(**sets)
    model = fit_relatedness(*sets["train"], *sets["dev"])
    assert model.epochs == epochs
    assert model.dev_pearson == pytest.approx(best, abs=1e-5)
    assert np.allclose(model.predict(sets["test"][0]), expected, atol=1e-4)
    assert pearsonr(expected, sets["test"][1])[0] > 0.5


def test_one_step_is_that_of_torch_adam_on_the_mean_squared_error():
    rows, targets = torch.randn(10, SIZE), torch.from_numpy(score_distributions(np.linspace(0, 5, 10)))
    layer = _Layer(rows, targets)
    linear = torch.nn.Linear(SIZE, 5)
    linear.load_state_dict({"weight": layer.weight.clone(), "bias": layer.bias.clone()})
    optimizer = torch.optim.Adam(linear.parameters())
    for _ in range(3):
        layer.train_epoch(np.arange(10))
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(linear(rows).softmax(dim=1), targets).backward()
        optimizer.step()
        assert torch.allclose(layer.weight_gradient, linear.weight.grad, atol=1e-7)
        assert torch.allclose(layer.bias_gradient, linear.bias.grad, atol=1e-7)
        assert torch.allclose(layer.weight, linear.weight, atol=1e-6)
        assert torch.allclose(layer.bias, linear.bias, atol=1e-6)


def test_the_best_round_is_kept_not_the_last(sets):
    scores = sets["train"][1]
    # More columns than rows, and dev scores of other pairs: dev gets worse while training goes on.
    wide = np.random.default_rng(0).standard_normal((40, 100)).astype(np.float32)
    dev = np.random.default_rng(1).standard_normal((30, 100)).astype(np.float32)
    model = fit_relatedness(wide, scores[:40], dev, scores[40:70])
    found = pearsonr(model.predict(dev), scores[40:70])[0]
    assert model.dev_pearson == pytest.approx(found, abs=1e-6)
    assert model.epochs >= 200


def test_random_states_of_the_caller_are_left_alone_and_do_not_matter(sets):
    predictions = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        states = torch.get_rng_state(), np.random.get_state()[1]  # noqa: NPY002
        predictions.append(fit_relatedness(*sets["train"], *sets["dev"]).predict(sets["test"][0]))
        assert torch.equal(torch.get_rng_state(), states[0])
        assert np.array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002
    assert np.array_equal(*predictions)


def test_scores_are_spread_on_their_neighbours():
    spread = score_distributions([3.25, 1, 5, 0.4, 0, 4.5])
    expected = [
        [0, 0, 0.75, 0.25, 0],
        [1, 0, 0, 0, 0],
        [0, 0, 0, 0, 1],
        [0.4, 0, 0, 0, 0],
        [0, 0, 0, 0, 0],
        [0, 0, 0, 0.5, 0.5],
    ]
    assert np.allclose(spread, expected)
    assert spread.dtype == np.float32


@pytest.mark.parametrize("score", [5.1, -0.5, float("nan")])
def test_a_score_outside_the_scale_is_an_error(score):
    with pytest.raises(ValueError, match=f"A score is {score}; scores lie between 0 and 5"):
        score_distributions([3, score])


def test_shapes_that_do_not_fit_are_an_error(sets):
    features, scores = sets["train"]
    with pytest.raises(ValueError, match=r"dev: features of shape \(40, 5\) and 40 scores"):
        fit_relatedness(features, scores, sets["dev"][0][:, :5], sets["dev"][1])
    with pytest.raises(ValueError, match=r"train: features of shape \(150, 6\) and 149 scores"):
        fit_relatedness(features, scores[:-1], *sets["dev"])


def test_features_that_are_not_finite_are_an_error(sets):
    features = sets["dev"][0].copy()
    features[7, 2] = np.inf
    with pytest.raises(ValueError, match="dev: row 7 of the features is not finite"):
        fit_relatedness(*sets["train"], features, sets["dev"][1])


def test_constant_features_give_no_correlation(sets):
    ones = np.ones((150, SIZE), dtype=np.float32)
    model = fit_relatedness(ones, sets["train"][1], ones[:40], sets["dev"][1])
    assert model.dev_pearson == 0
    assert np.isnan(correlations(model.predict(ones[:40]), sets["test"][1], 1e-6)).all()
    assert model.predict(ones[:1])[0] == pytest.approx(sets["train"][1].mean(), abs=0.5)


def test_pair_features_are_difference_and_product():
    first, second = np.float32([[1, -2]]), np.float32([[3, 5]])
    assert pair_features(first, second).tolist() == [[2, 7, 3, -10]]
    assert pair_features(first, second).dtype == np.float32
