"""A PostgreSQL server with pgvector for the tests: in a temporary folder, on a socket of its own."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

PASSWORD = "p@ss/wo:rd"


def find_programs() -> Path | None:
    """The folder of the programs of a PostgreSQL that has pgvector: the system's, or that of the package pgserver."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if (initdb := shutil.which("initdb")) is not None:
        folders.append(Path(initdb).resolve().parent)
    if (package := importlib.util.find_spec("pgserver")) is not None and package.origin:
        folders.append(Path(package.origin).parent / "pginstall" / "bin")
    for folder in folders:
        if (folder / "initdb").is_file() and (folder / "pg_config").is_file():
            shared = subprocess.run([folder / "pg_config", "--sharedir"], capture_output=True, text=True).stdout.strip()
            if (Path(shared) / "extension" / "vector.control").is_file():
                return folder
    return None


@contextmanager
def postgres_server() -> Iterator[str]:
    """The URL of a new database server, whose user `postgres` has a password; skips where there is no PostgreSQL."""
    programs = find_programs()
    if programs is None:
        pytest.skip(
            "no PostgreSQL with pgvector: neither the system's (postgresql-NN-pgvector) nor the package pgserver"
        )
    # A socket's path has at most 107 letters.
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    user: dict[str, object] = {}
    try:
        (folder / "password").write_text(PASSWORD)
        if os.geteuid() == 0:  # for which PostgreSQL does not run
            user = {"user": "nobody", "group": "nogroup", "extra_groups": []}
            if not programs.is_relative_to("/usr"):  # where others may not read
                package = programs.parents[1]
                for part in package, package.with_name(f"{package.name}.libs"):
                    shutil.copytree(part, folder / part.name)
                programs = folder / programs.relative_to(package.parent)
            shutil.chown(folder, "nobody", "nogroup")
            shutil.chown(folder / "password", "nobody", "nogroup")

        def run(program: str, *words: str) -> None:
            command = [programs / program, "-D", folder / "data", *words]
            # A server keeps an inherited pipe open.
            with open(folder / "log", "a") as log:
                done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, **user)
            assert done.returncode == 0, (folder / "log").read_text()

        secret = f"--pwfile={folder / 'password'}"
        run("initdb", "-N", "-A", "scram-sha-256", "--no-locale", "-E", "UTF8", "-U", "postgres", secret)
        run("pg_ctl", "-w", "-o", f"-k {folder} -c listen_addresses= -F", "-l", str(folder / "server"), "start")
        try:
            place = quote(str(folder), safe="")
            yield f"postgresql://postgres:{quote(PASSWORD, safe='')}@{place}/postgres"
        finally:
            run("pg_ctl", "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)
