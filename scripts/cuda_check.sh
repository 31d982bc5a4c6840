#!/usr/bin/env bash
# Checks aotgrad on a machine with an NVIDIA GPU, and writes a report: scripts/cuda_check.sh --part 1 --out part1.md
# It installs nothing, since such a machine may have no network: it uses the Python of $PYTHON, or python3, with its torch.
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PYTHONPATH="$repository:$repository/scripts/cuda_check${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" "$repository/scripts/cuda_check/check.py" "$@"
