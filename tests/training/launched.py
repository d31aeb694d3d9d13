"""What `accelerate launch` runs in test_distributed.py: the cases of a file, one after the other in the same processes.

Each process writes what became of each case into a file of its own: the exit code and what went to stderr.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import importlib.resources
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from accelerate.utils.launch import prepare_multi_gpu_env
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from hf_meanmax.commands.pretrain import main
from hf_meanmax.data import token_store
from hf_meanmax.processes import end_processes
from hf_meanmax.training import checkpoints, teacher
from hf_meanmax.training import pretrain as pretraining
from hf_meanmax.training.optimization import Optimization
from modeling.kinds import make, read

RANK = int(os.environ["RANK"])
NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextlib.contextmanager
def sharding() -> Iterator[None]:
    """Has Accelerate shard models with the packaged configuration, as its launcher sets it.

    It shards on devices alone; told that the CPU is one, it does what it would do there.
    """
    recipe = str(importlib.resources.files("hf_meanmax") / "recipes" / "accelerate" / "8-gpus-fsdp.yaml")
    words = ["--config_file", recipe, "--num_processes", "2", "--main_process_port", "0", "script.py"]
    found = prepare_multi_gpu_env(_validate_launch_command(launch_command_parser().parse_args(words))[0])
    environment = {name: value for name, value in found.items() if name.startswith(("ACCELERATE_", "FSDP_"))}
    environment |= {"ACCELERATE_TORCH_DEVICE": "cpu", "ACCELERATE_USE_CPU": "False"}
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch.object(PartialState, "_prepare_backend", return_value=("gloo", DistributedType.MULTI_GPU)),
        mock.patch.object(torch.accelerator, "is_available", return_value=True),
    ):
        yield


def full(*arguments: Any, **options: Any) -> None:
    raise NO_SPACE


def stall(*arguments: Any) -> None:
    time.sleep(600)


def other_version(name: str, version: Callable[[str], str] = importlib.metadata.version) -> str:
    return "1.0" if name == "torch" else version(name)


# What is in the place of what, in one process alone.
FAULTS = {
    "other versions": (1, importlib.metadata, "version", other_version),
    "no space for the store": (1, token_store.ArrayWriter, "append", full),
    "no space for the teacher": (1, np, "save", full),
    "no space for the checkpoint": (0, checkpoints, "save_file", full),
    "no space for the model": (0, PreTrainedModel, "save_pretrained", full),
    "a process that stalls": (1, pretraining.Run, "_step", stall),
}


def decoder_steps(num_beams: int) -> int:
    """The steps of a sharded model's decoder for texts of 4 words, or of 12 in the second process."""
    model, steps = make("attention"), []
    rows = model.encoder(**read("attention")).latents.detach()
    mesh = init_device_mesh("cpu", (2,))
    for part in (model.lm_head, model.decoder, model):
        fully_shard(part, mesh=mesh)
    model.decoder.register_forward_hook(lambda *call: steps.append(1))
    texts = BaseModelOutput(last_hidden_state=rows)
    model.generate(encoder_outputs=texts, max_new_tokens=(4, 12)[RANK], num_beams=num_beams, eos_token_id=None)
    return len(steps)


def watch(seen: dict[str, Any]) -> None:
    """Counts what DDP sends, the parameters that are sharded, and the steps of a sharded decoder."""

    def watched(accelerator, model, objectives, args) -> Optimization:
        made = Optimization(accelerator, model, objectives, args)
        seen.update(sharded=sum(isinstance(p, DTensor) for p in made.wrapped.parameters()), sent=0)
        seen["held"] = sum(p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in made.trained)
        if made.is_sharded and args.output_dir.endswith("reconstruction"):
            with torch.random.fork_rng():
                seen["steps"] = [decoder_steps(num_beams) for num_beams in (1, 2)]
        if made.is_sharded or args.gradient_accumulation_steps == 1:
            return made

        def send(state, bucket):
            seen["sent"] += 1
            work = torch.distributed.all_reduce(bucket.buffer() / accelerator.num_processes, async_op=True)
            return work.get_future().then(lambda future: future.value()[0])

        made.wrapped.register_comm_hook(None, send)
        return made

    pretraining.Optimization = watched


def run(name: str, case: dict[str, Any], seen: dict[str, Any]) -> dict[str, Any]:
    """The case's exit code, what went to stderr, and the seconds."""
    AcceleratorState._reset_state(reset_partial_state=True)
    if "port" in case:
        # For a group with another timeout, away from the launcher's store, where the addresses of the old one are.
        end_processes()
        os.environ.update(TORCHELASTIC_USE_AGENT_STORE="False", MASTER_PORT=str(case["port"]))
    folder = Path(case["folders"][RANK])
    recipe = folder / "recipe.yaml"
    recipe.write_text(json.dumps(case["settings"] | case["changes"][RANK]), encoding="utf-8")
    os.chdir(folder)
    seen.clear()
    errors, begin = io.StringIO(), time.perf_counter()
    rank, *fault = FAULTS.get(name, (None,))
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stderr(errors))
        if rank == RANK:
            stack.enter_context(mock.patch.object(*fault))
        for skipped in case["skipped"]:
            stack.enter_context(mock.patch.object(pretraining, skipped, return_value=1.0))
        if case["is_sharded"]:
            stack.enter_context(sharding())
        try:
            code = main([str(recipe)])
        except SystemExit as end:
            # What the interpreter would make of it.
            code = end.code if isinstance(end.code, int) else 1
            errors.write(end.code if isinstance(end.code, str) else "")
    return {"code": code, "stderr": errors.getvalue().splitlines(), "seconds": time.perf_counter() - begin, **seen}


def work() -> int:
    torch.set_num_threads(1)
    pretraining.measure_matrix_rate = lambda device, dtype: 1e12
    # A teacher's vectors are shared out by shards.
    teacher._SETTINGS = replace(teacher._SETTINGS, shard_size=16)
    place, results, seen = Path(sys.argv[1]), {}, {}
    watch(seen)
    # A second group could not be made: it would find the addresses of the first one in the launcher's store.
    pretraining.end_processes = Accelerator.end_training = lambda *accelerator: None
    for name, case in json.loads((place / "cases.json").read_text(encoding="utf-8")).items():
        results[name] = run(name, case, seen)
        (place / f"results-{RANK}.json").write_text(json.dumps(results), encoding="utf-8")
    end_processes()
    return max(result["code"] for result in results.values())


if __name__ == "__main__":
    sys.exit(work())
