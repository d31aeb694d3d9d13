"""The peers that the table is compared with get the learning rate that they are said to get, and the gradients that
their library computes."""

import importlib.util
from pathlib import Path

import pytest
import torch

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


@pytest.mark.parametrize("kind", ["tsdae", "simcse"])
def test_groups_of_like_length_have_the_gradients_of_the_library(kind, tmp_path):
    lines = ["one", "the cat sat on the mat", "a dog ran", "it was the best of times , it was the worst of times"] * 2
    lines = sorted(lines, key=len)
    peer = train_peer.Peer(kind, train_peer.train_tokenizer(lines), tmp_path, torch.device("cpu"), 1e-3)
    peer.use_bf16 = False
    peer.loss.eval()
    state = peer.random.getstate()
    noisy = [peer._noisy(line) for line in lines] if kind == "tsdae" else lines
    peer.loss([train_peer.features_of(peer.model, text) for text in (noisy, lines)], None).backward()
    expected = {name: weight.grad.clone() for name, weight in peer.loss.named_parameters() if weight.grad is not None}
    tokens = []
    for peer.groups in (1, 3):
        peer.random.setstate(state)
        peer.loss.zero_grad()
        tokens.append(peer.backward(lines[::-1]))
        found = {name: weight.grad for name, weight in peer.loss.named_parameters() if weight.grad is not None}
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-3)
    assert tokens[0] == tokens[1] > 8
