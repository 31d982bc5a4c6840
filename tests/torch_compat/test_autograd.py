"""Feature tests of `aotgrad/torch_compat/autograd.py`."""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from aotgrad import torch_compat as compat


def test_hidden_saved_tensor_hooks_come_back_in_order():
    seen = []

    def packs(name):
        return torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(name) or t, lambda t: t)

    x = torch.ones(1, requires_grad=True)
    with packs("outer"), packs("inner"):
        with compat.hidden_saved_tensor_hooks():
            x.sin()
        assert seen == []
        x.sin()
    assert seen == ["inner"]


def test_the_hooks_of_all_modules():
    tables = compat.global_module_hooks()
    assert [dict(table) for table in tables] == [{}] * 4
    handle = nn.modules.module.register_module_forward_hook(print)
    assert list(tables[0].values()) == [print]
    handle.remove()


class OnlyAccumulated(torch.autograd.Function):
    """Appends to `answers` what is said of the nodes of its two inputs."""

    @staticmethod
    def forward(ctx, x, y, answers):
        ctx.answers = answers
        return x + y

    @staticmethod
    def backward(ctx, gradient):
        ctx.answers.append(tuple(compat.is_only_accumulated(node) for node, _ in ctx.next_functions))
        return gradient, gradient, None


def test_a_gradient_is_only_accumulated():
    answers = []
    x, y = (torch.ones(2, requires_grad=True) for _ in range(2))

    def run():
        return OnlyAccumulated.apply(x, y, answers).sum()

    run().backward()
    run().backward(inputs=[x])
    torch.autograd.grad(run(), [x, y])
    OnlyAccumulated.apply(x, y * 2, answers).sum().backward()
    hooks = [y.register_hook(lambda gradient: None)]
    run().backward()
    hooks.append(x.register_post_accumulate_grad_hook(lambda leaf: None))
    run().backward()
    for hook in hooks:
        hook.remove()
    node, _ = compat.gradient_edge(x)
    node.register_hook(lambda *gradients: None)
    run().backward()
    expected = [(True, True), (True, False), (False, False), (True, False), (True, False), (False, False), (False, True)]
    assert answers == expected


@pytest.mark.parametrize(
    ("wanted", "expected"), [("all", True), ("one", False), ("both by grad", None), ("through an op", True)]
)
def test_engine_executes_all_edges_of_a_node(wanted, expected):
    answers = []

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * y

        @staticmethod
        def backward(ctx, gradient):
            answers.append(compat.engine_executes_all_edges())
            return gradient, gradient

    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    if wanted == "all":
        Product.apply(x, y).sum().backward()
    elif wanted == "one":
        Product.apply(x, y).sum().backward(inputs=[x])
    elif wanted == "both by grad":
        torch.autograd.grad(Product.apply(x, y).sum(), (x, y))
    else:
        torch.autograd.grad(Product.apply(x * 2, y * 2).sum(), (x, y))
    assert answers == [expected]


def test_set_defaults_are_attributes_of_every_ctx():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.factor

    compat.set_defaults(Double, factor=2)
    x = torch.ones(2, requires_grad=True)
    y, z = Double.apply(x), Double.apply(x)
    y.grad_fn.factor = 5
    assert [torch.autograd.grad(each.sum(), x)[0][0].item() for each in (y, z)] == [5, 2]


def test_sequence_numbers_tell_which_op_made_a_node():
    x = torch.ones(1, requires_grad=True)
    expected = compat.sequence_nr()
    first = x.sin()
    assert compat.node_sequence_nr(first.grad_fn) == expected
    assert compat.sequence_nr() == expected + 1


class Watching(torch.autograd.Function):
    """Records the engine's answers while its backward runs."""

    seen: dict

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x)
        return x * y

    @staticmethod
    def backward(ctx, grad):
        edges = compat.edges_of_running_node()
        assert compat.next_nodes(compat.running_node()) == edges
        assert compat.sequence_nr_of_running_node() == compat.node_sequence_nr(ctx)
        saved = ctx.saved_tensors
        compat.release_saved_tensors(ctx)
        Watching.seen = {
            "wanted": [compat.is_wanted(edge) for edge in edges],
            "retained": compat.graph_is_retained(),
            "saved": len(saved),
        }
        return grad, grad


