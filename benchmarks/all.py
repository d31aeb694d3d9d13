"""Runs the speed benchmarks, prints their tables, and keeps the figures in one JSON file.

    python benchmarks/all.py books.txt --peer sentence-transformers/all-MiniLM-L6-v2 --output results/speed.json
    python benchmarks/all.py books.txt --only encoding decoding --output results/speed.json --overwrite

Each part is a benchmark in a process of its own; what it compares runs in turn there. A part that the file has with the
same settings is not measured again, so the same command goes on after an interruption. A part that fails is named, its
output is kept beside the file, and the others go on. The long parts run where they are named (`--only softmax`).
`--quick` tries all of it with tiny sizes; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from rounds import conditions, device, markdown, positive

from hf_meanmax.commands.options import named_folders
from hf_meanmax.data import open_corpus
from hf_meanmax.files import Json, read_json, replacing_file

FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Part:
    """A benchmark and its options.

    Attributes:
        command: script and options; `{corpus}`, `{peers}`, `{validation}`, `{rounds}` and `{folder}` (a temporary one)
            are put in.
        minutes: with three rounds, on two slow cores.
        quick: options of tiny sizes.
        is_long: runs only where it is named.
    """

    command: str
    minutes: int
    quick: str
    is_long: bool = False


_SMALL = "--vocab-size 1000 --hidden-size 64 --negatives 50 --lines 2000 --steps 1"
_SMALL_LAYER = f"{_SMALL} --intermediate-size 64 --batch-tokens 128"
_SCALING = "scaling.py {corpus} --output {folder}"
_SCALING_MINUTES = {"lengths": 6, "widths": 10, "vocabulary": 15, "corpus": 10, "stores": 5, "processes": 10}
_SMALL_SCALING = "--hidden-size 64 --batch-tokens 128 --negatives 50 --lines 2000 --steps 8 --store-sentences 2000"
PARTS = {
    "training": Part("training_speed.py {corpus} --rounds {rounds}", 6, _SMALL_LAYER),
    "training-512": Part(
        "training_speed.py {corpus} --rounds {rounds} --hidden-size 512 --intermediate-size 1024", 4, _SMALL_LAYER
    ),
    "peers": Part("training_peers.py {corpus} --rounds {rounds}", 8, f"{_SMALL_LAYER} --tsdae-sentences 4"),
    "context": Part("context_speed.py {corpus} --rounds {rounds}", 6, f"{_SMALL} --sentences 4"),
    "family": Part("family_speed.py {corpus} --rounds {rounds}", 6, f"{_SMALL} --batch-tokens 128"),
    "padding": Part("recurrent_padding.py --rounds {rounds}", 1, "--lengths 8 16 --rows 4"),
    "batches": Part("batch_maker.py {corpus} --rounds {rounds}", 6, "--lines 2000"),
    "vectors": Part(
        "vectors.py {peers} mini-en static-en --texts {corpus} --speed_only --rounds {rounds}", 4, "--sentences 20"
    ),
    "encoding": Part(
        "encoding_speed.py {corpus} --peer {peers} --rounds {rounds}", 8, "--sentences 20 --vocab-size 500"
    ),
    "latency": Part(
        "encoding_speed.py {corpus} --peer {peers} --rounds {rounds} --latency --sentences 300",
        5,
        "--sentences 10 --vocab-size 500",
    ),
    "decoding": Part("decoding_speed.py {corpus} --rounds {rounds}", 8, "--sentences 6 --max-length 12"),
    "softmax": Part(
        "softmax_time.py {corpus} --validation {validation} --output {folder}",
        35,
        "--minutes 0.1 --hidden-size 64 --eval-steps 2 --forms full",
        is_long=True,
    ),
    **{
        name: Part(f"{_SCALING} --parts {name} --rounds {{rounds}}", minutes, _SMALL_SCALING, is_long=True)
        for name, minutes in _SCALING_MINUTES.items()
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", nargs="+", help="text files")
    parser.add_argument("--peer", nargs="+", default=[], help="SentenceTransformers: folders, NAME=FOLDER, or names")
    parser.add_argument("--validation", help="a text file, for the part `softmax`")
    parser.add_argument("--rounds", type=positive, default=3, help="measurements of each")
    parser.add_argument("--output", required=True, help="the JSON file")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), help="parts to measure; by default all but long ones")
    parser.add_argument("--overwrite", action="store_true", help="measure again what is in the file")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that all runs")
    args = parser.parse_args()
    try:
        failed = measure_parts(args)
    except (OSError, ValueError) as error:
        raise SystemExit(f"all.py: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit(f"Interrupted; {args.output} has what was measured. The same command goes on.") from None
    if failed:
        raise SystemExit(f"Failed: {', '.join(failed)}.")


def measure_parts(args: argparse.Namespace) -> list[str]:
    """Measures what is wanted and not there yet; the file is written after each part.

    Returns:
        The parts that failed.

    Raises:
        OSError, ValueError: no such corpus, two peers of one name, or a file that is damaged.
    """
    next(iter(open_corpus(args.corpus)), None)
    named_folders(args.peer)
    output = Path(args.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    parts = read_json(output).get("parts", {}) if output.exists() else {}
    names = args.only or [name for name, part in PARTS.items() if not part.is_long]
    runs = {name: run_of(PARTS[name], args) for name in names}
    kept = [name for name in names if not args.overwrite and parts.get(name, {}).get("run") == runs[name]]
    minutes = sum(PARTS[name].minutes for name in names if name not in kept) * args.rounds / 3
    print(f"{len(names)} parts, {len(kept)} of them measured before; about {minutes:.0f} minutes", flush=True)
    failed = []
    for number, name in enumerate(names, 1):
        start = time.monotonic()
        try:
            if name in kept:
                told = f"measured before, at commit {parts[name]['machine']['commit']}"
            else:
                parts[name] = {"run": runs[name], **measure_part(runs[name]["command"], log_of(output, name))}
                with replacing_file(output) as file:
                    json.dump({"parts": parts}, file, indent=1)
                told = f"{(time.monotonic() - start) / 60:.1f} minutes; {conditions(parts[name])}"
        except RuntimeError as error:
            failed.append(name)
            told = f"failed: {error}"
        print(f"[{number}/{len(names)}] {name}: {told}", flush=True)
        if name not in failed:
            print(f"\n{markdown(parts[name])}\n", flush=True)
    return failed


def run_of(part: Part, args: argparse.Namespace) -> Json:
    """What decides whether a part is measured again. A part without something that it needs has a command that says
    so when it runs."""
    put_in = {
        "{corpus}": args.corpus,
        "{peers}": args.peer,
        "{validation}": [args.validation] if args.validation else [],
        "{rounds}": [str(args.rounds)],
    }
    words = [word for given in shlex.split(part.command) for word in put_in.get(given, [given])]
    words += shlex.split(part.quick) if args.quick else []
    return {"command": words, "threads": torch.get_num_threads(), "device": device().type, "quick": args.quick}


def measure_part(command: list[str], log: Path) -> Json:
    """What a benchmark writes.

    Raises:
        RuntimeError: it failed; the message ends with the log, which is removed otherwise.
    """
    with tempfile.TemporaryDirectory() as folder:
        script, *words = [folder if word == "{folder}" else word for word in command]
        result = Path(folder) / "result.json"
        command = [sys.executable, str(FOLDER / script), *words, "--json", str(result)]
        with open(log, "w", encoding="utf-8") as file:
            code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
        if code or not result.is_file():
            lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), f"exit code {code}")
            raise RuntimeError(f"{last.strip()} ({log})")
        log.unlink()
        return {**read_json(result)}


def log_of(output: Path, name: str) -> Path:
    return output.with_name(f"{output.stem}-{name}.log")


if __name__ == "__main__":
    main()
