"""The key of a stored function: a change of a dependency misses, any other change hits."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import aotgrad
from aotgrad import torch_compat
from aotgrad.backends import eager, kit, registry
from aotgrad.cache import key, serialize

from .conftest import compiled

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]

HIT, MISS = {"cache_hits": 1}, {"cache_misses": 1, "compilations": 1}


def function(x, y):
    return (x.sin() * y + 2).sum()


def inputs(**changes):
    tensor = torch.ones(4, 4, **{"requires_grad": True, **changes})
    return tensor, torch.ones(4, 4)


def start(program=function, args=None, backend="aotgrad_eager", **options):
    return compiled(program, backend, **options)(*(inputs() if args is None else args))


@pytest.fixture(autouse=True)
def stored(counted):
    start()
    assert counted() == MISS
    start()
    assert counted() == HIT


CHANGED_INPUTS = {
    "dtype": lambda: (torch.ones(4, 4, dtype=torch.float64, requires_grad=True), torch.ones(4, 4)),
    "requires_grad": lambda: (torch.ones(4, 4), torch.ones(4, 4)),
    "stride": lambda: (torch.ones(4, 4).t().requires_grad_(), torch.ones(4, 8)[:, ::2]),
    "shape": lambda: (torch.ones(4, 4, requires_grad=True), torch.ones(4)),
    "a parameter": lambda: (torch.nn.Parameter(torch.ones(4, 4)), torch.ones(4, 4)),
    "no leaf": lambda: (torch.ones(4, 4, requires_grad=True).clone(), torch.ones(4, 4)),
    "a view": lambda: (torch.ones(4, 4, requires_grad=True), torch.ones(4, 4, requires_grad=True).view(4, 4)),
    "an offset": lambda: (torch.ones(4, 4, requires_grad=True), torch.ones(5, 4)[1:]),
    "one tensor twice": lambda: 2 * (torch.ones(4, 4, requires_grad=True),),
}


@pytest.mark.parametrize("name", CHANGED_INPUTS)
def test_another_input(name, counted):
    start(args=CHANGED_INPUTS[name]())
    assert counted() == MISS


CHANGED_PROGRAMS = {
    "a constant": lambda x, y: (x.sin() * y + 3).sum(),
    "a constant of another type": lambda x, y: (x.sin() * y + 2.0).sum(),
    "another op": lambda x, y: (x.cos() * y + 2).sum(),
    "another order": lambda x, y: (y * x.sin() + 2).sum(),
    "a keyword": lambda x, y: (x.sin() * y + 2).sum(dtype=torch.float64),
    "two results": lambda x, y: ((x.sin() * y + 2).sum(), x.cos()),
}


@pytest.mark.parametrize("name", CHANGED_PROGRAMS)
def test_another_function(name, counted):
    start(CHANGED_PROGRAMS[name])
    assert counted() == MISS


def test_the_same_function_under_another_name_and_elsewhere(counted):
    def other(first, second):

        product = first.sin() * second
        return (product + 2).sum()

    start(other)
    assert counted() in (HIT, MISS)  # argument names may reach the graph
    start(lambda x, y: (x.sin() * y + 2).sum())
    assert counted() == HIT


@pytest.mark.parametrize(
    "options",
    [
        {"partitioner": "save_all"},
        {"memory_budget": 0.5},
        {"grad_segments": 2},
        {"keep_input_mutations": True},
        {"joint_passes": [aotgrad.passes.BatchMM()]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_another_option(options, counted):
    start(**options)
    assert counted() == MISS


@pytest.mark.parametrize("options", [{"plan_limit": 3}, {"cache": True}], ids=lambda options: next(iter(options)))
def test_an_option_that_changes_nothing(options, counted):
    start(**options)
    assert counted() == HIT


@contextlib.contextmanager
def default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


GLOBAL_STATES = {
    "no grad": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu"),
    "autocast to float16": lambda: torch.autocast("cpu", torch.float16),
    "deterministic": deterministic,
    "default dtype": default_dtype,
    "math attention": lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
}


@pytest.mark.parametrize("name", GLOBAL_STATES)
def test_another_global_state(name, counted):
    args = inputs()
    with GLOBAL_STATES[name]():
        start(args=args)
    found = counted()
    assert found.get("cache_hits") is None and found["cache_misses"] == 1


def test_a_restored_function_runs_passes_over_its_backward(counted, monkeypatch):
    places = []
    apply = aotgrad.passes.BatchMM.apply
    monkeypatch.setattr(aotgrad.passes.BatchMM, "apply", lambda self, graph: places.append(graph) or apply(self, graph))
    for expected in (MISS, HIT):
        result = start(backward_passes=[aotgrad.passes.BatchMM()])
        assert counted() == expected and not places
        result.backward()
        assert len(places) == 1
        places.clear()


def test_another_backend(counted):
    start(backend=aotgrad.DynamoBackend("interpreter"))
    assert counted() == MISS


def test_another_code_version_and_torch_version(counted, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(key, "code_version", lambda: "another")
        start()
        assert counted() == MISS
    with monkeypatch.context() as patch:
        patch.setattr(torch_compat, "torch_build", lambda: ("3.0",))
        start()
        assert counted() == MISS
    start()
    assert counted() == HIT


# --- What is not stored ----------------------------------------------------------------------------------------------

BYPASS = {"cache_bypasses": 1, "compilations": 1}


@dataclasses.dataclass(frozen=True)
class Nothing:
    name: str = "nothing"

    def apply(self, graph):
        return graph


def test_a_graph_of_lazy_conjugates(counted):
    z = torch.complex(torch.ones(3), torch.ones(3)).requires_grad_()
    torch.compile(lambda z: (z * z.conj()).real, backend="aotgrad_eager")(z).sum().backward()
    assert counted() == MISS and torch.equal(z.grad, 2 * z.detach())


def test_a_graph_that_cannot_be_written_down(counted, monkeypatch):
    """A constant of the function is too large."""
    monkeypatch.setattr(serialize, "MOST_CONSTANT_BYTES", 8)
    x = torch.ones(3, requires_grad=True)
    torch.compile(lambda x: x.sin() * torch.tensor([0.5, 2.0, 4.0]), backend="aotgrad_eager")(x).sum().backward()
    assert counted() == {**BYPASS, "cache_misses": 1}
    assert torch.equal(x.grad, torch.tensor([0.5, 2.0, 4.0]) * x.detach().cos())


def test_a_pass_of_the_users_own(counted):
    start(joint_passes=[Nothing()])
    assert counted() == BYPASS
    aotgrad.passes.register(Nothing(), place="backward")
    try:
        start()
        assert counted() == BYPASS
    finally:
        aotgrad.passes.unregister("nothing", place="backward")


def test_a_backend_without_a_key(counted):
    aotgrad.backends.register("unknown", fw_compiler=aotgrad.nop)
    torch._dynamo.reset()
    torch.compile(function, backend=aotgrad.DynamoBackend("unknown"))(*inputs())
    assert counted() == BYPASS


def test_a_backend_with_a_key_and_decompositions(counted):
    """A decomposition of torch's own is part of the key; a user's may change unnoticed."""
    own = torch_compat.decompositions_of([torch.ops.aten.silu.default])
    for table, expected in (({}, MISS), (own, MISS), ({torch.ops.aten.sin.default: lambda x: x.cos()}, BYPASS)):
        registry.register_backend(kit.FunctionBackend("known", eager.compile_eager, decomposition_table=table, key="1"))
        torch._dynamo.reset()
        torch.compile(function, backend=aotgrad.DynamoBackend("known"))(*inputs())
        assert counted() == expected


def test_a_hook_that_the_function_registers():
    """The hook is in the graph, and so in the key, or is registered after the graph; the right hook runs in both cases."""

    def gradient(program):
        x, y = inputs()
        program(x, y).backward()
        return x.grad

    def hooked(factor):
        def program(x, y):
            x.register_hook(lambda gradient: gradient * factor)
            return function(x, y)

        return program

    for factor in (2, 3, 2):
        assert torch.equal(gradient(compiled(hooked(factor))), gradient(hooked(factor)))


def test_an_observed_compilation(counted, monkeypatch):
    start(verify=True)
    assert counted() == {"compilations": 1}
    with aotgrad.telemetry.observer.record_stages() as stages:
        start()
    assert counted() == {"compilations": 1} and [stage.name for stage in stages][-1] == "executable"


def test_a_subclass_of_tensor(counted):
    class Tagged(torch.Tensor):
        pass

    with contextlib.suppress(Exception):
        start(args=(torch.ones(4, 4).as_subclass(Tagged), torch.ones(4, 4)))
    assert counted().get("cache_hits") is None


def test_a_mask_that_is_drawn_again(counted):
    """Its op is a higher-order operator that only the partition adds to the graph."""

    def network(x):
        return torch.nn.functional.dropout(x.sin(), 0.5).cos().exp()

    def run(function):
        x = torch.linspace(0, 1, 20_000).requires_grad_()
        torch.manual_seed(0)
        function(x).sum().backward()
        return x.grad

    for expected in (MISS, HIT):
        torch._dynamo.reset()
        compiled = torch.compile(network, backend="aotgrad_eager", options={"memory_budget": 0.0})
        assert torch.equal(run(compiled), run(network))
        assert counted() == expected


def test_a_checkpoint_is_stored_and_one_with_a_policy_after_the_trace(counted):
    def region(x):
        return torch.sigmoid(x.sin() @ x.cos())

    def plain(x, y):
        return checkpoint(region, x, use_reentrant=False).sum() + F.relu(y).sum()

    for expected in (MISS, HIT):
        start(plain).backward()
        assert counted() == expected

    def policy(context, op, *args, **kwargs):
        return torch.utils.checkpoint.CheckpointPolicy.MUST_SAVE

    def context_fn():
        return torch.utils.checkpoint.create_selective_checkpoint_contexts(policy)

    def selective(x, y):
        return checkpoint(region, x, use_reentrant=False, context_fn=context_fn).sum() + F.relu(y).sum()

    for expected in (MISS, {**HIT, "compilations": 1}):  # what the policy said is only known when it was traced
        start(selective).backward()
        assert counted() == expected


def test_a_custom_autograd_function_is_known_by_its_backward(counted):
    def with_factor(factor):
        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x.sin()

            @staticmethod
            def backward(ctx, gradient):
                return gradient * ctx.saved_tensors[0].cos() * factor

        return lambda x, y: Scaled.apply(x).exp().sum()

    def gradient(factor):
        x, y = inputs()
        start(with_factor(factor), (x, y)).backward()
        return x.grad

    first = gradient(1)
    assert counted() == MISS
    assert torch.equal(gradient(1), first) and counted() == HIT
    torch.testing.assert_close(gradient(3), 3 * first)
    assert counted() == MISS


# --- Symbolic sizes --------------------------------------------------------------------------------------------------


def dynamic(program, *args):
    torch._dynamo.reset()
    return torch.compile(program, backend="aotgrad_eager", dynamic=True)(*args)


def test_symbolic_sizes(counted):
    for expected in (MISS, HIT):
        dynamic(function, *inputs()).backward()
        assert counted() == expected
    dynamic(function, torch.ones(5, 5, requires_grad=True), torch.ones(5, 5))
    assert counted() == MISS  # what is best may depend on the size
    dynamic(function, torch.ones(5, 4, requires_grad=True), torch.ones(5, 4))
    assert counted() == MISS  # two sizes that differ


def test_a_condition_on_a_size_is_assumed_again(counted):
    """A compiler may restrict a graph to some sizes; the reading process guards them, too."""

    def compile_for_small_sizes(graph, example_inputs):
        for value in example_inputs:
            if isinstance(value, torch.Tensor) and value.dim():
                assert value.shape[0] < 100
        return eager.compile_eager(graph, example_inputs)

    for compiler in (compile_for_small_sizes, eager.compile_eager):
        registry.register_backend(kit.FunctionBackend("careful", compiler, key="1"))
        torch._dynamo.reset()
        program = torch.compile(lambda x: x.sin() * 2, backend=aotgrad.DynamoBackend("careful"), dynamic=True)
        program(torch.ones(4))
        program(torch.ones(8))
        assert counted() == (MISS if compiler is compile_for_small_sizes else HIT)
    program(torch.ones(200))  # Dynamo guards what was read
    assert counted() == MISS


def test_a_size_that_depends_on_data(counted):
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for _ in range(2):
            dynamic(lambda x: x.nonzero().float().sin().cos(), torch.tensor([0.0, 1.0]))
            found = counted()
            assert not found.get("cache_hits") and found["cache_bypasses"]
