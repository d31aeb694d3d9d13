"""Denoising noise: its definition row by row, and its rates."""

from __future__ import annotations

import numpy as np
import pytest

from hf_meanmax.data import Noise, Ragged

EOS = 3


def make_rows(lengths) -> Ragged:
    """Distinct words in every row, `</s>` last."""
    lengths = np.array(lengths, dtype=np.int64)
    return Ragged(np.concatenate([[*range(10, 9 + n), EOS] for n in lengths]).astype(np.int64), lengths)


def split(rows: Ragged) -> list[list[int]]:
    return [row.tolist() for row in np.split(rows.ids, np.cumsum(rows.lengths)[:-1])]


RANDOM_LENGTHS = np.random.default_rng(0).integers(1, 30, size=500)


@pytest.mark.parametrize("drop", [0.1, 0.5, 0.99])
def test_drop_keeps_order_end_and_a_word(drop):
    rows = make_rows(RANDOM_LENGTHS)
    noisy = Noise(word_drop=drop)(rows, np.random.default_rng(1))
    for before, after in zip(split(rows), split(noisy), strict=True):
        assert after[-1] == EOS
        assert after[:-1] == sorted(set(after[:-1]) & set(before[:-1]))
        assert len(after) >= min(len(before), 2)


def test_drop_rate():
    rows = make_rows([101] * 1000)
    noisy = Noise(word_drop=0.2)(rows, np.random.default_rng(1))
    assert (noisy.lengths - 1).sum() / 100_000 == pytest.approx(0.8, abs=0.006)


def test_spared_word_is_any_word():
    noisy = Noise(word_drop=0.999)(make_rows([6] * 3000), np.random.default_rng(1))
    kept = np.bincount([row[0] - 10 for row in split(noisy) if len(row) == 2], minlength=5)
    assert kept.min() > 500


@pytest.mark.parametrize("swap", [0.3, 1.0])
def test_swap_exchanges_whole_bigrams_only(swap):
    rows = make_rows(RANDOM_LENGTHS)
    swapped = pairs = 0
    for before, after in zip(split(rows), split(Noise(word_swap=swap)(rows, np.random.default_rng(2))), strict=True):
        words = len(before) - 1
        assert after[words] == EOS
        for first in range(0, words - 1, 2):
            pair = before[first : first + 2]
            pairs += 1
            swapped += after[first : first + 2] == pair[::-1]
            assert after[first : first + 2] in (pair, pair[::-1])
        if words % 2:
            assert after[words - 1] == before[words - 1]
    assert swapped / pairs == pytest.approx(swap, abs=0.03)


def test_no_noise_changes_nothing_and_inputs_stay():
    rows = make_rows(RANDOM_LENGTHS)
    copy = rows.ids.copy()
    assert Noise()(rows, np.random.default_rng(0)) is rows
    Noise(0.5, 0.5)(rows, np.random.default_rng(0))
    assert (rows.ids == copy).all()


def test_rows_without_words():
    noisy = Noise(0.9, 1.0)(make_rows([1, 1, 2]), np.random.default_rng(0))
    assert split(noisy) == [[EOS], [EOS], [10, EOS]]


@pytest.mark.parametrize(("drop", "swap"), [(-0.1, 0), (1.0, 0), (0, 1.1), (0, -1)])
def test_bad_probabilities(drop, swap):
    with pytest.raises(ValueError, match=r"word_(drop|swap) is"):
        Noise(drop, swap)


def test_a_stretch_of_words_is_dropped():
    rows = Ragged(np.concatenate([np.arange(10, 20), [3], [50, 3], [3]]), np.array([11, 2, 1]))
    begins = set()
    for seed in range(200):
        ids, lengths = Noise(span_drop=0.35)(rows, np.random.default_rng(seed))
        assert lengths.tolist() == [8, 2, 1]
        kept = ids[:7].tolist()
        missing = sorted(set(range(10, 20)) - set(kept))
        assert missing == list(range(missing[0], missing[0] + 3))
        assert kept == sorted(kept)
        assert ids[7:].tolist() == [3, 50, 3, 3]
        begins.add(missing[0])
    assert begins == set(range(10, 18))
    with pytest.raises(ValueError, match=r"span_drop is 1\.0"):
        Noise(span_drop=1.0)
