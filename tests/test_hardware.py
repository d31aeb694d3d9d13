"""What the machine can do, and the work of a step by formula."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from hf_meanmax.hardware import (
    count_flops,
    is_bf16_fast,
    keep_compiled_products,
    keep_freed_memory,
    measure_matrix_rate,
    peak_memory_bytes,
    return_freed_memory,
    synchronize,
    use_all_cores,
    uses_bf16,
)
from tiny_model import make_model, run_python
from training_loss import training_loss

CPU = torch.device("cpu")
B, N, V, E, D, F, L = 3, 7, 50, 8, 16, 24, 2


def batch(**more) -> dict[str, torch.Tensor]:
    ids = torch.arange(4, 4 + B * N).view(B, N)
    return {"input_ids": ids, "labels": ids.clone(), **more}


def forward_products(outputs: int, projected_from: int = E) -> int:
    """FLOPs (2 for a multiplication with its addition) of all products of matrices in one forward pass."""
    tokens = B * N
    attention_maps = 2 * (2 * B * N * N * D)
    encoder = 2 * tokens * projected_from * D * 3 + attention_maps + 2 * tokens * D * F * 2
    latent = 2 * tokens * D * D + 2 * (2 * B * L * D * D) + 2 * (2 * B * N * L * D)
    decoder = 2 * tokens * E * D * 3 + attention_maps + latent + 2 * tokens * D * F * 2
    return encoder + decoder + 2 * tokens * D * outputs


@pytest.fixture
def model():
    return make_model(vocab_size=V, embedding_size=E, hidden_size=D, intermediate_size=F, num_attention_heads=2)


def test_flops_of_a_step_by_hand(model):
    """The backward pass has two products for each one of the forward pass."""
    assert count_flops(model, batch()) == 3 * forward_products(outputs=V)


def test_flops_of_an_lstm():
    """All four gates at each step; nothing is learned of the zeros that the encoder starts from."""
    settings = {"encoder_type": "lstm", "pooling": "last", "decoder_type": "lstm"}
    sizes = {"vocab_size": V, "embedding_size": E, "hidden_size": D}
    tokens = B * N
    forward = 2 * (2 * tokens * (E + D) * 4 * D) + 2 * B * D * 2 * D + 2 * tokens * D * V
    assert count_flops(make_model(**sizes, **settings), batch()) == 3 * forward - 2 * B * D * 4 * D


def test_flops_of_a_sampled_step(model):
    candidates = {"candidate_ids": torch.arange(30), "candidate_log_prob": torch.zeros(30)}
    # The product with a row of ones that sums the bias's gradient counts too.
    flops = count_flops(
        model, batch(**candidates), lambda twin, given: training_loss(twin, given, softmax="sampled").loss
    )
    assert flops - 3 * forward_products(outputs=30) in (0, 2 * B * N * 30)


def test_padding_and_attention_do_not_matter(model):
    expected = count_flops(model, batch())
    assert count_flops(model, batch(attention_mask=torch.ones(B, N, dtype=torch.long))) == expected
    model.set_attn_implementation("sdpa")
    assert count_flops(model, batch()) == expected


def test_a_frozen_encoder_has_no_backward_pass(model):
    expected = count_flops(model, batch())
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    model.encoder.requires_grad_(False)
    assert forward_products(outputs=V) < count_flops(model, batch()) < expected
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    assert not any(parameter.grad is not None for parameter in model.parameters())


def test_matrix_rate_is_of_the_right_size():
    assert 1e8 < measure_matrix_rate(CPU, torch.float32, seconds=0.01) < 1e14


def test_peak_memory_holds_what_was_allocated():
    before, resident = peak_memory_bytes(CPU), psutil.Process().memory_info().rss
    assert before > 5e7
    # Past the allocator, which may have kept memory that was freed.
    with mmap.mmap(-1, before - resident + 100_000_000) as block:
        for start in range(0, len(block), mmap.PAGESIZE):
            block[start] = 1
    assert before + 50_000_000 < peak_memory_bytes(CPU) < before + 150_000_000


def test_peak_memory_is_not_that_of_the_process_before():
    code = "import torch; from hf_meanmax.hardware import peak_memory_bytes as peak; print(peak(torch.device('cpu')))"
    with mmap.mmap(-1, 1_000_000_000) as block:
        for start in range(0, len(block), mmap.PAGESIZE):
            block[start] = 1
        found = int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert 2e7 < found < 1e9


def test_freed_memory_is_kept_only_where_both_thresholds_can_be_set(monkeypatch):
    """Older glibc takes 32 MiB at most for one of them; set alone, the other would make each block a new mapping."""
    for most, expected in (
        (2**31 - 1, [(-3, 2**31 - 1), (-1, 2**31 - 1)]),
        (2**25, [(-3, 2**31 - 1), (-3, 2**25), (-1, 2**31 - 1)]),
        (0, [(-3, 2**31 - 1), (-3, 2**25)]),
    ):
        said: list[tuple[int, int]] = []

        def mallopt(option, value, said=said, most=most):
            said.append((option, value))
            return int(option == -1 or value <= most)

        monkeypatch.setattr("ctypes.CDLL", lambda name, mallopt=mallopt: SimpleNamespace(mallopt=mallopt))
        keep_freed_memory()
        assert said == expected
    monkeypatch.setattr("ctypes.CDLL", lambda name: SimpleNamespace())
    keep_freed_memory()


@pytest.mark.skipif(not Path("/proc/meminfo").is_file(), reason="memory is looked at on Linux alone")
@pytest.mark.parametrize("place", ["machine", "container"])
def test_freed_memory_goes_back_where_memory_is_short(place):
    code = """
