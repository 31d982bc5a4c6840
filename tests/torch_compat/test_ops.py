"""Feature tests of `aotgrad/torch_compat/ops.py`."""

from __future__ import annotations

import json
import operator

import pytest
import torch
from torch._decomp import core_aten_decompositions
from torch._higher_order_ops.effects import _EffectType as EffectType
from torch._higher_order_ops.effects import _register_effectful_op

from aotgrad import torch_compat as compat
from tests.torch_compat.tracing import VIEWS_TO_TRY

aten = torch.ops.aten


@pytest.mark.parametrize("view, lazy", [(compat.CONJUGATE, torch.Tensor.is_conj), (compat.NEGATE, torch.Tensor.is_neg)])
def test_lazy_views(view, lazy):
    x = torch.ones(2, dtype=torch.complex64)
    assert lazy(view(x)) and view(x)._base is x


def test_is_built_in():
    assert compat.is_built_in(aten.sin.default)
    assert not compat.is_built_in(torch.ops.aotgrad.offload.default)


def test_has_registered_effect():
    library = torch.library.Library("aotgrad_compat", "FRAGMENT")
    library.define("loud(Tensor x) -> Tensor")
    op = torch.ops.aotgrad_compat.loud.default
    assert not compat.has_registered_effect(op)
    handle = _register_effectful_op("aotgrad_compat::loud", EffectType.ORDERED)
    assert compat.has_registered_effect(op)
    handle.destroy()
    assert not any(map(compat.has_registered_effect, (op, torch.ops.aten.sin.default, torch.sin)))


def test_an_unsafe_view_is_in_the_memory_of_its_argument():
    x = torch.ones(4)
    assert compat.unsafe_view(x, [2, 2]).data_ptr() == x.data_ptr()
    assert not compat.is_view_by_schema(compat.unsafe_view)


def test_to_becomes_a_cast():
    assert compat.cast(torch.ones(1), dtype=torch.float64).dtype == torch.float64
    graph = torch.fx.experimental.proxy_tensor.make_fx(lambda x: x.to(torch.float64))(torch.ones(1)).graph
    assert [node.target for node in graph.nodes if node.op == "call_function"] == [compat.cast]


def test_every_ordinary_view_is_tried():
    assert VIEWS_TO_TRY.keys() == compat.ORDINARY_VIEWS


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


def test_decompositions_for_inference_only():
    """Remove one from the table whose results are those of the op."""
    (attention,) = compat.FOR_INFERENCE_ONLY
    x = torch.rand(1, 2, 4, 8)
    result, logarithms = attention(x, x, x)
    decomposed, weights = core_aten_decompositions()[attention](x, x, x)
    torch.testing.assert_close(decomposed, result)
    assert weights.shape != logarithms.shape


def test_effectful_ops_are_wrapped():
    assert compat.is_effect_wrapper(torch.ops.higher_order.with_effects)
    assert not compat.is_effect_wrapper(aten.sin.default)


def test_what_is_said_of_an_operator():
    mutable, plain = (compat.op_description(op) for op in (aten.add_.Tensor, aten.add.Tensor))
    assert mutable != plain and "Tensor(a!)" in mutable and "pointwise" in plain


def test_a_higher_order_operator_by_name():
    assert compat.higher_order_named("cond") is torch.ops.higher_order.cond


def test_decompositions_by_overload():
    assert set(compat.decompositions_of([aten.elu])) >= {aten.elu.default}


def test_ops_that_read_values_have_the_tags():
    tags = {op: op.tags for op in compat.READS_VALUES if op not in compat.READS_ENTRIES}
    sizes = {op for op, read in compat.READS_VALUES.items() if read is compat.Read.SIZES} & tags.keys()
    assert all(torch.Tag.dynamic_output_shape in tags[op] for op in sizes)
    assert all(torch.Tag.data_dependent_output in tags[op] for op in tags.keys() - sizes)


INDICES, VALUES = torch.tensor([[0, 0, 1], [1, 1, 2]]), torch.ones(3)


def entries(sparse):
    return sparse._nnz(), sparse.is_coalesced()


def test_what_a_fake_knows_of_the_entries_that_it_is_made_of():
    given = (INDICES, VALUES, (4, 4))
    makes = {
        aten._sparse_coo_tensor_unsafe.default: lambda indices, values, size: (indices, values, size),
        aten._sparse_coo_tensor_with_dims.default: lambda indices, values, size: (2, 0, size),
        aten._sparse_coo_tensor_with_dims_and_tensors.default: lambda indices, values, size: (2, 0, size, indices, values),
    }
    assert makes.keys() == compat.MAKES_ENTRIES
    settings = {"dtype": torch.float32, "layout": torch.sparse_coo, "device": "cpu"}
    for op, arguments in makes.items():
        with compat.new_fake_mode() as mode:
            fake = op(*arguments(mode.from_tensor(INDICES), mode.from_tensor(VALUES), (4, 4)), **settings)
            told = entries(fake)
            compat.set_coalesced(fake, True)
            assert compat.is_coalesced(fake)
        assert told == entries(op(*arguments(*given), **settings))


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_ops_that_keep_the_entries_of_an_argument():
    sparse = torch.sparse_coo_tensor(INDICES, VALUES, (4, 4))
    for op, place in compat.KEEPS_ENTRIES.items():
        for source in (sparse, sparse.coalesce()):
            arguments = [torch.ones(4, 4), source] if place else [source]
            kept = op(*arguments)
            assert entries(kept) == entries(source) and torch.equal(kept._indices(), source._indices())


