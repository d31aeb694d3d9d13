"""The peers that the table is compared with get the learning rate that they are said to get."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("train_peer", ROOT / "benchmarks" / "train_peer.py")
train_peer = importlib.util.module_from_spec(spec)
spec.loader.exec_module(train_peer)


@pytest.mark.parametrize("steps", [400, 10_000])
def test_the_rate_reaches_its_peak_and_falls_to_zero(steps):
    rates = [train_peer.rate_at(1.0, step, step / steps) for step in range(steps)]
    peak = rates.index(max(rates))
    assert max(rates) >= 0.9
    assert peak == min(500, steps // 10) - (steps > 5000)
    assert 0 < rates[0] < 0.03
    assert rates == sorted(rates[: peak + 1]) + sorted(rates[peak + 1 :], reverse=True)
    assert rates[-1] < 0.003
