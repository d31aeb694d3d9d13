"""Row-wise Adam against torch's own, and clipping of sparse gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from hf_meanmax import MeanMaxAAEConfig, MeanMaxAAEForReconstruction
from hf_meanmax.training.optimizer import Muon, RowAdam, clip_gradients, hidden_matrices, make_optimizers
from hf_meanmax.training.settings import PretrainArguments

WORDS, WIDTH = 50, 6
SETTINGS = {"lr": 0.05, "betas": (0.8, 0.98), "eps": 1e-3}


class Bag(nn.Module):
    def __init__(self, sparse: bool):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH, sparse=sparse)
        self.head = nn.Linear(WIDTH, 3)

    def backward(self, ids: torch.Tensor) -> None:
        torch.nn.functional.cross_entropy(self.head(self.words(ids).mean(1)), ids.sum(1) % 3).backward()


def batches(number: int, most: int = WORDS) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, most, (8, 5), generator=generator) for _ in range(number)]


def train(model: Bag, optimizers: list[torch.optim.Optimizer], steps: list[torch.Tensor], max_norm: float = 0) -> None:
    for ids in steps:
        # Two micro batches a step: a sparse gradient then names some rows twice.
        for part in ids.chunk(2):
            model.backward(part)
        if max_norm:
            clip_gradients(model.parameters(), max_norm)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def train_rows(optimizer: type[torch.optim.Optimizer], sparse: bool, **options: object) -> torch.Tensor:
    """A table of which each step reads a few rows, some often and some hardly ever; the last step reads all."""
    number, generator = 400, torch.Generator().manual_seed(1)
    table = nn.Parameter(torch.zeros(number, WIDTH))
    made = optimizer([table], lr=1e-3, betas=(0.9, 0.98), **options)
    for _ in range(300):
        rows = torch.multinomial(1 / torch.arange(1.0, number + 1), 40, generator=generator)
        values = torch.randn(len(rows), WIDTH, generator=generator) + 0.5
        gradient = torch.sparse_coo_tensor(rows[None], values, table.shape, check_invariants=True)
        table.grad = gradient.coalesce() if sparse else gradient.to_dense()
        made.step()
    rest = torch.full_like(table, 1e-6)
    table.grad = rest.to_sparse(1).coalesce() if sparse else rest
    made.step()
    return table.detach()


@pytest.mark.parametrize(("first", "last"), [(0, 20), (20, 100), (100, 400)])
def test_lazy_adam_ends_where_adam_does(first, last):
    adam = train_rows(torch.optim.Adam, sparse=False)[first:last]
    lazy = train_rows(RowAdam, sparse=True, lazy=True)[first:last]
    sparse_adam = train_rows(torch.optim.SparseAdam, sparse=True)[first:last]
    # What is left are the corrections of the first steps, which change while a row waits.
    assert (lazy - adam).norm() < 0.03 * adam.norm()
    assert (sparse_adam - adam).norm() > 0.1 * adam.norm()


def test_lazy_adam_leaves_rows_without_a_gradient():
    model = Bag(True)
    train(model, [RowAdam(model.parameters(), lazy=True, fused=True, **SETTINGS)], batches(6, 9))
    assert torch.equal(model.words.weight[9:], Bag(True).words.weight[9:])
    assert not torch.equal(model.words.weight[:9], Bag(True).words.weight[:9])


@pytest.mark.parametrize("lazy", [True, False])
def test_a_sparse_gradient_is_adam(lazy):
    """The lazy form is so where a gradient has all rows."""
    sparse, dense = Bag(True), Bag(False)
    steps = batches(6)
    if lazy:
        steps = [torch.randperm(WORDS, generator=torch.Generator().manual_seed(i)).view(10, 5) for i in range(6)]
    train(sparse, [RowAdam(sparse.parameters(), lazy=lazy, fused=True, **SETTINGS)], steps, max_norm=0.5)
    train(dense, [torch.optim.Adam(dense.parameters(), **SETTINGS)], steps, max_norm=0.5)
    for ours, theirs in zip(sparse.parameters(), dense.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_dense_gradients_get_adam_to_the_last_bit():
    ours, theirs = Bag(False), Bag(False)
    train(ours, [RowAdam(ours.parameters(), fused=True, **SETTINGS)], batches(4))
    train(theirs, [torch.optim.Adam(theirs.parameters(), fused=True, **SETTINGS)], batches(4))
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


@pytest.mark.parametrize("max_norm", [0.01, 100.0])
def test_clipping_counts_rows_once(max_norm):
    sparse, dense = Bag(True), Bag(False)
    for model in (sparse, dense):
        for part in batches(1)[0].chunk(2):
            model.backward(part)
    norm = clip_gradients(sparse.parameters(), max_norm)
    torch.testing.assert_close(norm, torch.nn.utils.clip_grad_norm_(dense.parameters(), max_norm))
    for ours, theirs in zip(sparse.parameters(), dense.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.to_dense(), theirs.grad)


@pytest.mark.parametrize("lazy", [True, False])
def test_a_copy_goes_on(lazy):
    model = Bag(True)
    optimizer = RowAdam(model.parameters(), lazy=lazy, fused=True, **SETTINGS)
    train(model, [optimizer], batches(2))
    other, copied = copy.deepcopy((model, optimizer))
    train(model, [optimizer], batches(4)[2:])
    train(other, [copied], batches(4)[2:])
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert not torch.equal(other.words.weight, Bag(True).words.weight)


@pytest.mark.parametrize("lazy", [True, False])
def test_a_saved_state_goes_on(lazy):
    whole, first = Bag(True), Bag(True)
    options = {"lazy": lazy, "fused": True, **SETTINGS}
    train(whole, [RowAdam(whole.parameters(), **options)], batches(6))
    before = RowAdam(first.parameters(), **options)
    train(first, [before], batches(6)[:3])
    second = copy.deepcopy(first)
    after = RowAdam(second.parameters(), **options)
    after.load_state_dict(before.state_dict())
    train(second, [after], batches(6)[3:])
    assert all(torch.equal(a, b) for a, b in zip(second.parameters(), whole.parameters(), strict=True))


class Network(nn.Module):
    """Every kind of parameter that a model has."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH)
        self.gru = nn.GRU(WIDTH, 8, batch_first=True)
        self.filters = nn.Conv1d(8, 8, 3)
        self.hidden = nn.Linear(8, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, WORDS)
        self.frozen.requires_grad_(False)

    def loss(self, ids: torch.Tensor) -> torch.Tensor:
        states = self.gru(self.frozen(self.words(ids)))[0]
        states = self.filters(states.mT).mT + states[:, 2:]
        return torch.nn.functional.cross_entropy(self.lm_head(self.norm(self.hidden(states.mean(1)))), ids[:, 0])