class Saving(torch.autograd.Function):
    """Saves its two inputs, and records them one by one in the backward."""

    found: ClassVar[list] = []

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, grad):
        for position in range(2):
            hook = compat.unpack_hooks(ctx, [position])[0]
            Saving.found.append(None if hook is None else hook())
            try:
                Saving.found += compat.some_saved_tensors(ctx, [position])
            except RuntimeError as error:
                Saving.found.append(str(error))
        return grad, grad


class SavesItsOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0]


def test_an_output_of_the_node_is_unpacked():
    result = SavesItsOutput.apply(torch.zeros(2, requires_grad=True))
    (saved,) = compat.some_saved_tensors(result.grad_fn, [0])
    assert torch.equal(saved, result)


def test_saved_tensors_are_unpacked_together_if_all_are_as_they_were():
    x, y = torch.ones(1, requires_grad=True), torch.ones(1)
    node = Saving.apply(x, y).grad_fn
    first, second = compat.saved_tensors_without_hooks(node)
    assert first is x and torch.equal(second, y)
    with torch.autograd.graph.save_on_cpu():
        assert compat.saved_tensors_without_hooks(Saving.apply(x, y).grad_fn) is None
    y.add_(1)
    assert compat.saved_tensors_without_hooks(node) is None
    freed = Saving.apply(x, y)
    freed.backward()
    assert compat.saved_tensors_without_hooks(freed.grad_fn) is None


def test_saved_tensors_are_unpacked_one_by_one():
    x, y = torch.ones(1, requires_grad=True), torch.ones(1)
    result = Saving.apply(x, y)
    y.add_(1)
    Saving.found.clear()
    result.backward()
    assert Saving.found[0] is Saving.found[2] is None
    assert "modified by an inplace operation" in Saving.found[3]
    assert (Saving.found[1] is x) == compat.UNPACKS_ONE
    assert compat.UNPACKS_ONE or "modified by an inplace operation" in Saving.found[1]


def test_a_saved_tensor_shows_its_unpack_hook():
    x, y = torch.ones(1, requires_grad=True), torch.ones(1)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor + 1, lambda tensor: tensor * 10):
        result = Saving.apply(x, y)
    Saving.found.clear()
    result.backward()
    assert Saving.found == [20, 20, 20, 20]


def test_the_engine_says_which_gradients_it_wants():
    x, y = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    torch.autograd.grad(Watching.apply(x, y), x)
    assert Watching.seen["wanted"] == [True, False]
    Watching.apply(x.sin(), y).backward()
    assert Watching.seen["wanted"] == [True, True]
    Watching.apply(x, torch.ones(1)).backward()
    assert Watching.seen["wanted"] == [True, False]


class AskingForMany(torch.autograd.Function):
    answers: ClassVar[tuple] = ()

    @staticmethod
    def forward(ctx, *inputs):
        return inputs[0].clone()

    @staticmethod
    def backward(ctx, grad):
        edges = compat.edges_of_running_node()
        assert compat.leaves_wanted(edges[:8]) == [compat.is_wanted(edge) for edge in edges[:8]]
        AskingForMany.answers = (compat.are_wanted(edges), tuple(map(compat.is_wanted, edges)))
        return (grad,) * len(edges)


@pytest.mark.parametrize("leaves", [8, compat.PROBES_PER_EXCEPTION + 6])
@pytest.mark.parametrize("wanted", [[], [0], [-3], [0, 3, 4, -2], [1, 2, 6], "all"])
def test_the_engine_says_the_same_for_many_leaves_at_once(wanted, leaves):
    inputs = [torch.ones(2, requires_grad=True) for _ in range(leaves)]
    inputs += [torch.ones(2, requires_grad=True).sin(), torch.ones(2, requires_grad=True).cos(), torch.ones(2)]
    y = AskingForMany.apply(*inputs)
    chosen = inputs[:-1] if wanted == "all" else [inputs[k] for k in wanted]
    if chosen:
        torch.autograd.grad(y.sum(), chosen, allow_unused=True)
        expected = tuple(any(one is other for other in chosen) for one in inputs)
    else:
        y.sum().backward()
        expected = (True,) * (leaves + 2) + (False,)
    assert AskingForMany.answers == (expected, expected)


def test_the_engine_says_which_gradients_of_sparse_leaves_it_wants():
    inputs = [torch.ones(2, requires_grad=True), *(torch.eye(2).to_sparse().requires_grad_() for _ in range(3))]

    class Asking(AskingForMany):
        @staticmethod
        def backward(ctx, grad):
            Asking.answers = compat.are_wanted(compat.edges_of_running_node())
            return (grad, None, None, None)

    torch.autograd.grad(Asking.apply(*inputs).sum(), inputs[:2], allow_unused=True)
    assert Asking.answers == (True, True, False, False)


