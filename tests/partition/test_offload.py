"""Offloaded values: the graphs, values and gradients as in eager, and everything that saved values can do."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import aotgrad
from aotgrad.graph import host_copies, op_table
from aotgrad.graph.host_copies import OFFLOAD, RELOAD, WAIT
from aotgrad.graph.link_schedule import Link
from aotgrad.passes import OverlapCopies
from tests.executables import executable_of

BACKENDS = ["eager", "inductor"]
OFFLOADING = {"offload": True, "memory_budget": 0.3}
SIZE = 192


def layers(x, *weights):
    for w in weights:
        x = torch.tanh(x @ w)
    return x.sum()


def arguments(count: int = 5, size: int = SIZE) -> list[Tensor]:
    torch.manual_seed(0)
    weights = [(torch.randn(size, size) / size**0.5).requires_grad_() for _ in range(count)]
    return [torch.randn(size, size, requires_grad=True), *weights]


def gradients(f, args):
    y = f(*args)
    y.backward()
    return [y.detach(), *(arg.grad for arg in args)]


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def offloaded(f, *args, backend="eager", **options):
    """The names of the values that wait on the host."""
    return [row.name for row in aotgrad.explain(f, backend=backend, options=options)(*args).offloaded]


# --- Values ----------------------------------------------------------------------------------------------------------


@dataclass
class Copies:
    """The copies that run while the test does, and the memory of what is on the host."""

    ran: list[str] = field(default_factory=list)
    on_host: list[weakref.ref] = field(default_factory=list)

    def offload(self, x):
        self.ran.append("offload")
        host = host_copies.offload(x)
        self.on_host.append(weakref.ref(host.untyped_storage()))
        return host

    def reload(self, host, device):
        self.ran.append("reload")
        return host_copies.reload(host, device)

    def wait(self, x, source=None):
        self.ran.append("wait")
        return host_copies.wait(x, source)


@pytest.fixture
def copies():
    found = Copies()
    with torch.library._scoped_library("aotgrad", "IMPL") as library:
        for op in (found.offload, found.reload, found.wait):
            library.impl(op.__name__, op, "CPU")
        yield found


@pytest.mark.parametrize("options", [{"offload": True}, OFFLOADING, {"offload": "300KB", "memory_budget": 0.0}], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_values_are_those_of_eager(backend, options):
    expected = gradients(layers, arguments())
    assert offloaded(layers, *arguments(), backend=backend, **options)
    found = gradients(aotgrad.aot_function(layers, backend, options={**options, "verify": True}), arguments())
    assert_close(found, expected)


@pytest.mark.parametrize("backend", ["aotgrad_eager", "aotgrad"])
def test_behind_dynamo(backend):
    torch.compiler.reset()
    expected = gradients(layers, arguments())
    assert_close(gradients(torch.compile(layers, backend=backend, options=OFFLOADING), arguments()), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_copy_starts_and_is_awaited_once_in_the_order_of_the_graphs(backend, copies):
    f = aotgrad.aot_function(layers, backend, options=OFFLOADING)
    y = f(*arguments())
    forward = copies.ran[:]
    y.backward()
    backward = copies.ran[len(forward) :]
    assert forward.count("offload") >= 2
    assert forward.count("offload") == forward.count("wait") == backward.count("reload") == backward.count("wait")
    partition = f.plans()[0].executable.partition
    assert forward == copies_of(partition.forward)
    assert backward == copies_of(partition.backward)


def copies_of(half):
    return [op_table.short_name(node.target) for node in half.module.graph.nodes if node.target in (OFFLOAD, RELOAD, WAIT)]


def journeys(names: list[str]) -> list[tuple[int, int]]:
    """Where each copy starts, and where the first wait after it is."""
    return [(k, names.index("wait", k)) for k, name in enumerate(names) if name == "reload"]


def test_copies_start_before_the_computations_that_hide_them():
    partition = executable_of(layers, *[f"f32[{SIZE}, {SIZE}] requires_grad"] * 6, options=OFFLOADING).partition
    names = [op_table.short_name(node.target) for node in partition.backward.module.graph.nodes]
    assert any("mm" in names[start:end] for start, end in journeys(names))


@pytest.mark.parametrize("max_bytes", [1, 2 * SIZE * SIZE * 4, 2**30])
def test_what_is_in_flight_stays_within_the_limit(max_bytes):
    f = executable_of(layers, *[f"f32[{SIZE}, {SIZE}] requires_grad"] * 8, options={"offload": True, "memory_budget": 0.0})
    schedule = OverlapCopies.of(f.partition, max_bytes)
    assert schedule is not None
    in_flight, most = 0, 0
    for node in schedule.apply(f.partition.backward.copy()).module.graph.nodes:
        in_flight += (node.target is RELOAD) - (node.target is WAIT)
        most = max(most, in_flight)
    assert most >= 1 and (most == 1 or most * SIZE * SIZE * 4 <= max_bytes)


def convolutions(x, w, v):
    h = F.conv2d(x, w, padding=1).relu()
    h = F.conv2d(h.to(memory_format=torch.channels_last), v, padding=1).transpose(2, 3).sigmoid()
    return (h * h).mean((0, 2, 3)).sum()


def attention(x, w):
    q, k, v = (x @ w).split(x.shape[-1], dim=-1)
    weights = torch.softmax(q @ k.transpose(-1, -2), dim=-1)
    return (F.dropout(weights, 0.0) @ v).cos().sum()


def halves(x, w):
    """Values of two dtypes, and one that is read through views."""
    h = (x @ w).double()
    left, right = h.chunk(2, dim=1)
    return (left.sin() * right.t().cos().t() @ w[: h.shape[1] // 2].double()).exp().float().tanh().sum()


PROGRAMS = {
    "convolutions": (convolutions, [(4, 8, 24, 24), (8, 8, 3, 3), (8, 8, 3, 3)]),
    "attention": (attention, [(2, 64, 64), (64, 192)]),
    "halves": (halves, [(96, 96), (96, 96)]),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, backend, free_link):
    f, shapes = PROGRAMS[name]

    def args():
        torch.manual_seed(1)
        return [(torch.randn(shape) / shape[-1] ** 0.5).requires_grad_() for shape in shapes]

    expected = gradients(f, args())
    assert offloaded(f, *args(), backend=backend, **OFFLOADING)
    assert_close(gradients(aotgrad.aot_function(f, backend, options=OFFLOADING), args()), expected)


@pytest.fixture
def free_link(monkeypatch):
    """A link so fast that anything may be offloaded, in small tests."""
    fast = host_copies.DeviceSpeed(1e10, 1e11, Link(bandwidth=1e12, latency=0.0))
    monkeypatch.setitem(host_copies.SPEEDS, "cpu", fast)


# --- What saved values can do ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_retained_graph_runs_again_and_another_time_raises(backend):
    args = arguments()
    expected = gradients(layers, arguments())[1:]
    y = aotgrad.aot_function(layers, backend, options=OFFLOADING)(*args)
    y.backward(retain_graph=True)
    assert_close([arg.grad for arg in args], expected)
    y.backward()
    assert_close([arg.grad for arg in args], [2 * each for each in expected])
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_gradient_after_another(backend):
    args = arguments()
    expected = gradients(layers, arguments())[1:]
    y = aotgrad.aot_function(layers, backend, options=OFFLOADING)(*args)
    found = [torch.autograd.grad(y, arg, retain_graph=True)[0] for arg in args]
    assert_close(found, expected)


def test_a_variant_fetches_only_what_it_needs(copies):
    args = arguments()
    y = aotgrad.aot_function(layers, "eager", options=OFFLOADING)(*args)
    torch.autograd.grad(y, args[-1], retain_graph=True)
    last = copies.ran.count("reload")
    torch.autograd.grad(y, args)
    assert last < copies.ran.count("reload") - last


def named(x, w, v):
    """The hidden layer waits on the host, however small it is, with the options `NAMED`."""
    return torch.tanh(aotgrad.checkpoint_name(torch.tanh(x @ w), "hidden") @ v)


NAMED = {"checkpoint_policies": {"hidden": "offload"}}


def small():
    torch.manual_seed(0)
    return [torch.randn(6, 6, dtype=torch.double, requires_grad=True) for _ in range(3)]


def gradients_of_gradients(f):
    x, w, v = small()
    gradient = torch.autograd.grad(f(x, w, v).sum(), x, create_graph=True)[0]
    return torch.autograd.grad(gradient.square().sum(), [x, w, v])


def batched(f):
    args = small()
    y = f(*args)
    return torch.autograd.grad(y, args, torch.eye(36, dtype=torch.double).reshape(36, 6, 6), is_grads_batched=True)


def hessian(f):
    x, w, v = small()
    return torch.autograd.functional.hessian(lambda x: f(x, w, v).sum(), x)


def rows_of_jacobian(f):
    x, w, v = (arg.detach() for arg in small())
    return torch.func.jacrev(lambda x: f(x, w, v))(x)


def in_compiled_autograd(f):
    args = small()
    y = f(*args).sum()
    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(y.backward, backend="eager")()
    return [arg.grad for arg in args]


def after_each_segment(f):
    args, ready = small(), []
    for arg in args:
        arg.register_post_accumulate_grad_hook(ready.append)
    f(*args).sum().backward()
    assert len(ready) == 3
    return [arg.grad for arg in args]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo reads it
@pytest.mark.parametrize("way", ["eager", "inductor", "aotgrad_eager"])
@pytest.mark.parametrize(
    "outcome", [gradients_of_gradients, batched, hessian, rows_of_jacobian, in_compiled_autograd, after_each_segment]
)
def test_ways_to_differentiate(outcome, way):
    torch.compiler.reset()
    options = {**NAMED, "grad_segments": 3 if outcome is after_each_segment else "auto"}
    compiled = torch.compile(named, backend=way, options=options) if way.startswith("aotgrad") else None
    assert_close(outcome(compiled or aotgrad.aot_function(named, way, options=options)), outcome(named))


def test_what_they_differentiate_is_offloaded():
    assert offloaded(named, *small(), **NAMED) == ["tanh"]
    assert offloaded(named, *small(), offload=True) == []  # too short to hide a copy


def test_hooks_on_saved_tensors_see_what_waits_on_the_host():
    packed = []

    def pack(tensor):
        packed.append(tensor)
        return len(packed) - 1

    args = arguments()
    f = aotgrad.aot_function(layers, "eager", options=OFFLOADING)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda k: packed[k].clone()):
        y = f(*args)
    y.backward()
    assert_close([arg.grad for arg in args], gradients(layers, arguments())[1:])
    assert len(packed) >= 6


def test_the_host_memory_is_freed_by_the_backward(copies):
    y = aotgrad.aot_function(layers, "eager", options=OFFLOADING)(*arguments())
    assert copies.on_host and all(each() is not None for each in copies.on_host)
    y.backward()
    gc.collect()
    assert all(each() is None for each in copies.on_host)


@pytest.mark.parametrize("backend", BACKENDS)
def test_symbolic_sizes(backend):
    f = aotgrad.aot_function(layers, backend, dynamic=True, options=OFFLOADING)
    for size in (SIZE, SIZE + 32):
        assert_close(gradients(f, arguments(size=size)), gradients(layers, arguments(size=size)))
    assert len(f.plans()) == 1
    assert any(node.target is OFFLOAD for node in f.plans()[0].executable.partition.forward.module.graph.nodes)


def test_a_module_and_its_optimizer():
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(SIZE, SIZE), nn.GELU())))
    compiled = aotgrad.aot_module(model, "eager", options=OFFLOADING)
    x = torch.randn(SIZE, SIZE)
    model(x).square().mean().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    compiled(x).square().mean().backward()
    assert_close([p.grad for p in model.parameters()], expected)
    assert offloaded(model, x, **OFFLOADING)


@pytest.mark.parametrize("partitioner", ["save_all", "recompute_all"])
def test_other_partitioners(partitioner):
    options = {"offload": True, "partitioner": partitioner}
    report = aotgrad.explain(layers, options=options)(*arguments())
    assert report.offloaded and bool(report.recomputed) is (partitioner == "recompute_all")
    assert_close(
        gradients(aotgrad.aot_function(layers, "eager", options=options), arguments()), gradients(layers, arguments())
    )


def test_without_the_option_nothing_changes():
    def graphs(options):
        f = aotgrad.aot_function(layers, "eager", options=options)
        f(*arguments())
        partition = f.plans()[0].executable.partition
        return [str(half.module.graph) for half in (partition.forward, partition.backward)]

    assert graphs({"offload": False, "memory_budget": 0.3}) == graphs({"memory_budget": 0.3})
    assert "aotgrad" not in graphs({"memory_budget": 0.3})[0] and "aotgrad.offload" in graphs(OFFLOADING)[0]
