"""`early_backward`: the backward is compiled while C++ compilers of the forward run, and nobody notices."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.utils import fresh_cache

import aotgrad
from aotgrad import torch_compat
from aotgrad.backends import layers
from aotgrad.backends.inductor import cpp_kernels
from aotgrad.backends.inductor.backend import InductorBackend
from aotgrad.backends.inductor.compiler_threads import CompilerThread
from aotgrad.runtime.variants import VariantCache
from tests.torch_compat.tracing import inductor

pytestmark = inductor


@pytest.fixture(autouse=True)
def two_compilers() -> Iterator[None]:
    """Compilers run beside Python, and find nothing on disk; the last ones end in a folder that is there."""
    with fresh_cache(), torch_compat.inductor_config("default", compile_threads=2):
        yield
        for thread in threading.enumerate():
            if isinstance(thread, CompilerThread):
                thread.join()


@pytest.fixture
def begun(monkeypatch) -> list[str]:
    """What Inductor has generated code for, in order."""
    found: list[str] = []
    make = InductorBackend._make
    monkeypatch.setattr(
        InductorBackend, "_make", lambda self, job, shared: found.append(job.role) or make(self, job, shared)
    )
    return found


def by_dynamo(function: Callable, **options) -> Callable:
    torch._dynamo.reset()
    return torch.compile(function, backend="aotgrad", options={"cache": False, **options})


def by_aot_function(function: Callable, backend: str = "inductor", **options) -> Callable:
    return aotgrad.aot_function(function, backend, options=options)


FRONTENDS = pytest.mark.parametrize("compiled_by", [by_dynamo, by_aot_function])


def gated(x: Tensor, w: Tensor) -> Tensor:
    return ((x @ w).tanh() @ w).softmax(-1) * x.sigmoid()


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)


def assert_as_eager(compiled: Callable) -> None:
    x, w = inputs()
    expected, result = gated(x, w), compiled(x, w)
    torch.testing.assert_close(result, expected)
    found, gradients = torch.autograd.grad(result.sum(), (x, w)), torch.autograd.grad(expected.sum(), (x, w))
    torch.testing.assert_close(found, gradients)


@FRONTENDS
def test_the_first_call_compiles_both(compiled_by, begun):
    compiled = compiled_by(gated)
    compiled(*inputs())
    assert begun == ["forward", "backward"]
    for _ in range(2):
        assert_as_eager(compiled)
    assert begun == ["forward", "backward"]


@FRONTENDS
@pytest.mark.parametrize("options", [{"early_backward": False}, {"on_error": "eager"}], ids=str)
def test_where_it_is_off_the_first_backward_compiles(compiled_by, options, begun):
    compiled = compiled_by(gated, **options)
    compiled(*inputs())
    assert begun == ["forward"]
    assert_as_eager(compiled)
    assert begun == ["forward", "backward"]


def test_it_is_off_where_one_compiler_runs_in_the_calling_thread(begun):
    with torch_compat.inductor_config("default", compile_threads=1):
        compiled = by_aot_function(gated)
        compiled(*inputs())
        assert begun == ["forward"]
        assert_as_eager(compiled)


def test_eager_halves_have_nothing_to_wait_for(monkeypatch):
    monkeypatch.setattr(VariantCache, "compile_early", mock.Mock(side_effect=AssertionError))
    assert_as_eager(by_aot_function(gated, "eager"))


def test_a_call_without_gradients_has_no_backward(begun):
    compiled = by_aot_function(gated)
    with torch.no_grad():
        compiled(*inputs())
    assert begun == ["forward"]


def test_another_variant_is_compiled_beside_it(begun):
    compiled = by_aot_function(gated)
    x, w = inputs()
    torch.testing.assert_close(
        torch.autograd.grad(compiled(x, w.detach()).sum(), x), torch.autograd.grad(gated(x, w.detach()).sum(), x)
    )
    result = compiled(x, w)
    expected = torch.autograd.grad(gated(x, w).sum(), w)
    torch.testing.assert_close(torch.autograd.grad(result.sum(), w, retain_graph=True), expected)
    torch.testing.assert_close(torch.autograd.grad(result.sum(), w), expected)
    assert_as_eager(compiled)


class Refused(Exception):
    pass


def refusing(times: int) -> Callable:
    """Inductor, which refuses the first backwards."""
    make, left = InductorBackend._make, [times]

    def refuse(self, job, shared):
        if job.role == "backward" and left[0]:
            left[0] -= 1
            raise Refused
        return make(self, job, shared)

    return refuse


@FRONTENDS
def test_an_error_is_that_of_the_first_backward(compiled_by, monkeypatch):
    monkeypatch.setattr(InductorBackend, "_make", refusing(2))
    compiled = compiled_by(gated)
    result = compiled(*inputs())
    with pytest.raises(Refused):
        result.sum().backward()
    assert_as_eager(compiled)


def test_an_error_that_does_not_happen_again_is_forgotten(monkeypatch):
    monkeypatch.setattr(InductorBackend, "_make", refusing(1))
    assert_as_eager(by_aot_function(gated))


def test_kernels_that_do_not_compile_early_are_compiled_again(monkeypatch):
    start, count = cpp_kernels.start_together, [0]

    def fail_second(kernels):
        count[0] += 1
        return mock.Mock(side_effect=Refused) if count[0] == 2 else start(kernels)

    monkeypatch.setattr(cpp_kernels, "start_together", fail_second)
    assert_as_eager(by_aot_function(gated))
    assert count == [3]


def test_kernels_of_a_forward_that_do_not_compile_are_an_error_of_the_call(monkeypatch):
    start, failing = cpp_kernels.start_together, [True]
    monkeypatch.setattr(
        cpp_kernels, "start_together", lambda kernels: mock.Mock(side_effect=Refused) if failing.pop() else start(kernels)
    )
    failing.extend([True])
    compiled = by_aot_function(gated)
    with pytest.raises(Refused):
        compiled(*inputs())
    failing[:] = [False] * 4
    assert_as_eager(compiled)


def test_a_folder_that_is_removed_meanwhile_costs_time_only():
    compiled = by_aot_function(gated)
    x, w = inputs()
    with fresh_cache():
        result = compiled(x, w)
    torch.testing.assert_close(torch.autograd.grad(result.sum(), (x, w)), torch.autograd.grad(gated(x, w).sum(), (x, w)))


def test_saved_values_may_be_written_over():
    """The logits of a language model have the memory for their gradient."""

    def loss(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).logsumexp(1).sum()

    x, w = torch.randn(256, 4, requires_grad=True), torch.randn(4, 512, requires_grad=True)
    compiled = by_aot_function(loss)
    for retain in (False, True):
        result, expected = compiled(x, w), loss(x, w)
        gradients = torch.autograd.grad(expected, (x, w))
        torch.testing.assert_close(torch.autograd.grad(result, (x, w), retain_graph=retain), gradients)


def test_sizes_that_are_symbolic():
    compiled = aotgrad.aot_function(gated, "inductor", dynamic=True)
    for rows in (3, 5):
        x, w = torch.randn(rows, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
        torch.testing.assert_close(
            torch.autograd.grad(compiled(x, w).sum(), (x, w)), torch.autograd.grad(gated(x, w).sum(), (x, w))
        )


def test_what_is_stored_serves_the_next_process(tmp_path, monkeypatch, begun):
    monkeypatch.setenv("AOTGRAD_CACHE_DIR", str(tmp_path))
    for _ in range(2):
        torch._dynamo.reset()
        assert_as_eager(torch.compile(gated, backend="aotgrad", options={"verify": False}))
    assert begun == ["forward", "backward"]


def test_layers_that_are_equal():
    model = nn.Sequential(*(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU()) for _ in range(6)))
    x = torch.randn(4, 8, requires_grad=True)
    with mock.patch.object(layers, "ENOUGH_WORK", 10):
        result = by_dynamo(model, share_layers=True)(x)
    torch.testing.assert_close(torch.autograd.grad(result.sum(), x), torch.autograd.grad(model(x).sum(), x))


PROGRAM = """
import os, sys, torch, aotgrad
from torch._inductor import config
config.compile_threads = 2
def gated(x, w):
    return ((x @ w).tanh() @ w).softmax(-1) * x.sigmoid()
torch.manual_seed(0)
x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
result = aotgrad.aot_function(gated, "inductor")(x, w)
expected = torch.autograd.grad(gated(x, w).sum(), (x, w))
"""
IN_CHILD_AND_PARENT = """
child = os.fork()
found = torch.autograd.grad(result.sum(), (x, w))
torch.testing.assert_close(found, expected)
if not child:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.parametrize("rest", ["", IN_CHILD_AND_PARENT], ids=["the program ends", "it forks"])
def test_a_program_that(rest, tmp_path):
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + rest], capture_output=True, text=True, timeout=300, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