def test_a_custom_node_is_made_without_a_look_at_transforms():
    x, y = torch.ones(1, requires_grad=True), torch.ones(1)
    result = compat.plain_apply(Saving)(x, y)
    assert result.grad_fn.name() == Saving.apply(x, y).grad_fn.name()


def test_the_class_of_nodes_makes_a_node():
    node = compat.node_class(Saving)()
    result = Saving.apply(torch.ones(1, requires_grad=True), torch.ones(1))
    assert type(result.grad_fn) is type(node)
    assert compat.makes_node(Saving) or torch.__version__ < "2.13"
    if compat.makes_node(Saving):
        assert node.next_functions == () and node.name() == result.grad_fn.name()


def test_where_a_gradient_arrives():
    x = torch.ones(2, requires_grad=True)
    first, second = x.unbind()
    assert compat.gradient_edge(second) == (first.grad_fn, 1)
    with torch.no_grad():
        view = x[None]
    assert view.requires_grad and compat.gradient_edge_if_any(view) is None
    assert compat.gradient_edge_if_any(x) == compat.gradient_edge(x)
    assert compat.gradient_edge_if_any(x.detach()) is None


def test_nodes_that_save_a_value_run_once():
    x = torch.ones(2, requires_grad=True)
    for saving in (x.exp(), x * 2, x[torch.tensor([0])], torch.where(x > 0, x, 0.0)):
        assert compat.saves_a_value(saving.grad_fn)
        saving.sum().backward()
        assert compat.saves_a_value(saving.grad_fn)
        with pytest.raises(RuntimeError, match="a second time"):
            saving.sum().backward()
    for free in (x + 2, x.cumsum(0), torch.cat([x, x]), x.mean(), Watching.apply(x, x)):
        assert not compat.saves_a_value(free.grad_fn)
    for saving in (x.exp(), x.prod(0), torch.where(x > 0, x, 0.0)):
        assert compat.saves_a_tensor(saving.grad_fn)
    for free in (x + 2, x * 2, x.cumsum(0), torch.cat([x, x])):
        assert not compat.saves_a_tensor(free.grad_fn)
    with pytest.raises(RuntimeError, match="a second time"):
        compat.raise_second_backward()
    (saved,) = compat.saved_tensors(x.exp().grad_fn)
    assert compat.has_storage(saved) and not compat.has_storage(torch.ones(2).to_sparse())
    assert compat.saved_tensors(torch.cat([x, x]).grad_fn) == []


def test_a_node_whose_saved_value_was_overwritten_is_seen_and_passed_over():
    x, w = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    y = x.exp()
    node = y.grad_fn
    assert compat.error_of_saved(node) is None
    y.add_(1)
    assert "modified by an inplace operation" in compat.error_of_saved(node)
    compat.disable_node(node)
    first, second = torch.autograd.grad((y + w).sum(), [x, w], allow_unused=True)
    assert first is None
    assert second.tolist() == [1, 1]
    product = torch.ones(2) * x  # saves one of its factors only
    compat.disable_node(product.grad_fn)
    assert torch.autograd.grad(product.sum(), x, allow_unused=True) == (None,)


def test_a_write_to_a_view_that_overwrote_its_own_value_is_passed_over():
    x = torch.ones(2, requires_grad=True)
    y = x.clone()
    view = y[1:]
    view.mul_(view)
    assert type(y.grad_fn).__name__ == "CopySlices"
    assert compat.error_of_saved(y.grad_fn) is None
    compat.disable_node(y.grad_fn)
    assert torch.autograd.grad(y.sum(), x, allow_unused=True) == (None,)


def test_hooks_of_a_tensor_are_seen_and_removed():
    seen = []
    leaf = torch.ones(2, requires_grad=True)
    for tensor in (leaf, leaf * 1):
        assert compat.pop_hooks(tensor) == [] == compat.pop_post_accumulate_hooks(tensor)
        tensor.register_hook(seen.append)
        assert compat.pop_hooks(tensor) == [seen.append]
        tensor.sum().backward()
    leaf.register_post_accumulate_grad_hook(seen.append)
    assert compat.pop_post_accumulate_hooks(leaf) == [seen.append]
    leaf.sum().backward()
    assert seen == []


