"""The processes of `accelerate launch`: how they meet, and how they end together when one of them fails."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from hf_meanmax.hardware import PATIENCE

if TYPE_CHECKING:
    from accelerate import PartialState


def process_state() -> PartialState:
    """Accelerate's `PartialState` for the processes of a launcher, or for this one alone.

    Raises:
        ValueError: several processes were launched that do not know of one another.
    """
    from accelerate import PartialState
    from accelerate.utils import parse_flag_from_env

    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched == 1:
        return PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"))
    cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
    # A process may wait long for the others' last shards.
    state = PartialState(cpu=cpu, timeout=PATIENCE)
    if state.num_processes != launched:
        raise ValueError(f"{launched} processes were launched, but accelerate sees {state.num_processes}.")
    return state
