"""Functions that cannot be traced run in eager between compiled graphs, with eager's gradients."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import aotgrad
from aotgrad.eager_calls.tape import Tape
from aotgrad.errors import CaptureError, EagerCallError, ShippingError
from tests.eager_calls.functions import (
    ISLANDS,
    Branching,
    Dropped,
    Listed,
    NumpyBackward,
    NumpySin,
    Undefined,
    cosine,
    exponential,
    gradients_of,
    leaf,
    several,
    sine,
    step_of,
)

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")


def compiled(function, backend="eager", **options):
    return aotgrad.aot_function(function, backend, options={**ISLANDS, **options})


FUNCTIONS = {
    "a function in NumPy": lambda x: NumpySin.apply(x.cos()).exp(),
    "a backward in NumPy": lambda x: NumpyBackward.apply(x.cos()).exp(),
    "a list": lambda x: Listed.apply(x.cos()).exp(),
    "a backward that branches": lambda x: -Branching.apply(x.cos()),
    "a custom op with a formula": lambda x: sine(x.cos()).exp(),
    "a custom op without one": lambda x: cosine(x.detach()).exp() + x,
    "an autograd kernel": lambda x: torch.ops.aotgrad_islands.kernel(x.cos()).exp(),
    "a marked function": lambda x: exponential(x.cos()).sin(),
    "a chain": lambda x: NumpyBackward.apply(sine(NumpySin.apply(x.cos()).exp()).sin()).cos(),
    "called twice": lambda x: NumpySin.apply(x) + NumpySin.apply(x),
    "under no_grad": lambda x: x * torch.no_grad()(NumpySin.apply)(x),
    "a checkpoint": lambda x: checkpoint(lambda y: NumpySin.apply(y.cos()).exp(), x, use_reentrant=False).sin(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_eagers(name):
    function = FUNCTIONS[name]
    run = compiled(function)
    for seed in (0, 1):
        torch.testing.assert_close(gradients_of(run, leaf(seed=seed)), gradients_of(function, leaf(seed=seed)))
    assert len(run.plans()) == 1


@pytest.mark.parametrize("name", ["a chain", "an autograd kernel"])
def test_inductor_compiles_what_is_between(name):
    function = FUNCTIONS[name]
    torch.testing.assert_close(gradients_of(compiled(function, "inductor"), leaf()), gradients_of(function, leaf()))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo reads it
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_behind_dynamo_a_marked_function_breaks_the_graph(backend):
    def function(x):
        return exponential(x.cos()).sin()

    run = torch.compile(function, backend=aotgrad.DynamoBackend(backend, options={"min_graph_ops": 0}))
    x, y = leaf(), leaf()
    run(x).sum().backward()
    function(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_results_in_a_pytree_and_their_gradients():
    def function(x, y):
        results, sine_of_x = several(x * 2, y.sin(), factor=3.0)
        assert results["nothing"] is None
        return results["a"].cos(), results["b"] + 1, sine_of_x

    run = compiled(function)
    for used in ((0,), (1,), (0, 1)):
        assert_same_gradients(function, run, used)
    assert not run(leaf(), leaf())[2].requires_grad


def test_gradients_that_are_undefined():
    def function(x, y):
        first, second = Undefined.apply(x * 2, y.sin())
        return first.cos(), second + 1

    run = compiled(function)
    for used in ((0,), (1,), (0, 1)):
        assert_same_gradients(function, run, used)


class GradientOfNone(torch.autograd.Function):
    """Computes a gradient of zeros, or of `None`, if it does not ask for zeros. A trace cannot see into it."""

    @staticmethod
    def forward(ctx, x, materializes):
        ctx.set_materialize_grads(materializes)
        return torch.from_numpy(x.detach().numpy() * 2)

    @staticmethod
    def backward(ctx, gradient):
        return None if gradient is None else gradient * 2 + 1, None


GRADIENTS_OF_NONE = [
    lambda x: aotgrad.island(torch.exp)(x),
    lambda x: GradientOfNone.apply(x, True),
    lambda x: GradientOfNone.apply(x, False),
    lambda x: aotgrad.island(lambda y: GradientOfNone.apply(y, True).sin())(x),
]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("inner", GRADIENTS_OF_NONE)
def test_the_only_gradient_is_undefined(inner, backend):
    def function(x, y):
        return (Dropped.apply(inner(x.sin()).cos(), y),)

    assert_same_gradients(function, aotgrad.aot_function(function, backend, options=ISLANDS), (0,))


@pytest.mark.parametrize("inner", GRADIENTS_OF_NONE[:3])
def test_the_only_gradient_of_a_gradient_is_undefined(inner):
    def function(x, y):
        return Dropped.apply(inner(x.sin()).cos(), y)

    found = []
    for call in (function, aotgrad.aot_function(function, "eager", options=ISLANDS)):
        x, y = leaf(seed=0), leaf(seed=1)
        found.append(torch.autograd.grad(call(x, y).sum(), [x, y], create_graph=True, allow_unused=True))
    torch.testing.assert_close(found[1], found[0])


def assert_same_gradients(function, run, used):
    """Compares the gradients of a sum of some results, and where they are `None`."""
    found = []
    for call in (function, run):
        inputs = leaf(seed=0), leaf(seed=1)
        results = call(*inputs)
        sum(results[k].sum() for k in used).backward()
        found.append([each.grad for each in inputs])
    assert [each is None for each in found[0]] == [each is None for each in found[1]]
    torch.testing.assert_close(*([each for each in gradients if each is not None] for gradients in found))


@pytest.mark.parametrize("function", [FUNCTIONS["a list"], FUNCTIONS["a marked function"], FUNCTIONS["a function in NumPy"]])
def test_gradients_of_gradients(function):
    found = []
    for call in (function, compiled(function)):
        gradients = [x := leaf()]
        for _ in range(3):
            value = (call(x) if len(gradients) == 1 else gradients[-1]).sum()
            gradients += torch.autograd.grad(value, x, create_graph=True)
        found.append(gradients)
    torch.testing.assert_close(*found)


def test_a_gradient_of_a_gradient_calls_the_function_once():
    calls = []

    @aotgrad.island
    def counted(x):
        calls.append(1)
        return x**3

    run = compiled(lambda x: counted(x.cos()).sin())
    for _ in range(2):
        calls.clear()
        x = leaf()
        (first,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
        torch.autograd.grad(first.sum(), x)
    assert len(calls) == 1


def test_calls_are_independent_and_a_graph_is_used_again_if_it_is_retained():
    run, x = compiled(FUNCTIONS["a function in NumPy"]), leaf()
    first, second = run(x), run(x * 2)
    (kept,) = torch.autograd.grad(first.sum(), x, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(first.sum(), x)[0], kept)
    torch.testing.assert_close(
        torch.autograd.grad(second.sum(), x), torch.autograd.grad(FUNCTIONS["a function in NumPy"](x * 2).sum(), x)
    )
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(first.sum(), x)


def test_the_backward_frees_the_autograd_graph_of_a_call():
    run, x = compiled(FUNCTIONS["a function in NumPy"]), leaf()
    run(x).sum().backward()
    before = count_tapes()
    result = run(x).sum()
    assert count_tapes() == before + 1
    result.backward()
    assert count_tapes() == before


def test_a_plan_keeps_no_argument_alive():
    class Tag:
        pass

    run, x, tag = compiled(FUNCTIONS["a chain"]), leaf(), Tag()
    x.untyped_storage().tag = tag  # which lives as long as the memory
    reference = weakref.ref(tag)
    run(x).sum().backward()
    del x, tag
    gc.collect()
    assert reference() is None


def count_tapes():
    gc.collect()
    return sum(type(each) is Tape for each in gc.get_objects())


@pytest.mark.parametrize(
    "function",
    [
        lambda x: NumpySin.apply(x).exp(),
        lambda x: NumpySin.apply(x.view(3, 4)).exp(),
    ],
)
def test_a_saved_argument_that_is_changed_is_noticed(function):
    argument = leaf() * 1
    result = compiled(function)(argument)
    with torch.no_grad():
        argument.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_a_saved_result_that_is_changed_is_noticed():
    result = compiled(lambda x: exponential(x * 2))(leaf())
    with torch.no_grad():
        result.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_random_numbers_are_those_of_eager():
    @aotgrad.island
    def noise(x):
        return x * torch.rand(x.shape) + torch.from_numpy(np.random.rand(*x.shape)).float()

    def function(x):
        return torch.rand(x.shape) + noise(x.cos()).sin() + torch.rand(x.shape)

    found = []
    for call in (function, compiled(function)):
        torch.manual_seed(0)
        np.random.seed(0)
        found.append([call(leaf()) for _ in range(3)])
    torch.testing.assert_close(*found)


def test_autocast_around_a_call():
    @aotgrad.island
    def product(x, y):
        return x @ y

    def function(x, y):
        with torch.autocast("cpu", torch.bfloat16):
            return product(x.sin(), y).float() * 2

    inputs = leaf(4, 4), leaf(4, 4, seed=1)
    torch.testing.assert_close(gradients_of(compiled(function), *inputs), gradients_of(function, *inputs))


def test_symbolic_sizes_are_specialized():
    function = FUNCTIONS["a function in NumPy"]
    run = compiled(function, dynamic=True)
    for size in (3, 4):
        torch.testing.assert_close(gradients_of(run, leaf(size, 2)), gradients_of(function, leaf(size, 2)))
    assert len(run.plans()) == 2


def test_a_size_that_is_marked_as_dynamic_is_specialized():
    function = FUNCTIONS["a marked function"]
    run = compiled(function)
    for size in (3, 4):
        x = leaf(size, 2)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(gradients_of(run, x), gradients_of(function, x))
    assert len(run.plans()) == 2


class Quantized(nn.Module):
    """A method is an island; it uses parameters, a buffer and another module."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.tied = self.linear
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("offset", torch.ones(3))

    @aotgrad.island
    def quantize(self, x):
        return self.tied((x * 10).round() / 10 + x * self.scale) + self.offset

    def forward(self, x):
        return self.quantize(self.linear(x)).tanh()


