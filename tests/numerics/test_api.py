"""The public functions: inputs and outputs, stored state, and the plans that they make."""

from __future__ import annotations

import copy
import inspect
import warnings

import pytest
import torch
from torch import nn

import aotgrad
from aotgrad.backends import registry
from aotgrad.errors import BackendError, OptionError
from tests.device import TYPE

from .against_eager import AOT, COMPILERS, assert_like_eager, compiled, leaf, non_leaf, plain
from .cases import Case, Cases

CASES = Cases()


# --- Arguments -------------------------------------------------------------------------------------------------------


@CASES.add(lambda: ({"a": leaf(3), "b": [leaf(3), (leaf(3), None)]},))
def nested_arguments(tree):
    return {"sum": tree["a"] + tree["b"][0], "deep": tree["b"][1][0] * 2}


@CASES.add(lambda: (leaf(3), 2, "double", None, True, 1.5))
def python_values(x, n, name, nothing, flag, factor):
    return x * n * factor if flag and nothing is None and name == "double" else x


@CASES.add(lambda: (leaf(3),))
def defaults(x, scale=2.0, *, power=2):
    return (x * scale) ** power


@CASES.add(lambda: (leaf(3), leaf(3), leaf(3)))
def any_number_of_arguments(*tensors):
    return sum(tensors)


@CASES.add(lambda: (leaf(3), torch.Size([3, 1]), torch.float64), without_dynamo="Dynamo takes no dtype as an argument")
def sizes_and_dtypes(x, size, dtype):
    return x.view(size).to(dtype), size.numel()


@CASES.add(lambda: (nn.Parameter(torch.ones(3)), plain(3)))
def a_parameter(w, x):
    return w * x, w


@CASES.parametrize()
def test_arguments(case: Case, backend: str) -> None:
    case.check(backend)


@pytest.mark.parametrize("backend", AOT)
def test_keyword_arguments(backend: str) -> None:
    function = compiled(lambda x, *, y, scale=1.0: x * y * scale, backend)
    x, y = leaf(3), leaf(3)
    assert torch.equal(function(x, y=y, scale=2.0), x * y * 2.0)
    assert torch.equal(function(y=y, x=x), x * y)
    function(x, y=y).sum().backward()
    assert torch.equal(x.grad, y)


def test_signature_name_and_docstring_survive() -> None:
    def scaled(x: torch.Tensor, *, factor: float = 2.0) -> torch.Tensor:
        """Multiply."""
        return x * factor

    function = aotgrad.aot_function(scaled, aotgrad.nop)
    assert inspect.signature(function) == inspect.signature(scaled)
    assert (function.__name__, function.__doc__, function.__module__) == ("scaled", "Multiply.", __name__)
    assert function.__wrapped__ is scaled


def test_a_callable_object() -> None:
    class Scale:
        def __call__(self, x):
            return x * 2

    x = leaf(3)
    assert torch.equal(aotgrad.aot_function(Scale(), aotgrad.nop)(x), x * 2)


# --- Number of plans -------------------------------------------------------------------------------------------------

DIFFERENT_CALLS = {
    "python_number": [(plain(3), 1), (plain(3), 2)],
    "number_type": [(plain(3), 1), (plain(3), 1.0), (plain(3), True)],
    "sign_of_zero": [(plain(3), 0.0), (plain(3), -0.0)],
    "shape": [(plain(3), 1), (plain(4), 1)],
    "rank": [(plain(3), 1), (plain(3, 1), 1)],
    "stride": [(plain(3, 4), 1), (plain(4, 3).t(), 1)],
    "dtype": [(plain(3), 1), (plain(3).double(), 1)],
    "requires_grad": [(plain(3), 1), (leaf(3), 1)],
    "leaf_or_not": [(leaf(3), 1), (non_leaf(3), 1)],
    "conjugate": [(plain(3, dtype=torch.complex64), 1), (plain(3, dtype=torch.complex64).conj(), 1)],
    "structure": [((plain(3), plain(3)), 1), ([plain(3), plain(3)], 1), ({"a": plain(3), "b": plain(3)}, 1)],
    "keys_of_a_dict": [({"a": plain(3), "b": plain(3)}, 1), ({"a": plain(3), "c": plain(3)}, 1)],
}


