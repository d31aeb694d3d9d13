"""What cannot be done on the processes and the device of a run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, TorchDynamoPlugin

from hf_meanmax.commands.pretrain import main
from hf_meanmax.training import accelerator as module
from hf_meanmax.training.accelerator import exact_sums


def machine(processes: int, device: str = "cuda", fsdp_version: int | None = None) -> SimpleNamespace:
    kind = DistributedType.MULTI_GPU if fsdp_version is None else DistributedType.FSDP
    return SimpleNamespace(
        num_processes=processes, device=torch.device(device), distributed_type=kind, is_fsdp2=fsdp_version == 2,
        state=SimpleNamespace(dynamo_plugin=TorchDynamoPlugin()),
    )  # fmt: skip


def test_fsdp_without_a_gpu_is_refused(monkeypatch, tmp_path):
    """Accelerate would silently train with DDP."""
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "2")
    AcceleratorState._reset_state(reset_partial_state=True)
    with pytest.raises(SystemExit) as error:
        main(["--corpus", "none.txt", "--output_dir", str(tmp_path / "run")])
    AcceleratorState._reset_state(reset_partial_state=True)
    assert error.value.code == (
        "hf-meanmax pretrain: FSDP was asked for, but on the device 'cpu' Accelerate shards no model. Leave "
        "`--use_fsdp` out, which trains with DDP, or use GPUs."
    )


def test_what_would_train_each_process_alone_is_refused(make_arguments):
    """Accelerate wraps no model for it that is not prepared together with its optimizer."""
    found = machine(2)
    found.distributed_type = DistributedType.DEEPSPEED
    with pytest.raises(ValueError, match="configured for DEEPSPEED; this trains with DDP and FSDP"):
        module._check_machine(make_arguments(), found)
    found = machine(1)
    found.state.dynamo_plugin = TorchDynamoPlugin(backend="inductor")
    with pytest.raises(ValueError, match="`dynamo_backend`"):
        module._check_machine(make_arguments(), found)


def test_the_first_version_of_fsdp_is_refused(make_arguments, monkeypatch):
    monkeypatch.setenv("FSDP_VERSION", "1")
    with pytest.raises(ValueError, match="FSDP has the version 1; this trains with 2"):
        module._check_machine(make_arguments(), machine(2, fsdp_version=1))
    module._check_machine(make_arguments(), machine(2, fsdp_version=2))


def test_a_sharded_decoder_generates_no_inputs_of_its_own(make_arguments):
    args = make_arguments(family="rnn_cnn", objective="next_sentence", decoder_type="gru", decoder_inputs="own")
    module._check_machine(args, machine(2))
    with pytest.raises(ValueError, match="needs whole weights in each process"):
        module._check_machine(args, machine(2, fsdp_version=2))


def test_muon_is_not_for_a_sharded_model(make_arguments):
    args = make_arguments(optimizer="muon")
    module._check_machine(args, machine(2))
    with pytest.raises(ValueError, match="'muon' needs whole weights in each process"):
        module._check_machine(args, machine(2, fsdp_version=2))


def test_lazy_adam_is_for_one_process(make_arguments):
    with pytest.raises(ValueError, match="`lazy_adam` is for one process, not 2"):
        module._check_machine(make_arguments(lazy_adam=True, softmax="sampled", num_negatives=5), machine(2))


def test_sums_tell_weights_apart():
    weights = {"a": torch.randn(5, 3), "b": torch.zeros(2, dtype=torch.int64)}
    assert exact_sums(weights) == exact_sums({name: weight.clone() for name, weight in weights.items()})
    other = weights["a"].clone()
    other[2, 1] = torch.nextafter(other[2, 1], torch.tensor(9.0))
    assert exact_sums({**weights, "a": other})["a"] != exact_sums(weights)["a"]
