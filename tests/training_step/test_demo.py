"""The demo of whole steps runs, with a small model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "examples" / "train_gpt_step.py"
SMALL = ["--steps=3", "--layers=1", "--width=16", "--context=8", "--batch-size=2"]


def test_the_demo() -> None:
    kinds = ["eager", "train_step, eager halves"]
    command = [sys.executable, str(PROGRAM), *SMALL, "--kinds", *kinds]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in ended.stdout.splitlines() if line.startswith("|")]
    assert [row[0] for row in rows[2:]] == kinds
    assert [row[3] for row in rows[2:]] == ["-", "equal"]