def describe(argument, n):
    """Depends on every difference between the calls above."""
    if isinstance(argument, dict):
        return {key: value * n for key, value in argument.items()}
    if isinstance(argument, (tuple, list)):
        return type(argument)(value * n for value in argument)
    return argument / n if n == 0 else argument * n, torch.empty_like(argument).zero_()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("change", DIFFERENT_CALLS)
def test_a_plan_is_not_reused_for_another_kind_of_call(change: str, dynamic: bool) -> None:
    function = compiled(describe, "nop", dynamic=dynamic)
    for args in [*DIFFERENT_CALLS[change], *DIFFERENT_CALLS[change]]:
        assert_like_eager(describe, lambda args=args: copied_arguments(args), function, compilations=None)


def copied_arguments(args):
    """Fresh tensors of the same kind as `args`."""

    def fresh(value):
        if not isinstance(value, torch.Tensor):
            return value
        copy = value.detach().clone().requires_grad_(value.requires_grad)
        copy = copy.conj() if value.is_conj() else copy
        return copy if value.is_leaf else copy * 1

    return torch.utils._pytree.tree_map(fresh, args)


def test_a_plan_is_not_reused_in_another_mode() -> None:
    def function(x):
        return x @ x, torch.is_grad_enabled()

    under_test = compiled(function, "nop")
    modes = (
        torch.enable_grad,
        torch.no_grad,
        lambda: torch.autocast(TYPE, dtype=torch.bfloat16),
        torch.inference_mode,
    )
    for mode in (*modes, *modes):
        assert_like_eager(function, lambda: (leaf(3, 3),), under_test, around=mode, compilations=None)


def test_a_plan_is_not_reused_when_arguments_start_to_be_the_same_tensor() -> None:
    def function(x, y):
        x.mul_(2)
        return x + y

    under_test = compiled(function, "nop")
    for make in (lambda: (non_leaf(3), non_leaf(3)), lambda: (non_leaf(3),) * 2, lambda: (non_leaf(3), non_leaf(3))):
        assert_like_eager(function, make, under_test, compilations=None)


def test_separate_and_overlapping_inputs_share_no_plan() -> None:
    def function(x, y):
        return x * 2, y * 3

    under_test = compiled(function, "nop")
    assert_like_eager(function, lambda: (leaf(4), leaf(3)), under_test, compilations=None)
    assert_like_eager(function, lambda: overlapping(leaf(4)), under_test, compilations=None)


def overlapping(x):
    return x, x[1:]


def test_a_plan_is_made_once() -> None:
    function = compiled(lambda x: x * 2, "nop")
    before = aotgrad.counters["compilations"]
    for _ in range(3):
        function(leaf(3)).sum().backward()
    assert aotgrad.counters["compilations"] - before == 1


def test_a_constant_of_the_closure_is_read_at_every_call() -> None:
    table = torch.ones(3)
    function = compiled(lambda x: x * table, "nop")
    function(torch.ones(3))
    table.fill_(5)
    assert torch.equal(function(torch.ones(3)), torch.full((3,), 5.0))


def test_compiling_gives_no_warnings() -> None:
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter("error")
        compiled(torch.sin, "nop")(non_leaf(3)).sum().backward()


def test_a_compiled_function_inside_of_another() -> None:
    inner = aotgrad.aot_function(lambda x: x.sin(), aotgrad.nop)
    assert_like_eager(lambda x: inner(x * 2) * 3, lambda: (leaf(3),), "nop", compilations=None)


# --- Backward --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", AOT)
def test_a_second_backward_is_refused_as_in_eager(backend: str) -> None:
    y = compiled(lambda x: x.sin(), backend)(leaf(3)).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        y.backward()


@pytest.mark.parametrize("backend", AOT)
def test_retained_graph(backend: str) -> None:
    x = leaf(3)
    y = compiled(lambda x: x.sin(), backend)(x).sum()
    y.backward(retain_graph=True)
    y.backward()
    torch.testing.assert_close(x.grad, 2 * x.cos())


