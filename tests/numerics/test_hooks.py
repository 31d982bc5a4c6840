"""Hooks on inputs, outputs and parameters, and on their autograd nodes: order, values, replacements, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn

import aotgrad
from tests.device import new_generator
from tests.numerics.against_eager import ALL, assert_matches, compiled

Trace = list[tuple[str, Any]]


def one_node(x, w):
    return ((x @ w).tanh() * w,)


def trunk_and_heads(x, w):
    h = (x @ w).tanh()
    return h @ w, h, (h * x).sum(0)


def changed_input(x, w):
    x.mul_(w)
    return x.sin(), x * 2


FUNCTIONS = [changed_input, one_node, trunk_and_heads]
every_function = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)


def leaves() -> list[Tensor]:
    generator = new_generator().manual_seed(0)
    return [torch.rand(4, 4, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2)]


def traced(function: Callable, register: Callable[[Trace, dict[str, Tensor]], None], before: bool = False) -> Trace:
    """The gradients that hooks received in one backward, and the final gradients."""
    seen: Trace = []
    x, w = leaves()
    inputs = {"x": x * 1, "w": w}
    if before:
        register(seen, inputs)
    outputs = function(*inputs.values())
    named = {f"output {k}": output for k, output in enumerate(outputs)}
    if not before:
        register(seen, {**inputs, **named})
    sum((output**2).sum() for output in outputs).backward()
    seen += [(f"gradient of {name}", leaf.grad.clone()) for name, leaf in zip("xw", (x, w), strict=True)]
    seen += [(f"kept gradient of {name}", t.grad) for name, t in {**inputs, **named}.items() if t.retains_grad]
    return seen


def tensor_hooks(seen: Trace, tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        tensor.register_hook(lambda gradient, name=name: seen.append((name, gradient.clone())))


def replacing_hooks(seen: Trace, tensors: dict[str, Tensor]) -> None:
    tensor_hooks(seen, tensors)
    for tensor in tensors.values():
        tensor.register_hook(lambda gradient: gradient * 2 + 1)
    tensor_hooks(seen, tensors)


def kept_gradients(seen: Trace, tensors: dict[str, Tensor]) -> None:
    """`retains_grad` runs last, whenever it was set."""
    for tensor in tensors.values():
        if not tensor.is_leaf:
            tensor.retain_grad()
        tensor.register_hook(lambda gradient: gradient * 3)


def node_hooks(seen: Trace, tensors: dict[str, Tensor]) -> None:
    """Tensor pre-hooks run before those of the node, and post-hooks of the node after it."""
    for name, tensor in tensors.items():
        if tensor.grad_fn is None:
            continue
        position = tensor.output_nr
        tensor.grad_fn.register_prehook(
            lambda gradients, name=name, k=position: seen.append((f"node of {name}", gradients[k].clone()))
        )
        tensor.register_hook(lambda gradient, name=name: seen.append((name, gradient.clone())))


def replacing_node_hooks(seen: Trace, tensors: dict[str, Tensor]) -> None:
    node_hooks(seen, tensors)
    for name, tensor in tensors.items():
        if tensor.grad_fn is not None and name != "x":
            tensor.grad_fn.register_prehook(lambda gradients: tuple(None if g is None else g * 2 for g in gradients))


def accumulated(seen: Trace, tensors: dict[str, Tensor]) -> None:
    leaf = tensors["w"]
    leaf.register_post_accumulate_grad_hook(lambda leaf: seen.append(("accumulated", leaf.grad.clone())))
    leaf.register_hook(lambda gradient: seen.append(("hook of the leaf", gradient.clone())))


REGISTRATIONS = [accumulated, kept_gradients, node_hooks, replacing_hooks, replacing_node_hooks, tensor_hooks]


@every_function
@pytest.mark.parametrize("register", REGISTRATIONS, ids=lambda register: register.__name__)
@pytest.mark.parametrize("segments", [1, 3])
def test_hooks_see_and_replace_what_they_do_in_eager(halves, function, register, segments):
    under_test = aotgrad.aot_function(function, halves, options={"grad_segments": segments})
    for _ in range(2):
        assert_matches(traced(under_test, register), traced(function, register), halves)


@every_function
def test_hooks_registered_before_the_call(halves, function):
    for register in (tensor_hooks, replacing_hooks):
        under_test = aotgrad.aot_function(function, halves)
        assert_matches(traced(under_test, register, before=True), traced(function, register, before=True), halves)


@every_function
def test_hooks_registered_after_compiling(halves, function):
    def nothing(seen: Trace, tensors: dict[str, Tensor]) -> None:
        pass

    under_test = aotgrad.aot_function(function, halves)
    traced(under_test, nothing)
    assert_matches(traced(under_test, replacing_hooks), traced(function, replacing_hooks), halves)


@pytest.mark.parametrize("pieces", [lambda z: z.unbind(), lambda z: z.split(1), lambda z: [p.t() for p in z.chunk(3)]])
def test_hooks_of_several_pieces(halves, pieces: Callable):
    """They are results of one autograd node: their hooks run together, in the order of the pieces."""

    def function(x, w):
        one, other, *_ = pieces(x * w)
        return other.sin(), one * other, other, one

    def run(function: Callable) -> list[Any]:
        seen: list[Any] = []
        x, w = leaves()
        outputs = function(x, w)
        for k, output in enumerate(outputs):
            output.register_hook(lambda gradient, k=k: seen.append((k, gradient)))
        sum(output.sum() for output in outputs).backward()
        return [[k for k, _ in seen], *(gradient for _, gradient in seen), x.grad, w.grad]

    actual, expected = run(aotgrad.aot_function(function, halves)), run(function)
    assert_matches(actual, expected, halves)


def test_a_hook_of_a_returned_intermediate_sees_the_whole_gradient(halves):
    def function(x):
        z = x * 2
        return z.sin(), z

    def hooked(function: Callable) -> list[Tensor]:
        seen: list[Tensor] = []
        x, _ = leaves()
        d, z = function(x)
        z.register_hook(lambda gradient: seen.append(gradient.clone()))
        (d.sum() + (z**2).sum()).backward()
        return [*seen, x.grad]

    assert_matches(hooked(aotgrad.aot_function(function, halves)), hooked(function), halves)


def several_products(x, y, z):
    return x * y * z, (y * x).sin() * z, torch.addmm(z, y, x)


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("segments", [1, 3])
def test_the_order_of_the_hooks_of_leaves_across_segments(halves, used: tuple[int, ...], segments: int):
    def run(function: Callable) -> list[str]:
        seen: list[str] = []
        inputs = dict(zip("xyz", (torch.rand(3, 3, requires_grad=True) for _ in range(3)), strict=True))
        for name, leaf in inputs.items():
            leaf.register_hook(lambda gradient, name=name: seen.append(name))
        outputs = function(*inputs.values())
        torch.autograd.backward([outputs[k].sum() for k in used])
        return seen

    under_test = aotgrad.aot_function(several_products, halves, options={"grad_segments": segments})
    assert run(under_test) == run(several_products)


# --- Hooks that the function registers itself ------------------------------------------------------------------------


def hooks_its_input(x, w):
    x.register_hook(lambda gradient: gradient * 2)
    return x.sin(), (x * w).sum(0), w * 3


def hooks_its_input_and_frees_it(x, w):
    x.register_hook(lambda gradient: gradient * 2).remove()
    return x.sin(), x * w


def keeps_the_gradient_of_its_input(x, w):
    x.retain_grad()
    return x.sin(), x * w


def keeps_the_gradient_of_its_result(x, w):
    z = x * w
    z.retain_grad()
    return z.sin(), z, z.view(-1)


def hooks_a_result(x, w):
    z = x * w
    z.register_hook(lambda gradient: gradient * 3)
    return z.sin(), z, x.cos()


def hooks_a_view_of_its_input(x, w):
    view = x.view(-1)
    view.register_hook(lambda gradient: gradient * 3)
    return view, view.sin() * w.view(-1), x.cos()


def hooks_views_of_a_result(x, w):
    z = x * w
    one, other = z.view(-1), z.unsqueeze(0)
    one.register_hook(lambda gradient: gradient * 3)
    other.register_hook(lambda gradient: gradient + 1)
    other.retain_grad()
    return one * other.reshape(-1), one, other, z


def hooks_a_view_before_and_after_a_change(x, w):
    z = x * w
    view = z.view(-1)
    view.register_hook(lambda gradient: gradient * 3)
    before = view * 2
    z.add_(1)
    view.register_hook(lambda gradient: gradient * 5)
    return before + view.sin(), view


HOOKING = [
    hooks_a_view_of_its_input,
    hooks_views_of_a_result,
    hooks_a_view_before_and_after_a_change,
    hooks_a_result,
    hooks_its_input,
    hooks_its_input_and_frees_it,
    keeps_the_gradient_of_its_input,
    keeps_the_gradient_of_its_result,
]


@pytest.mark.parametrize("function", HOOKING, ids=lambda function: function.__name__)
@pytest.mark.parametrize("used", [0, 1, None])
@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("leaf", [False, True])
def test_hooks_registered_inside(halves, function, used: int | None, calls: int, leaf: bool):
    """At every call, they also see gradients from outside the function, after the hooks registered earlier."""

    def run(function: Callable) -> list[Any]:
        seen: Trace = []
        origins = leaves()
        inputs = origins if leaf else [origin * 1 for origin in origins]
        tensor_hooks(seen, dict(zip("xw", inputs, strict=True)))
        for _ in range(calls):
            outputs = function(*inputs)
        terms = [output.sum() for output in (outputs if used is None else [outputs[used]])]
        (sum(terms) + inputs[0].sum()).backward()
        kept = [tensor.grad for tensor in (*inputs, *outputs) if tensor.retains_grad]
        return [sorted((name, gradient.sum().item()) for name, gradient in seen), *kept, *(t.grad for t in origins)]

    under_test = aotgrad.aot_function(function, halves)
    actual, expected = run(under_test), run(function)
    assert_matches(actual, expected, halves)


def test_a_hook_that_runs_after_accumulation_is_registered_at_every_call(halves):
    def run(compile_function: Callable) -> list[float]:
        seen: list[float] = []

        def function(x, w):
            w.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.sum().item()))
            return x * w

        under_test, (x, w) = compile_function(function), leaves()
        for _ in range(2):
            under_test(x, w).sum().backward()
        return seen

    actual = run(lambda function: aotgrad.aot_function(function, halves))
    assert actual == run(lambda function: function) and len(actual) == 3


def scales_by_its_own_tensor(x, w):
    scale = w * 2
    x.register_hook(lambda gradient: gradient * scale)
    return x * w


def waits_for_both(x, w):
    torch.autograd.graph.register_multi_grad_hook((x, w), lambda gradients: None)
    return x * w


def changes_what_it_hooked(x, w):
    x.register_hook(lambda gradient: gradient * 2)
    x.mul_(2)
    return x * w


REFUSED = {
    changes_what_it_hooked: "changes in place",
    scales_by_its_own_tensor: "uses a tensor of the function",
    waits_for_both: "uses a tensor of the function",
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
def test_hooks_that_only_a_trace_could_run_are_a_clear_error(halves, function):
    x, w = leaves()
    with pytest.raises(aotgrad.errors.CaptureError, match=REFUSED[function]):
        aotgrad.aot_function(function, halves)(x * 1, w)


@pytest.mark.parametrize("order", ["second", "forward"])
def test_hooks_registered_inside_at_higher_order_and_in_forward_mode(halves, order: str):
    def run(function: Callable) -> list[Any]:
        x, w = leaves()
        if order == "forward":
            with forward_ad.dual_level():
                return list(forward_ad.unpack_dual(function(forward_ad.make_dual(x, w.detach()), w)[1]))
        (first,) = torch.autograd.grad(function(x, w)[0].sum(), x, create_graph=True)
        return [first, *torch.autograd.grad(first.sum(), x)]

    assert_matches(run(aotgrad.aot_function(hooks_its_input, halves)), run(hooks_its_input), halves)


def test_hooks_of_modules_and_parameters(halves):
    def run(compile_model: Callable) -> Trace:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        seen: Trace = []
        for name, parameter in model.named_parameters():
            parameter.register_hook(lambda gradient, name=name: seen.append((name, gradient.clone())))
            parameter.register_hook(lambda gradient: gradient / 2)
            parameter.register_post_accumulate_grad_hook(lambda p, name=name: seen.append((f"{name} done", p.grad.clone())))
        step = compile_model(model)
        for _ in range(2):
            step(torch.ones(2, 4)).sum().backward()
        return seen

    def by_name(seen: Trace) -> Trace:
        return sorted(seen, key=lambda entry: entry[0])

    found = run(lambda model: aotgrad.aot_module(model, halves))
    expected = run(lambda model: model)
    assert_matches(by_name(found), by_name(expected), halves)
    names = [name for name, _ in found]
    for name in {name for name in names if not name.endswith("done")}:
        assert names.index(name) < names.index(f"{name} done")


def test_the_order_of_the_hooks_of_many_leaves(halves):
    def chain(x, *weights):
        for weight in weights:
            x = (x @ weight).tanh()
        return x

    def order(function: Callable) -> list[int]:
        seen: list[int] = []
        weights = [torch.eye(2, requires_grad=True) for _ in range(9)]
        for k, weight in enumerate(weights):
            weight.register_hook(lambda _, k=k: seen.append(k))
        function(torch.ones(2, 2), *weights).sum().backward()
        return seen

    assert order(aotgrad.aot_function(chain, halves)) == order(chain) == list(range(8, -1, -1))


def packed_and_unpacked(function: Callable) -> list[Tensor]:
    """Gradients with saved values in half the precision."""

    def pack(tensor: Tensor) -> Tensor:
        return tensor.to(torch.float32)

    def unpack(tensor: Tensor) -> Tensor:
        return tensor.to(torch.float64)

    x, w = leaves()
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        outputs = function(x, w)
    sum(output.sum() for output in outputs).backward()
    return [x.grad, w.grad]


def test_saved_tensor_hooks_may_change_what_is_saved(halves):
    def function(x, w):
        return ((x @ w),)

    assert_matches(packed_and_unpacked(aotgrad.aot_function(function, halves)), packed_and_unpacked(function), halves)


def quantized(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """A tensor in eight bits, and the step between two numbers."""
    step = tensor.detach().abs().max() / 127
    return (tensor.detach() / step).round().to(torch.int8), step


@pytest.mark.parametrize("backend", ALL)
def test_saved_tensors_in_eight_bits(backend: str):
    def gradients(function: Callable) -> list[Tensor]:
        x, w = leaves()
        hooks = torch.autograd.graph.saved_tensors_hooks(quantized, lambda packed: packed[0].double() * packed[1])
        with hooks:
            y = function(x, w)
        y.sum().backward()
        return [x.grad, w.grad]

    def function(x, w):
        return x @ w + w @ x

    found, expected = gradients(compiled(function, backend)), gradients(function)
    x, w = leaves()
    assert not torch.equal(expected[0], torch.autograd.grad(function(x, w).sum(), x)[0])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_saved_tensors_on_the_cpu(halves):
    def gradients(function: Callable) -> list[Tensor]:
        x, w = leaves()
        with torch.autograd.graph.save_on_cpu():
            y = function(x, w)
        y.sum().backward()
        return [x.grad, w.grad]

    def function(x, w):
        return (x @ w).exp() * x

    assert_matches(gradients(aotgrad.aot_function(function, halves)), gradients(function), halves)


def test_saved_tensors_on_disk(halves, tmp_path):
    def pack(tensor: Tensor) -> str:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.pt"
        torch.save(tensor.detach(), path)
        return str(path)

    def gradients(function: Callable) -> list[Tensor]:
        x, w = leaves()
        with torch.autograd.graph.saved_tensors_hooks(pack, torch.load):
            outputs = function(x, w)
        sum(output.sum() for output in outputs).backward()
        return [x.grad, w.grad]

    found = gradients(aotgrad.aot_function(trunk_and_heads, halves))
    assert list(tmp_path.iterdir())
    assert_matches(found, gradients(trunk_and_heads), halves)


def reads_a_written_buffer(x: Tensor, buffer: Tensor) -> Tensor:
    buffer.add_(1)
    return (buffer * x.sin()).sum()


def reads_written_slices(x: Tensor, one: Tensor, other: Tensor) -> Tensor:
    one.add_(1)
    other.mul_(3)
    return (one * x.sin() + other * x.cos()).sum()


def whole(buffer: Tensor) -> tuple[Tensor, ...]:
    return (buffer,)


def in_slices(buffer: Tensor) -> tuple[Tensor, ...]:
    return (buffer[:1], buffer[1:])


@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize(("function", "parts"), [(reads_a_written_buffer, whole), (reads_written_slices, in_slices)])
def test_saved_tensor_hooks_that_copy_see_what_is_written(function: Callable, parts: Callable, backend: str):
    def gradient(function: Callable) -> Tensor:
        x, _ = leaves()
        with torch.autograd.graph.saved_tensors_hooks(Tensor.clone, Tensor.clone):
            loss = function(x, *parts(torch.ones(2, 1, 1, dtype=torch.double)))
        loss.backward()
        return x.grad

    torch.testing.assert_close(gradient(compiled(function, backend)), gradient(function))
