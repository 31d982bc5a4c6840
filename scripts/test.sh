#!/usr/bin/env bash
# Runs the linter, where it is installed, and the whole test suite. Arguments go to pytest: scripts/test.sh tests/runtime -x
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_venv.sh"
use_environment test
cd "$repository"

# Two workers share the cores; more threads in each would only get in each other's way.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

if "$PYTHON" -m ruff --version >/dev/null 2>&1; then
    "$PYTHON" -m ruff check .
fi
"$PYTHON" -m pytest -n 2 "$@"
