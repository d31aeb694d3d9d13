"""The losses: chunked and sampled against the full one, in values and gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hf_meanmax.modeling.losses import full_cross_entropy
from hf_meanmax.objectives import cross_entropy
from hf_meanmax.objectives.cross_entropy import chunked_cross_entropy, sampled_cross_entropy

V, D = 23, 5


def make_inputs(dtype=torch.float64):
    states = torch.randn(3, 7, D, dtype=dtype, requires_grad=True)
    weight = torch.randn(V, D, dtype=dtype, requires_grad=True)
    bias = torch.randn(V, dtype=dtype, requires_grad=True)
    labels = torch.randint(0, V, (3, 7))
    labels[0, 4:] = labels[2, :3] = -100
    return states, weight, bias, labels


def gradients(loss, *inputs):
    return torch.autograd.grad(loss, [x for x in inputs if x is not None])


def full(states, weight, bias, labels, *args):
    return full_cross_entropy(nn.functional.linear(states, weight, bias), labels, *args)


def test_full_is_the_sum_over_targets_by_hand():
    states, weight, bias, labels = make_inputs()
    total, count = 0.0, 0
    for state, label in zip(states.flatten(0, 1).tolist(), labels.flatten().tolist(), strict=True):
        if label != -100:
            scores = [math.fsum(s * w for s, w in zip(state, row, strict=True)) for row in weight.tolist()]
            scores = [s + b for s, b in zip(scores, bias.tolist(), strict=True)]
            log_p = [s - math.log(math.fsum(map(math.exp, scores))) for s in scores]
            total += -0.9 * log_p[label] - 0.1 * sum(log_p) / V
            count += 1
    assert full(states, weight, bias, labels, 0.1).item() == pytest.approx(total / count, abs=1e-12)


@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_chunked_equals_full(chunk, smoothing, with_bias, monkeypatch):
    monkeypatch.setattr(cross_entropy, "_CHUNK_TOKENS", chunk)
    states, weight, bias, labels = make_inputs()
    bias = bias if with_bias else None
    chunked = chunked_cross_entropy(states, weight, bias, labels, smoothing)
    expected = full(states, weight, bias, labels, smoothing)
    torch.testing.assert_close(chunked, expected, atol=1e-10, rtol=0)
    # A loss is often scaled before its backward pass (accumulation, loss scaling).
    for a, b in zip(
        gradients(3 * chunked, states, weight, bias), gradients(3 * expected, states, weight, bias), strict=True
    ):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=0)
    with torch.no_grad():
        assert torch.equal(chunked_cross_entropy(states, weight, bias, labels, smoothing), chunked)


def test_chunked_with_frozen_inputs():
    """Gradients for some inputs only, as with a frozen output layer."""
    states, weight, bias, labels = make_inputs()
    expected = gradients(full(states, weight, bias, labels), states, weight, bias)
    for i in range(3):
        inputs = [x.detach().requires_grad_(i == j) for j, x in enumerate((states, weight, bias))]
        chunked_cross_entropy(*inputs, labels).backward()
        assert [x.grad is not None for x in inputs] == [i == j for j in range(3)]
        torch.testing.assert_close(inputs[i].grad, expected[i], atol=1e-10, rtol=0)


def test_chunked_never_holds_all_logits(monkeypatch):
    monkeypatch.setattr(cross_entropy, "_CHUNK_TOKENS", 64)
    rows, words = 1024, 512
    largest = 0

    class Largest(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            output = function(*args, **(kwargs or {}))
            for item in output if isinstance(output, tuple | list) else (output,):
                if isinstance(item, torch.Tensor):
                    largest = max(largest, item.numel())
            return output

    states = torch.randn(rows, 8, requires_grad=True)
    weight = torch.randn(words, 8, requires_grad=True)
    with Largest():
        chunked_cross_entropy(states, weight, None, torch.randint(0, words, (rows,))).backward()
    assert 64 * words <= largest < rows * words / 4


def test_chunks_are_shorter_with_more_words(monkeypatch):
    states, weight, bias, labels = make_inputs()
    sizes = []
    linear = nn.functional.linear
    monkeypatch.setattr(cross_entropy, "_CHUNK_LOGITS", 3 * V)
    monkeypatch.setattr(nn.functional, "linear", lambda x, *rest: sizes.append(len(x)) or linear(x, *rest))
    loss = chunked_cross_entropy(states, weight, bias, labels)
    monkeypatch.undo()
    assert max(sizes) == 3
    torch.testing.assert_close(loss, full(states, weight, bias, labels))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("how", ["autocast", "weights"])
def test_chunked_in_bfloat16(how, smoothing):
    """Computed in bfloat16, summed in float32: a sum in bfloat16 stops growing long before these many targets."""
    dtype = torch.float32 if how == "autocast" else torch.bfloat16
    states = torch.randn(2000, D, dtype=dtype, requires_grad=True)
    weight = torch.randn(V, D, dtype=dtype, requires_grad=True)
    bias = torch.randn(V, dtype=dtype, requires_grad=True)
    labels = torch.randint(0, V, (2000,))
    exact = [x.detach().double().requires_grad_() for x in (states, weight, bias)]
    expected = full(*exact, labels, smoothing)
    with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
        loss = chunked_cross_entropy(states, weight, bias, labels, smoothing)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=2e-3)
    for x, a, b in zip(
        (states, weight, bias), gradients(loss, states, weight, bias), gradients(expected, *exact), strict=True
    ):
        assert a.dtype == x.dtype
        assert (a.double() - b).norm() < 0.02 * b.norm()


def test_chunked_survives_a_hopeless_target():
    """A target whose probability underflows has a large finite loss and the right gradient."""
    weight = torch.zeros(3, 1, requires_grad=True)
    bias = torch.tensor([0.0, 200.0, 0.0], requires_grad=True)
    loss = chunked_cross_entropy(torch.zeros(1, 1), weight, bias, torch.tensor([0]))
    assert loss.isfinite()
    assert loss > 80
    torch.testing.assert_close(gradients(loss, bias)[0], torch.tensor([-1.0, 1.0, 0.0]))


@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_sampled_over_all_words_equals_full(smoothing, with_bias):
    states, weight, bias, labels = make_inputs()
    bias = bias if with_bias else None
    sampled = sampled_cross_entropy(
        states, weight, bias, labels, torch.arange(V), torch.zeros(V, dtype=torch.float64), smoothing
    )
    expected = full(states, weight, bias, labels, smoothing)
    torch.testing.assert_close(sampled, expected, atol=1e-10, rtol=0)
    for a, b in zip(gradients(sampled, states, weight, bias), gradients(expected, states, weight, bias), strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=0)


def test_sparse_gradients_are_the_candidates_rows():
    states, weight, bias, labels = make_inputs()
    candidates = torch.unique(labels[labels != -100])
    options = (labels, candidates, torch.zeros(len(candidates)))
    dense = gradients(sampled_cross_entropy(states, weight, bias, *options), weight)[0]
    sparse = gradients(sampled_cross_entropy(states, weight, bias, *options, sparse=True), weight)[0]
    assert sparse.is_sparse
    assert torch.equal(sparse.coalesce().indices()[0], candidates)
    torch.testing.assert_close(sparse.to_dense(), dense)


def test_sampled_leaves_other_words_alone():
    states, weight, bias, labels = make_inputs()
    candidates = torch.unique(torch.cat([labels[labels != -100], torch.tensor([0, V - 1])]))
    others = torch.ones(V, dtype=torch.bool)
    others[candidates] = False
    loss = sampled_cross_entropy(states, weight, bias, labels, candidates, torch.zeros(len(candidates)))
    grad_states, grad_weight, grad_bias = gradients(loss, states, weight, bias)
    assert others.any()
    assert grad_weight[others].abs().sum() == grad_bias[others].abs().sum() == 0
    assert grad_states[labels == -100].abs().sum() == 0
    assert grad_weight[candidates].abs().sum(dim=-1).min() > 0


def test_sampled_partition_is_right_in_expectation():
    """With targets and negatives drawn as in training, the corrected sum over candidates has the full one as mean."""
    generator = torch.Generator().manual_seed(0)
    T, K, draws = 3, 8, 3000
    counts = torch.arange(1, V + 1, dtype=torch.float64)
    p, q = counts / counts.sum(), counts**0.75 / (counts**0.75).sum()
    log_prob = torch.log1p(-((1 - q) ** K) * (1 - p) ** T)
    state, weight, bias = torch.randn(1, D).double(), torch.randn(V, D).double(), torch.randn(V).double()
    weight = weight / D**0.5
    scores = nn.functional.linear(state, weight, bias)[0]
    estimates = torch.empty(draws, dtype=torch.float64)
    for i in range(draws):
        targets = torch.multinomial(p, T, replacement=True, generator=generator)
        negatives = torch.multinomial(q, K, replacement=True, generator=generator)
        candidates = torch.unique(torch.cat([targets, negatives]))
        label = targets[:1]
        loss = sampled_cross_entropy(state, weight, bias, label, candidates, log_prob[candidates])
        # loss = log(sum) - (score - log_prob) of the target
        estimates[i] = torch.exp(loss + scores[label[0]] - log_prob[label[0]])
    truth = scores.exp().sum()
    error = (estimates.mean() - truth) / (estimates.std() / draws**0.5)
    assert abs(error) < 4, f"{error:.1f} standard errors off"
    assert estimates.std() / truth < 1.0  # else the check above would say little


def test_num_items_divides_the_sum():
    states, weight, bias, labels = make_inputs()
    everything = torch.arange(V), torch.zeros(V, dtype=torch.float64)
    count = (labels != -100).sum().item()
    for function, extra in ((full, ()), (chunked_cross_entropy, ()), (sampled_cross_entropy, everything)):
        mean = function(states, weight, bias, labels, *extra)
        for items in (50, torch.tensor(50)):
            loss = function(states, weight, bias, labels, *extra, 0.0, items)
            torch.testing.assert_close(loss, mean * count / 50)
        parts = sum(function(states[i : i + 1], weight, bias, labels[i : i + 1], *extra, 0.0, count) for i in range(3))
        torch.testing.assert_close(parts, mean)


def test_no_targets_give_zero():
    states, weight, bias, labels = make_inputs()
    labels.fill_(-100)
    everything = torch.arange(V), torch.zeros(V, dtype=torch.float64)
    for function, extra in ((full, ()), (chunked_cross_entropy, ()), (sampled_cross_entropy, everything)):
        loss = function(states, weight, bias, labels, *extra)
        assert loss.item() == 0
        assert all(grad.abs().sum() == 0 for grad in gradients(loss, states, weight, bias))


def test_chunks_in_bf16_are_as_near_as_the_full_loss():
    """Where targets are all but certain, what a probability lacks of 1 is what the gradient is made of."""
    torch.manual_seed(0)
    weight, labels = torch.randn(500, 32), torch.randint(500, (1, 64))
    states = 12 * weight[labels] / weight[labels].square().sum(dim=-1, keepdim=True)
    found = {}
    for name, loss_of in (("full", full), ("chunked", chunked_cross_entropy)):
        for is_cast in (False, True):
            inputs = states.clone().requires_grad_()
            with torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
                loss = loss_of(inputs, weight, None, labels)
            found[name, is_cast] = torch.cat([loss.detach()[None], *(g.flatten() for g in gradients(loss, inputs))])
    exact = found["full", False]
    torch.testing.assert_close(found["chunked", False], exact, rtol=1e-4, atol=1e-6)
    errors = {name: float((found[name, True] - exact).norm()) for name in ("full", "chunked")}
    assert errors["chunked"] < 1.2 * errors["full"]
