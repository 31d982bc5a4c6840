"""The package is imported when a backend is first looked up by name, in whichever mode the program is then."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import torch
with {mode}:
    compiled = torch.compile(lambda x: (x * 2).sin(), backend="aotgrad_eager", options={{"min_graph_ops": 0}})
    x = torch.ones(3, device="cpu")
    assert torch.equal(compiled(x), (x * 2).sin())
x = torch.ones(3, requires_grad=True)
y = torch.compile(lambda x: (x * 2).sin(), backend="aotgrad_eager", options={{"min_graph_ops": 0}})(x)
torch.autograd.grad(y.sum(), x)
"""

MODES = ("torch.no_grad()", "torch.inference_mode()", "torch.device('meta')", "torch.autograd.forward_ad.dual_level()")


@pytest.mark.parametrize("mode", MODES)
def test_imported_in_a_mode(mode: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(mode=mode)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