def test_muon_takes_the_hidden_matrices_and_adam_the_rest():
    model = Network()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert [names[id(matrix)] for matrix in hidden_matrices(model)] == [
        "gru.weight_ih_l0",
        "gru.weight_hh_l0",
        "hidden.weight",
    ]
    adam, muon = make_optimizers(model, PretrainArguments(optimizer="muon", learning_rate=0.01), fused=True)
    taken = [id(p) for optimizer in (adam, muon) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(taken) == sorted(id(p) for p in model.parameters() if p.requires_grad)
    assert isinstance(adam, RowAdam)
    assert len(make_optimizers(model, PretrainArguments(), fused=True)) == 1
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name == "hidden.weight")
    (muon,) = make_optimizers(model, PretrainArguments(optimizer="muon", muon_rate=2.0, precision="fp32"), fused=True)
    assert isinstance(muon, Muon)
    assert muon.param_groups[0]["lr_factor"] == 2.0


@pytest.mark.parametrize("wrap", [lambda model: model, lambda model: torch.nn.ModuleDict({"module": model})])
def test_word_vectors_and_word_weights_have_rates_of_their_own(wrap):
    sizes = {"vocab_size": 40, "embedding_size": 12, "hidden_size": 16, "num_attention_heads": 4}
    model = MeanMaxAAEForReconstruction(MeanMaxAAEConfig(**sizes, weighted_mean_row=True))
    (adam,) = make_optimizers(wrap(model), PretrainArguments(word_vector_rate=20.0, word_weight_rate=3.0), fused=True)
    rates = {id(parameter): group["lr_factor"] for group in adam.param_groups for parameter in group["params"]}
    assert len(rates) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        wanted = {"word_embeddings": 20.0, "log_weights": 3.0}.get(name.split(".")[-2], 1.0)
        assert rates[id(parameter)] == wanted, name


