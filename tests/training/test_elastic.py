"""Two nodes of torchrun, of which one is lost: the other waits for a new one, and both go on from the checkpoint."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
from accelerate.state import AcceleratorState

from hf_meanmax.training.pretrain import pretrain
from hf_meanmax.training.recipes import arguments_from_settings
from tiny_model import python_environment
from training.test_distributed import free_port
from training.test_pretrain import losses, weights

STEPS = 200


def train_as(rank: int, port: int, settings: dict[str, object]) -> None:
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in ranks.items()}, MASTER_ADDR="127.0.0.1")
    AcceleratorState._reset_state(reset_partial_state=True)
    pretrain(arguments_from_settings(settings))


def train_undisturbed(settings: dict[str, object]) -> None:
    """A run of two processes that have imported everything already."""
    forks = multiprocessing.get_context("fork")
    port = free_port()
    both = [forks.Process(target=train_as, args=(rank, port, settings)) for rank in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
    assert [process.exitcode for process in both] == [0, 0]


class Node:
    """An agent of torchrun with one process, as on a machine of its own."""

    def __init__(self, name: str, port: int, recipe: Path, hosts: bool) -> None:
        self.log = recipe.with_name(f"{name}.log")
        options = f"is_host={int(hosts)},keep_alive_interval=1,keep_alive_max_attempt=2,last_call_timeout=1"
        with open(self.log, "w") as file:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1",
                    "--max-restarts=2", "--monitor-interval=0.2", "--rdzv-backend=c10d", "--rdzv-id=test",
                    f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-conf={options}", "--local-addr=127.0.0.1",
                    "-m", "hf_meanmax.commands", "pretrain", str(recipe),
                ],
                # Without it the old node does not tell the new one where to meet (torch 2.13).
                stdout=file, stderr=file, env=python_environment(TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"),
            )  # fmt: skip

    def is_lost(self) -> None:
        """Ends as a machine does whose power fails: the agent and its process at once."""
        agent = psutil.Process(self.process.pid)
        gone = [agent, *agent.children(recursive=True)]
        for process in gone:
            process.kill()
        self.process.wait(30)
        psutil.wait_procs(gone, timeout=30)


def wait_for(step: int, folder: Path, nodes: list[Node], timeout: float = 200) -> None:
    """Waits until a run has logged a step."""
    deadline = time.monotonic() + timeout
    path = folder / "metrics.jsonl"
    while not (path.is_file() and path.read_text().count('"loss"') >= step):
        is_well = time.monotonic() < deadline and all(node.process.poll() is None for node in nodes)
        assert is_well, [node.log.read_text()[-3000:] for node in nodes]
        time.sleep(0.02)


def test_a_run_goes_on_when_a_node_is_lost(settings, tmp_path):
    given = {**settings, "max_steps": STEPS, "checkpoint_steps": 10, "keep_checkpoints": 1000, "learning_rate": 1e-3}
    whole, disturbed = ({**given, "output_dir": str(tmp_path / name)} for name in ("whole", "disturbed"))
    train_undisturbed(whole)
    recipe, folder, port = tmp_path / "recipe.yaml", tmp_path / "disturbed", free_port()
    recipe.write_text(json.dumps(disturbed))
    nodes = [Node("first", port, recipe, hosts=True), Node("second", port, recipe, hosts=False)]
    try:
        wait_for(30, folder, nodes)
        nodes[1].is_lost()
        reached = max(losses(folder))
        assert 30 <= reached < STEPS
        nodes[1] = Node("another", port, recipe, hosts=False)
        for node in nodes:
            assert node.process.wait(200) == 0, node.log.read_text()[-3000:]
    finally:
        for node in nodes:
            if node.process.poll() is None:
                node.is_lost()
    log = "".join(node.log.read_text() for node in nodes)
    resumed = [int(line.rsplit("-", 1)[1]) for line in log.splitlines() if line.startswith("resumed from")]
    assert len(resumed) == 1
    assert reached - 20 < resumed[0] <= reached + 1
    assert log.count("hf-meanmax pretrain: Another process of this run ended") == 1
    assert losses(folder) == losses(tmp_path / "whole")
    found, expected = weights(folder), weights(tmp_path / "whole")
    assert all((found[name] == value).all() for name, value in expected.items())
