#!/usr/bin/env bash
# Trains a small GPT in eager and through each backend and compares the runs. Arguments go to examples/train_gpt.py.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_venv.sh"
use_environment demo
exec "$PYTHON" "$repository/examples/train_gpt.py" "$@"
