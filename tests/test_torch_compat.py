"""What each private name of torch must mean: a test here fails if a new release of torch changes it."""

from __future__ import annotations

import ast
import collections
import contextlib
import json
import logging
import operator
import sys
import types
import weakref
from pathlib import Path
from typing import ClassVar

import pytest
import sympy
import torch
import torch.fx as fx
import torch.utils._pytree as pytree
from torch import nn
from torch._decomp import core_aten_decompositions
from torch._dynamo.utils import counters as inductor_counters
from torch._higher_order_ops.effects import _EffectType as EffectType
from torch._higher_order_ops.effects import _register_effectful_op
from torch._inductor.utils import fresh_cache
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from aotgrad import torch_compat as compat
from aotgrad.capture.recorder import Recorder
from aotgrad.errors import CaptureError

aten = torch.ops.aten


@pytest.fixture
def fake_mode():
    return compat.new_fake_mode()


def symbolic(fake_mode, *sizes: int) -> torch.Tensor:
    """A fake tensor all of whose sizes are symbolic."""
    return compat.dynamic_fake(fake_mode, torch.ones(sizes), dims=range(len(sizes)), index=0)


def test_every_name_has_a_feature_test():
    module = ast.parse(Path(compat.__file__).read_text())
    defined = {node.name for node in module.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    assigned = {node.targets[0].id for node in module.body if isinstance(node, ast.Assign)} - {"__all__"}
    wanted = {name for name in defined | assigned | set(compat.__all__) if not name.startswith("_")}
    used = {node.attr for node in ast.walk(ast.parse(Path(__file__).read_text())) if isinstance(node, ast.Attribute)}
    assert sorted(wanted - used) == []


# --- contexts --------------------------------------------------------------------------------------------------------


def test_running_below_autograd_nests_and_ends_with_an_error():
    x = torch.ones(2, requires_grad=True)

    def double(values):
        values.append(x * 2)
        return values

    def twice(values):
        compat.run_below_autograd(double, values)
        return double(values)

    assert [value.requires_grad for value in compat.run_below_autograd(twice, [])] == [False, False]
    with pytest.raises(ZeroDivisionError):
        compat.run_below_autograd(lambda _: 1 / 0, [])
    assert (x * 2).requires_grad


def test_versions_of_many_tensors():
    x, y = torch.ones(2), torch.ones(2)
    y.add_(1)
    assert compat.versions_of([x, y, x]) == [0, 1, 0]


def test_below_autograd_neither_tracks_gradients_nor_views_nor_versions():
    x = torch.ones(2, requires_grad=True)
    plain = torch.ones(2)
    with compat.below_autograd():
        product, view = x * 2, plain.view(1, 2)
        plain.add_(1)
    assert not product.requires_grad
    assert view._base is None
    assert plain._version == 0


def test_disable_autocast_holds_for_every_device():
    x = torch.ones(2, 2)
    with torch.autocast("cpu", torch.bfloat16), compat.disable_autocast():
        assert (x @ x).dtype == torch.float32
        assert not compat.any_autocast_enabled()


def test_any_autocast_enabled():
    assert not compat.any_autocast_enabled()
    with torch.autocast("cpu", torch.bfloat16):
        assert compat.any_autocast_enabled()


def test_disable_dynamo_runs_the_function_as_it_is():
    traced = []

    @compat.disable_dynamo
    def hidden(x):
        traced.append(torch.compiler.is_compiling())
        return x + 1

    assert torch.compile(lambda x: hidden(x) * 2, backend="eager")(torch.ones(1)).item() == 4
    assert traced == [False]


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


def test_random_state_of_repeats_what_was_drawn_and_leaves_the_generator_alone():
    state = compat.random_state(["cpu"])
    first = torch.rand(3)
    with compat.random_state_of(state):
        assert torch.equal(torch.rand(3), first)
    following = torch.rand(3)
    torch.set_rng_state(state["cpu"])
    torch.rand(3)
    assert torch.equal(torch.rand(3), following)


def test_random_state_of_nothing_changes_nothing():
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    with compat.random_state_of(None):
        assert torch.equal(torch.rand(2), expected)


def test_the_hooks_of_all_modules():
    tables = compat.global_module_hooks()
    assert [dict(table) for table in tables] == [{}] * 4
    handle = nn.modules.module.register_module_forward_hook(print)
    assert list(tables[0].values()) == [print]
    handle.remove()


@pytest.mark.parametrize("make", [dict, collections.OrderedDict])
def test_the_version_of_a_dictionary_changes_with_it(make):
    tables = [make(), make(), make(a=1)]
    for change in (lambda: tables[1].update(a=1), lambda: tables[1].update(a=2), lambda: tables[2].pop("a")):
        versions = compat.DictVersions(tables)
        assert [versions.hold(), versions.hold()] == [True, True]
        change()
        assert [versions.hold(), versions.hold()] == [False, False]
    assert compat.DictVersions([]).hold()


def test_the_questions_after_the_history_of_a_tensor():
    assert sorted(compat.HISTORY_GETTERS.values()) == ["._base", "._is_view()", "._version"]
    x = torch.ones(2)
    y = x[1:]
    answers = [[getter(tensor) for getter in compat.HISTORY_GETTERS] for tensor in (x, y)]
    assert answers == [[0, None, False], [0, x, True]]


def test_what_a_view_answers_as_its_base_would_have_to():
    x = torch.ones(4)[1:]
    y = x[1:]
    x.add_(1)
    offset, version, base = (getter(y) for getter in compat.INHERITED_GETTERS)
    assert (offset, version) == (2, 1) and base is x._base


def test_classes_of_tensors_with_rules_of_their_own():
    class Plain(torch.Tensor):
        pass

    class Own(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return super().__torch_function__(func, types, args, kwargs)

    classes = (torch.Tensor, nn.Parameter, Plain, Own)
    assert [compat.has_own_function_rules(kind) for kind in classes] == [False, False, False, True]


def test_a_traced_parameter_is_a_parameter(fake_mode):
    fakes = [fake_mode.from_tensor(torch.ones(1)) for _ in range(2)]
    compat.mark_parameters(fakes, [nn.Parameter(torch.ones(1)), torch.ones(1)])
    assert [isinstance(fake, nn.Parameter) for fake in fakes] == [True, False]
    assert compat.is_traced(fakes[0])
    assert not compat.is_traced(torch.ones(1))


# --- storages, versions and the autograd graph -----------------------------------------------------------------------


def test_storage_ids_are_equal_for_shared_memory_only():
    x = torch.ones(4)
    assert compat.storage_id(x) == compat.storage_id(x[1:]) == compat.storage_key(x.view(2, 2))
    assert compat.storage_id(x) != compat.storage_id(x.clone())


def test_a_tensor_without_a_storage_has_a_key_of_its_own():
    x, y = torch.eye(2).to_sparse(), torch.eye(2).to_sparse()
    assert compat.storage_key(x) == compat.storage_key(x) != compat.storage_key(y)


def test_versions():
    x = torch.ones(2)
    before = compat.version_of(x)
    compat.raise_version(x, before, 3)
    assert compat.version_of(x) == x._version == before + 3


def test_inference_tensors_have_no_version():
    with torch.inference_mode():
        x = torch.ones(2)
    assert compat.version_of(x) is None
    compat.raise_version(x, None, 1)


def test_a_raised_version_is_noticed_by_autograd():
    x = torch.ones(2)
    w = torch.ones(2, requires_grad=True)
    y = (x * w).sum()
    compat.raise_version(x, compat.version_of(x), 1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_sharing_version_makes_a_write_to_one_seen_at_the_other():
    x = torch.arange(4.0)
    view, before = torch.arange(4.0).set_(x.untyped_storage(), 1, (2,)), x._version
    assert compat.sharing_version(x, x) is x
    assert compat.sharing_version(torch.ones(2), x)._version == 0
    shared = compat.sharing_version(view, x)
    assert (shared.tolist(), shared.storage_offset()) == ([1, 2], 1)
    assert shared._version == x._version == before
    x.add_(1)
    assert shared._version == x._version > before


def test_strided_alias_sees_writes_and_leaves_the_version_alone():
    x = torch.arange(4.0)
    alias = compat.strided_alias(x, (2,), (2,), 1)
    assert (alias.tolist(), x._version, alias._version) == ([1, 3], 0, 0)
    x.add_(1)
    assert (alias.tolist(), alias._version) == ([2, 4], 1)


def test_writes_from_the_memory_that_they_write_to():
    x = torch.arange(4.0)
    assert (
        compat.share_elements(x[1:], x) and not compat.share_elements(x[:2], x[2:]) and not compat.share_elements(x[::2], x)
    )
    assert aten.index_add_.default in compat.NEVER_FROM_ITSELF
    first = torch.tensor([0])
    with pytest.raises(RuntimeError, match=compat.OVERLAPPING[:90]):
        x.index_add_(0, first, x[:1])
    with pytest.raises(RuntimeError, match=compat.OVERLAPPING[:90]):
        compat.refuse_overlapping_operands(aten.index_add_.default, x, (x, 0, first, x[:1]))
    compat.refuse_overlapping_operands(aten.index_add_.default, x, (x, 0, first, x[:1].clone()))
    compat.refuse_overlapping_operands(aten.mul_.Tensor, x, (x, x))


def test_memory_of_aliases_of_an_argument():
    x = torch.arange(4.0)
    assert compat.memory_key(x[1:]) == compat.memory_key(x.detach()) != compat.memory_key(x.clone())


def test_ops_on_lists():
    assert compat.is_foreach(aten._foreach_add_.Scalar) and not compat.is_foreach(aten.add_.Scalar)
    x = torch.ones(2)
    assert compat.is_list_of_tensors([x, x]) and not compat.is_list_of_tensors([x, 1]) and not compat.is_list_of_tensors(x)
    torch._foreach_add_([x, x], 1)
    assert x.tolist() == [3, 3] and x._version == 2
    assert "share memory" in compat.ENTANGLED_LIST


def test_a_view_across_gaps_is_refused_as_in_eager():
    x = torch.ones(2, 4)
    compat.refuse_view_across_gaps(x[:1], (4,))
    for view in (lambda: x[:, :2].view(4), lambda: compat.refuse_view_across_gaps(x[:, :2], (4,))):
        with pytest.raises(RuntimeError, match="view size is not compatible"):
            view()


@pytest.mark.parametrize(
    ("one", "other", "partly"),
    [
        (lambda x: x[1:], lambda x: x[:-1], True),
        (lambda x: x[1:], lambda x: x[1:], False),
        (lambda x: x.view(2, 2), lambda x: x.view(2, 2).t(), True),
        (lambda x: x[:2], lambda x: x[2:], False),
        (lambda x: x[::2], lambda x: x[1:3], False),
    ],
)
def test_partial_overlap_is_what_eager_refuses(one, other, partly):
    x = torch.arange(4.0)
    assert compat.partly_overlap(one(x), other(x)) == partly
    if partly:
        with pytest.raises(RuntimeError, match=compat.OVERLAPPING[:90]):
            one(x).add_(other(x))
    else:
        one(x).add_(other(x))


def test_where_dense_and_expanded_tensors_lie():
    x = torch.ones(2, 3)
    assert compat.is_dense(x.t()) and not compat.is_dense(x[:, :2])
    assert compat.byte_range(x[1]) == (12, 24)
    assert compat.is_expanded(x[:1].expand(2, 3)) and not compat.is_expanded(x[:1])
    assert not compat.is_expanded(torch.empty_strided((0, 3), (1, 0)))


def test_share_version_tells_and_leaves_no_trace():
    x = torch.ones(2)
    assert compat.share_version(x, x[:1]) and compat.share_version(x, x.detach())
    assert not compat.share_version(x, x.data) and not compat.share_version(x, torch.ones(2))
    assert x._version == 0


def test_flat_alias_is_a_part_of_the_storage():
    x = torch.arange(6.0)
    alias = compat.flat_alias(x.view(2, 3), 8, 12, torch.int32)
    assert (alias.dtype, alias.size(), alias.storage_offset(), alias._base) == (torch.int32, (3,), 0, None)
    alias.zero_()
    assert (x.tolist(), x._version) == ([0, 1, 0, 0, 0, 5], 0)


@pytest.mark.parametrize("view, lazy", [(compat.CONJUGATE, torch.Tensor.is_conj), (compat.NEGATE, torch.Tensor.is_neg)])
def test_lazy_views(view, lazy):
    x = torch.ones(2, dtype=torch.complex64)
    assert lazy(view(x)) and view(x)._base is x


def test_as_inference_is_the_same_memory():
    x = torch.arange(4.0).view(2, 2).t()
    inference = compat.as_inference(x)
    assert inference.is_inference()
    assert inference.stride() == x.stride()
    x.zero_()
    assert inference.sum() == 0


def test_strides_of_a_tensor_without_any():
    assert compat.strides(torch.ones(2, 3)) == (3, 1)
    assert compat.strides(torch.eye(2).to_sparse()) == ()


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
    """Records what the engine says while its backward runs."""

    seen: dict

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x)
        return x * y

    @staticmethod
    def backward(ctx, grad):
        edges = compat.edges_of_running_node()
        saved = ctx.saved_tensors
        compat.release_saved_tensors(ctx)
        Watching.seen = {
            "wanted": [compat.is_wanted(edge) for edge in edges],
            "retained": compat.graph_is_retained(),
            "saved": len(saved),
        }
        return grad, grad


class Saving(torch.autograd.Function):
    """Saves its two inputs, and notes what it finds of them in the backward, one by one."""

    found: ClassVar[list] = []

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, grad):
        for position in range(2):
            hook = compat.unpack_hook(ctx, position)
            Saving.found.append(None if hook is None else hook())
            try:
                Saving.found += compat.some_saved_tensors(ctx, [position])
            except RuntimeError as error:
                Saving.found.append(str(error))
        return grad, grad


def test_saved_tensors_are_unpacked_one_by_one():
    x, y = torch.ones(1, requires_grad=True), torch.ones(1)
    result = Saving.apply(x, y)
    y.add_(1)
    Saving.found.clear()
    result.backward()
    assert Saving.found[:3] == [None, x, None]
    assert "modified by an inplace operation" in Saving.found[3]


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
    result = compat.applied(Saving)(x, y)
    assert result.grad_fn.name() == Saving.apply(x, y).grad_fn.name()


def test_where_a_gradient_arrives():
    x = torch.ones(2, requires_grad=True)
    first, second = x.unbind()
    assert compat.gradient_edge(second) == (first.grad_fn, 1)


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
    with pytest.raises(RuntimeError, match="a second time"):
        compat.raise_second_backward()
    (saved,) = compat.saved_tensors(x.exp().grad_fn)
    assert compat.has_storage(saved) and not compat.has_storage(torch.ones(2).to_sparse())
    assert compat.saved_tensors(torch.cat([x, x]).grad_fn) == []


def test_nothing_observes_what_runs_unobserved():
    class Refusing(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            raise AssertionError(function)

    x = torch.ones(2)
    with Refusing(), compat.unobserved():
        assert x._version == 0


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


def test_a_hook_goes_where_the_first_one_is():
    base = torch.ones(2, requires_grad=True) * 1
    view = base.view(2, 1)
    assert not compat.was_hooked(view)
    seen: list[torch.Tensor] = []
    view.register_hook(seen.append)
    base.mul_(2)
    assert compat.was_hooked(view)
    view.register_hook(seen.append)
    view.sum().backward()
    assert seen == [] and not compat.was_hooked(view)


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


# --- fake and symbolic tensors ---------------------------------------------------------------------------------------


def test_a_fake_tensor_has_metadata_and_no_data(fake_mode):
    assert isinstance(fake_mode, compat.FakeTensorMode)
    assert isinstance(fake_mode.shape_env, compat.ShapeEnv)
    fake = fake_mode.from_tensor(torch.ones(2, 3), static_shapes=True)
    assert isinstance(fake, compat.FakeTensor)
    with fake_mode:
        assert (fake @ fake.t()).shape == (2, 2)
        assert isinstance(torch.ones(2) + fake[:, 0], compat.FakeTensor), "real tensors become constants"


def test_dynamic_sizes_are_symbolic_except_zero_and_one(fake_mode):
    fake = compat.dynamic_fake(fake_mode, torch.ones(2, 3, 1), dims=[0, 2], index=5)
    assert isinstance(fake.size(0), torch.SymInt)
    assert (type(fake.size(1)), type(fake.size(2))) == (int, int)
    assert compat.is_symbolic(fake)
    assert not compat.is_symbolic(torch.ones(2))


def test_symbols_are_named_after_the_argument():
    assert compat.argument_source(3).name == "argument_3"


def test_symbolic_values(fake_mode):
    fake = symbolic(fake_mode, 2, 3)
    assert compat.is_symbolic_value(fake)
    assert compat.is_symbolic_value(fake.size(0))
    assert not compat.is_symbolic_value(3)
    assert not compat.is_symbolic_value(torch.ones(2))


def test_symbolic_numbers_as_source(fake_mode):
    size = symbolic(fake_mode, 4).size(0)
    text, (symbol,) = compat.symbolic_text(size * 2 // 3)
    assert eval(text, {symbol: 4}) == 2
    assert compat.is_symbol(size, symbol)
    assert not compat.is_symbol(size * 2, symbol)
    assert not compat.is_symbol(4, symbol)


def test_questions_about_sizes_add_no_guard(fake_mode):
    fake = symbolic(fake_mode, 4, 6)
    rows, columns = fake.size()
    assert compat.known_equal([rows, 2], [rows, 2])
    assert not compat.known_equal([rows], [columns])
    assert compat.known_contiguous(fake)
    assert not compat.known_contiguous(fake.t())
    assert compat.hints((rows, 7, columns)) == (4, 7, 6)
    assert compat.guard_count(fake) == 0
    assert bool(rows < columns)
    assert compat.guard_count(fake) == 1


def test_equal_symbolic_numbers_have_one_expression(fake_mode):
    value = symbolic(fake_mode, 3, 3)
    first, second = value.size()
    assert compat.expression_of(first * 2) == compat.expression_of(2 * first) != compat.expression_of(second * 2)
    assert compat.expression_of(5) == 5
    assert compat.guard_count(value) == 0


def test_subgraphs_are_traced(fake_mode):
    recorder, x = compat.PythonKeyTracer(), fake_mode.from_tensor(torch.ones(2))
    recorder.graph, recorder.root = fx.Graph(), torch.nn.Module()
    compat.track_tensor_tree(x, fx.Proxy(recorder.graph.placeholder("x"), recorder), constant=None, tracer=recorder)
    with (
        fake_mode,
        compat.ProxyTorchDispatchMode(recorder, "symbolic"),
        compat.subgraphs_are_traced(fake_mode, {}),
        torch.no_grad(),
    ):
        torch.ops.higher_order.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
    branches = [module for _, module in recorder.root.named_children()]
    targets = [node.target for branch in branches for node in branch.graph.nodes if node.op == "call_function"]
    assert targets == [torch.ops.aten.sin.default, torch.ops.aten.cos.default]


def test_a_subgraph_has_the_fake_mode_that_is_active(fake_mode):
    """Dynamo has one of its own, and calls ops that trace subgraphs."""
    with compat.subgraphs_are_traced(fake_mode, {}):
        tracer = torch.fx.experimental.proxy_tensor._CURRENT_MAKE_FX_TRACER
        assert isinstance(tracer, compat.SubgraphTracer) and tracer.fake_tensor_mode is fake_mode
        with compat.new_fake_mode() as dynamos:
            assert tracer.fake_tensor_mode is dynamos


def test_holds_of_counts():
    count, other = sympy.symbols("u0 u1", integer=True)
    assert compat.holds_of_counts(count >= 1, {count})
    assert not compat.holds_of_counts(count >= 2, {count})
    assert not compat.holds_of_counts(other >= 1, {count})


def test_pass_counts():
    def function(x):
        outputs = torch.ops.higher_order.while_loop_stack_output(lambda x: x.sum() < 3, lambda x: (x * 2,), (x,), ())
        return outputs[0][-1]

    module = make_fx(function, tracing_mode="symbolic")(torch.ones(2))
    (count,) = compat.pass_counts([module.graph])
    assert str(count) == "u0"
    assert not compat.pass_counts([module.while_loop_body_graph_0.graph])


@pytest.mark.parametrize(
    ("error", "breaks"), [(DataDependentOutputException("item"), True), (ValueError(), False), (None, False)]
)
def test_breaks_dynamos_graph(error, breaks):
    assert compat.breaks_dynamos_graph(error) == breaks


def test_where_dynamo_breaks_graphs_and_what_it_passes():
    sources = []

    def backend(module, example_inputs):
        sources.append([compat.dynamo_source(node) for node in module.graph.find_nodes(op="placeholder")])
        return module.forward

    def function(x, more):
        x = x + more["w"]
        torch._dynamo.graph_break()
        return x * 2

    with compat.dynamo_forgets(), compat.graph_breaks() as breaks:
        torch.compile(function, backend=backend)(torch.ones(1), {"w": torch.ones(1)})
    assert sources == [["L['x']", "L['more']['w']"], ["L['x']"]]
    ((frame, reason),) = breaks
    assert frame.line == "torch._dynamo.graph_break()" and reason
    assert compat.dynamo_source(torch.fx.Graph().placeholder("x")) is None


def test_dynamo_forgets():
    compiled = []
    function = torch.compile(lambda x: x + 1, backend=lambda module, _: compiled.append(module) or module.forward)
    for _ in range(2):
        with compat.dynamo_forgets():
            function(torch.ones(1))
    assert len(compiled) == 2


def test_write_expression():
    mode, graph = compat.new_fake_mode(), torch.fx.Graph()
    rows, columns = compat.symbolic_inputs(mode, [6, 4])
    nodes = {str(size.node.expr): graph.placeholder(str(size.node.expr)) for size in (rows, columns)}
    written = compat.write_expression(graph, rows * 2 + columns // 3, lambda symbol: nodes[str(symbol)])
    graph.output(written)
    assert torch.fx.GraphModule({}, graph)(10, 9) == 23


def test_insert_deferred_checks():
    def function(x):
        torch._check(x.item() < 5)
        return x * 2

    module = make_fx(function, tracing_mode="symbolic")(torch.tensor(3))
    before = len(module.graph.nodes)
    compat.insert_deferred_checks(module)  # a trace of somebody else's
    assert len(module.graph.nodes) == before


def test_has_registered_effect():
    library = torch.library.Library("aotgrad_compat", "FRAGMENT")
    library.define("loud(Tensor x) -> Tensor")
    op = torch.ops.aotgrad_compat.loud.default
    assert not compat.has_registered_effect(op)
    handle = _register_effectful_op("aotgrad_compat::loud", EffectType.ORDERED)
    assert compat.has_registered_effect(op)
    handle.destroy()
    assert not any(map(compat.has_registered_effect, (op, torch.ops.aten.sin.default, torch.sin)))


def test_symbolic_inputs():
    mode = compat.new_fake_mode()
    x, y, three, one, text, sparse = compat.symbolic_inputs(
        mode, [torch.ones(3, 1), torch.ones(4, 3), 3, 1, "text", torch.eye(2).to_sparse()]
    )
    assert str(x.shape[0]) == str(y.shape[1]) == str(three.node.expr) != str(y.shape[0])
    assert x.shape[1] == 1 and type(one) is int and text == "text"
    assert sparse.shape == (2, 2)


def test_compile_without_workers():
    import torch._inductor.config as config

    with config.patch(compile_threads=7):
        compat.compile_without_workers()
        assert config.compile_threads == 1


def test_a_bare_evaluation_is_real_and_exact(fake_mode):
    a, b = torch.randn(2, 2, requires_grad=True), torch.randn(2, 2)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), fake_mode, compat.bare_evaluation():
        product = aten.mm.default(a, b)
    assert (type(product), product.dtype, product.requires_grad) == (torch.Tensor, torch.float32, False)
    assert not product.is_inference()


def test_the_fake_mode_of_a_graph(fake_mode):
    graph = fx.Graph()
    assert compat.fake_mode_of(graph) is not fake_mode
    graph.placeholder("x").meta["val"] = fake_mode.from_tensor(torch.ones(1))
    assert compat.fake_mode_of(graph) is fake_mode


def test_an_unsafe_view_is_in_the_memory_of_its_argument():
    x = torch.ones(4)
    assert compat.unsafe_view(x, [2, 2]).data_ptr() == x.data_ptr()
    assert not compat.is_view_op(compat.unsafe_view)


def test_to_becomes_a_cast():
    assert compat.cast(torch.ones(1), dtype=torch.float64).dtype == torch.float64
    graph = torch.fx.experimental.proxy_tensor.make_fx(lambda x: x.to(torch.float64))(torch.ones(1)).graph
    assert [node.target for node in graph.nodes if node.op == "call_function"] == [compat.cast]


def test_a_detached_fake_remembers_which_number_it_holds(fake_mode):
    fake = fake_mode.from_tensor(torch.tensor(3), static_shapes=True)
    with fake_mode:
        number = fake.item()
        detached = compat.detached_fake(fake)
    assert isinstance(number, torch.SymInt)
    assert str(detached.item_memo) == str(number)


def test_marked_dimensions():
    x = torch.ones(2, 3, 4)
    torch._dynamo.mark_dynamic(x, 1)
    torch._dynamo.maybe_mark_dynamic(x, 2)
    assert compat.dims_marked_dynamic(x) == {1, 2}
    assert compat.dims_marked_dynamic(torch.ones(1)) == frozenset()


def test_shape_guards_are_evaluated_on_real_tensors(fake_mode):
    fakes = [symbolic(fake_mode, 4)]
    with fake_mode:
        assert fakes[0].size(0) % 2 == 0
    holds = compat.shape_guards(fakes)
    assert holds([torch.ones(6)])
    assert not holds([torch.ones(5)])
    assert "t0.size()[0]" in holds.text
    assert isinstance(holds, compat.ShapeGuards)


def test_a_shape_guard_that_is_an_or_does_not_let_others_pass(fake_mode):
    fake = symbolic(fake_mode, 4)
    size = fake.size(0)
    with fake_mode:
        assert size % 2 == 0
        torch._check(torch.fx.experimental.symbolic_shapes.sym_or(size == 4, size > 100))
    holds = compat.shape_guards([fake])
    assert [holds([torch.ones(n)]) for n in (4, 102, 101, 6)] == [True, True, False, False]


def test_tensor_guards_compare_metadata_and_leave_symbolic_sizes_out(fake_mode):
    traced = torch.ones(4, 3)
    guard = compat.TensorGuard([traced], [compat.dynamic_fake(fake_mode, traced, dims=[0], index=0)])
    assert guard(torch.zeros(9, 3))
    assert guard.failure([torch.zeros(9, 3)]) == ""
    for other in (torch.ones(4, 2), torch.ones(4, 3).double(), torch.ones(4, 3, requires_grad=True)):
        assert not guard(other)
        assert "tensor argument 0" in guard.failure([other])
    assert not guard(traced, traced)
    assert guard.failure([traced, traced]) == "2 distinct tensors in place of 1"


def test_tensor_guards_of_sparse_tensors():
    sparse, dense = torch.eye(2).to_sparse(), torch.ones(2)
    guard = compat.TensorGuard([sparse, dense], [sparse, dense])
    assert guard(torch.eye(2).to_sparse(), dense)
    assert not guard(torch.eye(3).to_sparse(), dense)
    assert guard.failure([torch.eye(3).to_sparse(), dense]) == "a sparse tensor differs"


@contextlib.contextmanager
def default_dtype():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


CHANGED_STATE = {
    "grad_mode": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "default_dtype": default_dtype,
    "inference mode": torch.inference_mode,
    "default device": lambda: torch.device("meta"),
    "math attention": lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION),
}


@pytest.mark.parametrize("what", CHANGED_STATE)
def test_the_global_state_tells_what_changed(what):
    state = compat.GlobalState()
    assert state.check()
    assert state.reason() == ""
    assert state.text == f"grad, default dtype {torch.get_default_dtype()}"
    with CHANGED_STATE[what]():
        assert not state.check()
        assert what in state.reason()
    assert state.check()


def test_modes_that_make_tensors_elsewhere():
    assert compat.default_devices() == ()
    with torch.device("meta"), torch.device("cpu"):
        assert compat.default_devices() == ("meta", "cpu")
        assert len(compat.function_modes()) == 2


class DispatchMode(compat.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class FunctionMode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [DispatchMode, FunctionMode, torch.autograd.forward_ad.dual_level])
def test_someone_watches_the_ops(mode):
    assert not compat.ops_are_observed([torch.ones(1)])
    with mode():
        assert compat.ops_are_observed([torch.ones(1)])
    with torch.device("cpu"):
        assert compat.only_places_tensors(compat.function_modes()[0])
        assert not compat.ops_are_observed([torch.ones(1)])


def test_a_transform_or_trace_watches_the_ops(fake_mode):
    seen = []

    def function(x):
        seen.append(compat.ops_are_observed([x]))
        return x.sum()

    torch.vmap(function)(torch.ones(2, 2))
    torch.func.grad(function)(torch.ones(2))
    function(fake_mode.from_tensor(torch.ones(2)))
    assert seen == [True] * 3


# --- tracing ---------------------------------------------------------------------------------------------------------


class Tracing:
    """An open trace of one argument `x`."""

    def __init__(self, fake_mode, value: torch.Tensor, decompositions=None) -> None:
        self.tracer = compat.PythonKeyTracer()
        self.tracer.graph = fx.Graph(tracer_cls=compat.PythonKeyTracer)
        self.tracer.root = nn.Module()
        self.tracer.tensor_attrs = {}
        self.fake = value if isinstance(value, compat.FakeTensor) else fake_mode.from_tensor(value, static_shapes=True)
        node = self.tracer.graph.placeholder("x")
        compat.track_tensor_tree(self.fake, fx.Proxy(node, self.tracer), constant=None, tracer=self.tracer)
        self.functional_mode = compat.functional_mode(lambda: torch.empty(0))
        self.proxy_mode = compat.ProxyTorchDispatchMode(self.tracer, "symbolic")
        self.fake_mode, self.decompositions = fake_mode, decompositions or {}

    @contextlib.contextmanager
    def active(self):
        with self.fake_mode, self.proxy_mode, compat.decompose(self.decompositions), self.functional_mode:
            yield compat.to_functional(self.fake)

    def recorded(self) -> list[str]:
        return [str(node.target) for node in self.tracer.graph.nodes if node.op == "call_function"]


VIEWS_TO_TRY = {
    torch.ops.aten.alias.default: (),
    torch.ops.aten.as_strided.default: ([2, 2], [1, 2], 1),
    torch.ops.aten.detach.default: (),
    torch.ops.aten.diagonal.default: (),
    torch.ops.aten.expand.default: ([3, 2, 4],),
    torch.ops.aten.permute.default: ([1, 0],),
    torch.ops.aten.select.int: (1, 2),
    torch.ops.aten.slice.Tensor: (1, 1, 3),
    torch.ops.aten.split.Tensor: (1, 0),
    torch.ops.aten.split_with_sizes.default: ([1, 3], 1),
    torch.ops.aten.squeeze.default: (),
    torch.ops.aten.squeeze.dim: (0,),
    torch.ops.aten.squeeze.dims: ([0, 1],),
    torch.ops.aten.t.default: (),
    torch.ops.aten.transpose.int: (0, 1),
    torch.ops.aten.unbind.int: (1,),
    torch.ops.aten.unfold.default: (1, 2, 1),
    torch.ops.aten.unsqueeze.default: (1,),
    torch.ops.aten.view.default: ([4, 2],),
    compat.unsafe_view: ([8],),
}


def test_every_ordinary_view_is_tried():
    assert VIEWS_TO_TRY.keys() == compat.ORDINARY_VIEWS


@pytest.mark.parametrize("op", VIEWS_TO_TRY, ids=str)
def test_a_view_of_a_fake_is_what_the_fake_mode_gives(op, fake_mode):
    fake = fake_mode.from_tensor(torch.ones(3, 4), static_shapes=True)[1:]
    with fake_mode:
        expected = op(fake, *VIEWS_TO_TRY[op])
        found = compat.view_of_fake(fake_mode, op, (fake, *VIEWS_TO_TRY[op]), {})
    assert type(found) is type(expected)
    several = isinstance(found, (list, tuple))
    for one, other in zip(found, expected, strict=True) if several else [(found, expected)]:
        assert compat.metadata_of(one) is compat.metadata_of(other)
        assert compat.storage_id(one) == compat.storage_id(fake)
        assert one.fake_mode is fake_mode


def test_ordinary_ops_write_nothing_and_are_no_composites():
    aten = torch.ops.aten
    assert compat.kind_of_op(aten.mm.default) is compat.kind_of_op(aten.native_layer_norm.default) is compat.OpKind.PURE
    assert compat.kind_of_op(aten.split.Tensor) is compat.OpKind.VIEW
    unusual = [
        aten.size.default,
        aten.add_.Tensor,
        aten.add.out,
        aten.matmul.default,
        aten.nonzero.default,
        aten.item.default,
        aten.t_.default,
    ]
    unusual += [aten.lift_fresh.default, aten._local_scalar_dense.default, aten.sym_size.int]
    unusual += [torch.ops.higher_order.cond, aten.view.dtype, torch.ops.prim.device.default, aten.equal.default]
    assert [op for op in unusual if compat.kind_of_op(op) is not None] == []


def test_a_new_fake_has_the_metadata_of_another_one(fake_mode):
    with fake_mode:
        fake = torch.empty(2, 3, dtype=torch.bfloat16).t()
    metadata = compat.metadata_of_new(fake)
    assert isinstance(metadata, compat.Metadata)
    new = compat.new_fake(fake_mode, metadata)
    assert compat.metadata_of(new) is metadata
    assert (new.device, new.dtype, new.stride()) == (fake.device, fake.dtype, fake.stride())
    assert (metadata.described.shape, metadata.described.dtype) == (fake.shape, fake.dtype)
    assert compat.storage_id(new) != compat.storage_id(fake)
    assert new.untyped_storage().nbytes() == fake.untyped_storage().nbytes()


def test_a_part_of_a_fakes_memory_is_nothing_new(fake_mode):
    with fake_mode:
        whole, empty = torch.empty(4, 4), torch.empty(0, 3)
        parts = [whole[1:], whole[:2], whole.expand(2, 4, 4)[:, :2]]
    assert [compat.metadata_of_new(part) for part in parts] == [None, None, None]
    assert None not in [compat.metadata_of(part) for part in parts]
    assert compat.metadata_of_new(empty) is not None


def test_a_fake_of_a_whole_storage_is_what_the_fake_mode_makes(fake_mode):
    parameter = nn.Parameter(torch.ones(3, 2).t().to(torch.float64))
    assert compat.is_whole_storage(parameter)
    found, expected = compat.fake_of_whole(fake_mode, parameter), fake_mode.from_tensor(parameter, static_shapes=True)
    assert compat.metadata_of(found) is compat.metadata_of(compat.detached_fake(expected))
    assert not found.requires_grad
    assert found.untyped_storage().nbytes() == expected.untyped_storage().nbytes()


def test_what_is_no_whole_storage():
    whole = torch.ones(4, 4)
    with torch.inference_mode():
        inference = torch.ones(2)
    parts = [whole[1:], whole.detach()[:2], whole.view(-1), inference, whole.to_sparse(), torch.empty(2, device="meta"), 3]
    parts += [torch.ones(2, dtype=torch.complex64).conj(), torch._efficientzerotensor(2), whole.expand(2, 4, 4)]
    assert not any(map(compat.is_whole_storage, parts))
    assert compat.is_whole_storage(whole.detach())
    assert compat.is_whole_storage(torch.empty(0, 3))


def test_unusual_fakes_have_no_metadata(fake_mode):
    with fake_mode:
        plain = torch.ones(2, 2)
        unusual = [torch.ones(2, dtype=torch.complex64).conj(), plain.to_sparse(), torch._efficientzerotensor(2)]
        unusual += [torch.ones(2, requires_grad=True), torch.ones(2)]
    unusual[-1].constant = torch.ones(2)
    dynamic = compat.dynamic_fake(compat.new_fake_mode(), torch.ones(3), {0}, 0)
    assert [compat.metadata_of(value) for value in [*unusual, dynamic, torch.ones(2), 3]] == [None] * 8


def test_a_tracker_knows_the_node_of_a_tensor_as_a_proxy_too(fake_mode):
    tracer = Recorder()
    tracker = tracer.tensor_tracker
    assert isinstance(tracker, compat.TensorTracker)
    one, other = fake_mode.from_tensor(torch.ones(2)), fake_mode.from_tensor(torch.ones(3))
    tracked = tracker.add(one, tracer.graph.placeholder("one"))
    assert isinstance(tracked, compat.TrackedTensor)
    assert compat.proxy_node(one, tracer) is tracked.node
    assert tracker[one].proxy.node is tracked.node
    assert other not in tracker
    assert tracker.get(other) is tracker.entry(other) is None
    with pytest.raises(KeyError):
        tracker[other]
    compat.track_tensor_tree(other, fx.Proxy(tracer.graph.placeholder("other"), tracer), constant=None, tracer=tracer)
    assert other in tracker
    assert tracker.entry(other).node.name == "other"


def test_a_proxy_mode_asks_first_whether_an_op_is_recorded_otherwise(fake_mode):
    trace = Tracing(fake_mode, torch.ones(2))
    asked = []

    def record(op, args, kwargs):
        asked.append(str(op))
        return args[0] if op is torch.ops.aten.sin.default else NotImplemented

    with fake_mode, compat.proxy_mode(trace.tracer, record):
        assert torch.ops.aten.sin.default(trace.fake) is trace.fake
        trace.fake.cos()
    assert asked == ["aten.sin.default", "aten.cos.default"]
    assert trace.recorded() == ["aten.cos.default"]


def test_a_functional_mode_asks_first_what_an_op_gives(fake_mode):
    trace = Tracing(fake_mode, torch.ones(2))

    def record(op, args, kwargs, check):
        check()
        (inner,) = compat.inner_values(args)
        return compat.new_fake(fake_mode, compat.metadata_of(inner)) if op is torch.ops.aten.sin.default else NotImplemented

    trace.functional_mode = compat.functional_mode(lambda: torch.empty(0), None, trace.proxy_mode, record)
    with trace.active() as x:
        assert isinstance(x.sin(), compat.FunctionalTensor)
        view = x.cos().view(2, 1)
        view.add_(1)
        assert compat.proxy_node(compat.from_functional(view), trace.tracer).args[0].args[0].name == "add"
    assert trace.recorded()[:3] == ["aten.cos.default", "aten.view.default", "aten.add.Tensor"]


def test_a_node_gets_what_the_interpreter_says(fake_mode):
    meta: dict = {}
    with compat.fx_traceback.preserve_node_meta():
        compat.fx_traceback.current_meta.update(custom={"a": 1}, stack_trace="here", unrelated=2)
        compat.copy_current_meta(meta, torch.ops.aten.sin.default)
    assert meta == {"custom": {"a": 1}, "stack_trace": "here", "original_aten": torch.ops.aten.sin.default}
    assert compat.name_of_node(fx.Graph(), torch.ops.aten.sin.default) == "sin"


def test_an_in_place_op_is_recorded_functionally(fake_mode):
    trace = Tracing(fake_mode, torch.ones(2))
    assert isinstance(trace.functional_mode, compat.FunctionalTensorMode)
    with trace.active() as x:
        assert isinstance(x, compat.FunctionalTensor)
        assert isinstance(x, compat.FunctionalTensor)
        x.mul_(2)
        current = compat.from_functional(x)
    assert trace.recorded() == ["aten.mul.Tensor"]
    assert compat.proxy_node(current, trace.tracer).name == "mul"
    assert compat.ops_are_observed([torch.ones(1), x])
    assert not compat.ops_are_observed([torch.ones(1)])


def test_same_functional_is_one_value_with_two_histories(fake_mode):
    trace = Tracing(fake_mode, torch.ones(2))
    with trace.active() as x:
        same = compat.same_functional(x)
        x.add_(1)
        assert compat.proxy_node(compat.from_functional(same), trace.tracer).name == "add"
    assert (x._version, same._version) == (1, 0)


def test_a_value_that_the_trace_never_saw_has_no_node(fake_mode):
    trace = Tracing(fake_mode, torch.ones(2))
    assert compat.proxy_node(fake_mode.from_tensor(torch.ones(3)), trace.tracer) is None


def test_symbolic_numbers_have_nodes(fake_mode):
    trace = Tracing(fake_mode, symbolic(fake_mode, 4))
    with trace.active() as x:
        node = compat.proxy_node(x.shape[0] * 2, trace.tracer)
    assert (node.op, node.args[1]) == ("call_function", 2)


def test_hidden_tracing_modes_record_nothing(fake_mode):
    trace = Tracing(fake_mode, torch.ones(2))
    with trace.active(), compat.hidden_tracing_modes():
        trace.fake + 1
    with trace.active(), compat.disable_proxy_modes_tracing():
        trace.fake + 1
    assert trace.recorded() == []


def test_decompose_applies_a_table(fake_mode):
    trace = Tracing(fake_mode, torch.ones(2), {aten.silu.default: lambda x: x * x.sigmoid()})
    with trace.active() as x:
        torch.nn.functional.silu(x)
    assert trace.recorded() == ["aten.sigmoid.default", "aten.mul.Tensor"]


def test_a_view_knows_that_it_was_made_under_no_grad():
    base = torch.ones(2, 2)
    with torch.no_grad():
        hidden = base[0]
    assert compat.made_under_no_grad(hidden)
    assert not compat.made_under_no_grad(base[0])


def test_views_that_a_write_forbids():
    base = torch.ones(4, requires_grad=True) * 1
    with torch.no_grad():
        hidden = base[:2]
    views = (hidden, base.split(2)[0], base[:2], base, base.detach().split(2)[0])
    assert [compat.is_forbidden_after_a_write(view) for view in views] == [True, True, False, False, False]


def test_as_strided_and_writes_exclude_one_another_unless_the_tensor_is_plain(fake_mode):
    with Tracing(fake_mode, torch.ones(3, 4)).active() as x, torch.no_grad():
        assert compat.is_plain(x)
        assert not compat.is_plain(x[1:])
        x.as_strided((2,), (1,))
        x.mul_(2)
        y = x * 2
        y[1:].as_strided((2,), (1,), 4)
        with pytest.raises(RuntimeError, match="as_strided and a write to the same memory"):
            y.mul_(2)
        z = x * 2
        z.mul_(2)
        with pytest.raises(RuntimeError, match="as_strided and a write to the same memory"):
            z[1:].as_strided((2,), (1,))
        assert compat.AbsoluteGeometry().written == {}
        (written,) = compat.written_arguments(torch.ops.aten.add_.Tensor, (z, y), {})
        assert written is z


def test_ops_that_ask_where_a_tensor_starts_are_noted(fake_mode):
    mode = compat.functional_mode(lambda: None)
    assert not compat.asked_for_offsets(mode)
    mode._geometry.check(aten.as_strided.default, (torch.ones(2), (2,), (1,)), {})
    with compat.making_arguments(mode):
        mode._geometry.check(aten.as_strided.default, (torch.ones(2), (2,), (1,), 0), {})
    assert not compat.asked_for_offsets(mode)
    mode._geometry.check(aten.view.dtype, (), {})
    assert compat.asked_for_offsets(mode)
    mode = compat.functional_mode(lambda: None)
    mode._geometry.check(aten.as_strided.default, (torch.ones(2), (2,), (1,), 0), {})
    assert compat.asked_for_offsets(mode)


def test_a_write_keeps_the_layout(fake_mode):
    assert compat.is_dense_layout((2, 3), (1, 2)) and not compat.is_dense_layout((2, 3), (1, 3))
    moved = compat.contiguous_in_order(torch.arange(6).view(2, 3), (1, 2))
    assert moved.stride() == (1, 2) and torch.equal(moved, torch.arange(6).view(2, 3))
    with Tracing(fake_mode, torch.ones(2, 3)).active() as x, torch.no_grad():
        view = x.clone().t()
        view.cumsum_(0)
        assert compat.from_functional(view).stride() == (1, 3)
        with compat.kept_layouts([x]):
            pass
        assert compat.is_in_another_order(view) and not compat.is_in_another_order(x)


def test_a_write_of_a_higher_kind_is_refused():
    real, complex_ = torch.ones(2), torch.ones(2, dtype=torch.complex64)
    assert aten.addcmul_.default in compat.PROMOTING
    assert compat.SMALLEST_OF_KIND[float].is_floating_point
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        compat.refuse_lossy_cast(aten.addcmul_.default, (real, real, complex_))
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        compat.refuse_lossy_cast(aten.mul_.Scalar, (torch.ones(2, dtype=torch.int64), 1.5))
    compat.refuse_lossy_cast(aten.add_.Tensor, (real, real.double()))
    compat.refuse_lossy_cast(aten.eq_.Tensor, (real, complex_))


def test_a_product_of_two_dtypes_is_refused():
    one, other = torch.ones(2, 2), torch.ones(2, 2, dtype=torch.float64)
    assert aten.mm.default in compat.PRODUCTS
    with pytest.raises(RuntimeError, match="expected m1 and m2 to have the same dtype"):
        compat.refuse_mixed_products(aten.mm.default, (one, other))
    compat.refuse_mixed_products(aten.addmm.default, (other, one, one))
    compat.refuse_mixed_products(aten.mul.Tensor, (one, other))


def test_a_view_of_a_leaf_is_recognised():
    leaf = torch.ones(2, requires_grad=True)
    views = (leaf[0], leaf.detach()[0], (leaf * 1)[0], leaf)
    assert [compat.is_view_of_leaf(view) for view in views] == [True, False, False, False]
    assert [compat.is_differentiable_view(view) for view in views] == [True, False, True, False]
    assert not any(map(compat.is_hooked_view, views))
    views[0].register_hook(lambda gradient: None)
    assert compat.is_hooked_view(views[0])


def test_the_name_of_an_erased_node_is_free_again():
    graph = torch.fx.Graph()
    node = graph.placeholder("tangents_1")
    compat.erase_with_name(graph, node)
    assert graph.placeholder("tangents_1").name == "tangents_1"


def test_recorded_views_are_applied_to_another_base(fake_mode):
    with Tracing(fake_mode, torch.ones(3, 4)).active() as x, torch.no_grad():
        view = x[1:].t()
        assert len(compat.recorded_views(view)) == 2
        with compat.disable_functional_mode():
            again = compat.with_recorded_views(view, torch.ones(20).as_strided((3, 4), (5, 1), 2))
    assert (again.shape, again.stride(), again.storage_offset()) == ((4, 2), (1, 5), 7)


def test_a_view_is_stale_once_its_base_is_transposed_in_place(fake_mode):
    with Tracing(fake_mode, torch.ones(3, 3)).active() as x, torch.enable_grad():
        base = x.requires_grad_() * 1
        row = base[0]
        compat.refuse_stale_views([row])
        assert not compat.is_stale_view(row)
        base.t_()
        assert compat.is_stale_view(row)
        assert not compat.is_stale_view(base[0])
        with pytest.raises(RuntimeError, match="use of a view of a tensor whose metadata was changed"):
            compat.refuse_stale_views([row])


def test_a_view_that_is_reshaped_in_place_is_another_view_for_autograd(fake_mode):
    assert issubclass(compat.ReshapedViews, compat.TorchFunctionMode)
    with pytest.raises(RuntimeError, match=compat.VIEW_OF_LEAF):
        torch.ones(2, requires_grad=True).view(2).unsqueeze_(0)
    with Tracing(fake_mode, torch.ones(2, 3)).active() as x:
        base = x.requires_grad_() * 1
        row, saved, argument = base[0], base[1], base[:, 0]
        product = saved * saved
        assert [compat.may_be_swapped(each) for each in (row, x[0], base.split(1)[0], base, 3)] == [True] + 4 * [False]
        with compat.ReshapedViews([argument]):
            assert row.unsqueeze_(0) is row
            assert saved.unsqueeze_(0) is saved
            argument.unsqueeze_(0)
        assert (row.shape, saved.shape, base._version) == ((1, 3), (1, 3), 3)
        row[0].mul_(2)
        assert (row.grad_fn.name(), row.shape) == ("UnsqueezeBackward0", (1, 3))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()


def test_views_and_changes_in_place_show_the_same():
    assert set(compat.OUT_OF_PLACE) < compat.RESHAPES
    for in_place, view in compat.OUT_OF_PLACE.items():
        arguments = {"as_strided": ((2,), (1,)), "t": (), "squeeze": (), "unsqueeze": (0,)}.get(view.__name__, (0, 1))
        x, y = torch.ones(1, 3), torch.ones(1, 3)
        in_place(x, *arguments)
        assert view(y, *arguments).shape == x.shape


def test_swapped_tensors_are_each_other():
    x = torch.ones(3)
    row, other = x[0], x[1:]
    row.note = 1
    compat.swap_tensors(row, other)
    assert (row.shape, other.shape, other.note, hasattr(row, "note")) == ((2,), (), 1, False)


def test_a_piece_of_a_changed_tensor_has_no_usable_history():
    base = torch.ones(4, requires_grad=True) * 1
    views = base[:2], base.split(2)[0]
    assert [compat.has_usable_history(view) for view in (base, *views)] == [True, True, True]
    base.mul_(2)
    assert [compat.has_usable_history(view) for view in (base, *views)] == [True, True, False]


def test_views_lie_in_the_result_of_one_node():
    graph = fx.Graph()
    x = graph.placeholder("x")
    sine = graph.call_function(aten.sin.default, (x,))
    pieces = graph.call_function(aten.split.Tensor, (sine, 1))
    piece = graph.call_function(operator.getitem, (pieces, 0))
    row = graph.call_function(aten.select.int, (piece, 0, 0))
    assert [compat.storage_node(node) for node in (x, sine, piece, row, None)] == [x, sine, sine, sine, None]


STORAGE_REPLACED = [
    *(lambda x: x.set_(x + 1), lambda x: x.set_(), lambda x: x.set_(x + 1, 0, (1,), (1,))),
    *(lambda x: x.set_(x.untyped_storage()), lambda x: x.set_(x.untyped_storage(), 0, (1,), (1,))),
]


@pytest.mark.parametrize("replace", STORAGE_REPLACED)
def test_another_storage_is_refused(fake_mode, replace):
    trace = Tracing(fake_mode, torch.ones(2))
    with trace.active() as x, torch.no_grad(), pytest.raises(RuntimeError, match=compat.ANOTHER_STORAGE):
        replace(x)


def test_an_assignment_of_data_is_refused(fake_mode):
    assert issubclass(compat.RefusedAssignments, compat.TorchFunctionMode)
    with Tracing(fake_mode, torch.ones(2)).active() as x, compat.RefusedAssignments():
        for value in (x, x * 2, torch.ones(2)):
            with pytest.raises(RuntimeError, match=compat.ANOTHER_STORAGE):
                value.data = torch.zeros(2)
        assert x.data.shape == (2,)


def test_resize_as_is_a_resize(fake_mode):
    with Tracing(fake_mode, torch.ones(2)).active() as x:
        assert x.clone().resize_as_(x[1:]).shape == (1,)
    assert len(compat.REPLACES_STORAGE) == 5


def test_a_write_through_an_expanded_view_of_the_same_size_is_recorded_as_such(fake_mode):
    trace = Tracing(fake_mode, torch.ones(2))
    with trace.active() as x:
        assert compat.expands_nothing(x, (1, -1)) and not compat.expands_nothing(x, (3, 2))
        assert compat.sizes_of_view(x, (1, -1)) == [1, 2]
        x.expand(1, 2).mul_(2)
        compat.from_functional(x)
    assert set(trace.recorded()) == {"aten.view.default", "aten.mul.Tensor"}


def test_pieces_that_are_the_same_memory_in_eager(fake_mode):
    """Which of the wholes, pieces and pieces of pieces are stale once one of them is written to."""
    expected = {"whole": [1, 2, 3, 4], "first": [0, 3, 4], "second": [0], "part": [0, 1], "other part": [0, 1]}
    for written, name in enumerate(expected):
        trace = Tracing(fake_mode, torch.ones(8))
        assert isinstance(trace.functional_mode._pieces, compat.UnsafePieces)
        with trace.active() as x:
            first, second = x.unsafe_chunk(2)
            values = [x, first, second, *first.unsafe_split_with_sizes((1, 3))]
            compat.check_pieces(trace.functional_mode, values)
            values[written].mul_(2)
            stale = [k for k, value in enumerate(values) if is_refused(lambda value=value: value.sin())]
            assert stale == [k for k, value in enumerate(values) if is_refused_at_the_end(trace, value)] == expected[name]


def is_refused(function) -> bool:
    try:
        function()
    except RuntimeError as error:
        assert str(error) == "unsafe_split and a write to the same memory"
        return True
    return False


def is_refused_at_the_end(trace, value) -> bool:
    return is_refused(lambda: compat.check_pieces(trace.functional_mode, [value, 3]))


def test_a_write_to_a_real_tensor_is_refused(fake_mode):
    trace, real = Tracing(fake_mode, torch.ones(2)), torch.ones(2)
    assert trace.functional_mode.__torch_dispatch__.__func__ is compat.guarded_dispatch
    with trace.active() as x, pytest.raises(RuntimeError, match="mutating a non-functional tensor"):
        real.add_(x)
    assert torch.equal(real, torch.ones(2))


def test_writes_that_no_graph_can_record_are_refused():
    trace, real = Tracing(compat.new_fake_mode(), torch.ones(1)), torch.ones(2)
    for closed_over in (real, trace.fake):
        with pytest.raises(RuntimeError, match="mutating a non-functional tensor"):
            compat.refuse_unrecordable_write(aten.add_.Tensor, [closed_over, 1], {})
    compat.refuse_unrecordable_write(aten.add.Tensor, [real, 1], {})
    with trace.active() as x:
        compat.refuse_unrecordable_write(aten.add_.Tensor, [x, 1], {})
        with pytest.raises(RuntimeError, match="mutating a sparse tensor"):
            compat.refuse_unrecordable_write(aten.add_.Tensor, [x.to_sparse(), 1], {})
        with pytest.raises(RuntimeError) as refused:
            compat.refuse_unrecordable_write(aten.add_.Tensor, [x.expand(3), 1], {})
        with pytest.raises(RuntimeError, match="writing through an expanded tensor"):
            compat.refuse_unrecordable_write(aten.fill_.Scalar, [x.expand(3), 1], {})
        gaps = torch.ones(4, 10)[:, ::2]
        compat.refuse_unrecordable_write(aten.uniform_.default, [gaps], {})
        with pytest.raises(RuntimeError, match="normal_ of a tensor with gaps"):
            compat.refuse_unrecordable_write(aten.normal_.default, [gaps], {})
    with pytest.raises(RuntimeError) as eager:
        torch.ones(1).expand(3).add_(1)
    assert str(refused.value) == str(eager.value) == compat.SEVERAL_IN_ONE_PLACE


@pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors is deprecated:UserWarning")
def test_what_may_be_written_to_an_expanded_tensor():
    matrix, index, mask = torch.ones(1, 2).expand(2, 2), torch.tensor([0]), torch.ones(2, 2, dtype=torch.bool)
    arguments = {
        "fill_": (1,),
        "index_put_": ((index,), torch.ones(())),
        "_index_put_impl_": ((index,), torch.ones(())),
        "index_fill_": (0, index, 1),
        "masked_fill_": (mask, 1),
        "fill_diagonal_": (1,),
    }
    for op in compat.WRITES_TO_EXPANDED:
        name = op._schema.name.split("::")[1]
        op.overloadpacket(matrix, *arguments.get(name, ()))


def test_what_is_computed_from_closed_over_tensors_is_functional(fake_mode):
    trace, real = Tracing(fake_mode, torch.ones(2)), torch.ones(2)
    with trace.active():
        assert compat.any_functional([real * 2])
        assert not compat.any_functional([real[1:]])
        wrapped = compat.wrapped_result(trace.functional_mode, trace.fake)
        assert compat.any_functional([wrapped]) and compat.from_functional(wrapped) is trace.fake


def test_a_view_of_a_normal_tensor_is_a_normal_one_in_inference_mode(fake_mode):
    trace = Tracing(fake_mode, torch.ones(2))
    with trace.active() as x, torch.inference_mode():
        assert not x.view(1, 2).is_inference()
        assert (x + 1).is_inference()


def test_normal_mode_makes_tensors_with_versions():
    with torch.inference_mode(), compat.normal_mode():
        assert not torch.is_grad_enabled()
        assert torch.ones(1)._version == 0
    with compat.normal_mode():
        assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("op", "is_view"),
    [
        (aten.view.default, True),
        (aten.split.Tensor, True),
        (aten.detach.default, True),
        (aten.as_strided.default, True),
        (aten._reshape_alias.default, True),
        (aten.add.Tensor, False),
        (aten.add_.Tensor, False),
        (aten.t_.default, False),
        (aten.ones.default, False),
        (torch.sin, False),
    ],
)
def test_is_view_op(op, is_view):
    assert compat.is_view_op(op) == is_view


def test_python_kernels_keep_sizes_symbolic(fake_mode):
    fake = symbolic(fake_mode, 4, 6)
    with fake_mode, compat.enable_python_dispatcher():
        product = torch.matmul(fake, fake.t())
    assert isinstance(product.size(0), torch.SymInt)


def test_dropout_that_drops_nothing_returns_its_input(fake_mode):
    fake = symbolic(fake_mode, 4)
    with fake_mode, compat.symbolic_kernels():
        assert torch.dropout(fake, 0.5, train=False) is fake
        assert torch.dropout(fake, 0.5, train=True) is not fake
    assert compat.eager_dropout(None, fake, 0.5, False) is fake
    with fake_mode, compat.enable_python_dispatcher():
        assert torch.dropout(fake, 0.5, train=False) is not fake


def test_what_kernels_find_in_empty_tensors_is_found_before():
    empty, index = torch.ones(0, 2), torch.tensor([0])
    refused = [
        (aten.max.dim, (empty, 0)),
        (aten.min.dim, (empty, -2, True)),
        (aten.index_select.default, (empty, 0, index)),
        (aten.index.Tensor, (empty, [index])),
        (aten.index.Tensor, (empty.t(), [None, index])),
    ]
    for op, arguments in refused:
        with pytest.raises((IndexError, RuntimeError)) as raised:
            op(*arguments)
        with pytest.raises(raised.type, match=r"size|positive"):
            compat.refuse_empty_dimension(op, arguments)
    allowed = [
        (aten.max.dim, (empty, 1)),
        (aten.index_select.default, (empty, 1, index)),
        (aten.index_select.default, (empty, 0, index[:0])),
        (aten.index.Tensor, (empty, [None, index])),
        (aten.index.Tensor, (empty, [torch.ones(0, dtype=torch.bool)])),
    ]
    for op, arguments in allowed:
        op(*arguments)
        compat.refuse_empty_dimension(op, arguments)
    assert len(compat.EXTREMA) == 2
    assert [compat.misses(empty, [index, None], dim) for dim in (0, 1)] == [True, False]
    assert [compat.is_known_empty(tensor, 0) for tensor in (empty, empty.t(), torch.ones(()))] == [True, False, False]


def test_a_product_of_known_sizes_is_no_view(fake_mode):
    with fake_mode, compat.symbolic_kernels():
        known = torch.ones(1, 2, 2)
        assert torch.matmul(known, known)._base is None
    unknown = symbolic(fake_mode, 3, 4, 4)
    with fake_mode, compat.symbolic_kernels():
        product = torch.matmul(unknown, unknown)
        assert isinstance(product.size(0), torch.SymInt)
        assert product._base is None
        assert compat.eager_matmul(lambda x, _: x[1:], unknown, unknown)._base is None


def test_replaced_kernels_are_back_after_an_error(fake_mode):
    kernels = dict(aten.dropout.default.py_kernels)
    with pytest.raises(ZeroDivisionError), compat.replaced_kernels(aten.dropout.default, lambda *_: 1 / 0):
        assert aten.dropout.default.py_kernels != kernels
        with fake_mode, compat.enable_python_dispatcher():
            torch.dropout(torch.ones(2), 0.5, train=True)
    assert aten.dropout.default.py_kernels == kernels


@pytest.mark.parametrize(("op", "functional"), compat.OUT_IS_LOST, ids=lambda op: op._overloadname)
def test_out_is_written_to_under_a_dispatch_mode(op, functional):
    """Torch's own kernel forgets it; an entry whose kernel writes can go."""
    given = {"out": (0.1,), "out_tol_tensor": (torch.tensor(0.1),)}.get(op._overloadname, ())
    out = torch.zeros((), dtype=torch.int64)
    with IgnoreResults():
        op(torch.eye(3), *given, out=out)
    assert out == 0
    compat.written_result(functional, torch.eye(3), *given, out=out)
    assert out == 3


class IgnoreResults(TorchDispatchMode):
    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        return op(*args, **(kwargs or {}))


def test_an_op_without_a_shape_function():
    x = torch.ones(3)
    with pytest.raises(Exception) as raised:
        make_fx(lambda x: torch.histogram(x, 4), tracing_mode="symbolic")(x)
    wrapped = CaptureError()
    wrapped.__cause__ = raised.value
    assert compat.lacks_shape_function(raised.value) and compat.lacks_shape_function(wrapped)
    assert not compat.lacks_shape_function(CaptureError())


def test_an_op_that_wants_plain_sizes_in_cpp_says_so(fake_mode):
    x = symbolic(fake_mode, 3)
    with pytest.raises(RuntimeError, match=compat.NEED_STATIC_SIZES[0]) as raised, fake_mode:
        torch.cov(torch.ones(2, 3), aweights=x)
    assert compat.lacks_shape_function(raised.value)


def test_decompositions_for_inference_only():
    """One that gives the same results as the op can go from the table."""
    (attention,) = compat.FOR_INFERENCE_ONLY
    x = torch.rand(1, 2, 4, 8)
    result, logarithms = attention(x, x, x)
    decomposed, weights = core_aten_decompositions()[attention](x, x, x)
    torch.testing.assert_close(decomposed, result)
    assert weights.shape != logarithms.shape


def test_ops_without_a_functional_form():
    """Functionalization refuses them as they are; one that it takes can go from the table."""
    x = torch.rand(3)
    for op, functional in compat.WITHOUT_FUNCTIONAL_FORM.items():
        with pytest.raises(RuntimeError, match="Found a custom"):
            torch.func.functionalize(op)(x.clone(), 1)
        assert torch.equal(functional(1, x), op(x.clone(), 1))


def test_a_given_kernel_is_gone_afterwards(fake_mode):
    op = aten.linalg_matrix_rank.out
    with compat.given_kernel(op, lambda *_, out: out.add_(1)), compat.enable_python_dispatcher():
        assert op(torch.eye(3), 0.1, out=torch.zeros((), dtype=torch.int64)) == 1
    assert not op.py_kernels


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
def test_rows_that_require_grad_are_refused():
    rows = torch.eye(2).to_sparse_csr()
    assert rows.layout in compat.COMPRESSED_LAYOUTS
    compat.refuse_differentiable_rows([torch.eye(2)], rows)
    with torch.no_grad():
        compat.refuse_differentiable_rows([torch.eye(2, requires_grad=True)], rows)
    with pytest.raises(RuntimeError, match="layout_impl"):
        compat.refuse_differentiable_rows([torch.eye(2, requires_grad=True)], rows)


def test_effect_tokens_are_made_when_they_are_needed():
    made = []
    tokens = compat.EffectTokens(lambda: made.append(1) or torch.empty(0))
    assert "any effect" in tokens
    assert made == []
    assert tokens["any effect"] is tokens["any effect"]
    assert made == [1]


def test_effectful_ops_are_wrapped():
    assert compat.is_effect_wrapper(torch.ops.higher_order.with_effects)
    assert not compat.is_effect_wrapper(aten.sin.default)


def test_node_meta_is_kept_while_a_graph_is_interpreted(fake_mode):
    graph = fx.Graph()
    node = graph.call_function(torch.sin, (graph.placeholder("x"),))
    node.meta["stack_trace"] = "user line"
    graph.output(node)
    seen = []

    class Reading(fx.Interpreter):
        def call_function(self, target, args, kwargs):
            seen.append(compat.fx_traceback.get_current_meta().get("stack_trace"))
            return super().call_function(target, args, kwargs)

    with compat.fx_traceback.preserve_node_meta():
        Reading(fx.GraphModule({}, graph)).run(torch.ones(1))
    assert seen == ["user line"]


def test_the_context_that_dynamo_opens_is_found():
    found = []

    def backend(module, example_inputs):
        context = compat.tracing_context()
        found.append((context.fake_mode, compat.dynamo_symbolic_context(context, example_inputs[0])))
        return module.forward

    assert compat.tracing_context() is None
    assert compat.dynamo_symbolic_context(None, torch.ones(1)) is None
    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    (fake_mode, _) = found[0]
    assert isinstance(fake_mode, compat.FakeTensorMode)


def test_a_tracing_context_can_be_opened(fake_mode):
    with compat.tracing(compat.TracingContext(fake_mode)):
        assert compat.tracing_context().fake_mode is fake_mode


# --- Inductor --------------------------------------------------------------------------------------------------------

inductor = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")


def graph_of_sin_cos(fake_mode) -> tuple[fx.GraphModule, torch.Tensor]:
    fake = fake_mode.from_tensor(torch.ones(4), static_shapes=True)
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = fake
    sin = graph.call_function(aten.sin.default, (x,))
    cos = graph.call_function(aten.cos.default, (sin,))
    sin.meta["val"] = cos.meta["val"] = fake
    graph.output((cos,))
    return fx.GraphModule({}, graph), fake


@inductor
def test_inductor_compiles_a_graph(fake_mode):
    module, fake = graph_of_sin_cos(fake_mode)
    with compat.inductor_context(fake_mode, "default"), compat.reported_output_strides() as strides:
        module = compat.inductor_joint_passes(module)
        settings = compat.inductor_graph_settings(cudagraphs=compat.inductor_uses_cudagraphs())
        compiled = compat.inductor_compile(module, [fake], static_input_idxs=[], is_inference=True, **settings)
    x = torch.rand(4)
    torch.testing.assert_close(compiled([x])[0], x.sin().cos())
    assert [compat.as_symints(fake_mode, stride) for stride in strides] == [(1,)]


@inductor
def test_equal_graphs_are_apart_in_inductors_cache():
    """As where one's results are seen by a user and the other's are not: that is no part of its key."""
    counts = []
    with fresh_cache():
        for text in ("seen", "unseen", "seen"):
            mode = compat.new_fake_mode()
            module, fake = graph_of_sin_cos(mode)
            before = inductor_counters["inductor"]["fxgraph_cache_hit"]
            with compat.inductor_context(mode, "default", **compat.apart_in_inductors_cache(text)):
                compat.inductor_compile(module, [fake], static_input_idxs=[], **compat.inductor_graph_settings(False))
            counts.append(inductor_counters["inductor"]["fxgraph_cache_hit"] - before)
    assert counts == [0, 0, 1]


def test_what_torch_compile_was_given():
    model = nn.Linear(2, 2)
    assert compat.without_dynamo(torch.compile(model, backend="eager")) is compat.without_dynamo(model) is model
    assert compat.without_dynamo(torch.compile(three, backend="eager")) is three


def three():
    return 3


def test_artifacts_of_torchs_own_logs():
    logger = compat.artifact_logger("aot_graphs")
    assert compat.artifact_logger("aot_graphs") is logger and logger.name.startswith("torch.")
    assert not compat.artifact_is_on("aot_graphs")
    torch._logging.set_logs(aot_graphs=True)
    try:
        assert compat.artifact_is_on("aot_graphs") and logger.propagate
    finally:
        torch._logging.set_logs()
    assert not compat.artifact_is_on("aot_graphs")


def test_structured_traces(monkeypatch):
    from torch._logging._internal import trace_log

    class Handler(logging.Handler):
        def emit(self, record):
            records.append((record.metadata, record.payload))

    records = []
    monkeypatch.setattr(trace_log, "handlers", [])
    assert not compat.structured_trace_is_on()
    monkeypatch.setattr(trace_log, "handlers", [Handler()])
    assert compat.structured_trace_is_on()
    compat.trace_structured("aot_joint_graph", "text")
    assert records[0][1] == "text" and "aot_joint_graph" in records[0][0]


def test_a_graph_takes_and_returns_nested_values():
    graph = fx.Graph()
    graph.output([graph.placeholder("a"), graph.placeholder("b")])
    _, spec = pytree.tree_flatten(([0], {"b": 0}))
    compat.returns_pytree(graph, ("first", "second"), spec, spec)
    assert fx.GraphModule(nn.Module(), graph)([1], {"b": 2}) == ([1], {"b": 2})


def test_what_is_said_of_an_operator():
    mutable, plain = (compat.op_description(op) for op in (aten.add_.Tensor, aten.add.Tensor))
    assert mutable != plain and "Tensor(a!)" in mutable and "pointwise" in plain


def test_a_higher_order_operator_by_name():
    assert compat.higher_order_named("cond") is torch.ops.higher_order.cond


def test_a_lowering_of_the_users_own():
    from torch._inductor import lowering

    assert not compat.inductor_has_users_lowerings() and compat.inductor_key() is not None
    torch.library.custom_op("aotgrad_tests::lowered", torch.clone, mutates_args=(), schema="(Tensor x) -> Tensor")
    overload = torch.ops.aotgrad_tests.lowered.default
    try:
        lowering.register_lowering(overload)(lambda x: x)
        assert compat.inductor_has_users_lowerings() and compat.inductor_key() is None
    finally:
        lowering.lowerings.pop(overload, None)


def symbolic_fake():
    mode = compat.FakeTensorMode(shape_env=compat.ShapeEnv())
    context = compat.StatelessSymbolicContext(dynamic_sizes=[compat.DimDynamic.DYNAMIC] * 2)
    return mode, mode.from_tensor(torch.ones(6, 4), symbolic_context=context)


def test_a_symbolic_number_is_written_and_made_again():
    mode, fake = symbolic_fake()
    (rows, columns) = compat.backed_symbols(mode.shape_env)
    expression = compat.backed_expression(fake.size(0) * 2 + 1)
    assert expression == 2 * rows + 1 and type(expression).__name__ in compat.expression_types()
    made = compat.symbolic_number(mode, "int", expression)
    assert isinstance(made, torch.SymInt) and compat.hints([made]) == (13,)
    assert isinstance(compat.symbolic_number(mode, "float", columns / 2), torch.SymFloat)
    assert compat.guards_of_mode(mode) == 0
    assert bool(compat.symbolic_number(mode, "bool", rows > 5)) and compat.guards_of_mode(mode) == 1
    assert [str(each) for each in compat.conditions_since(mode, 0)] == [f"{rows} > 5"] and not compat.conditions_since(
        mode, 1
    )


def test_what_is_known_of_symbols():
    assert compat.symbolic_state(compat.new_fake_mode()) is None
    mode, fake = symbolic_fake()
    (rows, _) = compat.backed_symbols(mode.shape_env)
    symbols, equalities, conditions = compat.symbolic_state(mode)
    assert len(symbols) == 2 and not equalities and not conditions
    names = {name: (sources, value) for name, sources, value, _ in symbols}
    assert names[str(rows)] == (compat.sources_of(mode.shape_env, rows), "6")
    assert fake.size(0) < 100 and compat.symbolic_state(mode) != (symbols, equalities, conditions)


def test_a_fake_with_symbolic_sizes_in_memory_of_its_own():
    mode, fake = symbolic_fake()
    storage = compat.meta_storage(compat.storage_bytes(fake))
    made = compat.fake_in(mode, storage, torch.float32, torch.device("cpu"), fake.size(), fake.stride(), 0)
    assert compat.known_equal(made.size(), fake.size()) and compat.is_symbolic(made) and compat.guards_of_mode(mode) == 0


def test_a_number_that_depends_on_data_has_no_expression():
    mode, _ = symbolic_fake()
    assert compat.backed_expression(mode.shape_env.create_unbacked_symint()) is None


def test_a_graph_that_takes_its_arguments_apart():
    graph = fx.Graph()
    graph.output(graph.placeholder("a"))
    assert compat.takes_plain_arguments(graph)
    compat.returns_pytree(graph, ("first",), *(pytree.tree_flatten(tree)[1] for tree in (([0],), 0)))
    assert not compat.takes_plain_arguments(graph)


def test_decompositions_by_overload():
    assert set(compat.decompositions_of([aten.elu])) >= {aten.elu.default}


def test_torchscript_runs_without_autocast_of_its_own():
    before = torch._C._jit_set_autocast_mode(True)
    try:
        with compat.no_jit_autocast():
            assert torch._C._jit_set_autocast_mode(False) is False
        assert torch._C._jit_set_autocast_mode(True) is True
    finally:
        torch._C._jit_set_autocast_mode(before)


@inductor
def test_inductor_decompositions_are_a_table():
    assert aten.silu_backward.default in compat.inductor_decompositions()


@inductor
def test_a_mode_configures_inductor(fake_mode):
    with compat.inductor_context(fake_mode, "reduce-overhead"):
        assert compat.inductor_uses_cudagraphs()
    assert not compat.inductor_uses_cudagraphs()


def test_a_random_op_draws_again_from_its_recorded_state():
    x, op = torch.ones(8), torch.ops.aten.bernoulli.p
    state, drawn = compat.run_and_save_rng_state(op, x, 0.5)
    after = torch.get_rng_state()
    assert torch.equal(compat.run_with_rng_state(state, op, x, 0.5), drawn)
    assert torch.equal(torch.get_rng_state(), after)


# --- torch.func and forward mode -------------------------------------------------------------------------------------


def test_forward_mode_makes_zeros_without_memory():
    assert compat.has_no_memory(compat.zero_without_memory([2]))
    assert not compat.has_no_memory(torch.zeros(2))


def test_open_transforms_are_seen_from_inside():
    seen = []

    def note(x):
        seen.append((compat.transform_is_open(), compat.open_transforms(), compat.is_wrapped(x), compat.is_batched(x)))
        return x.sum()

    torch.func.vmap(note)(torch.ones(2, 3))
    torch.func.vmap(torch.func.grad(note))(torch.ones(2, 3))
    assert seen == [(True, ("vmap",), True, True), (True, ("vmap", "grad"), True, False)]
    assert not compat.transform_is_open()
    assert compat.open_transforms() == ()


def test_a_batched_backward_is_an_older_vmap():
    seen = []

    class Note(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            vmap = compat.only_vmap([gradient, 1, None])
            outer = vmap.unwrap(gradient)
            seen.append((vmap, compat.older_vmaps(), compat.open_transforms(), outer.shape))
            with compat.outside_transforms() as level:
                seen.append((level, compat.transform_is_open(), compat.older_vmaps()))
                outer = outer * 2
            return vmap.wrap(outer)

    x = torch.ones(3, requires_grad=True)
    rows = torch.autograd.grad(Note.apply(x), x, torch.eye(3), is_grads_batched=True)[0]
    assert torch.equal(rows, 2 * torch.eye(3))
    assert seen == [(compat.Vmap(1, is_older=True), 1, ("older vmap",), (3, 3)), (None, False, 0)]
    assert not torch._C._dispatch_tls_is_dispatch_key_included(compat.VMAP_MODE)


def test_vmap_wraps_and_unwraps():
    def double(x):
        vmap = compat.only_vmap([x])
        outer = vmap.unwrap(x)
        assert outer.shape == (3, 2)
        with compat.outside_transforms() as level:
            assert level == vmap.level and not compat.is_wrapped(outer)
            outer = outer * 2
        return vmap.wrap(outer)

    x = torch.arange(6.0).view(2, 3)
    assert torch.equal(torch.func.vmap(double, in_dims=1, out_dims=1)(x), 2 * x)


def test_only_a_lone_vmap_is_one():
    seen = []
    torch.func.vmap(torch.func.vmap(lambda x: seen.append(compat.only_vmap([x])) or x))(torch.ones(2, 3))
    assert seen == [None]


def test_what_is_open_around_a_call():
    seen = []

    def look(x):
        seen.append((compat.only_transforms([x]), type(compat.innermost(x)), compat.is_tracked(x)))
        return x.sum()

    look(torch.ones(2))
    torch.func.vmap(look)(torch.ones(2, 3))
    torch.func.vmap(torch.func.grad(look))(torch.ones(2, 3))
    torch.func.functionalize(look)(torch.ones(2))
    with CountingMode():
        torch.func.vmap(look)(torch.ones(2, 3))
    plain = [(found, tracked) for found, kind, tracked in seen if kind is torch.Tensor]
    assert plain == [(False, False), (True, False), (True, True), (False, False), (False, False)]


def test_an_open_jvp():
    seen = []

    def look(x):
        seen.append(compat.jvp_is_open())
        return x

    torch.func.jvp(look, (torch.ones(2),), (torch.ones(2),))
    torch.func.vmap(look)(torch.ones(2))
    assert seen == [True, False] and not compat.jvp_is_open()


class CountingMode(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_tensors_that_somebody_differentiates():
    x = torch.ones(2)
    assert not compat.is_differentiated(x) and not compat.is_differentiated(3)
    seen = []
    torch.func.grad(lambda y: (seen.append(compat.is_differentiated(y)) or y).sum())(x)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        seen += [compat.is_differentiated(dual), compat.is_differentiated(x)]
    assert seen == [True, True, False]


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


def test_functions_that_transforms_refuse():
    x = torch.ones(2, requires_grad=True)
    for function, is_refused in ((TakesContext, True), (SetsContextUp, False)):
        assert compat.is_refused_by_transforms(function.apply(x).grad_fn) is is_refused
        with pytest.raises(RuntimeError, match="setup_context") if is_refused else contextlib.nullcontext():
            torch.func.grad(lambda x, function=function: function.apply(x).sum())(x)
    assert not compat.is_refused_by_transforms((x * 2).grad_fn)


def test_nodes_of_autograd_functions():
    x = torch.ones(2, requires_grad=True)
    assert [compat.is_custom_node(result.grad_fn) for result in (SetsContextUp.apply(x), x * 2)] == [True, False]


def test_tensors_as_they_are_outside_of_the_gradient_that_is_taken():
    seen = []

    def look(x, y):
        seen.append([tensor.requires_grad for tensor in compat.below_gradient([x, y], [0])])
        return (x * y).sum()

    x, y = torch.ones(2), torch.ones(2, requires_grad=True)
    torch.func.grad(look)(x, y)
    torch.func.grad(lambda y: torch.func.grad(look)(x, y).sum())(x)
    look(x, y)
    assert seen == [[False, True], [False, True], [False, True]]


def test_open_vmaps():
    seen = []
    torch.func.vmap(torch.func.vmap(lambda x: seen.append(compat.open_vmaps()) or x))(torch.ones(2, 3))
    torch.func.grad(lambda x: seen.append(compat.open_vmaps()) or x.sum())(torch.ones(2))
    assert seen == [2, 0]


def test_what_autocast_keeps():
    weight = torch.ones(2, 2, requires_grad=True)
    kept = [compat.autocast_keeps(tensor) for tensor in (weight, weight * 1, weight.detach())]
    assert kept == [True, False, False]
    with torch.autocast("cpu", torch.bfloat16):
        for tensor, is_kept in zip((weight, weight * 1), kept, strict=False):
            casts = [torch.mm(tensor, tensor).grad_fn.next_functions[0][0] for _ in range(2)]
            assert (casts[0] is casts[1]) is is_kept


def test_frames_that_dynamo_leaves_alone():
    """A hook is called where Dynamo is active; `autograd.grad` is no part of a graph."""

    def compiled_graphs(hook):
        graphs = []
        x = torch.zeros(2, requires_grad=True)
        x.register_hook(hook)
        torch._dynamo.reset()
        outer = torch.compile(lambda: torch.autograd.grad(x.sum(), x), backend=lambda g, _: graphs.append(g) or g.forward)
        assert torch.equal(outer()[0], torch.ones(2).sin() * 2)
        return "".join(graph.code for graph in graphs)

    def seen(gradient):
        return gradient.sin() * 2

    def hidden(gradient):
        return seen(gradient)

    assert "sin" in compiled_graphs(seen) and "sin" not in compiled_graphs(compat.hidden_from_dynamo(hidden))


def test_devices_that_may_draw():
    assert compat.device_types_that_draw() == (("cuda",) if torch.cuda.is_initialized() else ())


def test_an_edge_keeps_the_graph_and_not_the_tensor():
    x = torch.ones(2, requires_grad=True)
    result = x * 2
    edge, alive = compat.edge_of(result), weakref.ref(result)
    del result
    assert alive() is None and compat.edge_of(torch.ones(2)) is None
    assert torch.equal(torch.autograd.grad([edge], x, [torch.ones(2)])[0], 2 * torch.ones(2))


def test_gradients_inside_are_none_where_there_are_none():
    x, y = torch.ones(2), torch.ones(2, requires_grad=True)
    found = compat.gradients_inside(lambda x, y: (x.detach(), y**3), [x, y], [x, x])
    assert found[0] is None and torch.equal(found[1], 3 * x)
    assert torch.equal(torch.autograd.grad(found[1].sum(), y)[0], 6 * x)
    assert compat.gradients_inside(lambda x: (x.detach(),), [x], [x]) == [None]


SCRIPTS = pytest.mark.filterwarnings("ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning")
"""The first use of forward mode scripts functions, which torch itself deprecates."""


@SCRIPTS
def test_dual_numbers_are_taken_apart_and_made():
    x, tangent = torch.ones(2), torch.arange(2.0)
    assert compat.unpack_dual(3) == compat.Dual(3, None)
    assert not compat.is_transformed([x])
    with compat.forward_mode_level(), compat.forward_mode_level():
        dual = compat.pack_dual(compat.Dual(x, tangent), None)
        assert compat.is_transformed([1, dual]) and not compat.is_transformed([x])
        assert compat.only_forward_mode()
        found = compat.unpack_dual(dual)
        assert torch.equal(found.primal, x) and torch.equal(found.tangent, tangent)
        assert compat.unpack_dual(x).tangent is None


@SCRIPTS
def test_dual_numbers_of_a_jvp_transform():
    def double(x):
        assert compat.only_forward_mode() and compat.is_transformed([])
        found = compat.unpack_dual(x)
        assert not compat.is_wrapped(found.primal) and not compat.is_wrapped(found.tangent)
        with compat.outside_transforms() as level:
            doubled = compat.Dual(found.primal * 2, found.tangent * 2)
        return compat.pack_dual(doubled, level)

    primal, tangent = torch.func.jvp(double, (torch.ones(2),), (torch.arange(2.0),))
    assert torch.equal(primal, torch.full((2,), 2.0)) and torch.equal(tangent, torch.arange(2.0) * 2)
    torch.func.grad(lambda x: x.sum() * (1 if compat.only_forward_mode() else 0))(torch.ones(2))


def test_below_jvp_makes_symbolic_zeros_real():
    zeros = torch._efficientzerotensor(3)
    assert zeros._is_zerotensor()
    assert not compat.below_jvp(zeros)._is_zerotensor()


def test_autocast_as_an_earlier_state():
    x = torch.ones(2, 2)
    off: compat.AutocastState = compat.autocast_state()
    with torch.autocast("cpu", torch.bfloat16):
        on = compat.autocast_state()
        with compat.autocast_as(off):
            assert (x @ x).dtype == torch.float32
            assert compat.autocast_state() == off
        assert (x @ x).dtype == torch.bfloat16
    with compat.autocast_as(on):
        assert (x @ x).dtype == torch.bfloat16
        assert compat.autocast_state() == on
    assert compat.autocast_state() == off


def test_any_functional_tells_traced_tensors(fake_mode):
    assert not compat.any_functional([torch.ones(2), 3])
    with fake_mode, compat.functional_mode(lambda: torch.ones(0)):
        assert compat.any_functional([3, compat.to_functional(torch.ones(2))])


@SCRIPTS
def test_forward_mode_is_open_inside_a_level():
    assert not compat.forward_mode_is_open()
    with compat.forward_mode_level():
        assert compat.forward_mode_is_open()


# --- values that a trace reads -----------------------------------------------------------------------------------------


def test_a_shape_environment_asks_what_depends_on_values():
    mode, asked = compat.new_fake_mode(), []
    fake = mode.from_tensor(torch.tensor(3))
    with mode:
        number = fake.item()
        with pytest.raises(compat.GuardOnDataDependentSymNode):
            bool(number > 2)
        with compat.answered_by(mode, lambda expression: asked.append(str(expression)) or True):
            assert number > 2
            assert isinstance(mode.shape_env, compat.AskingShapeEnv)
        with pytest.raises(compat.GuardOnDataDependentSymNode):
            bool(number > 2)
    assert asked == ["u0 > 2"]
    assert compat.is_symbol(number, "u0")
    assert compat.was_symbol(number, "u0")
    assert not compat.was_symbol(3, "u0")


def test_a_bool_that_is_read_is_a_comparison_of_a_symbol():
    mode = compat.new_fake_mode()
    fake = mode.from_tensor(torch.tensor(True))
    with mode:
        assert compat.was_symbol(fake.item(), "u0")


def test_what_torch_assumes_of_values_is_listed():
    mode = compat.new_fake_mode()
    fake = mode.from_tensor(torch.tensor(3))
    with mode:
        number = fake.item()
        torch._check(number < 5)
    assert list(map(str, compat.deferred_checks(mode))) == ["u0 < 5"]
    assert compat.was_symbol(number, "u0")


def test_ops_that_read_values_have_the_tags():
    tags = {op: op.tags for op in compat.READS_VALUES}
    sizes = {op for op, read in compat.READS_VALUES.items() if read is compat.Read.SIZES}
    assert all(torch.Tag.dynamic_output_shape in tags[op] for op in sizes)
    assert all(torch.Tag.data_dependent_output in tags[op] for op in tags.keys() - sizes)


def test_the_python_dispatcher_is_left():
    called = []

    def kernel(input, p, train):
        called.append(p)
        return input

    with compat.replaced_kernels(aten.dropout.default, lambda python_kernel, *args: kernel(*args)):
        with compat.enable_python_dispatcher():
            torch.dropout(torch.ones(2), 0.5, True)
        with compat.enable_python_dispatcher(), compat.no_python_dispatcher():
            torch.dropout(torch.ones(2), 0.25, True)
    assert called == [0.5]


def test_random_ops_that_run_in_advance_leave_the_generator_alone():
    draw = compat.RandomReplay()
    torch.manual_seed(0)
    with draw():
        first = torch.rand(2)
    with draw():
        second = torch.rand(2)
    assert torch.equal(torch.cat([first, second]), torch.rand(4))


def test_a_traced_tensor_forgets_its_value():
    graph = compat.PythonKeyTracer()
    mode = compat.new_fake_mode()
    fake = mode.from_tensor(torch.tensor(3.0))
    fake.constant = torch.tensor(3.0)
    assert compat.is_constant(fake, graph)
    compat.forget_constant(fake, graph)
    assert not compat.is_constant(fake, graph)


def test_the_text_of_an_expression_is_evaluated():
    mode = compat.new_fake_mode()
    fake = mode.from_tensor(torch.tensor(3))
    with mode:
        text, names = compat.expression_text((fake.item() // 2 + 1).node.expr)
    assert names == ["u0"]
    assert eval(compat.compiled_text(text), compat.text_namespace(), {"u0": 7}) == 4


def test_what_answers_reads_of_values_is_asked_by_the_functional_mode(fake_mode):
    class Answers(compat.ReadsValues):
        def wants(self, op, args):
            return op is aten.equal.default

        def result(self, op, args, kwargs):
            return True

    fake = fake_mode.from_tensor(torch.ones(2))
    with fake_mode, compat.functional_mode(lambda: torch.empty(0), Answers()):
        x = compat.to_functional(fake)
        assert aten.equal.default(x, x) is True


def test_the_lengths_of_a_ctc_loss_may_be_numbers():
    log_probs = torch.randn(5, 2, 4).log_softmax(2)
    args = (log_probs, torch.ones(2, 3, dtype=torch.int64), (5, 4), (3, 0))
    for reduction in (0, 1, 2):
        torch.testing.assert_close(
            compat.ctc_loss_of_lists(*args, reduction=reduction), aten.ctc_loss.IntList(*args, reduction=reduction)
        )


# --- Plain data ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [torch.ops.aten.add.Tensor, torch.ops.aten.relu.default, torch.ops.prims.sin.default])
def test_operators_are_found_by_their_names(op):
    assert compat.op_named(compat.op_name(op)) is op
    assert compat.op_name(torch.ops.aten.add.Tensor) == "aten::add.Tensor"


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.relu, "torch.relu"),
        (torch.nn.functional.gelu, "torch._C._nn.gelu"),
        (torch.nn.functional.cross_entropy, "torch.nn.functional.cross_entropy"),
        (operator.add, "_operator.add"),
        (getattr, "getattr"),
        (torch.ops.aten.sin.default, "aten::sin"),
        (lambda x: x, None),
        (json.dumps, None),
    ],
)
def test_functions_of_torch_and_python_have_names(function, name):
    assert compat.function_name(function) == name
    assert name is None or compat.function_named(name) is function


def test_a_function_in_the_place_of_one_of_torchs_has_no_name(monkeypatch):
    original = torch.nn.functional.cross_entropy

    def cross_entropy(*args):
        return original(*args)

    cross_entropy.__module__, cross_entropy.__qualname__ = "torch.nn.functional", "cross_entropy"
    assert compat.function_name(cross_entropy) is None


def test_the_names_of_higher_order_operators():
    assert compat.higher_order_name(torch.ops.higher_order.cond) == "cond"
    assert compat.higher_order_name(torch.relu) is None


def test_fakes_in_one_memory_share_it(fake_mode):
    memory = compat.meta_storage(32)
    one, other = (compat.fake_in(fake_mode, memory, torch.float32, torch.device("cpu"), [2, 2], [2, 1], k) for k in (0, 4))
    assert compat.storage_key(one) == compat.storage_key(other) and compat.storage_bytes(one) == 32
    assert (one.device.type, one.dtype, other.storage_offset(), one.fake_mode) == ("cpu", torch.float32, 4, fake_mode)
    assert (one + other).shape == (2, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.bfloat16, torch.complex64, torch.int8])
def test_the_bytes_of_a_tensor(dtype):
    for tensor in (torch.arange(6).to(dtype).view(2, 3).t(), torch.empty(0, 2, dtype=dtype), torch.ones((), dtype=dtype)):
        again = compat.tensor_of_bytes(compat.bytes_of(tensor), dtype, list(tensor.size()), list(tensor.stride()))
        assert torch.equal(again, tensor) and again.stride() == tensor.stride()


def test_replaced_rules_of_operators():
    assert compat.replaced_rules() == []
    library = torch.library.Library("aten", "IMPL")
    library.impl("special_i1", lambda x: x, "CompositeExplicitAutograd")
    try:
        assert compat.replaced_rules() == ["special_i1"]
    finally:
        library._destroy()


def test_global_settings_are_those_of_now():
    before = compat.global_settings()
    assert compat.global_settings() == before
    with torch.no_grad():
        assert compat.global_settings() != before
    with torch.autocast("cpu", torch.float16):
        assert compat.global_settings() != before
    assert eval(repr(before)) == before, "plain values"


def test_the_build_of_torch():
    assert compat.torch_build()[0] == torch.__version__


def test_a_mode_of_the_users_own_is_no_default():
    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    assert compat.function_modes_are_defaults()
    with torch.device("cpu"):
        assert compat.function_modes_are_defaults()
    with Mode():
        assert not compat.function_modes_are_defaults()


@inductor
def test_inductors_key_is_that_of_its_configuration():
    before = compat.inductor_key()
    assert before is not None and compat.inductor_key() == before
    with compat.inductor_configured("max-autotune-no-cudagraphs"):
        assert compat.inductor_key() not in (before, None)
    with compat.inductor_configured("default", layout_optimization=False):
        assert compat.inductor_key() not in (before, None)
    for name in ("post_grad_custom_post_pass", "joint_custom_pre_pass"):
        assert name.startswith(compat.INDUCTOR_PASSES)
        with compat.inductor_configured("default", **{name: lambda graph: None}):
            assert compat.inductor_key() is None


def test_what_has_the_same_text_in_every_process():
    assert compat.is_stable({"a": [1, (None, 2.0)], "b": {"x", "y"}}) and not compat.is_stable([object()])
    assert compat.stable_text({"b", "a"}) == compat.stable_text({"a", "b"}) and compat.stable_text((1,)) == "(1,)"


@inductor
def test_what_inductor_made_is_loaded_again(fake_mode):
    module, fake = graph_of_sin_cos(fake_mode)
    with compat.inductor_context(fake_mode, "default"):
        made = compat.inductor_compile(module, [fake], static_input_idxs=[], **compat.inductor_graph_settings(False))
    loaded = compat.inductor_load(compat.inductor_dump(made), is_backward=False)
    x = torch.rand(4)
    assert torch.equal(loaded([x.clone()])[0], made([x.clone()])[0])
    module = types.ModuleType("again")
    module.call = compat.inductor_module(made).call
    with_module = compat.inductor_load_module(compat.inductor_dump(made), module, is_backward=False)
    assert torch.equal(with_module([x.clone()])[0], made([x.clone()])[0])
    kernel = next(value for name, value in vars(compat.inductor_module(made)).items() if name.startswith("cpp_"))
    assert compat.kernel_in(*compat.library_of(kernel)) is kernel
    assert compat.inductor_dump(lambda inputs: inputs) is None


@inductor
def test_cpp_kernels_go_through_a_compiler_of_ours(fake_mode):
    seen = []

    def compile_all(kernels: list) -> list:
        seen.extend(kernels)
        return [compat.start_cpp_kernel(*kernel)() for kernel in kernels]

    module, fake = graph_of_sin_cos(fake_mode)
    settings = compat.inductor_graph_settings(False)
    through = compat.cpp_kernels_through(compile_all, lambda types, source: (types, source))
    with fresh_cache(), compat.inductor_context(fake_mode, "default"), through:
        made = compat.inductor_compile(module, [fake], static_input_idxs=[], **settings)
    ((types, source),) = seen
    assert types == ("const float*", "float*") and "kernel(" in source
    x = torch.rand(4)
    assert torch.equal(made([x.clone()])[0], x.sin().cos())


@inductor
@pytest.mark.parametrize("threads", [1, 2])
def test_cpp_libraries_are_modules(threads):
    source = """
    #include <Python.h>
    static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "kernel", nullptr, -1, nullptr};
    PyMODINIT_FUNC PyInit_kernel(void) { return PyModule_Create(&definition); }
    """
    with compat.inductor_configured("default", compile_threads=threads):
        assert compat.cpp_compilers() == threads and (compat.submit_cpp() is None) is (threads == 1)
        module = compat.start_cpp_library(f"{source}// {threads}")()
    assert isinstance(module, types.ModuleType)


@inductor
def test_the_names_of_decompositions(monkeypatch):
    table = compat.inductor_decompositions()
    names = dict(compat.names_of_decompositions(table))
    assert len(names) == len(table) and names["aten.silu.default"].startswith("torch.")
    assert compat.names_of_decompositions({torch.ops.aten.sin.default: torch.ops.aten.cos.default}) == [
        ("aten.sin.default", "aten.cos.default")
    ]
    assert compat.names_of_decompositions({torch.ops.aten.sin.default: lambda x: x}) is None
    assert compat.DECOMPOSITIONS in sys.modules
    monkeypatch.setattr(compat, "_own_decompositions", table)
    assert compat.names_of_inductor_decompositions() == []
    monkeypatch.setattr(compat, "_own_decompositions", {})
    assert len(compat.names_of_inductor_decompositions()) == len(table)


# --- checks in a backward ------------------------------------------------------------------------------------------------


def test_the_first_gradient_of_ormqr_lies_as_its_input():
    x, tau, other = torch.randn(3, 3).t().requires_grad_(), torch.rand(3), torch.randn(3, 3)
    node = torch.ormqr(x, tau, other).grad_fn
    handle = compat.keep_gradient_layout(node)
    assert node.name() in compat.LAID_OUT_AS
    assert handle is not None
    handle.remove()
    assert compat.keep_gradient_layout((x * 2).grad_fn) is None


def test_istft_is_the_kernel_of_eager():
    window = torch.ones(16)
    spectrum = torch.stft(torch.randn(40), 16, window=window, return_complex=True)
    called = []
    result = compat.eager_istft(lambda *args: called.append(args), spectrum, 16, window=window)
    assert torch.equal(result, torch.istft(spectrum, 16, window=window))
    assert called == []


@pytest.mark.parametrize("decompose", [torch.linalg.eig, torch.linalg.eigh])
def test_eigenvectors_are_checked_as_in_eager(decompose):
    x = torch.randn(3, 3, dtype=torch.complex128)
    x = (x + x.mH).requires_grad_()
    vectors = decompose(x)[1]
    assert vectors.grad_fn.name() in compat.CHECKED_EIGENVECTORS
    assert compat.PHASE in compat.CHECKED_EIGENVECTORS[vectors.grad_fn.name()]
    compat.keep_check(vectors.grad_fn).remove()
    for gradient in (torch.zeros_like(vectors), torch.ones_like(vectors)):
        errors = [raised(compat.check_eigenvectors, vectors.grad_fn, gradient)]
        errors.append(raised(torch.autograd.grad, vectors, x, gradient, retain_graph=True))
        assert errors[0] == errors[1]
    assert errors[0] is not None


def raised(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None


def test_what_svd_asks_in_its_backward_is_known():
    asked = []

    class Asking(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            asked.append(compat.check_of_running_node(op))
            return op(*args, **(kwargs or {}))

    x = torch.randn(3, 3, dtype=torch.complex128, requires_grad=True)
    loss = torch.linalg.svd(x)[0].abs().sum()
    with Asking(), torch.no_grad():
        torch.autograd.grad(loss, x, retain_graph=True)
    assert set(asked) == {None, compat.CHECKED["LinalgSvdBackward0"]}
    message = raised(torch.autograd.grad, torch.linalg.svd(x)[0].real.sum(), x)
    assert message == compat.CHECKED["LinalgSvdBackward0"]


def test_what_values_decide_the_size_of_is_computed_before_it_is_written(fake_mode):
    tracing = Tracing(fake_mode, torch.ones(3))
    with tracing.active() as x, compat.answered_by(fake_mode, lambda _: False):
        out = torch.zeros(3, 1, dtype=torch.int64)
        written = compat.computed_and_written(tracing.functional_mode, aten.nonzero.out, (), (x,), {"out": out})
    assert written is out
    assert compat.COMPUTED_BEFORE_WRITTEN[aten.nonzero.out] is aten.nonzero.default
    assert "aten.nonzero.default" in tracing.recorded()
