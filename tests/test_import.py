"""The first lookup of a backend by name imports the package, under any mode that is active then."""

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


POOLING = """
import torch, aotgrad
def function(x):
    return torch.nn.functional.max_pool2d(x.sin(), 3, 2, 1)
if {dynamo}:
    compiled = torch.compile(function, backend="{backend}", options={{"min_graph_ops": 0, "cache": False}})
else:
    compiled = aotgrad.aot_function(function, "{backend}".replace("aotgrad_", "").replace("aotgrad", "inductor"))
x = torch.randn(2, 3, 8, 8, requires_grad=True)
found = compiled(x)
torch.testing.assert_close(found, function(x))
found, expected = (torch.autograd.grad(each.sum(), x) for each in (found, function(x)))
torch.testing.assert_close(found, expected)
"""


@pytest.mark.parametrize("backend", ["aotgrad", "aotgrad_eager"])
@pytest.mark.parametrize("dynamo", [True, False], ids=["compile", "aot_function"])
def test_the_first_thing_compiled_is_a_max_pooling(backend: str, dynamo: bool) -> None:
    """A decomposition of Inductor reads a part of Inductor that may not be imported yet."""
    program = POOLING.format(backend=backend, dynamo=dynamo)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
