"""What defences store, and what can be put back of it."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.decomposition import PCA

from hf_meanmax.evaluation.defences import make_defences

ROWS = (np.random.default_rng(0).normal(size=(300, 16)) * np.linspace(2, 0.2, 16) + 0.3).astype(np.float32)
NEW = (np.random.default_rng(1).normal(size=(50, 16)) * np.linspace(2, 0.2, 16) + 0.3).astype(np.float32)


def defence(name, rows=ROWS, **settings):
    (found,) = [one for one in make_defences(rows, **settings) if one.name == name]
    return found


def restored(name, **settings):
    one = defence(name, **settings)
    return one.restore(one.store(NEW))


def test_what_there_is():
    names = [one.name for one in make_defences(ROWS, [0.5], [0.5, 0.25])]
    assert names == ["none", "noise 0.5", "PCA 8", "PCA 4", "first 8", "first 4", "int8", "binary"]
    sizes = [one.num_bytes for one in make_defences(ROWS, [0.5], [0.5, 0.25])]
    assert sizes == [64, 64, 32, 16, 32, 16, 16, 2]
    for one in make_defences(ROWS):
        stored = one.store(NEW)
        assert one.restore(stored).shape == NEW.shape
        assert one.restore(stored).dtype == np.float32
        assert stored.dtype == np.float32
    np.testing.assert_array_equal(restored("none"), NEW)


def test_noise_has_its_length():
    one = defence("noise 0.5", noise_levels=[0.5])
    many = np.tile(NEW, (40, 1))
    noise = one.store(many) - many
    length = np.linalg.norm(ROWS, axis=1).mean()
    assert np.sqrt((noise**2).sum(axis=1).mean()) == pytest.approx(0.5 * length, rel=0.03)
    assert abs(noise.mean()) < 0.02
    assert not np.allclose(noise[:50], noise[50:100])
    np.testing.assert_array_equal(restored("noise 0.5", noise_levels=[0.5]), restored("noise 0.5", noise_levels=[0.5]))
    assert not np.array_equal(restored("noise 0.1"), restored("noise 0.1", seed=1))


def test_principal_components_are_those_of_scikit_learn():
    fitted = PCA(4).fit(ROWS)
    np.testing.assert_allclose(restored("PCA 4"), fitted.inverse_transform(fitted.transform(NEW)), atol=1e-5)


def test_leading_numbers_are_kept_and_the_rest_are_means():
    found = restored("first 4")
    np.testing.assert_array_equal(found[:, :4], NEW[:, :4])
    np.testing.assert_allclose(found[:, 4:], np.tile(ROWS[:, 4:].mean(axis=0), (50, 1)), rtol=1e-5)


def test_int8_is_half_a_step_off_at_most():
    step = (ROWS.max(axis=0) - ROWS.min(axis=0)) / 255
    one = defence("int8")
    assert (np.abs(one.restore(one.store(ROWS)) - ROWS) <= 0.51 * step + 1e-6).all()
    assert np.abs(one.restore(one.store(ROWS)) - ROWS).max() > 0


def test_binary_gives_the_mean_of_the_numbers_of_a_sign():
    one = defence("binary")
    assert set(np.unique(one.store(NEW))) == {-1.0, 1.0}
    found = one.restore(one.store(NEW))
    for column in range(16):
        own = ROWS[:, column]
        expected = np.where(NEW[:, column] > 0, own[own > 0].mean(), own[own <= 0].mean())
        np.testing.assert_allclose(found[:, column], expected, rtol=1e-4)
    # A number that had one sign alone.
    positive = defence("binary", np.abs(ROWS))
    assert np.isfinite(positive.restore(positive.store(-NEW))).all()


def test_components_need_twice_as_many_rows():
    assert [one.name for one in make_defences(ROWS[:9]) if one.kind == "pca"] == ["PCA 4", "PCA 2"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"noise_levels": [0.0]}, "noise level is 0.0"),
        ({"noise_levels": [np.nan]}, "noise level is nan"),
        ({"kept_shares": [1.5]}, "share of dimensions is 1.5"),
    ],
)
def test_bad_levels(settings, reason):
    with pytest.raises(ValueError, match=reason):
        make_defences(ROWS, **settings)
