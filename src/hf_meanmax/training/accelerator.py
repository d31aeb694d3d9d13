"""The Accelerator of a run, and checks that its processes and device support the settings."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.utils import DistributedType, DynamoBackend, parse_flag_from_env

from hf_meanmax.files import Json
from hf_meanmax.processes import check_agreement, errors_shared, process_state, shared_versions

from .settings import PretrainArguments

# Settings that may differ between machines.
_MACHINE_SETTINGS = ("cache_dir", "output_dir")
# Where Accelerate silently ignores a request for FSDP.
_SHARDS_NOTHING = (DistributedType.NO, DistributedType.MULTI_CPU)


def make_accelerator(args: PretrainArguments) -> Accelerator:
    """The accelerator of a run, after a check that all processes have the same settings and packages.

    Raises:
        ValueError: processes differ in these, or the settings do not fit the device or the number of processes.
    """
    state = process_state(timedelta(seconds=args.ddp_timeout))
    if parse_flag_from_env("ACCELERATE_USE_FSDP"):
        with errors_shared(state):
            if state.distributed_type in _SHARDS_NOTHING:
                raise ValueError(
                    f"FSDP was asked for, but on the device {state.device.type!r} Accelerate shards no model. Leave "
                    "`--use_fsdp` out, which trains with DDP, or use GPUs."
                )
        # Each process initialises all weights itself: those sent by the first process would lack ties and buffers.
        os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "False"
    trackers: Json = {}
    if args.report_to:
        trackers = {"log_with": args.report_to.split(","), "project_dir": args.output_dir}
    accelerator = Accelerator(
        mixed_precision="no", kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)], **trackers
    )
    check_agreement(state, shared_versions(), "Install the same packages on every machine.")
    settings = args.to_dict()
    model = settings.pop("model")
    facts = {f"`{name}`": value for name, value in {**settings, **model}.items() if name not in _MACHINE_SETTINGS}
    check_agreement(state, facts, "Give every process the same command and the same recipe.")
    with errors_shared(state):
        _check_machine(args, accelerator)
    return accelerator


def is_sharded(accelerator: Accelerator) -> bool:
    """Whether each process holds a part of the weights."""
    return bool(accelerator.distributed_type == DistributedType.FSDP)


def exact_sums(weights: Json) -> dict[str, int]:
    """A checksum of each tensor, the same on every machine: the sum of its float32 bits as integers."""
    return {
        name: int(tensor.detach().float().contiguous().view(torch.int32).sum(dtype=torch.int64))
        for name, tensor in weights.items()
    }


def _check_machine(args: PretrainArguments, accelerator: Accelerator) -> None:
    processes, device = accelerator.num_processes, accelerator.device.type
    kind = accelerator.distributed_type
    if kind not in (DistributedType.NO, DistributedType.FSDP) and not kind.name.startswith("MULTI_"):
        raise ValueError(
            f"Accelerate is configured for {kind.name}; this trains with DDP and FSDP. Configure one of these."
        )
    if accelerator.state.dynamo_plugin.backend != DynamoBackend.NO:
        raise ValueError("Accelerate is configured to compile (`dynamo_backend`). Leave it out, and give `--compile`.")
    if args.lazy_adam and processes > 1:
        raise ValueError(f"`lazy_adam` is for one process, not {processes}. Leave it out, or run one.")
    if device == "cpu" and args.compile:
        raise ValueError("`compile` is for GPUs: on a CPU the compiled step gives NaN gradients. Leave it out.")
    if not is_sharded(accelerator):
        return
    if not accelerator.is_fsdp2:
        found = os.environ.get("FSDP_VERSION", "1")
        raise ValueError(f"FSDP has the version {found}; this trains with 2. Give `--fsdp_version 2`.")
    if args.optimizer == "muon":
        raise ValueError("`optimizer` 'muon' needs whole weights in each process. Leave FSDP out, or give 'adam'.")
    if args.decoder_inputs == "own":
        raise ValueError("`decoder_inputs` 'own' needs whole weights in each process. Leave FSDP out, or give 'words'.")