def test_a_method_of_a_module():
    model = Quantized()
    run, x = aotgrad.aot_module(model, "eager", options=ISLANDS), leaf()
    for _ in range(2):
        wanted = [torch.autograd.grad(call(x).sum(), [x, *model.parameters()]) for call in (model, run)]
        torch.testing.assert_close(*wanted)
        with torch.no_grad():
            model.scale.add_(1)


def test_a_training_step():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 1)

        def forward(self, x):
            return self.second(NumpySin.apply(self.first(x)).tanh())

    losses = []
    for compiles in (False, True):
        torch.manual_seed(0)
        model = Model()
        optimizer = torch.optim.Adam(model.parameters())
        run = step_of(model, optimizer)
        if compiles:
            run = aotgrad.train_step(run, state=[model, optimizer], backend="eager", options={"islands": True})
        losses.append([run(leaf().detach()) for _ in range(3)])
    torch.testing.assert_close(*losses)


@pytest.mark.parametrize(
    "options", [{"memory_budget": 0.0}, {"partitioner": "recompute_all"}, {"grad_segments": 3}], ids=str
)
def test_partitions(options):
    def function(x):
        for _ in range(3):
            x = NumpySin.apply(x.cos().sin()).exp().tanh()
        return x

    torch.testing.assert_close(gradients_of(compiled(function, **options), leaf()), gradients_of(function, leaf()))


