"""Bytes: whole storages, each index once if an op reads it once, hints for symbolic sizes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from aotgrad.partition import costs
from aotgrad.partition.decision import Objective
from aotgrad.partition.fusion import Kind
from aotgrad.partition.graphs import analyze_joint
from aotgrad.partition.items import _kind
from aotgrad.partition.min_cut import min_cut
from tests.partition.joints import grad, joint_of


def node_of(joint, name):
    return next(node for node in joint.module.graph.nodes if node.name == name)


def test_a_column_keeps_its_matrix_alive():
    column = torch.empty(10, 4)[:, 0]
    assert costs.allocated_bytes(column) == 160
    assert costs.dense_bytes(column) == 40
    assert costs.extent_bytes(column) == 37 * 4


def test_an_expanded_tensor_holds_one_element():
    expanded = torch.empty(1, dtype=torch.float64).expand(100)
    assert costs.extent_bytes(expanded) == costs.allocated_bytes(expanded) == 8


def test_empty_tensors_hold_nothing():
    assert costs.extent_bytes(torch.empty(0, 5)) == 0


def test_sparse_tensors_count_as_dense():
    sparse = torch.eye(3).to_sparse()
    assert costs.allocated_bytes(sparse) == 36


def test_a_mask_counts_as_more_than_its_bytes_and_less_than_a_float():
    joint = joint_of(lambda x: torch.where(x > 0, x, 1.0), grad(6, 5))
    mask, values = node_of(joint, "gt"), node_of(joint, "primals_1")
    assert costs.bytes_written(mask) == 6 * 5
    assert costs.bytes_written(mask) < costs.bytes_moved(mask) < costs.bytes_written(values)


def test_symbolic_sizes_count_with_their_hint():
    joint = joint_of(lambda x: x.sin(), grad(6, 5), dynamic=True)
    node = node_of(joint, "sin")
    assert isinstance(node.meta["val"].shape[0], torch.SymInt)
    assert costs.bytes_kept_alive(node) == 6 * 5 * 4


def test_a_size_without_a_hint_is_assumed():
    unbacked = ShapeEnv().create_unbacked_symint()
    assert costs.size_hint(unbacked) == costs.UNKNOWN_SIZE


def test_parameters_and_outputs_are_alive_anyway():
    joint = joint_of(lambda x, w: (x @ w).exp(), grad(2, 3), grad(3, 4), static=[1])
    analysis = analyze_joint(joint)
    held = {node.name: costs.held_bytes(analysis, node) for node in min_cut(analysis, Objective()).saved}
    assert held == {"primals_1": 24, "primals_2": 0, "exp": 0}


def test_an_overwritten_parameter_costs_its_copy():
    joint = joint_of(lambda x, y: (x + 1, x * y), torch.randn(4), grad(4), static=[0], mutated=[0])
    analysis = analyze_joint(joint)
    assert costs.held_bytes(analysis, node_of(joint, "primals_1")) == 16


def test_attention_costs_its_products():
    """Attention is no pointwise op that draws; the table of PyTorch lacks the op for a CPU."""
    aten, q = torch.ops.aten, grad(2, 4, 64, 16)
    joint = joint_of(lambda q: F.scaled_dot_product_attention(q, q, q), q)
    ops = {node.target: node for node in joint.module.graph.nodes if costs.flops(node)}
    products = 2 * 4 * 2 * (64 * 64 * 16)
    assert costs.flops(ops[aten._scaled_dot_product_flash_attention_for_cpu.default]) == 2 * products
    assert costs.flops(ops[aten._scaled_dot_product_flash_attention_for_cpu_backward.default]) == 5 * products
    assert {_kind(node) for node in ops.values()} == {Kind.ALONE}