@pytest.mark.parametrize("backend", AOT)
def test_a_saved_input_that_is_changed_before_the_backward(backend: str) -> None:
    x = leaf(3)
    y = compiled(lambda x: x.sin(), backend)(x)
    with torch.no_grad():
        x.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_only_some_gradients_are_asked_for() -> None:
    x, w = leaf(3), leaf(3)
    y = compiled(lambda x, w: x * w, "nop")(x, w).sum()
    (gradient,) = torch.autograd.grad(y, x)
    assert torch.equal(gradient, w)
    assert w.grad is None


def test_an_output_that_is_not_used_gives_no_gradient() -> None:
    def two_heads(x, v, w):
        return x * v, x * w

    assert_like_eager(two_heads, lambda: (leaf(3), leaf(3), leaf(3)), "nop", caller=None)
    x, v, w = leaf(3), leaf(3), leaf(3)
    first, _ = compiled(two_heads, "nop")(x, v, w)
    first.sum().backward()
    assert torch.equal(v.grad, x)
    assert w.grad is None


def test_hooks_on_inputs_and_outputs_run_once() -> None:
    seen = []
    x = leaf(3)
    x.register_hook(lambda gradient: seen.append("input"))
    y = compiled(lambda x: x * 2, "nop")(x)
    y.register_hook(lambda gradient: seen.append("output"))
    y.sum().backward()
    assert seen == ["output", "input"]


def test_saved_tensor_hooks_see_what_is_saved() -> None:
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.shape) or t, lambda t: t):
        y = compiled(lambda x: x.exp().sin(), "nop")(leaf(5))
    assert packed
    y.sum().backward()


# --- Compilers, partitioners, decompositions -------------------------------------------------------------------------


def recording(name: str, calls: list[str]):
    def compiler(module, inputs):
        calls.append(name)
        return aotgrad.nop(module, inputs)

    return compiler


def test_each_compiler_gets_its_graph() -> None:
    calls: list[str] = []
    fw, bw, inference = (recording(name, calls) for name in ("forward", "backward", "inference"))
    function = aotgrad.aot_function(lambda x: x.sin(), fw, bw, inference_compiler=inference)
    function(leaf(3)).sum().backward()
    function(plain(3))
    assert calls == ["forward", "backward", "inference"]


def test_one_compiler_serves_for_all() -> None:
    calls: list[str] = []
    function = aotgrad.aot_function(lambda x: x.sin(), recording("forward", calls))
    function(leaf(3)).sum().backward()
    function(plain(3))
    assert calls == ["forward"] * 3


@pytest.mark.parametrize("partition_fn", [aotgrad.default_partition, aotgrad.min_cut_rematerialization_partition])
def test_partition_functions(partition_fn) -> None:
    def function(x, w):
        return (x @ w).sigmoid().sum()

    assert_like_eager(function, lambda: (leaf(3, 4), leaf(4, 2)), "nop", partition_fn=partition_fn)


def test_a_partition_function_is_given_the_joint_graph() -> None:
    seen = []

    def partition_fn(joint, inputs, *, num_fwd_outputs, **more):
        seen.append((len(inputs), num_fwd_outputs, [n.name for n in joint.graph.find_nodes(op="placeholder")]))
        return aotgrad.default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **more)

    aotgrad.aot_function(lambda x: x.sin(), aotgrad.nop, partition_fn=partition_fn)(leaf(3))
    assert seen == [(2, 1, ["primals_1", "tangents_1"])]