def test_the_interpreter_checks_the_forms():
    function = FUNCTIONS["a chain"]
    torch.testing.assert_close(gradients_of(compiled(function, "interpreter"), leaf()), gradients_of(function, leaf()))


def test_a_branch_on_a_value_beside_an_island():
    def function(x):
        return NumpySin.apply(x.cos()) if x.sum() > 0 else NumpySin.apply(x).exp()

    run = compiled(function)
    for sign in (1, -1, 1):
        x = (sign * leaf().detach().abs()).requires_grad_()
        torch.testing.assert_close(gradients_of(run, x), gradients_of(function, x))
    assert len(run.plans()) == 2


def test_a_branch_on_the_result_of_an_island_is_an_error():
    with pytest.raises(CaptureError, match="which cannot be computed before the call"):
        compiled(lambda x: x * 2 if exponential(x).sum() > 0 else x)(leaf())


def test_transforms_trace_a_marked_function():
    run = compiled(lambda x: exponential(x.cos()).sum())
    x = leaf().detach()
    torch.testing.assert_close(torch.func.vmap(run)(x), x.cos().exp().sum(1))
    torch.testing.assert_close(torch.func.grad(run)(x), torch.func.grad(lambda x: x.cos().exp().sum())(x))


def test_results_of_another_form_are_an_error():
    @aotgrad.island
    def positive(x):
        return x[x > 0]

    run = compiled(lambda x: positive(x.cos()).exp())
    expected = run(torch.ones(3))
    with pytest.raises(EagerCallError, match=r"returns float32\[2\], but returned float32\[3\] when"):
        run(torch.tensor([1.0, 1.0, 3.0]))
    torch.testing.assert_close(run(torch.ones(3)), expected)


