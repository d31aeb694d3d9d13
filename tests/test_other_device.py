"""Everything once more on a device other than the CPU, in a process of its own: a stand-in for a GPU, and a GPU."""

from pathlib import Path

import pytest
import torch
from torch.utils import backend_registration

from tiny_model import run_python


@pytest.mark.parametrize("device", ["other:0", "cuda:0"])
def test_everything_runs_on_another_device(device):
    if device == "cuda:0" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    if device == "other:0" and not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this torch has no devices written in Python")
    checks = Path(__file__).parent / "training" / "on_other_device.py"
    run = run_python(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", str(checks), timeout=1000, HF_MEANMAX_TEST_DEVICE=device
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    assert " passed" in run.stdout
