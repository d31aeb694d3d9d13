"""Paraphrase clusters against scikit-learn, with encoders whose scores are known."""

from __future__ import annotations

import gzip
import lzma

import numpy as np
import pytest

from hf_meanmax.evaluation.pair_files import read_pairs
from hf_meanmax.evaluation.paraphrases import (
    ParaphraseClusters,
    inverse_davies_bouldin,
    lda_predict,
    load_paraphrase_task,
)

pytest.importorskip("sklearn")

METRICS = ["lda_accuracy", "nearest_l2", "nearest_cosine", "inverse_davies_bouldin"]

COLUMNS = ("cluster", "text")


def make_rows(clusters: int = 20, size: int = 5) -> list[tuple[str, str]]:
    return [(f"c{cluster}", f"text {member} of {cluster}") for cluster in range(clusters) for member in range(size)]


def cluster_of(text: str) -> int:
    return int(text.split()[-1])


def perfect(texts, noise=0.01, clusters=20):
    """One-hot by cluster, and a little noise that is a function of the text."""
    vectors = np.eye(clusters)[[cluster_of(text) for text in texts]]
    noises = [np.random.default_rng(list(text.encode())).standard_normal(clusters) for text in texts]
    return (vectors + noise * np.array(noises)).astype(np.float32)


def shuffled(texts):
    return perfect(texts)[np.random.default_rng(1).permutation(len(texts))]


def blobs(clusters=12, size=5, dimension=6, spread=0.7, seed=0):
    """Points around centers that are the same for every seed."""
    centers = np.random.default_rng(9).standard_normal((clusters, dimension)) * np.linspace(3, 0.2, dimension) + 5
    draw = np.random.default_rng(seed)
    points = centers[:, None] + spread * draw.standard_normal((clusters, size, dimension))
    return points.reshape(-1, dimension).astype(np.float32), np.repeat(np.arange(clusters), size)


def test_perfect_encoder_gets_everything_right():
    result = ParaphraseClusters(make_rows()).evaluate(perfect)
    assert list(result.metrics) == METRICS
    assert [result.metrics[name] for name in METRICS[:3]] == [100, 100, 100]
    assert result.metrics["inverse_davies_bouldin"] > 10
    assert (result.main, result.score) == ("nearest_cosine", 100)
    assert result.num_test == 100
    assert result.items["correct"].tolist() == [1.0] * 100


def test_encoder_that_merges_paraphrases_has_the_greatest_index():
    result = ParaphraseClusters(make_rows()).evaluate(lambda texts: perfect(texts, noise=0))
    assert [result.metrics[name] for name in METRICS[:3]] == [100, 100, 100]
    assert result.metrics["inverse_davies_bouldin"] == 2**23


def test_shuffled_encoder_is_at_chance():
    result = ParaphraseClusters(make_rows()).evaluate(shuffled)
    for name in METRICS[:3]:
        assert result.metrics[name] < 15
    assert 0 < result.metrics["inverse_davies_bouldin"] < 0.3


def test_constant_encoder_is_at_chance():
    result = ParaphraseClusters(make_rows()).evaluate(lambda texts: np.full((len(texts), 4), 0.3, dtype=np.float32))
    assert result.metrics["lda_accuracy"] == 5
    assert result.metrics["nearest_l2"] < 15
    assert result.metrics["nearest_cosine"] < 15
    assert result.metrics["inverse_davies_bouldin"] == 0


