"""Streamed gradients: for a waiting consumer they arrive one by one, without an option, and memory is freed in between.

Compilation detects the consumers: hooks that run after a gradient was accumulated, hooks of the autograd node that
accumulates it, and `DistributedDataParallel` around the module.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import aotgrad
from aotgrad.backends.eager import compile_eager
from tests.numerics.against_eager import DYNAMO_BACKENDS

Hook = Callable[[Tensor], None]
LAYERS, WIDTH = 12, 32
ONE_WEIGHT = WIDTH * WIDTH * 4

WAYS = ("aot", *DYNAMO_BACKENDS)
every_way = pytest.mark.parametrize("way", WAYS)
CLOSE = {"inductor": 1e-5}
"""Inductor fuses and reorders floating point arithmetic."""


class Layers(nn.Module):
    def __init__(self, count: int = LAYERS, width: int = WIDTH):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x).tanh()
        return F.mse_loss(x, torch.ones_like(x))


def compiled(model: nn.Module, way: str, **options) -> nn.Module:
    """`options` are aotgrad's; without any, gradients must arrive as in eager."""
    if way == "aot":
        return aotgrad.aot_module(model, compile_eager, options=options)
    torch._dynamo.reset()
    return torch.compile(model, backend=DYNAMO_BACKENDS[way], fullgraph=True, options={"cache": False, **options})


def model_and_input() -> tuple[Layers, Tensor]:
    torch.manual_seed(0)
    return Layers(), torch.randn(3, WIDTH)


# --- Memory of a backward --------------------------------------------------------------------------------------------


