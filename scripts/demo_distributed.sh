#!/usr/bin/env bash
# Trains a small GPT on two processes with FSDP2 and with tensor parallelism, in eager and through each backend, and compares
# the runs. Arguments go to examples/train_gpt_parallel.py.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_venv.sh"
use_environment demo
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec "$PYTHON" -m torch.distributed.run --standalone --nproc-per-node 2 "$repository/examples/train_gpt_parallel.py" "$@"
