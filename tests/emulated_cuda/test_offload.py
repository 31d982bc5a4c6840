"""Values of a GPU that wait on the host: pinned copies on a stream of their own, each with an event that is waited for."""

from __future__ import annotations

import pytest
import torch

import aotgrad
from aotgrad.graph import host_copies
from tests.numerics.conftest import TORCH_WARNS

pytestmark = [pytest.mark.filterwarnings(warning) for warning in TORCH_WARNS]

NAMED = {"checkpoint_policies": {"hidden": "offload"}}


def layers(x, w, v):
    h = aotgrad.checkpoint_name(torch.tanh(x @ w), "hidden")
    return aotgrad.checkpoint_name(torch.tanh((h @ v).t()), "hidden").exp() @ w


def arguments(device):
    torch.manual_seed(0)
    values = torch.randn(3, 8, 8, device="cpu").to(device)
    return [each.clone().requires_grad_() for each in values]


def outcome(f, device):
    args = arguments(device)
    y = f(*args).sum()
    y.backward()
    return [y.detach(), *(arg.grad for arg in args)]


@pytest.fixture(autouse=True)
def copies(monkeypatch):
    """The copies as (from, to, device); on the emulated device, which has no pinned memory, those to the host are plain."""
    found = []
    copy, on_host = host_copies._copied, host_copies._like_on_host

    def copied(source, target, device):
        found.append((source.device.type, target.device.type, device))
        return copy(source, target, device)

    monkeypatch.setattr(host_copies, "_copied", copied)
    if torch.version.cuda is None:
        monkeypatch.setattr(host_copies, "_like_on_host", lambda x, pin_memory=False: on_host(x))
    return found


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
def test_values_are_those_of_eager(device, copies):
    f = aotgrad.aot_function(layers, "eager", options=NAMED)
    torch.testing.assert_close(outcome(f, device), outcome(layers, device))
    there, back = ("cuda", "cpu", torch.device(device)), ("cpu", "cuda", torch.device(device))
    assert copies == [there] * 2 + [back] * 2
    assert not host_copies._arrivals


def test_behind_dynamo(copies):
    torch.compiler.reset()
    f = torch.compile(layers, backend="aotgrad_eager", options={**NAMED, "cache": False})
    torch.testing.assert_close(outcome(f, "cuda"), outcome(layers, "cuda"))
    assert len(copies) == 4


def test_the_halves_say_where_each_value_is():
    f = aotgrad.aot_function(layers, "eager", options=NAMED)
    f(*arguments("cuda"))
    partition = f.plans()[0].executable.partition
    for half, device in ((partition.forward, "cpu"), (partition.backward, "cuda")):
        awaited = half.module.graph.find_nodes(op="call_function", target=host_copies.WAIT)
        assert [node.meta["val"].device.type for node in awaited] == [device, device]


def test_hooks_on_saved_tensors_get_them_on_the_host():
    packed = []
    args = arguments("cuda")
    f = aotgrad.aot_function(layers, "eager", options=NAMED)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: packed.append(x) or len(packed) - 1, lambda k: packed[k].clone()
    ):
        y = f(*args).sum()
    y.backward()
    torch.testing.assert_close([arg.grad for arg in args], outcome(layers, "cuda")[1:])
    assert [x.device.type for x in packed].count("cpu") == 2


def test_second_derivatives():
    def second(f):
        x, w, v = arguments("cuda")
        gradient = torch.autograd.grad(f(x, w, v).sum(), x, create_graph=True)[0]
        return torch.autograd.grad(gradient.square().sum(), [x, w, v])

    found = second(aotgrad.aot_function(layers, "eager", options=NAMED))
    torch.testing.assert_close(found, second(layers), rtol=1e-3, atol=1e-3)


def test_the_link_is_that_of_the_gpu(monkeypatch):
    device = torch.device("cuda")
    assert host_copies.speed_on(device) is host_copies.MEASURED[torch.cuda.get_device_capability()]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert host_copies.speed_on(device) is host_copies.SPEEDS["cuda"]
    assert host_copies.speed_on(torch.device("cpu")) is host_copies.SPEEDS["cpu"]
