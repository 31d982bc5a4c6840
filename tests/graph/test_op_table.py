"""Facts about ops, from schemas, tags and tables."""

from __future__ import annotations

import operator

import pytest
import torch
import torch._inductor.inductor_prims  # some of the ops that the tables name
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.graph import op_table

aten, prims = torch.ops.aten, torch.ops.prims


@pytest.mark.parametrize(
    "target, expected",
    [
        (aten._unsafe_view.default, True),
        (aten.alias.default, True),
        (aten.clone.default, False),
        (aten.contiguous.default, False),
        (aten.copy_.default, False),
        (aten.reshape.default, False),
        (aten.split.Tensor, True),
        (aten.t.default, True),
        (aten.view.default, True),
        (operator.getitem, False),
    ],
)
def test_views(target, expected):
    assert op_table.is_view(target) is expected


@pytest.mark.parametrize(
    "target",
    [aten.bernoulli.p, aten.native_dropout.default, aten.rand_like.default, aten.randperm.default],
)
def test_random_ops_run_once_and_are_never_cheap(target):
    assert op_table.is_random(target) and op_table.runs_once(target) and not op_table.is_cheap(target)


@pytest.mark.parametrize(
    ("target", "each"),
    [
        (aten.bernoulli.p, True),
        (aten.native_dropout.default, True),
        (aten.uniform.default, True),
        (aten.sin.default, False),
        (aten.randperm.default, False),
        (aten._scaled_dot_product_flash_attention.default, False),
        (aten._cudnn_rnn.default, False),
    ],
)
def test_which_random_ops_draw_each_element_by_itself(target, each):
    assert op_table.draws_each(target) is each


@pytest.mark.parametrize(
    ("dropout", "draws"), [((), False), ((0.0,), False), ((0.1,), True)], ids=["by default", "none", "some"]
)
def test_attention_draws_only_for_dropout(dropout, draws):
    graph = fx.Graph()
    q, k, v = map(graph.placeholder, "qkv")
    op = aten._scaled_dot_product_flash_attention_for_cpu.default
    assert op_table.is_random(op)
    assert op_table.draws(graph.call_function(op, (q, k, v, *dropout))) is draws
    recorded = graph.call_function(torch_compat.draw_and_record, (op, q, k, v), {"dropout_p": 0.1} if draws else {})
    assert op_table.draws(recorded) is draws
    assert not op_table.draws(q)


def test_a_random_op_with_the_pointwise_tag_is_not_cheap():
    assert torch.Tag.pointwise in aten.rrelu.default.tags
    assert not op_table.is_cheap(aten.rrelu.default)


@pytest.mark.parametrize(
    "target",
    [
        aten._assert_async.msg,  # returns nothing
        aten._assert_scalar.default,
        aten.copy_.default,  # writes an argument
        torch.ops.profiler._record_function_enter_new.default,
    ],
)
def test_effects(target):
    assert op_table.has_effect(target) and op_table.runs_once(target)


@pytest.mark.parametrize("target", [aten.add.Tensor, aten.mm.default, aten.sym_size.int, operator.add, operator.getitem])
def test_no_effects(target):
    assert not op_table.runs_once(target)


@pytest.mark.parametrize("target", [aten._to_copy.default, aten.exp.default, aten.full.default, aten.where.self])
def test_cheap(target):
    assert op_table.is_cheap(target)


@pytest.mark.parametrize(
    "target",
    [
        aten._softmax.default,
        aten.convolution.default,
        aten.cumsum.default,
        aten.mm.default,
        aten.sort.default,
        aten.sum.dim_IntList,
    ],
)
def test_not_cheap(target):
    assert not op_table.is_cheap(target)


def test_numbers_read_from_data_are_not_symbolic_arithmetic():
    assert not op_table.computes_sizes(aten._local_scalar_dense.default)
    assert op_table.computes_sizes(operator.mul) and op_table.computes_sizes(aten.sym_size.int)


