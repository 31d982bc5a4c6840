"""Feature tests of `aotgrad/torch_compat/dynamo.py`."""

from __future__ import annotations

import inspect
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.fx as fx
from torch import nn
from torch._dynamo import convert_frame
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.two_tensor import TwoTensor

from aotgrad import torch_compat as compat
from tests.fake_processes import fake_processes


def test_disable_dynamo_runs_the_function_as_it_is():
    traced = []

    @compat.disable_dynamo
    def hidden(x):
        traced.append(torch.compiler.is_compiling())
        return x + 1

    assert torch.compile(lambda x: hidden(x) * 2, backend="eager")(torch.ones(1)).item() == 4
    assert traced == [False]


@pytest.mark.parametrize(
    ("error", "breaks"), [(DataDependentOutputException("item"), True), (ValueError(), False), (None, False)]
)
def test_breaks_dynamos_graph(error, breaks):
    assert compat.breaks_dynamos_graph(error) == breaks


def test_an_error_that_dynamo_passes_on():
    class OwnError(ValueError):
        pass

    def backend(graph, inputs):
        raise compat.unwrapped_by_dynamo(OwnError("our text"), inspect.currentframe())

    torch._dynamo.reset()
    with pytest.raises(OwnError) as raised:
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1))
    assert str(raised.value) == "our text" and type(raised.value).__qualname__ == OwnError.__qualname__
    assert [entry.name for entry in raised.traceback][1:] == ["compile_wrapper", "backend"]


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_a_parallel_module_awaits_gradients_unless_dynamo_cuts_its_graph():
    class Active(nn.parallel.DistributedDataParallel):
        def __init__(self):  # a real one needs a process group
            nn.Module.__init__(self)

    seen = []

    def backend(module, _):
        seen.append(compat.ddp_awaits_gradients())
        return module.forward

    assert not compat.ddp_awaits_gradients()
    with Active()._inside_ddp_forward():
        assert compat.ddp_awaits_gradients()
        with compat.reset_dynamo(), torch._dynamo.config.patch(optimize_ddp=False):
            torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1))
    assert seen == [True]


def test_where_dynamo_breaks_graphs_and_what_it_passes():
    sources = []

    def backend(module, example_inputs):
        sources.append([compat.dynamo_source(node) for node in module.graph.find_nodes(op="placeholder")])
        return module.forward

    def function(x, more):
        x = x + more["w"]
        torch._dynamo.graph_break()
        return x * 2

    with compat.reset_dynamo(), compat.graph_breaks() as breaks:
        torch.compile(function, backend=backend)(torch.ones(1), {"w": torch.ones(1)})
    assert sources == [["L['x']", "L['more']['w']"], ["L['x']"]]
    ((frame, reason),) = breaks
    assert frame.line == "torch._dynamo.graph_break()" and reason
    assert compat.dynamo_source(torch.fx.Graph().placeholder("x")) is None


def test_dynamo_forgets():
    compiled = []
    function = torch.compile(lambda x: x + 1, backend=lambda module, _: compiled.append(module) or module.forward)
    for _ in range(2):
        with compat.reset_dynamo():
            function(torch.ones(1))
    assert len(compiled) == 2


def test_marked_dimensions():
    x = torch.ones(2, 3, 4)
    torch._dynamo.mark_dynamic(x, 1)
    torch._dynamo.maybe_mark_dynamic(x, 2)
    assert compat.dims_marked_dynamic(x) == {1, 2}
    assert compat.dims_marked_dynamic(torch.ones(1)) == frozenset()


def test_sizes_that_stay_symbolic():
    sizes = []

    def record(module, inputs):
        sizes.append([type(value) for value in inputs if not isinstance(value, torch.Tensor)])
        return module.forward

    x = torch.ones(3, 4)
    compat.keep_symbolic([None, x], {1: frozenset((0,))})
    compat.keep_symbolic([x], {0: frozenset((1,))})
    torch.compile(torch.sin, backend=record)(x)
    assert sizes == [[torch.SymInt] * 2 if compat.can_inline() else []]


def test_dynamo_compiles_under_a_lock(monkeypatch):
    """It is re-entrant, and read at each compilation, so a child process can replace it."""
    monkeypatch.setattr(convert_frame, "compile_lock", compat.dynamos_lock())

    def can_be_had():
        with ThreadPoolExecutor(1) as pool:
            if is_free := pool.submit(lock.acquire, timeout=0.01).result():
                pool.submit(lock.release).result()
        return is_free

    found = []
    for lock_of in (compat.dynamos_lock, compat.new_dynamos_lock):
        lock = lock_of()
        torch._dynamo.reset()
        torch.compile(lambda x: x + 1, backend=lambda graph, _: found.append(can_be_had()) or graph.forward)(torch.ones(1))
        assert lock is compat.dynamos_lock()
        with lock, lock:
            assert not can_be_had()
        assert can_be_had()
    assert found == [False, False]


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


