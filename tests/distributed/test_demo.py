"""The demo of training in several processes runs, with a small model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "examples" / "train_gpt_parallel.py"
SMALL = ["--steps=2", "--layers=1", "--width=16", "--context=8", "--batch-size=2", "--backends", "aotgrad_eager"]


def test_the_demo() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(PROGRAM), *SMALL]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert ended.returncode == 0, ended.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in ended.stdout.splitlines() if line.startswith("|")]
    assert [row[:2] for row in rows[2:]] == [
        ["FSDP2", "eager"],
        ["FSDP2", "aotgrad_eager"],
        ["tensor parallel", "eager"],
        ["tensor parallel", "aotgrad_eager"],
    ]
    assert [row[3] for row in rows[2:]] == ["-", "equal", "-", "equal"]
