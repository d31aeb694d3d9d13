"""Checkpoints of a run: exact, whole or not at all, without pickle."""

from __future__ import annotations

import copy
import errno
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from hf_meanmax import files
from hf_meanmax.training import checkpoints as module
from hf_meanmax.training.checkpoints import Checkpoints, check_run_folder
from tiny_model import make_model


def make_pair(seed: int = 0, steps: int = 0, **config):
    """A model and its Adam after a few steps of made-up gradients."""
    model = make_model(seed, **config).train()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01, betas=(0.8, 0.9))
    for _ in range(steps):
        step(model, optimizer)
    return model, optimizer


def step(model, optimizer) -> None:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def state_at(step: int, **more) -> dict:
    return {"step": step, "seconds": 1.1 + step, "best_step": None, **more}


def save_steps(folder: Path, steps: list[int], keep: int = 2, **more) -> Checkpoints:
    checkpoints = Checkpoints(folder, keep)
    model, optimizer = make_pair(steps=1)
    for number in steps:
        checkpoints.save(model, optimizer, state_at(number, **more), is_main=True)
    return checkpoints


def names(checkpoints: Checkpoints) -> list[str]:
    return [path.name for path in checkpoints.list()]


def snapshot(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("config", [{}, {"freeze_word_embeddings": True}, {"tie_word_embeddings": True}], ids=str)
def test_round_trip_is_exact(tmp_path, config):
    model, optimizer = make_pair(steps=3, **config)
    checkpoints = Checkpoints(tmp_path)
    state = state_at(3, unlogged_losses=[0.1, 1e-30, 1 / 3], best_accuracy=2 / 3)
    path = checkpoints.save(model, optimizer, state, is_main=True)
    assert path == checkpoints.latest() == tmp_path / "step-00000003"

    other, other_optimizer = make_pair(seed=1, **config)
    assert checkpoints.load(path, other, other_optimizer) == state
    for (name, ours), theirs in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name
    for ours, theirs in zip(optimizer.param_groups, other_optimizer.param_groups, strict=True):
        assert ours | {"params": (), "betas": [*ours["betas"]]} == theirs | {"params": (), "betas": [*theirs["betas"]]}
    assert len(optimizer.state) == sum(p.requires_grad for p in model.parameters())
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert optimizer.state[ours].keys() == other_optimizer.state[theirs].keys()
        for key, value in optimizer.state[ours].items():
            assert torch.equal(value, other_optimizer.state[theirs][key])

    # The next steps are the same to the last bit.
    for pair in ((model, optimizer), (other, other_optimizer)):
        torch.manual_seed(7)
        step(*pair)
        step(*pair)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_only_safetensors_and_json(tmp_path):
    checkpoints = save_steps(tmp_path, [1])
    assert {file.name for file in checkpoints.latest().iterdir()} == {
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_the_latest_and_the_best_are_kept(tmp_path):
    checkpoints = save_steps(tmp_path, [1, 2, 3])
    assert names(checkpoints) == ["step-00000002", "step-00000003"]
    model, optimizer = make_pair(steps=1)
    for number in range(4, 8):
        checkpoints.save(model, optimizer, state_at(number, best_step=3) | {"best_step": 3}, is_main=True)
    assert names(checkpoints) == ["step-00000003", "step-00000006", "step-00000007"]
    checkpoints.save(model, optimizer, state_at(8) | {"best_step": 8}, is_main=True)
    assert names(checkpoints) == ["step-00000007", "step-00000008"]
    assert names(save_steps(tmp_path / "one", [1, 2], keep=1)) == ["step-00000002"]


def test_other_processes_write_nothing(tmp_path):
    model, optimizer = make_pair(steps=1)
    path = Checkpoints(tmp_path / "c").save(model, optimizer, state_at(5), is_main=False)
    assert path.name == "step-00000005"
    assert not (tmp_path / "c").exists()


def test_nothing_saved_yet(tmp_path):
    checkpoints = Checkpoints(tmp_path / "none")
    assert checkpoints.list() == []
    assert checkpoints.latest() is None


def disk_full(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


def disk_full_in_rust(*args, **kwargs):
    raise SafetensorError("I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize(
    ("place", "name", "error"),
    [
        (module, "save_file", disk_full),
        (module, "save_file", disk_full_in_rust),
        (Path, "write_text", disk_full),
        (files, "_sync", disk_full),
        (os, "rename", disk_full),
    ],
    ids=["weights", "weights in rust", "state", "flush", "rename"],
)
def test_an_error_while_writing_leaves_the_older_ones(tmp_path, monkeypatch, place, name, error):
    checkpoints = save_steps(tmp_path, [1, 2])
    before = snapshot(tmp_path)
    model, optimizer = make_pair(seed=1, steps=1)
    with monkeypatch.context() as patch:
        patch.setattr(place, name, error)
        with pytest.raises(
            OSError, match=r"step-00000003 could not be written: No space left.*What was there before is untouched"
        ):
            checkpoints.save(model, optimizer, state_at(3), is_main=True)
    assert snapshot(tmp_path) == before
    assert names(checkpoints) == ["step-00000001", "step-00000002"]
    checkpoints.save(model, optimizer, state_at(3), is_main=True)
    assert names(checkpoints) == ["step-00000002", "step-00000003"]


def test_no_permission(tmp_path):
    (tmp_path / "file").write_text("mine")
    model, optimizer = make_pair(steps=1)
    with pytest.raises(OSError, match="could not be written"):
        Checkpoints(tmp_path / "file").save(model, optimizer, state_at(1), is_main=True)
    assert (tmp_path / "file").read_text() == "mine"


def test_what_a_killed_process_left_is_no_checkpoint(tmp_path):
    """Also not if it had been written almost to the end: the rename is the last act."""
    checkpoints = save_steps(tmp_path, [1])
    (tmp_path / "step-00000001").rename(tmp_path / ".step-00000002.partial")
    (tmp_path / "step-00000003").mkdir()
    assert checkpoints.list() == []
    save_steps(tmp_path, [4])
    assert names(checkpoints) == ["step-00000004"]
    assert not list(tmp_path.glob(".*.partial"))


@pytest.mark.parametrize("how", ["cut", "empty", "missing", "garbage"])
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_damaged_files_are_named(tmp_path, name, how):
    checkpoints = save_steps(tmp_path, [1, 2])
    path = checkpoints.latest()
    file, content = path / name, (path / name).read_bytes()
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "garbage": b"\xff\xfe{}" * 9}[how])
    pair = make_pair()
    weights = copy.deepcopy(pair[0].state_dict())
    with pytest.raises(ValueError, match=f"{name} is missing or damaged .*Remove {path} to resume") as caught:
        checkpoints.load(path, *pair)
    assert "state.json, model.safetensors and optimizer.safetensors" in str(caught.value)
    assert all(torch.equal(value, weights[key]) for key, value in pair[0].state_dict().items())
    if name == "model.safetensors":
        with pytest.raises(ValueError, match=r"model\.safetensors is missing or damaged"):
            checkpoints.load_weights(path, pair[0])


@pytest.mark.parametrize("content", ["[]", "{}", '{"step": 1, "param_groups": 3}'])
def test_a_state_that_is_none(tmp_path, content):
    checkpoints = save_steps(tmp_path, [1])
    (checkpoints.latest() / "state.json").write_text(content)
    with pytest.raises(ValueError, match=r"state\.json is missing or damaged \(it holds no state of a run\)"):
        checkpoints.load(checkpoints.latest(), *make_pair())


@pytest.mark.parametrize("config", [{"hidden_size": 32}, {"num_hidden_layers": 2}, {"attention_bias": True}], ids=str)
def test_checkpoint_of_another_model_is_refused(tmp_path, config):
    path = save_steps(tmp_path, [1]).latest()
    with pytest.raises(ValueError, match="step-00000001 belongs to another model"):
        Checkpoints(tmp_path).load(path, *make_pair(**config))


def test_weights_alone(tmp_path):
    model, optimizer = make_pair(steps=2)
    path = Checkpoints(tmp_path).save(model, optimizer, state_at(2), is_main=True)
    other = make_model(seed=1)
    Checkpoints(tmp_path).load_weights(path, other)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_not_saved(tmp_path, value):
    checkpoints = save_steps(tmp_path, [1])
    model, optimizer = make_pair(steps=1)
    with torch.no_grad():
        model.lm_head.weight[3, 2] = value
    with pytest.raises(FloatingPointError, match=r"After step 2 .*lm_head\.weight.*Last good checkpoint: .*00000001"):
        checkpoints.save(model, optimizer, state_at(2), is_main=True)
    assert names(checkpoints) == ["step-00000001"]


def test_state_survives_json(tmp_path):
    path = save_steps(tmp_path, [1], best_accuracy=0.1 + 0.2).latest()
    state = json.loads((path / "state.json").read_text())
    assert state["best_accuracy"] == 0.1 + 0.2
    assert state["param_groups"][0]["betas"] == [0.8, 0.9]


def test_a_run_takes_no_name_of_a_packaged_model():
    with pytest.raises(ValueError, match="--output_dir mini-en would hide the model of that name"):
        check_run_folder(Path("mini-en"))
