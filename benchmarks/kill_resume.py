"""Kill a training run at random moments, resume it each time, and compare every loss with an uninterrupted run.

    python benchmarks/kill_resume.py --processes 1 2 --kills 10 10
    python benchmarks/kill_resume.py --hidden_size 256     # further words are settings of the run

All processes of a run get SIGKILL at once: mostly while it trains and saves, sometimes while it starts. Prints a row
for each kill and whether all losses and the final weights are identical to the last bit; the exit code is 1 if not.
Two processes are started by torchrun; `--fork` starts all runs from one process that has imported everything.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

MODULE = ["hf_meanmax.commands", "pretrain"]
WORDS = [f"{first}{last}" for first in "bdfgklmnprst" for last in ("ao", "ei", "ou", "ia", "en", "ul")]


class Processes:
    """The processes of one run, output to a log file."""

    def __init__(self, number: int, words: list[str], log: Path, fork: bool):
        self.log = log
        self.started = time.monotonic()
        port = free_port()
        if fork:
            self.pids = [forked(rank, number, port, words, log) for rank in range(number)]
            self.codes: dict[int, int] = {}
        else:
            launcher = ["-m", "torch.distributed.run", "--nproc_per_node", str(number), "--master_port", str(port)]
            command = [sys.executable, *(launcher if number > 1 else []), "-m", *MODULE, *words]
            environment = {**os.environ, "ACCELERATE_USE_CPU": "true"}
            with open(log, "a") as file:
                self.pids = [subprocess.Popen(command, stdout=file, stderr=file, env=environment).pid]
            self.codes = {}

    def seconds(self) -> float:
        return time.monotonic() - self.started

    def is_running(self) -> bool:
        for pid in set(self.pids) - set(self.codes):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self.codes[pid] = os.waitstatus_to_exitcode(status)
        return len(self.codes) < len(self.pids)

    def kill(self) -> None:
        """SIGKILL to all of them; torchrun's workers have sessions of their own, so they are found by their parent."""
        roots = [psutil.Process(pid) for pid in self.pids if pid not in self.codes]
        victims = [victim for root in roots for victim in [root, *root.children(recursive=True)]]
        for victim in victims:
            victim.kill()
        while self.is_running():
            time.sleep(0.01)
        psutil.wait_procs(victims)

    def wait(self) -> None:
        while self.is_running():
            time.sleep(0.02)
        if any(self.codes.values()):
            raise SystemExit(f"The run failed:\n{self.log.read_text()[-3000:]}")


def forked(rank: int, number: int, port: int, words: list[str], log: Path) -> int:
    from hf_meanmax.commands import pretrain

    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with open(log, "a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.environ["ACCELERATE_USE_CPU"] = "true"
        if number > 1:
            ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number}
            os.environ.update({name: str(value) for name, value in ranks.items()})
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        code = pretrain.main(words)
    finally:
        os._exit(code)


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def write_corpus(path: Path) -> None:
    draw = random.Random(0)
    with open(path, "w") as file:
        for _ in range(4000):
            file.write(" ".join(draw.choices(WORDS, k=draw.randint(4, 16))) + "\n")


def read_losses(folder: Path) -> dict[int, float]:
    """The loss of each step so far; an error if a step is there twice."""
    losses: dict[int, float] = {}
    path = folder / "metrics.jsonl"
    for line in path.read_text().splitlines(keepends=True) if path.is_file() else []:
        if line.endswith("\n") and "loss" in (record := json.loads(line)):
            if record["step"] in losses:
                raise SystemExit(f"{path} holds step {record['step']} twice.")
            losses[record["step"]] = record["loss"]
    return losses


def wait_until(run: Processes, folder: Path, moment: float, startup: float, pause: float) -> None:
    """Waits for step `moment`; a negative one lies that part of a start-up before the first step."""
    if moment < 0:
        deadline = startup * (1 + moment)
        while run.is_running() and run.seconds() < deadline:
            time.sleep(0.005)
        return
    while run.is_running() and max(read_losses(folder), default=0) <= moment:
        time.sleep(0.005)
    time.sleep(pause)


