"""Programs started by torchrun. An uncaught error of one rank ends all of them."""

from __future__ import annotations

import subprocess
import sys

SECONDS = 250


def torchrun(ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `launched.py` at a free port."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += ["-m", "tests.distributed.launched", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)


def test_a_program() -> None:
    ended = torchrun(2, "train", "aotgrad_eager")
    assert ended.returncode == 0, ended.stderr
    assert sorted(line for line in ended.stdout.splitlines() if "done" in line) == [
        "rank 0 of 2 is done",
        "rank 1 of 2 is done",
    ]


def test_an_error_of_one_rank_ends_all() -> None:
    ended = torchrun(4, "raise", "aotgrad_eager")
    assert ended.returncode != 0
    assert "ValueError: what happened on rank 1" in ended.stderr
    assert "done" not in ended.stdout