def test_values_that_are_read():
    graph = torch.fx.Graph()
    x, mean, var = (graph.placeholder(name) for name in ("x", "mean", "var"))
    norm = graph.call_function(aten._native_batch_norm_legit_functional.default, (x, None, None, mean, var, True, 0.1, 1e-5))
    size = graph.call_function(aten.sym_size.int, (x, 0))
    assert [op_table.reads_value(node, x) for node in (norm, size)] == [True, False]
    assert not op_table.reads_value(norm, mean) and op_table.is_running_statistic(norm, var)
    updated = [graph.call_function(operator.getitem, (norm, k)) for k in (0, 3)]
    backward = (x, x, None, updated[1], var, None, None)
    graph.call_function(aten.native_batch_norm_backward.default, (*backward, True, 1e-5, [True] * 3))
    assert not op_table.reads_value(norm, mean)
    graph.call_function(aten.native_batch_norm_backward.default, (*backward, False, 1e-5, [True] * 3))
    assert op_table.reads_value(norm, mean) and list(map(op_table.is_new_statistic, updated)) == [False, True]
    evaluated = graph.call_function(norm.target, (x, None, None, mean, var, False, 0.1, 1e-5))
    assert op_table.reads_value(evaluated, mean)


@pytest.mark.parametrize("name", op_table.STATISTICS)
def test_where_running_statistics_stand(name):
    namespace, op = name.split(".")
    statistics, schema = op_table.STATISTICS[name], getattr(getattr(torch.ops, namespace), op).default._schema
    names = [argument.name for argument in schema.arguments]
    assert [names[k] for k in statistics.arguments] == ["running_mean", "running_var"]
    assert [schema.returns[k].name for k in statistics.results] == ["running_mean_out", "running_var_out"][
        : len(statistics.results)
    ] or "legit" in op
    assert statistics.training is None or names[statistics.training] in ("training", "train", "update")


def test_names():
    assert op_table.op_name(aten.add.Tensor) == "aten.add"
    assert op_table.short_name(aten.add.Tensor) == "add"
    assert op_table.op_name(torch.ops.higher_order.cond) == "higher_order.cond"


TABLES = {name: table for name, table in vars(op_table).items() if isinstance(table, frozenset)}


@pytest.mark.parametrize("name", [name for name in TABLES if name != "EFFECTFUL_NAMESPACES"])
def test_every_entry_names_an_op(name):
    for entry in TABLES[name]:
        namespace, *names = entry.split(".")
        assert operator.attrgetter(".".join(names))(getattr(torch.ops, namespace)), entry


METHOD_CALLS = {
    "aten.as_strided.default": ([2, 2], [1, 2], 1),
    "aten.diagonal.default": (0, 1, 2),
    "aten.expand.default": ([5, 2, 3, 4],),
    "aten.permute.default": ([2, 0, 1],),
    "aten.select.int": (1, 2),
    "aten.squeeze.dim": (0,),
    "aten.transpose.int": (0, 2),
    "aten.unsqueeze.default": (1,),
    "aten.view.default": ([6, 4],),
}


@pytest.mark.parametrize("name", op_table.VIEW_METHODS)
def test_a_view_method_is_the_op_itself(name):
    _, packet, overload = name.split(".")
    op, args = getattr(getattr(aten, packet), overload), METHOD_CALLS.get(name, ())
    x = torch.randn(2, 3) if packet == "t" else torch.randn(2, 3, 4)
    x.requires_grad_()
    by_op, by_method = op(x, *args), getattr(x, op_table.VIEW_METHODS[name])(*args)
    assert (by_op.shape, by_op.stride()) == (by_method.shape, by_method.stride())
    assert by_op.storage_offset() == by_method.storage_offset()
    assert type(by_op.grad_fn) is type(by_method.grad_fn)
    assert by_op._base is by_method._base