@pytest.mark.parametrize("is_bf16_fast", [True, False])
def test_muon_steps_along_the_orthogonal_factor_of_the_momentum(is_bf16_fast, monkeypatch):
    monkeypatch.setattr("hf_meanmax.training.optimizer.is_bf16_fast", lambda device: is_bf16_fast)
    model = Network()
    args = PretrainArguments(optimizer="muon", precision="bf16")
    _, muon = make_optimizers(model, args, fused=True)
    assert muon.dtype == (torch.bfloat16 if is_bf16_fast else torch.float32)
    for group in muon.param_groups:
        group["lr"] = 0.01
    momentum = torch.zeros_like(model.hidden.weight)
    for ids in batches(3):
        model.loss(ids).backward()
        before, gradient = model.hidden.weight.detach().clone(), model.hidden.weight.grad.clone()
        momentum = 0.95 * momentum + 0.05 * gradient
        muon.step()
        muon.zero_grad()
        left, values, right = torch.linalg.svd(0.05 * gradient + 0.95 * momentum, full_matrices=False)
        step = (before - model.hidden.weight.detach()) / (0.01 * 0.2 * 8**0.5)
        # Five rounds of Newton and Schulz bring the singular values near 1, as far as they are no thousandths.
        in_basis = left.mT @ step @ right.mT
        large = values > 0.02 * values.max()
        assert ((in_basis.diagonal()[large] > 0.6) & (in_basis.diagonal()[large] < 1.3)).all()
        assert (in_basis - in_basis.diagonal().diag()).abs().max() < 0.05


@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_in_float32_agrees_with_torch_and_goes_on_from_its_state(nesterov):
    torch.manual_seed(0)
    options = {"lr": 0.1, "weight_decay": 0.3, "nesterov": nesterov}
    theirs = [nn.Parameter(torch.randn(*shape)) for shape in ((4, 20), (20, 4), (8, 8), (3, 3))]
    ours = [nn.Parameter(matrix.detach().clone()) for matrix in theirs]
    of_torch, muon = torch.optim.Muon(theirs, **options, adjust_lr_fn="match_rms_adamw"), Muon(ours, **options)
    for step in range(6):
        if step == 3:
            muon.load_state_dict(copy.deepcopy(of_torch.state_dict()))
        for one, other in zip(theirs[:3], ours[:3], strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        before = [matrix.detach().clone() for matrix in ours]
        of_torch.step()
        assert muon.step(lambda: 7.0) == 7.0
        for one, other, old in zip(theirs, ours, before, strict=True):
            # torch has eight bits of the step.
            assert (other - one).norm() <= 0.03 * (one - old).norm()
            with torch.no_grad():
                other.copy_(one)


def test_muon_at_intervals_goes_as_far_as_at_every_step():
    torch.manual_seed(0)
    gradients = [torch.randn(4, 6), torch.randn(6, 4), torch.randn(5, 5)]

    def moved(interval, steps):
        matrices = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
        muon = Muon(matrices, interval, lr=0.1, weight_decay=0.0)
        for _ in range(steps):
            for matrix, gradient in zip(matrices, gradients, strict=True):
                matrix.grad = gradient.clone()
            muon.step()
            # A run that goes on from its checkpoint.
            (again := Muon(matrices, interval, lr=0.1, weight_decay=0.0)).load_state_dict(muon.state_dict())
            muon = again
        return matrices

    at_every_step = moved(1, 1)
    # Of three matrices one is moved at each step, the first at the third.
    for steps, reached in ((1, (0, 0, 1)), (2, (0, 2, 1)), (3, (3, 2, 1)), (6, (6, 5, 4)), (8, (6, 8, 7))):
        for matrix, step, times in zip(moved(3, steps), at_every_step, reached, strict=True):
            torch.testing.assert_close(matrix, times * step)


def test_muon_at_intervals_reads_the_gradients_in_between():
    torch.manual_seed(0)
    gradients = torch.randn(4, 3, 5)
    matrix, each = (nn.Parameter(torch.zeros(3, 5)) for _ in range(2))
    muon = Muon([matrix], 4, lr=0.1, weight_decay=0.0)
    every_step = Muon([each], lr=0.1, weight_decay=0.0)
    for gradient in gradients:
        matrix.grad, each.grad, before = gradient.clone(), gradient.clone(), each.detach().clone()
        muon.step()
        every_step.step()
    torch.testing.assert_close(matrix.detach(), 4 * (each.detach() - before))


def test_muon_at_intervals_decays_weights_for_all_steps():
    matrix = nn.Parameter(torch.ones(3, 5))
    muon = Muon([matrix], 4, lr=0.1, weight_decay=0.3)
    for _ in range(4):
        matrix.grad = torch.zeros_like(matrix)
        muon.step()
    torch.testing.assert_close(matrix.detach(), torch.full((3, 5), 1 - 4 * 0.1 * 0.3))
