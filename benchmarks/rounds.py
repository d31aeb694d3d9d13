"""Speeds that are measured in turn, for some rounds, and what is made of them: medians, ranges, ratios, JSON, Markdown.

A machine that slows down slows everything that takes turns, so a ratio is always one of two speeds of the same round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from hf_meanmax.evaluation.markdown import markdown_table
from hf_meanmax.files import Json, replacing_file
from hf_meanmax.hardware import is_bf16_fast, measure_matrix_rate, peak_memory_bytes
from hf_meanmax.progress import progress_bar

# Figures by their units. Those that end with "/s" are compared; FLOP/s become a share of the matrix rate.
Measured = Mapping[str, float]

GIB = 2**30
FLOPS, SHARE, MEMORY = "FLOP/s", "share of the matrix rate", "peak memory, GiB"
# What bounds integer and bf16 products.
INSTRUCTION_SETS = (
    "avx2", "avx512_f", "avx512_bf16", "avx512_vnni", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8", "neon", "bf16",
    "i8mm", "sve",
)  # fmt: skip


@dataclass
class Rounds:
    """What was measured.

    Attributes:
        figures: by name and unit, one figure a round.
        references: by name, whose figures of the same round it is compared with.
        facts: by name, what was found once, such as the memory that it takes.
        matrix_rates: FLOP/s of large products, one a round; empty if they were not measured.
        precision: what the products are computed in.
    """

    figures: dict[str, dict[str, list[float]]]
    references: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Json] = field(default_factory=dict)
    matrix_rates: list[float] = field(default_factory=list)
    precision: str = "float32"

    def to_json(self) -> Json:
        """Medians, ranges and ratios by name, and the machine."""
        rows = {}
        for name, figures in self.figures.items():
            found: Json = {unit: spread(values) for unit, values in figures.items()}
            reference = self.references.get(name, name)
            for unit, values in figures.items():
                beside = self.figures[reference].get(unit)
                if reference != name and unit.endswith("/s") and beside is not None:
                    ratios = [own / other for own, other in zip(values, beside, strict=True)]
                    found[unit]["ratio"] = {"to": reference, **spread(ratios)}
            rows[name] = {"figures": found, "facts": self.facts.get(name, {})}
        rates = {"matrix_rate": spread(self.matrix_rates)} if self.matrix_rates else {}
        return {"machine": machine_facts() | {"precision": self.precision}, **rates, "rows": rows}


def measure_in_turn(
    measurements: Mapping[str, Callable[[], Measured]],
    rounds: int,
    precision: str = "float32",
    references: Mapping[str, str] | None = None,
) -> Rounds:
    """Measures the machine's matrix rate, and then runs each measurement, in every round.

    Args:
        measurements: what to run, by name; they have warmed up.
        rounds: how often.
        precision: "float32" or "bfloat16", of the matrix rate.
        references: what each is compared with; by default the first.
    """
    first = next(iter(measurements))
    found = Rounds({name: {} for name in measurements}, dict(references or dict.fromkeys(measurements, first)))
    found.precision = precision
    with progress_bar(total=rounds * len(measurements), desc="measure", leave=False) as bar:
        for _ in range(rounds):
            rate = measure_matrix_rate(device(), getattr(torch, precision))
            found.matrix_rates.append(rate)
            for name, run in measurements.items():
                for unit, figure in run().items():
                    unit, figure = (SHARE, figure / rate) if unit == FLOPS else (unit, figure)
                    found.figures[name].setdefault(unit, []).append(figure)
                bar.update()
    return found


def spread(values: Sequence[float]) -> Json:
    return {"median": statistics.median(values), "least": min(values), "most": max(values), "rounds": list(values)}


def device() -> torch.device:
    """Where the benchmarks run."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def fast_precision() -> str:
    """The precision in which the machine is fast."""
    return "bfloat16" if is_bf16_fast(device()) else "float32"


def peak_memory() -> float:
    """GiB of this process."""
    return peak_memory_bytes(device()) / GIB