class LiveMatrices(TorchDispatchMode):
    """The peak number of live products of a weight's size, and the number of products so far."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = self.products = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket is torch.ops.aten.mm:
            self.products += 1
            self.watch(result.untyped_storage())
        return result

    def watch(self, storage: torch.UntypedStorage) -> None:
        if storage.nbytes() != ONE_WEIGHT or storage._cdata in self.known:
            return
        self.known.add(storage._cdata)
        self.live += 1
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self.freed, storage._cdata)

    def freed(self, key: int) -> None:
        self.known.discard(key)
        self.live -= 1


def update(parameter: Tensor) -> None:
    with torch.no_grad():
        parameter.add_(parameter.grad, alpha=-0.1)
    parameter.grad = None


def after_accumulation(parameter: Tensor, hook: Hook) -> object:
    return parameter.register_post_accumulate_grad_hook(hook)


def of_the_node(parameter: Tensor, hook: Hook) -> object:
    """As FSDP and others do; the caller keeps the node alive."""
    node = torch.autograd.graph.get_gradient_edge(parameter).node
    node.register_hook(lambda *_: hook(parameter))
    return node


REGISTER = {"after accumulation": after_accumulation, "of the node": of_the_node}
every_kind = pytest.mark.parametrize("register", REGISTER.values(), ids=REGISTER)


def trained(run: Callable[[Tensor], Tensor], model: nn.Module, x: Tensor, steps: int = 2) -> int:
    """The most weight gradients that a backward held."""
    peak = 0
    for _ in range(steps):
        loss = run(x)
        with LiveMatrices() as matrices:
            loss.backward()
        peak = max(peak, matrices.peak)
    return peak


@every_way
@every_kind
def test_an_optimizer_in_the_backward_holds_one_gradient_at_a_time(way, register):
    model, x = model_and_input()
    reference = copy.deepcopy(model)
    kept = [register(parameter, update) for each in (model, reference) for parameter in each.parameters()]
    assert trained(reference, reference, x) == 1
    run = compiled(model, way)
    assert trained(run, model, x) == 1
    assert len(kept) == 4 * LAYERS
    for found, expected in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=CLOSE.get(way, 0))


@every_way
def test_a_backward_that_nobody_waits_for_is_whole(way):
    model, x = model_and_input()
    assert trained(compiled(model, way), model, x, steps=1) == LAYERS
    model, x = model_and_input()
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient)  # sees a gradient, and cannot free it
    assert trained(compiled(model, way), model, x, steps=1) == LAYERS


@every_way
def test_gradients_come_in_eagers_order_and_after_as_many_products(way):
    def arrivals(compile_model: Callable[[nn.Module], nn.Module]) -> list[tuple[str, int]]:
        model, x = model_and_input()
        seen: list[tuple[str, int]] = []
        matrices = LiveMatrices()
        for name, parameter in model.named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: seen.append((name, matrices.products)))
        run = compile_model(model)
        run(x).backward()
        seen.clear()
        matrices.products = 0
        loss = run(x)
        with matrices:
            loss.backward()
        return seen

    expected = arrivals(lambda model: model)
    found = arrivals(lambda model: compiled(model, way))
    assert [name for name, _ in found] == [name for name, _ in expected]
    products = dict(expected)
    assert all(count <= products[name] + 1 for name, count in found)  # a bias may wait for the product beside it


# --- Cuts ------------------------------------------------------------------------------------------------------------


def segments_of(model: nn.Module, *args: Tensor, **options) -> int:
    step = aotgrad.aot_module(model, compile_eager, options=options)
    step(*args)
    return len(step.plans()[0].executable.joint.segments)


def awaited(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: None)
    return model


def test_gradients_of_many_layers_share_segments():
    x = torch.randn(2, 8)
    assert segments_of(awaited(Layers(1, 8)), x) == 1
    assert segments_of(awaited(Layers(16, 8)), x) == 16
    assert segments_of(awaited(Layers(40, 8)), x) == 14  # segments of three layers, the last of one
    assert segments_of(Layers(40, 8), x) == 1


def test_the_option_says_otherwise():
    model, x = model_and_input()
    assert segments_of(awaited(model), x, grad_segments=1) == 1
    assert segments_of(awaited(model), x, grad_segments=3) == 3
    assert segments_of(model, x, grad_segments="auto") == LAYERS


def test_one_awaited_gradient_is_enough():
    model, x = model_and_input()
    model.layers[3].weight.register_post_accumulate_grad_hook(lambda _: None)
    assert segments_of(model, x) > 1


def test_hooks_that_come_later_see_the_gradients_at_the_end():
    """An existing plan is not recompiled for them: they see the right gradients, only later. New plans are cut."""
    model, x = model_and_input()
    step = aotgrad.aot_module(model, compile_eager)
    step(x)
    awaited(model)
    step(x).backward()
    (plan,) = step.plans()
    assert len(plan.executable.joint.segments) == 1
    aotgrad.clear_cache(step)
    step(x).backward()
    assert len(step.plans()[0].executable.joint.segments) == LAYERS


def test_an_exported_graph_is_one():
    model, x = model_and_input()
    _, signature = aotgrad.aot_export_module(awaited(model), (x,), trace_joint=True, output_loss_index=0)
    assert len(signature.backward_signature.gradients_to_parameters) == 2 * LAYERS


@pytest.mark.parametrize("way", ["aot", "dynamo"])
def test_higher_orders_and_retained_graphs(way):
    def gradients(compile_model: Callable[[nn.Module], nn.Module]) -> list[Tensor]:
        torch.manual_seed(0)
        model, x = awaited(Layers(3, 4)).double(), torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
        run = compile_model(awaited(model))
        first = torch.autograd.grad(run(x), [x, *model.parameters()], create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), [x, *model.parameters()])
        loss = run(x)
        loss.backward(retain_graph=True)
        loss.backward()
        return [*first, *second, *(parameter.grad for parameter in model.parameters())]

    found = gradients(lambda model: compiled(model, way))
    torch.testing.assert_close(found, gradients(lambda model: model), rtol=1e-12, atol=1e-12)


# --- DistributedDataParallel -----------------------------------------------------------------------------------------


@pytest.fixture
def process_group() -> Iterator[None]:
    if not (dist.is_available() and dist.is_gloo_available()):
        pytest.skip("this torch has no gloo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def products_at_buckets(model: nn.Module, wrap: Callable[[nn.Module], nn.Module], x: Tensor) -> list[int]:
    """The number of products that had run when each bucket of the reducer was full."""
    matrices, counts = LiveMatrices(), []
    parallel = wrap(model)

    def hook(_, bucket):  # torch compares annotations with classes
        counts.append(matrices.products)
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    ddp = next(part for part in parallel.modules() if isinstance(part, nn.parallel.DistributedDataParallel))
    ddp.register_comm_hook(None, hook)
    for _ in range(3):  # the reducer reorders its buckets after the first
        counts.clear()
        loss = parallel(x)
        matrices.products = 0
        with matrices:
            loss.backward()
    return list(counts)


def ddp_of(model: nn.Module, bucket_bytes: int = 3 * ONE_WEIGHT) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=bucket_bytes / 2**20)


@pytest.mark.usefixtures("process_group")
@every_way
def test_buckets_of_ddp_are_full_while_the_backward_goes_on(way):
    model, x = model_and_input()
    reference = copy.deepcopy(model)
    expected = products_at_buckets(reference, ddp_of, x)
    with torch._dynamo.config.patch(optimize_ddp=False):
        found = products_at_buckets(model, lambda model: ddp_of(compiled(model, way)), x)
    assert len(set(expected)) > 2
    assert len(found) == len(expected)
    assert all(count <= at_most + 3 for count, at_most in zip(found, expected, strict=True)), (found, expected)
    for parameter, other in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad, rtol=0, atol=CLOSE.get(way, 0))


@pytest.mark.usefixtures("process_group")
def test_graphs_that_dynamo_cut_for_the_buckets_are_not_cut_again():
    """Dynamo wants a first bucket of a megabyte: one layer. Gradients of a graph of two layers come together."""
    torch.manual_seed(0)
    model, x = Layers(5, 512), torch.randn(3, 512)
    reference = copy.deepcopy(model)

    def ddp(model: nn.Module) -> nn.Module:
        return ddp_of(model, 2 * 512 * 512 * 4)

    expected = products_at_buckets(reference, ddp, x)
    with torch._dynamo.config.patch(optimize_ddp=True):
        found = products_at_buckets(model, lambda model: ddp(compiled(model, "dynamo")), x)
    assert found != expected and found[0] < found[-1] == expected[-1]
    for parameter, other in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(parameter.grad, other.grad)