def test_decompositions_are_applied_while_tracing() -> None:
    targets = set()

    def compiler(module, inputs):
        targets.update(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return aotgrad.nop(module, inputs)

    table = torch._decomp.get_decompositions([torch.ops.aten.silu, torch.ops.aten.silu_backward])
    function = aotgrad.aot_function(nn.functional.silu, compiler, decompositions=table)
    assert_like_eager(nn.functional.silu, lambda: (leaf(3),), function, values_close="other operations")
    assert "aten.sigmoid.default" in targets
    assert not any("silu" in target for target in targets)


@pytest.mark.parametrize("backend", ["eager", "aot_inductor", "dynamo", "inductor"])
def test_an_inference_tensor_that_requires_grad_is_an_argument(backend: str) -> None:
    """It has no history, so it has no node that accumulates its gradient."""

    def function(x, weight):
        return x * weight

    with torch.inference_mode():
        arguments = plain(3), leaf(3)
        expected, found = function(*arguments), compiled(function, backend)(*arguments)
    assert torch.equal(found, expected)
    assert found.is_inference()


@pytest.mark.parametrize("keep", [True, False])
def test_keep_inference_input_mutations(keep: bool) -> None:
    graphs = []

    def compiler(module, inputs):
        graphs.append(module)
        return aotgrad.nop(module, inputs)

    def function(x):
        x.mul_(2)
        return x + 1

    assert_like_eager(function, lambda: (plain(3),), "nop", keep_inference_input_mutations=keep)
    aotgrad.aot_function(function, compiler, keep_inference_input_mutations=keep)(plain(3))
    copies = graphs[0].graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    assert bool(copies) is keep


def test_boxed_functions_and_compilers() -> None:
    add = aotgrad.make_boxed_func(lambda a, b: (a + b,))
    args = [1, 2]
    assert add(args) == (3,)
    assert args == []
    boxed = aotgrad.make_boxed_compiler(lambda module, inputs: module.forward)
    assert_like_eager(lambda x: x.sin(), lambda: (leaf(3),), aotgrad.aot_function(torch.sin, boxed))


# --- Modules ---------------------------------------------------------------------------------------------------------


def small_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))


def test_a_module_trains_as_in_eager() -> None:
    def losses(compile_model):
        torch.manual_seed(3)
        model = small_model()
        forward = compile_model(model)
        optimizer = torch.optim.SGD(forward.parameters(), 0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            loss = forward(torch.randn(16, 4)).square().mean()
            loss.backward()
            optimizer.step()
            yield loss.item()
        yield from (value.sum().item() for value in model.state_dict().values())

    assert list(losses(lambda model: aotgrad.aot_module(model, aotgrad.nop))) == list(losses(lambda model: model))


def test_a_module_stays_what_it_was() -> None:
    model = small_model()
    module = aotgrad.aot_module(model, aotgrad.nop)
    assert isinstance(module, nn.Sequential)
    assert list(module.state_dict()) == list(model.state_dict())
    assert [id(p) for p in module.parameters()] == [id(p) for p in model.parameters()]
    assert inspect.signature(module.forward) == inspect.signature(model.forward)
    assert module[0] is model[0]


def test_training_and_evaluation() -> None:
    model = small_model()
    module = aotgrad.aot_module(model, aotgrad.nop)
    x = plain(6, 4)
    for mode in (True, False, True):
        module.train(mode)
        assert model.training is mode
        reference = copy.deepcopy(model)
        torch.manual_seed(0)
        actual = module(x)
        torch.manual_seed(0)
        assert torch.equal(actual, reference(x))


def test_only_a_part_in_evaluation() -> None:
    module = aotgrad.aot_module(small_model(), aotgrad.nop)
    x = plain(6, 4)
    module(x)
    module[3].eval()
    module[1].eval()
    assert torch.equal(module(x), module(x)), "no dropout and no new statistics"


def test_another_dtype() -> None:
    module = aotgrad.aot_module(small_model().eval(), aotgrad.nop)
    assert module(plain(3, 4)).dtype is torch.float32
    assert module.to(torch.float64) is module
    assert module(plain(3, 4, dtype=torch.float64)).dtype is torch.float64


def test_loaded_state_is_used() -> None:
    first, second = (aotgrad.aot_module(nn.Linear(3, 2), aotgrad.nop) for _ in range(2))
    x = plain(4, 3)
    first(x), second(x)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x), second(x))


def test_frozen_parameters() -> None:
    module = aotgrad.aot_module(nn.Linear(3, 2), aotgrad.nop)
    module(plain(4, 3)).sum().backward()
    assert module.weight.grad is not None
    module.weight.grad = None
    module.weight.requires_grad_(False)
    module(plain(4, 3)).sum().backward()
    assert module.weight.grad is None
    assert module.bias.grad is not None


