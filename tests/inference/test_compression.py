"""PCA and int8: what scikit-learn and sentence-transformers give, kept in a file, applied in batches."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.decomposition
from safetensors.numpy import save_file

from hf_meanmax.inference.compression import PCA, Compression, calibrate_int8, dequantize_int8, quantize_int8


def rows(count: int = 400, dimension: int = 12) -> np.ndarray:
    generator = np.random.default_rng(0)
    scales = np.linspace(3, 0.1, dimension)
    mixed = generator.standard_normal((count, dimension)) * scales @ generator.standard_normal((dimension, dimension))
    return (mixed + 5).astype(np.float32)


def test_pca_equals_that_of_scikit_learn():
    data = rows()
    ours, theirs = PCA.fit(data, 4), sklearn.decomposition.PCA(4, svd_solver="full").fit(data.astype(np.float64))
    expected = theirs.transform(data)
    assert np.allclose(np.abs(ours.apply(data)), np.abs(expected), atol=1e-3)
    assert ours.explained_variance_ratio == pytest.approx(theirs.explained_variance_ratio_.sum(), abs=1e-4)
    assert np.allclose(ours.components @ ours.components.T, np.eye(4), atol=1e-5)
    assert np.array_equal(np.concatenate([ours.apply(data[:7]), ours.apply(data[7:])]).shape, expected.shape)
    assert PCA.fit(data, 4).fingerprint() == ours.fingerprint() != PCA.fit(data, 3).fingerprint()


def test_all_components_keep_distances():
    data = rows()
    projected = PCA.fit(data, 12).apply(data)
    assert PCA.fit(data, 12).explained_variance_ratio == pytest.approx(1)
    assert np.allclose(
        np.linalg.norm(projected[0] - projected[1:], axis=1), np.linalg.norm(data[0] - data[1:], axis=1), rtol=1e-3
    )


def test_pca_of_constant_rows_keeps_all_of_nothing():
    fitted = PCA.fit(np.ones((5, 3), np.float32), 2)
    assert fitted.explained_variance_ratio == 1
    assert np.allclose(fitted.apply(np.ones((2, 3), np.float32)), 0)


@pytest.mark.parametrize(
    ("count", "components", "said"), [(400, 13, "the vectors have 12 numbers"), (5, 6, "needs as many rows, got 5")]
)
def test_components_that_are_not_there(count, components, said):
    with pytest.raises(ValueError, match=said):
        PCA.fit(rows(count), components)


def test_int8_is_half_a_step_off_at_most():
    data = rows()
    data[:, 3] = 7
    ranges = calibrate_int8(data)
    codes = quantize_int8(data, ranges)
    assert codes.dtype == np.int8
    step = (ranges[1] - ranges[0]) / 255
    assert (np.abs(dequantize_int8(codes, ranges) - data) <= step / 2 * 1.001 + 1e-6).all()
    assert (dequantize_int8(codes, ranges)[:, 3] == 7).all()
    assert codes[:, 0].min() == -128
    assert codes[:, 0].max() == 127
    assert np.array_equal(quantize_int8(data + 100, ranges)[:, 0], np.full(len(data), 127))


def test_files_round_trip_and_damage_is_named(tmp_path):
    path = tmp_path / "compression.safetensors"
    data = rows()
    pca, ranges = PCA.fit(data, 4), calibrate_int8(data)
    Compression(pca, ranges).save(path)
    read = Compression.load(path)
    assert read.pca.fingerprint() == pca.fingerprint()
    assert read.pca.explained_variance_ratio == pca.explained_variance_ratio
    assert np.array_equal(read.ranges, ranges)
    Compression(ranges=ranges).save(path)
    assert Compression.load(path).pca is None
    with pytest.raises(ValueError, match=r"takes vectors of 12 numbers; got an array \(400, 11\)"):
        pca.apply(data[:, 1:])

    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ValueError, match=r"compression.safetensors is damaged"):
        Compression.load(path)
    save_file({"pca.mean": np.zeros(3, np.float32)}, path)
    with pytest.raises(ValueError, match=r"damaged or holds no PCA.*pca\.components"):
        Compression.load(path)
    save_file({"ranges": np.zeros(3, np.float32)}, path)
    with pytest.raises(ValueError, match=r"ranges of shape \(3,\)"):
        Compression.load(path)
    save_file({"weight": np.zeros(3, np.float32)}, path)
    with pytest.raises(ValueError, match=r"holds no PCA and no ranges \(it holds weight\)"):
        Compression.load(path)
    with pytest.raises(FileNotFoundError, match=r"none\.safetensors"):
        Compression.load(tmp_path / "none.safetensors")
