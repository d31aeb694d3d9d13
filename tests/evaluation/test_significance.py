"""Gains, their intervals and spreads: right coverage, equal to plain loops and to scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from hf_meanmax.evaluation.significance import Gain, average_gain, gain, strongest
from hf_meanmax.evaluation.tasks import TaskResult


def classified(correct) -> TaskResult:
    correct = np.asarray(correct, dtype=np.float64)
    return TaskResult({"accuracy": 100 * correct.mean()}, "accuracy", {"correct": correct}, len(correct))


def related(predicted, gold, group=None) -> TaskResult:
    items = {"predicted": np.asarray(predicted, dtype=float), "gold": np.asarray(gold, dtype=float)}
    if group is not None:
        items["group"] = np.asarray(group)
    numbers = items.get("group", np.zeros(len(gold), dtype=int))
    pearsons = [
        0.0
        if np.ptp(items["predicted"][numbers == n]) == 0
        else stats.pearsonr(items["predicted"][numbers == n], items["gold"][numbers == n])[0]
        for n in np.unique(numbers)
    ]
    return TaskResult({"pearson": float(np.mean(pearsons))}, "pearson", items, len(gold))


def random_related(rng, size=400, groups=3, noise=(0.5, 1.0, 1.2)) -> list[TaskResult]:
    """A model and two controls on the same pairs."""
    gold = rng.uniform(0, 5, size)
    group = rng.integers(groups, size=size)
    shared = rng.standard_normal(size)
    return [related(gold + level * (shared + rng.standard_normal(size)), gold, group) for level in noise]


def test_difference_is_that_of_the_scores():
    model = classified([1, 1, 1, 0])
    controls = [classified([1, 0, 0, 0]), classified([1, 1, 0, 0])]
    found = gain(model, controls)
    assert found.difference == 37.5
    assert found.low <= 37.5 <= found.high
    results = random_related(np.random.default_rng(0))
    expected = results[0].score - (results[1].score + results[2].score) / 2
    found = gain(results[0], results[1:])
    assert found.difference == pytest.approx(expected, abs=1e-12)
    assert found.low < expected < found.high


def test_accuracy_interval_equals_a_plain_loop():
    rng = np.random.default_rng(1)
    model = classified(rng.random(150) < 0.8)
    controls = [classified(rng.random(150) < 0.7) for _ in range(3)]
    found = gain(model, controls, samples=300, confidence=0.9, seed=5)

    means = np.mean([model.items["correct"] - control.items["correct"] for control in controls], axis=0)
    values, counts = np.unique(means, return_counts=True)
    draws = np.random.default_rng(5)
    loop = []
    for _ in range(300):
        numbers = draws.multinomial(150, counts / 150)
        loop.append(100 * np.repeat(values, numbers).mean())
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(loop, [0.05, 0.95])), abs=1e-9)


def test_accuracy_interval_is_that_of_resampled_items():
    rng = np.random.default_rng(2)
    model, control = classified(rng.random(300) < 0.85), classified(rng.random(300) < 0.7)
    found = gain(model, [control], samples=20_000)
    rows = rng.integers(300, size=(20_000, 300))
    items = 100 * (model.items["correct"] - control.items["correct"])
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(items[rows].mean(1), [0.025, 0.975])), abs=0.4)


def test_correlation_interval_equals_a_plain_loop():
    model, *controls = random_related(np.random.default_rng(3), size=90)
    found = gain(model, controls, samples=100, seed=7)

    draws = np.random.default_rng(7)
    loop = np.zeros(100)
    groups = model.items["group"]
    for number in range(3):
        rows = np.flatnonzero(groups == number)
        for sample, chosen in enumerate(draws.integers(len(rows), size=(100, len(rows)))):
            picked = rows[chosen]
            gold = model.items["gold"][picked]
            scores = [stats.pearsonr(r.items["predicted"][picked], gold)[0] for r in (model, *controls)]
            loop[sample] += (scores[0] - (scores[1] + scores[2]) / 2) / 3
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(loop, [0.025, 0.975])), abs=1e-9)


def test_samples_do_not_depend_on_how_many_are_held(monkeypatch):
    model, *controls = random_related(np.random.default_rng(4), size=60, groups=1)
    whole = gain(model, controls, samples=101)
    monkeypatch.setattr("hf_meanmax.evaluation.significance._CHUNK", 60 * 7)
    assert gain(model, controls, samples=101) == whole


def test_scipy_gives_the_same_interval():
    model, control, _ = random_related(np.random.default_rng(5), size=250, groups=1)
    found = gain(model, [control], samples=6000)
    data = (model.items["predicted"], control.items["predicted"], model.items["gold"])

    def difference(first, second, gold, axis=-1):
        return stats.pearsonr(first, gold, axis=axis)[0] - stats.pearsonr(second, gold, axis=axis)[0]

    expected = stats.bootstrap(
        data, difference, n_resamples=6000, paired=True, vectorized=True, method="percentile", rng=0
    ).confidence_interval
    width = expected.high - expected.low
    assert (found.low, found.high) == pytest.approx(tuple(expected), abs=0.08 * width)


@pytest.mark.parametrize("kind", ["accuracy", "correlation"])
def test_interval_covers_as_often_as_it_says(kind):
    rng = np.random.default_rng(6)
    covered = 0
    for experiment in range(200):
        if kind == "accuracy":
            ease = rng.random(300)
            model = classified(rng.random(300) < 0.5 + 0.5 * ease)
            controls = [classified(rng.random(300) < 0.4 + 0.5 * ease) for _ in range(3)]
            truth = 10.0
        else:
            gold, shared = rng.standard_normal((2, 300))
            model = related(gold + 0.6 * shared + 0.8 * rng.standard_normal(300), gold)
            controls = [related(gold + 0.6 * shared + 1.2 * rng.standard_normal(300), gold)]
            truth = 1 / 2**0.5 - 1 / (1 + 0.36 + 1.44) ** 0.5
        found = gain(model, controls, samples=500, seed=experiment)
        covered += found.low <= truth <= found.high
    assert 0.90 <= covered / 200 <= 0.99


def test_identical_results_give_zero_of_no_width():
    rng = np.random.default_rng(7)
    accuracy = classified(rng.random(77) < 0.7)
    correlation = random_related(rng)[0]
    for result in (accuracy, correlation):
        found = gain(result, [result] * 3)
        assert (found.difference, found.low, found.high) == (0.0, 0.0, 0.0)
    found = average_gain([(accuracy, [accuracy] * 3)] * 3)
    assert (found.difference, found.low, found.high) == (0.0, 0.0, 0.0)


def test_same_seed_same_interval():
    model, *controls = random_related(np.random.default_rng(8))
    assert gain(model, controls, seed=1) == gain(model, controls, seed=1)
    assert gain(model, controls, seed=1) != gain(model, controls, seed=2)


def test_constant_predictions_have_correlation_zero():
    gold = np.random.default_rng(9).uniform(0, 5, 50)
    perfect, constant = related(gold, gold), related(np.ones(50), gold)
    almost = related(np.ones(50), gold)
    almost.items["predicted"] = 1 + 1e-8 * np.random.default_rng(0).standard_normal(50)
    for control in (constant, almost):
        found = gain(perfect, [control])
        assert (found.low, found.high) == pytest.approx((1, 1))
    # Samples of two pairs are often constant.
    found = gain(related([1, 2], [1, 2]), [related([2, 1], [1, 2])], samples=100)
    assert (found.low, found.high) == pytest.approx((0, 2))


def test_fold_averages_and_rounded_scores_shift_the_interval():
    rng = np.random.default_rng(10)
    model, control = classified(rng.random(200) < 0.9), classified(rng.random(200) < 0.6)
    exact = gain(model, [control])
    model.metrics["accuracy"] += 0.25
    shifted = gain(model, [control])
    assert shifted.difference == pytest.approx(exact.difference + 0.25)
    assert (shifted.low, shifted.high) == pytest.approx((exact.low + 0.25, exact.high + 0.25))


def test_no_interval_without_items_that_give_the_metric():
    bare = [TaskResult({"accuracy": score}, "accuracy") for score in (80.0, 70.0, 74.0)]
    assert gain(bare[0], bare[1:]) == Gain(8.0, None, None)
    model, control = classified([1, 1, 1, 0]), classified([1, 0, 0, 0])
    for result in (model, control):
        result.metrics["f1"], result.main = 33.0, "f1"
    assert gain(model, [control]) == Gain(0.0, None, None)
    usual = (classified([1, 1, 0]), [classified([1, 0, 0])])
    assert average_gain([usual, (bare[0], bare[1:])]).low is None
    assert average_gain([usual, (bare[0], bare[1:])]).difference == pytest.approx((100 / 3 + 8) / 2)


def test_average_gain():
    rng = np.random.default_rng(11)
    pairs = []
    for size in (100, 400, 900):
        models = classified(rng.random(size) < 0.8)
        pairs.append((models, [classified(rng.random(size) < 0.7) for _ in range(2)]))
    single = [gain(*pair, samples=4000) for pair in pairs]
    found = average_gain(pairs, samples=4000)
    assert found.difference == pytest.approx(np.mean([one.difference for one in single]))
    # Independent errors add as squares.
    half_widths = np.array([(one.high - one.low) / 2 for one in single])
    assert (found.high - found.low) / 2 == pytest.approx(np.sqrt((half_widths**2).sum()) / 3, rel=0.08)
    micro = average_gain(pairs, samples=4000, weights=[100, 400, 900])
    assert micro.difference == pytest.approx(np.average([one.difference for one in single], weights=[100, 400, 900]))
    assert average_gain(pairs[:1]).difference == single[0].difference


def test_strongest_kind():
    controls = {"bag": [classified([1, 1, 0, 0])], "echo": [classified([1, 1, 1, 1]), classified([1, 0, 0, 0])]}
    assert strongest(controls) == "echo"
    controls["bag"] = [classified([1, 1, 1, 0])]
    assert strongest(controls) == "bag"
    with pytest.raises(ValueError, match="no control"):
        strongest({})
    with pytest.raises(ValueError, match="at least one data point"):
        strongest({"bag": []})


def test_results_of_other_test_sets_are_refused():
    model = classified([1, 1, 0])
    with pytest.raises(ValueError, match=r"3 test items \('correct'\), a control 4"):
        gain(model, [classified([1, 1, 0]), classified([1, 1, 0, 0])])
    with pytest.raises(ValueError, match="at least one control"):
        gain(model, [])
    with pytest.raises(ValueError, match="'accuracy', a control's 'pearson'"):
        gain(model, [related([1, 2], [1, 2])])
    with pytest.raises(ValueError, match="different tasks"):
        gain(model, [TaskResult({"accuracy": 1.0}, "accuracy")])
    with pytest.raises(ValueError, match="'gold' of the model and of a control differ"):
        gain(related([1, 2, 3], [1, 2, 4]), [related([1, 2, 3], [1, 2, 5])])
    with pytest.raises(ValueError, match="confidence is 95"):
        gain(model, [model], confidence=95)
    with pytest.raises(ValueError, match="samples is 0"):
        average_gain([(model, [model])], samples=0)
    with pytest.raises(ValueError, match="at least one task"):
        average_gain([])
    with pytest.raises(ValueError, match="2 positive numbers"):
        average_gain([(model, [model])] * 2, weights=[1])


def test_texts_of_a_cluster_are_drawn_together():
    rng = np.random.default_rng(3)
    cluster = np.repeat(np.arange(40), rng.integers(2, 7, size=40))
    ours, theirs = (np.repeat(rng.random(40) < share, np.bincount(cluster)) for share in (0.8, 0.6))
    model, control = classified(ours), classified(theirs)
    for result in (model, control):
        result.items["cluster"] = cluster
    found = gain(model, [control], samples=20_000)
    differences = model.items["correct"] - control.items["correct"]
    sums, sizes = np.bincount(cluster, differences), np.bincount(cluster)
    drawn = rng.integers(40, size=(20_000, 40))
    plain = 100 * sums[drawn].sum(1) / sizes[drawn].sum(1)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(plain, [0.025, 0.975])), abs=0.7)
    alone = gain(classified(ours), [classified(theirs)], samples=20_000)
    assert found.high - found.low > 1.5 * (alone.high - alone.low)