def kill_and_compare(number: int, kills: int, words: list[str], folder: Path, fork: bool, draw: random.Random) -> bool:
    whole, killed = folder / f"whole-{number}", folder / f"killed-{number}"
    for path in (whole, killed):
        shutil.rmtree(path, ignore_errors=True)
    log = folder / "log.txt"

    run = Processes(number, [*words, "--output_dir", str(whole)], log, fork)
    while run.is_running() and not read_losses(whole):
        time.sleep(0.02)
    startup = run.seconds()
    run.wait()
    expected = read_losses(whole)
    step_seconds = (run.seconds() - startup) / len(expected)
    print(f"\n{number} process(es): {len(expected)} steps, {startup:.1f} s to the first, {run.seconds():.1f} s in all")

    print(" kill | after s | step reached | last checkpoint | was writing one")
    words = [*words, "--output_dir", str(killed)]
    for count, moment in enumerate(sorted(draw.uniform(-0.15, 1) for _ in range(kills)), start=1):
        run = Processes(number, words, log, fork)
        moment = moment if moment < 0 else moment * (len(expected) - 2)
        wait_until(run, killed, moment, startup, draw.uniform(0, 2 * step_seconds))
        seconds, ended = run.seconds(), not run.is_running()
        run.kill()
        report(count, seconds, killed, "had ended" if ended else "")
    run = Processes(number, words, log, fork)
    run.wait()
    report(kills + 1, run.seconds(), killed, "runs to its end")

    found = read_losses(killed)
    weights = [(path / "model" / "model.safetensors").read_bytes() for path in (whole, killed)]
    same_weights = "identical" if weights[0] == weights[1] else "different"
    if found == expected and weights[0] == weights[1]:
        print(f"all {len(expected)} losses and the final weights are identical to the last bit")
        return True
    differing = [step for step in expected if found.get(step) != expected[step]] or ["none"]
    print(f"NOT the same: first differing step {differing[0]} of {len(expected)}; weights {same_weights}")
    return False


def report(count: int, seconds: float, folder: Path, remark: str) -> None:
    finished = sorted(path.name for path in (folder / "checkpoints").glob("step-*"))
    step, checkpoint = max(read_losses(folder), default=0), int(finished[-1][5:]) if finished else 0
    writing = "yes" if list((folder / "checkpoints").glob(".step-*")) else ""
    print(f" {count:4} | {seconds:7.1f} | {step:12} | {checkpoint:15} | {writing or remark}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--kills", type=int, nargs="+", default=[10, 10], help="for each number of processes")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments")
    parser.add_argument("--fork", action="store_true", help="fork the runs instead of starting Python anew")
    parser.add_argument("--folder", type=Path, help="where the runs are kept; by default they are not")
    args, settings = parser.parse_known_args()
    if len(args.kills) != len(args.processes):
        parser.error("--kills needs one number for each of --processes")
    if args.fork:
        import accelerate  # noqa: F401

        import hf_meanmax.checkpoint.folder
        import hf_meanmax.evaluation
        import hf_meanmax.training.pretrain  # noqa: F401

    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        write_corpus(folder / "corpus.txt")
        words = f"""--corpus {folder}/corpus.txt --cache_dir {folder}/cache --embedding_size 16 --hidden_size 32
            --intermediate_size 32 --num_attention_heads 2 --softmax sampled --num_negatives 8 --word_drop 0.1
            --batch_tokens 256 --gradient_accumulation_steps 2 --max_steps 200 --log_steps 1 --eval_steps 20
            --sample_sentences 0 --validation_sentences 50 --checkpoint_steps 3""".split()
        draw = random.Random(args.seed)
        pairs = zip(args.processes, args.kills, strict=True)
        same = [
            kill_and_compare(number, kills, [*words, *settings], folder, args.fork, draw) for number, kills in pairs
        ]
        curves = [read_losses(folder / f"whole-{number}") for number in args.processes]
        for number, curve in zip(args.processes[1:], curves[1:], strict=True):
            most = max(abs(curve[step] - loss) for step, loss in curves[0].items())
            print(f"\nlargest difference between losses on {args.processes[0]} and {number} process(es): {most:.2g}")
    return 0 if all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
