# Sourced by the scripts that need Python. `use_environment EXTRA` leaves in $PYTHON an interpreter that has aotgrad
# and that extra installed.
#
# An active virtual environment is used as it is: what it has stays at the version it has, torch above all, and only what
# is missing is added, at the versions of constraints.txt. With none active, .venv in the repository is made and used.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() {
    echo "error: $*" >&2
    exit 1
}

is_supported_python() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

find_python() {
    local candidate
    for candidate in python3 python3.13 python3.12 python3.11 python3.10 python; do
        if is_supported_python "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "no Python 3.10 or newer found on PATH"
}

# Conda's base environment is the installation itself, not one that somebody made for this project.
active_environment() {
    if [ -n "${VIRTUAL_ENV:-}" ]; then
        echo "$VIRTUAL_ENV"
    elif [ -n "${CONDA_PREFIX:-}" ] && [ "${CONDA_DEFAULT_ENV:-base}" != base ]; then
        echo "$CONDA_PREFIX"
    fi
}

make_environment() {
    local base_python
    base_python=$(find_python) || exit 1
    echo "Making a virtual environment in $1 ..." >&2
    if ! "$base_python" -m venv "$1"; then
        rm -rf "$1"
        fail "'$base_python -m venv' failed; install Python's venv module (on Debian and Ubuntu: python3-venv)"
    fi
    "$1/bin/python" -m pip install --quiet --upgrade pip
}

install() {
    local constraints status=0
    constraints=$(mktemp)
    "$PYTHON" "$repository/scripts/constraints.py" >"$constraints"
    echo "Installing aotgrad with its '$1' extra (the first time this downloads torch, which takes a while) ..." >&2
    "$PYTHON" -m pip install --quiet --constraint "$constraints" --editable "$repository[$1]" || status=$?
    rm -f "$constraints"
    [ "$status" = 0 ] || fail "pip failed; if the active environment's torch is older than pyproject.toml asks for, upgrade it:" \
        "this script replaces nothing that an environment has"
}

use_environment() {
    local environment stamp inputs
    environment=$(active_environment)
    if [ -z "$environment" ]; then
        environment=$repository/.venv
        [ -x "$environment/bin/python" ] || make_environment "$environment"
    fi
    PYTHON=$environment/bin/python
    is_supported_python "$PYTHON" || fail "$PYTHON is not Python 3.10 or newer"

    # The stamp says from what an extra was installed, so that a second run starts at once.
    stamp=$environment/.aotgrad-$1
    inputs=$(cd "$repository" && pwd && cat pyproject.toml constraints.txt)
    if [ "$inputs" != "$(cat "$stamp" 2>/dev/null)" ]; then
        install "$1"
        echo "$inputs" >"$stamp"
    fi
}