def test_ops_that_coalesce():
    sparse, dense = torch.sparse_coo_tensor(INDICES, VALUES, (4, 4)), torch.ones(4, 4)
    arguments = {aten._coalesce.default: (sparse,), aten._to_sparse.default: (dense,)}
    arguments[aten._to_sparse.sparse_dim] = (dense, 1)
    assert arguments.keys() == compat.COALESCES
    assert all(op(*values).is_coalesced() for op, values in arguments.items())


def test_ops_that_tell_of_entries():
    assert all(op in compat.READS_VALUES for op in compat.READS_ENTRIES)
    assert all(getattr(torch.ops.aten, name).default in compat.READS_ENTRIES for name in compat.PARTS_OF_SPARSE)
    sparse = torch.sparse_coo_tensor(INDICES, VALUES, (4, 4)).coalesce()
    told = {op: op(sparse) for op in compat.READS_ENTRIES if "row" not in str(op) and "col_" not in str(op)}
    assert told[aten._nnz.default] == 2 and told[compat.is_coalesced] is True
    assert torch.equal(told[aten.values.default], sparse.values())


@pytest.mark.parametrize("op", [torch.ops.aten.add.Tensor, torch.ops.aten.relu.default, torch.ops.prims.sin.default])
def test_operators_are_found_by_their_names(op):
    assert compat.op_named(compat.schema_name(op)) is op
    assert compat.schema_name(torch.ops.aten.add.Tensor) == "aten::add.Tensor"


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


def test_replaced_rules_of_operators():
    assert compat.replaced_rules() == []
    library = torch.library.Library("aten", "IMPL")
    library.impl("special_i1", lambda x: x, "CompositeExplicitAutograd")
    try:
        assert compat.replaced_rules() == ["special_i1"]
    finally:
        library._destroy()


def test_numbers_and_lists_in_graphs():
    assert compat.read_number(torch.tensor(0.5)) == 0.5
    assert compat.assert_later(torch.tensor(True), "not raised") is None
    with pytest.raises(RuntimeError, match="not so"):
        compat.assert_later(torch.tensor(False), "not so")
    (found,) = compat.foreach_op("add", "Scalar")([torch.ones(2)], 2)
    assert torch.equal(found, torch.full((2,), 3.0))


def test_a_function_of_compiled_autograd_that_is_numbered_has_no_name():
    from torch._dynamo import compiled_autograd

    name = compiled_autograd.ops.add("Numbered", lambda: None, is_custom_function=True, is_traceable=True)
    assert compat.function_name(compiled_autograd.ops.get(name)) is None


def test_changed_arguments():
    x, mean, deviation = torch.ones(4, 3), torch.zeros(3), torch.ones(3)
    args = (x, None, None, mean, deviation, True, 0.1, 1e-5)
    changed = compat.changed_arguments(aten.native_batch_norm.default, args, {})
    aten.native_batch_norm(*args)
    assert changed[0] is mean and changed[1] is deviation and mean[0] > 0 and deviation[0] < 1
    assert not compat.changed_arguments(aten.native_batch_norm.default, (*args[:5], False, *args[6:]), {})
    (changed,) = compat.changed_arguments(aten.add_.Tensor, (x, mean), {})
    assert changed is x


def test_overloads_in_place():
    assert compat.overload_in_place(aten.add.Tensor) is aten.add_.Tensor
    assert compat.overload_in_place(aten._foreach_mul.Scalar) is aten._foreach_mul_.Scalar
    assert compat.overload_in_place(aten.mm.default) is None
    assert compat.argument_names(aten.add.Tensor) == ("self", "other", "alpha")
    assert compat.written_names(aten.add_.Tensor) == ("self",) and compat.written_names(aten.add.Tensor) == ()
    assert compat.arguments_by_name(aten.add.Tensor, (1, 2), {"alpha": 3}) == {"self": 1, "other": 2, "alpha": 3}


@pytest.mark.parametrize("op", ["sin", "sin.out", "relu_", "bernoulli", "_assert_async", "sym_constrain_range"])
def test_which_built_in_ops_torch_keeps(op):
    name, _, overload = op.partition(".")
    target = getattr(getattr(torch.ops.aten, name), overload or "default")
    node = torch.fx.Graph().call_function(target)
    assert compat.is_impure(node) == node.is_impure()
    assert compat.is_impure(node) == (op not in ("sin", "_assert_async"))
    assert not compat.is_impure(torch.fx.Graph().call_function(len))
