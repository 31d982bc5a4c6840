"""Numbers on the CPU that kernels of a GPU read: eager takes their values, and a kernel cannot read their memory."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import aotgrad
from aotgrad.backends import corrected
from tests.emulated_cuda.inductor import check_devices
from tests.numerics.against_eager import assert_like_eager, leaf
from tests.numerics.conftest import TORCH_WARNS

pytest.importorskip("triton", reason="Inductor compiles Triton kernels for this device, and triton is not installed")
pytestmark = [pytest.mark.filterwarnings(warning) for warning in TORCH_WARNS]

CORRECTION = "numbers on the CPU"
PAIR = torch.tensor([0.25, 3.0], dtype=torch.float64, device="cpu")
NUMBER = torch.tensor(0.5, device="cpu")

PROGRAMS = {
    "elements": lambda x: x * PAIR.unbind()[0] + PAIR[1],
    "a function of an element": lambda x: (x * PAIR[0].sin()).exp(),
    "another dtype": lambda x: x.sin() * (-PAIR[0]).float(),
    "a function of a number": lambda x: x * (1 - NUMBER**3),
    "a choice": lambda x: torch.where(x > 0, PAIR[1].sin().float(), x.cos()),
    "a sum": lambda x: (x * PAIR.sum()).sin(),
    "a list": lambda x: torch._foreach_mul([x, x.sin()], PAIR[0].cos().float())[1],
    "in place": lambda x: (x * 2).mul_(PAIR[0].exp()),
}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("backend", ["inductor", "aot_inductor"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_are_those_of_eager(name, backend, requires_grad):
    assert_like_eager(PROGRAMS[name], lambda: (leaf(4, 4).detach().requires_grad_(requires_grad),), backend)


def test_the_correction_is_needed(monkeypatch):
    """If this fails, torch has fixed the error: remove the correction."""
    others = {name: each for name, each in corrected.CORRECTIONS.items() if name != CORRECTION}
    monkeypatch.setattr(corrected, "CORRECTIONS", others)
    compiled = aotgrad.aot_function(PROGRAMS["a function of an element"], "inductor", options={"min_graph_ops": 0})
    with pytest.raises(RuntimeError, match=r"CUDA driver error: invalid argument \(in_ptr1 of triton_"):
        compiled(leaf(4, 4).detach())  # with a gradient, the number is saved, and is a result of its own


def test_memory_of_the_host_is_refused():
    meta = {"signature": dict.fromkeys(["in_ptr0", "in_ptr1", "out_ptr0"])}
    kernel = SimpleNamespace(fn=SimpleNamespace(__name__="kernel"), triton_meta=meta)
    here, there = torch.empty(8), torch.empty(8, device="cpu")
    check_devices(kernel, (here, here, here, 8))
    with pytest.raises(RuntimeError, match=r"CUDA driver error: invalid argument \(in_ptr1 of kernel\)"):
        check_devices(kernel, (here, there, here, 8))


OPTIMIZERS = {
    "SGD": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    "AdamW": partial(torch.optim.AdamW, lr=0.1, foreach=True),
}


def trained(make, compile):
    """The parameters after steps at changing rates."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = make(model.parameters())

    def step(x):
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    run = compile(step, [model, optimizer])
    for k in range(4):
        optimizer.param_groups[0]["lr"] = 0.1 / (k + 1)
        run(torch.randn(8, 4))
    return list(model.parameters()), getattr(run, "plans", list)()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_step_takes_its_numbers_from_the_cpu(name):
    found, plans = trained(OPTIMIZERS[name], partial(aotgrad.train_step, backend="inductor"))
    expected, _ = trained(OPTIMIZERS[name], lambda step, state: step)
    torch.testing.assert_close(found, expected)
    assert len(plans) == 2
