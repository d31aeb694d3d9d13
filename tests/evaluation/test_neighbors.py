"""Nearest neighbours against a plain search in float64."""

from __future__ import annotations

import numpy as np
import pytest

from hf_meanmax.evaluation.neighbors import nearest, shared_neighbors


def plain_search(queries, pool, metric, excluded=None):
    queries, pool = queries.astype(np.float64), pool.astype(np.float64)
    if metric == "l2":
        distances = ((queries[:, None] - pool) ** 2).sum(axis=2)
    else:
        distances = -(queries @ pool.T) / np.linalg.norm(queries, axis=1)[:, None] / np.linalg.norm(pool, axis=1)
    if excluded is not None:
        distances[np.arange(len(queries)), excluded] = np.inf
    return distances.argmin(axis=1).tolist()


@pytest.mark.parametrize("metric", ["l2", "cosine"])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_neighbors_are_those_of_a_plain_search(metric, offset):
    draw = np.random.default_rng(0)
    pool = (draw.standard_normal((700, 5)) * [1, 2, 3, 4, 5] + offset).astype(np.float32)
    queries = (draw.standard_normal((600, 5)) + offset).astype(np.float32)
    assert nearest(queries, pool, metric).tolist() == plain_search(queries, pool, metric)
    itself = np.arange(700)
    assert nearest(pool, pool, metric).tolist() == itself.tolist()
    assert nearest(pool, pool, metric, itself).tolist() == plain_search(pool, pool, metric, itself)


def test_metrics_differ():
    pool = np.array([[1, 0.2], [10, 0]], dtype=np.float32)
    query = np.array([[1, 0]], dtype=np.float32)
    assert nearest(query, pool, "l2").tolist() == [0]
    assert nearest(query, pool, "cosine").tolist() == [1]


def test_of_equal_neighbors_the_first_wins():
    pool = np.array([[3, 0], [0, 1], [1, 0], [0, 1], [1, 0]], dtype=np.float32)
    assert nearest(pool, pool, "l2", np.arange(5)).tolist() == [2, 3, 4, 1, 2]
    assert nearest(pool, pool, "cosine", np.arange(5)).tolist() == [2, 3, 0, 1, 0]


def test_vectors_of_zeros_are_not_near_by_cosine():
    pool = np.array([[0, 0], [1, 2]], dtype=np.float32)
    assert nearest(np.array([[2, 1]], dtype=np.float32), pool, "cosine").tolist() == [1]


def test_bad_arguments_are_refused():
    rows = np.zeros((2, 3), dtype=np.float32)
    with pytest.raises(ValueError, match="`metric` is 'l1'; allowed: 'l2', 'cosine'"):
        nearest(rows, rows, "l1")
    with pytest.raises(ValueError, match=r"\(2, 3\) and a pool of shape \(2, 2\)"):
        nearest(rows, rows[:, :2])
    with pytest.raises(ValueError, match="1 rows has no neighbour"):
        nearest(rows[:1], rows[:1], excluded=np.zeros(1, dtype=np.int64))


def test_shared_neighbors_are_those_of_a_plain_search():
    draw = np.random.default_rng(0)
    first = draw.standard_normal((600, 6)).astype(np.float32)
    second = np.concatenate([first[:, :4], draw.standard_normal((600, 3))], axis=1).astype(np.float32)

    def plain_others(vectors):
        units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        cosines = units @ units.T
        np.fill_diagonal(cosines, -np.inf)
        return [set(row[:10]) for row in np.argsort(-cosines, axis=1).tolist()]

    wanted = np.mean([len(a & b) / 10 for a, b in zip(plain_others(first), plain_others(second), strict=True)])
    assert shared_neighbors(first, second) == pytest.approx(wanted)
    assert 0.1 < wanted < 0.9
    assert shared_neighbors(first, 3 * first) == 1
    assert shared_neighbors(first[:4], second[:4]) == 1
    for one, other in ((first, second[1:]), (first[:1], second[:1])):
        with pytest.raises(ValueError, match="two or more texts, the same in both spaces"):
            shared_neighbors(one, other)
