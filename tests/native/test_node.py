"""The C++ functions around autograd nodes: a node is filled as torch fills it, and its method runs a graph."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from aotgrad import torch_compat
from aotgrad.runtime.native_node import nodes_fit

pytestmark = pytest.mark.skipif(not nodes_fit(), reason="this torch makes nodes in another way than C++ expects")

LEADING = 5


class Scaled(torch.autograd.Function):
    """Hands out values that are there already, with the arguments of a segment; each gradient is the tangent times one."""

    @staticmethod
    def forward(ctx, backward, outputs, saved, recomputation, details, *inputs):
        ctx.save_for_backward(*saved)
        ctx.recomputation = recomputation
        if details is not None:
            ctx.sizes, ctx.layouts, ctx.memory, ctx.watched = details
        return outputs

    @staticmethod
    def backward(ctx, *tangents):
        (factor,) = ctx.saved_tensors
        return (*(None,) * LEADING, *(tangents[0] * factor for _ in ctx.next_functions))


BACKWARD = object()
"""Stands for what the node runs."""

apply = torch_compat.plain_apply(Scaled)


class Nodes(torch_compat.node_class(Scaled)):
    """Those of one segment."""

    kept = None
    is_differentiated = False


@pytest.fixture(params=["torch", "c++"])
def attach(request, library):
    """Both ways to make a node."""
    return apply if request.param == "torch" else library.attaching(apply, LEADING, ((BACKWARD, Nodes, True),))


def arguments(*inputs, outputs=None, saved=None, details=None) -> tuple:
    return (BACKWARD, outputs or (torch.ones(2),), saved or (torch.full((2,), 3.0),), "rerun", details, *inputs)


def described(node) -> dict:
    """What users can see of a node."""
    metadata = [(each.shape, each.dtype, each.device) for each in node._input_metadata]
    return {
        "edges": [(type(edge).__name__, number) for edge, number in node.next_functions],
        "wants": node.needs_input_grad,
        "outputs": metadata,
        "saved": [each.tolist() for each in node.saved_tensors],
        "raw": len(node._raw_saved_tensors),
        "rerun": node.recomputation,
        "metadata": node.metadata,
        "function": node._forward_cls,
        "requires_grad": node.requires_grad,
    }


def inputs_of_every_kind() -> list[torch.Tensor]:
    leaf, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    return [leaf, other.exp(), (other * 2)[:], torch.nn.Parameter(torch.ones(2)), leaf]


def test_a_node_is_filled_as_torch_fills_it(library):
    attach = library.attaching(apply, LEADING, ((BACKWARD, Nodes, True),))
    inputs = inputs_of_every_kind()
    (ours,), (torchs,) = (make(*arguments(*inputs)) for make in (attach, apply))
    assert isinstance(ours.grad_fn, Nodes) and ours.grad_fn.name() == "Nodes"
    assert described(ours.grad_fn) == described(torchs.grad_fn)
    assert ours.grad_fn._sequence_nr() == torchs.grad_fn._sequence_nr() - 1
    assert ours.is_leaf is torchs.is_leaf is False and ours.requires_grad


def test_gradients_and_a_second_backward(attach):
    inputs = inputs_of_every_kind()
    (result,) = attach(*arguments(*inputs))
    gradients = torch.autograd.grad(result.sum(), inputs, retain_graph=True)
    assert [each.tolist() for each in gradients] == [[6, 6], [3, 3], [3, 3], [3, 3], [6, 6]]
    torch.autograd.grad(result.sum(), inputs[1])
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(result.sum(), inputs[1])


def test_undefined_tangents_become_zeros(attach):
    inputs = [torch.ones(2, requires_grad=True)]
    results = attach(*arguments(*inputs, outputs=(torch.ones(2), torch.ones(3))))
    assert torch.autograd.grad(results[1].sum(), inputs)[0].tolist() == [0, 0]


def test_details_are_attributes(attach):
    (result,) = attach(*arguments(torch.ones(2, requires_grad=True), details=((3,), None, (), ())))
    node = result.grad_fn
    assert (node.sizes, node.layouts, node.memory, node.watched) == ((3,), None, (), ())


@pytest.mark.parametrize(
    ("inputs", "outputs", "mode"),
    [
        ([torch.ones(2)], None, torch.enable_grad),
        ([torch.ones(2, requires_grad=True), torch.ones(2)], None, torch.enable_grad),
        ([torch.ones(2, requires_grad=True)], None, torch.no_grad),
        ([torch.ones(2, requires_grad=True)], (torch.ones(2, dtype=torch.int64),), torch.enable_grad),
        ([], None, torch.enable_grad),
    ],
    ids=["no input has a gradient", "some input has none", "grad mode is off", "integers", "no input"],
)
def test_what_is_unusual_is_left_to_torch(attach, inputs, outputs, mode):
    with mode():
        (result,) = attach(*arguments(*inputs, outputs=outputs))
    has_node = mode is torch.enable_grad and outputs is None and any(each.requires_grad for each in inputs)
    assert (result.grad_fn is not None) is has_node
    assert not isinstance(result.grad_fn, Nodes)


def test_an_input_that_is_returned_stays_a_leaf(attach):
    leaf = torch.ones(2, requires_grad=True)
    (result,) = attach(*arguments(leaf, outputs=(leaf,)))
    assert leaf.is_leaf and leaf.grad_fn is None and result is not leaf
    plain = torch.ones(2)
    (result,) = attach(*arguments(leaf, plain, outputs=(plain,)))
    assert plain.grad_fn is None and result is not plain


def test_a_view_that_is_returned_cannot_be_changed_in_place(attach):
    view = torch.ones(4)[:2]
    first, second = attach(*arguments(torch.ones(2, requires_grad=True), outputs=(view, torch.ones(2))))
    with pytest.raises(RuntimeError, match="multiple views"):
        first.add_(1)
    second.add_(1)


def test_a_node_that_saves_its_own_result_does_not_own_itself(attach):
    output = torch.full((2,), 3.0)
    (result,) = attach(*arguments(torch.ones(2, requires_grad=True), outputs=(output,), saved=(output,)))
    node = weakref.ref(result.grad_fn)
    assert result.grad_fn.saved_tensors[0].tolist() == [3, 3]
    del result, output
    assert node() is None


def test_wrong_arguments_are_errors(library):
    attach = library.attaching(apply, LEADING, ((BACKWARD, Nodes, True),))
    with pytest.raises(TypeError, match="expected 5 arguments or more"):
        attach(BACKWARD)
    with pytest.raises(TypeError, match="expected a tensor"):
        attach(*arguments(3))
    with pytest.raises(TypeError, match="expected a tensor, got str"):
        attach(*arguments(torch.ones(2, requires_grad=True), saved=("x",)))
    for bad in (3, ((BACKWARD, Nodes),), ((BACKWARD, 3, True),), ((BACKWARD, int, True),)):
        with pytest.raises(TypeError):
            library.attaching(apply, LEADING, bad)
    for bad in (
        (),
        (1, 2, 3),
        (apply, bool, {}, [(["x"], ["x"])], [0], 0, 1, 1, 5, False),
        (apply, bool, {}, [], [0], "0", 1, 1, 5, 0),
    ):
        with pytest.raises(TypeError):
            library.applying(*bad)
    assert apply(*arguments(torch.ones(2, requires_grad=True)))[0].requires_grad


# -- the method of a class of nodes


USUAL, DIFFERENTIABLE = bytes([1, 1, 0]), bytes([1, 1, 1])
"""The keys of backwards with the only tangent, and of which the only gradient is wanted, without a graph and with one."""


def method(library, graphs, kind=Nodes, layouts=(((2,), (1,)),), positions=(0,), sizes=0, tangents=1):
    """`attach` for a class of nodes whose backward runs `graphs`; of one, it is the usual backward."""
    graphs = {USUAL: (graphs, False, None, "everything", None)} if callable(graphs) else graphs
    settled = type("Settled", (kind,), {"ran": None})
    settled.apply = library.applying(
        kind.apply, lambda: None, graphs, layouts, positions, sizes, 1, tangents, LEADING, False
    )
    return library.attaching(apply, LEADING, ((BACKWARD, settled, False),))


def double(values):
    saved, tangent = values
    values.clear()
    return [saved * tangent * 2]


def test_a_graph_runs_below_autograd(library):
    attach, x = method(library, double), torch.ones(2, requires_grad=True)
    (result,) = attach(*arguments(x))
    assert torch.autograd.grad(result.sum(), x)[0].tolist() == [6, 6]
    assert result.grad_fn.ran == "everything" and result.grad_fn.recomputation is None
    (retained,) = attach(*arguments(x))
    for _ in range(2):
        assert torch.autograd.grad(retained.sum(), x, retain_graph=True)[0].tolist() == [6, 6]
    assert retained.grad_fn.ran is None and retained.grad_fn.recomputation == "rerun"


def test_a_graph_is_chosen_for_its_inputs(library):
    asked = []

    def choose(values, is_last):
        asked.append(([value.tolist() for value in values], is_last))
        return double

    x = torch.ones(2, requires_grad=True)
    (result,) = method(library, {USUAL: (choose, True, None, "everything", None)})(*arguments(x))
    for retained in (True, False):
        assert torch.autograd.grad(result.sum(), x, retain_graph=retained)[0].tolist() == [6, 6]
    assert asked == [([[3, 3], [1, 1]], False), ([[3, 3], [1, 1]], True)]


def test_each_choice_of_tangents_and_gradients_has_its_graph(library):
    """Positions among the inputs are those of a size, the saved tensor and two tangents."""

    def of(*positions):
        def run(values):
            seen.append([value if isinstance(value, int) else value.tolist() for value in values])
            return [values[-1] * 2, values[-1] * 5]

        return run, False, positions, "some", None

    seen, leaves = [], [torch.ones(2, requires_grad=True) for _ in range(2)]
    graphs = {bytes([1, 1, 1, 1, 0]): of(1, 2, 3), bytes([1, 0, 1, 0, 0]): of(0, 2), bytes([0, 1, 0, 1, 0]): of(1, 3)}
    attach = method(library, graphs, layouts=(((2,), (1,)),) * 2, positions=(0, 1), sizes=1, tangents=2)
    (first, second) = attach(*arguments(*leaves, outputs=(torch.ones(2), torch.ones(2)), details=((7,), None, (), ())))
    for results, inputs, expected in (
        ([first, second], leaves, [[2, 2], [5, 5]]),
        ([first], leaves[:1], [[2, 2]]),
        ([second], leaves[1:], [[5, 5]]),
    ):
        gradients = torch.autograd.grad([each.sum() for each in results], inputs, retain_graph=True)
        assert [each.tolist() for each in gradients] == expected
    assert seen == [[[3, 3], [1, 1], [1, 1]], [7, [1, 1]], [[3, 3], [1, 1]]]
    with pytest.raises(KeyError):
        torch.autograd.grad(second.sum(), leaves[:1], retain_graph=True)
    graphs[bytes([0, 1, 1, 0, 0])] = of(4)
    with pytest.raises(IndexError, match="there is no tangent"):
        torch.autograd.grad(second.sum(), leaves[:1])


def test_a_node_may_have_layouts_of_its_own(library):
    attach, x = method(library, double, layouts=()), torch.ones(2, requires_grad=True)
    (result,) = attach(*arguments(x, details=((), (((2,), (1,)),), (), ())))
    assert torch.autograd.grad(result.sum(), x)[0].tolist() == [6, 6]
    (result,) = attach(*arguments(x, details=((), (), (), ())))
    with pytest.raises(RuntimeError):
        torch.autograd.grad(result.sum(), x)


def test_python_runs_a_key_without_graph(library):
    x = torch.ones(2, requires_grad=True)
    (result,) = method(library, {USUAL: None, DIFFERENTIABLE: None})(*arguments(x))
    for creates_graph in (True, False):
        assert torch.autograd.grad(result.sum(), x, create_graph=creates_graph)[0].tolist() == [3, 3]


class Derivative:
    """A differentiable gradient, seven times the tangent, and what it was called with."""

    def __init__(self):
        self.calls = []

    def __call__(self, node, call, saved, tangents):
        assert torch.is_grad_enabled()
        self.calls.append((node, call, [each.tolist() for each in saved], [each.tolist() for each in tangents]))
        return (*(None,) * LEADING, tangents[0] * 7)


def test_a_derivative_gets_what_the_node_has_saved(library):
    x, derivative = torch.ones(2, requires_grad=True), Derivative()
    (result,) = method(library, {DIFFERENTIABLE: derivative, USUAL: None})(*arguments(x))
    tangent = torch.ones(2, requires_grad=True)
    for _ in range(2):
        (gradient,) = torch.autograd.grad(result, x, tangent, create_graph=True)
        assert torch.autograd.grad(gradient.sum(), tangent)[0].tolist() == [7, 7]
    with torch.autocast("cpu", torch.bfloat16):
        torch.autograd.grad(result, x, tangent, create_graph=True)
    assert derivative.calls == [(result.grad_fn, "rerun", [[3, 3]], [[1, 1]])] * 3
    assert torch.autograd.grad(result.sum(), x)[0].tolist() == [3, 3]


def packed(node):
    node._raw_saved_tensors[0].register_hooks(lambda value: value, lambda value: value)


def changed(node):
    node.saved_tensors[0].add_(1)


def freed(node):
    node.maybe_clear_saved_tensors()


@pytest.mark.parametrize(
    ("change", "error"), [(packed, None), (changed, "modified by an inplace"), (freed, "a second time"), (None, None)]
)
def test_python_runs_derivatives_of_nodes_that_miss_something(library, change, error):
    x, derivative = torch.ones(2, requires_grad=True), Derivative()
    (result,) = method(library, {DIFFERENTIABLE: derivative})(*arguments(x))
    if change is None:
        result.grad_fn.recomputation = None
    elif change is freed:  # while a backward runs, as a node frees what it has saved
        result.register_hook(lambda _: freed(result.grad_fn))
    else:
        change(result.grad_fn)
    how = {"create_graph": True, "retain_graph": change is not freed}
    if error is None:
        assert torch.autograd.grad(result.sum(), x, **how)[0].tolist() == [3, 3]
    else:
        with pytest.raises(RuntimeError, match=error):
            torch.autograd.grad(result.sum(), x, **how)
    assert not derivative.calls


def test_python_runs_what_a_derivative_was_made_of(library):
    """It decides what later calls keep for such losses."""
    x = torch.ones(2, requires_grad=True)
    (result,) = method(library, double)(*arguments(x))
    result.grad_fn.is_differentiated = True
    assert torch.autograd.grad(result.sum(), x)[0].tolist() == [3, 3]


def test_an_error_in_a_derivative_is_that_of_the_backward(library):
    def fail(*_):
        raise ZeroDivisionError("in the derivative")

    x = torch.ones(2, requires_grad=True)
    for derivative in (fail, lambda *_: 3, lambda *_: ()):
        (result,) = method(library, {DIFFERENTIABLE: derivative})(*arguments(x))
        with pytest.raises((ZeroDivisionError, TypeError, RuntimeError)):
            torch.autograd.grad(result.sum(), x, create_graph=True)


def test_python_frees_what_other_backwards_do_not_need(library):
    freed, x = [], torch.ones(2, requires_grad=True)
    (result,) = method(library, {USUAL: (double, False, None, "everything", freed.append)})(*arguments(x))
    torch.autograd.grad(result.sum(), x, retain_graph=True)
    assert not freed
    torch.autograd.grad(result.sum(), x)
    assert freed == [result.grad_fn] and result.grad_fn.ran is None and result.grad_fn.recomputation == "rerun"


def test_an_error_in_a_graph_is_that_of_the_backward(library):
    def fail(values):
        raise ZeroDivisionError("in the graph")

    x = torch.ones(2, requires_grad=True)
    for run in (fail, lambda values: 3, lambda values: []):
        (result,) = method(library, run)(*arguments(x))
        with pytest.raises((ZeroDivisionError, TypeError, IndexError)):
            result.sum().backward()
    saved = torch.full((2,), 3.0)
    (result,) = method(library, double)(*arguments(x, saved=(saved,)))
    saved.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()
    with pytest.raises(TypeError, match="expected an autograd node"):
        library.applying(apply, bool, {}, [], [], 0, 0, 0, 5, False).__func__(3)


def test_a_graph_that_knows_its_class_is_collected(library):
    """A backend may keep what it compiles for: Python finds such a cycle."""

    def run(values):
        return double(values)

    attach, x = method(library, run), torch.ones(2, requires_grad=True)
    run.attach = attach
    attach(*arguments(x))[0].sum().backward()
    dead = weakref.ref(run)
    del run, attach
    gc.collect()
    assert dead() is None


# -- which nodes a backward executes


def test_which_nodes_are_wanted_is_what_torch_says(library):
    leaves = [torch.ones(2, requires_grad=True) for _ in range(4)]
    middle = leaves[0] * 2
    (result,) = apply(*arguments(middle, *leaves[1:]))
    edges, answers = [edge for edge, _ in result.grad_fn.next_functions], []
    result.register_hook(lambda _: answers.append((library.are_wanted(edges), torch_compat.are_wanted(edges))))
    for inputs in (None, leaves, leaves[:1], leaves[1:3], [middle], [middle, leaves[2]]):
        result.sum().backward(inputs=inputs, retain_graph=True)
    torch.autograd.grad(result.sum(), leaves[1:2], retain_graph=True)
    assert all(ours == torchs for ours, torchs in answers) and len(answers) == 7
    result.register_hook(lambda _: answers.append(library.are_wanted([None])))
    result.register_hook(lambda _: library.are_wanted([3]))
    with pytest.raises(TypeError, match="expected an autograd node, got int"):
        result.sum().backward()
    assert answers[-1] == (False,)
    with pytest.raises(RuntimeError, match="no backward is running"):
        library.are_wanted(edges)
