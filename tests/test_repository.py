"""What holds the repository together: versions, dependencies, entry points, and text that belongs to it."""

from __future__ import annotations

import configparser
import importlib.metadata
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import hf_meanmax

ROOT = Path(__file__).resolve().parents[1]


def read_setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def requirements(*, extras: bool) -> list[Requirement]:
    setup = read_setup_cfg()
    blocks = [setup["options"]["install_requires"]]
    if extras:
        blocks += setup["options.extras_require"].values()
    return [Requirement(line) for block in blocks for line in block.splitlines() if line.strip()]


def pins(name: str) -> dict[str, Version]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line.strip() and not line.startswith("#")]
    return {canonicalize_name(package): Version(version) for package, version in pairs}


def tracked_texts() -> dict[str, str]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if listing.returncode:
        pytest.skip(f"git cannot list the files: {listing.stderr.decode().strip()}")
    texts = {}
    for name in filter(None, listing.stdout.decode().split("\0")):
        path = ROOT / name
        if path.is_file() and path != Path(__file__).resolve():
            data = path.read_bytes()
            if b"\0" not in data:
                texts[name] = data.decode("utf-8")
    return texts


def test_pyproject_holds_the_build_system_alone():
    headers = re.findall(r"^\[.*\]$", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert headers == ["[build-system]"]


def test_version_is_the_newest_of_the_changelog():
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert headings[0] == hf_meanmax.__version__


def test_constraints_admit_every_requirement():
    tested = pins("constraints.txt")
    for requirement in requirements(extras=True):
        version = tested.get(canonicalize_name(requirement.name))
        assert version is not None, f"constraints.txt does not pin {requirement.name}"
        assert requirement.specifier.contains(version), f"constraints.txt pins {version}, setup.cfg says {requirement}"


def test_lowest_constraints_are_the_lower_bounds():
    lowest = pins("constraints-lowest.txt")
    for requirement in requirements(extras=True):
        bounds = [Version(s.version).release for s in requirement.specifier if s.operator == ">="]
        # .ci/lowest takes torch from TORCH_VERSION, and tools without a bound as they come.
        if requirement.name == "torch" or not bounds:
            continue
        (bound,) = bounds
        # a bound of 5.10 is met by the first release of the 5.10 series
        assert lowest[canonicalize_name(requirement.name)].release[: len(bound)] == bound, requirement


@pytest.mark.parametrize("line", read_setup_cfg()["options.entry_points"]["console_scripts"].split("\n")[1:])
def test_console_script_leads_to_a_function(line):
    name, value = (part.strip() for part in line.split("="))
    assert callable(importlib.metadata.EntryPoint(name, value, "console_scripts").load())


def test_texts_name_no_place_of_their_making():
    places = re.compile(r"(?<![\w.])/(?:work/|tmp/dev)|\bpypi\.org|pythonhosted\.org|pytorch\.org/whl")
    texts = tracked_texts()
    found = [f"{name}: {match[0]}" for name, text in texts.items() for match in places.finditer(text)]
    found += [f"{name}: ../shared" for name, text in texts.items() if "../shared" in text and name != ".ci/run"]
    assert found == []


def test_code_is_ascii():
    texts = {name: text for name, text in tracked_texts().items() if name.startswith(("src/", "scripts/"))}
    code = {name: text for name, text in texts.items() if not name.endswith("/tokenizer.json")}
    assert [name for name, text in code.items() if not text.isascii()] == []


def test_the_network_guard_refuses_other_machines():
    with pytest.raises(RuntimeError, match="loopback"):
        socket.create_connection(("192.0.2.1", 80), timeout=1)