def test_freezing_and_unfreezing_makes_two_plans_that_are_eagers_to_the_bit() -> None:
    """Eager multiplies by a frozen matrix with `bmm`, by another one with `mm`: no plan covers both."""

    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(-1, 1, 63).view(9, 7).exp())

        def forward(self, x):
            return (x.transpose(0, 1) @ self.weight).sin()

    def run(module, x):
        y = module(x)
        return [y.detach(), *torch.autograd.grad(y.sum(), [t for t in (x, module.weight) if t.requires_grad])]

    eager, module = Product(), aotgrad.aot_module(Product(), aotgrad.nop)
    for frozen in (False, True, False, True, True):
        for each in (eager, module):
            each.weight.requires_grad_(not frozen)
        x = leaf(3, 2, 9)
        for actual, wanted in zip(run(module, x), run(eager, x), strict=True):
            assert torch.equal(actual, wanted)
    products = ["bmm" in plan.executable.joint.module.code for plan in module.plans()]
    assert sorted(products) == [False, True]
    assert sum(plan.hits for plan in module.plans()) == 3


def test_a_parameter_that_is_replaced() -> None:
    module = aotgrad.aot_module(nn.Linear(3, 2), aotgrad.nop)
    module(plain(4, 3))
    module.weight = nn.Parameter(torch.zeros(2, 3))
    x = plain(4, 3)
    assert torch.equal(module(x), module.bias.expand(4, 2))


def test_an_attribute_that_changes() -> None:
    class Scaled(nn.Module):
        scale = 2.0

        def forward(self, x):
            return x * self.scale

    module = aotgrad.aot_module(Scaled(), aotgrad.nop)
    x = plain(3)
    assert torch.equal(module(x), x * 2)
    module.scale = 3.0
    assert torch.equal(module(x), x * 3)


def test_deepcopies_are_independent() -> None:
    module = aotgrad.aot_module(nn.Linear(3, 2), aotgrad.nop)
    twin = copy.deepcopy(module)
    x = plain(4, 3)
    assert torch.equal(twin(x), module(x))
    with torch.no_grad():
        twin.weight.zero_()
    assert not torch.equal(twin(x), module(x))
    assert type(twin).__name__ == type(module).__name__


def test_tied_weights_get_one_gradient() -> None:
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.second = nn.Linear(3, 3)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x).relu())

    model = Tied()
    reference = copy.deepcopy(model)
    module = aotgrad.aot_module(model, aotgrad.nop)
    x = plain(4, 3)
    module(x).sum().backward()
    reference(x).sum().backward()
    assert torch.equal(model.first.weight.grad, reference.first.weight.grad)


def test_hooks_of_the_module_and_of_its_parts_run() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    module = aotgrad.aot_module(model, aotgrad.nop)
    module.register_forward_hook(lambda module, args, output: output * 2)
    model[0].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    x = plain(4, 3)
    assert torch.equal(module(x), model(x))
    assert torch.equal(module(x), model[1](model[0](x)) * 2)


def test_a_module_with_keyword_arguments_and_nested_output() -> None:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x, *, scale=1.0):
            y = self.linear(x)
            return {"logits": y * scale, "hidden": [x]}

    model = Model()
    module = aotgrad.aot_module(model, aotgrad.nop)
    x = plain(4, 3)
    assert torch.equal(module(x, scale=2.0)["logits"], model(x, scale=2.0)["logits"])
    assert module(x)["hidden"][0] is x


def test_batch_norm_buffers_are_updated() -> None:
    model = nn.BatchNorm1d(3)
    reference = copy.deepcopy(model)
    module = aotgrad.aot_module(model, aotgrad.nop)
    for _ in range(2):
        x = plain(5, 3)
        module(x)
        reference(x)
    for name, value in reference.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


