"""Domain alignment: the learned map against least squares, the retrieval against a plain search."""

from __future__ import annotations

import lzma
from itertools import combinations

import numpy as np
import pytest

from hf_meanmax.evaluation.domain_alignment import DomainAlignment, fit_affine_map, load_domain_alignment_task

METRICS = ["incl_l2", "incl_cosine", "excl_l2", "excl_cosine"]
DIMENSION = 8


def make_pairs(count: int, start: int) -> list[tuple[str, str]]:
    return [(f"A {number}", f"B {number}") for number in range(start, start + count)]


def make_task() -> DomainAlignment:
    return DomainAlignment(make_pairs(2000, 0), make_pairs(200, 2000), make_pairs(100, 2200))


class AffineWorld:
    """Texts of A are random points; their counterparts are affine images of them, plus noise."""

    def __init__(self, noise=0.0, scale=1.0, offset=0.0, dimension=DIMENSION):
        draw = np.random.default_rng(0)
        self.a = draw.standard_normal((2300, dimension))
        self.matrix = draw.standard_normal((dimension, dimension)) / np.sqrt(dimension)
        self.shift = draw.standard_normal(dimension)
        self.b = self.a @ self.matrix + self.shift + noise * draw.standard_normal((2300, dimension))
        self.a, self.b = scale * (self.a + offset), scale * (self.b + offset)

    def __call__(self, texts):
        sides = {"A": self.a, "B": self.b}
        return np.array([sides[text[0]][int(text[2:])] for text in texts], dtype=np.float32)


class Shuffled(AffineWorld):
    def __init__(self):
        super().__init__()
        self.b = np.random.default_rng(1).permutation(self.b)


@pytest.mark.parametrize(("scale", "offset"), [(1, 0), (1e-4, 3), (1e4, -3)])
def test_exact_affine_relation_is_found_at_any_scale(scale, offset):
    result = make_task().evaluate(AffineWorld(scale=scale, offset=offset))
    assert [result.metrics[name] for name in METRICS] == [100, 100, 100, 100]
    assert list(result.metrics) == METRICS
    assert (result.main, result.score, result.num_test) == ("incl_l2", 100, 100)
    assert result.items["correct"].tolist() == [1.0] * 100
    assert result.details["heldout_loss"] < 1e-3


def test_shuffled_pairs_are_at_chance():
    result = make_task().evaluate(Shuffled())
    assert max(result.metrics.values()) <= 5


def test_equal_domains_are_right_only_without_the_source():
    """Where A and B nearly coincide, the source itself may win."""
    draw = np.random.default_rng(3)
    world = AffineWorld()
    world.b = world.a + 0.05 * draw.standard_normal(world.a.shape)
    result = make_task().evaluate(world)
    assert result.metrics["excl_l2"] > 95
    assert result.metrics["incl_l2"] < 60
    constant = make_task().evaluate(lambda texts: np.ones((len(texts), 3), dtype=np.float32))
    assert max(constant.metrics.values()) <= 1


def test_learned_map_is_nearly_that_of_least_squares():
    world = AffineWorld(noise=0.5)
    train, heldout = slice(0, 2000), slice(2000, 2200)
    arrays = [part.astype(np.float32) for part in (world.a[train], world.b[train], world.a[heldout], world.b[heldout])]
    fitted = fit_affine_map(*arrays)
    extended = np.column_stack([world.a[train], np.ones(2000)])
    solution = np.linalg.lstsq(extended, world.b[train])[0]
    assert np.abs(fitted.weight - solution[:-1]).max() < 0.03
    assert np.abs(fitted.bias - solution[-1]).max() < 0.03
    error = np.mean((fitted(arrays[2]) - world.b[heldout]) ** 2)
    assert error == pytest.approx(0.25, rel=0.1)
    assert fitted.heldout_loss * arrays[1].var(axis=0).mean() == pytest.approx(error, rel=1e-3)