def test_hooks_are_installed_after_an_exchange():
    leaf, other, seen = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True), []
    assert compat.hooks_of_leaf(leaf) == (None, None) == compat.hooks_of_leaf(leaf * 1)
    leaf.register_hook(lambda gradient: seen.append("before"))
    leaf.register_post_accumulate_grad_hook(lambda tensor: seen.append(tensor is leaf))
    compat.swap_tensors(leaf, other)
    assert [len(hooks) for hooks in compat.hooks_of_leaf(leaf)] == [1, 1]
    compat.install_hooks_of_leaf(leaf)
    leaf.sum().backward()
    assert seen == ["before", True]


def test_whether_a_gradient_is_awaited():
    leaf = torch.ones(2, requires_grad=True)
    leaf.register_hook(lambda gradient: gradient)
    assert not any(map(compat.is_awaited, (leaf, leaf * 1, torch.ones(2))))
    node = torch.autograd.graph.get_gradient_edge(leaf).node
    handle = node.register_hook(lambda *_: None)
    assert compat.is_awaited(leaf)
    handle.remove()
    assert not compat.is_awaited(leaf)
    handle = leaf.register_post_accumulate_grad_hook(lambda _: None)
    assert compat.is_awaited(leaf)
    handle.remove()
    assert not compat.is_awaited(leaf)


def test_a_hook_goes_where_the_first_one_is():
    base = torch.ones(2, requires_grad=True) * 1
    view = base.view(2, 1)
    assert not compat.was_hooked(view)
    seen: list[torch.Tensor] = []
    view.register_hook(seen.append)
    base.mul_(2)
    goes_there = compat.was_hooked(view)
    view.register_hook(seen.append)
    view.sum().backward()
    assert goes_there == (seen == [])


def test_hooks_of_a_tensor():
    plain, hooked, retained = (torch.ones(2, requires_grad=True).sin() for _ in range(3))
    handle = hooked.register_hook(id)
    retained.retain_grad()
    assert list(map(compat.is_hooked, (plain, hooked, retained))) == [False, True, True]
    handle.remove()
    assert not compat.is_hooked(hooked) and compat.running_node() is None


def test_a_hook_of_a_leaf_goes_where_the_first_one_is():
    leaf = torch.ones(2, requires_grad=True)
    leaf.register_hook(id)
    with torch.no_grad():
        leaf.mul_(2)
    assert compat.was_hooked(leaf)


def test_the_engine_says_whether_the_graph_is_retained():
    x = torch.ones(1, requires_grad=True)
    z = Watching.apply(x, x)
    z.backward(retain_graph=True)
    assert Watching.seen["retained"]
    z.backward()
    assert not Watching.seen["retained"]


def test_released_tensors_are_gone_only_if_the_graph_is_not_retained():
    x = torch.ones(1, requires_grad=True)
    z = Watching.apply(x, x)
    z.backward(retain_graph=True)
    z.backward()
    assert Watching.seen["saved"] == 1
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        z.backward()