def machine_facts() -> Json:
    """What a speed depends on: processor, threads, load, versions, and the commit."""
    # Slow to import, and no worker needs it.
    from hf_meanmax.evaluation.runner import package_versions

    # Not in older versions of torch.
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = package_versions()
    for name in ("onnxruntime", "tokenizers"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "processor": capabilities.get("cpu_name", "unknown"),
        "instruction_sets": [name for name in INSTRUCTION_SETS if capabilities.get(name)],
        "cores": cores,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "load": os.getloadavg()[0],
        "versions": versions,
        "commit": current_commit(),
    }


def current_commit() -> str | None:
    """The commit of the checkout, with a plus if files were changed since; None where there is no checkout."""
    root = Path(__file__).resolve().parent
    try:
        command = ["git", "describe", "--always", "--abbrev=10", "--exclude=*", "--dirty=+"]
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def markdown(result: Json) -> str:
    """A table of what [`report`] wrote, and a line of how it was measured."""
    rows = result["rows"]
    units = list(dict.fromkeys(unit for row in rows.values() for unit in row["figures"]))
    facts = list(dict.fromkeys(fact for row in rows.values() for fact in row["facts"]))
    header, columns = [result["title"]], [list(rows)]
    for unit in units:
        found = [row["figures"].get(unit) for row in rows.values()]
        header.append(unit)
        columns.append(["" if figure is None else shown_spread(figure) for figure in found])
        ratios = [(figure or {}).get("ratio") for figure in found]
        references = {ratio["to"] for ratio in ratios if ratio}
        if references:
            several = len(references) > 1
            header.append("ratio" if several else f"ratio to {references.pop()}")
            columns.append([shown_spread(ratio) + several * f" of {ratio['to']}" if ratio else "" for ratio in ratios])
    for fact in facts:
        header.append(fact)
        columns.append([shown(row["facts"].get(fact, "")) for row in rows.values()])
    table = markdown_table(header, zip(*columns, strict=True), "l" + "r" * (len(header) - 1))
    return f"{table}\n\n{conditions(result)}"


def conditions(result: Json) -> str:
    """A sentence of how a result was measured."""
    machine = result["machine"]
    rounds = max(len(f["rounds"]) for row in result["rows"].values() for f in row["figures"].values())
    text = f"{rounds} rounds, medians (least-most)" if rounds > 1 else "Without ranges"
    place = machine["processor"] if machine["device"] == "cpu" else machine["device"]
    text += f"; {place}, {machine['threads']} thread{'s' * (machine['threads'] > 1)}, {machine['precision']}"
    if "matrix_rate" in result:
        rate = {key: result["matrix_rate"][key] / 1e12 for key in ("median", "least", "most")}
        text += f", {shown_spread(rate)} TFLOP/s on large products"
    if "peak_memory_gib" in result:
        text += f"; peak memory of all together {result['peak_memory_gib']:.2f} GiB"
    return f"{text}."


def shown_spread(figure: Json) -> str:
    """A median, and its range where there is one."""
    median, least, most = (shown(float(figure[key])) for key in ("median", "least", "most"))
    return median if least == most else f"{median} ({least}-{most})"


def shown(value: Any) -> str:
    """A number with three digits at least."""
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if isinstance(value, int) or value >= 1000 else f"{value:.3g}"


def positive(text: str) -> int:
    """A count of an option."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def add_options(parser: argparse.ArgumentParser, rounds: int | None = 5) -> None:
    """The options that all these benchmarks have; one without rounds has no `--rounds`."""
    if rounds is not None:
        parser.add_argument("--rounds", type=positive, default=rounds, help="measurements of each")
    parser.add_argument("--json", help="a file for the figures of all rounds, their medians, ranges and ratios")


def report(found: Rounds, args: argparse.Namespace, title: str = "") -> None:
    """Prints the table of a benchmark and writes its JSON where it is wanted.

    Args:
        found: the figures.
        args: the options of the benchmark.
        title: the head of the first column.
    """
    result = {"title": title, **found.to_json(), "settings": vars(args)}
    if not any(MEMORY in facts for facts in found.facts.values()):
        result["peak_memory_gib"] = peak_memory()
    print(markdown(result))
    if args.json:
        with replacing_file(args.json) as file:
            json.dump(result, file, indent=1)
