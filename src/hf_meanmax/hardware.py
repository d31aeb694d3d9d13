"""Capabilities of the machine (devices, number formats, memory, cores) and their use by a run."""

from __future__ import annotations

import copy
import ctypes
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch.utils.flop_counter import FlopCounterMode

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Module = TypeVar("Module", bound=torch.nn.Module)

# How long a process may wait while another one prepares data; the backends' default timeouts are minutes.
PATIENCE = timedelta(days=7)

ComputeDtype = Literal["auto", "float32", "bfloat16", "float16"]
COMPUTE_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

# Constants of malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

# Capacity of oneDNN's cache of compiled matrix products, for batch sizes that recur and for those that do not.
_PRODUCTS, _FEW_PRODUCTS = 1 << 12, 1 << 8

# Larger sizes must be mistakes: the model would exhaust the memory or take forever to build.
_MOST_LAYERS, _MOST_SIZE = 1000, 1 << 28


def check_sizes(settings: Mapping[str, object]) -> None:
    """Checks, before a model is built, that no size is absurd and that its weights fit in memory.

    Args:
        settings: fields of its configuration, or some of them; values that are not int are ignored.

    Raises:
        ValueError: a size is too large; the message has the limit.
    """
    sizes = {
        name: value
        for name, value in settings.items()
        if type(value) is int and name.endswith(("_size", "_layers", "_heads", "_length", "_words", "_dim"))
    }
    for name, value in sizes.items():
        most = _MOST_SIZE if name.endswith(("_size", "_dim")) else _MOST_LAYERS
        if value > most:
            raise ValueError(f"`{name}` is {value:,}; it may be {most:,} at most.")

    def size(name: str) -> int:
        return sizes.get(name, 1)

    words = max(size("vocab_size"), sizes.get("input_vocab_size", 1)) * size("embedding_size")
    layer = 4 * size("hidden_size") ** 2 + 2 * size("hidden_size") * size("intermediate_size")
    least, memory = 4 * (words + size("num_hidden_layers") * layer), memory_bytes()
    if least > memory:
        raise ValueError(
            f"A model of these sizes has weights of {least / 1e9:,.0f} GB or more, this machine a memory of "
            f"{memory / 1e9:,.0f} GB. Make `hidden_size`, `intermediate_size`, `num_hidden_layers` or `vocab_size` "
            "smaller."
        )


def memory_bytes() -> int:
    """Physical memory of the machine, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def usable_device(device: torch.device | str | None) -> torch.device:
    """The named device, or accelerate's default for None.

    Raises:
        ValueError: the device cannot be used on this machine.
    """
    if device is None:
        from accelerate import PartialState

        return PartialState().device
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device is {str(device)!r}, which cannot be used here ({reason}); try 'cpu'.") from error
    return found


def is_bf16_fast(device: torch.device) -> bool:
    """Whether the device multiplies bf16 matrices faster than fp32 ones."""
    if device.type == "cuda":
        # Older GPUs emulate bf16, at a fraction of their fp32 speed.
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        cpu: Any = torch.cpu
        return any(getattr(cpu, f"_is_{name}_supported", bool)() for name in ("amx_tile", "avx512_bf16"))
    return False


def compute_dtype(name: ComputeDtype, device: torch.device) -> ComputeDtype:
    """Resolves "auto": bfloat16 if the device multiplies it faster than float32, else float32."""
    if name != "auto":
        return name
    return "bfloat16" if is_bf16_fast(device) else "float32"


def in_dtype(model: Module, dtype: torch.dtype) -> Module:
    """The model in `dtype`: itself if it has this type already, else a copy, so that its weights are not rounded."""
    found = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    return model if found <= {dtype} else copy.deepcopy(model).to(dtype)


def uses_bf16(precision: str, device: torch.device) -> bool:
    """Whether a run with this `precision` setting computes in bf16."""
    return precision == "bf16" or (precision == "auto" and is_bf16_fast(device))


def attention_for(attention: str, device: torch.device) -> str:
    """Resolves "auto" to an attention implementation: eager on a CPU, where it is faster for sentences, else sdpa.

    Raises:
        ValueError: flex attention on a CPU on which torch computes it wrongly.
    """
    if attention == "flex_attention" and device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX2":
        raise ValueError(
            "`attention` is 'flex_attention', which torch computes wrongly on CPUs without AVX-512. Use 'eager' or "
            "'sdpa'."
        )
    if attention != "auto":
        return attention
    return "eager" if device.type == "cpu" else "sdpa"


def keep_freed_memory() -> None:
    """Makes the C library keep large freed blocks for reuse (glibc only; elsewhere it does nothing).

    By default they are returned to the system and allocated anew, page by page, at each step. This takes an eighth of a
    training step on a CPU.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    # Older glibc accepts at most 32 MiB. Setting only the trim threshold would make matters worse.
    if set_option(_M_MMAP_THRESHOLD, 2**31 - 1) or set_option(_M_MMAP_THRESHOLD, 2**25):
        set_option(_M_TRIM_THRESHOLD, 2**31 - 1)