from pathlib import Path
import psutil, torch
from hf_meanmax.hardware import keep_freed_memory, return_freed_memory
keep_freed_memory()
blocks = [torch.zeros(4_000_000) for _ in range(40)]
del blocks[:-1]  # The last one holds the others' memory.
for used in (700, 800):
    text = {"meminfo": "MemTotal:  1000 kB\\nMemAvailable:  1000 kB\\n", "memory.max": "1000", "memory.current": used}
    if %r == "machine":
        text = {"meminfo": f"MemTotal:  1000 kB\\nMemAvailable:  {1000 - used} kB\\n", "memory.max": "max"}
    Path.read_text = lambda self: str(text.get(self.name, ""))
    return_freed_memory(10)
    print(psutil.Process().memory_info().rss // 2**20)
"""
    kept, left = map(int, run_python("-c", code % place).stdout.split())
    assert kept - left > 400


def test_nothing_is_known_of_the_memory(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda self: "MemTotal:  1000 kB\n")
    monkeypatch.setattr("ctypes.CDLL", lambda name: pytest.fail("memory is given back"))
    return_freed_memory(10)


def test_compiled_products_are_kept(monkeypatch):
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    code = """
import torch
from hf_meanmax.hardware import keep_compiled_products
keep_compiled_products()
weight = torch.ones(32, 32, dtype=torch.bfloat16)
for _ in range(2):
    for rows in range(16, 1216):
        torch.nn.functional.linear(torch.ones(rows, 32, dtype=torch.bfloat16), weight)
"""
    environment = {**os.environ, "ONEDNN_VERBOSE": "profile_create"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    products = [line for line in run.stdout.splitlines() if ",matmul," in line]
    if len(products) < 2400:
        pytest.skip("oneDNN does not multiply bf16 on this processor")
    assert not any("cache_miss" in line for line in products[1200:])


def test_few_products_are_kept_where_sizes_do_not_recur(monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    keep_compiled_products(sizes_recur=False)
    assert os.environ == {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256"}


def test_a_user_s_number_of_compiled_products_stays(monkeypatch):
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "7")
    keep_compiled_products()
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "7"


def test_devices():
    assert not is_bf16_fast(CPU)
    assert not is_bf16_fast(torch.device("meta"))
    synchronize(CPU)


def test_a_cpu_with_products_of_bf16(bf16_is_fast):
    assert is_bf16_fast(CPU)
    assert uses_bf16("auto", CPU)


def test_a_gpu_that_emulates_bf16_is_not_fast_at_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert not is_bf16_fast(torch.device("cuda"))
    assert uses_bf16("bf16", torch.device("cuda"))


@pytest.fixture
def threads(monkeypatch):
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    return asked


@pytest.mark.parametrize(
    ("launched", "setting", "processes", "expected"),
    [(True, "1", 1, [8]), (True, "1", 3, [2]), (True, "4", 1, []), (True, None, 1, []), (False, "1", 1, [])],
)
def test_the_launchers_one_thread_becomes_a_share_of_the_cores(
    monkeypatch, threads, launched, setting, processes, expected
):
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if launched:
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    if setting is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", setting)
    use_all_cores(processes)
    assert threads == expected
