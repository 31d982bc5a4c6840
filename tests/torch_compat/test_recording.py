"""Feature tests of `aotgrad/torch_compat/recording.py`."""

from __future__ import annotations

import pytest
import torch
import torch.fx as fx

from aotgrad import torch_compat as compat
from aotgrad.capture.recorder import Recorder
from tests.torch_compat.tracing import Tracing, symbolic

aten = torch.ops.aten


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
    """Dynamo has its own mode, and calls ops that trace subgraphs."""
    with compat.subgraphs_are_traced(fake_mode, {}):
        tracer = torch.fx.experimental.proxy_tensor._CURRENT_MAKE_FX_TRACER
        assert isinstance(tracer, compat.SubgraphTracer) and tracer.fake_tensor_mode is fake_mode
        with compat.new_fake_mode() as dynamos:
            assert tracer.fake_tensor_mode is dynamos


def test_later_numbers_are_forgotten():
    """A tracer that knows a number no more finds it in the next tensor that has it."""
    mode = compat.FakeTensorMode(shape_env=compat.ShapeEnv())
    tracer = compat.PythonKeyTracer()
    tracer.graph, x = fx.Graph(), symbolic(mode, 5)
    known = compat.known_numbers(tracer)
    for name in ("first", "second"):
        compat.track_tensor_tree(x, fx.Proxy(tracer.graph.placeholder(name), tracer), constant=None, tracer=tracer)
        assert compat.proxy_node(x.size(0), tracer).args[0].name == name
        compat.set_known_numbers(tracer, known)


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


def test_a_node_gets_what_the_interpreter_says(fake_mode):
    meta: dict = {}
    with compat.fx_traceback.preserve_node_meta():
        compat.fx_traceback.current_meta.update(custom={"a": 1}, stack_trace="here", unrelated=2)
        compat.copy_current_meta(meta, torch.ops.aten.sin.default)
    assert meta == {"custom": {"a": 1}, "stack_trace": "here", "original_aten": torch.ops.aten.sin.default}
    assert compat.name_of_node(fx.Graph(), torch.ops.aten.sin.default) == "sin"


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


def test_shapes_are_checked_without_a_record(fake_mode):
    def first(tensors, dim=0):
        compat.run_shape_function(aten.cat.default, tensors, dim)
        return tensors[0].clone()

    trace = Tracing(fake_mode, torch.ones(2, 3), {aten.cat.default: first})
    with trace.active() as x:
        torch.cat([x, x])
        with pytest.raises(RuntimeError):
            torch.cat([x, x[0]])
    assert trace.recorded() == ["aten.clone.default", "aten.select.int"]


def test_decompose_applies_a_table(fake_mode):
    trace = Tracing(fake_mode, torch.ones(2), {aten.silu.default: lambda x: x * x.sigmoid()})
    with trace.active() as x:
        torch.nn.functional.silu(x)
    assert trace.recorded() == ["aten.sigmoid.default", "aten.mul.Tensor"]


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


def test_a_traced_tensor_forgets_its_value():
    graph = compat.PythonKeyTracer()
    mode = compat.new_fake_mode()
    fake = mode.from_tensor(torch.tensor(3.0))
    fake.constant = torch.tensor(3.0)
    assert compat.is_constant(fake, graph)
    compat.forget_constant(fake, graph)
    assert not compat.is_constant(fake, graph)


def test_the_device_of_a_fake_is_asked_by_an_op(fake_mode):
    with fake_mode:
        fake = torch.empty(2)
        assert compat.is_outside_of_kernels(fake) and not compat.is_outside_of_kernels(3)
        assert compat.DEVICE_OF(fake) == torch.device("cpu")


def test_a_view_whose_base_was_written_to_is_settled(fake_mode):
    trace = Tracing(fake_mode, torch.ones(2, 3))
    with trace.active() as x:
        view = x.view(6)
        x.add_(1)
        before = trace.recorded()
        compat.settle(compat.TensorTracker(trace.tracer), view)
        assert before == ["aten.view.default", "aten.add.Tensor"]
        assert trace.recorded() == [*before, "aten.view.default"]


def test_tensors_that_a_trace_has_met(fake_mode):
    trace, real = Tracing(fake_mode, torch.ones(2)), torch.ones(2)
    with trace.active() as x:
        assert compat.closed_over_in_trace() == []
        x * real
        (met,) = compat.closed_over_in_trace()
    assert met is real
