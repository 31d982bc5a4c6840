#!/usr/bin/env bash
# Runs programs of common frameworks in eager and with three backends, compares them, and writes docs/workflows.md.
# Arguments are those of `python -m scripts.workflows --help`; cells with a result in .workflows/ are skipped.
#
# The frameworks are installed into an environment of their own, $AOTGRAD_WORKFLOWS_VENV or .venv-workflows: they are many,
# and an environment in use should not get them.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_venv.sh"
export VIRTUAL_ENV=${AOTGRAD_WORKFLOWS_VENV:-$repository/.venv-workflows}
[ -x "$VIRTUAL_ENV/bin/python" ] || make_environment "$VIRTUAL_ENV"
use_environment test
cd "$repository"

stamp=$VIRTUAL_ENV/.aotgrad-workflows
if ! cmp --silent scripts/workflows.txt "$stamp"; then
    echo "Installing the frameworks of scripts/workflows.txt ..." >&2
    "$PYTHON" -m pip install --quiet --no-deps --requirement scripts/workflows.txt
    cp scripts/workflows.txt "$stamp"
fi
"$PYTHON" -m scripts.workflows --markdown docs/workflows.md "$@"