class TakesContext(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class SetsContextUp(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def test_functions_that_transforms_refuse(monkeypatch):
    x = torch.ones(2, requires_grad=True)
    for function, is_refused in ((TakesContext, True), (SetsContextUp, False)):
        node = function.apply(x).grad_fn
        assert compat.is_refused_by_transforms(node) is is_refused and compat.is_users_node(node)
        monkeypatch.setattr(function, "is_of_trace", True, raising=False)
        assert compat.is_custom_node(node) and not compat.is_users_node(node)
        with pytest.raises(RuntimeError, match="setup_context") if is_refused else contextlib.nullcontext():
            torch.func.grad(lambda x, function=function: function.apply(x).sum())(x)
    assert not compat.is_refused_by_transforms((x * 2).grad_fn)


def test_nodes_of_autograd_functions():
    x = torch.ones(2, requires_grad=True)
    own, other = SetsContextUp.apply(x).grad_fn, (x * 2).grad_fn
    assert [compat.is_custom_node(node) for node in (own, other)] == [True, False]
    assert [compat.is_node_of(node, SetsContextUp) for node in (own, other, None)] == [True, False, False]


def test_an_edge_keeps_the_graph_and_not_the_tensor():
    x = torch.ones(2, requires_grad=True)
    result = x * 2
    edge, alive = compat.edge_of(result), weakref.ref(result)
    del result
    assert alive() is None and compat.edge_of(torch.ones(2)) is None
    assert torch.equal(torch.autograd.grad([edge], x, [torch.ones(2)])[0], 2 * torch.ones(2))


class Keeping(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, kept):
        ctx.kept = kept
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x * ctx.kept, None


def test_what_a_custom_function_has_saved_and_kept():
    x, kept = torch.ones(2, requires_grad=True), torch.ones(2)
    result = Keeping.apply(x, kept)
    node = result.grad_fn
    assert [value.data_ptr() == x.data_ptr() for value in compat.saved_by_function(node)] == [True]
    assert [value is kept for value in compat.kept_by_function(node)] == [True]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_what_dynamo_makes_of_a_custom_function_tells_the_same():
    found = []

    def backend(module, _):
        def run(*args):
            results = module(*args)
            node = results[0].grad_fn
            found.append([len(compat.saved_by_function(node)), len(compat.kept_by_function(node))])
            return results

        return run

    torch._dynamo.reset()
    compiled = torch.compile(lambda x, kept: Keeping.apply(x, kept), backend=backend, fullgraph=True)
    compiled(torch.ones(2, requires_grad=True), torch.ones(2))
    assert found == [[1, 1]]


def test_saved_tensor_hooks_are_seen():
    assert not compat.has_saved_tensor_hooks()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        assert compat.has_saved_tensor_hooks()


def test_what_is_a_parameter():
    assert compat.is_parameter(torch.nn.Parameter(torch.ones(1))) and not compat.is_parameter(torch.ones(1))


def test_hooks_of_a_node_are_wrapped():
    seen, x = [], torch.ones(2, requires_grad=True)
    y = x.exp()
    assert not compat.wrap_node_hooks(y.grad_fn, None)
    y.grad_fn.register_prehook(lambda gradients: seen.append("before"))
    removed = y.grad_fn.register_hook(lambda gradients, arrived: seen.append("after"))

    def wrap(hook):
        return lambda *gradients: seen.append("wrapped") or hook(*gradients)

    assert compat.wrap_node_hooks(y.grad_fn, wrap)
    y.sum().backward(retain_graph=True)
    assert seen == ["wrapped", "before", "wrapped", "after"]
    removed.remove()
    y.sum().backward()
    assert seen[4:] == ["wrapped", "before"]


def test_a_mode_sees_who_asks_for_a_history():
    class Asked(TorchFunctionMode):
        found = False

        def __torch_function__(self, function, types, args=(), kwargs=None):
            self.found |= function == compat.GRAD_FN
            return function(*args, **(kwargs or {}))

    x = torch.ones(2, requires_grad=True)
    for ask in (lambda: x.exp().grad_fn, lambda: torch.autograd.graph.get_gradient_edge(x)):
        with Asked() as mode:
            x.exp()
            assert not mode.found
            ask()
        assert mode.found


def test_no_node_runs_outside_of_a_backward():
    assert compat.sequence_nr_of_running_node() is None


def test_backwards_are_reported_with_the_gradients_they_start_from():
    given: list[Any] = []

    @contextlib.contextmanager
    def around(outputs, gradients):
        given.append(tuple(gradients))
        assert all(output.grad_fn is not None for output in outputs)
        yield
        given.append("end")

    x, start = torch.ones(2, requires_grad=True), torch.full((2,), 3.0)
    y = x.sin().sum()
    with compat.report_backwards(around):
        (x * 2).backward(start)
        torch.autograd.grad(y, x)
        thread = threading.Thread(target=lambda: x.sin().sum().backward())
        thread.start()
        thread.join()
    y.backward()  # nothing was freed
    (first,), end, (one,), again = given
    assert first is start and torch.equal(one, torch.ones(())) and end == again == "end"


def test_saved_by_node():
    class Saves(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x, None)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    x = torch.ones(2, requires_grad=True)
    assert [value is x for value in compat.saved_by_node(Saves.apply(x).grad_fn)] == [True]
    result = x.exp()
    (saved,) = compat.saved_by_node(result.grad_fn)
    assert compat.storage_id(saved) == compat.storage_id(result)


def test_nodes_that_hide_what_they_save():
    x = torch.ones(2, requires_grad=True)
    changed = x.clone()
    changed[0] = 2
    assert compat.hides_saved_tensors(changed.grad_fn)
    assert compat.hides_saved_tensors(SavesItsOutput.apply(x).grad_fn)
    assert not compat.hides_saved_tensors(TakesContext.apply(x).grad_fn)
    assert not compat.hides_saved_tensors(x.exp().grad_fn)