def test_what_torch_compile_was_given():
    model = nn.Linear(2, 2)
    assert compat.uncompiled_function(torch.compile(model, backend="eager")) is compat.uncompiled_function(model) is model
    assert compat.uncompiled_function(torch.compile(three, backend="eager")) is three


def three():
    return 3


def test_frames_that_dynamo_leaves_alone():
    """Dynamo is active when the hook is called, because `autograd.grad` breaks the graph."""

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

    assert "sin" in compiled_graphs(seen) and "sin" not in compiled_graphs(compat.hide_from_dynamo(hidden))


def test_whether_dynamo_sees_the_frames_of_a_thread():
    ask, switch = compat.dynamos_frame_callback(), torch._C._dynamo.eval_frame.set_eval_frame
    before = switch(False)  # what it has compiled is used, and nothing else is compiled
    answer = ask()
    switch(before)
    assert (answer, ask()) == (False, None)


def test_a_float_that_dynamo_passes_as_a_tensor():
    found = []

    def backend(graph, inputs):
        found.append([compat.float_of_tensor(value) for value in inputs])
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(lambda x, s: x * s, backend=backend)
    for s in (0.5, 0.75):
        compiled(torch.ones(2), s)
    assert found[0] == [None] and found[1][0] is None and found[1][1].node.hint == 0.75
    assert compat.float_of_tensor(torch.tensor(0.5)) is None


def body() -> fx.GraphModule:
    return fx.symbolic_trace(lambda x: x)


def with_custom_function(transforms: int) -> fx.GraphModule:
    """A graph with a custom function inside transforms, and another one after them."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    for _ in range(transforms):
        graph.call_function(torch._C._functorch._grad_increment_nesting)
    applied = graph.call_function(torch.ops.higher_order.autograd_function_apply, (graph.get_attr("body"), x))
    for _ in range(transforms):
        graph.call_function(torch._C._functorch._grad_decrement_nesting)
    graph.output(graph.call_function(torch.ops.higher_order.autograd_function_apply, (applied, x)))
    return fx.GraphModule({"body": body()}, graph)


@pytest.mark.parametrize(("transforms", "requires_grad"), [(1, True), (2, False), (2, True), (3, False)])
def test_a_lost_history_is_refused(transforms, requires_grad):
    with pytest.raises(Exception, match="does not differentiate the backward of a custom autograd") as raised:
        compat.refuse_lost_histories(with_custom_function(transforms), [torch.ones(1, requires_grad=requires_grad)])
    assert compat.breaks_dynamos_graph(raised.value)


@pytest.mark.parametrize(("transforms", "requires_grad"), [(0, True), (0, False), (1, False)])
def test_a_history_that_nobody_needs_may_be_lost(transforms, requires_grad):
    compat.refuse_lost_histories(with_custom_function(transforms), [3, torch.ones(1, requires_grad=requires_grad)])


def test_compiled_functions_are_inlined():
    graphs = []
    function = torch.compile(torch.sin, backend=lambda graph, inputs: graphs.append(graph) or graph)
    with compat.inline_compiled_functions():
        function(torch.ones(1))
        assert not fx._symbolic_trace.is_fx_tracing()
        traced = fx.symbolic_trace(lambda x: x * (2 if fx._symbolic_trace.is_fx_tracing() else 3))
    assert not graphs and not fx._symbolic_trace.is_fx_tracing()
    assert traced(1) == 2
    function(torch.ones(1))
    assert len(graphs) == 1


def test_compiled_functions_of_other_threads_are_compiled():
    graphs = []
    function = torch.compile(torch.sin, backend=lambda graph, inputs: graphs.append(graph) or graph)
    with compat.inline_compiled_functions(), ThreadPoolExecutor(1) as pool:
        pool.submit(function, torch.ones(1)).result()
        assert len(graphs) == 1


def switched(*steps):
    """A graph that applies a custom function of Dynamo's with this backward."""
    body = fx.Graph()
    gradient = body.placeholder("gradient")
    for step in steps:
        body.call_function(torch._C._set_grad_enabled, (step,)) if isinstance(step, bool) else body.call_function(
            step, (gradient,)
        )
    body.output((gradient,))
    graph = fx.Graph()
    x, bodies = graph.placeholder("x"), [graph.get_attr("forward_body"), graph.get_attr("backward_body")]
    graph.output(graph.call_function(torch.ops.higher_order.autograd_function_apply, (*bodies, x)))
    backward = fx.GraphModule({}, body)
    return fx.GraphModule({"forward_body": fx.GraphModule({}, fx.Graph()), "backward_body": backward}, graph)