def return_freed_memory(step: int) -> None:
    """Every tenth step, returns the memory that [`keep_freed_memory`] keeps to the system if less than a quarter of the
    memory of the machine or container is available (glibc only; elsewhere it does nothing).

    Block sizes differ from step to step and small blocks remain between them, so memory fragments: after an hour it is
    several times what a step needs.
    """
    if step % 10 == 0 and _used_memory() > 0.75:
        with suppress(AttributeError, OSError, TypeError):
            ctypes.CDLL(None).malloc_trim(0)


def _used_memory() -> float:
    """Share of the memory of the machine or container that is in use (Linux; 0 where it is unknown)."""
    used = [0.0]
    with suppress(OSError, KeyError):
        sizes = dict(re.findall(r"(?m)^(\w+):\s+(\d+) kB$", Path("/proc/meminfo").read_text()))
        used.append(1 - int(sizes["MemAvailable"]) / int(sizes["MemTotal"]))
    with suppress(OSError, ValueError):  # without a limit of the container it is "max"
        current, most = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("current", "max"))
        used.append(current / most)
    return max(used)


def keep_compiled_products(sizes_recur: bool = True) -> None:
    """Enlarges oneDNN's cache of compiled matrix products; to be called before the first product.

    oneDNN compiles a kernel for each combination of sizes, in up to 50 ms, and keeps 1,024 by default. Batches of
    sentences of all lengths need more: a fifth of a run with a decoder would be spent compiling. A kernel takes half a
    megabyte, which fragments the memory of a step.

    Args:
        sizes_recur: whether batches of the same sizes recur; if not, the cache is seldom hit and is made small.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(_PRODUCTS if sizes_recur else _FEW_PRODUCTS))


def prepare_training_on_cpu(sizes_recur: bool = True) -> None:
    """Prepares a process for training on a CPU: [`keep_freed_memory`] and [`keep_compiled_products`]."""
    keep_freed_memory()
    keep_compiled_products(sizes_recur)


def measure_matrix_rate(device: torch.device, dtype: torch.dtype, seconds: float = 1.0) -> float:
    """FLOP/s of products of two 2048 x 2048 matrices: the median over `seconds` of repetitions."""
    from torch.utils.benchmark import Timer  # slow: it imports the compiler of C++ extensions

    sides = {name: torch.randn(2048, 2048, device=device).to(dtype) for name in ("left", "right")}
    timer = Timer("torch.nn.functional.linear(left, right)", globals=sides, num_threads=torch.get_num_threads())
    return 2 * 2048**3 / timer.blocked_autorange(min_run_time=seconds).median


def synchronize(device: torch.device) -> None:
    """Waits for a GPU; does nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def count_flops(
    model: PreTrainedModel,
    batch: dict[str, torch.Tensor],
    loss: Callable[[PreTrainedModel, dict[str, torch.Tensor]], torch.Tensor] | None = None,
) -> int:
    """FLOPs of the matrix products of one forward and backward pass, counted without computing anything.

    Args:
        model: a model of this package.
        batch: its inputs.
        loss: computes the loss of a model on a batch (default: the model's own loss).
    """
    config = copy.deepcopy(model.config)
    config._attn_implementation = "eager"
    with torch.device("meta"):
        twin = type(model)(config).train()
    for (_, ours), (_, theirs) in zip(twin.named_parameters(), model.named_parameters(), strict=True):
        ours.requires_grad_(theirs.requires_grad)
    # Padding changes no product, and the values of a mask cannot be read on the meta device.
    meta = {name: tensor.to("meta") for name, tensor in batch.items() if not name.endswith("_mask")}
    with FlopCounterMode(display=False) as counter:
        value = twin(**meta, num_items_in_batch=1).loss if loss is None else loss(twin, meta)
        value.backward()
    return counter.get_total_flops()


def peak_memory_bytes(device: torch.device) -> int:
    """Peak memory: allocated on a GPU, resident in the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    # Not getrusage: for a child process its value is at least the parent's memory.
    if status.exists() and (match := re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(), re.MULTILINE)):
        return int(match[1]) * 1024
    import resource

    # Kilobytes on Linux, bytes on macOS.
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def usable_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def most_open_files() -> int:
    """Number of files that this process may hold open."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if limit == resource.RLIM_INFINITY else limit


def use_all_cores(processes: int) -> None:
    """Gives each of `processes` processes its share of the cores if `accelerate launch` left it with one thread.

    The launcher sets OMP_NUM_THREADS to 1 unless it is set already, which would leave the other cores idle.
    """
    was_launched = "ACCELERATE_MIXED_PRECISION" in os.environ
    if was_launched and os.environ.get("OMP_NUM_THREADS") == "1":
        torch.set_num_threads(max(1, usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", processes))))
