#!/usr/bin/env bash
# Trains a small GPT with the whole step compiled as one graph, beside eager and compiled parts, and compares the runs.
# Arguments go to examples/train_gpt_step.py.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_venv.sh"
use_environment demo
exec "$PYTHON" "$repository/examples/train_gpt_step.py" "$@"
