"""Fixtures for every test. The environment is set before any library that reads it at import."""

from __future__ import annotations

import gc
import os
import random
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

HF_HOME = tempfile.mkdtemp(prefix="hf_meanmax_tests_")

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HOME"] = HF_HOME  # nothing is read from or left in the user's cache
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["HF_HUB_DISABLE_XET"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Subprocesses do not inherit the socket guard below: a dead proxy keeps them on this machine.
for variable in ("http_proxy", "https_proxy", "all_proxy"):
    os.environ[variable] = os.environ[variable.upper()] = "http://127.0.0.1:9"
os.environ["no_proxy"] = os.environ["NO_PROXY"] = "127.0.0.1,localhost,::1"

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from huggingface_hub.utils import _http  # noqa: E402

pytest.register_assert_rewrite("modeling.family_tests")


# Where processes share the files out, these begin, so that none is waited for at the end.
LONGEST = (
    "training/test_distributed.py", "test_examples.py", "training/test_pretrain.py", "training/test_finetune.py",
    "training/test_elastic.py", "test_encode_ray.py", "test_other_device.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.path.as_posix().endswith(LONGEST))


def pytest_unconfigure() -> None:
    shutil.rmtree(HF_HOME, ignore_errors=True)


def is_local(host: str | bytes | None) -> bool:
    name = host.decode() if isinstance(host, bytes) else host
    return name in (None, "", "localhost", "::1", "0.0.0.0", "::", socket.gethostname()) or name.startswith("127.")


@pytest.fixture(scope="session", autouse=True)
def no_network() -> Iterator[None]:
    """Connections and name lookups end at this machine; anything further is an error that names the host."""
    connect, connect_ex, getaddrinfo = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

    def check(host: str | bytes | None) -> None:
        if not is_local(host):
            raise RuntimeError(f"a test tried to reach {host!r}; tests use the loopback interface only")

    def check_address(sock: socket.socket, address: object) -> None:
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            check(address[0])

    def guarded_connect(sock, address):
        check_address(sock, address)
        return connect(sock, address)

    def guarded_connect_ex(sock, address):
        check_address(sock, address)
        return connect_ex(sock, address)

    def guarded_getaddrinfo(host, *args, **kwargs):
        check(host)
        return getaddrinfo(host, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded_connect)
        patch.setattr(socket.socket, "connect_ex", guarded_connect_ex)
        patch.setattr(socket, "getaddrinfo", guarded_getaddrinfo)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_hub() -> Iterator[None]:
    """Between its attempts at a hub that is out of reach, huggingface_hub would sleep for half a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_http, "time", SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None}))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def little_to_collect() -> None:
    """Trainer and Accelerate collect garbage often, and would look through all modules each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def fp32_where_a_machine_decides() -> Iterator[None]:
    """What `auto` is must not depend on the machine of the tests; those of bf16 ask for it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("amx_tile", "avx512_bf16"):
            patch.setattr(torch.cpu, f"_is_{name}_supported", lambda: False, raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def a_known_matrix_rate() -> Iterator[None]:
    """What the speed of a run is judged by takes longer to measure than a tiny run."""
    with pytest.MonkeyPatch.context() as patch:
        if module := sys.modules.get("hf_meanmax.training.pretrain"):
            patch.setattr(module, "measure_matrix_rate", lambda device, dtype: 1e12)
        yield


@pytest.fixture
def bf16_is_fast(monkeypatch) -> None:
    """The machine is one that multiplies bf16 matrices faster than fp32 ones."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True, raising=False)


@pytest.fixture(autouse=True)
def seeds() -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 (libraries draw from the global state)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder that HF_MEANMAX_DATA names: corpora/, senteval/ and the other test data."""
    value = os.environ.get("HF_MEANMAX_DATA")
    if not value:
        pytest.skip("HF_MEANMAX_DATA is not set; it names the folder with corpora/ and senteval/")
    root = Path(value)
    if not (root / "corpora").is_dir():
        pytest.fail(f"HF_MEANMAX_DATA={value} has no folder corpora/")
    return root
