"""Correlations between metrics, and their heat map."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from hf_meanmax.evaluation.correlations import correlation_matrix


def make_scores(models=6, metrics=4, seed=0):
    table = np.random.default_rng(seed).standard_normal((models, metrics)) * 10 + 70
    return table, {f"model {m}": {f"metric {k}": table[m, k] for k in range(metrics)} for m in range(models)}


def test_correlations_are_scipy_s():
    stats = pytest.importorskip("scipy.stats")
    table, scores = make_scores()
    names, matrix = correlation_matrix(scores)
    assert names == ["metric 0", "metric 1", "metric 2", "metric 3"]
    for row in range(4):
        for column in range(4):
            assert matrix[row, column] == pytest.approx(stats.pearsonr(table[:, row], table[:, column])[0])
    assert np.diag(matrix).tolist() == [1] * 4


def test_scaled_metrics_correlate_fully():
    scores = {str(n): {"a": n**2, "percent": 100 * n**2 + 3, "negated": -(n**2)} for n in range(5)}
    _, matrix = correlation_matrix(scores)
    assert matrix == pytest.approx(np.array([[1, 1, -1], [1, 1, -1], [-1, -1, 1]]))


def test_each_pair_uses_the_models_that_have_both():
    table, scores = make_scores()
    del scores["model 0"]["metric 1"]
    scores["model 1"]["metric 1"] = None
    scores["model 2"]["metric 2"] = math.nan
    names, matrix = correlation_matrix(scores)
    order = np.argsort(names)
    matrix = matrix[np.ix_(order, order)]
    assert matrix[0, 1] == pytest.approx(np.corrcoef(table[2:, 0], table[2:, 1])[0, 1])
    assert matrix[1, 2] == pytest.approx(np.corrcoef(table[3:, 1], table[3:, 2])[0, 1])
    assert matrix[0, 3] == pytest.approx(np.corrcoef(table[:, 0], table[:, 3])[0, 1])


def test_two_models_and_constant_metrics_have_no_correlation():
    _, scores = make_scores(models=2)
    _, matrix = correlation_matrix(scores)
    assert np.isnan(matrix).all()
    _, scores = make_scores()
    for metrics in scores.values():
        metrics["metric 2"] = 100 * (1 / 3)
    _, matrix = correlation_matrix(scores)
    assert np.isnan(matrix[2]).all()
    assert np.isnan(matrix[:, 2]).all()
    assert np.isfinite(np.delete(np.delete(matrix, 2, 0), 2, 1)).all()


def test_without_metrics_there_is_nothing_to_correlate():
    with pytest.raises(ValueError, match="no metric to correlate in the scores of 0 models"):
        correlation_matrix({})


def cell_texts(figure):
    return {
        (int(text.get_position()[1]), int(text.get_position()[0])): text.get_text() for text in figure.axes[0].texts
    }


def test_heat_map_has_a_number_in_each_cell_but_the_missing():
    pytest.importorskip("matplotlib")
    from hf_meanmax.plots.correlations import plot_correlations

    matrix = np.array([[1, -0.514, np.nan], [-0.514, 1, -0.003], [np.nan, -0.003, 1]])
    figure = plot_correlations(["BLEU", "AvgAcc", "AvgSim"], matrix)
    texts = cell_texts(figure)
    assert texts == {
        (0, 0): "1",
        (0, 1): "-.51",
        (1, 0): "-.51",
        (1, 1): "1",
        (1, 2): ".00",
        (2, 1): ".00",
        (2, 2): "1",
    }
    image = figure.axes[0].images[0]
    assert image.get_clim() == (-1, 1)
    red, green, blue, _ = image.cmap(np.ma.masked_invalid([np.nan]))[0]
    assert red == green == blue == pytest.approx(0.8, abs=0.01)
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()][:3] == ["BLEU", "AvgAcc", "AvgSim"]


def test_thirty_metrics_fit_into_their_cells(tmp_path):
    pytest.importorskip("matplotlib")
    from hf_meanmax.plots.correlations import plot_correlations
    from hf_meanmax.plots.figures import save_figure

    table = np.random.default_rng(0).standard_normal((8, 30))
    scores = {str(m): {f"task {k} nearest_cosine": table[m, k] for k in range(30)} for m in range(8)}
    names, matrix = correlation_matrix(scores)
    figure = plot_correlations(names, matrix)
    save_figure(figure, tmp_path / "correlations.png")
    assert (tmp_path / "correlations.png").read_bytes().startswith(b"\x89PNG")
    figure.draw_without_rendering()
    axes = figure.axes[0]
    cell = axes.get_window_extent().width / 30
    assert max(text.get_window_extent().width for text in axes.texts) < cell
    labels = [label.get_window_extent() for label in axes.get_yticklabels()]
    assert all(not above.overlaps(below) for above, below in pairwise(labels))
    assert min(label.x0 for label in labels) >= 0


def test_bad_matrices_are_refused():
    pytest.importorskip("matplotlib")
    from hf_meanmax.plots.correlations import plot_correlations

    with pytest.raises(ValueError, match=r"2 names need a matrix of 2 rows and columns, got \(3, 3\)"):
        plot_correlations(["a", "b"], np.eye(3))
    with pytest.raises(ValueError, match=r"A correlation is 1\.5 in size"):
        plot_correlations(["a", "b"], np.array([[1, 1.5], [1.5, 1]]))
    with pytest.raises(ValueError, match="0 names"):
        plot_correlations([], np.zeros((0, 0)))