def test_learning_stops_when_the_held_out_pairs_get_worse():
    """With few pairs for the dimensions, least squares fits the noise too."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((900, 200)).astype(np.float32)
    y = (x @ draw.standard_normal((200, 5)) / np.sqrt(200) + draw.standard_normal((900, 5))).astype(np.float32)
    fitted = fit_affine_map(x[:400], y[:400], x[400:], y[400:])
    held = np.mean((fitted(x[400:]) - y[400:]) ** 2)
    overfitted = np.linalg.lstsq(x[:400], y[:400])[0]
    assert held < 0.9 * np.mean((x[400:] @ overfitted - y[400:]) ** 2)
    assert held < 0.9 * np.mean((y[:400].mean(axis=0) - y[400:]) ** 2)
    assert 0 < fitted.epochs < 100
    noise = draw.standard_normal((900, 5)).astype(np.float32)
    nothing = fit_affine_map(x[:400], noise[:400], x[400:], noise[400:])
    mean_error = np.mean((noise[:400].mean(axis=0) - noise[400:]) ** 2)
    assert np.mean((nothing(x[400:]) - noise[400:]) ** 2) <= mean_error * (1 + 1e-5)


def test_retrieval_is_that_of_a_plain_search():
    world = AffineWorld(noise=0.4)
    task = make_task()
    result = task.evaluate(world)
    split = {
        name: [np.float64(world([p[side] for p in pairs])) for side in (0, 1)] for name, pairs in task.pairs.items()
    }
    fitted = fit_affine_map(*(np.float32(part) for part in (*split["train"], *split["heldout"])))
    a, b = split["test"]
    mapped, pool = a @ fitted.weight + fitted.bias, np.concatenate([a, b])
    distances = {"l2": ((mapped[:, None] - pool) ** 2).sum(axis=2)}
    distances["cosine"] = -(mapped @ pool.T) / np.linalg.norm(mapped, axis=1)[:, None] / np.linalg.norm(pool, axis=1)
    own = np.arange(100)
    for metric, table in distances.items():
        correct = table.argmin(axis=1) == own + 100
        assert result.metrics[f"incl_{metric}"] == pytest.approx(100 * correct.mean())
        if metric == "l2":
            assert result.items["correct"].tolist() == correct.tolist()
        table[own, own] = np.inf
        assert result.metrics[f"excl_{metric}"] == pytest.approx(100 * (table.argmin(axis=1) == own + 100).mean())
    assert all(10 < value < 100 for value in result.metrics.values())


def test_a_text_that_is_there_twice_is_the_same_answer():
    """Two pairs with one B, and a pair that is there twice: the first of equal vectors is found."""
    test = make_pairs(60, 2200)
    shared = [(a, f"B {2200 + (number // 2) * 2}") for number, (a, _) in enumerate(test)]

    def embed(texts):
        # B is A and a constant, and an A with the number of another has its place.
        numbers = np.array([int(text[2:]) for text in texts])
        places = np.random.default_rng(0).standard_normal((2300, DIMENSION))[numbers // 2]
        return (places + 3 * np.array([[text[0] == "B"] for text in texts])).astype(np.float32)

    for pairs in (test[::2] + test[::2], shared):
        task = DomainAlignment(make_pairs(2000, 0), make_pairs(200, 2000), pairs)
        assert set(task.evaluate(embed).metrics.values()) == {100.0}


def test_scores_are_the_same_every_time():
    world = AffineWorld(noise=0.6)
    first, again = make_task(), make_task()
    results = [task.evaluate(world) for task in (first, again)]
    assert results[0].metrics == results[1].metrics
    assert results[0].details == results[1].details
    assert first.fingerprint() == again.fingerprint()


def write(folder, **contents):
    folder = folder / "domain-alignment"
    folder.mkdir(parents=True)
    for split, content in contents.items():
        (folder / f"sentence-compression.{split}.tsv.xz").write_bytes(lzma.compress(content.encode()))


def test_files_are_read_in_order(tmp_path):
    write(tmp_path, train="a\tA\nb\tB\n", heldout="c\tC\n", test="d\tD\ne\tE\n")
    task = load_domain_alignment_task(tmp_path)
    assert task.sentences() == list("abABcCdeDE")
    assert task.name == "domain-alignment"
    swapped = DomainAlignment([("A", "a"), ("B", "b")], [("c", "C")], [("d", "D"), ("e", "E")])
    assert swapped.fingerprint() != task.fingerprint()


def test_training_pairs_that_share_a_text_with_the_test_are_dropped():
    train = [("a", "A"), ("b", "other"), ("C", "x"), ("e", "E")]
    task = DomainAlignment(train, [("b", "B"), ("c2", "C")], [("c", "C"), ("b2", "B2")])
    assert task.pairs == {
        "train": [("a", "A"), ("e", "E")],
        "heldout": [("b", "B")],
        "test": [("c", "C"), ("b2", "B2")],
    }
    assert task.dropped == {"train": 2, "heldout": 1, "test": 0}
    with pytest.raises(ValueError, match="each pair of train shares a text with the other sets"):
        DomainAlignment([("c", "D")], [("b", "B")], [("c", "C")])
    with pytest.raises(ValueError, match="test has no pair"):
        DomainAlignment([("c", "D")], [("b", "B")], [])


def test_bad_files_are_refused(tmp_path):
    write(tmp_path / "cut", train="a\tA\nb\n", heldout="c\tC\n", test="d\tD\n")
    with pytest.raises(ValueError, match=r"train.tsv.xz, line 2: expected 'text of A TAB text of B', found 'b'"):
        load_domain_alignment_task(tmp_path / "cut")
    write(tmp_path / "part", train="a\tA\n", heldout="c\tC\n")
    with pytest.raises(FileNotFoundError, match=r"sentence-compression\.test"):
        load_domain_alignment_task(tmp_path / "part")
    write(tmp_path / "none", train="a\tA\n", heldout="", test="d\tD\n")
    with pytest.raises(ValueError, match=r"heldout.tsv.xz: empty"):
        load_domain_alignment_task(tmp_path / "none")


def test_compressed_sentences(data_root):
    task = load_domain_alignment_task(data_root)
    kept = {split: len(pairs) for split, pairs in task.pairs.items()}
    assert {split: count + task.dropped[split] for split, count in kept.items()} == {
        "train": 7999,
        "heldout": 1000,
        "test": 1001,
    }
    assert task.dropped["test"] == 0
    assert 0 < task.dropped["train"] < 20
    assert len(task.sentences()) == 2 * sum(kept.values())
    texts = [{text for pair in pairs for text in pair} for pairs in task.pairs.values()]
    assert all(a.isdisjoint(b) for a, b in combinations(texts, 2))
