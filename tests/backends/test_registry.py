"""Backends by name."""

from __future__ import annotations

import pytest
import torch

import aotgrad
from aotgrad.backends import registry
from aotgrad.errors import BackendError


@pytest.fixture
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_BACKENDS", dict(registry._BACKENDS))


def test_the_backends_that_are_there():
    assert aotgrad.backends.names() == ["eager", "inductor", "interpreter"]


def test_a_registered_backend_is_found_and_used(own_registry):
    decompositions = {torch.ops.aten.silu.default: lambda x: x * x.sigmoid()}
    backend = aotgrad.backends.register("mine", fw_compiler=aotgrad.nop, decompositions=decompositions)
    assert aotgrad.backends.get("mine") is backend
    assert backend.decompositions() is decompositions
    assert "mine" in aotgrad.backends.names()


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(BackendError, match="no backend 'tpu'; registered are eager, inductor, interpreter"):
        aotgrad.backends.get("tpu")


def test_a_compiler_must_be_callable(own_registry):
    with pytest.raises(BackendError, match="backend 'mine': fw_compiler is a str; it must be a callable"):
        aotgrad.backends.register("mine", fw_compiler="inductor")


# --- What the author of a backend hands over -------------------------------------------------------------------------


class Running(aotgrad.backends.Backend):
    """Runs graphs as they are, and notes their roles."""

    name = "running"

    def __init__(self):
        self.roles = []

    def compile(self, graph, inputs, role):
        self.roles.append(role)
        return graph.forward


def loss(x):
    return (x.sin() * x.exp()).sum()


def gradient(function, x):
    (found,) = torch.autograd.grad(function(x), x)
    return found


def step(backend):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(x):
        model(x).sum().backward()
        optimizer.step()

    return aotgrad.train_step(train, [model, optimizer], backend=backend)(torch.ones(2))


ENTRIES = {
    "torch.compile": lambda backend: torch.compile(loss, backend=backend)(torch.ones(2)),
    "DynamoBackend": lambda backend: torch.compile(loss, backend=aotgrad.DynamoBackend(backend))(torch.ones(2)),
    "aot_function": lambda backend: aotgrad.aot_function(loss, backend)(torch.ones(2)),
    "aot_module": lambda backend: aotgrad.aot_module(torch.nn.Tanh(), backend)(torch.ones(2)),
    "train_step": step,
    "explain": lambda backend: aotgrad.explain(loss, backend=backend)(torch.ones(2)),
    "register_backend": aotgrad.backends.register_backend,
}


@pytest.mark.parametrize("options", [None, {"partitioner": "save_all"}])
def test_torch_compile_takes_an_instance(options):
    backend, x = Running(), torch.tensor([0.5, 1.5], requires_grad=True)
    compiled = torch.compile(loss, backend=backend, options=options)
    torch.testing.assert_close(gradient(compiled, x), gradient(loss, x))
    assert backend.roles == ["forward", "backward"]


def test_the_options_of_torch_compile_reach_an_instance():
    with pytest.raises(Exception, match="unknown option 'speed'"):
        torch.compile(loss, backend=Running(), options={"speed": 2})(torch.ones(2))


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_class_in_place_of_an_instance_says_what_to_write(entry, own_registry):
    with pytest.raises(Exception, match=r"Running is a class; a backend is an instance of it: Running\(\)"):
        ENTRIES[entry](Running)


@pytest.mark.parametrize("entry", ["DynamoBackend", "train_step", "explain"])
def test_what_is_no_backend_says_what_one_is(entry):
    with pytest.raises(BackendError, match=r"5 is no backend: a backend is a name, an instance of"):
        ENTRIES[entry](5)


@pytest.mark.parametrize("value", [aotgrad.nop, "running", 5, None])
def test_only_backends_are_registered(value, own_registry):
    with pytest.raises(BackendError, match=r"register_backend takes a backend, not a \w+: register\("):
        aotgrad.backends.register_backend(value)


@pytest.mark.parametrize("place", ["fw_compiler", "bw_compiler", "inference_compiler"])
@pytest.mark.parametrize("value", [Running(), Running])
def test_a_backend_is_no_compiler_of_one_graph(place, value, own_registry):
    with pytest.raises(BackendError, match=f"'mine': {place} is a backend, not a compiler of one graph"):
        aotgrad.backends.register("mine", **{"fw_compiler": aotgrad.nop, place: value})


def test_a_second_compiler_must_be_callable_too(own_registry):
    with pytest.raises(BackendError, match="backend 'mine': bw_compiler is a int; it must be a callable"):
        aotgrad.backends.register("mine", fw_compiler=aotgrad.nop, bw_compiler=5)
