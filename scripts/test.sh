#!/usr/bin/env bash
# Runs the linter, where it is installed, the whole test suite, a part of it on an emulated GPU (docs/emulated_cuda.md), and the
# tests of the C++ functions with sanitizers (docs/native.md).
# With arguments, which go to pytest, it runs what they say: scripts/test.sh tests/runtime -x
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_venv.sh"
use_environment test,emulated,docs
cd "$repository"

# Two workers share the cores; more threads in each would only get in each other's way.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

if "$PYTHON" -m ruff --version >/dev/null 2>&1; then
    "$PYTHON" -m ruff check .
fi
"$PYTHON" -m pytest -n 2 "$@"

if [ $# = 0 ] && [ "$(uname)" = Linux ]; then
    mapfile -t selection < <("$PYTHON" -m tests.emulated_cuda.selection)
    AOTGRAD_TEST_DEVICE=emulated "$PYTHON" -m pytest -n 2 "${selection[@]}"
    bash scripts/sanitize.sh
fi
