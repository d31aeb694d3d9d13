#!/usr/bin/env bash
# Run the tests on the lowest supported versions, in an environment of their own:
#
#     scripts/test_lowest.sh [arguments of pytest]
#
# TORCH_VERSION names the torch to take. 2.13.0 is the default; 2.11.0 is the lowest that setup.cfg admits, and where the
# package index offers no CPU build of it, it brings its CUDA packages along.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
python3 -m venv "$venv"
export PATH="$venv/bin:$PATH"

python -m pip install --quiet -c constraints-lowest.txt "torch==${TORCH_VERSION:-2.13.0}" -e ".[tests]"
python -m pip check
OMP_NUM_THREADS=1 python -m pytest -n 2 --dist loadfile "$@"