@pytest.mark.filterwarnings("ignore:Only one sample")
@pytest.mark.parametrize("dimension", [1, 6, 80])
@pytest.mark.parametrize("sizes", ["equal", "unequal"])
def test_lda_is_scikit_learn_s(dimension, sizes):
    """Its lsqr solver with the same shrinkage, also with more dimensions than points, and unequal priors."""
    from sklearn.covariance import ledoit_wolf_shrinkage
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    spread = 0.7 if dimension < 80 else 3
    features, labels = blobs(dimension=dimension, spread=spread)
    if sizes == "unequal":
        keep = np.random.default_rng(0).random(len(labels)) < 0.6
        keep[::5] = True
        features, labels = features[keep], labels[keep]
    test, gold = blobs(dimension=dimension, spread=spread, seed=1)
    predicted, shrinkage = lda_predict(features, labels, test)
    means = np.array([features[labels == label].mean(axis=0) for label in range(12)])
    estimate = ledoit_wolf_shrinkage(features.astype(np.float64) - means[labels], assume_centered=True)
    assert shrinkage == pytest.approx(max(estimate, 1e-4), rel=1e-5)
    reference = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage)
    reference.fit(features.astype(np.float64), labels)
    assert predicted.tolist() == reference.predict(test.astype(np.float64)).tolist()
    assert 0.1 < np.mean(predicted == gold) < 1


def test_lda_of_single_points_takes_the_nearest():
    centers = np.array([[0, 0], [4, 0], [0, 9]], dtype=np.float32)
    predicted, _ = lda_predict(centers, np.arange(3), centers + np.float32(1.5))
    assert predicted.tolist() == [0, 1, 2]


def test_lda_of_two_opposite_deviations_is_defined():
    """Ledoit and Wolf's estimate is zero here, and the covariance has rank one."""
    features = np.array([[0, 0, 1], [0, 0, -1], [5, 5, 0]], dtype=np.float32)
    predicted, shrinkage = lda_predict(features, np.array([0, 0, 1]), features[[0, 2]])
    assert predicted.tolist() == [0, 1]
    assert shrinkage > 0


@pytest.mark.parametrize("scale", [1.0, 1e-9])
def test_davies_bouldin_is_scikit_learn_s_at_any_scale(scale):
    from sklearn.metrics import davies_bouldin_score

    features, labels = blobs()
    expected = 1 / davies_bouldin_score(features.astype(np.float64), labels)
    assert inverse_davies_bouldin(features * np.float32(scale), labels) == pytest.approx(expected, rel=1e-4)


def test_clusters_around_one_center_have_index_zero():
    points = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]], dtype=np.float32)
    assert inverse_davies_bouldin(points, np.array([0, 0, 1, 1])) == 0


def test_neighbors_are_those_of_scikit_learn():
    from sklearn.neighbors import NearestNeighbors

    features, labels = blobs(clusters=40, spread=1.0)
    task = ParaphraseClusters([(str(label), f"text {row}") for row, label in enumerate(labels)])
    result = task.evaluate(lambda texts: features)
    for metric, name in (("euclidean", "nearest_l2"), ("cosine", "nearest_cosine")):
        found = NearestNeighbors(n_neighbors=1, metric=metric).fit(features).kneighbors(return_distance=False)[:, 0]
        assert result.metrics[name] == pytest.approx(100 * np.mean(labels[found] == labels))
        assert 10 < result.metrics[name] < 90
    assert 100 * result.items["correct"].mean() == pytest.approx(result.score)


def test_lda_accuracy_is_the_mean_over_three_draws():
    rows = make_rows(clusters=12)
    features, labels = blobs()
    one = ParaphraseClusters(rows)
    masks = one.held_out_masks()
    assert len(masks) == 3
    assert all(np.bincount(labels[mask]).tolist() == [1] * 12 for mask in masks)
    assert len({mask.tobytes() for mask in masks}) == 3
    result = one.evaluate(lambda texts: features)
    accuracies = [
        100 * np.mean(lda_predict(features[~mask], labels[~mask], features[mask])[0] == labels[mask]) for mask in masks
    ]
    assert result.details["lda_accuracies"] == pytest.approx(accuracies)
    assert result.metrics["lda_accuracy"] == pytest.approx(np.mean(accuracies))
    again = ParaphraseClusters(rows)
    assert again.evaluate(lambda texts: features).metrics == result.metrics
    assert again.fingerprint() == one.fingerprint()


def test_clusters_of_two_are_scored():
    result = ParaphraseClusters(make_rows(size=2)).evaluate(perfect)
    assert [result.metrics[name] for name in METRICS[:3]] == [100, 100, 100]


