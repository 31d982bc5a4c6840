"""Schedules as source text, step by step."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from aotgrad.graph.geometry import Geometry
from aotgrad.ir import ViewReplay, ViewStep
from aotgrad.runtime.emit import emit
from aotgrad.runtime.reused_memory import ResultCopies
from aotgrad.runtime.schedule import Schedule
from aotgrad.runtime.steps import (
    ConvertToInference,
    CopyBack,
    Forward,
    MakeAlias,
    MakeView,
    RestoreGradMode,
    ReturnValue,
    SetVersion,
    Step,
    UpdateGeometry,
)
from aotgrad.runtime.writer import MANY, SourceWriter, op_expression, size_expressions, tuple_of, versions_text
from tests.executables import executable_of

aten = torch.ops.aten
FORWARD = Forward(("x",), ("y",), (), autocast=False, random_devices=())


def lines(*steps, inputs=("x",)) -> list[str]:
    """The body of the emitted function, without unpacking and the forward."""
    text = emit(Schedule(tuple(inputs), steps, (), (), (), (), ResultCopies((), ())))
    compile(text, "<test>", "exec")
    return [line.strip() for line in text.splitlines()]


def body(*steps) -> list[str]:
    return lines(*steps)[3:-1]


def view(op, *args, item=None, grad_mode=None, **kwargs) -> MakeView:
    step = ViewStep(op, args, tuple(kwargs.items()), item)
    return MakeView("out", "x", ViewReplay((step,), grad_mode, "why"))


def test_arguments_are_unpacked_and_the_list_is_cleared():
    assert lines(ReturnValue("x", is_name=True)) == ["def call(args):", "x, = args", "args.clear()", "return [x]"]
    assert lines(inputs=()) == ["def call(args):", "args.clear()", "return []"]


def test_forward():
    step = Forward(("x", "y"), ("out",), ("y",), autocast=False, random_devices=())
    assert body(step) == ["inputs = [x, y]", "del y", "out, = below_autograd(forward, inputs)"]


def test_forward_under_autocast_that_draws_random_numbers_and_returns_nothing():
    step = Forward(("x",), (), (), autocast=True, random_devices=("cpu",))
    run = ["with disable_autocast():", "below_autograd(forward, inputs)"]
    assert body(step) == ["inputs = [x]", "state = random_state(('cpu',))", *run]


def test_versions_of_many_tensors_are_read_together():
    many = [(f"x{k}", f"x{k}._version") for k in range(MANY)]
    together = f"*versions_of(({', '.join(name for name, _ in many)}))"
    few = [("a", "a._version"), ("b", "b._version")]
    mutated = ("c", "version_c + 1")
    assert versions_text(many) == f"[{together}]"
    assert versions_text(many[1:]) == f"[{', '.join(text for _, text in many[1:])}]"
    texts = ["a._version", "b._version", "version_c + 1", together, "None"]
    assert versions_text([*few, mutated, *many, ("n", "None")]) == f"[{', '.join(texts)}]"


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (CopyBack("x", "y", "", None), ["x.copy_(y)"]),
        (CopyBack("x", "y", ".detach()", None), ["x.detach().copy_(y)"]),
        (CopyBack("x", "y", "", True), ["with set_grad_enabled(True):", "x.copy_(y)"]),
        (UpdateGeometry("x", Geometry((3, 2), (1, 3), 0), None), ["x.as_strided_((3, 2), (1, 3), 0)"]),
        (
            UpdateGeometry("x", Geometry((2,), (1,), 4), False),
            ["with set_grad_enabled(False):", "x.as_strided_((2,), (1,), 4)"],
        ),
        (MakeAlias("before", "x"), ["before = x.detach()"]),
        (ConvertToInference("x"), ["x = as_inference(x)"]),
        (RestoreGradMode(False), ["set_grad_enabled(False)"]),
        (view(aten.t.default), ["# why", "out = x.t()"]),
        (view(aten.split.Tensor, 2, item=1), ["# why", "out = aten.split.Tensor(x, 2)[1]"]),
        (view(aten.view.dtype, torch.int32), ["# why", "out = aten.view.dtype(x, torch.int32)"]),
        (view(aten.squeeze.dims, [0, 1]), ["# why", "out = aten.squeeze.dims(x, [0, 1])"]),
        (
            view(aten.expand.default, [3], implicit=True, grad_mode=False),
            ["# why", "with set_grad_enabled(False):", "out = aten.expand.default(x, [3], implicit=True)"],
        ),
    ],
)
def test_steps(step, text):
    assert body(step) == text


@pytest.mark.parametrize("kind", Step.__subclasses__())
def test_a_step_says_what_it_reads_emits_and_does(kind):
    assert "emit" in vars(kind) or kind.SOURCE
    assert "description" in vars(kind) or kind.WORDS
    assert {*kind.READS} <= {field.name for field in fields(kind)}


def test_versions_are_read_before_anything_runs():
    text = lines(FORWARD, SetVersion("x", 2), SetVersion("x", 2))
    assert text.index("version_x = version_of(x)") < text.index("inputs = [x]")
    assert text.count("version_x = version_of(x)") == 1
    assert text[-2] == "raise_version(x, version_x, 2)"


def test_versions_of_many_tensors_are_set_together():
    names = [f"x{k}" for k in range(MANY)]
    text = lines(FORWARD, *(SetVersion(name, 1) for name in names))
    tensors, versions = ", ".join(names), ", ".join(f"version_{name}" for name in names)
    assert f"{versions} = versions_at_entry(({tensors}))" in text
    assert text[-2] == f"raise_versions(({tensors}), ({versions}), {(1,) * MANY})"


def test_a_chain_of_views_uses_one_name():
    steps = tuple(ViewStep(op, (), (), None) for op in (aten.t.default, aten.detach.default))
    chain = MakeView("out", "x", ViewReplay(steps, None, "why"))
    assert body(chain)[1:] == ["out = x.t()", "out = out.detach()"]


def test_constants_are_literals_or_names():
    returned = [ReturnValue(value, is_name=False) for value in (None, 2, "a", 0.5, torch.float32, True)]
    assert lines(*returned)[-1] == "return [None, 2, 'a', constant_3, constant_4, True]"


def test_constants_are_bound_under_the_names_in_the_text():
    executable = executable_of(lambda x: (x, 0.1, float("nan"), torch.float32), "f32[2]")
    assert executable.source.count("constant_") == 3
    x = torch.ones(2)
    first, tenth, nan, dtype = executable([x])
    assert first is x
    assert (tenth, dtype) == (0.1, torch.float32)
    assert nan != nan


def test_symbols_are_bound_once_and_before_their_use():
    executable = executable_of(lambda x: (x.view(x.shape[0] * 2, -1), x.t()), "f32[4, 6]", dynamic=True)
    symbol = str(executable.capture.inputs[0].fake.size(0))
    text = executable.source
    assert text.count(f"{symbol} = primals_1.size(0)") == 1
    assert text.index(f"{symbol} = ") < text.index(".view(")
    viewed, transposed = executable([torch.ones(8, 2)])
    assert (viewed.shape, transposed.shape) == ((16, 1), (2, 8))


def test_a_schedule_without_a_backward_makes_no_autograd_node():
    assert "attach" not in executable_of(lambda x: x.sin(), "f32[2]").source


def test_a_schedule_that_only_runs_the_graph_hands_on_its_list():
    executable = executable_of(lambda x, y: (x * y, x + y), "f32[2]", "f32[2]")
    assert "primals_1" not in executable.source
    arguments = [torch.full((2,), 3.0), torch.full((2,), 2.0)]
    assert [result.tolist() for result in executable(arguments)] == [[6, 6], [5, 5]]
    assert arguments == []


@pytest.mark.parametrize("function", [lambda x: (x.sin(), x.view(-1)), lambda x: (x.sin(), None), lambda x: [x.sin()] * 2])
def test_a_schedule_that_does_more_names_its_arguments(function):
    assert "primals_1, = args" in executable_of(function, "f32[2]").source


def test_a_call_frees_inputs_that_no_step_reads():
    assert "del primals_1" in executable_of(lambda x: (x.sin(), 1), "f32[2]").source
    assert "del" not in executable_of(lambda x: x.add_(1), "f32[2]").source


def test_size_expressions():
    tensor = torch.ones(2, 3)[:, 1:]
    found = dict(size_expressions("x", tensor))
    assert {text: eval(text, {"x": tensor}) for text in found} == found
    assert list(size_expressions("n", 5)) == [("n", 5)]
    assert [text for text, _ in size_expressions("x", torch.eye(2).to_sparse())] == ["x.size(0)", "x.size(1)"]


def test_small_texts():
    assert (tuple_of([]), tuple_of(["a"]), tuple_of(["a", "b"])) == ("", "a,", "a, b")
    assert op_expression(aten.view.default) == "aten.view.default"
    assert op_expression(torch.ops.prims.sin.default) == "torch.ops.prims.sin.default"


def test_blocks():
    writer = SourceWriter({})
    with writer.grad_mode(None):
        writer.line("f()")
    with writer.grad_mode(False), writer.block("with outer():"):
        writer.line("g()")
    writer.line("h()")
    assert writer.lines == ["f()", "with set_grad_enabled(False):", "    with outer():", "        g()", "h()"]