def test_a_simplified_module() -> None:
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x, y):
            return self.linear(x) * y, x + 1

    model = Flat()
    x, y = plain(4, 3), leaf(4, 2)
    function = aotgrad.aot_module_simplified(model, (x, y), aotgrad.nop)
    outputs = function(x, y)
    assert isinstance(outputs, (list, tuple))
    expected = model(x, y)
    assert [torch.equal(a, b) for a, b in zip(outputs, expected, strict=True)] == [True, True]
    outputs[0].sum().backward()
    gradient, y.grad = y.grad, None
    weight, model.linear.weight.grad = model.linear.weight.grad, None
    expected[0].sum().backward()
    assert torch.equal(y.grad, gradient)
    assert torch.equal(model.linear.weight.grad, weight)


class OfSeveral(nn.Module):
    def forward(self, *tensors):
        return [tensors[0].mul_(2) + tensors[1]]


def test_a_simplified_graph_module_of_several_arguments() -> None:
    module = torch.fx.symbolic_trace(OfSeveral())
    (placeholder,) = module.graph.find_nodes(op="placeholder")
    assert placeholder.target == "*tensors"
    memory = torch.ones(4)
    (output,) = aotgrad.aot_module_simplified(module, (memory[:3], memory[1:]), aotgrad.nop)(memory[:3], memory[1:])
    assert torch.equal(output, torch.tensor([4.0, 4.0, 3.0]))


def test_a_simplified_graph_module() -> None:
    module = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(3, 2), nn.Tanh()))
    module.graph.output_node().args = ((module.graph.output_node().args[0],),)
    module.recompile()
    x = leaf(4, 3)
    (output,) = aotgrad.aot_module_simplified(module, (x,), aotgrad.nop)(x)
    assert torch.equal(output, module(x)[0])
    output.sum().backward()
    assert x.grad is not None


class Product(nn.Module):
    def forward(self, x, y):
        return (x * y,)


simplified_by = pytest.mark.parametrize("compiler", [aotgrad.nop, "inductor"])


@simplified_by
def test_a_simplified_module_whose_input_comes_to_require_grad(compiler) -> None:
    x, y = leaf(3), plain(3)
    function = aotgrad.aot_module_simplified(Product(), (x, y), compiler)
    for other in (y, leaf(3), plain(3), non_leaf(3)):
        x.grad = None
        outputs = function(x, other)
        assert type(outputs) is list
        outputs[0].sum().backward()
        assert torch.equal(x.grad, other)
    other = leaf(3)
    function(x, other)[0].sum().backward()
    assert torch.equal(other.grad, x)


@simplified_by
def test_a_simplified_module_whose_parameter_is_unfrozen(compiler) -> None:
    class Flat(nn.Linear):
        def forward(self, x):
            return (super().forward(x),)

    model, x = Flat(3, 2).requires_grad_(False), plain(4, 3)
    function = aotgrad.aot_module_simplified(model, (x,), compiler)
    assert not function(x)[0].requires_grad
    model.requires_grad_(True)
    function(x)[0].sum().backward()
    assert torch.equal(model.bias.grad, torch.full((2,), 4.0))


@simplified_by
def test_a_simplified_module_that_was_compiled_under_no_grad(compiler) -> None:
    x, y = leaf(3), leaf(3)
    with torch.no_grad():
        function = aotgrad.aot_module_simplified(Product(), (x, y), compiler)
        assert not function(x, y)[0].requires_grad
    function(x, y)[0].sum().backward()
    assert torch.equal(x.grad, y) and torch.equal(y.grad, x)


class Written(nn.Module):
    def forward(self, x, y):
        x.mul_(2)
        return (x + y,)


@simplified_by
@pytest.mark.parametrize("module", [Product(), Written()], ids=["read", "written"])
def test_a_simplified_module_for_one_tensor_that_gets_two(module, compiler) -> None:
    x = plain(3)
    function = aotgrad.aot_module_simplified(module, (x, x), compiler)
    for make in (lambda: (plain(3), plain(3)), lambda: (plain(3),) * 2):
        torch.manual_seed(1)
        expected_args = make()
        torch.manual_seed(1)
        args = make()
        assert torch.equal(function(*args)[0], module(*expected_args)[0])
        assert all(map(torch.equal, args, expected_args))


# --- Options ---------------------------------------------------------------------------------------------------------