def test_an_error_of_the_function_passes_on():
    calls = []

    @aotgrad.island
    def fails_later(x):
        calls.append(1)
        if len(calls) == 2:
            raise ZeroDivisionError
        return x * 2

    run, x = compiled(lambda x: fails_later(x.cos())), leaf()
    expected = run(x)
    with pytest.raises(ZeroDivisionError):
        run(x)
    torch.testing.assert_close(run(x), expected)


def test_a_hook_that_copies_saved_tensors_is_an_error():
    run, x = compiled(FUNCTIONS["a function in NumPy"]), leaf()
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda value: value):
        result = run(x)
    with pytest.raises(EagerCallError, match="a saved-tensor hook has copied"):
        result.sum().backward()


class Same(torch.autograd.Function):
    """The result has the memory of the argument, and another gradient."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 5


REFUSED = {
    "returns a float": lambda x: 3.0,
    "returns memory of an argument": lambda x: torch.from_numpy(x.detach().numpy()),
    "with a gradient of its own": lambda x: Same.apply(x),
    "gives an argument another size": lambda x: x.unsqueeze_(0).sum(),
    "changes the requires_grad of an argument": lambda x: x.detach_().sin(),
    "calls backward": lambda x: (x.sum().backward(), x.sin())[1],
    "returns a sparse tensor": lambda x: x.to_sparse(),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_an_island_is_an_error_at_compile_time(message):
    marked = aotgrad.island(REFUSED[message])
    with pytest.raises(CaptureError, match=message):
        compiled(lambda x: (marked(x.cos()), x.sin())[1])(leaf())


def test_a_tensor_without_a_gradient_is_an_error():
    weight = leaf()
    scaled = aotgrad.island(lambda x: x * weight)
    with pytest.raises(CaptureError, match="requires grad and is no argument of it"):
        compiled(lambda x: scaled(x.cos()))(leaf())


def test_a_marked_function_in_a_backward_is_traced():
    class Marked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return exponential(gradient)

    def function(x):
        return Marked.apply(x.cos())

    torch.testing.assert_close(gradients_of(compiled(function), leaf()), gradients_of(function, leaf()))


def test_plans_with_islands_are_neither_shipped_nor_exported(tmp_path):
    run = compiled(lambda x: exponential(x.cos()))
    run(leaf())
    with pytest.raises(ShippingError, match="a function that is not traced"):
        aotgrad.save(run, tmp_path / "plans")
    with pytest.raises(CaptureError, match="a graph that is exported cannot"):
        aotgrad.export_joint(lambda x: exponential(x.cos()), (leaf(),))


def test_they_are_not_stored_on_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("AOTGRAD_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("AOTGRAD_VERIFY", "0")  # looking at the stages needs stages
    before = aotgrad.counters["cache_bypasses"]
    compiled(lambda x: exponential(x.cos()), cache=True)(leaf())
    assert aotgrad.counters["cache_bypasses"] == before + 1


@pytest.mark.parametrize("islands", [None, False])
def test_without_the_option_a_function_that_cannot_be_traced_is_refused(islands):
    run = compiled(FUNCTIONS["a function in NumPy"], islands=islands)
    with pytest.raises(CaptureError, match="turned into a NumPy array"):
        run(leaf())


class Supporting(aotgrad.backends.Backend):
    def supports(self, node):
        return node.target is not torch.ops.aten.exp.default

    def compile(self, graph, inputs, role):
        return graph.forward


def test_a_backend_that_says_what_it_supports_has_islands():
    function = FUNCTIONS["a function in NumPy"]
    run = aotgrad.aot_function(function, Supporting())
    torch.testing.assert_close(gradients_of(run, leaf()), gradients_of(function, leaf()))
    reasons = {row.reason for row in aotgrad.explain(function, backend=Supporting())(leaf()).islands}
    assert reasons == {"NumpySin is not traced: it turns a tensor into a NumPy array", "user does not support it"}
    with pytest.raises(CaptureError, match="turned into a NumPy array"):
        aotgrad.aot_function(function, Supporting(), options={"islands": False})(leaf())


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_explain_lists_the_islands(backend):
    report = aotgrad.explain(lambda x: NumpySin.apply(x.cos()).exp(), backend=backend, options=ISLANDS)(leaf())
    assert [(row.graph, row.name) for row in report.islands] == [
        ("forward", "eager_call"),
        ("backward", "eager_call_backward"),
    ]
    assert {row.reason for row in report.islands} == {"NumpySin is not traced: it turns a tensor into a NumPy array"}


@aotgrad.island
def noisy(x):
    return x * torch.rand_like(x)


def within_a_fork(x):
    with torch.random.fork_rng(devices=[]):
        return noisy(x.cos())


REPEATED = {
    "in a checkpoint": lambda x: checkpoint(lambda y: noisy(y).sin(), x, use_reentrant=False),
    "beside another draw": lambda x: checkpoint(lambda y: noisy(torch.rand_like(y) * y).sin(), x, use_reentrant=False),
}


@pytest.mark.parametrize("name", REPEATED)
def test_a_draw_that_a_checkpoint_repeats_is_refused(name):
    with pytest.raises(CaptureError, match="noisy, which is not traced, draws random numbers, and torch"):
        compiled(REPEATED[name])(leaf())


def test_a_draw_that_is_undone_is_refused():
    with pytest.raises(CaptureError, match="seeds the random generator or sets its state"):
        compiled(within_a_fork)(leaf())


DRAWN = {
    "again without the state": lambda x: checkpoint(
        lambda y: noisy(y).sin(), x, use_reentrant=False, preserve_rng_state=False
    ),
    "outside of the checkpoint": lambda x: (
        checkpoint(lambda y: (torch.rand_like(y) * y).sin(), noisy(x), use_reentrant=False) * noisy(x)
    ),
}


@pytest.mark.parametrize("name", DRAWN)
def test_draws_beside_a_checkpoint(name):
    def drawn(function):
        x = leaf()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return torch.autograd.grad(function(x).sum(), x), torch.rand(2)

    torch.testing.assert_close(drawn(compiled(DRAWN[name])), drawn(DRAWN[name]))


class Counter:
    """Things that an island may change."""

    def __init__(self) -> None:
        self.calls, self.log, self.module = 0, [], torch.nn.Module()
        self.module.calls, self.module.last = 0, {}

    def count(self) -> None:
        self.calls += 1
        self.log.append(self.calls)
        self.module.calls += 1
        self.module.last["calls"] = self.calls


class CountedBackward(torch.autograd.Function):
    backwards = 0

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        CountedBackward.backwards += 1
        return gradient * 2


def test_the_run_at_compile_time_changes_no_values():
    counter, variable = Counter(), 0
    CountedBackward.backwards = 0

    @aotgrad.island
    def counted(x):
        nonlocal variable
        variable += 1
        counter.count()
        return CountedBackward.apply(x)

    run = compiled(lambda x: counted(x.cos()).sin())
    for calls in range(1, 4):
        run(leaf()).sum().backward()
        assert (variable, counter.calls, counter.log) == (calls, calls, list(range(1, calls + 1)))
        assert (counter.module.calls, counter.module.last) == (calls, {"calls": calls})
        assert CountedBackward.backwards == calls


def test_a_method_of_a_module_changes_it_once():
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.calls, self.log = torch.nn.Linear(3, 3), 0, []

        @aotgrad.island
        def count(self, x):
            self.calls += 1
            self.log.append(self.calls)
            return x * 2

        def forward(self, x):
            return self.count(self.linear(x)).sin()

    module = Counting()
    run = aotgrad.aot_module(module, "eager")
    for calls in range(1, 4):
        run(torch.ones(2, 3)).sum().backward()
        assert (module.calls, module.log) == (calls, list(range(1, calls + 1)))