@pytest.mark.parametrize("suffix", ["txt", "tsv.gz", "tsv.xz"])
def test_files_may_be_compressed_and_clusters_mixed(tmp_path, suffix):
    text = "b\tein Satz\na\tzwei Sätze\nb\tein anderer\na\tdrei\r\n"
    path = tmp_path / f"rows.{suffix}"
    pack = {"txt": bytes, "tsv.gz": gzip.compress, "tsv.xz": lzma.compress}[suffix]
    path.write_bytes(pack(text.encode()))
    task = ParaphraseClusters(read_pairs(path, COLUMNS))
    assert task.sentences() == ["ein Satz", "zwei Sätze", "ein anderer", "drei"]
    assert task.labels.tolist() == [0, 1, 0, 1]
    assert (
        task.fingerprint() != ParaphraseClusters([("x", text) for text in task.sentences()] + make_rows()).fingerprint()
    )


def test_fingerprint_depends_on_the_clusters():
    texts = ["one", "two", "three", "four"]
    tasks = [ParaphraseClusters(list(zip(names, texts, strict=True))) for names in ("aabb", "abab", "xxyy")]
    fingerprints = [task.fingerprint() for task in tasks]
    assert fingerprints[0] == fingerprints[2] != fingerprints[1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\tone\na\ttwo\nb three\n", r"rows.tsv, line 3: expected 'cluster TAB text', found 'b three'"),
        ("a\tone\na\ttwo\tthree\n", r"line 2: expected 'cluster TAB text', found 'a\\ttwo\\tthree'"),
        ("a\tone\na\t  \n", r"line 2: expected 'cluster TAB text', found 'a'"),
        ("a\tone\n\na\ttwo\n", r"line 2: expected 'cluster TAB text', found ''"),
        ("a\tone\na\ttwo\nb\tthree\n", "line 3: cluster 'b' has one text only"),
        ("a\tone\na\ttwo\n", "1 cluster; a comparison needs two or more"),
        ("", "rows.tsv: empty"),
    ],
)
def test_bad_files_are_refused_with_the_line(tmp_path, content, message):
    path = tmp_path / "rows.tsv"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        ParaphraseClusters(read_pairs(path, COLUMNS))


def test_damaged_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="No such file"):
        read_pairs(tmp_path / "absent.tsv", COLUMNS)
    path = tmp_path / "rows.tsv.xz"
    path.write_bytes(lzma.compress(b"a\tone\n" * 1000)[:-40])
    with pytest.raises(ValueError, match="damaged or cut short"):
        ParaphraseClusters(read_pairs(path, COLUMNS))
    path = tmp_path / "rows.tsv"
    path.write_bytes(b"a\tone\na\tt\xe9\n")
    with pytest.raises(ValueError, match="line 2"):
        ParaphraseClusters(read_pairs(path, COLUMNS))


def test_bad_rows_are_refused():
    with pytest.raises(ValueError, match="paraphrases, line 3: cluster 'b' has one text only"):
        ParaphraseClusters([("a", "one"), ("a", "two"), ("b", "three")])


def test_text_of_two_clusters_is_counted_and_never_right():
    rows = [*make_rows(), ("c0", "a twin of 0"), ("c1", "a twin of 0")]
    result = ParaphraseClusters(rows).evaluate(perfect)
    assert result.details["texts_in_several_clusters"] == 1
    assert result.items["correct"][-2:].tolist() == [0, 0]
    assert ParaphraseClusters(make_rows()).evaluate(perfect).details["texts_in_several_clusters"] == 0


def test_captions_of_multi30k(data_root, tmp_path):
    task = load_paraphrase_task(data_root)
    assert (task.name, len(task.texts), task.labels.max() + 1) == ("paraphrases", 5000, 1000)
    assert np.bincount(task.labels).tolist() == [5] * 1000
    with pytest.raises(FileNotFoundError, match=r"multi30k-captions\.test"):
        load_paraphrase_task(tmp_path)
