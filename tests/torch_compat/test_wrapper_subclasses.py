"""Feature tests of `aotgrad/torch_compat/wrapper_subclasses.py`."""

from __future__ import annotations

import torch
from torch.distributed.tensor import Shard
from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext
from torch.testing._internal.two_tensor import TwoTensor

from aotgrad import torch_compat as compat
from tests.torch_compat.tracing import Tracing


def two() -> TwoTensor:
    return TwoTensor(torch.ones(3), torch.zeros(3))


def test_a_wrapper_is_told_from_other_tensors() -> None:
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert compat.is_wrapper_subclass(two()) and compat.is_wrapper_subclass(jagged)
    assert not compat.is_wrapper_subclass(torch.ones(3))


def test_what_a_wrapper_consists_of() -> None:
    assert compat.flattened(two()) == (["a", "b"], None)
    assert [type(each) for each in compat.with_parts([two(), 3])][1:] == [int, torch.Tensor, torch.Tensor]


def test_another_object_has_the_same_memory_and_no_history() -> None:
    x = torch.ones(3, requires_grad=True)
    other = compat.another_object(x)
    assert other is not x and other.data_ptr() == x.data_ptr() and not other.requires_grad


def test_another_object_in_a_trace_has_the_same_value(fake_mode) -> None:
    trace = Tracing(fake_mode, torch.ones(3))
    with trace.active():
        x = compat.to_functional(trace.fake)
        before = compat.from_functional(x)
        compat.another_object(x).add_(1)
        assert compat.from_functional(x) is not before


def test_a_part_gets_the_version_counter_of_its_wrapper() -> None:
    wrapper = two()
    alias = compat.alias_with_version(wrapper)
    part = compat.part_with_version(wrapper.a, wrapper)
    wrapper.add_(1)
    assert part.data_ptr() == wrapper.a.data_ptr() and part.tolist() == [2, 2, 2]
    assert part._version == alias._version == wrapper._version == 1 and wrapper.a._version == 0


def test_a_view_is_replayed_by_its_ops() -> None:
    x, other = two(), two()
    with compat.tracked_views():
        ops, numbers, tensors = compat.ops_of_view(x.view(3, 1))
    view = compat.replayed_view(ops, other, numbers)
    assert ops == (compat.ViewOp(torch.ops.aten.view.default, ([3, 1],), ()),) and numbers == tensors == []
    assert type(view) is type(x) and view.shape == (3, 1) and view._base is other


def test_a_view_of_a_piece_is_replayed_by_its_ops() -> None:
    x, other = two(), two()
    with compat.tracked_views():
        ops, _, _ = compat.ops_of_view(x.split([0, 0, 3])[1].unsqueeze(0))
    assert [op.item for op in ops] == [1, None]
    with compat.tracked_views():
        assert [op.item for op in compat.ops_of_view(x.split(3)[0])[0]] == [0]
    assert [len(ops[0].results(other)), compat.replayed_view(ops, other, []).shape] == [3, (1, 0)]


def test_symbolic_numbers_of_a_view_are_given() -> None:
    mode = compat.FakeTensorMode(shape_env=compat.ShapeEnv())
    x = mode.from_tensor(torch.ones(6), symbolic_context=StatelessSymbolicContext([DimDynamic.DYNAMIC]))
    with mode, compat.tracked_views():
        ops, numbers, _ = compat.ops_of_view(x.view(x.size(0), 1))
    assert ops[0].args == ([compat.Given.NUMBER, 1],) and numbers == [x.size(0)]
    assert compat.replayed_view(ops, torch.ones(4), [4]).shape == (4, 1)


def test_views_are_tracked_by_the_ops_that_make_them() -> None:
    """A base without `as_strided` has a view whose history is recreated after a change of the base."""
    with compat.tracked_views():
        assert torch._C._is_view_replay_enabled()
    assert not torch._C._is_view_replay_enabled()


def test_outside_of_modes() -> None:
    seen = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            seen.append(op)
            return op(*args, **(kwargs or {}))

    with Mode(), compat.outside_of_modes():
        torch.ones(2)
    assert seen == []


def test_a_device_mesh_is_told_from_other_values() -> None:
    mesh = object.__new__(torch.distributed.device_mesh.DeviceMesh)
    assert compat.is_device_mesh(mesh) and not compat.is_device_mesh(torch.ones(2))


def test_what_describes_a_dtensor_is_told_from_other_values() -> None:
    mesh = object.__new__(torch.distributed.device_mesh.DeviceMesh)
    assert compat.is_opaque_value(mesh) and compat.is_opaque_value(Shard(0))
    assert not compat.is_opaque_value(torch.ones(2)) and not compat.is_opaque_value([])


