"""A module's parameters and buffers as arguments."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict

import pytest
import torch
from torch import nn

import aotgrad
from aotgrad.guards.module_slots import slots_of
from aotgrad.plan_cache.module_state import LiftedModule


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.second = nn.Linear(2, 2)
        self.second.weight = self.first.weight
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.second(self.first(x))


def names(module):
    return [slot.name for slot in slots_of(module)]


def test_parameters_come_before_buffers_under_each_of_their_names():
    assert names(Tied()) == ["first.weight", "first.bias", "second.weight", "second.bias", "calls"]


def test_a_module_that_is_there_twice_is_lifted_once():
    part = nn.Linear(2, 2)
    assert names(nn.Sequential(part, nn.Tanh(), part)) == ["0.weight", "0.bias"]


def test_forward_uses_the_given_tensors():
    module = Tied()
    lifted = LiftedModule(module)
    replaced = [torch.zeros_like(tensor) for tensor in lifted.read()[0]]
    assert torch.equal(lifted.forward(*replaced, torch.ones(1, 2)), torch.zeros(1, 2))
    assert (replaced[-1], module.calls) == (1, 0)


def test_tied_parameters_get_the_gradient_of_both_uses():
    module = Tied()
    reference = copy.deepcopy(module)
    x = torch.randn(2, 2)
    aotgrad.aot_module(module, aotgrad.nop)(x).sum().backward()
    reference(x).sum().backward()
    for one, other in zip(module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    assert module.calls == 1


def test_a_training_flag_changes_the_state():
    module = nn.Sequential(nn.Dropout(0.5))
    lifted = LiftedModule(module)
    before = lifted.read()[1]
    module.eval()
    assert lifted.read()[1] != before
    module.train()
    assert lifted.read()[1] == before


class Config:
    power = 1.0

    def __init__(self):
        self.scale, self.sizes = 2.0, [1, 2]

    def raised(self, x):
        return x**self.power


class Squaring(Config):
    power = 2.0


class Named(dict):
    """A dictionary with attributes, as many configurations are."""


class Several(list):
    """A list with attributes."""


class Everything(nn.Module):
    """Reads state of every kind."""

    offset, steps, settings = 0.5, [1.0], Config()

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.inner = nn.Sequential(nn.Dropout(0.0))
        self.activation = torch.sin
        self.factor, self.shifts, self.table = 1.0, [1.0], {"power": 1}
        self.config, self.missing = Config(), None
        self.ordered, self.named, self.several = OrderedDict(a=1.0, b=2.0), Named(a=1.0), Several([1.0])

    def forward(self, x):
        x = self.activation(self.linear(x) * self.factor) + sum(self.shifts)
        x = x * self.config.scale + self.config.sizes[0] + len(self.config.sizes)
        x = self.config.raised(x) * next(iter(self.ordered.values())) + self.named["a"] + sum(self.several)
        x = x + self.offset + sum(self.steps) * self.settings.scale
        return self.inner(x) ** self.table["power"] + (0 if self.missing is None else self.missing)


class Shifted(Everything):
    offset = 7.0


@pytest.fixture
def kept_classes():
    """Classes are restored afterwards."""
    before = [(kind, dict(vars(kind))) for kind in (Everything, Shifted, Config)]
    steps, scale = list(Everything.steps), Everything.settings.scale
    yield
    for kind, attributes in before:
        for name in {**vars(kind), **attributes}.keys() - {"__dict__", "__weakref__"}:
            if name not in attributes:
                delattr(kind, name)
            elif vars(kind).get(name) is not attributes[name]:
                setattr(kind, name, attributes[name])
    Everything.steps[:], Everything.settings.scale = steps, scale


def set_grad_hook(module):
    module.inner[0].register_full_backward_hook(lambda module, grads, _: (grads[0] * 2,))


CHANGES = {
    "plain attribute": lambda m: setattr(m, "factor", 3.0),
    "type of an attribute": lambda m: setattr(m, "factor", 1),
    "function": lambda m: setattr(m, "activation", torch.cos),
    "item of a list": lambda m: m.shifts.append(2.0),
    "item of a dict": lambda m: m.table.update(power=2),
    "attribute of an object": lambda m: setattr(m.config, "scale", 5.0),
    "list in an object": lambda m: m.config.sizes.append(1),
    "object": lambda m: setattr(m, "config", Config()) or setattr(m.config, "scale", 0.5),
    "tensor attribute": lambda m: setattr(m, "missing", torch.ones(2)),
    "dictionary of the module": lambda m: setattr(m, "__dict__", dict(m.__dict__, factor=3.0)),
    "dictionary of an object": lambda m: setattr(m.config, "__dict__", dict(m.config.__dict__, scale=5.0)),
    "class of an object": lambda m: setattr(m.config, "__class__", Squaring),
    "class of the module": lambda m: setattr(m, "__class__", Shifted),
    "order of a dict": lambda m: m.ordered.move_to_end("a"),
    "item of a kind of dict": lambda m: m.named.update(a=2.0),
    "item of a kind of list": lambda m: m.several.append(2.0),
    "attribute of the class": lambda m: setattr(Everything, "offset", 4.0),
    "list in the class": lambda m: Everything.steps.append(2.0),
    "object in the class": lambda m: setattr(Everything.settings, "scale", 4.0),
    "attribute of the class of an object": lambda m: setattr(Config, "power", 3.0),
    "method": lambda m: setattr(Config, "raised", lambda self, x: x + self.power),
    "new attribute of the class": lambda m: setattr(Shifted, "missing", 4.0) or setattr(m, "__class__", Shifted),
    "part": lambda m: m.inner.append(nn.Tanh()),
    "replaced part": lambda m: m.inner.__setitem__(0, nn.Sigmoid()),
    "forward hook": lambda m: m.linear.register_forward_hook(lambda module, args, output: output * 2),
    "forward pre-hook": lambda m: m.linear.register_forward_pre_hook(lambda module, args: (args[0] + 1,)),
    "backward hook": set_grad_hook,
    "parametrization": lambda m: nn.utils.parametrize.register_parametrization(m.linear, "weight", nn.Tanh()),
    "missing parameter": lambda m: m.linear.register_parameter("bias", None),
    "replaced parameter": lambda m: setattr(m.linear, "weight", nn.Parameter(torch.ones(2, 2))),
    "added buffer": lambda m: delattr(m, "missing") or m.register_buffer("missing", torch.ones(2)),
    "frozen parameter": lambda m: m.linear.weight.requires_grad_(False),
    "tied parameter": lambda m: setattr(m.linear, "bias", m.linear.weight),
    "evaluation": lambda m: m.inner.eval(),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_the_module_reaches_the_next_call(what, kept_classes):
    model = Everything()
    compiled = aotgrad.aot_module(model, aotgrad.nop)
    x = torch.randn(2, 2)
    for _ in range(2):
        assert torch.equal(compiled(x), model.forward(x))
    CHANGES[what](model)
    for _ in range(2):
        compare_training(compiled, model, x)
    assert compiled.plans()[0].hits > 0, "once changed, a module is as fast as before"


def compare_training(compiled, model, x):
    """Outputs and gradients of the compiled module and of eager."""
    gradients = []
    for forward in (compiled, model):
        model.zero_grad(set_to_none=True)
        output = forward(x)
        output.sum().backward()
        gradients.append([output.detach(), *(p.grad for p in model.parameters())])
    for actual, expected in zip(*gradients, strict=True):
        assert (actual is None) == (expected is None)
        assert actual is None or torch.equal(actual, expected)


class Hard(nn.Module):
    """The class has an attribute that cannot be read, or that differs at every read."""

    lock, numbers, pending = threading.Lock(), (k for k in range(3)), [threading.Lock()]

    @property
    def twice(self):
        return 2.0

    @staticmethod
    def thrice(x):
        return 3 * x

    def forward(self, x):
        return self.thrice(x) * self.twice


def test_a_class_with_attributes_that_cannot_be_read_has_a_state_all_the_same():
    lifted = LiftedModule(Hard())
    before = lifted.read()[1]
    assert lifted.read()[1] is before
    lifted.module.other = 1
    assert lifted.read()[1] != before
    del lifted.module.other
    assert lifted.read()[1] == before


def test_reading_an_unchanged_module_gives_the_same_state():
    lifted = LiftedModule(Everything())
    assert lifted.read()[1] is lifted.read()[1]


def test_other_tensors_in_the_same_places_are_the_same_state():
    module = Tied()
    lifted = LiftedModule(module)
    before, state = lifted.read()
    others = {name: torch.randn(2, 2) for name in lifted.paths()}
    inside, outside = [], []
    for _ in range(2):
        with torch.nn.utils.stateless._reparametrize_module(module, others):
            inside.append(lifted.read())
        outside.append(lifted.read())
    assert all(value is state for _, value in (*inside, *outside))
    for found, expected in ((inside, [others[name] for name in lifted.paths()]), (outside, before)):
        assert all(list(map(id, tensors)) == list(map(id, expected)) for tensors, _ in found)


def test_a_buffer_in_place_of_none_and_another_order_are_other_states():
    module = nn.Linear(2, 2)
    module.register_buffer("scale", None)
    lifted = LiftedModule(module)
    states = [lifted.read()[1]]
    module.scale = torch.ones(2)
    states.append(lifted.read()[1])
    module._parameters["weight"] = module._parameters.pop("weight")
    states.append(lifted.read()[1])
    assert len(set(states)) == 3 and [id(tensor) for tensor in lifted.read()[0]] == list(
        map(id, (module.bias, module.weight, module.scale))
    )


@pytest.mark.parametrize("halves", ["eager", "inductor"])
def test_functional_calls_find_their_plan(halves):
    module = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    compiled = aotgrad.aot_module(module, halves)
    x = torch.randn(4, 2)
    for _ in range(3):
        parameters = {name: torch.randn_like(tensor).requires_grad_() for name, tensor in module.named_parameters()}
        found, expected = (torch.func.functional_call(each, parameters, (x,)) for each in (compiled, module))
        torch.testing.assert_close(found, expected)
        gradients = [torch.autograd.grad(result.sum(), list(parameters.values())) for result in (found, expected)]
        torch.testing.assert_close(*gradients)
    assert [plan.hits for plan in compiled.plans()] == [2]


def test_a_graph_counts_by_identity():
    """Nodes lead to everything that a trace knows, so a graph is not read."""
    graph = torch.fx.symbolic_trace(nn.Linear(2, 2))
    for node in graph.graph.nodes:
        node.meta["secret"] = (i for i in ())
    graph.meta["secret"] = (i for i in ())
    lifted = LiftedModule(graph)
    assert lifted.read()[1] is lifted.read()[1]
    assert lifted.read()[1] == LiftedModule(graph).read()[1]


def test_a_global_hook_counts():
    model = Everything()
    compiled = aotgrad.aot_module(model, aotgrad.nop)
    x = torch.randn(2, 2)
    compiled(x)
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: output + 1)
    try:
        assert torch.equal(compiled(x), model(x))
    finally:
        handle.remove()
    assert torch.equal(compiled(x), model(x))


def test_state_that_the_forward_changes_is_changed_at_every_call():
    class Counting(nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return x * self.calls

    compiled = aotgrad.aot_module(Counting(), aotgrad.nop)
    with pytest.warns(UserWarning, match="8 plans, the limit"):
        assert [compiled(torch.ones(())).item() for _ in range(10)] == list(range(1, 11))


def test_a_recurrent_module_has_one_plan():
    model = nn.LSTM(2, 3)
    compiled = aotgrad.aot_module(model, aotgrad.nop)
    x = torch.randn(4, 1, 2)
    for _ in range(3):
        compare = [value.detach() for value in torch.utils._pytree.tree_leaves(compiled(x))]
        expected = torch.utils._pytree.tree_leaves(model(x))
        assert all(torch.allclose(a, b) for a, b in zip(compare, expected, strict=True))
    assert len(compiled.plans()) == 1


class FlattensAsOnAGPU(nn.LSTM):
    """Reads the addresses of its weights, as `flatten_parameters` does where cuDNN runs."""

    flattened = 0

    def flatten_parameters(self):
        self.flattened += 1
        assert all(weight.data_ptr() for weight in self._flat_weights)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_recurrent_module_flattens_no_traced_weights(backend):
    model, x = FlattensAsOnAGPU(2, 3), torch.randn(4, 1, 2, requires_grad=True)
    before = model.flattened
    weights, _ = model._flat_weights, model(x)
    result, (hidden, cell) = aotgrad.aot_module(model, backend)(x)
    expected, (expected_hidden, expected_cell) = model(x)
    torch.testing.assert_close((result, hidden, cell), (expected, expected_hidden, expected_cell))
    assert model._flat_weights is weights and model.flattened == before


def test_train_and_eval_have_plans_of_their_own():
    module = aotgrad.aot_module(nn.Dropout(1.0), aotgrad.nop)
    x = torch.ones(2)
    assert module(x).sum() == 0
    assert module.eval()(x).sum() == 2
    assert module.train()(x).sum() == 0
    assert len(module.plans()) == 2


class Sized(nn.Linear):
    """Its objects are made with arguments, too."""

    def __new__(cls, size: int) -> Sized:
        return super().__new__(cls)

    def __init__(self, size: int) -> None:
        super().__init__(size, size)


def test_a_module_of_a_class_with_a_new_of_its_own() -> None:
    module = Sized(3)
    assert torch.equal(aotgrad.aot_module(module, "eager")(torch.ones(2, 3)), module(torch.ones(2, 3)))
