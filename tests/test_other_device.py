"""Everything once more on a device other than the CPU, in a process of its own."""

from pathlib import Path

import pytest
from torch.utils import backend_registration

from tiny_model import run_python


def test_everything_runs_on_another_device():
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this torch has no devices written in Python")
    checks = Path(__file__).parent / "training" / "on_other_device.py"
    run = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", str(checks), timeout=1000)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    assert " passed" in run.stdout