def test_a_function_that_gets_none_for_undefined_gradients_is_noted() -> None:
    class Two(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, keep):
            ctx.set_materialize_grads(not keep)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, one, other):
            return one, None

    x, given = torch.ones(2, requires_grad=True), torch.autograd.function.FunctionCtx.set_materialize_grads
    with compat.noted_materialization():
        noted = [compat.keeps_undefined(Two.apply(x, keep)[0].grad_fn) for keep in (True, False)]
    assert noted == [True, False] and torch.autograd.function.FunctionCtx.set_materialize_grads is given


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor_from_jagged(torch.ones(3), torch.tensor([0, 1, 3]))


def test_the_offsets_of_a_nested_tensor_stay_the_same_object() -> None:
    x = nested()
    assert compat.part_with_version(x.offsets(), x) is x.offsets()
    values, offsets = compat.other_objects([x.values(), x.offsets()], is_nested=True)
    assert offsets is x.offsets() and values is not x.values()
    assert compat.other_objects([offsets, offsets], is_nested=False)[1] is not offsets


def test_the_ragged_size_of_a_nested_tensor() -> None:
    ragged = torch.nested.nested_tensor_from_jagged(torch.ones(3, 5), torch.tensor([0, 1, 3])).size()
    (values,) = compat.symbolic_inputs(compat.new_fake_mode(), [torch.ones(3, 5)])
    found = map(compat.is_ragged_size, (ragged[1], compat.fixed_nested_int(ragged[1]), ragged[2], values.size(1)))
    assert list(found) == [True, True, False, False]


def test_offsets_in_a_trace_know_the_size_that_belongs_to_them(fake_mode) -> None:
    x = nested()
    for offsets in (torch.tensor([0, 1, 3]), x.offsets()):  # a fake of the latter has a symbol of its own
        fake = fake_mode.from_tensor(offsets)
        compat.remember_ragged_size({"_values": torch.ones(3), "_offsets": fake}, x.size())
        assert fake.nested_int_memo == x.size(1)


def test_cached_parts_of_a_nested_tensor_come_last() -> None:
    x = nested()
    assert x.unbind() and x._get_max_seqlen() == 2 and x._get_min_seqlen() == 1
    names, _ = compat.flattened(x)
    assert set(names[-2:]) == compat.CACHED_PARTS and not compat.CACHED_PARTS.intersection(names[:-2])


def test_a_view_of_a_nested_tensor_is_replayed() -> None:
    with compat.tracked_views():
        ops, numbers, _ = compat.ops_of_view((x := nested().clone()).view(*x.shape, 1))
    other = nested().clone()
    view = compat.replayed_view(ops, other, numbers)
    assert ops[0].args == ([2, compat.Given.RAGGED, 1],)
    assert view._base is other and view.size(1) == other.size(1) and view.dim() == 3


def test_a_nested_tensor_is_a_view_of_its_values() -> None:
    """Its offsets are what the op of the view takes."""
    x, values, offsets = nested(), torch.ones(4), torch.tensor([0, 3, 4])
    with compat.tracked_views():
        ops, numbers, tensors = compat.ops_of_view(x)
    view = compat.replayed_view(ops, values, numbers, [offsets])
    assert tensors == [x.offsets()] and view._base is values and view.offsets() is offsets


def test_lengths_of_a_nested_tensor_come_before_its_offsets(fake_mode) -> None:
    fakes = {name: fake_mode.from_tensor(torch.tensor([0, 1, 3])) for name in ("_offsets", "_lengths")}
    compat.remember_ragged_size(fakes, nested().size())
    assert fakes["_lengths"].nested_int_memo is not None and fakes["_offsets"].nested_int_memo is None


def test_a_class_with_a_dispatch_of_its_own() -> None:
    assert compat.dispatches_itself([torch.Tensor, TwoTensor]) and not compat.dispatches_itself([torch.nn.Parameter])


def test_the_dispatch_of_a_subclass_comes_before_functionalization(fake_mode) -> None:
    trace = Tracing(fake_mode, torch.ones(3))
    with trace.active():
        x = compat.to_functional(trace.fake)
        wrapper = TwoTensor(x, x) + 1
        assert type(wrapper) is TwoTensor and compat.is_functional(wrapper.a)


def test_an_autograd_function_may_say_that_its_gradients_arrive_together() -> None:
    def results(together: bool) -> bool:
        class Halves(torch.autograd.Function):
            arrives_whole = together

            @staticmethod
            def forward(ctx, x):
                return x * 1, x * 2

            @staticmethod
            def backward(ctx, a, b):
                return a + b

        first, _ = Halves.apply(torch.ones(2, requires_grad=True))
        return compat.gets_zeros(first.grad_fn)

    assert results(together=False) and not results(together=True)
    assert not compat.gets_zeros((torch.ones(2, requires_grad=True) * 2).grad_fn)


def test_a_tensor_can_be_marked_as_a_parameter() -> None:
    x = two()
    compat.mark_parameter(x)
    assert isinstance(x, torch.nn.Parameter)
