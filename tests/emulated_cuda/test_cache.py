"""Functions of a GPU are found on disk, with their constants."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import aotgrad


def with_a_constant(x):
    return (x * torch.tensor([1.1, 2.2, 3.3], device=x.device)).exp()


def with_an_index(x):
    return x[torch.tensor([2, 0], device=x.device)].sin()


@pytest.mark.parametrize("backend", ["aotgrad_eager", "aotgrad"])
@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
@pytest.mark.parametrize("function", [with_a_constant, with_an_index])
def test_a_function_with_constants_is_found_again(function, device, backend, tmp_path, monkeypatch):
    monkeypatch.setenv("AOTGRAD_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("AOTGRAD_VERIFY", "0")  # looking at the stages needs stages
    x = torch.ones(3, device=device, requires_grad=True)
    expected = torch.autograd.grad(function(x).sum(), x)[0]
    before = aotgrad.counters["cache_hits"]
    for _ in range(2):
        torch._dynamo.reset()
        result = torch.compile(function, backend=backend)(x)
        torch.testing.assert_close(result, function(x))
        torch.testing.assert_close(torch.autograd.grad(result.sum(), x)[0], expected)
    assert aotgrad.counters["cache_hits"] == before + 1


CPU_ONLY = """
from tests.emulated_cuda import device
device.load()
import torch, aotgrad
from aotgrad import torch_compat

compiled = aotgrad.aot_function(lambda x: torch.nn.functional.dropout(x.sin(), 0.5), aotgrad.nop)
x = torch.ones(4, requires_grad=True)
(first,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
first.sum().backward()
torch.func.grad(lambda x: compiled(x).sum())(x)
build = torch_compat.torch_build()
assert not torch.cuda.is_initialized()
torch.ones(1, device="cuda")
torch.cuda.init()
assert torch_compat.torch_build() != build, "the GPUs are a part of the key as soon as they are in use"
"""


def test_a_function_of_the_cpu_does_not_initialize_cuda():
    """Behind Dynamo, Dynamo does."""
    subprocess.run([sys.executable, "-c", CPU_ONLY], check=True, cwd=Path(__file__).parents[2])