@pytest.mark.parametrize(
    ("steps", "left"),
    [
        ((False, torch.sin, True), [torch.sin]),
        ((False, torch.sin, False, torch.cos, False, True), [False, torch.sin, False, torch.cos, False, True]),
        ((torch.sin, True), [torch.sin, True]),
        ((torch.sin,), [torch.sin]),
        ((), []),
    ],
)
def test_the_backward_of_a_custom_function_is_recorded(steps, left):
    module = switched(*steps)
    compat.record_backwards_of_custom_functions(module)
    found = [node for node in module.backward_body.graph.nodes if node.op == "call_function"]
    assert [node.args[0] if node.target is torch._C._set_grad_enabled else node.target for node in found] == left


def test_a_hook_that_a_graph_does_not_show_breaks_it():
    seen = []

    def backend(module, inputs):
        compat.refuse_hooks_of_later(inputs)
        seen.append(module)
        return module.forward

    def function(x):
        y = x.sin()
        y.register_hook(lambda gradient: gradient * 2)
        return y * 3

    x = torch.ones(2, requires_grad=True)
    with compat.reset_dynamo(), torch._dynamo.compiled_autograd._enable(lambda graph: graph):
        torch.compile(function, backend=backend)(x).sum().backward()
        assert torch.allclose(x.grad, 6 * torch.ones(2).cos()) and seen == []


def test_the_fake_of_an_input_has_dynamos_symbols_and_no_gradient():
    seen = []

    def backend(module, inputs):
        seen.extend(compat.fake_of_dynamo(value) for value in inputs if isinstance(value, torch.Tensor))
        return module.forward

    x = TwoTensor(torch.ones(3, 4), torch.ones(3, 4)).requires_grad_()
    torch.compile(lambda x: x * x.shape[0], backend=backend, dynamic=True)(x)
    (fake,) = seen
    assert type(fake) is TwoTensor and isinstance(fake.a, compat.FakeTensor) and not fake.requires_grad
    assert all(isinstance(size, torch.SymInt) for size in (*fake.size(), *fake.a.size()))
    assert compat.fake_of_dynamo(x) is None


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo reads it
def test_the_fake_of_an_input_that_is_no_leaf_is_made_in_a_trace():
    """A DTensor asks whether a trace runs before it looks in a cache, where symbolic sizes cannot be."""
    seen = []

    def backend(module, inputs):
        seen.extend(compat.fake_of_dynamo(value) for value in inputs if isinstance(value, DTensor))
        return module.forward

    with fake_processes(1):
        mesh = init_device_mesh("cpu", (1,))
        x = DTensor.from_local(torch.ones(3, 4, requires_grad=True), mesh, [Shard(0)], run_check=False) * 2
        torch.compile(lambda x: x * 2, backend=backend, dynamic=True)(x)
    (fake,) = seen
    assert not x.is_leaf and all(isinstance(size, torch.SymInt) for size in (*fake.size(), *fake.to_local().size()))


def test_the_path_of_a_parameter_in_its_module():
    assert compat.path_in_source("L['self']._modules['layers']._modules['0']._buffers['mean']") == "layers.0.mean"
    assert compat.path_in_source("L['x']") is None and compat.path_in_source(None) is None
    paths = []

    def backend(module, example_inputs):
        paths.extend(compat.paths_of_placeholders(module))
        return module.forward

    with compat.reset_dynamo():
        torch.compile(torch.nn.Sequential(torch.nn.Linear(2, 2)), backend=backend)(torch.ones(2))
    assert set(paths) == {"0.weight", "0.bias", None}
    assert compat.paths_of_placeholders(torch.nn.Linear(2, 2)) == []


def test_what_tells_its_size_only():
    graph = torch.fx.Graph()
    x, y, _ = (graph.placeholder(name) for name in "xyz")
    graph.output((x, graph.call_function(torch.ops.aten.sym_size.int, (y, 0))))
    assert compat.used_placeholders(torch.fx.GraphModule({}, graph)) == [True, False, False]
    assert compat.used_placeholders(torch.nn.Linear(2, 2)) == []
