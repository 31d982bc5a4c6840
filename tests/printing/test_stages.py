"""The text of stages: types, graphs, and that it is the same every time and on every machine."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
import torch.fx as fx
from torch.fx.experimental.proxy_tensor import make_fx

from aotgrad import printing
from aotgrad.graph.source_lines import source_line
from aotgrad.inspect.specs import parse_argument
from aotgrad.ir import Compiled, JointGraph, SavingNodes
from aotgrad.printing.graphs import argument_text, body_lines
from aotgrad.printing.types import type_text
from aotgrad.slots import Primal, SlotSignature, UserOutput
from tests.executables import executable_of

aten = torch.ops.aten


# --- types -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["f32[3, 4]", "bf16[]", "i64[0]", "b8[2]", "c64[3]", "u8[1, 2]", "f32[4, 3][1, 4]", "f32[2, 3][0, 1]", "f16[3][2]"],
)
def test_types_are_read_and_written_alike(text):
    assert type_text(parse_argument(text)) == text


def test_strides_along_a_dimension_of_one_say_nothing():
    assert type_text(torch.empty_strided((1, 3), (17, 1))) == "f32[1, 3]"


def test_a_device_is_named_unless_it_is_the_cpu():
    assert type_text(torch.empty(2, device="meta")) == "f32[2]meta"


def test_other_layouts_and_dtypes_are_spelled_out():
    assert type_text(torch.eye(2).to_sparse()) == "f32[2, 2][sparse_coo]"
    assert type_text(torch.empty(2, dtype=torch.float8_e5m2)) == "float8_e5m2[2]"


def test_types_of_other_values():
    assert type_text((torch.ones(2), None, 3)) == "(f32[2], None, int)"


def test_symbolic_sizes_are_printed_without_a_guard():
    capture = executable_of(lambda x: x.sin(), "f32[3, 4]", dynamic=True).capture
    fake = capture.inputs[0].fake
    guards = len(fake.fake_mode.shape_env.guards)
    rows, columns = (str(size) for size in fake.size())
    assert type_text(fake) == f"f32[{rows}, {columns}]"
    assert type_text(fake.t()) == f"f32[{columns}, {rows}][1, {columns}]"
    assert type_text(fake.size(0)) == f"Sym({rows})"
    assert len(fake.fake_mode.shape_env.guards) == guards


# --- arguments and lines ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1, (2,)], "[1, (2,)]"),
        ({"a": None}, "{'a': None}"),
        (torch.bfloat16, "torch.bfloat16"),
        (torch.device("cpu"), "cpu"),
        (2**63 - 1, "int64_max"),
        ("mean", "'mean'"),
        (torch.ones(2), "f32[2]"),
    ],
)
def test_arguments(value, text):
    assert argument_text(value) == text


def test_objects_are_printed_without_their_address():
    assert argument_text(object()) == "<object object>"


@pytest.mark.parametrize(
    ("trace", "line"),
    [
        (None, None),
        ("  \n", None),
        ('  File "/home/a/model.py", line 3, in f\n    y = x.sin()\n', "y = x.sin()"),
        ('  File "/home/a/model.py", line 3, in f\n    y = x @ w\n        ~~^~~\n', "y = x @ w"),
        ('  File "/home/a/model.py", line 3, in f\n', "model.py:3"),
    ],
)
def test_source_line(trace, line):
    assert source_line(trace) == line


def test_a_line_of_the_user_stands_above_its_nodes_once():
    graph = fx.Graph()
    node = graph.placeholder("x")
    for line in ("a = x", "a = x", "b = a"):
        node = graph.call_function(aten.sin.default, (node,))
        node.meta["stack_trace"] = f'  File "f.py", line 1, in f\n    {line}\n'
    graph.output(node)
    assert list(body_lines(graph)) == [
        "# a = x",
        "sin_default = aten.sin.default(x)",
        "sin_default_1 = aten.sin.default(sin_default)",
        "# b = a",
        "sin_default_2 = aten.sin.default(sin_default_1)",
    ]


def test_sizes_that_nobody_uses_are_left_out():
    captured = printing.text(executable_of(lambda x: x.sin(), "f32[3, 4]", dynamic=True).capture)
    assert "aten.sin" in captured
    assert "sym_size" not in captured


# --- stages ----------------------------------------------------------------------------------------------------------


def test_branches_of_control_flow_are_nested_functions():
    def branch(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    torch._dynamo.reset()  # what it knows of other branches would make sizes symbolic
    module = make_fx(branch, tracing_mode="fake")(torch.ones(2))
    signature = SlotSignature((Primal(0),), (UserOutput(0),))
    results = module.graph.find_nodes(op="output")[0]
    results.args = ((results.args[0],),)
    text = printing.text(JointGraph(module, signature, frozenset(), frozenset()))
    assert re.search(r"    def true_graph_0\(\n.*\n    \):\n        sin.* = aten.sin.default\(", text)
    assert "cond(gt, true_graph_0, false_graph_0, " in text


def test_a_joint_graph_says_where_its_backward_raises():
    joint = executable_of(lambda x: x.sin(), "f32[3] requires_grad").joint
    (segment,) = joint.segments
    nodes = SavingNodes(tangent_mask=1, gradient_mask=1, error="modified by an inplace operation")
    text = printing.text(replace(joint, segments=(replace(segment, saving=(nodes,)),)))
    assert text.endswith("a backward from output 0 to primal 0 raises\n    modified by an inplace operation")


def test_compiled_says_what_is_known_of_the_callables():
    assert printing.text(Compiled("b", print, None)) == "backend b: forward compiled, no backward"


def test_only_stages_have_a_text():
    with pytest.raises(TypeError, match="no stage returns a list"):
        printing.text([])


def stages_of(executable):
    return (executable.capture, executable.meta, executable.joint, executable.partition, executable.compiled, executable)


def test_texts_are_stable_and_name_no_place():
    def function(x, w):
        y = torch.nn.functional.dropout(x @ w)
        return y[0], y[1], y.shape[0], None

    first, second = (executable_of(function, "f32[2, 3] requires_grad", "f32[3, 3]") for _ in range(2))
    for one, other in zip(stages_of(first), stages_of(second), strict=True):
        assert printing.text(one) == printing.text(other)
        assert not re.search(r"0x[0-9a-f]{6}|[\w\"']/\w+/", printing.text(one))