def test_an_unknown_option_lists_the_known() -> None:
    with pytest.raises(OptionError, match=r"unknown option 'partitoner'.*dynamic.*partitioner"):
        aotgrad.aot_function(torch.sin, aotgrad.nop, options={"partitoner": "min_cut"})


def test_a_bad_value_lists_the_legal() -> None:
    with pytest.raises(OptionError, match=r"'partitioner' is 'best'.*'min_cut', 'save_all'"):
        aotgrad.aot_function(torch.sin, aotgrad.nop, options={"partitioner": "best"})


def test_options_are_checked_by_modules_too() -> None:
    with pytest.raises(OptionError, match="unknown option"):
        aotgrad.aot_module(nn.Linear(2, 2), aotgrad.nop, options={"nonsense": 1})


@pytest.mark.parametrize("backend", ["aotgrad", "aotgrad_eager"])
def test_options_are_checked_by_torch_compile(backend: str) -> None:
    torch._dynamo.reset()
    function = torch.compile(torch.sin, backend=backend, options={"partitioner": "best"})
    with pytest.raises(Exception, match=r"'partitioner' is 'best'.*'min_cut', 'save_all'"):
        function(plain(3))


@pytest.mark.parametrize("partitioner", ["min_cut", "save_all"])
def test_options_through_torch_compile(partitioner: str) -> None:
    assert_like_eager(lambda x: x.sigmoid() * x, lambda: (leaf(3),), "dynamo", options={"partitioner": partitioner})


# --- Backends --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [aotgrad.eager, aotgrad.interpreter], ids=["eager", "interpreter"])
def test_backends_are_objects_too(backend) -> None:
    torch._dynamo.reset()
    function = torch.compile(lambda x: x.sin() * 2, backend=backend)
    assert_like_eager(lambda x: x.sin() * 2, lambda: (leaf(3),), function)


def test_backends_are_found_by_name() -> None:
    torch._dynamo.reset()
    assert {"aotgrad", "aotgrad_eager"} <= set(torch.compiler.list_backends(exclude_tags=()))


def test_a_registered_backend() -> None:
    calls: list[str] = []
    forward, backward = recording("forward", calls), recording("backward", calls)
    backend = aotgrad.backends.register("recording", fw_compiler=forward, bw_compiler=backward)
    assert aotgrad.backends.get("recording") is backend
    assert "recording" in aotgrad.backends.names()
    torch._dynamo.reset()
    function = torch.compile(lambda x: x.sin(), backend=aotgrad.DynamoBackend("recording"))
    assert_like_eager(torch.sin, lambda: (leaf(3),), function)
    assert calls == ["forward", "backward"]


def test_an_unknown_backend_lists_the_known() -> None:
    with pytest.raises(BackendError, match=r"no backend 'nonsense'.*eager.*inductor.*interpreter"):
        aotgrad.backends.get("nonsense")


def test_a_backend_must_have_a_compiler() -> None:
    with pytest.raises(BackendError, match=r"'broken'.*fw_compiler is an? int.*callable"):
        aotgrad.backends.register("broken", fw_compiler=3)


def test_the_compilers_under_test_are_the_backends_own() -> None:
    assert aotgrad.backends.get("eager").fw_compiler is COMPILERS["eager"]
    assert aotgrad.backends.get("interpreter").fw_compiler is COMPILERS["interpreter"]


def test_a_backend_is_given_by_its_name_or_itself() -> None:
    x, wanted = torch.ones(3, requires_grad=True), torch.ones(3).sin() * 2
    for backend in ("eager", "inductor", registry.get("interpreter")):
        compiled = aotgrad.aot_function(lambda x: x.sin() * 2, backend)
        torch.testing.assert_close(compiled(x), wanted)
        assert compiled.plans()[0].executable.compiled.backend == (backend if isinstance(backend, str) else "interpreter")


@pytest.mark.parametrize("more", ["bw_compiler", "inference_compiler", "decompositions"])
def test_a_backend_takes_no_compilers_beside_it(more: str) -> None:
    given = {} if more == "decompositions" else aotgrad.nop
    with pytest.raises(BackendError, match=f"leave out {more}"):
        aotgrad.aot_function(torch.sin, "inductor", **{more: given})
